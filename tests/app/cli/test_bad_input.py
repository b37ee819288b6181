"""What people get wrong, as one table: each is refused with one sentence, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from optional import posix
from processes import CLEAN, assert_refused, run, run_many

TARGET = ["--target", "approved"]
YES = ["--favourable", "yes"]


def fit(table: str, *more: str) -> list[str]:
    """A fit that should be refused."""
    return ["fit", table, *more, "--out", "new"]


def explain(table: str, *more: str, model: str = "model") -> list[str]:
    """An explain that should be refused."""
    return ["explain", model, table, "--out", "new.csv", *more]


# What is typed, and what the sentence has to mention.
BAD: dict[str, tuple[list[str], str]] = {
    # the command
    "unknown verb": (["explian"], "explian"),
    "unknown option": (explain("people.csv", "--kapa", "1"), "no such option: --kapa"),
    "missing argument": (["explain"], "missing argument 'MODEL'"),
    "missing option": (["fit", "train.csv", *TARGET], "missing option '--out'"),
    "not a number": (explain("people.csv", "--kappa", "much"), "a valid number"),
    "negative kappa": (explain("people.csv", "--kappa", "-0.1"), "greater than or equal to 0"),
    "infinite kappa": (explain("people.csv", "--kappa", "inf"), "kappa to be a finite number"),
    "no changes": (explain("people.csv", "--max-changes", "0"), "greater than or equal to 1"),
    "large overshoot": (explain("people.csv", "--overshoot", "1.5"), "less than or equal to 1"),
    "cost without number": (explain("people.csv", "--cost", "income"), "NAME=NUMBER"),
    "cost of text": (explain("people.csv", "--cost", "income=cheap"), "'income=cheap'"),
    "cost of nobody": (explain("people.csv", "--cost", "incom=2"), "did you mean 'income'"),
    "negative cost": (explain("people.csv", "--cost", "income=-2"), "to be greater than 0"),
    "drift of a category": (explain("people.csv", "--drift", "region=1"), "categorical"),
    "drift of two numbers": (explain("people.csv", "--drift", "savings=1:5"), "from at most 0 to at least 0"),
    "drift of no number": (explain("people.csv", "--drift", "savings=0:many"), "a name and a number"),
    "unknown method": (fit("train.csv", *TARGET, "--method", "magic"), "'veritracer', 'counternet'"),
    "no epochs": (fit("train.csv", *TARGET, "--epochs", "0"), "greater than or equal to 1"),
    "large seed": (fit("train.csv", *TARGET, "--seed", "9" * 30), "less than or equal to"),
    "long separator": (explain("people.csv", "--separator", "--"), "one character"),
    # the table, as a file
    "missing file": (explain("nobody.csv"), "no file nobody.csv"),
    "a directory": (explain("model"), "tables in model"),
    "unreadable gzip": (explain("cut.csv.gz"), "cut.csv.gz"),
    "binary": (explain("binary.csv"), "another binary file"),
    "spreadsheet": (explain("sheet.csv"), "export the sheet as CSV"),
    "picture": (explain("picture.csv"), "picture.csv"),
    "latin-1 header": (fit("latin1_header.csv", *TARGET), "--encoding cp1252"),
    "latin-1": (explain("latin1.csv"), "row 2 of latin1.csv"),
    "empty": (explain("empty.csv"), "nothing in empty.csv"),
    "blank": (explain("blank.csv"), "nothing in blank.csv"),
    "header only": (explain("header.csv"), "at least one row"),
    "header only, fit": (fit("header.csv", *TARGET), "at least one row"),
    "header without line": (explain("header_cut.csv"), "header_cut.csv"),
    "two separators": (fit("two_separators.csv", *TARGET), "comma and semicolon alike"),
    "unknown encoding": (explain("people.csv", "--encoding", "utf-9"), "the name of a text encoding"),
    "a quote that closes later": (explain("quote.csv"), "got 3 lines in row 2 of quote.csv"),
    "a quote that closes later, rejects": (explain("quote.csv", "--rejects", "r.csv"), "in row 2 of"),
    "a quote that is never closed": (explain("open.csv"), "one in row 2 of open.csv"),
    "a line break in a cell": (explain("two_lines.csv"), "pass --multiline-cells"),
    "a line break in a cell, fit": (fit("two_lines.csv", *TARGET), "2 lines in row 2 of two_lines.csv"),
    "a lone carriage return": (
        explain("return.csv", "--rejects", "r.csv"),
        "a lone carriage return in or after row 2",
    ),
    "a database without a query": (explain("sqlite:///people.csv"), "--query"),
    "a query of a file": (explain("people.csv", "--query", "select 1"), "an answer from people.csv"),
    "a query of no database": (fit("sqlite:///no.db", *TARGET, "--query", "select 1"), "no file no.db"),
    "wrong --separator": (explain("people.csv", "--separator", ";"), "--separator comma"),
    "ragged": (explain("ragged.csv"), "18 in row 2"),
    "duplicate columns": (explain("twice.csv"), "'age' more than once"),
    "nameless column": (explain("nameless.csv"), "a name for each column"),
    "long first line": (explain("long_header.csv"), "first line"),
    "long line": (explain("long_line.csv"), "at most 4 MiB"),
    "truncated parquet": (explain("cut.parquet"), "whole Parquet file"),
    "fake parquet": (explain("fake.parquet"), "whole Parquet file"),
    # the table, as data
    "no target": (fit("train.csv"), "pass --target"),
    "unknown target": (fit("train.csv", "--target", "aproved"), "did you mean 'approved'"),
    "one class": (fit("one_class.csv", *TARGET), "one class only"),
    "three classes": (fit("three.csv", *TARGET), "3 classes"),
    "empty label": (fit("no_label.csv", *TARGET), "a label for every row"),
    "unknown favourable": (fit("train.csv", *TARGET, "--favourable", "maybe"), "'maybe'"),
    "unknown immutable": (fit("train.csv", *TARGET, "--immutable", "agee"), "did you mean 'age'"),
    "immutable target": (fit("train.csv", *TARGET, "--immutable", "approved"), "approved"),
    "contradiction": (fit("train.csv", *TARGET, "--immutable", "age", "--increase-only", "age"), "'age' in"),
    "one way category": (fit("train.csv", *TARGET, "--increase-only", "region"), "categorical"),
    "unknown ignore": (fit("train.csv", *TARGET, "--ignore", "iid"), "a column to ignore"),
    "target alone": (fit("target_only.csv", *TARGET), "at least one column beside the target"),
    "empty column": (fit("hollow.csv", *TARGET), "only missing values"),
    "one row": (fit("one_row.csv", *TARGET), "two classes"),
    "missing column": (explain("no_income.csv"), "no 'income'"),
    "misspelt column": (explain("misspelt.csv"), "was 'incme' meant?"),
    "extra column": (explain("extra.csv"), "--keep id"),
    "keep of nothing": (explain("people.csv", "--keep", "id"), "no 'id' in people.csv"),
    "keep of a feature": (explain("people.csv", "--keep", "age"), "no features, got 'age'"),
    "unseen category": (explain("unseen.csv"), "'moon' in row 1"),
    "text for a number": (explain("text.csv"), "'plenty' in row 1"),
    "number with commas": (explain("thousands.csv"), "'1,200'"),
    "infinite": (explain("infinite.csv"), "finite numbers"),
    "off the grid": (explain("fraction.csv"), "'dependants'"),
    "missing where refused": (explain("gap.csv"), "'age'"),
    "other table": (explain("other.csv"), "no 'age'"),
    "other table, certify": (["certify", "model", "people.csv", "other.csv"], "no 'age'"),
    "fewer counterfactuals": (["certify", "model", "people.csv", "few.csv"], "more rows in people.csv"),
    "fewer originals": (["certify", "model", "few.csv", "people.csv"], "more rows in people.csv"),
    "time for the bounds": (
        ["certify", "model", "people.csv", "people.csv", "--time-budget", "5"],
        "expected --effort exact for --time-budget",
    ),
    "standard input twice": (["certify", "model", "-", "-"], "standard input twice"),
    # the model
    "missing model": (explain("people.csv", model="modell"), "model folder"),
    "a file as model": (explain("people.csv", model="people.csv"), "model folder"),
    "an empty folder": (explain("people.csv", model="void"), "expected a model folder with model.json"),
    "truncated tensors": (explain("people.csv", model="cut_model"), "restore it from a backup"),
    "edited model": (explain("people.csv", model="edited"), "altered content"),
    "model of no JSON": (explain("people.csv", model="no_json"), "JSON"),
    "newer model": (explain("people.csv", model="newer"), "the release that wrote it"),
    # the schema
    "missing schema": (fit("train.csv", "--schema", "none.json"), "a schema file"),
    "malformed JSON": (fit("train.csv", "--schema", "bad.json"), "as JSON"),
    "malformed TOML": (fit("train.csv", "--schema", "bad.toml"), "as TOML"),
    "another document": (fit("train.csv", "--schema", "model/model.json"), "veritracer-schema"),
    "unknown key": (fit("train.csv", "--schema", "key.json"), "unknown 'colour'"),
    "unknown kind": (fit("train.csv", "--schema", "kind.json"), "kind"),
    "schema and hints": (fit("train.csv", "--schema", "model.schema.json", "--immutable", "age"), "edit"),
    "two targets": (fit("train.csv", "--schema", "model.schema.json", "--target", "age"), "one target"),
    "schema of another table": (fit("other.csv", "--schema", "model.schema.json"), "'approved'"),
    "schema that encodes otherwise": (explain("people.csv", "--schema", "wider.json"), "encodes rows"),
    "schema without rows": (["inspect", "bad.json"], "as JSON"),
    # the output
    "output folder missing": (["explain", "model", "people.csv", "--out", "a/b.csv"], "no folder a"),
    "output is a folder of a good name": (["explain", "model", "people.csv", "--out", "d.csv"], "the folder"),
    "unknown output": (["explain", "model", "people.csv", "--out", "r.xlsx"], ".parquet"),
    "disk full": (["explain", "model", "people.csv", "--out", "/dev/full"], "No space left"),
    "disk full, datasets": (["datasets", "write", "loans", "--out", "/dev/full"], "No space left"),
    "model over a file": (["fit", "train.csv", *TARGET, "--out", "people.csv"], "the file people.csv"),
    "model over a folder": (["fit", "train.csv", *TARGET, "--out", "full"], "choose another name"),
    "model inside of a file": (["fit", "train.csv", *TARGET, "--out", "people.csv/m"], "which is a file"),
    "report over a folder": (["report", "model", "people.csv", "--out", "void"], "the folder void"),
    "demo over a file": (["demo", "--out", "people.csv"], "people.csv"),
    "demo of negative drift": (["demo", "--drift", "-1", "--out", "new"], "--drift"),
    "dataset of nothing": (["datasets", "write", "lones"], "did you mean 'loans'"),
    "inspect nothing": (["inspect", "nobody"], "no file nobody"),
}

if os.name == "nt":  # no device that is always full
    del BAD["disk full"], BAD["disk full, datasets"]


def predict(table: str, *more: str, model: str = "model") -> list[str]:
    """A predict that should be refused."""
    return ["predict", model, table, "--out", "new.csv", *more]


def inspect(table: str, *more: str) -> list[str]:
    """An inspect that should be refused."""
    return ["inspect", table, *more]


ISSUE = ["issue", "model", "people.csv", "--ledger", "new.db", "--out", "promised.csv"]
WEIGHT, NUMBER, REJECTS = "--class-weight", "--number-format", "--rejects"

# What a stranger with a table of their own gets wrong.
BAD |= {
    # how numbers are written
    "numbers in two ways": (fit("ambiguous.csv", *TARGET), "--number-format income=1,234.5"),
    "numbers in two ways, inspect": (inspect("ambiguous.csv"), "which could be"),
    "a word among numbers": (fit("typo.csv", *TARGET), "'plenty' in row 4"),
    "a word among numbers, inspect": (inspect("typo.csv"), "missing_codes"),
    "format without a column": (fit("train.csv", *TARGET, NUMBER, "1.234,5"), "--number-format 'income"),
    "format that is none": (fit("train.csv", *TARGET, NUMBER, "income=about 1234"), "write 1234.5 as"),
    "format of two equal marks": (fit("money.csv", *TARGET, NUMBER, "income=1,234,5"), "write 1234.5 as"),
    "format of nobody": (fit("train.csv", *TARGET, NUMBER, "incom=1,234.5"), "did you mean 'income'"),
    "format of words": (fit("train.csv", *TARGET, NUMBER, "region=1,234.5"), "written like 1,234.5"),
    "the other format": (fit("money.csv", *TARGET, NUMBER, "income=1.234,5"), "written like 1.234,5"),
    "format and schema": (fit("train.csv", "--schema", "model.schema.json", NUMBER, "age=1,234.5"), "edit"),
    "a date for a number": (explain("date.csv"), "'2024-01-31'"),
    "a share for a number": (explain("share.csv"), "'12%'"),
    "money for a number": (explain("euro.csv"), "'€ 300'"),
    "true for a number": (predict("true.csv"), "'true'"),
    # encodings
    "cut utf-16": (explain("cut16.csv", "--encoding", "utf-16"), "text in utf-16 in cut16.csv"),
    "cut utf-32": (inspect("cut32.csv", "--encoding", "utf-32"), "text in utf-32 in cut32.csv"),
    "utf-16": (explain("cut16.csv"), "pass --encoding utf-16"),
    "utf-16 without a mark": (fit("bare16.csv", *TARGET), "another binary file in bare16.csv"),
    "latin-1, inspect": (inspect("latin1.csv"), "row 2 of latin1.csv"),
    # where it decides
    "threshold of nothing": (fit("train.csv", *TARGET, "--threshold", "0"), "--threshold between 0 and 1"),
    "threshold of all": (fit("train.csv", *TARGET, "--threshold", "1"), "--threshold between 0 and 1"),
    "threshold in percent": (fit("train.csv", *TARGET, "--threshold", "70"), "--threshold 0.7"),
    "threshold of text": (fit("train.csv", *TARGET, "--threshold", "high"), "a valid number"),
    "rate of nobody": (fit("train.csv", *TARGET, "--approval-rate", "0"), "--approval-rate between"),
    "rate in percent": (fit("train.csv", *TARGET, "--approval-rate", "30"), "--approval-rate 0.3"),
    "negative rate": (fit("train.csv", *TARGET, "--approval-rate", "-0.3"), "--approval-rate between"),
    "rate and threshold": (
        fit("train.csv", *TARGET, "--approval-rate", "0.3", "--threshold", "0.6"),
        "leave one of them out",
    ),
    "weight of one label": (fit("train.csv", *TARGET, *YES, WEIGHT, "yes=2"), "a weight for either label"),
    "weight in words": (fit("train.csv", *TARGET, *YES, WEIGHT, "heavy"), "NAME=NUMBER"),
    "weight of others": (fit("train.csv", *TARGET, *YES, WEIGHT, "good=1,bad=2"), "write balanced"),
    "negative weight": (fit("train.csv", *TARGET, *YES, WEIGHT, "yes=1,no=-1"), "a positive number"),
    "everything held out": (fit("train.csv", *TARGET, "--holdout", "1"), "--holdout from 0 to 0.5"),
    "negative holdout": (fit("train.csv", *TARGET, "--holdout", "-0.1"), "--holdout from 0 to 0.5"),
    # columns that are no features
    "only identifiers": (fit("ids.csv", *TARGET), "a number of its own in every row"),
    "ignored target": (fit("train.csv", *TARGET, "--ignore", "approved"), "ignored too"),
    "target as id": (fit("train.csv", *TARGET, "--id-column", "approved"), "ignored too"),
    "unknown id, fit": (fit("train.csv", *TARGET, "--id-column", "agee"), "did you mean 'age'"),
    "unknown ignore, explain": (explain("people.csv", "--ignore", "agee"), "did you mean 'age'"),
    "ignored feature": (explain("people.csv", "--ignore", "age"), "that the model does not read"),
    "id of a feature": (explain("people.csv", "--id-column", "age"), "no features, got 'age'"),
    "unknown id, explain": (explain("people.csv", "--id-column", "id"), "no 'id' in people.csv"),
    "odd extra column": (explain("odd_extra.csv"), "--keep 'loan number'"),
    "unknown ignore, certify": (
        ["certify", "model", "people.csv", "people.csv", "--ignore", "agee"],
        "did you mean 'age'",
    ),
    "unknown ignore, report": (
        ["report", "model", "people.csv", "--out", "new.html", "--ignore", "agee"],
        "did you mean 'age'",
    ),
    "unknown id, update": (
        ["update", "model", "people.csv", "--out", "new", "--id-column", "agee"],
        "did you mean 'age'",
    ),
    "ignored feature, issue": ([*ISSUE, "--id-column", "approved", "--ignore", "age"], "does not read"),
    "unknown id, issue": ([*ISSUE, "--id-column", "id"], "no 'id' in people.csv"),
    "issue without an id": (ISSUE, "missing option '--id-column'"),
    # rows that cannot be read
    "rejects over the table": (
        explain("people.csv", REJECTS, "people.csv"),
        "a new file, got people.csv, which exists",
    ),
    "rejects over other work": (predict("people.csv", REJECTS, "other.csv"), "--force"),
    "rejects as parquet": (predict("people.csv", REJECTS, "r.parquet"), "a .csv file for rejected rows"),
    "rejects as output": (predict("people.csv", REJECTS, "new.csv"), "new.csv for both"),
    "rejects into nowhere": (explain("people.csv", REJECTS, "a/b.csv"), "no folder a"),
    "rejects as a folder": (explain("people.csv", REJECTS, "d.csv"), "the folder d.csv"),
    "all rows rejected": (explain("all_wrong.csv", REJECTS, "r.csv"), "at least one row that can be read"),
    "rejects over the table, fit": (fit("train.csv", *TARGET, REJECTS, "train.csv"), "which exists"),
    # predict
    "predict nothing": (predict("nobody.csv"), "no file nobody.csv"),
    "predict without a model": (predict("people.csv", model="modell"), "model folder"),
    "predict without a column": (predict("no_income.csv"), "no 'income'"),
    "predict an unseen category": (predict("unseen.csv"), "'moon' in row 1"),
    "predict with an extra column": (predict("extra.csv"), "--ignore id"),
    "predict over the table": (["predict", "model", "people.csv", "--out", "people.csv"], "which exists"),
    "predict a sheet": (["predict", "model", "people.csv", "--out", "d.xlsx"], ".parquet"),
    "predict ragged": (predict("ragged.csv"), "18 in row 2"),
    # inspect
    "inspect an unknown target": (inspect("train.csv", "--target", "aproved"), "did you mean 'approved'"),
    "inspect an unknown column": (inspect("train.csv", "--immutable", "agee"), "did you mean 'age'"),
    "inspect a contradiction": (
        inspect("train.csv", "--immutable", "age", "--free", "age"),
        "'age' in immutable and in free",
    ),
    "inspect three classes": (inspect("three.csv", *TARGET), "3 classes"),
    "inspect an unknown label": (inspect("train.csv", *TARGET, "--favourable", "maybe"), "'maybe'"),
    "inspect ragged": (inspect("ragged.csv"), "18 in row 2"),
    # the schema
    "ignored that is no mapping": (fit("train.csv", "--schema", "ignored_text.json"), "for ignored"),
    "ignored and a feature": (fit("train.csv", "--schema", "ignored_age.json"), "'age'"),
    "ignored for no reason": (fit("train.csv", "--schema", "ignored_key.json"), "a valid string for ignored"),
    "format of the schema": (fit("train.csv", "--schema", "format.json"), "write 1234.5 as"),
    "format of a category": (
        fit("train.csv", "--schema", "format_region.json"),
        "number_format only for numeric features",
    ),
    # ledgers and updates
    "no ledger": (["audit", "--ledger", "nobody.db", "--model", "model"], "no file nobody.db"),
    "negative loss": (["update", "model", "people.csv", "--out", "new", "--max-loss", "-1"], "equal to 0"),
    "update over a file": (["update", "model", "people.csv", "--out", "people.csv"], "the file people.csv"),
    "calibrate with words": (["calibrate", "model", "--cover", "most"], "--cover 0.5,0.9"),
}


@pytest.fixture(scope="module")
def wrong(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that is wrong."""
    folder = tmp_path_factory.mktemp("wrong") / "w"
    shutil.copytree(made, folder)
    head, *rows = (folder / "people.csv").read_text().splitlines()
    names = head.split(",")
    _files(folder, head, rows)
    _cells(folder, names, rows)
    _models(folder)
    _schemas(folder)
    for name in ("void", "d.csv", "full"):
        (folder / name).mkdir()
    (folder / "other.csv").write_text("somebody's,work\n1,2\n")
    (folder / "full" / "thing").touch()
    return folder


