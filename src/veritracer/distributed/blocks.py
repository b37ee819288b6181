"""Tables cut into blocks, and the folder of a run: one file for each block, and what is known to be done.

::

    OUT/_run.json              what was asked: a run that goes on has to ask the same
    OUT/_blocks/NAME.json      a block that is done, and how its rows ended; written after its file
    OUT/NAME.parquet           its rows; NAME is that of the table and the number of the block in it
    OUT/_prepared/NAME.DIGEST  its rows before their promises are issued

OUT is exactly the result of its tables: a part of a table that was renamed, removed or shortened since is
refused by name. Files appear only when they are whole, and a block with a record is never done again. Names
that begin with a line are passed over by whatever reads folders of tables (Arrow, Spark, DuckDB, this
library). OUT may be the URL of a folder elsewhere: see ``storage``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from veritracer.distributed.storage import Storage, storage_at
from veritracer.errors import DataError, message
from veritracer.files import document_text, envelope
from veritracer.options import BLOCK_ROWS
from veritracer.tablefiles import Table
from veritracer.tablefiles.opening import ROWS, rows_digest
from veritracer.tablefiles.sinks import Format

RUN, BLOCKS, PREPARED = "_run.json", "_blocks", "_prepared"

DIGEST = 64
"""Digits of a SHA-256."""

FORMAT = "veritracer-run"


@dataclass(frozen=True)
class Block:
    """Some rows of a table (or of several, row by row), on their way to whoever does them.

    Attributes
    ----------
    name
        The name of the table, and the number of the block in it.
    start
        Rows of the table before these.
    batches
        The rows: of one table, or of several side by side.
    sources, is_text
        What messages call each of these tables, and whether its cells are text.
    digest
        SHA-256 of the rows.
    """

    name: str
    start: int
    batches: tuple[pa.RecordBatch, ...]
    sources: tuple[str, ...]
    is_text: tuple[bool, ...]
    digest: str

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(self.batches[0].num_rows)

    def table(self, which: int = 0) -> Table:
        """The rows as a table that is open for reading."""
        batch = self.batches[which]
        chunks = (batch.slice(at, ROWS) for at in range(0, batch.num_rows, ROWS))
        names = tuple(batch.schema.names)
        return Table(self.sources[which], names, self.is_text[which], lambda: None, chunks, start=self.start)


def cut(table: Table, name: str, rows: int = BLOCK_ROWS) -> Iterator[Block]:
    """The table in blocks of so many rows each, whatever its own chunks are."""
    start = 0
    for number, batch in enumerate(rebatched(table.chunks, rows)):
        own = _own(batch)
        names = f"{name}.{number:06}", start
        yield Block(*names, (own,), (table.name,), (table.is_text,), rows_digest(own))
        start += own.num_rows


def _own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows and nothing besides: a slice would travel with all that it is cut from."""
    return batch.take(pa.array(np.arange(batch.num_rows)))


