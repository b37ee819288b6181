"""Quotes in CSV: cells over several lines are read, a forgotten quote is refused, and the work is linear."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veritracer.errors import DataError
from veritracer.tables import csv_text, open_table
from veritracer.tables.csv_text import Rows

NAMES = ("a", "b", "c", "d")
HEAD = ",".join(NAMES) + "\n"


def read(text: str | bytes, folder: Path, **options: str) -> list[list[str]]:
    (folder / "t.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    with open_table(str(folder / "t.csv"), **options) as table:
        return [list(row.values()) for piece in table.chunks for row in piece.to_pylist()]


def refused(text: str | bytes, folder: Path) -> str:
    with pytest.raises(DataError) as said:
        read(text, folder)
    return str(said.value)


def rows(first: int, last: int) -> str:
    return "".join(f"{i},{i}.5,x,n{i}\n" for i in range(first, last))


# ------------------------------------------------------------ what is read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('1,"two\nlines",3,4\n', ["1", "two\nlines", "3", "4"]),
        ('1,"two\r\nlines",3,4\r\n', ["1", "two\r\nlines", "3", "4"]),
        ('1,2,3,"say ""yes"", or\n""no"""\n', ["1", "2", "3", 'say "yes", or\n"no"']),
        ('1,2,3,"the last cell\nof the file"', ["1", "2", "3", "the last cell\nof the file"]),
        ('1,5" pipe,3,4\n', ["1", '5" pipe', "3", "4"]),
        ('1,2,3,5"\n', ["1", "2", "3", '5"']),
        ('1, "x",3,4\n', ["1", ' "x"', "3", "4"]),
        ('1,"x" ,3,4\n', ["1", "x ", "3", "4"]),
        ('1,"x"y,3,4\n', ["1", "xy", "3", "4"]),
        ('1,"",3,""\n', ["1", "", "3", ""]),
        ('1,"""",3,4\n', ["1", '"', "3", "4"]),
        ('1,2,3,"a, b\nc, d, e\nf"\n', ["1", "2", "3", "a, b\nc, d, e\nf"]),
        ("1,2,3,4\r5,6,7,8\r", ["1", "2", "3", "4"]),
    ],
)
def test_legitimate_cells(text: str, expected: list[str], tmp_path: Path) -> None:
    before, after = rows(1, 40), "" if not text.endswith(("\n", "\r")) else rows(40, 80)
    found = read(HEAD + before + text + after, tmp_path)
    assert found[39] == expected
    assert len(found) == 39 + (1 if "\r5" not in text else 2) + (40 if after else 0)


def test_a_quote_closes_in_a_later_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text, "BLOCK", 64)
    for length in range(1, 40):
        cell = "long " * (length // 5) + '"' * (length % 3) + "\n" * (length % 2) + "x" * (length % 5)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(
            [NAMES, *[["1", cell, str(i), "y"] for i in range(9)]]
        )
        assert read(text.getvalue(), tmp_path) == [["1", cell, str(i), "y"] for i in range(9)]


def test_names_may_have_lines_and_quotes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('"first\nname","say ""x""",c\n1,2,3\n')
    with open_table(str(tmp_path / "t.csv")) as table:
        assert table.names == ("first\nname", 'say "x"', "c")
        assert next(row for piece in table.chunks for row in piece.to_pylist())["c"] == "3"


@pytest.mark.parametrize(
    ("text", "end", "first", "opened"),
    [
        (b'a,b\n"c\n', 4, 4, 0),
        (b'a,b\n1,"c\n', 4, 4, 2),
        (b'a,b\n1,"c""\n', 4, 4, 2),
        (b'a,b\n1,"c"', 4, 4, None),
        (b'1,"a,\n2"\n3,"b', 9, 9, 2),
        (b'"a""\n', 0, 0, 0),
        (b'"a"""\n"', 6, 6, 0),
        (b'"""",""\r\n,""""""\n,"""', 17, 9, 1),
        (b'5",6"\n"\n', 6, 6, 0),
        (b'"a"5",x\n"b"c"\r"d', 14, 8, 0),
    ],
)
def test_ends_and_open_quotes(text: bytes, end: int, first: int, opened: int | None) -> None:
    grammar = Rows(",")
    assert (grammar.end(text), grammar.first_end(text)) == (end, first)
    assert grammar.open_quote(text[end:]) == opened


