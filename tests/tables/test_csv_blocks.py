"""CSV: every row is read as it is written, or the command ends with a message that names the row."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veritracer.errors import DataError
from veritracer.tables import CSVFormat, csv_blocks, open_rejects, read_batches
from veritracer.tables.cells import read_table
from veritracer.tables.csv_blocks import end_of_rows

NAMES = ("a", "b", "c", "d")
HEAD = ",".join(NAMES) + "\n"
PLAIN, MULTILINE = CSVFormat(), CSVFormat(multiline_cells=True)


def read(text: str | bytes, folder: Path, form: CSVFormat = PLAIN) -> list[list[str]]:
    (folder / "t.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    batches = read_batches(str(folder / "t.csv"), csv=form)
    return [list(row.values())[:-1] for batch in batches for row in batch.rows.to_pylist()]


def refused(text: str | bytes, folder: Path, form: CSVFormat = PLAIN) -> str:
    with pytest.raises(DataError) as error:
        read(text, folder, form)
    return str(error.value)


def rows(first: int, last: int) -> str:
    return "".join(f"{i},{i}.5,x,n{i}\n" for i in range(first, last))


# ------------------------------------------------------------ rows that are read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('1,5" pipe,3,4\n', ["1", '5" pipe', "3", "4"]),
        ('1,2,3,5"\n', ["1", "2", "3", '5"']),
        ('1, "x",3,4\n', ["1", ' "x"', "3", "4"]),
        ('1,"x" ,3,4\n', ["1", "x ", "3", "4"]),
        ('1,"x, y",3,4\n', ["1", "x, y", "3", "4"]),
        ('1,"",3,""\n', ["1", "", "3", ""]),
        ('1,"say ""yes""",3,4\n', ["1", 'say "yes"', "3", "4"]),
        ('1,2,3,"the last, of the file"', ["1", "2", "3", "the last, of the file"]),
    ],
)
def test_quoted_cells(text: str, expected: list[str], tmp_path: Path) -> None:
    after = rows(40, 80) if text.endswith("\n") else ""
    found = read(HEAD + rows(1, 40) + text + after, tmp_path)
    assert found[39] == expected
    assert len(found) == 40 + (40 if after else 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('1,"two\nlines",3,4\n', ["1", "two\nlines", "3", "4"]),
        ('1,"two\r\nlines",3,4\r\n', ["1", "two\r\nlines", "3", "4"]),
        ('1,2,3,"say ""yes"", or\n""no"""\n', ["1", "2", "3", 'say "yes", or\n"no"']),
        ('1,2,3,"blank\n\n\nlines\n"\n\n', ["1", "2", "3", "blank\n\n\nlines\n"]),
        ('1,"lone\rreturn",3,4\n', ["1", "lone\rreturn", "3", "4"]),
        ('1,2,3,"the last cell\nof the file"', ["1", "2", "3", "the last cell\nof the file"]),
    ],
)
def test_cells_over_several_lines_are_read_where_they_are_allowed(
    text: str, expected: list[str], tmp_path: Path
) -> None:
    assert read(HEAD + rows(1, 40) + text, tmp_path, MULTILINE)[39] == expected
    assert "--multiline-cells" in refused(HEAD + rows(1, 40) + text, tmp_path)


