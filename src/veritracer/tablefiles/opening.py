"""A table that is open for reading: its columns, and its rows chunk by chunk, refused where it asks too much.

A few bytes can stand for very many: gzip packs a thousand to one, and a page of a Parquet file can declare a
billion equal rows. So bytes are counted, unpacked, and looked at before they are read. Every limit is far
above what honest tables need, and its message names a way around it. A table is held against the columns of
the model that is to read it before either is read.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import os
import re
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from veritracer.errors import DataError, EmptyTableError, as_typed, closest, listing, message, unknown_name
from veritracer.tablefiles import places

if TYPE_CHECKING:
    import pyarrow as pa


UNKNOWN = 16 << 30
"""Bytes of memory that are assumed where the system does not tell."""

CONTAINER = Path("/sys/fs/cgroup/memory.max")


@cache
def _half_of_the_memory() -> int:
    """Half of what this machine, or the container on it, has."""
    known = hasattr(os, "sysconf")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else UNKNOWN
    allowed = CONTAINER.read_text().strip() if CONTAINER.exists() else ""
    return min(memory, int(allowed) if allowed.isdigit() else memory) // 2


@dataclass(frozen=True)
class Limits:
    """The limits of one table; those of :func:`open_table` are ``Limits()``.

    Attributes
    ----------
    columns
        Columns of a table.
    unpacked
        How many times its own size a gzip file may unpack to, beyond the first ``unpacked_free`` bytes.
    unpacked_free
        Bytes that any gzip file may unpack to.
    group_rows, group_bytes
        Rows of one row group of a Parquet file, and its unpacked bytes, as the file declares them.
    whole
        Bytes of a table that is read as a whole, to learn from; None is half of the machine's memory.
    """

    columns: int = 10_000
    unpacked: int = 200
    unpacked_free: int = 64 << 20
    group_rows: int = 1 << 26
    group_bytes: int = 8 << 30
    whole: int | None = None

    def check_names(self, name: str, names: Sequence[str]) -> None:
        """Refuse too many columns, and columns of the same name."""
        if len(names) > self.columns:
            remedy = "leave out the columns that are no features"
            received = f"{len(names):,} in {name}"
            raise DataError(message(f"at most {self.columns:,} columns", received, remedy))
        twice = sorted(column for column, count in Counter(names).items() if count > 1)
        if twice:
            received = f"{listing(twice)} more than once in {name}"
            raise DataError(message("each column once", received, "rename or drop the duplicates"))

    def check_unpacked(self, name: str, packed: int, unpacked: int) -> None:
        """Refuse a gzip file that unpacks to far more than tables do."""
        if unpacked > max(self.unpacked_free, self.unpacked * packed):
            expected = f"a gzip file that unpacks to at most {self.unpacked} times its size"
            received = f"{unpacked >> 20:,} MiB from the first {packed:,} bytes of {name}"
            raise DataError(message(expected, received, "unpack it first if that is meant (gunzip)"))

    def check_group(self, name: str, number: int, rows: int, size: int) -> None:
        """Refuse a row group of a Parquet file that declares absurdly much."""
        if rows > self.group_rows or size > self.group_bytes:
            expected = f"row groups of at most {self.group_rows:,} rows and {self.group_bytes >> 30} GiB"
            received = f"{rows:,} rows and {size / 2**30:.1f} GiB in group {number} of {name}"
            remedy = (
                "write the file in smaller groups: pyarrow.parquet.write_table(..., row_group_size=100_000)"
            )
            raise DataError(message(expected, received, remedy))

    def check_whole(self, name: str, size: int) -> None:
        """Refuse a table that would fill the memory when it is read as a whole."""
        most = _half_of_the_memory() if self.whole is None else self.whole
        if size > most:
            half = ", half of the memory" if self.whole is None else ""
            expected = f"a table of at most {most / 2**30:.3g} GiB{half} to read as a whole"
            remedy = "give a sample of its rows"
            raise DataError(message(expected, f"more in {name}", remedy))


# ---------------------------------------------------------------- bytes from a file or from standard input


STANDARD = "-"
"""The name that stands for standard input, or for standard output."""

HEAD = 1 << 20
"""Bytes that are looked at in order to find out what a file is; a header has to fit into them."""


class Counted(io.RawIOBase):
    """A stream that starts with ``head`` and goes on with ``rest``, and knows how far it is."""

    def __init__(self, head: bytes, rest: BinaryIO, measured: BinaryIO) -> None:
        self.head, self.rest, self.measured = io.BytesIO(head), rest, measured
        self.behind = 0

    def readable(self) -> bool:
        """True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes; fewer only at the end."""
        first = self.head.read(size)
        missing = size - len(first) if size >= 0 else -1
        data = first + self.rest.read(missing) if missing else first
        self.behind += len(data)
        return data

    def close(self) -> None:
        """Close what is below, unless it is standard input."""
        if self.measured is not sys.stdin.buffer:
            self.rest.close()
            self.measured.close()
        super().close()

    @property
    def consumed(self) -> int:
        """How many bytes of the file (packed ones, where it is packed) were read."""
        try:
            return self.measured.tell()
        except (OSError, ValueError):  # a pipe has no position, a closed file neither
            return self.behind


def open_bytes(path: str, limits: Limits) -> tuple[bytes, Counted, int | None]:
    """The first bytes of the file, the stream of all of them, and the size of the file where it has one."""
    size: int | None = None
    name = places.without_password(path)
    if path == STANDARD:
        measured: BinaryIO = sys.stdin.buffer
    elif "://" in path:
        measured, size = places.open_url(path)
    else:
        measured = _opened(path)
        size = Path(path).stat().st_size
    first = measured.read(2)
    rest: BinaryIO = measured
    if first == b"\x1f\x8b":
        rest, first = _Unpacked(name, first, measured, limits), b""  # type: ignore[assignment]  # reads alike
    try:
        head = first + rest.read(HEAD - len(first))
        marked = next((codec for mark, codec in MARKS if head.startswith(mark)), None)
        if marked is not None:
            recoded: BinaryIO = _Recoded(name, marked, head, rest)  # type: ignore[assignment]  # reads alike
            head, rest = recoded.read(HEAD), recoded
    except (OSError, EOFError, zlib.error, DataError) as error:
        Counted(b"", rest, measured).close()
        if isinstance(error, DataError):
            raise
        raise DataError(message(f"a whole gzip file in {name}", str(error), "pack it again")) from None
    return head, Counted(head, rest, measured), size


MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
"""The marks at the start of a file that tell its encoding; that of UTF-8 is dropped where rows are read."""


class _Recoded(io.RawIOBase):
    """Text in another encoding, told by its mark, as UTF-8."""

    def __init__(self, name: str, codec: str, head: bytes, rest: BinaryIO) -> None:
        self.name, self.codec, self.source = name, codec, _Joined(head, rest)
        self.decoder = codecs.getincrementaldecoder(codec)("strict")
        self.ready, self.ended = b"", False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.source.parts[1].close()
        super().close()

    def read(self, size: int = -1) -> bytes:
        while not self.ended and (size < 0 or len(self.ready) < size):
            data = self.source.read(HEAD)
            self.ended = not data
            try:
                self.ready += self.decoder.decode(data, final=self.ended).encode()
            except UnicodeError as error:
                received = f"bytes that are none ({str(error)[:80]})"
                expected = f"{self.codec.upper()}, as the mark at its start says, in {self.name}"
                raise DataError(message(expected, received, "save it again, best as UTF-8")) from None
        cut = len(self.ready) if size < 0 else size
        found, self.ready = self.ready[:cut], self.ready[cut:]
        return found


class _Unpacked(io.RawIOBase):
    """What is packed in some bytes and a stream after them, as long as it is not absurdly much."""

    def __init__(self, name: str, head: bytes, rest: BinaryIO, limits: Limits) -> None:
        self.name, self.limits, self.unpacked = name, limits, 0
        self.packed = _Joined(head, rest)
        self.file = gzip.GzipFile(fileobj=io.BufferedReader(self.packed))

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.unpacked += len(data)
        self.limits.check_unpacked(self.name, self.packed.taken, self.unpacked)
        return data

    def close(self) -> None:
        self.file.close()
        super().close()


class _Joined(io.RawIOBase):
    """Some bytes, then a stream; counts what was taken."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self.parts, self.taken = [io.BytesIO(head), rest], 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # bytes-like is what it gets
        data = self.parts[0].read(len(buffer)) or self.parts[1].read(len(buffer))
        buffer[: len(data)] = data
        self.taken += len(data)
        return len(data)


