"""The files of the command line: what explain writes certify proves again, and hostile files are refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import veritracer as vt
from processes import Done, assert_refused, run, run_many
from veritracer.schema import Feature, Schema
from veritracer.tables import CSVFormat
from veritracer.tables.cells import read_table

pytestmark = pytest.mark.long  # minutes of training and of processes

SCHEMA = Schema(
    [
        Feature("income", "continuous", missing="impute", missing_codes=["unknown", "NA"]),
        Feature("wealth", "continuous", missing="impute", missing_codes=["unknown"], display_step="exact"),
        Feature("savings", "integer", missing="impute", missing_codes=[-9]),
        Feature("debt", "integer", missing="category", missing_codes=["none"]),
        Feature("rate", "continuous", step=0.05, lower=0.0, upper=10.0),
        Feature("dose", "continuous"),
        Feature("grade", "ordinal", categories=["A, good", 'B "fair"', "C\nbad", "=D"]),
        Feature("code", "categorical", categories=[1, "x", False], missing="category"),
        Feature("flag", "binary", categories=[False, True]),
        Feature("area", "categorical", categories=["NA", "north", "south"], missing="category"),
    ],
    "ok",
    "yes",
    "no",
)


def table(rows: int, seed: int) -> pd.DataFrame:
    """Rows with every kind of feature, near 20 million and near 1e-9; with words among the numbers."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": rng.uniform(1.9e7, 2.1e7, rows).round(2),
            "wealth": rng.uniform(0, 1e15, rows),
            "savings": rng.integers(0, 10_000, rows),
            "debt": rng.integers(0, 90_000_000, rows),
            "rate": rng.integers(0, 200, rows) / 20,
            "dose": rng.uniform(1e-9, 2e-9, rows),
            "grade": rng.choice(np.array(SCHEMA["grade"].categories, dtype=object), rows),
            "code": rng.choice(np.array([1, "x", False], dtype=object), rows),
            "flag": rng.random(rows) < 0.5,
            "area": rng.choice(np.array(["NA", "north", "south"], dtype=object), rows),
        }
    ).astype({"income": object, "wealth": object, "debt": object})
    score = frame["income"].astype(float) / 1e6 + frame["savings"] / 4000 + frame["rate"] / 4 + frame["flag"]
    score = score - frame["debt"].astype(float) / 4e7 + rng.normal(0, 0.2, rows)
    frame["ok"] = np.where(score > score.median(), "yes", "no")
    for name, words in (("income", ["unknown", "NA"]), ("wealth", ["unknown"]), ("debt", ["none"])):
        frame.loc[rng.random(rows) < 0.1, name] = rng.choice(np.array(words, dtype=object))
    return frame


def as_parquet(frame: pd.DataFrame, path: Path, narrow: bool = False) -> None:
    """As people have it: text where words stand among the numbers, else numbers; dictionaries too."""
    columns = {}
    for name in frame.columns:
        values = frame[name].tolist()
        mixed = any(isinstance(v, str) for v in values) and any(not isinstance(v, str) for v in values)
        columns[name] = pa.array([str(v) for v in values] if mixed else values)
    columns["grade"] = columns["grade"].dictionary_encode()
    if narrow:
        columns["rate"] = columns["rate"].cast(pa.float32())
        columns["dose"] = columns["dose"].cast(pa.float32())
    pq.write_table(pa.table(columns), path)