def test_quotes_close_in_a_later_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_blocks, "BLOCK", 64)
    monkeypatch.setattr("veritracer.tables.reading.BLOCK", 64)
    monkeypatch.setattr("veritracer.tables.reading.HEAD", 64)
    for length, ends in itertools.product(range(1, 40), ("\n", "\r\n")):
        cell = "long " * (length // 5) + '"' * (length % 3) + "\n" * (length % 2) + "x" * (length % 5)
        text = io.StringIO()
        content = [NAMES, *[["1", cell, str(i), "y"] for i in range(9)]]
        csv.writer(text, lineterminator=ends).writerows(content)
        assert read(text.getvalue(), tmp_path, MULTILINE) == content[1:]


@pytest.mark.parametrize(
    "content",
    [
        b"a,b\n1,2\n3,4\n",
        b"a,b\n1,2\n3,4",
        b"a,b\r\n1,2\r\n3,4\r\n",
        b"a,b\r1,2\r3,4\r",
        b"\xef\xbb\xbfa,b\n1,2\n\n\n3,4\n  ",
    ],
)
def test_ends_of_lines(content: bytes, tmp_path: Path) -> None:
    assert read(content, tmp_path) == [["1", "2"], ["3", "4"]]


def test_a_byte_order_mark_inside_a_file_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veritracer.tables.reading.HEAD", 16)
    monkeypatch.setattr("veritracer.tables.reading.BLOCK", 8)
    mark = "\ufeff"
    assert read(mark + "a,b\n" + f"{mark}x,1\n" * 20, tmp_path) == [[f"{mark}x", "1"]] * 20


@pytest.mark.parametrize("length", range(8))
def test_ends_of_rows_in_all_short_texts(length: int) -> None:
    """Against a reading character by character."""
    for characters in itertools.product(b'",\n\ra', repeat=length):
        text = bytes(characters)
        assert end_of_rows(text, ",") == _end_by_character(text), text


def _end_by_character(text: bytes) -> int:
    """Return where the last whole row ends."""
    state, end, at = "new", 0, 0
    while at < len(text):
        here = text[at : at + 1]
        at += 1
        if state == "inside":
            if text[at - 1 : at + 1] == b'""':
                at += 1
            elif here == b'"':
                state = "text"
        elif state == "new" and here == b'"':
            state = "inside"
        elif here in b",\r\n":
            at += text[at - 1 : at + 1] == b"\r\n"
            state, end = "new", end if here == b"," else at
        else:
            state = "text"
    return end


@given(text=st.text(st.sampled_from('",\n\r ab'), max_size=40), size=st.integers(1, 20))
def test_cuts_are_where_pyarrow_ends_rows(text: str, size: int) -> None:
    """Rows that are cut by us and parsed one after the other are those of the whole text."""
    data = text.encode() + b"\n"
    parts, rest = [], b""
    for at in range(0, len(data), size):
        block = rest + data[at : at + size]
        cut = end_of_rows(block, ",")
        parts += _parsed(block[:cut])
        rest = block[cut:]
    assert parts == _parsed(data[: end_of_rows(data, ",")])


def _parsed(data: bytes) -> list[str]:
    """Return the texts of the rows, as pyarrow tells them apart."""
    found: list[str] = []

    def keep(row: arrow_csv.InvalidRow) -> str:
        found.append(row.text)
        return "skip"

    if data.strip(b"\r\n"):
        names = [f"c{i}" for i in range(50)]  # more than any row has: every row is handed over
        arrow_csv.read_csv(
            io.BytesIO(data),
            read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=keep),
        )
    return found


# ------------------------------------------------------------ quotes that were forgotten


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("form", [PLAIN, MULTILINE], ids=["one line", "multiline"])
@pytest.mark.parametrize("place", range(4))
def test_a_quote_that_is_never_closed(place: int, form: CSVFormat, ends: str, tmp_path: Path) -> None:
    cells = ["11", "2", "3", "4"]
    cells[place] = '"' + cells[place]
    text = HEAD + rows(1, 11) + ",".join(cells) + "\n" + rows(12, 600)
    said = refused(text.replace("\n", ends), tmp_path, form)
    assert "one in row 11 of" in said
    assert "open at the end of the file" in said


@pytest.mark.parametrize("text", ['1,2,3,"open', '1,2,3,"open\n', '1,2,3,"', '1,2,3,"a""', '"'])
def test_a_quote_that_is_open_at_the_end(text: str, tmp_path: Path) -> None:
    assert "row 2 of" in refused(HEAD + rows(1, 2) + text, tmp_path)


def test_a_quote_that_is_open_for_more_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_blocks, "BLOCK", 1 << 10)
    monkeypatch.setattr("veritracer.tables.reading.HEAD", 1 << 10)
    said = refused(HEAD + rows(1, 300) + '300,2,3,"4\n' + rows(301, 900) + '"', tmp_path)
    assert "a longer one in row 300 of" in said
    assert "every quote is closed" in said


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("between", [0, 1, 1496])
@pytest.mark.parametrize("rejecting", [False, True])
def test_a_quote_that_closes_many_rows_later(
    place: int, between: int, rejecting: bool, tmp_path: Path
) -> None:
    """The rows between are in one cell, or in one row with too many cells, which is never left out."""
    cells = [["11", "2", "3", "4"], ["99", "2", "3", "4"]]
    cells[0][place], cells[1][place] = '"abc', 'def"'
    middle = rows(12, 12 + between)
    text = HEAD + rows(1, 11) + ",".join(cells[0]) + "\n" + middle + ",".join(cells[1]) + "\n"
    for end in ("", rows(100, 110)):
        (tmp_path / "t.csv").write_text(text + end)
        with (
            pytest.raises(DataError) as error,
            open_rejects(tmp_path / "bad.csv" if rejecting else None) as rejects,
        ):
            read_table(str(tmp_path / "t.csv"), rejects=rejects)
        later = "1 line later" if between == 0 else f"{between + 1:,} lines later"
        assert f"{between + 2:,} lines in row 11 of" in str(error.value)
        assert f"closes {later}" in str(error.value)
        assert not (tmp_path / "bad.csv").exists()


