"""Tables in files: what is read is what was written, in pieces of any size, or it is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from veritracer.errors import DataError
from veritracer.files import whole_file
from veritracer.schema import Feature, Schema
from veritracer.tables import CSVFormat, open_rejects, open_sink, read_batches
from veritracer.tables.cells import apply_schema, read_table
from veritracer.tables.jobs import ROW

CELL = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=12)


MULTILINE = CSVFormat(multiline_cells=True)


def rows_of(path: Path, csv: CSVFormat | None = None, **options: int) -> list[list[str]]:
    batches = read_batches(str(path), csv=csv or CSVFormat(), **options)
    return [list(row.values())[:-1] for batch in batches for row in batch.rows.to_pylist()]


@given(cells=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=20), size=st.integers(1, 7))
def test_any_text_comes_back(
    cells: list[tuple[str, str]], size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    frame = pd.DataFrame(cells, columns=["a", "b"])
    with open_sink(str(path)) as sink:
        for at in range(0, len(frame), size):
            part = frame.iloc[at : at + size]
            sink.write(pa.table({name: pa.array(part[name].to_numpy(object), pa.string()) for name in part}))
    # A row of empty cells in one column would be an empty line, which CSV cannot hold; here are two.
    assert rows_of(path, MULTILINE, rows=size) == [list(pair) for pair in cells]


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz", "zip"])
def test_packed_files(packing: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.csv.{packing}"
    pd.DataFrame({"a": range(9), "b": ["x, y"] * 9}).to_csv(path, index=False)  # packed as its name says
    assert rows_of(path) == [[str(i), "x, y"] for i in range(9)]
    path.rename(tmp_path / f"t.parquet.{packing}")
    pd.DataFrame({"a": range(9)}).to_parquet(tmp_path / "t.parquet")
    write = {"gz": gzip, "bz2": bz2, "xz": lzma}.get(packing)
    if write is not None:
        path.write_bytes(write.compress((tmp_path / "t.parquet").read_bytes()))
        assert rows_of(path) == [[i] for i in range(9)]


def test_types_by_a_schema(tmp_path: Path) -> None:
    features = [
        Feature("n", "integer", missing="impute"),
        Feature("x", "continuous", missing="impute", missing_codes=["unknown"]),
        Feature("level", "ordinal", categories=[1, 2, 3]),
        Feature("flag", "binary", categories=[False, True]),
        Feature("word", "categorical", categories=["NA", "yes"], missing="category"),
    ]
    text = "n,x,level,flag,word\n 7,1.5,1.0,true,NA\n,unknown,3,False,yes\n8e1,,2,TRUE,\n"
    (tmp_path / "t.csv").write_text(text)
    frame = read_table(str(tmp_path / "t.csv"), schema=Schema(features))
    assert frame["n"].tolist()[::2] == [7.0, 80.0]
    assert np.isnan(frame["n"].iloc[1])
    assert frame["x"].tolist() == [1.5, "unknown", None]
    assert frame["level"].tolist() == [1, 3, 2]
    assert frame["flag"].tolist() == [True, False, True]
    assert frame["word"].tolist()[:2] == ["NA", "yes"]
    assert pd.isna(frame["word"].iloc[2])
    assert frame.index.tolist() == [1, 2, 3]


def test_types_without_a_schema(tmp_path: Path) -> None:
    text = "i,f,b,s,gap\n1,1.5,true,a,1\n-2,1e3,false,NA,\n3,nan,true,c,3\n"
    (tmp_path / "t.csv").write_text(text)
    frame = read_table(str(tmp_path / "t.csv"))
    assert [frame[name].dtype.kind for name in ("i", "f", "b", "gap")] == ["i", "f", "b", "f"]
    assert frame["s"].isna().tolist() == [False, True, False]


def test_the_row_of_a_wrong_cell_counts_from_one(tmp_path: Path) -> None:
    schema = Schema([Feature("n", "integer")])
    piece = pa.record_batch({"n": pa.array(["1", "two", "3"]), ROW: pa.array([101, 102, 103])})
    with pytest.raises(DataError, match="'two' in row 102"):
        apply_schema(piece, schema, is_text=True)


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "t.csv"
    place.write_text("before")

    def fail() -> None:
        with whole_file(place) as file:
            file.write(b"after")
            assert (tmp_path / "t.csv.partial").exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]
    assert place.read_text() == "before"
    with whole_file(place) as file:
        file.write(b"after")
    assert place.read_text() == "after"


def test_parquet_in_pieces(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": range(100), "b": [None, 1.5] * 50, "c": ["x", None] * 50})
    frame.to_parquet(tmp_path / "t.parquet")
    batches = list(read_batches(str(tmp_path / "t.parquet"), rows=30))
    assert batches[-1].share == 1.0
    pieces = [batch.rows.select(batch.columns) for batch in batches]
    assert [piece.num_rows for piece in pieces] == [30, 30, 30, 10]
    with open_sink(str(tmp_path / "u.parquet")) as sink:
        for piece in pieces:
            sink.write(pa.Table.from_batches([piece]))
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "u.parquet"), frame)


def piped(content: bytes, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The rows of what comes through standard input, a stream without positions."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError("a pipe has no position")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Pipe(content)))
    return rows_of(Path("-"))


def test_a_pipe_may_be_csv_or_parquet(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = io.BytesIO()
    pd.DataFrame({"a": ["1", "3"], "b": ["2", "4"]}).to_parquet(whole, index=False)
    assert (
        piped(b"a,b\n1,2\n3,4\n", monkeypatch)
        == piped(whole.getvalue(), monkeypatch)
        == [["1", "2"], ["3", "4"]]
    )


def test_what_is_no_file_or_no_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"expected a file with a table, got the folder"):
        rows_of(tmp_path)
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": np.random.default_rng(0).random(2000).astype(str)}).to_parquet(path, index=False)
    content = bytearray(path.read_bytes())
    content[1000:3000] = bytes(2000)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"expected a whole Parquet file in .*cut off or altered"):
        rows_of(path)

    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalFileSystem, "open", refuse)
    with pytest.raises(
        DataError, match=r"which cannot be read \(Permission denied\) — check its permissions"
    ):
        rows_of(path)


def test_a_batch_says_how_far_its_table_was_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,b\n1,2\n3,4\n")
    (batch,) = read_batches(str(tmp_path / "t.csv"))
    assert (batch.rows.num_rows, batch.share) == (2, 1.0)


def test_a_packed_file_that_breaks_off_is_refused_where_it_does(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).random(120_000)
    content = gzip.compress(b"a\n" + b"\n".join(str(number).encode() for number in numbers), 1)
    (tmp_path / "t.csv.gz").write_bytes(content[:-1000])
    with pytest.raises(DataError, match=r"expected the whole of .*t\.csv\.gz, got .* — it was cut off"):
        rows_of(tmp_path / "t.csv.gz")


def test_somebody_has_to_be_looked_at(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"expected columns to read in .*t\.csv, got none"):
        read_table(str(tmp_path / "t.csv"), ignore=["a", "b"])


def test_rows_that_can_not_be_read_are_put_aside(tmp_path: Path) -> None:
    schema = Schema(
        [Feature("a", "integer", lower=0, upper=9), Feature("b", "binary", categories=["x", "y"])]
    )
    (tmp_path / "t.csv").write_text("a,b\n1,x\nmany,y\n3,z\n4,y\n5\n")
    with open_rejects(tmp_path / "no.csv") as rejects:
        found = read_table(str(tmp_path / "t.csv"), schema=schema, rejects=rejects)
    assert found["a"].tolist() == [1, 4]
    aside = (tmp_path / "no.csv").read_text().splitlines()
    assert len(aside) == 4
    assert "many" in aside[1] + aside[2] + aside[3]


def test_rejected_rows_have_all_their_columns(tmp_path: Path) -> None:
    """Also those that are ignored: the corrected file can be read with the same options."""
    schema = Schema([Feature("a", "integer"), Feature("b", "binary", categories=["x", "y"])])
    (tmp_path / "t.csv").write_text("id,a,b\np,1,x\nq,many,y\nr,3\ns,4,y,x\nt,5,y\n")
    with open_rejects(tmp_path / "no.csv") as rejects:
        found = read_table(str(tmp_path / "t.csv"), schema=schema, ignore=["id"], rejects=rejects)
    assert found["a"].tolist() == [1, 5]
    assert found.index.tolist() == [1, 5]
    rows = pd.read_csv(tmp_path / "no.csv", keep_default_na=False).set_index("recourse.row")
    assert rows[["id", "a", "b"]].T.to_dict("list") == {
        2: ["q", "many", "y"],
        3: ["r", "3", ""],
        4: ["s", "4", "y,x"],
    }
    again = read_table(str(tmp_path / "no.csv"), ignore=["id", "recourse.row", "recourse.reason"])
    assert sorted(again["a"]) == ["3", "4", "many"]


def test_truth_values_with_gaps_and_numbers_that_are_codes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("t,code\ntrue,007\n,012\nfalse,100\n")
    found = read_table(str(tmp_path / "t.csv"))
    assert found["t"].tolist() == [True, None, False]
    assert found["code"].tolist() == ["007", "012", "100"]


AMOUNT = [Decimal("47600.00"), None, Decimal("0.07"), Decimal("1234567.89")]


@pytest.mark.parametrize("kind", [pa.decimal128(12, 2), pa.decimal128(38, 12), pa.decimal256(60, 3)], ids=str)
def test_decimals_are_the_numbers_that_they_are_written_as(kind: pa.DataType, tmp_path: Path) -> None:
    columns = {"amount": pa.array(AMOUNT, kind), "count": pa.array([1, 2, 3, 4], pa.decimal128(38, 0))}
    path = str(tmp_path / "t.parquet")
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    wanted = pd.DataFrame({"amount": [47600.0, np.nan, 0.07, 1234567.89], "count": [1, 2, 3, 4]})
    schema = Schema([Feature("amount", "continuous", missing="impute"), Feature("count", "integer")])
    for found in (read_table(path), read_table(path, schema=schema), Schema.infer(pa.table(columns))):
        if isinstance(found, pd.DataFrame):
            pd.testing.assert_frame_equal(found.reset_index(drop=True), wanted)
        else:
            assert [feature.is_numeric for feature in found.features] == [True, True]


@given(number=st.decimals(-(10**20), 10**20, allow_nan=False, places=7))
def test_a_decimal_is_the_float_of_its_digits(number: Decimal) -> None:
    batch = pa.record_batch({"x": pa.array([number], pa.decimal128(38, 7))})
    frame = apply_schema(batch, Schema([Feature("x", "continuous")]), is_text=False)
    assert frame["x"].tolist() == [float(str(number))]


def test_whole_decimals_beyond_every_integer() -> None:
    batch = pa.record_batch({"x": pa.array([10**30, 5], pa.decimal128(38, 0))})
    frame = apply_schema(batch, Schema([Feature("x", "continuous")]), is_text=False)
    assert frame["x"].tolist() == [1e30, 5.0]
