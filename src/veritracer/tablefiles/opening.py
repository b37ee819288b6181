"""A table that is open for reading: its columns, and its rows piece by piece."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from veritracer.errors import DataError, message
from veritracer.tablefiles.bytestreams import STANDARD, Counted, open_bytes
from veritracer.tablefiles.limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 16_384
"""Rows in a piece, at most."""

PARQUET_BUFFER = 1 << 20
"""Bytes of each column that are held at once, so that a long row group does not have to fit into memory."""

UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""How pandas names an index without a name: it numbers rows, and is no column of the table."""


@dataclass(frozen=True)
class Table:
    """An open table.

    Attributes
    ----------
    name
        What messages call it.
    names
        Its columns.
    is_text
        Whether cells are text that still has to be read as numbers (CSV), or have types (Parquet).
    share
        Says how much of it was read so far, from 0 to 1; None where nobody knows.
    pieces
        The rows, in pieces of at most ``ROWS``; once.
    """

    name: str
    names: tuple[str, ...]
    is_text: bool
    share: Callable[[], float | None]
    pieces: Iterator[pa.RecordBatch]


@contextmanager
def open_table(
    path: str,
    *,
    separator: str = ",",
    or_comma: bool = False,
    rows: int = ROWS,
    limits: Limits = Limits(),  # noqa: B008  # frozen
) -> Iterator[Table]:
    """The table in a CSV file (also packed with gzip), a Parquet file, or ``-``: standard input.

    With ``or_comma`` a CSV file without the separator may have commas, as our own have. Refuses a table that
    asks for more than ``limits``, and one whose first piece can not be read: nobody should load a model for
    it.
    """
    name = "standard input" if path == STANDARD else path
    head, stream, size = open_bytes(path, limits)
    with stream:
        from veritracer.tablefiles import csv_text  # here: it brings pyarrow, and no file needs none

        separator = csv_text.separator_of(separator)
        if head.startswith(b"PAR1"):
            with _seekable(path, stream) as file:
                yield _parquet(name, file, rows, limits)
            return
        names, separator, length = csv_text.header(name, head, separator, limits, or_comma)

        def share() -> float | None:
            return stream.consumed / size if size else None

        found = csv_text.batches(name, stream, names, separator, length)
        yield Table(name, names, True, share, _begun(_counted(_sliced(found, rows), name)))


def _parquet(name: str, file: object, rows: int, limits: Limits) -> Table:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        reader = parquet.ParquetFile(file, buffer_size=PARQUET_BUFFER, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        remedy = "it was cut off or altered: write it again"
        raise DataError(message(f"a whole Parquet file in {name}", _first(error), remedy)) from None
    known = reader.metadata
    limits.check_names(name, reader.schema_arrow.names)
    for i in range(known.num_row_groups):
        group = known.row_group(i)
        limits.check_group(name, i + 1, group.num_rows, group.total_byte_size)
    names = tuple(column for column in reader.schema_arrow.names if not UNNAMED_INDEX.fullmatch(column))
    total, done = known.num_rows, [0]

    def pieces() -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader.iter_batches(batch_size=rows):
                done[0] += batch.num_rows
                yield batch.select(names)
        except (pa.ArrowException, OSError) as error:
            remedy = "it was cut off or altered: write it again"
            raise DataError(message(f"a whole Parquet file in {name}", _first(error), remedy)) from None

    return Table(name, names, False, lambda: done[0] / max(total, 1), _begun(_counted(pieces(), name)))


@contextmanager
def _seekable(path: str, stream: Counted) -> Iterator[object]:
    """The file itself, or a copy of the pipe on disk: Parquet is read from its end."""
    if path != STANDARD:
        yield path
        return
    with tempfile.TemporaryFile() as copy:
        while data := stream.read(PARQUET_BUFFER):
            copy.write(data)
        copy.seek(0)
        yield copy


def _sliced(found: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in found:
        for at in range(0, batch.num_rows, rows):
            yield batch.slice(at, rows)


def _counted(found: Iterator[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    """The same pieces; refuses a table without a single row."""
    count = 0
    for batch in found:
        count += batch.num_rows
        yield batch
    if count == 0:
        remedy = "check what should have written it"
        raise DataError(message("at least one row", f"a header and no row in {name}", remedy))


def _begun(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same pieces, the first of which was read."""
    return chain([next(found)], found)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or ["nothing"])[0][:200]
