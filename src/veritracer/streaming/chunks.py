"""What explaining and certifying have in common: batches of a table with types, and what was noticed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from veritracer.encoding import Encoding
from veritracer.errors import AdviceWarning, DataError, DataWarning, message
from veritracer.schema import Schema
from veritracer.tables import Rejects, TableSource, apply_schema

Watch = Callable[[int, float | None], None]
"""Is told after every chunk how many rows are done, and which share of the whole that is."""


def frames(
    table: TableSource,
    schema: Schema,
    keep: Sequence[str] = (),
    rejects: Rejects | None = None,
    encoding: Encoding | None = None,
) -> Iterator[pd.DataFrame]:
    """The chunks of the table with the types of the schema, counted from row 1.

    Columns to keep have the types of the file, pandas' own would change numbers around gaps. Rows that the
    ``encoding`` cannot take go to ``rejects``, if there is one; the others are then left, and refused if
    there is none.
    """
    start, accepted = table.start, 0
    for chunk in table.batches:
        frame = apply_schema(chunk, schema, is_text=table.is_text, start=start, lenient=rejects is not None)
        for name in keep:
            frame[name] = pd.arrays.ArrowExtensionArray(chunk.column(name))
        start += chunk.num_rows
        if rejects is not None:
            assert encoding is not None, "what is rejected is what an encoding refuses"
            named = frame[[name for name in frame.columns if name in schema.names]]
            frame = rejects.without(frame, chunk, encoding.refused(named), schema)
        accepted += len(frame)
        if len(frame):
            yield frame
    if rejects is not None and not accepted:
        received = f"none of {rejects.count:,} in {table.name}; the first: {rejects.first}"
        raise DataError(message("at least one row that can be read", received, "correct them"))


def kept_columns(kept: pd.DataFrame, rows: NDArray[np.int64] | None = None) -> dict[str, pa.Array]:
    """The columns that :func:`frames` kept, of these rows or of all, in the types of the file."""
    chosen = kept if rows is None else kept.iloc[rows]
    return {str(name): pa.array(chosen[name].array) for name in chosen.columns}


@dataclass
class Notes:
    """What was warned of, chunk by chunk: the first sentence of each kind, and how often."""

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
            text + (f" (and so in {more[kind]:,} more chunks of the file)" if more[kind] else "")
            for kind, text in self.first.items()
        ]
