"""Read two tables side by side, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from veritracer.errors import DataError, message
from veritracer.tables.jobs import ROW, Batch
from veritracer.tables.reading import TableSource, joined, rows_digest, split


def paired(left: TableSource, right: TableSource) -> Iterator[Batch]:
    """Yield the batches of some tables with the rows at the same places of others, however these are cut.

    Tables of different lengths are refused.
    """
    others, waiting, reached = _placed(right), list[Batch](), 0
    for batch, offset, end in _placed(left):
        while reached < end and (entry := next(others, None)) is not None:
            other, before, reached = entry
            waiting.append(_renumbered(other, before))
        if reached < end:
            raise _unpaired(batch.table)
        first, rest = split(joined(waiting), end)
        waiting = [rest] if rest.rows.num_rows or rest.rejects else []
        other = _renumbered(first, -offset)
        yield replace(batch, other=other, digest=batch.digest + rows_digest(other.rows))
    longer = [*waiting, *(entry[0] for entry in [next(others, None)] if entry is not None)]
    if longer:
        raise _unpaired(longer[0].table)


def _placed(tables: TableSource) -> Iterator[tuple[Batch, int, int]]:
    """Yield batches with the number of rows before their table, and up to their end, rejected ones too."""
    offset = end = 0
    for batch in tables.batches():
        if batch.number == 0:
            offset = end
        rejected = [reject.number for reject in batch.rejects]
        end = offset + max(int(batch.row_numbers[-1]), *rejected, 0)
        yield batch, offset, end


def _renumbered(batch: Batch, added: int) -> Batch:
    """Return the batch with other numbers of rows."""
    numbers = pa.array(batch.row_numbers + added)
    rows = batch.rows.drop_columns([ROW]).append_column(ROW, numbers)
    rejects = tuple(reject._replace(number=reject.number + added) for reject in batch.rejects)
    return replace(batch, rows=rows, rejects=rejects)


def _unpaired(longer: str) -> DataError:
    remedy = "give both tables in the same order, row by row"
    return DataError(message("one counterfactual for each row", f"more rows in {longer}", remedy))