@pytest.mark.parametrize("length", range(8))
def test_all_short_texts(length: int) -> None:
    """Against a reading character by character."""
    grammar = Rows(",")
    for characters in itertools.product(b'",\n\ra', repeat=length):
        text = bytes(characters)
        rows, unfinished = _by_character(text)
        ends = list(itertools.accumulate(len(row) for row, _ in rows))
        assert grammar.end(text) == (ends[-1] if ends else 0), text
        assert grammar.first_end(text) == (ends[0] if ends else 0), text
        assert grammar.open_quote(text[grammar.end(text) :]) == unfinished, text
        for row, cells in rows:
            assert grammar.cells(row) == cells, text


def _by_character(text: bytes) -> tuple[list[tuple[bytes, list[bytes]]], int | None]:
    """Return the rows with their cells, and where the rest of the text leaves a quote open."""
    rows, cells, cell = [], [], b""
    state, begun, opened, at = "new", 0, 0, 0
    while at < len(text):
        here = text[at : at + 1]
        at += 1
        if state == "inside":
            if text[at - 1 : at + 1] == b'""':
                cell, at = cell + b'"', at + 1
            elif here == b'"':
                state = "text"
            else:
                cell += here
        elif state == "new" and here == b'"':
            state, opened = "inside", at - 1
        elif here == b",":
            cells, cell, state = [*cells, cell], b"", "new"
        elif here in b"\r\n":
            at += text[at - 1 : at + 1] == b"\r\n"
            rows.append((text[begun:at], [*cells, cell]))
            cells, cell, state, begun = [], b"", "new", at
        else:
            cell, state = cell + here, "text"
    return rows, opened - begun if state == "inside" else None


ALPHABET = st.text(st.sampled_from('",\n\r ab'), max_size=40)


@given(text=ALPHABET, size=st.integers(1, 20))
def test_cuts_are_where_pyarrow_ends_rows(text: str, size: int) -> None:
    """Rows that are cut by us and parsed one after the other are those of the whole text."""
    grammar, data = Rows(","), text.encode() + b"\n"
    whole = _parsed(data[: grammar.end(data)])
    parts, rest = [], b""
    for at in range(0, len(data), size):
        block = rest + data[at : at + size]
        cut = grammar.end(block)
        parts += _parsed(block[:cut])
        rest = block[cut:]
    assert parts == whole
    assert grammar.open_quote(rest) is None or b'"' in rest


def _parsed(data: bytes) -> list[list[str]]:
    """The rows, each as pyarrow reads it: with as many columns as it has."""
    found = []
    grammar = Rows(",")
    while data:
        end = grammar.first_end(data)
        assert end > 0
        row, data = data[:end], data[end:]
        if not row.strip(b"\r\n"):
            continue
        names = [str(i) for i in range(len(grammar.cells(row)))]
        table = arrow_csv.read_csv(
            io.BytesIO(row),
            read_options=arrow_csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(column_types={n: pa.string() for n in names}),
        )
        assert table.num_rows == 1
        cells = [table.column(n)[0].as_py() for n in names]
        assert cells == [cell.decode() for cell in grammar.cells(row)]
        found.append(cells)
    return found


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("place", range(4))
def test_a_quote_that_is_never_closed(place: int, ends: str, tmp_path: Path) -> None:
    cells = ["11", "2", "3", "4"]
    cells[place] = '"' + cells[place]
    text = HEAD + rows(1, 11) + ",".join(cells) + "\n" + rows(12, 600)
    said = refused(text.replace("\n", ends), tmp_path)
    assert "one that opens in line 12 of" in said
    assert "close it" in said


@pytest.mark.parametrize("text", ['1,2,3,"open', '1,2,3,"open\n', '1,2,3,"', '1,2,3,"a""', '"'])
def test_a_quote_that_is_open_at_the_end(text: str, tmp_path: Path) -> None:
    assert "line 3 of" in refused(HEAD + rows(1, 2) + text, tmp_path)


def test_a_quote_in_the_header_that_is_not_closed(tmp_path: Path) -> None:
    assert "opens in line 1 of" in refused('a,b,c,"d\n' + rows(1, 9), tmp_path)


def test_a_quote_that_is_open_for_more_than_a_row_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_text, "BLOCK", 1 << 10)
    said = refused(HEAD + rows(1, 300) + '300,2,3,"4\n' + rows(301, 900) + '"', tmp_path)
    assert "line 301 of" in said


