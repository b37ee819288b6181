"""Read tables wherever they are in batches: CSV, Parquet, or the answer of an SQL database.

Files may be local, behind an fsspec URL or come through standard input, and may be compressed. Batches depend
on the number of rows in each alone, and not on how a file is cut.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from veritracer.errors import DataError, EmptyTableError, message
from veritracer.options import BATCH_ROWS
from veritracer.tables.csv_blocks import BLOCK, CSVFormat, CSVReader, check_names
from veritracer.tables.jobs import ROW, Batch, integer_column
from veritracer.tables.places import (
    STANDARD,
    file_system,
    find_tables,
    first_line,
    is_url,
    local_path,
    without_password,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

HEAD = 1 << 20
"""Bytes in which the header of a CSV file has to end."""

PARQUET_BUFFER = 1 << 20
"""Bytes of each column that are held at once, so that a long row group does not have to fit into memory."""

PARQUET_ROWS = 16_384
"""Rows of a Parquet file that are read at once."""

UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""How pandas names an index without a name: it numbers rows, and is no column of the table."""


@dataclass(frozen=True)
class TableSource:
    """One table or many, to be read in batches as often as needed.

    Attributes
    ----------
    place
        A CSV or Parquet file: a path, an fsspec URL or ``-`` for standard input; or a folder or a pattern of
        such files. With ``query`` the SQLAlchemy URL of a database. A file is decompressed if its name ends
        in ``.gz``, ``.bz2``, ``.xz`` or ``.zip``.
    query
        The SQL query whose answer is the table.
    csv
        How CSV is written.
    check
        Called with the name and the columns of every table before its rows are used.
    batch_rows
        Rows of a batch.
    collect_rejects
        Whether rows that cannot be parsed are collected; otherwise they are refused.
    """

    place: str
    query: str | None = None
    csv: CSVFormat = field(default_factory=CSVFormat)
    check: Callable[[str, Sequence[str]], None] = lambda table, columns: None
    batch_rows: int = BATCH_ROWS
    collect_rejects: bool = False

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of all tables; tables without rows are left out unless all are."""
        found, empty = find_tables(self.place, self.query), 0
        for index, (name, place) in enumerate(found.items()):
            try:
                for number, batch in enumerate(self._read(place)):
                    share = None if batch.share is None else (index + batch.share) / len(found)
                    digest = rows_digest(batch.rows)
                    yield replace(batch, source=name, number=number, share=share, digest=digest)
            except EmptyTableError:
                empty += 1
                if empty == len(found):
                    raise

    def check_first(self) -> tuple[str, ...]:
        """Check the first table without reading more of it than its start, and return its columns."""
        place = next(iter(find_tables(self.place, self.query).values()))
        with closing(self._read(place)) as batches:
            return next(batches).columns

    def _read(self, place: str) -> Generator[Batch]:
        return read_batches(
            place,
            self.query,
            csv=self.csv,
            check=self.check,
            rows=self.batch_rows,
            collect_rejects=self.collect_rejects,
        )

    def document(self) -> dict[str, Any]:
        """Return what has to be the same when a run continues; a digest stands for URLs with passwords."""
        place = self.place if is_url(self.place) else str(Path(self.place).absolute())
        digest = hashlib.sha256(json.dumps([place, self.query]).encode()).hexdigest()
        return {"table": digest, "batch_rows": self.batch_rows}


def read_batches(
    place: str,
    query: str | None = None,
    *,
    csv: CSVFormat = CSVFormat(),  # noqa: B008  # frozen
    check: Callable[[str, Sequence[str]], None] = lambda table, columns: None,
    rows: int = BATCH_ROWS,
    collect_rejects: bool = False,
) -> Generator[Batch]:
    """Yield a single table in batches of so many rows, whose column ``ROW`` counts them from 1.

    The parameters are those of :class:`TableSource`.

    Raises
    ------
    EmptyTableError
        If the table has no row that can be parsed.
    DataError
        If the table cannot be read.
    """
    pieces = _file(place, csv, collect_rejects) if query is None else _query(place, query, rows)
    is_empty = True
    with closing(pieces):
        first = list(islice(pieces, 1))
        for piece in first:
            check(piece.table, piece.columns)
        for batch in rebatched(_numbered(chain(first, pieces)), rows):
            is_empty = False
            yield batch
    if is_empty:
        remedy = "check the program that wrote it"
        received = f"a header and no row in {without_password(place)}"
        raise EmptyTableError(message("at least one row", received, remedy))


def _numbered(pieces: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches with the numbers of their rows; CSV, of which rows may be left out, has them already."""
    done = 0
    for piece in pieces:
        if ROW in piece.rows.schema.names:
            yield piece
            continue
        numbers = integer_column(np.arange(done + 1, done + 1 + piece.rows.num_rows))
        done += piece.rows.num_rows
        yield replace(piece, rows=piece.rows.append_column(ROW, numbers))


