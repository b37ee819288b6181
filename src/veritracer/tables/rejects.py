"""Collect the rows of a table that cannot be read, in a file that can be corrected and read again."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from veritracer.files import whole_file, writable
from veritracer.tables.csv_blocks import ROW
from veritracer.tables.reading import ADDED

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from veritracer.schema import Schema

ROW_NUMBER, REASON = f"{ADDED}row", f"{ADDED}reason"
"""The first columns of a file of rejected rows."""


class Rejects:
    """Write the rows that cannot be read to a CSV file, with the number and the reason of each.

    The other columns are those of the table: corrected, the file can be given to the same command again.
    ``count`` rows were written so far, ``first`` is the reason of the first one, and ``last`` the largest row
    number.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.count = file, 0
        self.first, self.last = "", 0
        self.names: list[str] = []
        self._waiting: list[tuple[int, str, Sequence[str]]] = []

    def begin(self, names: Sequence[str]) -> None:
        """Name the columns of the table, which are known once it is open."""
        self.names = list(names)
        self._write_header()
        for early in self._waiting:
            self._write(*early)
        self._waiting = []

    def add(self, number: int, reason: str, cells: Sequence[str]) -> None:
        """Take row ``number`` of the table, for this reason."""
        self.count += 1
        self.first, self.last = self.first or reason, max(self.last, number)
        if self.names:
            self._write(number, reason, cells)
        else:
            self._waiting.append((number, reason, cells))

    def without(
        self, frame: pd.DataFrame, batch: pa.RecordBatch, refused: Mapping[int, str], schema: Schema
    ) -> pd.DataFrame:
        """Return the rows of a batch that are not refused; take the others as they are in the file."""
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
        if not self.count:
            return []
        rows = "row was" if self.count == 1 else "rows were"
        return [f"{self.count:,} {rows} rejected, see {place}; the first: {self.first}"]

    def _write_header(self) -> None:
        own = [name for name in self.names if name not in (ROW_NUMBER, REASON)]
        self._write_line([ROW_NUMBER, REASON, *own])

    def _write(self, number: int, reason: str, cells: Sequence[str]) -> None:
        """Write a row; of one with too many cells the last column has all that are left."""
        width = len(self.names)
        kept = [*cells[:width], *[""] * (width - len(cells))]
        if len(cells) > width:
            kept[-1] = ",".join(cells[width - 1 :])
        own = [cell for name, cell in zip(self.names, kept, strict=True) if name not in (ROW_NUMBER, REASON)]
        self._write_line([str(number), " ".join(reason.split()), *own])

    def _write_line(self, cells: Sequence[str]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(cells)
        self.file.write(text.getvalue().encode())


class Partners(Rejects):
    """Take rows of a table that goes with another one row by row; they are written in its columns."""

    def __init__(self, whole: Rejects) -> None:
        super().__init__(whole.file)
        self.whole = whole

    def _write_header(self) -> None:
        """Write nothing: the other table names the columns."""

    def _write(self, number: int, reason: str, cells: Sequence[str]) -> None:
        own, last = dict(zip(self.names, cells, strict=False)), self.whole.last
        self.whole.add(number, f"its counterfactual: {reason}", [own.get(n, "") for n in self.whole.names])
        self.whole.last = last  # that of its own table


def _as_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of objects as numbers, where only rejected cells made it objects."""
    found = column.infer_objects()
    return found if found.dtype.kind in "iuf" else column


@contextmanager
def open_rejects(path: str | Path | None) -> Iterator[Rejects | None]:
    """Open a file for rejected rows, which appears when it is whole; None where none is asked for."""
    if path is None:
        yield None
        return
    place = Path(path)
    with writable(place), whole_file(place) as file:
        yield Rejects(file)
