"""What explaining and certifying have in common: whose columns these are, and typed pieces of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from veritracer.errors import AdviceWarning, DataWarning
from veritracer.schema import Schema
from veritracer.tablefiles import Table, typed

Watch = Callable[[int, float | None], None]
"""Is told after every piece how many rows are done, and which share of the whole that is."""


def frames(table: Table, schema: Schema, keep: Sequence[str] = ()) -> Iterator[pd.DataFrame]:
    """The pieces of the table with the types of the schema, counted from row 1.

    Columns to keep have the types of the file, pandas' own would change numbers around gaps.
    """
    start = 0
    for piece in table.pieces:
        frame = typed(piece, schema, is_text=table.is_text, start=start)
        for name in keep:
            frame[name] = pd.arrays.ArrowExtensionArray(piece.column(name))
        yield frame
        start += piece.num_rows


def kept_columns(kept: pd.DataFrame, rows: NDArray[np.int64] | None = None) -> dict[str, pa.Array]:
    """The columns that :func:`frames` kept, of these rows or of all, in the types of the file."""
    chosen = kept if rows is None else kept.iloc[rows]
    return {str(name): pa.array(chosen[name].array) for name in chosen.columns}


@dataclass
class Notes:
    """What was warned of, piece by piece: the first sentence of each kind, and how often."""

    first: dict[str, str] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Warnings about data and advice inside of the block are noted, not shown."""
        with warnings.catch_warnings(record=True) as caught:
            for kind_of_warning in (DataWarning, AdviceWarning):
                warnings.simplefilter("always", kind_of_warning)
            yield
        said = [warning.message.args[0] for warning in caught if isinstance(warning.message, Warning)]
        for kind, text in {getattr(text, "expected", text): text for text in reversed(said)}.items():
            self.first.setdefault(kind, str(text))
            self.count[kind] = self.count.get(kind, 0) + 1

    def sentences(self) -> list[str]:
        """One sentence for each kind."""
        more = {kind: count - 1 for kind, count in self.count.items()}
        return [
            text + (f" (and so in {more[kind]:,} more pieces of the file)" if more[kind] else "")
            for kind, text in self.first.items()
        ]