def rebatched(pieces: Iterable[Batch], rows: int) -> Iterator[Batch]:
    """Yield the same rows in batches of so many, the last one of what is left."""
    waiting: list[Batch] = []
    count = 0
    for piece in pieces:
        waiting.append(piece)
        count += piece.rows.num_rows
        if count > rows:  # rejects behind the last row belong to the last batch
            whole = joined(waiting)
            while whole.rows.num_rows > rows:
                batch, whole = split(whole, int(whole.row_numbers[rows - 1]))
                yield batch
            waiting, count = [whole], whole.rows.num_rows
    if count:
        last = joined(waiting)
        yield replace(last, rows=compact(last.rows))


def joined(batches: Sequence[Batch]) -> Batch:
    """Return the rows and rejects of consecutive batches as one."""
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    tables = [pa.Table.from_batches([batch.rows]) for batch in batches if batch.rows.num_rows]
    (rows,) = pa.concat_tables(tables, promote_options="permissive").combine_chunks().to_batches()
    rejects = tuple(reject for batch in batches for reject in batch.rejects)
    return replace(batches[-1], rows=rows, rejects=rejects)


def split(batch: Batch, last: int) -> tuple[Batch, Batch]:
    """Return the rows and rejects up to the row of this number, and the others."""
    count = int(batch.row_numbers.searchsorted(last, side="right"))
    early = tuple(reject for reject in batch.rejects if reject.number <= last)
    late = tuple(reject for reject in batch.rejects if reject.number > last)
    first = replace(batch, rows=compact(batch.rows.slice(0, count)), rejects=early)
    return first, replace(batch, rows=batch.rows.slice(count), rejects=late)


def compact(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows and nothing besides: a slice would be pickled with all that it is cut from."""
    return rows.take(integer_column(np.arange(rows.num_rows)))


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


def _file(place: str, csv: CSVFormat, collect_rejects: bool) -> Generator[Batch]:
    """Yield the rows of a CSV or Parquet file as they come."""
    name = "standard input" if place == STANDARD else without_password(place)
    with _opened(name, place) as file:
        if file.head.startswith(b"PAR1"):
            with file.seekable() as content:
                yield from _parquet(name, content)
            return
        chunks = chain([file.head], iter(lambda: file.read(BLOCK), b""))
        for batch in CSVReader(name, csv, collect_rejects=collect_rejects).batches(chunks):
            yield replace(batch, share=file.share())


def _parquet(name: str, content: Any) -> Iterator[Batch]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        reader = parquet.ParquetFile(content, buffer_size=PARQUET_BUFFER, pre_buffer=False)
        columns = [column for column in reader.schema_arrow.names if not UNNAMED_INDEX.fullmatch(column)]
        check_names(name, columns)
        done = 0
        for rows in reader.iter_batches(batch_size=PARQUET_ROWS):
            done += rows.num_rows
            yield Batch(name, rows.select(columns), share=done / reader.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        remedy = "it was cut off or altered: write it again"
        expected = f"a whole Parquet file in {name}"
        raise DataError(message(expected, first_line(error), remedy)) from None


# ---------------------------------------------------------------- databases


def _query(place: str, query: str, rows: int) -> Generator[Batch]:
    """Yield the rows of the answer to a query; numbers in the type Decimal become floats."""
    try:
        import sqlalchemy as sa
    except ModuleNotFoundError:
        remedy = "pip install 'veritracer[ledger]'"
        raise DataError(message("the package sqlalchemy", "an install without it", remedy)) from None
    import pandas as pd

    name = without_password(place)
    with ExitStack() as stack, _database_errors(name):
        url = sa.make_url(place)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if url.get_backend_name() == "sqlite" and not Path(str(url.database)).is_file():
            raise DataError(message("a SQLite file", f"no file {url.database}", "check its name"))
        engine = sa.create_engine(url).execution_options(stream_results=True, no_parameters=True)
        stack.callback(engine.dispose)
        connection = stack.enter_context(engine.connect())
        types: dict[str, pa.DataType] = {}
        for frame in pd.read_sql_query(query, connection, chunksize=rows, dtype_backend="pyarrow"):
            frame.columns = frame.columns.map(str)
            yield Batch(name, _one_type_each(frame, name, types))


def _one_type_each(frame: pd.DataFrame, name: str, types: dict[str, pa.DataType]) -> pa.RecordBatch:
    """Return the rows; refuse a column that has numbers in one batch and text in another."""
    import pyarrow as pa

    check_names(name, list(frame.columns))
    batch = pa.RecordBatch.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    for i, (column, cells) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        if cells.null_count == len(cells):  # pandas takes these for text
            batch = batch.set_column(i, column, pa.nulls(len(cells)))
        elif not _go_together(types.setdefault(column, cells.type), cells.type):
            received = f"{types[column]} and then {cells.type} in {column!r} of {name}"
            remedy = "cast the column in the query"
            raise DataError(message("columns whose cells are of one type", received, remedy))
    return batch


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
