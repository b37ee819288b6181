"""CSV files as batches of text columns, parsed by pyarrow one block of whole rows at a time.

NOTE: blocks are read and cut here and not by ``pyarrow.csv.open_csv``. That one reads up to 33 blocks ahead
in a thread of its own; when a command ends while that thread waits for a pipe, the interpreter aborts.

A cell is quoted if its first character is a quote; inside, a quote is written twice. A forgotten quote turns
the rows up to the next quote into one cell, so nothing may be hidden in a cell over several lines: such cells
are refused unless they are asked for, and the lines of every block must be accounted for by its rows.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, zip_longest
from typing import TYPE_CHECKING

from veritracer.errors import DataError, listing, message
from veritracer.tables.jobs import ROW, Batch, Reject, integer_column

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv as arrow_csv
    from numpy.typing import NDArray

BLOCK = 4 << 20
"""Bytes that are parsed at once; no row may be longer."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}
"""The separators that are recognised in a header, and their names."""


@dataclass(frozen=True)
class CSVFormat:
    r"""The format of a CSV file.

    Parameters
    ----------
    separator
        What separates cells: a character or its name (``comma``, ``semicolon``, ``tab``, ``pipe``). By
        default it is detected from the header.
    encoding
        The encoding of the text, by its Python name.
    multiline_cells
        Whether quoted cells may have line breaks.

    >>> CSVFormat("tab").separator
    '\t'
    """

    separator: str | None = None
    encoding: str = "utf-8"
    multiline_cells: bool = False

    def __post_init__(self) -> None:
        """Check the separator and the encoding."""
        if self.separator is not None:
            object.__setattr__(self, "separator", _separator(self.separator))
        try:
            "".encode(self.encoding)
        except LookupError:
            remedy = "name one that Python knows, such as utf-8, utf-16 or cp1252"
            raise DataError(message("the name of a text encoding", repr(self.encoding), remedy)) from None


def _separator(text: str) -> str:
    named = {name: character for character, name in SEPARATORS.items()} | {"\\t": "\t"}
    chosen = named.get(text.casefold(), text)
    if len(chosen) != 1 or not chosen.isascii() or chosen.isalnum() or chosen in '"\n\r\0+-.':
        remedy = f"write the character, or one of {', '.join(SEPARATORS.values())}"
        raise DataError(message("a separator of one character that is in no number", repr(text), remedy))
    return chosen