MULTILINE = CSVFormat(multiline_cells=True)
INPUTS = ("people.csv", "people.csv.gz", "people.parquet", "numbers.parquet", "narrow.parquet", "semi.csv")
OUTPUTS = ("csv", "parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    (place / "schema.json").write_text(SCHEMA.to_json())
    table(900, 0).to_csv(place / "train.csv", index=False)
    people = table(60, 1).drop(columns="ok")
    people.insert(0, "id", [f"=p{i}" for i in range(len(people))])
    people.to_csv(place / "people.csv", index=False)
    people.to_csv(place / "semi.csv", index=False, sep=";")
    (place / "people.csv.gz").write_bytes(gzip.compress((place / "people.csv").read_bytes()))
    as_parquet(people, place / "people.parquet")
    odd = people["savings"] * 2001.25
    plain = people.assign(wealth=odd, income=odd % 2e6 + 1.9e7, debt=people["savings"] * 7)
    as_parquet(plain, place / "numbers.parquet")
    as_parquet(plain, place / "narrow.parquet", narrow=True)
    fit = ["fit", "train.csv", "--schema", "schema.json", "--epochs", "60", "--no-panel", "--quiet"]
    fit += ["--multiline-cells", "--out", "model"]
    (done,) = run_many([fit], place)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[tuple[str, str], tuple[Done, Done]]:
    """Explained from every input to every output, and certified from there."""
    commands, pairs = [], [(a, b) for a in INPUTS for b in OUTPUTS]
    for source, kind in pairs:
        out = f"{source.replace('.', '_')}.{kind}"
        more = ["--keep", "id", "--json", "--multiline-cells"]
        commands.append(["explain", "model", source, "--out", out, "--no-radius", *more])
        commands.append(["certify", "model", source, out, *more])
    answers = run_many(commands, folder)
    return {pair: (answers[2 * i], answers[2 * i + 1]) for i, pair in enumerate(pairs)}


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize("source", INPUTS)
def test_what_explain_wrote_is_certified_again(
    source: str, kind: str, done: dict[tuple[str, str], tuple[Done, Done]]
) -> None:
    explained, certified = done[source, kind]
    assert explained.returncode == 0, explained.stderr
    assert certified.returncode in (0, 1), certified.stderr
    asked, proved = json.loads(explained.stdout), json.loads(certified.stdout)
    assert asked["certified"] > 5
    assert (proved["rows"], proved["certified"]) == (60, asked["certified"])
    assert proved["invalid"] == 0


def test_every_file_holds_the_same_rows(folder: Path, done: dict[tuple[str, str], tuple[Done, Done]]) -> None:
    assert done
    encoding = vt.load(folder / "model").encoding_
    names = list(encoding.schema.names)
    for source in INPUTS:
        files = [folder / f"{source.replace('.', '_')}.{kind}" for kind in OUTPUTS]
        one, other = (
            encoding.encode(
                read_table(str(f), schema=encoding.schema, csv=MULTILINE)[names], out_of_range="ignore"
            )
            for f in files
        )
        assert bool((one == other).all())


def test_formulas_are_said_and_neutralised_when_asked(folder: Path) -> None:
    asked = [
        "explain",
        "model",
        "people.csv",
        "--multiline-cells",
        "--keep",
        "id",
        "--no-refine",
        "--no-radius",
        "--out",
    ]
    plain, safe, wrong = run_many(
        [
            [*asked, "p.csv"],
            [*asked, "s.csv", "--spreadsheet-safe"],
            [*asked, "s.jsonl", "--spreadsheet-safe"],
        ],
        folder,
    )
    assert "apostrophe" not in plain.stderr
    assert pd.read_csv(folder / "p.csv")["id"].tolist() == [f"=p{i}" for i in range(60)]
    assert "note: an apostrophe was put before the text of " in safe.stderr
    found = pd.read_csv(folder / "s.csv")
    assert found["id"].tolist() == [f"'=p{i}" for i in range(60)]
    assert found["rate"].tolist() == pd.read_csv(folder / "p.csv")["rate"].tolist()
    assert_refused(wrong)


def test_an_unclosed_quote_is_refused_with_its_row(folder: Path) -> None:
    people = pd.read_csv(folder / "people.csv", keep_default_na=False).assign(grade="=D")
    head, *rows = people.to_csv(index=False).splitlines()
    rows = [f"{row},note {i}" for i, row in enumerate(rows * 10)]
    rows[10] = rows[10].replace("note", '"note')
    (folder / "open.csv").write_text("\n".join([f"{head},note", *rows]) + "\n")
    done = run("explain", "model", "open.csv", "--keep", "id,note", "--out", "new.csv", cwd=folder)
    assert_refused(done)
    assert "one in row 11 of open.csv" in done.stderr
    assert not list(folder.glob("new*"))