def rebatched(chunks: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of so many, the last one of what is left."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for chunk in chunks:
        waiting.append(chunk)
        count += chunk.num_rows
        while count >= rows:
            whole = _joined(waiting)
            yield whole.slice(0, rows)
            count -= rows
            waiting = [whole.slice(rows)] if count else []
    if count:
        yield _joined(waiting)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    whole = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    (joined,) = whole.to_batches()
    return joined


def paired(left: Iterator[Block], right: Iterator[Block]) -> Iterator[Block]:
    """Blocks with as many rows of other tables beside theirs, in order, however those are cut.

    Refuses tables of different lengths.
    """
    waiting: list[Block] = []
    for one in left:
        while sum(block.rows for block in waiting) < one.rows and (more := next(right, None)) is not None:
            waiting.append(more)
        if sum(block.rows for block in waiting) < one.rows:
            raise _unpaired(one)
        first, whole = waiting[0], _joined([block.batches[0] for block in waiting])
        other, rest = _own(whole.slice(0, one.rows)), whole.slice(one.rows)
        waiting = [replace(waiting[-1], batches=(rest,))] if rest.num_rows else []
        yield replace(
            one,
            batches=(*one.batches, other),
            sources=one.sources + first.sources,
            is_text=one.is_text + first.is_text,
            digest=one.digest + rows_digest(other),
        )
    left_over = next(iter(waiting), None) or next(right, None)
    if left_over is not None:
        raise _unpaired(left_over)


def _unpaired(longer: Block) -> DataError:
    remedy = "give both tables in the same order, row by row"
    return DataError(message("one counterfactual for each row", f"more rows in {longer.sources[0]}", remedy))


# ---------------------------------------------------------------- the folder of a run


@dataclass(frozen=True)
class Record:
    """A block that is done.

    Attributes
    ----------
    name, rows, digest
        The block, and what it was of.
    file
        The name of its file from the folder of the run on; empty where nothing was to be written.
    ended
        How its rows ended, as numbers and sentences.
    """

    name: str
    rows: int
    digest: str
    file: str
    ended: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run: ``name`` is the run's own, ``kind`` what its files are, ``made`` if it is new."""

    storage: Storage
    name: str
    kind: Format
    made: bool = False

    @classmethod
    def open(cls, place: str | os.PathLike[str], asked: Mapping[str, Any], kind: Format) -> RunFolder:
        """The folder or its URL, new or to go on in; refuses what holds something else, or another run."""
        wanted = json.loads(json.dumps({**asked, "kind": kind}, default=str))
        storage = storage_at(place)
        held = storage.names()
        there = _read(storage, RUN) if held else None
        if there is None:
            if held:
                received = f"{storage}, which is there and is not one"
                raise DataError(message("the folder of a run", received, "name a new folder"))
            name = os.urandom(8).hex()
            document = {**envelope(FORMAT, 1), "run": name, "asked": wanted}
            storage.write(RUN, document_text(document))
            return cls(storage, name, kind, made=held is None)
        if not isinstance(there.get("asked"), dict) or "run" not in there:
            remedy = "remove it, or name a new folder"
            raise DataError(message(f"a document of a run in {storage}/{RUN}", "something else", remedy))
        other = [key for key in wanted if there["asked"].get(key) != wanted[key]]
        if other:
            received = f"another {other[0].replace('_', ' ')}"
            remedy = "ask the same to go on, or name a new folder"
            raise DataError(message(f"what the run in {storage} was asked", received, remedy))
        return cls(storage, str(there["run"]), kind)

    @contextmanager
    def unless_begun(self) -> Iterator[None]:
        """Leave no folder behind where the block fails before anything was written or issued."""
        try:
            yield
        except BaseException:
            if self.storage.names() == {RUN}:
                self.storage.remove(RUN)
                if self.made:
                    self.storage.remove("")
            raise

    def count(self) -> int:
        """How many blocks are done."""
        return len(self.storage.files(BLOCKS))

    @property
    def is_begun(self) -> bool:
        """Whether there is anything in it besides what was asked."""
        return (self.storage.names() or set()) > {RUN}

    def check_exact(self, names: Collection[str], remedy: str) -> None:
        """Refuse a part that is of none of these blocks: the folder would be more than their result."""
        known = {*names, *(_stem(name) for name in names)}
        tables = {_table_of(name) for name in names}
        for file in sorted(self.storage.files()):
            name = self._block_of(file)
            if name is None or name in known:
                continue
            table = _table_of(name)
            why = "which has fewer rows now" if table in tables else "which is not among the tables"
            expected = f"the result of these tables alone in {self.storage}"
            raise DataError(message(expected, f"{file}, a part of {table}, {why}", remedy))

    def _block_of(self, file: str) -> str | None:
        """The block that a file of the folder is of; None for bookkeeping."""
        top, _, rest = file.partition("/")
        if top == BLOCKS:
            return rest.removesuffix(".json")
        if top == PREPARED:
            stem, _, digest = rest.rpartition(".")
            return stem if len(digest) == DIGEST else None
        if any(part[:1] in (".", "_") for part in file.split("/")):
            return None
        return file.removesuffix(f".{self.kind}")

    def file_of(self, block: Block) -> str:
        """The name of the file that the rows of the block go to."""
        return f"{block.name}.{self.kind}"

    def key_of(self, block: Block) -> str:
        """What names the block, in this run, for good."""
        return f"{self.name}/{block.name}"

    def finish(self, record: Record) -> Record:
        """The record, after it was written."""
        self.storage.write(_record(record.name), document_text(asdict(record)))
        return record

    def done(self, block: Block) -> Record | None:
        """The record of a block that is done; None if it is not. Refuses a table that is another by now."""
        found = _read(self.storage, _record(block.name))
        if found is None:
            return None
        record = Record(**found)
        if record.digest != block.digest:
            received = f"others in {block.sources[0]} from row {block.start + 1:,} on"
            remedy = "give the tables as they were, in a fixed order, or name a new folder"
            raise DataError(message("the rows that this run began with", received, remedy))
        return record if not record.file or self.storage.exists(record.file) else None


def prepared_name(name: str, digest: str) -> str:
    """Return the file with this digest that is prepared for a block, whose promises are not issued yet."""
    return f"{PREPARED}/{_stem(name)}.{digest}"


def _stem(name: str) -> str:
    return name.replace("/", ".")


def _table_of(name: str) -> str:
    """The table that a block is of."""
    return name.rpartition(".")[0]


def _record(name: str) -> str:
    """The file of a block's record."""
    return f"{BLOCKS}/{name}.json"


def _read(storage: Storage, name: str) -> dict[str, Any] | None:
    try:
        content = storage.read(name)
        found = None if content is None else json.loads(content)
    except (OSError, ValueError) as error:
        remedy = "remove it, or name a new folder"
        raise DataError(message(f"a document of a run in {storage}/{name}", f"{error}", remedy)) from None
    return found if isinstance(found, dict) else None
