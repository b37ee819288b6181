"""Write tables piece by piece to CSV, Parquet or JSON lines: a file appears only when it is whole."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from veritracer.errors import DataError, message
from veritracer.files import NOTHING_WRITTEN, is_special, whole_file, writable
from veritracer.tables.jobs import ADDED, Reject
from veritracer.tables.places import STANDARD

Format = Literal["csv", "parquet", "jsonl"]
FORMATS: dict[str, Format] = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl"}


VALUES = b"veritracer.values"
"""Metadata of a field whose texts stand for other values: JSON with ``known`` (text to value) and whether all
other texts are ``numbers``, in their ``format`` if they have one."""

FORMULA = "^[\\s\\x00]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\\t\\r\\n]"
"""Text that a spreadsheet takes for a formula, or may after it was split anew."""

ROW_NUMBER, REASON = f"{ADDED}row", f"{ADDED}reason"
"""The first columns of a file of rejected rows."""

NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"

TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)

TEXT_LIKE = (*TEXT, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)


class Sink:
    """Take a table piece by piece; every piece has the same columns and types."""

    altered = 0
    """Cells that were changed to be safe for spreadsheets."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, piece: pa.Table) -> None:
        """Write one more piece."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what comes after all pieces."""


def format_of(path: str | None) -> Format:
    """Return the format that the name of a file asks for; standard output gets CSV."""
    if path is None or path == STANDARD:
        return "csv"
    suffix = Path(path).suffix.casefold()
    if suffix not in FORMATS and not is_special(Path(path)):
        remedy = "name a file that ends in one of these"
        raise DataError(message(f"an output of the kind {', '.join(FORMATS)}", repr(path), remedy))
    return FORMATS.get(suffix, "csv")


@contextmanager
def open_sink(
    path: str | None,
    *,
    kind: Format | None = None,
    spreadsheet_safe: bool = False,
    header: bool = True,
    remedy: str = NOTHING_WRITTEN,
) -> Iterator[Sink]:
    """Open a table for writing.

    Parameters
    ----------
    path
        The file, written as ``NAME.partial`` and renamed at the end: if anything goes wrong it disappears,
        and what was there before stays. None and ``-`` are standard output.
    kind
        The format; by default the name of the file decides.
    spreadsheet_safe
        Whether to put an apostrophe before text that a spreadsheet would take for a formula. Numbers stay as
        they are. Such text does not read back as it was; ``Sink.altered`` counts the cells.
    header
        Whether CSV begins with the names of its columns; a part of a file has none.
    remedy
        What to do where the file cannot be written.
    """
    if path is not None and "://" in path:
        remedy = "name one, or a folder there, in which each batch is a file"
        raise DataError(message("a local file", path, remedy))
    chosen = kind or format_of(path)
    if spreadsheet_safe and chosen != "csv":
        remedy = "leave it out: only CSV is opened by spreadsheets as if it had been typed"
        raise DataError(message("CSV to make safe for spreadsheets", chosen, remedy))
    if path is None or path == STANDARD:
        with _written(sys.stdout.buffer, chosen, safe=spreadsheet_safe, header=header) as sink:
            yield sink
        sys.stdout.flush()
        return
    place = Path(path)
    with (
        writable(place, remedy),
        whole_file(place) as file,
        _written(file, chosen, safe=spreadsheet_safe, header=header) as sink,
    ):
        yield sink


@contextmanager
def _written(file: BinaryIO, kind: Format, *, safe: bool, header: bool) -> Iterator[Sink]:
    writers: dict[Format, Callable[[BinaryIO], Sink]] = {"parquet": _Parquet, "jsonl": _Lines}
    writer = _Csv(file, safe, header) if kind == "csv" else writers[kind](file)
    yield writer
    writer.finish()
    file.flush()


def join_parts(
    path: Path, parts: Sequence[Path], names: Sequence[str], kind: Format, *, spreadsheet_safe: bool = False
) -> None:
    """Write one file of several that have the same columns; CSV parts have no header."""
    with whole_file(path) as file:
        if kind == "parquet":
            _join_parquet(file, parts)
            return
        if kind == "csv":
            writer = _Csv(file, spreadsheet_safe, header=True)
            writer.begin(list(names))
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)


def _join_parquet(file: BinaryIO, parts: Sequence[Path]) -> None:
    """Join Parquet files; a column of gaps alone, which has no type, gets that of the others."""
    schema = pa.unify_schemas([parquet.read_schema(part) for part in parts], promote_options="permissive")
    with parquet.ParquetWriter(file, schema) as writer:
        for part in parts:
            writer.write_table(parquet.ParquetFile(part).read().cast(schema))


