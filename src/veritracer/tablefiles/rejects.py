"""Rows of a table that can not be read, collected in a file of their own with the reason of each.

The file is CSV with the columns of the table, after ``recourse.row`` (counted from 1) and
``recourse.reason``: corrected, it can be given to the same verb again.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from veritracer.files import whole_file
from veritracer.tablefiles.opening import ADDED, ROW
from veritracer.tablefiles.sinks import writable

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from veritracer.schema import Schema

NUMBER, REASON = f"{ADDED}row", f"{ADDED}reason"


class Rejects:
    """Takes rows that can not be read; ``count`` of them so far."""

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
        self.old = [i for i, name in enumerate(self.names) if name in (NUMBER, REASON)]
        self._line([NUMBER, REASON, *(name for name in self.names if name not in (NUMBER, REASON))])

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
    from veritracer.tablefiles.csv_text import separator_of

    place = Path(path)
    with writable(place), whole_file(place) as file:
        yield Rejects(file, separator_of(separator))