def test_a_lost_quote_where_all_cells_are_quoted(tmp_path: Path) -> None:
    lines = [",".join(f'"{cell}"' for cell in row.split(",")) for row in (HEAD + rows(1, 40)).splitlines()]
    lines[11] = lines[11].replace('"x"', '"x')
    said = refused("\n".join(lines) + "\n", tmp_path)
    assert "2 columns in every row" in said or "2 lines in row 11" in said or "row 11" in said


def test_what_no_reader_can_tell(tmp_path: Path) -> None:
    """Where line breaks are allowed, rows between two stray quotes in one column read like a cell."""
    text = HEAD + rows(1, 3) + '3,2,3,"4\n' + rows(4, 9) + '9,2,3,4"\n'
    found = read(text, tmp_path, MULTILINE)
    assert [row[0] for row in found] == ["1", "2", "3"]
    assert found[2][3].startswith("4\n4,4.5")
    assert "7 lines in row 3" in refused(text, tmp_path)


def test_ragged_rows_with_line_breaks_are_refused_even_if_these_are_allowed(tmp_path: Path) -> None:
    said = refused(HEAD + '1,"2\n3",4\n' + rows(2, 9), tmp_path, MULTILINE)
    assert "2 lines in row 1" in said


@pytest.mark.parametrize("form", [PLAIN, MULTILINE], ids=["one line", "multiline"])
def test_a_lone_carriage_return_ends_no_row(form: CSVFormat, tmp_path: Path) -> None:
    """In two columns it would begin a row of the right width, and shift everything after it."""
    text = "a,b\n1,2\n3,x\ry,4\n5,6\n"
    assert "a lone carriage return in or after row 2" in refused(text, tmp_path, form)


