"""Where rows go, piece by piece: a file that appears only when it is whole, or standard output.

Rows that cannot be read go to a file of their own, with the reason of each. That is CSV with the columns of
the table, after ``recourse.row`` (counted from 1) and ``recourse.reason``: corrected, it can be given to the
same verb again.
"""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet

from veritracer.errors import DataError, message
from veritracer.files import is_special, whole_file, writable
from veritracer.tables.reading import ADDED, ROW, STANDARD

if TYPE_CHECKING:
    import pandas as pd

    from veritracer.schema import Schema

Format = Literal["csv", "parquet", "jsonl"]
FORMATS: dict[str, Format] = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl"}


VALUES = b"veritracer.values"
"""Metadata of a field whose texts stand for other values: JSON with ``known`` (text to value) and whether all
other texts are ``numbers``, in their ``format`` if they have one."""

FORMULA = "^[\\s\\x00]*[=+\\-@\uff1d\uff0b\uff0d\uff20]|^[\\t\\r\\n]"
"""Text that a spreadsheet takes for a formula, or may after it was split anew."""

NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"

TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)

TEXT_LIKE = (*TEXT, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)

ROW_NUMBER, REASON = f"{ADDED}row", f"{ADDED}reason"


class Sink(Protocol):
    """Takes a table piece by piece; every piece has the same columns and types."""

    def write(self, piece: pa.Table) -> None:
        """Write one more piece."""
        ...

    def notes(self) -> list[str]:
        """What was changed on the way, in sentences."""
        ...


def format_of(path: str | None) -> Format:
    """What to write, from the name of the file; standard output gets CSV."""
    if path is None or path == STANDARD:
        return "csv"
    suffix = Path(path).suffix.casefold()
    if suffix not in FORMATS and not is_special(Path(path)):
        remedy = "name a file that ends in one of these"
        raise DataError(message(f"an output of the kind {', '.join(FORMATS)}", repr(path), remedy))
    return FORMATS.get(suffix, "csv")


@contextmanager
def open_sink(
    path: str | None, *, kind: Format | None = None, spreadsheet_safe: bool = False, shared: bool = False
) -> Iterator[Sink]:
    """Where to write; ``None`` or ``-`` is standard output.

    The file is written as ``NAME.partial`` and renamed at the end. If anything goes wrong it disappears, and
    what was there before stays. With ``shared`` several processes may write the same file at once.

    With ``spreadsheet_safe`` an apostrophe is put before text that a spreadsheet would take for a formula
    (numbers stay as they are), and ``notes`` says how often. Such text does not read back as it was.
    """
    if path is not None and "://" in path:
        remedy = "name one, or write blocks to a folder there: --workers 1 --out URL"
        raise DataError(message("a file of this machine", path, remedy))
    chosen = kind or format_of(path)
    if spreadsheet_safe and chosen != "csv":
        remedy = "leave it out: only CSV is opened by spreadsheets as if it had been typed"
        raise DataError(message("CSV to make safe for spreadsheets", chosen, remedy))
    if path is None or path == STANDARD:
        with _written(sys.stdout.buffer, chosen, safe=spreadsheet_safe) as sink:
            yield sink
        sys.stdout.flush()
        return
    place = Path(path)
    with (
        writable(place),
        whole_file(place, shared=shared) as file,
        _written(file, chosen, safe=spreadsheet_safe) as sink,
    ):
        yield sink


@contextmanager
def _written(file: BinaryIO, kind: Format, *, safe: bool) -> Iterator[Sink]:
    writer: _Csv | _Parquet | _Lines = (
        _Csv(file, safe) if kind == "csv" else _Parquet(file) if kind == "parquet" else _Lines(file)
    )
    yield writer
    writer.finish()
    file.flush()