def decoded(name: str, chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Yield text in UTF-8, whatever encoding the chunks are in; UTF-8 itself is checked by the parser."""
    if codecs.lookup(encoding).name == "utf-8":
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for data in chunks:
            yield decoder.decode(data).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        received = f"bytes that are not ({getattr(error, 'reason', error)})"
        remedy = "give the encoding of the file with --encoding"
        raise DataError(message(f"text in {encoding} in {name}", received, remedy)) from None


# ---------------------------------------------------------------- the header


def check_text(name: str, head: bytes) -> None:
    """Refuse what is no CSV file at all."""
    if not head.strip():
        remedy = "check the program that wrote it"
        raise DataError(message("a header and rows", f"nothing in {name}", remedy))
    if head.startswith(b"PK\x03\x04"):
        remedy = "export the sheet as CSV, or unpack the archive"
        raise DataError(message("CSV or Parquet", f"a spreadsheet or an archive in {name}", remedy))
    if head.startswith(b"\x1f\x8b"):
        remedy = "let its name end in .gz, or unpack it first (gunzip -c)"
        raise DataError(message("CSV or Parquet", f"a gzip file in {name}", remedy))
    if b"\0" in head:
        remedy = "export it as CSV or Parquet; if it is text in UTF-16, pass --encoding utf-16"
        raise DataError(message("CSV or Parquet", f"another binary file in {name}", remedy))


def check_names(name: str, columns: Sequence[str]) -> None:
    """Refuse two columns of the same name."""
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        received = f"{listing(twice)} more than once in {name}"
        raise DataError(message("each column once", received, "rename or drop the duplicates"))


def read_header(name: str, head: bytes, form: CSVFormat) -> tuple[tuple[str, ...], str, int]:
    """Return the columns of a file in UTF-8, its separator, and the length of the header."""
    skipped = len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0
    lines = head[skipped:].splitlines(keepends=True)
    if len(lines) == 1 and len(head) > BLOCK // 8:
        received = f"a first line of more than {len(head) >> 10:,} KiB in {name}"
        raise DataError(message("a table with a line for each row", received, "check that it is a CSV file"))
    candidates = dict.fromkeys([*SEPARATORS, form.separator or ","])
    found = {separator: _cells(name, lines, separator) for separator in candidates}
    separator = form.separator or _detected(name, {each: len(row) for each, (row, _) in found.items()})
    columns, count = found[separator]
    others = [each for each, (row, _) in found.items() if len(row) > 1]
    if len(columns) == 1 and others:
        received = f"one column in {name}, whose header has a {SEPARATORS[others[0]]}"
        remedy = f"pass --separator {SEPARATORS[others[0]]}, or leave it out"
        said = SEPARATORS.get(separator, repr(separator))
        raise DataError(message(f"columns separated by a {said}", received, remedy))
    if count > 1 and not form.multiline_cells:
        raise _over_lines(f"the header of {name}", count)
    if "" in columns or not columns:
        received = f"none for column {columns.index('') + 1 if columns else 1} of {name}"
        raise DataError(message("a name for each column", received, "complete the header"))
    check_names(name, columns)
    return tuple(columns), separator, skipped + sum(map(len, lines[:count]))


def _cells(name: str, lines: Sequence[bytes], separator: str) -> tuple[list[str], int]:
    """Return the cells of the first row, and how many lines it takes.

    There are none if one would be absurdly long, as where the separator is another one.
    """
    reader = csv.reader((line.decode() for line in lines), delimiter=separator)
    try:
        return next(reader, []), reader.line_num
    except UnicodeDecodeError as error:
        raise _not_utf8(f"the byte {error.object[error.start]:#x} in the header of {name}") from None
    except csv.Error:
        if reader.line_num > 1:
            raise _over_lines(f"the header of {name}", reader.line_num) from None
        return [], 1


def _detected(name: str, counts: dict[str, int]) -> str:
    """Return the separator that gives the most columns."""
    most = max(counts.values())
    best = [separator for separator in SEPARATORS if counts[separator] == most]
    if most > 1 and len(best) > 1:
        said = " and ".join(SEPARATORS[separator] for separator in best)
        remedy = f"choose it with --separator {SEPARATORS[best[0]]}"
        raise DataError(message(f"one separator in the header of {name}", f"{said} alike", remedy))
    return best[0]


# ---------------------------------------------------------------- the rows


@lru_cache
def _row_parts(separator: str) -> re.Pattern[bytes]:
    """Return a pattern that matches one part of a text after the other, from the beginning of a row.

    It repeats only single characters, so the work is linear in the text. (Possessive quantifiers would be
    simpler, but Python 3.11.2 matches some wrongly.)
    """
    mark = re.escape(separator.encode())
    # A quoted cell, up to its closing quote or the first of two; then whole lines; then text up to the
    # next quote that opens a cell, or past quotes that do not.
    return re.compile(rb'("[^"]*"?)?([^"]*[\r\n])?[^"]*(?:(?<![' + mark + rb'\r\n"])"+)?')


def end_of_rows(text: bytes, separator: str) -> int:
    r"""Return where the last whole row ends, as pyarrow ends rows; 0 if there is none.

    >>> end_of_rows(b'1,"a,\n2"\n3,"b', ",")
    9
    """
    if b'"' not in text:
        return max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
    return max(0, max(part.end(2) for part in _row_parts(separator).finditer(text)))


class CSVReader:
    """Read the rows of a CSV file; ``done`` counts those that were read so far.

    Rows with too few or too many cells are refused, or collected as rejects.
    """

    def __init__(self, name: str, form: CSVFormat, *, collect_rejects: bool = False) -> None:
        self.name, self.form, self.collect_rejects = name, form, collect_rejects
        self.columns: tuple[str, ...] = ()
        self.separator, self.ends_in_return, self.done = ",", False, 0

    def batches(self, chunks: Iterator[bytes]) -> Iterator[Batch]:
        """Yield the rows of a file as columns of text; an empty cell is the empty text."""
        texts = decoded(self.name, chunks, self.form.encoding)
        head = next(texts, b"")
        check_text(self.name, head)
        self.columns, self.separator, length = read_header(self.name, head, self.form)
        self.ends_in_return = head[:length].endswith(b"\r")
        for block in self._blocks(chain([head[length:]], texts)):
            yield self._parse(block)

    def _blocks(self, texts: Iterator[bytes]) -> Iterator[bytes]:
        """Cut the text where rows end."""
        rest = b""
        for data in texts:
            text = rest + data
            # A line feed may follow a carriage return.
            end = end_of_rows(text[:-1] if text.endswith(b"\r") else text, self.separator)
            if end:
                yield text[:end]
            rest = text[end:]
            if len(rest) > BLOCK:
                remedy = "check that it is a CSV file, and that every quote is closed"
                received = f"a longer one in row {self.done + 1:,} of {self.name}"
                raise DataError(message(f"lines of at most {BLOCK >> 20} MiB", received, remedy))
        if rest.strip(b" \r\n".replace(self.separator.encode(), b"")):
            if not end_of_rows(rest + b"\n", self.separator):
                received = f"one in row {self.done + 1:,} of {self.name} that is open at the end of the file"
                raise DataError(message("a closing quote for every quoted cell", received, CLOSE))
            yield rest + b"\n"

    def _parse(self, block: bytes) -> Batch:
        """Return the rows of a block as columns of text, after every line was accounted for."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.csv as arrow_csv

        ragged: list[arrow_csv.InvalidRow] = []

        def handle(row: arrow_csv.InvalidRow) -> str:
            ragged.append(row)
            return "skip" if self.collect_rejects and not _breaks(row.text) else "error"

        # pyarrow drops a byte-order mark at the start of what it is given: one inside a file is text.
        text = BYTE_ORDER_MARK + block if block.startswith(BYTE_ORDER_MARK) else block
        try:
            table = arrow_csv.read_csv(
                io.BytesIO(text),
                read_options=arrow_csv.ReadOptions(
                    block_size=len(text) + 1, use_threads=False, column_names=self.columns
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self.separator, newlines_in_values=True, invalid_row_handler=handle
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={column: pa.string() for column in self.columns}, strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._refused(str(error), ragged) from None
        total = table.num_rows + len(ragged)
        missing = np.array([row.number for row in ragged], dtype=np.int64)
        numbers = np.delete(np.arange(1, total + 1), missing - 1) + self.done
        self._check_lines(block, table, numbers, total)
        rejects = tuple(self._reject(row) for row in ragged)
        self.done += total
        (rows,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        return Batch(
            self.name, rows.append_column(ROW, integer_column(numbers)), is_text=True, rejects=rejects
        )

    def _reject(self, row: arrow_csv.InvalidRow) -> Reject:
        """Return a row of too few or too many cells; the last column has all cells that are left."""
        reason = f"{row.actual_columns} cells in a table of {row.expected_columns} columns"
        cells = next(csv.reader([row.text], delimiter=self.separator), [])
        last = len(self.columns) - 1
        cells[last:] = [",".join(cells[last:])]
        named = dict(zip_longest(self.columns, cells, fillvalue=""))
        return Reject(self.done + row.number, reason, named)

    def _check_lines(self, block: bytes, table: pa.Table, numbers: NDArray[np.int64], total: int) -> None:
        """Refuse cells over several lines, and lines that are in no row."""
        same_ends = b"\r" not in block or block.count(b"\r") == block.count(b"\r\n")
        if same_ends and total == block.count(b"\n"):
            return  # a line for each row
        lines = block.splitlines()
        blank = sum(not line for line in lines)
        breaks = 0
        returns = 0 if self.ends_in_return else len(LONE_RETURN.findall(block))
        for column in table.columns if b'"' in block else ():
            found, inner_blank = _line_breaks(column)
            if not self.form.multiline_cells and found.any():
                at = int((found > 0).argmax())
                count = 1 + sum(_breaks(cells[at].as_py()) for cells in table.columns)
                raise _over_lines(f"row {numbers[at]:,} of {self.name}", count)
            breaks, blank = breaks + int(found.sum()), blank - inner_blank
            returns -= _count(column, r"\r") - _count(column, r"\r\n") if returns else 0
        if returns > 0:
            before = block[: next(LONE_RETURN.finditer(block)).start()].splitlines()
            received = f"a lone carriage return in or after row {self.done + sum(map(bool, before)):,}"
            remedy = "remove it, or end all lines of the file, and its header, in the same way"
            raise DataError(message(f"line feeds at the ends of lines in {self.name}", received, remedy))
        if total + breaks + blank != len(lines):
            received = f"{total:,} rows from {len(lines):,} lines before row {self.done + total + 1:,}"
            remedy = "check the quotes in these rows, or give the table as Parquet"
            raise DataError(message(f"every line of {self.name} in a row", received, remedy))

    def _refused(self, said: str, ragged: Sequence[arrow_csv.InvalidRow]) -> DataError:
        """Return what pyarrow complained about, as an error of ours."""
        stopped = ragged[-1] if ragged else None
        if stopped is not None and (not self.collect_rejects or _breaks(stopped.text)):
            row = f"row {self.done + stopped.number:,} of {self.name}"
            if breaks := _breaks(stopped.text):
                return _over_lines(row, breaks + 1)
            remedy = (
                f"check the quotes and separators ({self.separator!r}) of that row, or add --rejects FILE"
            )
            expected = f"{stopped.expected_columns} columns in every row"
            return DataError(message(expected, f"{stopped.actual_columns} in {row}", remedy))
        where = re.search(r"Row #(\d+)", said)
        row = f"row {self.done + int(where[1]):,}" if where else f"a row after row {self.done:,}"
        if "UTF8" in said:
            return _not_utf8(f"other bytes in {row} of {self.name}")
        received = f"{said.splitlines()[0][:200]} in {row}"
        return DataError(message(f"a CSV table in {self.name}", received, "check the file"))


CLOSE = 'close it, or write a quote inside a cell twice ("")'

LINE_BREAK = r"\r\n?|\n"

LONE_RETURN = re.compile(rb"\r(?!\n)")


def _breaks(text: str) -> int:
    """Count the line breaks in a text."""
    return len(re.findall(LINE_BREAK, text))


def _line_breaks(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], int]:
    """Return the number of line breaks in each cell, and how many blank lines these make."""
    import pyarrow.compute as pc

    breaks = pc.count_substring_regex(column, LINE_BREAK).to_numpy()
    return breaks, int(breaks.sum()) - _count(column, r"[\r\n]+") if breaks.any() else 0


def _count(column: pa.ChunkedArray, pattern: str) -> int:
    """Count the matches of a pattern in all cells."""
    import pyarrow.compute as pc

    return int(pc.sum(pc.count_substring_regex(column, pattern)).as_py() or 0)


def _over_lines(row: str, lines: int) -> DataError:
    later = "1 line later" if lines == 2 else f"{lines - 1:,} lines later"
    received = f"{lines:,} lines in {row}: a quote that opens there closes {later}"
    remedy = "close that quote; if line breaks belong in the cell, pass --multiline-cells"
    return DataError(message("each row on one line", received, remedy))


def _not_utf8(received: str) -> DataError:
    # Windows' code page has all printable characters of Latin-1 where that has them, and the euro.
    remedy = "give the encoding of the file, for example --encoding cp1252, or save it as UTF-8"
    return DataError(message("text in utf-8", received, remedy))