@given(
    cells=st.lists(
        st.tuples(*[st.text(st.sampled_from('",\n\r x'), max_size=4) for _ in range(2)]), max_size=8
    ),
    damage=st.integers(0, 200),
    quote=st.booleans(),
)
def test_no_row_is_lost_silently(
    cells: Sequence[tuple[str, str]], damage: int, quote: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is done to a file: without line breaks in cells there is a row for each line, or an error."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("a", "b"), *cells])
    content = text.getvalue()
    at = 4 + damage % max(1, len(content) - 4)
    content = content[:at] + ('"' if quote else "") + content[at + (not quote) :]
    folder = tmp_path_factory.mktemp("t")
    (folder / "t.csv").write_bytes(content.encode())
    try:
        batches = list(read_batches(str(folder / "t.csv"), collect_rejects=True))
        read = sum(batch.rows.num_rows for batch in batches)
        left_out = [reject.number for batch in batches for reject in batch.rejects]
    except DataError:
        return
    lines = content[4:].replace("\r\n", "\n").split("\n")
    if not lines[-1].strip(" \r"):
        lines.pop()  # what follows the last line feed
    assert read + len(left_out) + sum(not line for line in lines) == len(lines)


# ------------------------------------------------------------ headers, separators and encodings


def test_names_may_have_lines_and_quotes(tmp_path: Path) -> None:
    text = '"first\nname","say ""x""",c\n1,2,3\n'
    (tmp_path / "t.csv").write_text(text)
    (batch,) = read_batches(str(tmp_path / "t.csv"), csv=MULTILINE)
    assert batch.columns == ("first\nname", 'say "x"', "c")
    assert batch.rows.to_pylist()[0]["c"] == "3"
    assert "the header of" in refused(text, tmp_path)
    assert "the header of" in refused('a,b,c,"d\n' + rows(1, 9), tmp_path)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separators_are_detected(separator: str, tmp_path: Path) -> None:
    text = separator.join(["a", f'"b{separator}c"', "income, net" if separator != "," else "d"])
    assert read(f"{text}\n1{separator}2{separator}3\n", tmp_path) == [["1", "2", "3"]]


def test_a_header_with_two_separators_alike_is_refused(tmp_path: Path) -> None:
    said = refused("a,b;c\n1,2;3\n", tmp_path)
    assert "comma and semicolon alike" in said
    assert read("a,b;c\n1,2;3\n", tmp_path, CSVFormat("semicolon")) == [["1,2", "3"]]


def test_odd_headers(tmp_path: Path) -> None:
    wide = ",".join(f"column {i}" for i in range(20_000))  # more than a cell may have elsewhere
    assert len(read(f"{wide}\n{',' * 19_999}\n", tmp_path)[0]) == 20_000
    for text in ("\ufeff", "\ufeff\n", "\n1\n", ",b\n1,2\n"):
        assert "a name for each column, got none for column 1" in refused(text, tmp_path)
    assert "lines in the header of" in refused('a,"b\n' + rows(1, 20_000), tmp_path)


def test_a_separator_that_is_not_in_the_header_is_refused(tmp_path: Path) -> None:
    assert "whose header has a comma" in refused(HEAD + rows(1, 3), tmp_path, CSVFormat(";"))
    assert read("a\n1\n", tmp_path, CSVFormat(";")) == [["1"]]


@pytest.mark.parametrize("separator", ["x", "1", ".", "-", "+", "é", '"', "\n", "", ",,"])
def test_separators_that_can_be_part_of_a_number(separator: str) -> None:
    with pytest.raises(DataError, match="a separator of one character"):
        CSVFormat(separator)


@pytest.mark.parametrize("separator", [";", "\t", "|", " ", "^", "]", "\\", "~", "&", "*"])
def test_other_separators(separator: str, tmp_path: Path) -> None:
    text = separator.join(NAMES) + "\n" + separator.join(["1", '"2"', "4", ""]) + "\n"
    assert read(text, tmp_path, CSVFormat(separator)) == [["1", "2", "4", ""]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32", "cp1252", "latin-1"])
def test_encodings(encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veritracer.tables.reading.BLOCK", 7)
    monkeypatch.setattr("veritracer.tables.reading.HEAD", 64)
    text = "région,b\n" + "für,1\n" * 20
    assert read(text.encode(encoding), tmp_path, CSVFormat(encoding=encoding)) == [["für", "1"]] * 20


def test_bytes_of_another_encoding_are_refused(tmp_path: Path) -> None:
    text = HEAD + rows(1, 3) + "1,2,3,für\n"
    said = refused(text.encode("latin-1"), tmp_path)
    assert "other bytes in row 3" in said
    assert "--encoding cp1252" in said
    assert "0xe9 in the header" in refused("région,b\n1,2\n".encode("latin-1"), tmp_path)
    assert "UTF-16, pass --encoding" in refused(text.encode("utf-16"), tmp_path)
    cut = text.encode("utf-16")[:-1]
    assert "text in utf-16 in" in refused(cut, tmp_path, CSVFormat(encoding="utf-16"))
    for name in ("nonsense", "base64"):
        with pytest.raises(DataError, match="the name of a text encoding"):
            CSVFormat(encoding=name)


# ------------------------------------------------------------ the work grows with the file

HARD = {
    "open quote": b'1,2,3,"' + b"4,5,6,7\n" * 9,
    "quotes": b'"' * 64,
    "cells of a quote": b',"' * 32,
    "lines of a quote": b'"\n' * 32,
    "quoted cells": b'"1","2","3","4"\n' * 4,
    "lines of an open cell": b'1,2,3,"\n' * 8,
    "doubled quotes": b'1,2,3,"' + b'""' * 24 + b'"\n',
    "quotes inside": b'1",2",3",4"\n' * 5,
}


@pytest.mark.parametrize("name", HARD)
def test_a_block_of_hard_text_is_one_pass(name: str) -> None:
    """Four MiB each: going back over what was passed would take hours, so that this ends is the test."""
    text = HARD[name] * ((4 << 20) // len(HARD[name]))
    assert 0 <= end_of_rows(text, ",") <= len(text)


def test_every_batch_has_the_type_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(HEAD + rows(1, 9))
    batches = list(read_batches(str(tmp_path / "t.csv"), rows=3))
    assert [batch.rows.num_rows for batch in batches] == [3, 3, 2]
    assert {batch.rows.schema.field(name).type for batch in batches for name in batch.columns} == {
        pa.string()
    }
