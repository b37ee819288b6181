"""Open a table wherever it is and read it in batches: CSV, Parquet, or the answer of an SQL database.

Files may be local, behind an fsspec URL or come through standard input, and may be compressed. A table is
compared with the columns of a model before either is read.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from veritracer.errors import DataError, EmptyTableError, as_typed, closest, listing, message, unknown_name
from veritracer.tables.csv_blocks import (
    BLOCK,
    CSVFormat,
    Ragged,
    Rows,
    check_names,
    decoded,
    read_header,
)
from veritracer.tables.places import (
    STANDARD,
    file_system,
    first_line,
    is_url,
    local_path,
    without_password,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

ROWS = 16_384
"""Rows in a batch, at most."""

HEAD = 1 << 20
"""Bytes in which the header of a CSV file has to end."""

ADDED = "recourse."
"""How the names of the columns begin that ``explain`` adds; ``certify`` does not take them for features."""

PARQUET_BUFFER = 1 << 20
"""Bytes of each column that are held at once, so that a long row group does not have to fit into memory."""

UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""How pandas names an index without a name: it numbers rows, and is no column of the table."""


@dataclass(frozen=True)
class TableSource:
    """An open table.

    Attributes
    ----------
    name
        What messages call it; never with a password.
    columns
        The names of its columns.
    batches
        Its rows, in batches of at most ``ROWS``; they can be read once.
    is_text
        Whether every cell is text that still has to be read as a value (CSV), or columns have types.
    share
        Returns how much of the table was read so far, from 0 to 1; None where that is not known.
    start
        The number of rows that come before these, where this is a part of a table.
    """

    name: str
    columns: tuple[str, ...]
    batches: Iterator[pa.RecordBatch]
    is_text: bool = False
    share: Callable[[], float | None] = lambda: None
    start: int = 0


@contextmanager
def open_table(
    place: str,
    query: str | None = None,
    *,
    csv: CSVFormat = CSVFormat(),  # noqa: B008  # frozen
    rows: int = ROWS,
    ragged: Ragged | None = None,
) -> Iterator[TableSource]:
    """Open a table for reading.

    Parameters
    ----------
    place
        A CSV or Parquet file: a path, an fsspec URL or ``-`` for standard input. With ``query`` the
        SQLAlchemy URL of a database. A file is decompressed if its name ends in ``.gz``, ``.bz2``, ``.xz``
        or ``.zip``.
    query
        The SQL query whose answer is the table.
    csv
        How CSV is written.
    rows
        Rows of a batch, at most.
    ragged
        Takes rows of CSV with too few or too many cells; without it they are refused.

    Raises
    ------
    DataError
        If the table cannot be opened, or its first batch cannot be read.
    """
    if query is not None:
        with _open_query(place, query, rows) as source:
            yield _checked(source)
        return
    name = "standard input" if place == STANDARD else without_password(place)
    with _opened(name, place) as file:
        if file.head.startswith(b"PAR1"):
            with file.seekable() as content:
                yield _checked(_parquet(name, content, rows))
        else:
            yield _checked(_csv(name, file, csv, rows, ragged))


def _checked(source: TableSource) -> TableSource:
    """Return the source after its first batch was read; refuse equal columns, and a table without rows."""
    check_names(source.name, source.columns)
    batches = _at_least_one(source.batches, source.name)
    return replace(source, batches=chain([next(batches)], batches))