def _files(folder: Path, head: str, rows: list[str]) -> None:
    def write(name: str, content: str | bytes) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    text = "\n".join([head, *rows]) + "\n"
    write("cut.csv.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x4b\x4c\x4a")
    write("binary.csv", bytes(range(256)) * 8)
    write("sheet.csv", b"PK\x03\x04" + bytes(100))
    write("picture.csv", b"\x89PNG\r\n\x1a\n" + b"\xff\xaa" * 100)
    write("latin1_header.csv", "région,approved\na,yes\n".encode("latin-1"))
    write("latin1.csv", "\n".join([head, rows[0], rows[1].replace("male", "m\xe2le")]).encode("latin-1"))
    write("empty.csv", "")
    write("blank.csv", "\n \n\n")
    write("header.csv", head + "\n")
    write("header_cut.csv", head)
    write("two_separators.csv", "age,sex;approved\n1,2;yes\n")
    first, second, third, *others = rows
    start, _, end = second.partition(",")
    write("return.csv", "\n".join([head, first, f"{start}\r,{end}", third]) + "\n")
    write("quote.csv", "\n".join([head, first, f'"{second}', third, f'"{others[0]}', *others[1:]]) + "\n")
    write("open.csv", "\n".join([head, first, f'"{second}', third, *others]) + "\n")
    write("two_lines.csv", "\n".join([head, first, f'"{start}\n",{end}', third]) + "\n")
    write("cut16.csv", text.encode("utf-16")[:-1])
    write("cut32.csv", text.encode("utf-32")[:-3])
    write("bare16.csv", text.encode("utf-16-le"))
    write("ragged.csv", "\n".join([head, rows[0], rows[1].rpartition(",")[0]]) + "\n")
    write("twice.csv", "\n".join([f"{head},age", *(f"{row},3" for row in rows)]))
    write("nameless.csv", "\n".join([f"{head},", *(f"{row},3" for row in rows)]))
    write("long_header.csv", "a" * (2 << 20))
    write("long_line.csv", f"{text}{'9' * (9 << 20)}")
    parquet = (folder / "people.parquet").read_bytes()
    write("cut.parquet", parquet[: len(parquet) // 2])
    write("fake.parquet", b"PAR1" + bytes(64))


def _cells(folder: Path, names: list[str], rows: list[str]) -> None:
    def write(name: str, column: str, value: str, count: int = 1) -> None:
        changed = [row.split(",") for row in rows]
        for row in changed[:count]:
            row[names.index(column)] = value
        (folder / name).write_text("\n".join(",".join(row) for row in [names, *changed]) + "\n")

    everyone = len(rows)
    write("one_class.csv", "approved", "yes", everyone)
    write("three.csv", "approved", "maybe")
    write("no_label.csv", "approved", "")
    write("hollow.csv", "purpose", "", everyone)
    write("unseen.csv", "region", "moon")
    write("text.csv", "income", "plenty")
    write("thousands.csv", "income", '"1,200"')
    write("infinite.csv", "income", "inf")
    write("fraction.csv", "dependants", "1.5")
    write("gap.csv", "age", "")
    write("date.csv", "income", "2024-01-31")
    write("share.csv", "income", "12%")
    write("euro.csv", "income", "€ 300")
    write("true.csv", "income", "true")
    write("all_wrong.csv", "region", "moon", everyone)
    _written(folder)
    table = [row.split(",") for row in [",".join(names), *rows]]
    at = names.index("income")
    without = [row[:at] + row[at + 1 :] for row in table]
    lines = {
        "no_income.csv": without,
        "misspelt.csv": [[*names[:at], "incme", *names[at + 1 :]], *table[1:]],
        "extra.csv": [[*row, "id" if i == 0 else str(i)] for i, row in enumerate(table)],
        "target_only.csv": [row[-1:] for row in table],
        "odd_extra.csv": [[*row, "loan number" if i == 0 else str(i)] for i, row in enumerate(table)],
        "few.csv": table[:50],
        "one_row.csv": table[:2],
        "other.csv": [["height", "weight"], ["180", "80"], ["170", "60"]],
    }
    for name, content in lines.items():
        (folder / name).write_text("\n".join(",".join(row) for row in content) + "\n")


def _written(folder: Path) -> None:
    """Small tables whose numbers are written in other ways."""
    incomes = {
        "ambiguous.csv": [f'"{10 + i},{100 + i}"' for i in range(40)],
        "typo.csv": ['"plenty"' if i == 3 else f'"1,{100 + i}.5"' for i in range(40)],
        "money.csv": [f'"1,{100 + i}.5"' for i in range(40)],
    }
    for name, cells in incomes.items():
        lines = [f"{cell},{'yes' if i % 2 else 'no'}" for i, cell in enumerate(cells)]
        (folder / name).write_text("\n".join(["income,approved", *lines]) + "\n")
    lines = [f"{1000 + i},{'yes' if i % 2 else 'no'}" for i in range(60)]
    (folder / "ids.csv").write_text("\n".join(["customer,approved", *lines]) + "\n")


def _models(folder: Path) -> None:
    for name in ("cut_model", "edited", "no_json", "newer"):
        shutil.copytree(folder / "model", folder / name)
    tensors = folder / "cut_model" / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])
    document = folder / "edited" / "model.json"
    document.write_text(document.read_text().replace('"kappa": 0.2', '"kappa": 0.9'))
    (folder / "no_json" / "model.json").write_text("{")
    content = json.loads((folder / "newer" / "model.json").read_text())
    (folder / "newer" / "model.json").write_text(json.dumps({**content, "version": 99}))


