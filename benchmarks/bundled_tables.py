"""Advice on tables nobody here chose: all two-class tables bundled with statsmodels and scikit-learn.

``python -m benchmarks.bundled_tables [--rows 100] [--epochs N] [--only cataneo2 ...]``

Each CSV file of both packages is read, the test data of statsmodels included. A table counts if it has 500 to
50,000 rows, 5 to 60 columns, and a column with two values. The label is the one of these columns that
``veritracer inspect`` proposes first, and its higher value counts as favourable: any label will do to
count changes that are not needed. Whatever is left out is listed with the reason. Finished tables are kept in
``out/bundled_tables.jsonl``: a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import sklearn
import torch
from torch import nn

import veritracer as vt
from benchmarks.record import keep, lines_of, save, show
from veritracer.bounds.ibp import Box
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import VeriTracerError, VeriTracerWarning
from veritracer.schema.inspection import target_candidates
from veritracer.search.problem import certified_region

ROWS, COLUMNS = (500, 50_000), (5, 60)
TEST_SHARE = 0.3
LINES = Path("out/bundled_tables.jsonl")


class Table(NamedTuple):
    """A table with the name of its label."""

    name: str
    frame: pd.DataFrame
    target: str


def statsmodels() -> ModuleType:
    """Return the package, which only this script needs."""
    try:
        import statsmodels as package
    except ModuleNotFoundError:
        raise SystemExit(
            "expected the package statsmodels, got an install without it; pip install 'veritracer[judges]'"
        ) from None
    return package


def files() -> Iterator[tuple[str, Path]]:
    """Yield the name and the place of each bundled CSV file, datasets before test data."""
    for package in (sklearn, statsmodels()):
        folder = Path(str(package.__file__)).parent
        found = [*folder.rglob("*.csv"), *folder.rglob("*.csv.gz")]
        for path in sorted(found, key=lambda p: ("tests" in p.parts, p)):
            yield f"{package.__name__}/{path.relative_to(folder)}", path


def two_classes() -> tuple[list[Table], list[tuple[str, str]]]:
    """Return the tables that count, and the names and reasons of the others."""
    tables, left_out, seen = [], [], {}
    for name, path in files():
        table = _read(name, path)
        if isinstance(table, str):
            left_out.append((name, table))
            continue
        content = hashlib.sha256(pd.util.hash_pandas_object(table.frame).to_numpy().tobytes()).hexdigest()
        if content in seen:
            left_out.append((name, f"the same rows as {seen[content]}"))
            continue
        seen[content] = name
        tables.append(table)
    return tables, left_out


def _read(name: str, path: Path) -> Table | str:
    """Return the table in a file, or the reason why it does not count."""
    if path.name == "breast_cancer.csv":  # its header has counts instead of names
        from sklearn.datasets import load_breast_cancer

        frame = load_breast_cancer(as_frame=True).frame
    else:
        try:
            frame = _frame(path)
        except (ValueError, UnicodeDecodeError) as error:
            return f"cannot be read ({type(error).__name__})"
    rows, columns = frame.shape
    if not ROWS[0] <= rows <= ROWS[1]:
        return "fewer than 500 rows" if rows < ROWS[0] else "more than 50,000 rows"
    if not COLUMNS[0] <= columns <= COLUMNS[1]:
        return "fewer than 5 columns" if columns < COLUMNS[0] else "more than 60 columns"
    if sum(bool(re.fullmatch(r"[-+.\deE]+", str(column))) for column in frame.columns) > columns / 2:
        return "no header"
    candidates = target_candidates(frame)
    if not candidates:
        return "no column with two values"
    counts = frame[candidates[0]].value_counts()
    if counts.min() < 30:
        return f"fewer than 30 rows of one label ({candidates[0]})"
    return Table(name, frame, candidates[0])


def _frame(path: Path) -> pd.DataFrame:
    """Read a CSV file whose separator is a comma, a semicolon, a tab or blanks."""
    frame = pd.read_csv(path, low_memory=False)
    if frame.shape[1] > 1:
        return frame
    text = path.read_text()
    separator = next((each for each in (";", "\t") if each in text.partition("\n")[0]), r"\s+")
    return pd.read_csv(io.StringIO(text), sep=separator)


def measure(table: Table, most: int, epochs: int | None) -> dict[str, Any]:
    """Fit a table, explain people who were not seen, and look at every advised change."""
    start = time.process_time()
    schema = vt.Schema.infer(table.frame, table.target, _favourable(table))
    frame = table.frame.sample(frac=1.0, random_state=0)
    cut = round(len(frame) * TEST_SHARE)
    test, train = frame.iloc[:cut].drop(columns=table.target), frame.iloc[cut:]
    model = vt.VeriTraCER(schema=schema, epochs=epochs, random_state=0)
    model.fit(train.drop(columns=table.target), train[table.target])
    declined = test[model.predict(test) != schema.favourable].head(most)
    fitted = time.process_time() - start
    line: dict[str, Any] = {"table": table.name, "label": table.target, "rows": len(frame)}
    line |= {"columns": len(schema), "people": len(declined), "seconds to fit": fitted}
    if len(declined) == 0:
        return line
    start = time.process_time()
    found = model.explain(declined)
    line["seconds to explain"] = time.process_time() - start
    return line | {
        "certified": float(found.certified.mean()),
        "changes": int(found.n_changes.sum()),
        "undone": len(undoable(model.classifier_, found)),
        "doubtful": int(found.doubtful[found.valid].sum()),
        "silent": sum(len(each) for each in unmentioned(found)),
    }


def _favourable(table: Table) -> Any:
    return sorted(table.frame[table.target].dropna().unique().tolist())[1]


def undoable(module: nn.Module, found: Counterfactuals) -> list[tuple[int, str]]:
    """Return the shown changes that can be undone alone without losing the proof or the acceptance.

    It is decided by certificates of the values as a person would give them. Where the panel does not accept
    the counterfactual, undoing a change must not lower the panel's margin.
    """
    region = certified_region(found.encoding, found.options.overshoot, found.options.drift)
    reference, wanted = found.reference, torch.from_numpy(~found.favourable)
    undone = []
    for i in np.flatnonzero(found.proved):
        one = slice(i, i + 1)
        models = found.param_set if found.certified[i] else found.param_set.at(float(found.radius[i]))
        least = reference.panel_margin(found.x_cf[one], wanted[one]).clamp(max=0)
        for change in found.changes_of(i):
            name = change.feature.name
            row = found.frame.iloc[[i]].copy()
            row[name] = found.original[name].iloc[[i]].to_numpy()
            x_cf = found.encoding.encode(row, out_of_range="ignore")
            covered = region.around(x_cf, found.x[one])
            target = covered if isinstance(covered, Box) else x_cf
            proof = vt.certify(module, found.x[one], target, models, radius=False)
            if proof.certified[0] and bool(reference.panel_margin(x_cf, wanted[one]) >= least):
                undone.append((int(i), name))
    return undone


def unmentioned(found: Counterfactuals) -> Iterator[list[str]]:
    """Yield the doubtful changes of each counterfactual that its reason does not name."""
    for i in np.flatnonzero(found.valid):
        names = [n for n, doubt in zip(found.encoding.schema.names, found.doubtful[i], strict=True) if doubt]
        yield [name for name in names if repr(name) not in found.reason[i]]


def run(tables: list[Table], most: int, epochs: int | None) -> list[dict[str, Any]]:
    """Return a line for each table, those that were there and those that were missing."""
    lines = {each["table"]: each for each in lines_of(LINES)}
    for table in tables:
        if table.name in lines:
            continue
        try:
            lines[table.name] = measure(table, most, epochs)
        except VeriTracerError as error:
            lines[table.name] = {"table": table.name, "label": table.target, "refused": str(error)}
        print(lines[table.name], flush=True)
        keep(LINES, [lines[table.name]])
    return [lines[table.name] for table in tables]


COUNTED = ("rows", "columns", "people", "certified", "changes", "undone", "doubtful", "silent")
SECONDS = ("seconds to fit", "seconds to explain")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=100, help="declined people of each table")
    parser.add_argument("--epochs", type=int, help="instead of the default number")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of tables")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", VeriTracerWarning)
    tables, left_out = two_classes()
    tables = [table for table in tables if any(part in table.name for part in chosen.only)]
    lines = run(tables, chosen.rows, chosen.epochs)
    measured = [
        [each["table"], each["label"], *(each.get(name, "") for name in COUNTED)]
        + [f"{each[name]:.0f}" if name in each else "" for name in SECONDS]
        for each in lines
        if "refused" not in each
    ]
    header = ["table", "label", *COUNTED[:-3], "can be undone", "doubtful", "doubtful, not named", *SECONDS]
    refused = [[each["table"], each["refused"]] for each in lines if "refused" in each]
    few = Counter(why for _, why in left_out)
    large = [[name, why] for name, why in left_out if why != "fewer than 500 rows"]
    large.append([f"{few['fewer than 500 rows']} other files", "fewer than 500 rows"])
    settings = f"at most {chosen.rows} people, epochs: {chosen.epochs or 'default'}"
    shown = [show(f"Two-class tables ({settings})", header, measured)]
    shown += [show("Refused", ["table", "message"], refused)] if refused else []
    shown += [show("Left out", ["file", "reason"], large)]
    save("bundled_tables", {"lines": lines, "left_out": left_out}, shown)
    needless, silent = (sum(each.get(name, 0) for each in lines) for name in ("undone", "silent"))
    if needless or silent:
        raise SystemExit(f"expected 0, got {needless} changes that can be undone and {silent} not named")


if __name__ == "__main__":
    main()