class _Csv(Sink):
    """Write CSV, with quotes in those pieces that need them."""

    def __init__(self, file: BinaryIO, safe: bool, header: bool) -> None:
        super().__init__(file)
        self.safe, self.begun = safe, not header

    def begin(self, names: list[str]) -> None:
        """Write the header."""
        if self.safe:
            neutral, found = _neutral(pa.chunked_array([names]))
            names, self.altered = neutral.to_pylist(), self.altered + found
        # Quotes also around a mark at the very start, which would be taken for the file's own.
        line = io.StringIO()
        every = self.safe or names[0].startswith("\ufeff") or any("\r" in name for name in names)
        quoting: Literal[0, 1] = csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL
        csv.writer(line, lineterminator="\n", quoting=quoting).writerow(names)
        self.file.write(line.getvalue().encode())
        self.begun = True

    def write(self, piece: pa.Table) -> None:
        _check_empty_cells(piece)
        names = piece.schema.names
        if not self.begun:
            self.begin(names)
        columns = [_writable(column) for column in piece.columns]
        piece = pa.table(self._safe(columns) if self.safe else columns, names=names)
        self.file.write(_as_csv(piece, quoted=self.safe))

    def _safe(self, columns: list[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
        """Return the columns with an apostrophe before all text that begins like a formula."""
        shown = []
        for column in columns:
            column, found = _neutral(column) if pa.types.is_string(column.type) else (column, 0)
            shown.append(column)
            self.altered += found
        return shown


def altered_note(count: int) -> list[str]:
    """Return a note on so many cells that were made safe for spreadsheets."""
    if not count:
        return []
    return [
        f"an apostrophe was put before the text of {count:,} cells that begin like a formula "
        "(--spreadsheet-safe): they do not read back as they were"
    ]


def _neutral(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """Return the text without formulas, and the number of cells that were changed; null stays null."""
    like = pc.match_substring_regex(column, FORMULA)
    risky = pc.fill_null(pc.and_not(like, pc.match_substring_regex(column, NUMBER)), False)
    return pc.if_else(risky, pc.binary_join_element_wise("'", column, ""), column), pc.sum(risky).as_py() or 0


def _check_empty_cells(piece: pa.Table) -> None:
    """Refuse an empty cell in a column in which the empty text is a value."""
    for field, column in zip(piece.schema, piece.columns, strict=True):
        if column.null_count and "" in _meaning(field).get("known", {}):
            received = f"empty cells beside the value '' in the column {field.name!r}"
            remedy = "write Parquet or JSON lines, which tell them apart"
            raise DataError(message("values that CSV can tell apart", received, remedy))


def _meaning(field: pa.Field) -> dict[str, Any]:
    """Return what the texts of a field stand for; nothing where they are the values."""
    found: dict[str, Any] = json.loads((field.metadata or {}).get(VALUES, b"{}"))
    return found


def _writable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column in a type that CSV has: every kind of text as text."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if any(is_kind(kind) for is_kind in TEXT_LIKE):
        return column.cast(kind).cast(pa.string())
    return column


def _as_csv(piece: pa.Table, *, quoted: bool = False) -> bytes:
    for style in ("needed",) if quoted else ("none", "needed"):
        out = io.BytesIO()
        options = arrow_csv.WriteOptions(include_header=False, quoting_style=style)
        try:
            arrow_csv.write_csv(piece, out, write_options=options)
        except pa.ArrowInvalid:  # a separator, a quote or a line's end inside of a cell
            continue
        text = out.getvalue()
        if b"\0" in text:
            received, remedy = "a cell with the character NUL", "write Parquet, which can hold it"
            raise DataError(message("text that CSV can hold", received, remedy))
        return text
    kinds = ", ".join(sorted({str(kind) for kind in piece.schema.types if pa.types.is_nested(kind)}))
    remedy = "write Parquet, or leave these columns out"
    raise DataError(message("columns that CSV can hold", kinds or "others", remedy))


class _Parquet(Sink):
    writer: parquet.ParquetWriter | None = None

    def write(self, piece: pa.Table) -> None:
        piece = piece.cast(pa.schema([field.remove_metadata() for field in piece.schema]))
        if self.writer is None:
            self.writer = parquet.ParquetWriter(self.file, piece.schema)
        self.writer.write_table(piece)

    def finish(self) -> None:
        if self.writer is not None:
            self.writer.close()


class _Lines(Sink):
    """Write one JSON object on each line."""

    def write(self, piece: pa.Table) -> None:
        columns = [
            [_json_value(cell, meaning) for cell in column.to_pylist()]
            for column, meaning in zip(piece.columns, map(_meaning, piece.schema), strict=True)
        ]
        for row in zip(*columns, strict=True):
            content = dict(zip(piece.schema.names, row, strict=True))
            self.file.write((json.dumps(content, ensure_ascii=False, default=str) + "\n").encode())
        self.file.flush()


def _json_value(cell: Any, meaning: dict[str, Any]) -> Any:
    """Return the cell as JSON has it: the value that a text stands for, and null for NaN and infinities."""
    if meaning and cell is not None:
        known = meaning["known"]
        if cell in known or not meaning["numbers"]:
            return known[cell]
        if "format" not in meaning:
            return json.loads(cell)
        from veritracer.schema.number_formats import NumberFormat  # here: it brings pandas

        return NumberFormat.of(meaning["format"]).read(cell)
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


# ---------------------------------------------------------------- rejected rows


@contextmanager
def open_rejects(place: str | Path | None) -> Iterator[list[Reject] | None]:
    """Open a file for rejected rows: those that are in the list when the block ends are written.

    The file appears when it is whole. Its columns are the number and the reason of each row, and those of the
    tables: corrected, it can be given to the same command again. Without a place there is no list.
    """
    if place is None:
        yield None
        return
    with writable(Path(place)), whole_file(Path(place)) as file:
        rejects: list[Reject] = []
        yield rejects
        first = [ROW_NUMBER, REASON]
        columns = dict.fromkeys([*first, *(name for reject in rejects for name in reject.cells)])
        text = io.StringIO()
        writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
        writer.writeheader()
        for number, reason, cells in rejects:
            writer.writerow({**cells, ROW_NUMBER: number, REASON: " ".join(reason.split())})
        file.write(text.getvalue().encode())


def rejects_note(rejects: Sequence[Reject], place: str) -> list[str]:
    """Return a note that says how many rows were rejected, with the reason of the first."""
    if not rejects:
        return []
    rows = "row was" if len(rejects) == 1 else "rows were"
    return [f"{len(rejects):,} {rows} rejected, see {place}; the first: {rejects[0].reason}"]