class _Csv:
    """CSV, with quotes in those pieces that need them."""

    def __init__(self, file: BinaryIO, safe: bool) -> None:
        self.file, self.safe, self.begun, self.altered = file, safe, False, 0

    def write(self, piece: pa.Table) -> None:
        _check_empty_cells(piece)
        piece = pa.table([_writable(column) for column in piece.columns], names=piece.schema.names)
        if self.safe:
            piece = self._safe(piece)
        if not self.begun:
            # Quotes also around a mark at the very start, which would be taken for the file's own.
            line = io.StringIO()
            names = piece.schema.names
            every = self.safe or names[0].startswith("\ufeff") or any("\r" in name for name in names)
            quoting: Literal[0, 1] = csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL
            csv.writer(line, lineterminator="\n", quoting=quoting).writerow(names)
            self.file.write(line.getvalue().encode())
            self.begun = True
        self.file.write(_as_csv(piece, quoted=self.safe))

    def notes(self) -> list[str]:
        if not self.altered:
            return []
        return [
            f"an apostrophe was put before the text of {self.altered:,} cells that begin like a formula "
            "(--spreadsheet-safe): they do not read back as they were"
        ]

    def finish(self) -> None:
        pass

    def _safe(self, piece: pa.Table) -> pa.Table:
        """The piece with an apostrophe before all text, names included, that begins like a formula."""
        names = pa.chunked_array([piece.schema.names])
        shown, found = _neutral(names)
        self.altered += 0 if self.begun else found
        columns = []
        for column in piece.columns:
            column, found = _neutral(column) if pa.types.is_string(column.type) else (column, 0)
            columns.append(column)
            self.altered += found
        return pa.table(columns, names=shown.to_pylist())