def _opened(path: str) -> BinaryIO:
    place = Path(path)
    if place.is_dir():
        remedy = "name a CSV or Parquet file"
        raise DataError(message("a file with a table", f"the folder {path}", remedy))
    try:
        return place.open("rb")
    except FileNotFoundError:
        remedy = "check the name, or pass - for standard input"
        raise DataError(message("a file with a table", f"no file {path}", remedy)) from None
    except OSError as error:
        received = f"{path}, which cannot be read ({error.strerror})"
        raise DataError(message("a file with a table", received, "check its permissions")) from None


# ---------------------------------------------------------------- whose columns these are


ADDED = "recourse."
"""How the names of columns begin that ``explain`` adds; ``certify`` does not take them for features."""


ROW = "\0row"
"""The column of chunks with the number that a row has in its file, where rows before it may be left out: no
file has a column of this name."""


class Columns(Protocol):
    """What a model says of its table: a ``Schema``, or less."""

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
        """Columns that may be in the table, and that nobody looks at."""
        ...


def check_columns(table: Table, known: Columns, keep: Sequence[str], ignore: Sequence[str] = ()) -> None:
    """Refuse a table without all features, and columns that nobody has spoken of."""
    check_ignored(table, known, ignore)
    absent = [name for name in known.names if name not in table.names]
    named = {*known.names, known.target, *known.ignored_names, *keep, *ignore}
    extra = [name for name in table.names if name not in named and not name.startswith(ADDED)]
    unknown = [name for name in keep if name not in table.names]
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


