"""CSV as pieces of text columns, with what is wrong in a file said in its own terms."""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv as arrow_csv

from veritracer.errors import DataError, listing, message
from veritracer.tablefiles.bytestreams import Counted

BLOCK = 4 << 20
"""Bytes that are parsed at once: also the longest line, so that no line can fill the memory."""

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "pipe"}


def separator_of(text: str) -> str:
    """The character that a person means: itself, or its name."""
    named = {name: character for character, name in SEPARATORS.items()} | {"\\t": "\t"}
    chosen = named.get(text.casefold(), text)
    if len(chosen) != 1 or chosen in '"\n\r':
        remedy = f"write the character, or one of {', '.join(SEPARATORS.values())}"
        raise DataError(message("a separator of one character", repr(text), remedy))
    return chosen


def header(name: str, head: bytes, separator: str) -> tuple[str, ...]:
    """The names of the columns, from the first bytes of the file; refuses what is no header."""
    _check_text(name, head)
    head = head.removeprefix(b"\xef\xbb\xbf")
    line, end, _ = head.partition(b"\n")
    if not end and len(head) >= BLOCK // 4:
        received = f"a first line of more than {len(head) // 2**20 or 1} MiB in {name}"
        raise DataError(message("a table with a line for each row", received, "check that it is a CSV file"))
    try:
        text = line.decode("utf-8").rstrip("\r")
    except UnicodeDecodeError as error:
        raise DataError(_not_utf8(name, f"the byte {line[error.start]:#x} in line 1")) from None
    names = tuple(next(csv.reader([text], delimiter=separator), []))
    _check_header(name, text, names, separator)
    return names


def batches(name: str, stream: Counted, names: tuple[str, ...], separator: str) -> Iterator[pa.RecordBatch]:
    """The rows as pieces of text columns; an empty cell is the empty text.

    Blocks are read and cut here, and not by pyarrow's own thread: that one would still wait for a pipe when
    the program wants to end.
    """
    done = 0
    for block in _blocks(name, stream):
        try:
            table = arrow_csv.read_csv(
                io.BytesIO(block),
                read_options=arrow_csv.ReadOptions(
                    block_size=len(block) + 1, use_threads=False, column_names=names
                ),
                parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types={column: pa.string() for column in names}, strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid as error:
            raise _explained(name, str(error), separator, done) from None
        done += table.num_rows
        yield from table.to_batches()


def _blocks(name: str, stream: Counted) -> Iterator[bytes]:
    """The text without its header, in blocks that end where a row ends."""
    rest, begun = b"", False
    while data := _read(name, stream):
        block = rest + data
        if not begun:
            block, begun = block.partition(b"\n")[2], True
        cut = _last_end(block)
        if cut:
            yield block[:cut]
        rest = block[cut:]
        if len(rest) > BLOCK:
            received = f"a longer one in {name}"
            remedy = "check the quotes: one that is not closed swallows the lines after it"
            raise DataError(message(f"lines of at most {BLOCK >> 20} MiB", received, remedy))
    if rest.strip():
        yield rest


def _read(name: str, stream: Counted) -> bytes:
    try:
        return stream.read(BLOCK)
    except (OSError, EOFError, zlib.error) as error:  # a packed file that breaks off
        raise DataError(message(f"all of {name}", str(error), "copy or pack it again")) from None


def _last_end(block: bytes) -> int:
    """Where the last whole row ends: after a line's end that is not inside of quotes; 0 if there is none."""
    cut = block.rfind(b"\n") + 1
    while cut and block.count(b'"', 0, cut) % 2:
        cut = block.rfind(b"\n", 0, cut - 1) + 1
    return cut


def _check_text(name: str, head: bytes) -> None:
    if not head.strip():
        raise DataError(
            message("a header and rows", f"nothing in {name}", "check what should have written it")
        )
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(_not_utf8(name, "UTF-16"))
    if head.startswith(b"PK\x03\x04"):
        remedy = "export the sheet as CSV, or unpack the archive"
        raise DataError(message("CSV or Parquet", f"a spreadsheet or an archive in {name}", remedy))
    if b"\0" in head:
        remedy = "export the table as CSV or Parquet"
        raise DataError(message("CSV or Parquet", f"another binary file in {name}", remedy))


def _check_header(name: str, text: str, names: tuple[str, ...], separator: str) -> None:
    others = [s for s in SEPARATORS if s != separator and s in text]
    if len(names) == 1 and others:
        found = max(others, key=text.count)
        received = f"one column and {text.count(found)} times a {SEPARATORS[found]} in the header of {name}"
        remedy = f"pass --separator {SEPARATORS[found]}"
        said = SEPARATORS.get(separator, repr(separator))
        raise DataError(message(f"columns separated by a {said}", received, remedy))
    if "" in names:
        received = f"none for column {names.index('') + 1} of {name}"
        raise DataError(message("a name for each column", received, "complete the header"))
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        received = f"{listing(twice)} more than once in {name}"
        raise DataError(message("each column once", received, "rename or drop the duplicates"))


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
    remedy = "save it as UTF-8, for example: iconv -f latin1 -t utf-8 OLD > NEW"
    return message(f"text in UTF-8 in {name}", received, remedy)