def _neutral(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
    """The text without formulas, and how many cells had to be changed for it; null stays null."""
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
    """What the texts of a field stand for; nothing where they are the values."""
    found: dict[str, Any] = json.loads((field.metadata or {}).get(VALUES, b"{}"))
    return found


def _writable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in a type that CSV has: text in any guise is text."""
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


class _Parquet:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.writer: parquet.ParquetWriter | None = None

    def write(self, piece: pa.Table) -> None:
        piece = piece.cast(pa.schema([field.remove_metadata() for field in piece.schema]))
        if self.writer is None:
            self.writer = parquet.ParquetWriter(self.file, piece.schema)
        self.writer.write_table(piece)

    def notes(self) -> list[str]:
        return []

    def finish(self) -> None:
        if self.writer is not None:
            self.writer.close()


class _Lines:
    """One JSON object on each line."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, piece: pa.Table) -> None:
        columns = [
            [_json_value(cell, meaning) for cell in column.to_pylist()]
            for column, meaning in zip(piece.columns, map(_meaning, piece.schema), strict=True)
        ]
        for row in zip(*columns, strict=True):
            content = dict(zip(piece.schema.names, row, strict=True))
            self.file.write((json.dumps(content, ensure_ascii=False, default=str) + "\n").encode())
        self.file.flush()

    def notes(self) -> list[str]:
        return []

    def finish(self) -> None:
        pass


def _json_value(cell: Any, meaning: dict[str, Any]) -> Any:
    """The cell as JSON has it: the value that a text stands for, and null for what is no number."""
    if meaning and cell is not None:
        known = meaning["known"]
        if cell in known or not meaning["numbers"]:
            return known[cell]
        if "format" not in meaning:
            return json.loads(cell)
        from veritracer.schema.formats import NumberFormat  # here: it brings pandas

        return NumberFormat.of(meaning["format"]).read(cell)
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


class Rejects:
    """Takes rows that cannot be read; ``count`` of them so far."""

    def __init__(self, file: BinaryIO, separator: str) -> None:
        self.file, self.separator, self.count = file, separator, 0
        self.first = ""
        self.width: int | None = None
        self.names: list[str] = []
        self.last = 0
        self.old: list[int] = []
        self._early: list[tuple[int, str, Sequence[str]]] = []

    def begin(self, names: Sequence[str]) -> None:
        """Name the columns of the table: they are known once it is open.

        What an earlier file of rejects said of its rows is not said again.
        """
        self.width, self.names = len(names), list(names)
        self._head()
        for early in self._early:
            self._write(*early)
        self._early = []

    def add(self, number: int, reason: str, cells: Sequence[str]) -> None:
        """Take row ``number`` of the table, for this reason."""
        self.count += 1
        self.first, self.last = self.first or reason, max(self.last, number)
        if self.width is None:
            self._early.append((number, reason, cells))
        else:
            self._write(number, reason, cells)

    def add_ragged(self, number: int, expected: int, found: int, text: str) -> None:
        """Take a row with too few or too many cells; what is too much stays in the last one."""
        cells = next(csv.reader([text], delimiter=self.separator), [])
        self.add(number, f"{found} cells in a table of {expected} columns", cells)

    def without(
        self, frame: pd.DataFrame, chunk: pa.RecordBatch, refused: Mapping[int, str], schema: Schema
    ) -> pd.DataFrame:
        """The rows of a chunk that are not refused; the others are taken as they are in the file."""
        if not refused:
            return frame
        cells = chunk.select([name for name in chunk.schema.names if name != ROW])
        for row, reason in refused.items():
            own = cells.slice(row, 1).to_pylist()[0].values()
            self.add(int(frame.index[row]), reason, ["" if cell is None else str(cell) for cell in own])
        left = frame.drop(index=frame.index[list(refused)])
        numeric = [feature.name for feature in schema.features if feature.is_numeric]
        return left.assign(**{name: _as_numbers(left[name]) for name in numeric if name in left.columns})

    def note(self, place: str) -> list[str]:
        """How many rows were rejected, for a note."""
        if not self.count:
            return []
        rows = "row was" if self.count == 1 else "rows were"
        return [f"{self.count:,} {rows} rejected, see {place}; the first: {self.first}"]

    def _head(self) -> None:
        """Name the columns of the file."""
        self.old = [i for i, name in enumerate(self.names) if name in (ROW_NUMBER, REASON)]
        self._line([ROW_NUMBER, REASON, *(name for name in self.names if name not in (ROW_NUMBER, REASON))])

    def _write(self, number: int, reason: str, cells: Sequence[str]) -> None:
        assert self.width is not None
        kept = [*cells[: self.width], *[""] * (self.width - len(cells))]
        if len(cells) > self.width:
            kept[-1] = self.separator.join(cells[self.width - 1 :])
        own = [cell for i, cell in enumerate(kept) if i not in self.old]
        self._line([str(number), " ".join(reason.split()), *own])

    def _line(self, cells: Sequence[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n", delimiter=self.separator).writerow(cells)
        self.file.write(text.getvalue().encode())


class Partners(Rejects):
    """Takes rows of a table that goes with another one, row by row; they are written in its columns."""

    def __init__(self, whole: Rejects) -> None:
        super().__init__(whole.file, whole.separator)
        self.whole = whole

    def _head(self) -> None:
        """Write nothing: the other table has named the columns."""

    def _write(self, number: int, reason: str, cells: Sequence[str]) -> None:
        own, last = dict(zip(self.names, cells, strict=False)), self.whole.last
        self.whole.add(number, f"its counterfactual: {reason}", [own.get(n, "") for n in self.whole.names])
        self.whole.last = last  # that of its own table


def _as_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """A column of objects as numbers, where only what was rejected made it objects."""
    found = column.infer_objects()
    return found if found.dtype.kind in "iuf" else column


@contextmanager
def open_rejects(path: str | Path | None, separator: str = ",") -> Iterator[Rejects | None]:
    """Where rejected rows go, in a file that appears when it is whole; None where none is asked for."""
    if path is None:
        yield None
        return
    from veritracer.tables.csv_text import separator_of

    place = Path(path)
    with writable(place), whole_file(place) as file:
        yield Rejects(file, separator_of(separator))
