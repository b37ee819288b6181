"""Read tables in batches, one table or two side by side.

Batches depend on the number of rows in each alone, and not on how a file is cut.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from veritracer.errors import DataError, EmptyTableError, message
from veritracer.options import BATCH_ROWS
from veritracer.tables.csv_blocks import ROW, CSVFormat
from veritracer.tables.jobs import Batch, TableSlice
from veritracer.tables.places import find_tables, is_url
from veritracer.tables.reading import TableSource, open_table, rows_digest
from veritracer.tables.rejects import Reject

if TYPE_CHECKING:
    from numpy.typing import NDArray

Tell = Callable[[float | None], None]
"""Called with the share of all tables that was read."""


@dataclass(frozen=True)
class TableInputs:
    """Tables to read in batches.

    Attributes
    ----------
    place, query, csv
        As for ``open_table``, or a folder or pattern.
    check
        Called with every table when it is opened.
    rows
        Rows of a batch.
    collect_rejects
        Whether rows that cannot be parsed are collected; otherwise they are refused.
    """

    place: str
    query: str | None = None
    csv: CSVFormat = field(default_factory=CSVFormat)
    check: Callable[[TableSource], None] = lambda table: None
    rows: int = BATCH_ROWS
    collect_rejects: bool = False

    def batches(self, tell: Tell = lambda share: None) -> Iterator[Batch]:
        """Yield the batches of all tables, of which some may have no rows."""
        found, empty = find_tables(self.place, self.query), 0
        for index, one in enumerate(found):
            try:
                for number, rows in enumerate(self._slices(one.place, index, len(found), tell)):
                    yield Batch(one.name, number, rows, rows_digest(rows.rows))
            except EmptyTableError:
                empty += 1
                if empty == len(found):
                    raise

    def _slices(self, place: str, index: int, of: int, tell: Tell) -> Iterator[TableSlice]:
        """Yield the rows of a table, each slice with the rejected rows up to its last one."""
        waiting: list[Reject] = []

        def reject(number: int, reason: str, cells: Sequence[str]) -> None:
            waiting.append(Reject(number, reason, list(cells)))

        ragged = reject if self.collect_rejects else None
        start, before = 0, None
        with open_table(place, self.query, csv=self.csv, ragged=ragged) as table:
            self.check(table)
            for batch in rebatched(table.batches, self.rows):
                share = table.share()
                tell(None if share is None else (index + share) / of)
                if before is not None:
                    last = int(row_numbers(before)[-1])
                    early = [row for row in waiting if row.number < last]
                    waiting[:] = [row for row in waiting if row.number > last]
                    yield before._replace(rejects=tuple(early))
                before = TableSlice(table.name, compact(batch), table.is_text, start)
                start += batch.num_rows
        if before is not None:
            yield before._replace(rejects=tuple(waiting))

    def document(self) -> dict[str, Any]:
        """Return what has to be the same when a run continues; a digest stands for URLs with passwords."""
        place = self.place if is_url(self.place) else str(Path(self.place).absolute())
        digest = hashlib.sha256(json.dumps([place, self.query]).encode()).hexdigest()
        return {"table": digest, "batch_rows": self.rows}


def row_numbers(rows: TableSlice) -> NDArray[np.int64]:
    """Return the numbers of rows in their table, counted from 1."""
    if ROW in rows.rows.schema.names:
        found: NDArray[np.int64] = rows.rows.column(ROW).to_numpy()
        return found
    return np.arange(rows.start + 1, rows.start + 1 + rows.rows.num_rows)


def rebatched(chunks: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of so many, the last one of what is left."""
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


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows and nothing besides: a slice would be pickled with all that it is cut from."""
    return batch.take(pa.array(np.arange(batch.num_rows)))


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    (joined,) = pa.concat_tables(tables, promote_options="permissive").combine_chunks().to_batches()
    return joined


# ---------------------------------------------------------------- pairs of tables


def paired(left: Iterator[Batch], right: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches with the rows at the same places of other tables, however these are cut.

    Tables of different lengths are refused.
    """
    others = _Queue(right)
    for batch, offset, end in _placed(left):
        other = others.up_to(end, offset)
        if other is None:
            raise _unpaired(batch.rows.table)
        yield replace(batch, other=other, digest=batch.digest + rows_digest(other.rows))
    if longer := others.rest():
        raise _unpaired(longer)


def _placed(batches: Iterator[Batch]) -> Iterator[tuple[Batch, int, int]]:
    """Yield batches with the number of rows before their table, and up to their end, rejected ones too."""
    offset = end = 0
    for batch in batches:
        if batch.number == 0:
            offset = end
        rejected = [row.number for row in batch.rows.rejects]
        end = offset + max(int(row_numbers(batch.rows)[-1]), *rejected, 0)
        yield batch, offset, end


class _Queue:
    """The rows of tables in order, by their places in all of these tables together."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self.batches = _placed(batches)
        self.waiting: list[TableSlice] = []
        self.end = 0

    def up_to(self, end: int, offset: int) -> TableSlice | None:
        """Return the rows up to a place, numbered from ``offset`` on; None if there are too few."""
        while self.end < end and (entry := next(self.batches, None)) is not None:
            batch, before, self.end = entry
            rows, places = batch.rows, pa.array(row_numbers(batch.rows) + before)
            plain = rows.rows.drop_columns(ROW) if ROW in rows.rows.schema.names else rows.rows
            rejects = [row._replace(number=row.number + before) for row in rows.rejects]
            self.waiting.append(rows._replace(rows=plain.append_column(ROW, places), rejects=tuple(rejects)))
        if self.end < end:
            return None
        whole, first = _joined([rows.rows for rows in self.waiting]), self.waiting[0]
        rejects = [row for rows in self.waiting for row in rows.rejects]
        count = int(np.searchsorted(whole.column(ROW).to_numpy(), end, side="right"))
        late = tuple(row for row in rejects if row.number > end)
        left = first._replace(rows=whole.slice(count), rejects=late)
        self.waiting = [left] if left.rows.num_rows or late else []
        mine = compact(whole.slice(0, count))
        numbers = pa.array(mine.column(ROW).to_numpy() - offset)
        mine = mine.set_column(mine.schema.get_field_index(ROW), ROW, numbers)
        early = tuple(row._replace(number=row.number - offset) for row in rejects if row.number <= end)
        return first._replace(rows=mine, rejects=early)

    def rest(self) -> str:
        """Return the name of the table that has rows left; empty where none has."""
        if self.waiting:
            return self.waiting[0].table
        entry = next(self.batches, None)
        return "" if entry is None else entry[0].rows.table


def _unpaired(longer: str) -> DataError:
    remedy = "give both tables in the same order, row by row"
    return DataError(message("one counterfactual for each row", f"more rows in {longer}", remedy))
