"""CSV as chunks of text columns, with what is wrong in a file said in its own terms.

``Rows`` reads a text from left to right: where its rows end, and which quotes cannot be meant. A cell is
quoted if its first character is a quote; inside, a quote is written twice, and separators and ends of lines
are text. A quote further inside of a cell is an ordinary character. That is RFC 4180 as pyarrow reads it.

Its pattern matches one part of a text after the other, whatever the text is, and repeats nothing but single
characters: so the work grows with the text and not with its square, and takes no memory. Possessive
quantifiers could say more in one pattern, but Python 3.11.2 matches some of them wrongly.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from veritracer.errors import DataError, message
from veritracer.tables.reading import ROW, Counted, Limits, Ragged

LEAST = 4
"""Columns from which on a cell is refused for reading like rows; with fewer, text does so by chance."""

NEWLINE = re.compile(rb"\r\n?|\n")


class Suspect(NamedTuple):
    """A quoted cell over several lines that cannot be meant: its ends, and what gave it away.

    ``rows`` counts the rows that it reads like, if it does; 0 means that text follows its closing quote.
    """

    start: int
    end: int
    rows: int


class Rows:
    r"""How rows are written with a separator.

    >>> Rows(",").end(b'1,"a,\n2"\n3,"b')
    9
    >>> Rows(",").open_quote(b'3,"b')
    2
    """

    def __init__(self, separator: str) -> None:
        self.separator = separator.encode()
        self.blank = b" \t".replace(self.separator, b"")
        mark = re.escape(self.separator)
        # A part: what a quote opens, up to its closing quote or the first of two; then whole lines; then text
        # up to the next quote that opens a cell, or past quotes that do not.
        self._parts = re.compile(rb'("[^"]*"?)?([^"]*[\r\n])?[^"]*(?:(?<![' + mark + rb'\r\n"])"+)?')
        self._cell_end = re.compile(mark + rb"|\r\n?|\n")

    def end(self, text: bytes) -> int:
        """Where the last whole row of ``text`` ends, which begins with a row; 0 if there is none."""
        if b'"' not in text:
            return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        end = 0
        for part in self._parts.finditer(text):
            if (lines_end := part.end(2)) > 0:
                end = lines_end
        return end

    def first_end(self, text: bytes) -> int:
        """Where the first row ends; 0 if it does not."""
        return next((end for _, end in self._rows(text)), 0)

    def open_quote(self, text: bytes) -> int | None:
        """Where the quote is that the unfinished row ``text`` leaves open; None if it leaves none open."""
        opened = start = end = 0
        for part in self._parts.finditer(text):
            if part.end(1) > 0:
                opened = opened if part.start() == end else part.start()  # or the second of two quotes
                start, end = part.span(1)
        return opened if end == len(text) and text.count(b'"', start, end) == 1 else None

    def cells(self, row: bytes) -> list[bytes]:
        """The cells of a row, without their quotes."""
        return [
            row[start:closed][1:-1].replace(b'""', b'"') + row[closed:end]
            for start, closed, end in self._cells(row)
        ]

    def suspect(self, text: bytes, columns: int) -> Suspect | None:
        """The first cell in whole rows of ``text`` that a forgotten quote seems to have filled with rows.

        That is one over several lines that goes on after its closing quote, or that reads like rows itself:
        the tail of one, whole ones, the head of another, each with the columns of the table.
        """
        for start, end in self._rows(text):
            row = text[start:end]
            lines = row.rstrip(b"\r\n").count(b"\n") + 1
            found = self._suspect_in(row, start, columns, lines) if lines > 1 else None
            if found is not None:
                return found
        return None

    def _rows(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yield where each whole row starts and ends."""
        start = 0
        for part in self._parts.finditer(text):
            if part.end(2) > 0:
                for newline in NEWLINE.finditer(text, *part.span(2)):
                    yield start, newline.end()
                    start = newline.end()

    def _cells(self, row: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield where each cell of a whole row starts, where its quotes have closed, and where it ends."""
        start = closed = 0
        for part in self._parts.finditer(row):
            if part.end(1) > 0:
                closed = part.end(1)
            for found in self._cell_end.finditer(row, max(closed, part.start()), part.end()):
                yield start, closed, found.start()
                start = closed = found.end()

    def _suspect_in(self, row: bytes, start: int, columns: int, lines: int) -> Suspect | None:
        full = columns >= LEAST and row.count(self.separator) >= (columns - 1) * lines
        for place, (opened, closed, end) in enumerate(self._cells(row)):
            cell = row[opened:closed]
            if b"\n" not in cell:
                continue
            if row[closed:end].strip(self.blank):
                return Suspect(start + opened, start + closed, 0)
            if full and self._reads_like_rows(cell, place, columns):
                return Suspect(start + opened, start + closed, cell.count(b"\n") + 1)
        return None

    def _reads_like_rows(self, cell: bytes, place: int, columns: int) -> bool:
        """Whether the cell in this place is the tail of one row, any whole rows, and the head of another."""
        counts = [line.count(self.separator) for line in cell.split(b"\n")]
        return counts == [columns - 1 - place, *[columns - 1] * (len(counts) - 2), place]


# ---------------------------------------------------------------- columns of text


BLOCK = 4 << 20
"""Bytes that are parsed at once: also the longest line, so that no line can fill the memory."""

MARK = b"\xef\xbb\xbf"
"""The byte-order mark: dropped at the very start of a file, and text like any other inside of it."""

CLOSE = 'close it, or write a quote inside of a cell twice ("")'

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}


def separator_of(text: str) -> str:
    """The character that a person means: itself, or its name."""
    named = {name: character for character, name in SEPARATORS.items()} | {"\\t": "\t"}
    chosen = named.get(text.casefold(), text)
    if len(chosen) != 1 or not chosen.isascii() or chosen.isalnum() or chosen in '"\n\r\0+-.':
        remedy = f"write the character, or one of {', '.join(SEPARATORS.values())}"
        raise DataError(message("a separator of one character that is in no number", repr(text), remedy))
    return chosen


def header(
    name: str, head: bytes, separator: str, limits: Limits, or_comma: bool = False
) -> tuple[tuple[str, ...], str, int]:
    """The names of the columns, the separator, and how many bytes they take; refuses what is no header.

    ``head`` are the first bytes of the file. With ``or_comma`` one without the separator may have commas.
    """
    _check_text(name, head)
    skipped = len(MARK) if head.startswith(MARK) else 0
    text = head[skipped:]
    if or_comma and b"," in text and separator.encode() not in text[: Rows(",").first_end(text)]:
        separator = ","
    rows = Rows(separator)
    length = rows.first_end(text) or _unended(name, text, rows)
    try:
        cells = [cell.decode("utf-8") for cell in rows.cells(text[:length].rstrip(b"\r\n") + b"\n")]
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(_not_utf8(name, f"the byte {byte:#x} in line 1")) from None
    _check_header(name, text[:length].decode("utf-8"), cells, separator)
    limits.check_names(name, cells)
    return tuple(cells), separator, skipped + length


def batches(
    name: str,
    stream: Counted,
    names: tuple[str, ...],
    separator: str,
    header_bytes: int,
    ragged: Ragged | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows as pieces of text columns; an empty cell is the empty text.

    ``ragged`` is told of rows with too few or too many cells; the others then have their number in ``ROW``.

    Blocks are read and cut here, and not by pyarrow's own thread: that one would still wait for a pipe when
    the program wants to end.
    """
    rows, done = Rows(separator), 0
    for block, line in _blocks(name, stream, rows, header_bytes):
        # A mark at the start of a block is text: pyarrow would drop it, so it gets one more to drop.
        text = MARK + block if block.startswith(MARK) else block
        left_out: list[int] = []

        def skip(row: arrow_csv.InvalidRow, seen: list[int] = left_out, before: int = done) -> str:
            assert ragged is not None
            seen.append(row.number)
            ragged(before + row.number, row.expected_columns, row.actual_columns, row.text)
            return "skip"

        try:
            table = arrow_csv.read_csv(
                io.BytesIO(text),
                read_options=arrow_csv.ReadOptions(
                    block_size=len(text) + 1, use_threads=False, column_names=names
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=separator,
                    newlines_in_values=True,
                    invalid_row_handler=None if ragged is None else skip,
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={column: pa.string() for column in names}, strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid as error:
            raise _explained(name, str(error), separator, done) from None
        total = table.num_rows + len(left_out)
        if b'"' in block and not _a_line_each(block, total):
            _check_cells(name, block, line, rows, len(names))
        if ragged is not None:
            numbers = np.delete(np.arange(1, total + 1), np.array(left_out, dtype=np.int64) - 1) + done
            table = table.append_column(ROW, pa.array(numbers, pa.int64()))
        done += total
        yield from table.to_batches()


def _blocks(name: str, stream: Counted, rows: Rows, header_bytes: int) -> Iterator[tuple[bytes, int]]:
    """The text without its header, in blocks that end where a row ends, each with the number of its line."""
    line = 1 + _read(name, stream, header_bytes).count(b"\n")
    rest = b""
    while data := _read(name, stream, BLOCK):
        block = rest + data
        cut = rows.end(block)
        if cut:
            yield block[:cut], line
        line += block.count(b"\n", 0, cut)
        rest = block[cut:]
        if len(rest) > BLOCK:
            raise _too_long(name, rest, line, rows)
    if rest.strip(b" \r\n".replace(rows.separator, b"")):
        quote = rows.open_quote(rest)
        if quote is not None:
            raise _not_closed(name, line + rest.count(b"\n", 0, quote), "at the end of the file")
        yield rest + b"\n", line


def _read(name: str, stream: Counted, size: int) -> bytes:
    try:
        return stream.read(size)
    except (OSError, EOFError, zlib.error) as error:  # a packed file that breaks off
        raise DataError(message(f"all of {name}", str(error), "copy or pack it again")) from None


def _unended(name: str, text: bytes, rows: Rows) -> int:
    """The length of a header that has no end, because the file has no more; refuses every other one."""
    if rows.open_quote(text) is not None:
        raise _not_closed(name, 1, "after a MiB" if len(text) >= BLOCK // 4 else "at the end of the file")
    if len(text) >= BLOCK // 4:
        received = f"a first line of more than {len(text) // 2**20 or 1} MiB in {name}"
        raise DataError(message("a table with a line for each row", received, "check that it is a CSV file"))
    return len(text)


def _too_long(name: str, rest: bytes, line: int, rows: Rows) -> DataError:
    quote = rows.open_quote(rest)
    if quote is not None:
        opened = line + rest.count(b"\n", 0, quote)
        return _not_closed(name, opened, f"within {BLOCK >> 20} MiB, the most that a row may have")
    received = f"a longer one in line {line:,} of {name}"
    return DataError(message(f"lines of at most {BLOCK >> 20} MiB", received, "check that it is a CSV file"))


def _not_closed(name: str, line: int, where: str) -> DataError:
    received = f"one that opens in line {line:,} of {name} and is still open {where}"
    return DataError(message("a closing quote for every quoted cell", received, CLOSE))


def _a_line_each(block: bytes, rows: int) -> bool:
    """Whether no cell can go over several lines, because every row has a line of its own."""
    return rows == block.count(b"\n") and block.count(b"\r") == block.count(b"\r\n")


def _check_cells(name: str, block: bytes, line: int, rows: Rows, columns: int) -> None:
    """Refuse a quoted cell over several lines that other rows have probably fallen into."""
    suspect = rows.suspect(block, columns)
    if suspect is not None:
        first, last = (line + block.count(b"\n", 0, at) for at in (suspect.start, suspect.end))
        cell = f"a quoted cell from line {first:,} to line {last:,} of {name}"
        if suspect.rows == 0:
            expected = "a separator or the end of the line after a closing quote"
            raise DataError(message(expected, f"more text after {cell}", CLOSE))
        received = f"{cell} that reads like {suspect.rows:,} rows of {columns:,} columns"
        remedy = f"{CLOSE}; if these lines do belong into one cell, give the table as Parquet"
        raise DataError(message("each row outside of other rows' cells", received, remedy))


def _check_text(name: str, head: bytes) -> None:
    if not head.strip():
        raise DataError(
            message("a header and rows", f"nothing in {name}", "check what should have written it")
        )
    if head.startswith(b"PK\x03\x04"):
        remedy = "export the sheet as CSV, or unpack the archive"
        raise DataError(message("CSV or Parquet", f"a spreadsheet or an archive in {name}", remedy))
    if b"\0" in head:
        remedy = "export the table as CSV or Parquet"
        raise DataError(message("CSV or Parquet", f"another binary file in {name}", remedy))


def _check_header(name: str, text: str, names: Sequence[str], separator: str) -> None:
    others = [s for s in SEPARATORS if s != separator and s in text]
    if len(names) == 1 and others:
        found = max(others, key=text.count)
        received = f"one column and {text.count(found)} times a {SEPARATORS[found]} in the header of {name}"
        remedy = f"pass --separator {SEPARATORS[found]}"
        said = SEPARATORS.get(separator, repr(separator))
        raise DataError(message(f"columns separated by a {said}", received, remedy))
    if "" in names or not names:
        received = f"none for column {names.index('') + 1 if names else 1} of {name}"
        raise DataError(message("a name for each column", received, "complete the header"))


def _explained(name: str, said: str, separator: str, done: int) -> DataError:
    """What pyarrow complained about, in our words; ``done`` rows came before."""
    where = re.search(r"Row #(\d+)", said)
    row = f"row {done + int(where[1]):,} of {name}" if where else f"a row of {name}"
    counts = re.search(r"Expected (\d+) columns, got (\d+)", said)
    if counts:
        remedy = f"check the quotes and separators ({separator!r}) of that row"
        return DataError(message(f"{counts[1]} columns in every row", f"{counts[2]} in {row}", remedy))
    if "UTF8" in said:
        return DataError(_not_utf8(name, f"another encoding in {row}"))
    return DataError(message(f"a CSV table in {name}", said.splitlines()[0][:200], "check the file"))


def _not_utf8(name: str, received: str) -> str:
    # Windows' code page has all printable characters of Latin-1 where that has them, and the euro.
    remedy = "save it as UTF-8, for example: iconv -f cp1252 -t utf-8 OLD > NEW"
    return message(f"text in UTF-8 in {name}", received, remedy)
