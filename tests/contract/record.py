"""Record the inputs and the golden answers of this folder.

    python tests/contract/record.py answers    # ask everything again and overwrite data/*_answers.csv.gz
    python tests/contract/record.py inputs     # train new models first; every answer changes with them

Answers are recorded again only where a change of behaviour was asked for (tighter bounds, another default of
the search), never to make a refactoring pass. Such a change is a commit of its own, and its message says how
many rows changed in which cases, and why; the last lines that this script prints give the numbers.

A row is recorded only if its answer is the same under every setting in ``SETTINGS``: plain kernels, MKL's
compatible kernels, both, two threads, rows in another order, and weights that are off by 1e-12 (1e-6 in the
panel). What depends on the last bits of one machine is left out here, so that the tests can compare exactly.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import golden_cases
import numpy as np
import pandas as pd
import torch
from golden_cases import DATA, PEOPLE, TABLES, TARGETS

import veritracer as vt
from veritracer.errors import VeriTracerWarning

LATER = 1.0
"""How far the audited model is from today's, in mean magnitudes of a tensor: some promises break."""

GZIP = {"method": "gzip", "mtime": 0}  # the same content is the same file
KEY = ["case", "row", "alternative"]


class Setting(NamedTuple):
    """One way to compute the answers."""

    environment: dict[str, str]
    permuted: bool = False
    jitter: int | None = None


PLAIN, COMPATIBLE = {"ATEN_CPU_CAPABILITY": "default"}, {"MKL_CBWR": "COMPATIBLE"}
SETTINGS = {
    "as it is": Setting({}),
    "plain kernels": Setting(PLAIN),
    "compatible MKL": Setting(COMPATIBLE),
    "both, an old processor": Setting({**PLAIN, **COMPATIBLE, "OPENBLAS_CORETYPE": "Nehalem"}),
    "two threads": Setting({"OMP_NUM_THREADS": "2"}),
    "another order": Setting({}, permuted=True),
    **{f"jitter {seed}": Setting({}, jitter=seed) for seed in (1, 2, 3)},
}


def main() -> None:
    """Record what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["inputs", "answers", "worker"])
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.what == "worker":
        answer(*chosen.arguments)
        return
    for name in TABLES:
        if chosen.what == "inputs":
            record_inputs(name)
        record_answers(name)


# ---------------------------------------------------------------- inputs


def record_inputs(name: str) -> None:
    """Train a small model and its panel, and write their arrays and the rows."""
    data = vt.datasets.loans(rows=3000) if name == "loans" else vt.datasets.load(name)
    target, yes, no = TARGETS[name]
    ends = {} if name == "loans" else _ends(data.X)
    schema = vt.Schema(golden_cases.features(name, ends), target=target, favourable=yes, unfavourable=no)
    panel = vt.Panel(networks=2, boosted=2, held_out=1, random_state=0)
    model = vt.VeriTraCER(schema=schema, hidden=(16, 8), panel=panel, random_state=0).fit(data.X, data.y)
    x = model.encoding_.encode(data.X)
    rows = _chosen(model.predict(data.X) == yes, most=700)
    data.X.assign(**{target: data.y}).iloc[rows].to_csv(
        DATA / f"{name}_rows.csv.gz", index=False, compression=GZIP
    )
    today = [t.detach().numpy() for t in model.classifier_.parameters()]
    rng = np.random.default_rng(0)
    later = [w + LATER * np.abs(w).mean() * rng.choice([-1.0, 1.0], w.shape) for w in today]
    linear = [rng.standard_normal((1, x.shape[1])), np.array([-0.15])]
    accepted = torch.from_numpy((data.y == yes).to_numpy())
    arrays: dict[str, Any] = {**ends, "destination": x[accepted].mean(0).numpy()}
    for which, tensors in {"today": today, "later": later, "linear": linear}.items():
        arrays |= {f"{which}.{'Wb'[i % 2]}{i // 2}": w for i, w in enumerate(tensors)}
    np.savez_compressed(DATA / f"{name}_inputs.npz", **arrays, **golden_cases.panel_arrays(model.panel_))


def _ends(X: pd.DataFrame) -> dict[str, Any]:
    return {"columns": np.array(list(X.columns)), "lower": X.min().to_numpy(), "upper": X.max().to_numpy()}


def _chosen(accepted: np.ndarray, most: int) -> np.ndarray:
    """Return the rows to keep: first those that are explained, five in six declined where possible."""
    declined, others = np.flatnonzero(~accepted), np.flatnonzero(accepted)
    count = min(len(declined), PEOPLE * 5 // 6)
    first = np.concatenate([declined[:count], others[: PEOPLE - count]])
    rest = np.setdiff1d(np.arange(len(accepted)), first)
    first = np.random.default_rng(0).permutation(first)
    return np.concatenate([first, rest])[:most]


# ---------------------------------------------------------------- answers


def record_answers(name: str) -> None:
    """Ask every question under every setting, and write the answers that are always the same."""
    found = {setting: _asked(name, setting) for setting in SETTINGS}
    first = found.pop("as it is")
    stable = pd.Series(data=True, index=first.index)
    for setting, other in found.items():
        same = first.eq(other.reindex(first.index)).all(axis=1) & (first.index.isin(other.index))
        lost = other.index.difference(first.index)
        print(f"{name}, {setting}: {(~same).sum()} rows differ, {len(lost)} are new")
        stable &= same
    # All alternatives of a row stand or fall together, and a row that one setting adds is unstable.
    people = first.index.droplevel("alternative")
    unstable = set(people[~stable]) | {
        key[:2] for other in found.values() for key in other.index.difference(first.index)
    }
    kept = first[[key not in unstable for key in people]].reset_index()
    path = DATA / f"{name}_answers.csv.gz"
    before = golden_cases.recorded(name).astype(object) if path.exists() else None
    kept.to_csv(path, index=False, compression=GZIP)
    print(f"{name}: {len(kept)} of {len(first)} rows recorded, {len(first) - len(kept)} left out")
    if before is not None:
        _compare(before, golden_cases.recorded(name).astype(object))


def _compare(before: pd.DataFrame, after: pd.DataFrame) -> None:
    """Print how many rows of each case are not what they were."""
    columns = [*KEY, *golden_cases.COLUMNS[2:]]
    lines = [
        set(table[columns].fillna("").astype(str).itertuples(index=False, name=None))
        for table in (before, after)
    ]
    for case in after["case"].unique():
        new, gone = ({line for line in a - b if line[0] == case} for a, b in (lines[::-1], lines))
        if new or gone:
            print(f"  {case}: {len(new)} lines are new or changed, {len(gone)} are gone or changed")


def _asked(name: str, setting: str) -> pd.DataFrame:
    """Ask every question of a table in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "answers.pickle"
        command = [sys.executable, __file__, "worker", name, setting, str(path)]
        subprocess.run(command, env={**os.environ, **SETTINGS[setting].environment}, check=True)
        return pd.read_pickle(path)


def answer(name: str, setting: str, path: str) -> None:
    """Write the answers under one setting, whose environment is this process's."""
    _, permuted, jitter = SETTINGS[setting]
    warnings.simplefilter("ignore", VeriTracerWarning)  # what most people are told to change
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    given = golden_cases.inputs(name, jitter)
    order = np.random.default_rng(0).permutation(PEOPLE) if permuted else None
    parts = {case: golden_cases.answers(given, case, order) for case in golden_cases.questions(name)}
    table = pd.concat(parts, names=["case"]).reset_index("case").astype(object)
    table.where(table.notna(), "").set_index(KEY).to_pickle(path)


if __name__ == "__main__":
    main()