def check_ignored(table: Table, known: Columns, ignore: Sequence[str]) -> None:
    """Refuse to ignore what is not there, and what the model reads."""
    for name in ignore:
        if name not in table.names:
            raise DataError(unknown_name(f"a column of {table.name} to ignore", name, table.names))
    features = [name for name in ignore if name in known.names]
    if features:
        remedy = "fit a model without it, or leave it out of --ignore"
        raise DataError(message("columns to ignore that the model does not read", listing(features), remedy))


def check_pairs(
    originals: Table, counterfactuals: Table, known: Columns, keep: Sequence[str], ignore: Sequence[str]
) -> None:
    """Refuse two tables that do not have the columns of the model; only the first must have all others."""
    check_columns(originals, known, keep, ignore)
    both = [[name for name in names if name in counterfactuals.names] for names in (keep, ignore)]
    check_columns(counterfactuals, known, *both)


def check_ids(table: Table, name: str) -> None:
    """Refuse a table without the column that says whose each row is."""
    if name not in table.names:
        received = f"no {name!r} in {table.name}"
        close = closest(name, table.names)
        remedy = f"was {close!r} meant?" if close else f"choose one of {listing(table.names[:12])}"
        raise DataError(message("a column that says whose each row is", received, remedy))


# ---------------------------------------------------------------- a table that is open


ROWS = 16_384
"""Rows in a chunk, at most."""

PARQUET_BUFFER = 1 << 20
"""Bytes of each column that are held at once, so that a long row group does not have to fit into memory."""

UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""How pandas names an index without a name: it numbers rows, and is no column of the table."""


Ragged = Callable[[int, int, int, str], None]
"""Is told the number of a row, how many cells it should have, how many it has, and its text."""


@dataclass(frozen=True)
class Table:
    """An open table.

    Attributes
    ----------
    name
        What messages call it; never with a password.
    names
        Its columns.
    is_text
        Whether cells are text that still has to be read as numbers (CSV), or have types (Parquet).
    share
        Says how much of it was read so far, from 0 to 1; None where nobody knows.
    chunks
        The rows, in chunks of at most ``ROWS``; once.
    start
        Rows that come before the first of these, where this is a part of a table.
    """

    name: str
    names: tuple[str, ...]
    is_text: bool
    share: Callable[[], float | None]
    chunks: Iterator[pa.RecordBatch]
    start: int = 0


@contextmanager
def open_table(
    path: str,
    *,
    separator: str = ",",
    or_comma: bool = False,
    rows: int = ROWS,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    ragged: Ragged | None = None,
) -> Iterator[Table]:
    """The table in a CSV file (also packed with gzip), a Parquet file, or ``-``: standard input.

    A URL of a file system (``file:``, or one of fsspec's) is a file too; ``duckdb:FILE?TABLE`` and a
    database's URL with ``?table=NAME`` or ``?query=SQL`` are tables in databases.

    With ``or_comma`` a CSV file without the separator may have commas, as our own have. ``ragged`` is told of
    rows of CSV with too few or too many cells, which are then left out; chunks have a column ``ROW``. Refuses
    a table that asks for more than ``limits``, and one whose first chunk cannot be read: nobody should load
    a model for it.
    """
    name = "standard input" if path == STANDARD else places.without_password(path)
    if places.is_database(path):
        with places.open_database(path, rows) as answer:
            limits.check_names(name, answer.names)
            yield Table(name, answer.names, False, lambda: None, _begun(_counted(answer.batches, name)))
        return
    path = places.local_path(path)
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

        found = csv_text.batches(name, stream, names, separator, length, ragged)
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

    def chunks() -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader.iter_batches(batch_size=rows):
                done[0] += batch.num_rows
                yield batch.select(names)
        except (pa.ArrowException, OSError) as error:
            remedy = "it was cut off or altered: write it again"
            raise DataError(message(f"a whole Parquet file in {name}", _first(error), remedy)) from None

    return Table(name, names, False, lambda: done[0] / max(total, 1), _begun(_counted(chunks(), name)))


@contextmanager
def _seekable(path: str, stream: Counted) -> Iterator[object]:
    """The file itself, or a copy of the pipe on disk: Parquet is read from its end."""
    if path != STANDARD:
        yield stream.measured if "://" in path else path
        return
    with tempfile.TemporaryFile() as copy:
        while data := stream.read(PARQUET_BUFFER):
            copy.write(data)
        copy.seek(0)
        yield copy


def rows_digest(batch: pa.RecordBatch) -> str:
    """Return the SHA-256 of the rows as a stream of Arrow's, whatever else their table has."""
    import pyarrow as pa

    columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    plain = pa.RecordBatch.from_arrays(columns, batch.schema.names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, plain.schema) as writer:
        writer.write_batch(plain)
    return hashlib.sha256(sink.getvalue()).hexdigest()


def _sliced(found: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in found:
        for at in range(0, batch.num_rows, rows):
            yield batch.slice(at, rows)


def _counted(found: Iterator[pa.RecordBatch], name: str) -> Iterator[pa.RecordBatch]:
    """The same chunks; refuses a table without a single row."""
    count = 0
    for batch in found:
        count += batch.num_rows
        yield batch
    if count == 0:
        remedy = "check what should have written it"
        raise EmptyTableError(message("at least one row", f"a header and no row in {name}", remedy))


def _begun(found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same chunks, the first of which was read."""
    return chain([next(found)], found)


def _first(error: Exception) -> str:
    return (str(error).splitlines() or ["nothing"])[0][:200]
