"""CSV for spreadsheets: by default every value is exact; when asked, no text begins like a formula."""

from __future__ import annotations

import csv
from pathlib import Path

import pyarrow as pa
import pytest

from veritracer.errors import DataError
from veritracer.tables import CSVFormat, altered_note, open_sink, read_batches

RISKY = [
    "=1+1",
    "+SUM(A1)",
    "-2+3",
    "@cmd",
    "\t=1",
    "\r=1",
    "\n=1",
    " =1",
    "=cmd|'/c calc'!A0",
    "\uff1d1",
    "-a",
]
HARMLESS = ["a", "1=1", "-5", "+5", "-1.5e-7", ".5", "", "x@y.org", "a-b", "'=1", "-"][:-1]


def table() -> pa.Table:
    texts = [*RISKY, *HARMLESS, None]
    numbers = pa.array([-1.5] * len(texts))
    return pa.table({"=name": texts, "number": numbers, "whole": numbers.cast(pa.int64(), safe=False)})


def read(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def test_by_default_every_value_reads_back(tmp_path: Path) -> None:
    with open_sink(str(tmp_path / "t.csv")) as sink:
        sink.write(table())
        assert altered_note(sink.altered) == []
    (found,) = read_batches(str(tmp_path / "t.csv"), csv=CSVFormat(multiline_cells=True))
    assert found.columns == ("=name", "number", "whole")
    cells = found.rows["=name"].to_pylist()
    assert cells == [*RISKY, *HARMLESS, ""]


def test_safe_cells_begin_with_an_apostrophe(tmp_path: Path) -> None:
    with open_sink(str(tmp_path / "t.csv"), spreadsheet_safe=True) as sink:
        for at in range(0, table().num_rows, 4):
            sink.write(table().slice(at, 4))
    (note,) = altered_note(sink.altered)
    assert f"{len(RISKY) + 1} cells" in note
    head, *rows = read(tmp_path / "t.csv")
    assert head == ["'=name", "number", "whole"]
    assert [row[0] for row in rows] == [*(f"'{text}" for text in RISKY), *HARMLESS, ""]
    assert {tuple(row[1:]) for row in rows} == {("-1.5", "-1")}


def test_safe_text_is_quoted(tmp_path: Path) -> None:
    """In another country's spreadsheet a semicolon separates: an unquoted one would begin a new cell."""
    with open_sink(str(tmp_path / "t.csv"), spreadsheet_safe=True) as sink:
        sink.write(pa.table({"a": ["x;=1"], "b": pa.array(["y"]).dictionary_encode()}))
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == '"x;=1","y"'
    assert altered_note(sink.altered) == []


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl"])
def test_only_csv_is_made_safe(name: str, tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="CSV to make safe for spreadsheets"),
        open_sink(str(tmp_path / name), spreadsheet_safe=True),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_column_that_csv_can_not_hold(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="columns that CSV can hold, got list<"),
        open_sink(str(tmp_path / "t.csv")) as sink,
    ):
        sink.write(pa.table({"a": [[1, 2]]}))


def test_a_name_that_begins_with_a_mark(tmp_path: Path) -> None:
    with open_sink(str(tmp_path / "t.csv")) as sink:
        sink.write(pa.table({"\ufeffa": ["\ufeffx"], "b": ["y"]}))
    (found,) = read_batches(str(tmp_path / "t.csv"))
    assert found.columns == ("\ufeffa", "b")
    assert found.rows.select(found.columns).to_pylist() == [{"\ufeffa": "\ufeffx", "b": "y"}]