def _schemas(folder: Path) -> None:
    schema = json.loads((folder / "model.schema.json").read_text())
    (folder / "bad.json").write_text('{"format": ')
    (folder / "bad.toml").write_text("format = \n")
    first, *others = schema["features"]
    region = next(i for i, feature in enumerate(schema["features"]) if feature["name"] == "region")
    wrong = {**schema["features"][region], "number_format": "1,234.5"}
    schemas = {
        "ignored_text.json": {"ignored": "id"},
        "ignored_age.json": {"ignored": {"age": ""}},
        "ignored_key.json": {"ignored": {"id": 3}},
        "format.json": {"features": [{**first, "number_format": "1,2"}, *others]},
        "format_region.json": {"features": [*schema["features"][:region], wrong]},
    }
    for name, change in schemas.items():
        (folder / name).write_text(json.dumps({**schema, **change}))
    kinds = {"key.json": {"colour": "red"}, "kind.json": {"kind": "nominal"}, "wider.json": {"upper": 500.0}}
    for name, change in kinds.items():
        (folder / name).write_text(json.dumps({**schema, "features": [{**first, **change}, *others]}))


@pytest.fixture(scope="module")
def answers(wrong: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """All of them, in a few processes, and a look at the folder before and after."""
    (wrong.parent / "before.json").write_text(json.dumps(_listing(wrong)))
    done = run_many([args for args, _ in BAD.values()], wrong)
    return dict(zip(BAD, done, strict=True))


def test_nothing_is_left_behind(wrong: Path, answers: dict[str, subprocess.CompletedProcess[str]]) -> None:
    assert answers
    assert [list(pair) for pair in _listing(wrong)] == json.loads((wrong.parent / "before.json").read_text())


def _listing(folder: Path) -> list[tuple[str, str]]:
    """Every file and folder, with the digest of what is in it."""
    found = [(str(p.relative_to(folder)), p) for p in folder.rglob("*")]
    return sorted(
        (name, "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()) for name, path in found
    )


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name: str, answers: dict[str, subprocess.CompletedProcess[str]]) -> None:
    assert_refused(answers[name])
    assert BAD[name][1].casefold() in answers[name].stderr.casefold(), answers[name].stderr


def test_there_are_many_of_them() -> None:
    assert len(BAD) >= 180


@pytest.mark.long
def test_bad_input_of_a_process_of_its_own(work: Path) -> None:
    assert_refused(run("explain", "model", "nobody.csv", cwd=work))
    assert_refused(run("explain", "model", "-", cwd=work, stdin=b""))
    assert_refused(run("explain", "model", "-", cwd=work, stdin=b"\xff\xfe\x00"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@posix
def test_an_unwritable_folder(work: Path) -> None:
    work.chmod(0o555)
    try:
        assert_refused(run("explain", "model", "people.csv", "--out", "new.csv", cwd=work))
        assert_refused(run("fit", "train.csv", *TARGET, "--out", "new", cwd=work))
    finally:
        work.chmod(0o755)


def full_disk(size: int) -> str:
    """Statements after which no file grows past this size, until the command has ended."""
    return (
        "import atexit, resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "no = resource.getrlimit(resource.RLIMIT_FSIZE); "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, no[1])); "
        "atexit.register(resource.setrlimit, resource.RLIMIT_FSIZE, no)"
    )


@posix
def test_a_disk_that_fills_up_leaves_nothing(work: Path) -> None:
    names = sorted(p.name for p in work.iterdir())
    args = ["explain", "model", "people.csv", "--no-refine", "--out", "new.csv"]
    done = run(*args, before=full_disk(3000), cwd=work)
    assert_refused(done)
    assert sorted(p.name for p in work.iterdir()) == names


@posix
def test_a_disk_that_fills_up_while_a_model_is_saved_leaves_nothing(work: Path) -> None:
    names = sorted(p.name for p in work.iterdir())
    fit = "fit train.csv --target approved --favourable yes --epochs 1 --no-panel --holdout 0 --out another"
    done = run(*fit.split(), before=full_disk(9000), cwd=work)  # the schema fits, tensors do not
    assert_refused(done)
    assert sorted(p.name for p in work.iterdir()) == names


@posix
def test_a_line_without_end_does_not_fill_the_memory(work: Path) -> None:
    limit = 200 << 20  # of a gigabyte: what would not fit if it were kept
    program = (
        "import resource, sys\n"
        "from veritracer.app.cli import main\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    main()\n"
        "finally:\n"
        "    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "    open('grown', 'w').write(str(grown))\n"
    )
    head = (work / "people.csv").read_text().partition("\n")[0]
    command = [sys.executable, "-c", program, "explain", "model", "-", "--out", "new.csv"]
    with subprocess.Popen(
        command, cwd=work, env=CLEAN, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin
        try:
            process.stdin.write(head.encode() + b"\n")
            for _ in range(1024):
                process.stdin.write(b"7" * (1 << 20))
        except BrokenPipeError:
            pass
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert b"lines of at most 4 MiB" in said
    assert int((work / "grown").read_text()) * 1024 < limit
    assert not (work / "new.csv").exists()


@posix
def test_the_limit_of_files_is_what_it_was() -> None:
    import resource

    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 3000