@pytest.mark.parametrize("place", range(4))
def test_a_quote_that_the_next_quoted_cell_closes(place: int, tmp_path: Path) -> None:
    """12,"abc and 14,"def": the second one's opening quote closes the first."""
    cells = [["11", "2", "3", "4"], ["13", "2", "3", "4"]]
    cells[0][place], cells[1][place] = '"abc', '"def"'
    text = HEAD + rows(1, 11) + ",".join(cells[0]) + "\n" + rows(12, 13) + ",".join(cells[1]) + "\n"
    said = refused(text + rows(14, 20), tmp_path)
    assert "from line 12 to line 14" in said


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("between", [0, 1, 5])
def test_two_stray_quotes_around_other_rows(place: int, between: int, tmp_path: Path) -> None:
    cells = [["11", "2", "3", "4"], ["99", "2", "3", "4"]]
    cells[0][place], cells[1][place] = '"abc', 'def"'
    middle = rows(12, 12 + between)
    text = HEAD + rows(1, 11) + ",".join(cells[0]) + "\n" + middle + ",".join(cells[1]) + "\n"
    for end in ("", rows(100, 110)):
        said = refused(text + end, tmp_path)
        assert f"from line 12 to line {13 + between}" in said
        assert f"reads like {2 + between} rows of 4 columns" in said


def test_old_ends_of_lines_do_not_hide_swallowed_rows(tmp_path: Path) -> None:
    text = HEAD + rows(1, 11).replace("\n", "\r") + '11,2,3,"4\n' + rows(12, 21) + '21,2,3,4"\n'
    assert "reads like 11 rows" in refused(text, tmp_path)


def test_few_columns_are_not_guessed_at(tmp_path: Path) -> None:
    assert read('a,b\n1,"Main Street 5, Town\nCountry, Earth"\n', tmp_path)[0][0] == "1"


def test_a_mark_inside_of_a_file_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_text, "BLOCK", 16)
    mark = "\ufeff"
    text = mark + "a,b\n" + f"{mark}x,1\n" * 20
    assert read(text, tmp_path) == [[f"{mark}x", "1"]] * 20
    assert read(f"{mark}{mark}a,b\n1,2\n", tmp_path) == [["1", "2"]]
    with open_table(str(tmp_path / "t.csv")) as table:
        assert table.names == (f"{mark}a", "b")
        assert list(table.chunks)


@pytest.mark.parametrize("separator", ["x", "1", ".", "-", "+", "é", '"', "\n", "", ",,"])
def test_separators_that_can_be_part_of_a_number(separator: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a separator of one character"):
        read(HEAD + rows(1, 3), tmp_path, separator=separator)


@pytest.mark.parametrize("separator", [";", "\t", "|", " ", "^", "]", "\\", "~", "&", "*"])
def test_other_separators(separator: str, tmp_path: Path) -> None:
    text = separator.join(NAMES) + "\n" + separator.join(["1", '"2\n3"', "4", ""]) + "\n"
    assert read(text, tmp_path, separator=separator) == [["1", "2\n3", "4", ""]]


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
def test_every_byte_is_looked_at_a_few_times(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the quotes lie, the search for the ends of rows is handed no byte more than three times."""
    monkeypatch.setattr(csv_text, "BLOCK", 1 << 16)
    looked = [0]
    for method in ("end", "first_end", "open_quote"):
        monkeypatch.setattr(Rows, method, _counting(getattr(Rows, method), looked))
    text = HEAD.encode() + HARD[name] * ((1 << 20) // len(HARD[name]))
    (tmp_path / "t.csv").write_bytes(text)
    try:
        with open_table(str(tmp_path / "t.csv")) as table:
            for _ in table.chunks:
                pass
    except DataError:
        pass
    assert 0 < looked[0] <= 3 * len(text)


def _counting(method: Callable[..., object], looked: list[int]) -> Callable[..., object]:
    def counted(self: Rows, text: bytes) -> object:
        looked[0] += len(text)
        return method(self, text)

    return counted


@pytest.mark.parametrize("name", HARD)
def test_a_block_of_hard_text_is_one_pass(name: str) -> None:
    """Four MiB each: going back over what was passed would take hours, so that this ends is the test."""
    text = HARD[name] * ((4 << 20) // len(HARD[name]))
    grammar = Rows(",")
    cut = grammar.end(text)
    grammar.open_quote(text[cut:])
    suspect = grammar.suspect(text[:cut], 4)
    assert suspect is None or 0 <= suspect.start < suspect.end <= cut