def _at_least_one(batches: Iterator[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    count = 0
    for batch in batches:
        count += batch.num_rows
        yield batch
    if count == 0:
        remedy = "check the program that wrote it"
        raise EmptyTableError(message("at least one row", f"a header and no row in {name}", remedy))


def rows_digest(batch: pa.RecordBatch) -> str:
    """Return the SHA-256 of the rows as an Arrow stream, without the metadata of their table."""
    import pyarrow as pa

    columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    plain = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_batch(plain)
    return hashlib.sha256(sink.getvalue()).hexdigest()


# ---------------------------------------------------------------- files


class _File:
    """An open file: its first bytes, the rest of it unpacked, and how far it was read."""

    def __init__(
        self, name: str, raw: BinaryIO, packed: str | None, size: int | None, path: str | None
    ) -> None:
        self.name, self.raw, self.size, self.path = name, raw, size, path
        self.position = 0
        self.unpacked = raw if packed is None else _unpacking(packed, raw)
        self.head = self.read(HEAD)

    def read(self, size: int) -> bytes:
        """Return so many bytes; fewer only at the end."""
        data = b""
        try:
            while len(data) < size and (more := self.unpacked.read(size - len(data))):
                data += more
            self.position = self.raw.tell() if self.size else 0
        except (EOFError, zlib.error, OSError) as error:  # broken compressed data are among OSError
            remedy = "it was cut off or altered: write it again"
            raise DataError(message(f"the whole of {self.name}", first_line(error), remedy)) from None
        return data

    def share(self) -> float | None:
        """Return how much of the file was read."""
        return self.position / self.size if self.size else None

    @contextmanager
    def seekable(self) -> Iterator[Any]:
        """Open the file for reading at any position; standard input and packed files are copied to disk."""
        if self.size is not None and self.unpacked is self.raw:
            self.raw.seek(0)
            yield self.path or self.raw
            return
        with tempfile.TemporaryFile() as copy:
            data = self.head
            while data:
                copy.write(data)
                data = self.read(HEAD)
            copy.seek(0)
            yield copy


@contextmanager
def _opened(name: str, place: str) -> Iterator[_File]:
    if place == STANDARD:
        yield _File(name, sys.stdin.buffer, None, None, None)
        return
    from fsspec.utils import infer_compression

    files, path = file_system(place)
    local = not is_url(place)
    try:
        raw = files.open(path, "rb")
        size = files.size(path)
    except FileNotFoundError:
        received = f"no file {local_path(name)}" if local else f"nothing at {name}"
        remedy = "check the name, or pass - for standard input" if local else "check the URL"
        raise DataError(message("a file with a table", received, remedy)) from None
    except IsADirectoryError:
        remedy = "name a CSV or Parquet file in it"
        raise DataError(message("a file with a table", f"the folder {name}", remedy)) from None
    except (OSError, ValueError) as error:
        said = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else first_line(error)
        remedy = "check its permissions" if local else "check the URL and your permissions"
        raise DataError(
            message("a file with a table", f"{name}, which cannot be read ({said})", remedy)
        ) from None
    with raw:
        packed = infer_compression(path)
        yield _File(name, raw, packed, size, path if local and packed is None else None)


def _unpacking(packed: str, raw: BinaryIO) -> BinaryIO:
    from fsspec.compression import compr

    unpacked: BinaryIO = compr[packed](raw, mode="rb")
    return unpacked


def _csv(name: str, file: _File, form: CSVFormat, rows: int, ragged: Ragged | None) -> TableSource:
    chunks = decoded(name, chain([file.head], iter(lambda: file.read(BLOCK), b"")), form.encoding)
    head = next(chunks, b"")
    _check_text(name, head)
    header = read_header(name, head, form)
    found = Rows(name, header, form, ragged).batches(chain([head[header.length :]], chunks))
    return TableSource(name, header.columns, _sliced(found, rows), is_text=True, share=file.share)


def _check_text(name: str, head: bytes) -> None:
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


def _sliced(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for at in range(0, batch.num_rows, rows):
            yield batch.slice(at, rows)


def _parquet(name: str, content: Any, rows: int) -> TableSource:
    import pyarrow as pa
    from pyarrow import parquet

    def damaged(error: Exception) -> DataError:
        remedy = "it was cut off or altered: write it again"
        return DataError(message(f"a whole Parquet file in {name}", first_line(error), remedy))

    try:
        reader = parquet.ParquetFile(content, buffer_size=PARQUET_BUFFER, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise damaged(error) from None
    columns = tuple(column for column in reader.schema_arrow.names if not UNNAMED_INDEX.fullmatch(column))
    total, done = max(reader.metadata.num_rows, 1), [0]

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader.iter_batches(batch_size=rows):
                done[0] += batch.num_rows
                yield batch.select(columns)
        except (pa.ArrowException, OSError) as error:
            raise damaged(error) from None

    return TableSource(name, columns, batches(), share=lambda: done[0] / total)


# ---------------------------------------------------------------- databases


@contextmanager
def _open_query(place: str, query: str, rows: int) -> Iterator[TableSource]:
    """Open the answer to a query; numbers in the type Decimal become floats."""
    try:
        import sqlalchemy as sa
    except ModuleNotFoundError:
        remedy = "pip install 'veritracer[ledger]'"
        raise DataError(message("the package sqlalchemy", "an install without it", remedy)) from None
    import pandas as pd

    name = without_password(place)
    with ExitStack() as stack:
        with _database_errors(name):
            url = sa.make_url(place)
            if url.drivername == "postgresql":
                url = url.set(drivername="postgresql+psycopg")
            if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
                raise DataError(message("a SQLite file", f"no file {url.database}", "check its name"))
            engine = sa.create_engine(url).execution_options(stream_results=True, no_parameters=True)
            stack.callback(engine.dispose)
            connection = stack.enter_context(engine.connect())
            found = pd.read_sql_query(query, connection, chunksize=rows, dtype_backend="pyarrow")
            first = next(found)
        yield TableSource(name, tuple(map(str, first.columns)), _as_batches(name, chain([first], found)))


def _as_batches(name: str, frames: Iterator[pd.DataFrame]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an answer; refuse a column that has numbers in one batch and text in another."""
    import pyarrow as pa

    known: dict[str, pa.DataType] = {}
    with _database_errors(name):
        for frame in frames:
            batch = pa.RecordBatch.from_pandas(frame, preserve_index=False).replace_schema_metadata()
            for i, (column, cells) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
                if cells.null_count == len(cells):  # pandas takes these for text
                    batch = batch.set_column(i, column, pa.nulls(len(cells)))
                elif not _go_together(known.setdefault(column, cells.type), cells.type):
                    received = f"{known[column]} and then {cells.type} in {column!r} of {name}"
                    remedy = "cast the column in the query"
                    raise DataError(message("columns whose cells are of one type", received, remedy))
            if batch.num_rows:
                yield batch


def _go_together(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two types are the same, or both of numbers."""
    import pyarrow as pa

    return one == other or all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in (one, other))


@contextmanager
def _database_errors(name: str) -> Iterator[None]:
    """Turn errors of a database and its driver into one sentence."""
    import pandas as pd
    import sqlalchemy as sa

    try:
        yield
    except (
        sa.exc.SQLAlchemyError,
        pd.errors.DatabaseError,
        ModuleNotFoundError,
        UnicodeDecodeError,
    ) as error:
        cause = error.__cause__ or error
        received = first_line(getattr(cause, "orig", None) or cause)
        remedy = "check the URL, the query, and that the driver of the database is installed"
        raise DataError(message(f"an answer from {name}", received, remedy)) from None


# ---------------------------------------------------------------- the columns of a model


class Columns(Protocol):
    """The columns that a model reads: a ``Schema``, or what is known of it before it is loaded."""

    @property
    def names(self) -> tuple[str, ...]:
        """The features."""
        ...

    @property
    def target(self) -> str | None:
        """The column of the decision, which may be in the table."""
        ...

    @property
    def ignored_names(self) -> tuple[str, ...]:
        """Columns that may be in the table and are not read."""
        ...


def check_columns(
    table: TableSource, known: Columns, keep: Sequence[str], ignore: Sequence[str] = ()
) -> None:
    """Refuse a table without all features of a model, and columns that were not mentioned."""
    check_ignored(table, known, ignore)
    absent = [name for name in known.names if name not in table.columns]
    named = {*known.names, known.target, *known.ignored_names, *keep, *ignore}
    extra = [name for name in table.columns if name not in named and not name.startswith(ADDED)]
    unknown = [name for name in keep if name not in table.columns]
    if unknown:
        received = f"no {listing(unknown)} in {table.name}"
        raise DataError(message("columns to keep that exist", received, "check their spelling"))
    features = [name for name in keep if name in known.names]
    if features:
        remedy = "leave them out of --keep: their values are in the output"
        raise DataError(message("columns to keep that are no features", listing(features), remedy))
    expected = f"the {len(known.names)} columns of the model in {table.name}"
    if absent:
        close = closest(absent[0], extra)
        remedy = f"was {close!r} meant?" if close else f"add {listing(absent)}"
        raise DataError(message(expected, f"no {listing(absent)}", remedy))
    if extra:
        typed = as_typed(extra[:3])
        remedy = f"carry it along with --keep {typed}, or leave it out with --ignore {typed}"
        raise DataError(message(expected, f"{listing(extra)} too", remedy))


def check_ignored(table: TableSource, known: Columns, ignore: Sequence[str]) -> None:
    """Refuse to ignore columns that do not exist, and features of the model."""
    for name in ignore:
        if name not in table.columns:
            raise DataError(unknown_name(f"a column of {table.name} to ignore", name, table.columns))
    features = [name for name in ignore if name in known.names]
    if features:
        remedy = "fit a model without it, or leave it out of --ignore"
        raise DataError(message("columns to ignore that the model does not read", listing(features), remedy))


def check_pairs(
    originals: TableSource,
    counterfactuals: TableSource,
    known: Columns,
    keep: Sequence[str],
    ignore: Sequence[str],
) -> None:
    """Refuse two tables that do not have the columns of the model; only the first must have all others."""
    check_columns(originals, known, keep, ignore)
    both = [[name for name in names if name in counterfactuals.columns] for names in (keep, ignore)]
    check_columns(counterfactuals, known, *both)


def check_ids(table: TableSource, name: str) -> None:
    """Refuse a table without the column that identifies people."""
    if name not in table.columns:
        received = f"no {name!r} in {table.name}"
        close = closest(name, table.columns)
        advice = "name the column with the number or key of each application"
        remedy = f"was {close!r} meant?" if close else advice
        raise DataError(message("a column that identifies the rows", received, remedy))
