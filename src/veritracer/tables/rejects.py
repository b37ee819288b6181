"""Collect the rows of a table that cannot be read, in a file that can be corrected and read again."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from veritracer.files import whole_file, writable
from veritracer.tables.csv_blocks import ROW
from veritracer.tables.reading import ADDED

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from veritracer.schema import Schema

ROW_NUMBER, REASON = f"{ADDED}row", f"{ADDED}reason"
"""The first columns of a file of rejected rows."""


class Reject(NamedTuple):
    """A row that cannot be read: its number in its table, the reason, and its cells."""

    number: int
    reason: str
    cells: list[str]


class Rejects:
    """The rejected rows of one table with these columns."""

    def __init__(self, columns: Sequence[str] = (), rows: Iterable[Reject] = ()) -> None:
        self.columns, self.rows = list(columns), list(rows)

    def add(self, number: int, reason: str, cells: Iterable[str]) -> None:
        """Add row ``number`` of the table."""
        self.rows.append(Reject(number, reason, list(cells)))

    def without(
        self, frame: pd.DataFrame, batch: pa.RecordBatch, refused: Mapping[int, str], schema: Schema
    ) -> pd.DataFrame:
        """Return the rows of a batch that are not refused; add the others as they are in the file."""
        if not refused:
            return frame
        cells = batch.select([name for name in batch.schema.names if name != ROW])
        for row, reason in refused.items():
            own = cells.slice(row, 1).to_pylist()[0].values()
            self.add(int(frame.index[row]), reason, ["" if cell is None else str(cell) for cell in own])
        left = frame.drop(index=frame.index[list(refused)])
        numeric = [feature.name for feature in schema.features if feature.is_numeric]
        return left.assign(**{name: _as_numbers(left[name]) for name in numeric if name in left.columns})

    def note(self, place: str) -> list[str]:
        """Return a note that says how many rows were rejected."""
        return note_of(len(self.rows), self.rows[0].reason if self.rows else "", place)


def note_of(count: int, first: str, place: str) -> list[str]:
    """Return a note on so many rejected rows, with the reason of the first."""
    if not count:
        return []
    rows = "row was" if count == 1 else "rows were"
    return [f"{count:,} {rows} rejected, see {place}; the first: {first}"]


def _as_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of objects as numbers, where only rejected cells made it objects."""
    found = column.infer_objects()
    return found if found.dtype.kind in "iuf" else column


# ---------------------------------------------------------------- the file


@contextmanager
def open_rejects(path: str | Path | None) -> Iterator[Rejects | None]:
    """Collect the rejected rows of a table for a file, written when the block ends; None without a path."""
    if path is None:
        yield None
        return
    found = Rejects()
    with rejects_file(Path(path)) as parts:
        yield found
        parts.append(found)


@contextmanager
def rejects_file(place: Path) -> Iterator[list[Rejects]]:
    """Open a file for rejected rows: those that are in the list when the block ends are written.

    The file appears when it is whole. Its columns are the number and the reason of each row, and those of the
    tables: corrected, it can be given to the same command again.
    """
    parts: list[Rejects] = []
    with writable(place), whole_file(place) as file:
        yield parts
        columns = list(dict.fromkeys(name for part in parts for name in part.columns))
        own = [name for name in columns if name not in (ROW_NUMBER, REASON)]
        file.write(_line([ROW_NUMBER, REASON, *own]))
        for part in parts:
            for row in part.rows:
                cells = _by_name(part.columns, row.cells)
                reason = " ".join(row.reason.split())
                file.write(_line([str(row.number), reason, *(cells.get(name, "") for name in own)]))


def _by_name(columns: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    """Return cells by their columns; of a row with too many the last column has all that are left."""
    found = dict(zip(columns, cells, strict=False))
    if len(cells) > len(columns):
        found[columns[-1]] = ",".join(cells[len(columns) - 1 :])
    return found


def _line(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()
