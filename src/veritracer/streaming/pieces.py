"""What explaining and certifying have in common: whose columns these are, and typed pieces of them."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from veritracer.errors import DataError, DataWarning, listing, message
from veritracer.schema import Feature, Schema
from veritracer.tablefiles import Table, typed

Watch = Callable[[int, float | None], None]
"""Is told after every piece how many rows are done, and which share of the whole that is."""

ADDED = "recourse."
"""How the names of columns begin that ``explain`` adds; ``certify`` does not take them for features."""


def check_columns(table: Table, schema: Schema, keep: Sequence[str]) -> None:
    """Nothing; refuses a table without all features, and columns that nobody has spoken of."""
    absent = [name for name in schema.names if name not in table.names]
    known = {*schema.names, schema.target, *keep}
    extra = [name for name in table.names if name not in known and not name.startswith(ADDED)]
    unknown = [name for name in keep if name not in table.names]
    if unknown:
        received = f"no {listing(unknown)} in {table.name}"
        raise DataError(message("columns to keep that exist", received, "check their spelling"))
    features = [name for name in keep if name in schema.names]
    if features:
        remedy = "leave them out of --keep: their values are in the output"
        raise DataError(message("columns to keep that are no features", listing(features), remedy))
    expected = f"the {len(schema.names)} columns of the model in {table.name}"
    if absent:
        close = difflib.get_close_matches(absent[0], extra, n=1)
        remedy = f"was {close[0]!r} meant?" if close else "give the table that the model was trained on"
        raise DataError(message(expected, f"no {listing(absent)}", remedy))
    if extra:
        remedy = f"carry it along with --keep {','.join(extra[:3])}, or remove it"
        raise DataError(message(expected, f"{listing(extra)} too", remedy))


def frames(table: Table, schema: Schema) -> Iterator[pd.DataFrame]:
    """The pieces of the table with the types of the schema, counted from row 1."""
    start = 0
    for piece in table.pieces:
        yield typed(piece, schema, is_text=table.is_text, start=start)
        start += piece.num_rows


@dataclass
class Notes:
    """What was warned of, piece by piece: the first sentence of each kind, and how often."""

    first: dict[str, str] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Warnings about the data inside of the block are noted, not shown."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DataWarning)
            yield
        texts = [str(warning.message) for warning in caught]
        for kind, text in {text.partition(", got ")[0]: text for text in reversed(texts)}.items():
            self.first.setdefault(kind, text)
            self.count[kind] = self.count.get(kind, 0) + 1

    def sentences(self) -> list[str]:
        """One sentence for each kind."""
        more = {kind: count - 1 for kind, count in self.count.items()}
        return [
            text + (f" (and so in {more[kind]:,} more pieces of the file)" if more[kind] else "")
            for kind, text in self.first.items()
        ]


def arrow_type(feature: Feature) -> pa.DataType:
    """The type of a feature's column in every piece that is written, whatever happens to be in it."""
    known = [*feature.categories, *feature.missing_codes]
    if any(isinstance(value, str) for value in known):
        return pa.string()
    if feature.is_numeric:
        return pa.int64() if feature.kind == "integer" else pa.float64()
    if all(isinstance(value, bool) for value in known):
        return pa.bool_()
    return pa.int64() if all(isinstance(value, int) for value in known) else pa.float64()


def arrow_column(values: pd.Series[Any], kind: pa.DataType) -> pa.Array:
    """The column in the given type; missing values are null."""
    if kind == pa.string():
        cells = values.to_numpy(dtype=object)
        if values.dtype.kind not in "OU" and not pd.api.types.is_string_dtype(values.dtype):
            cells = np.array([None if pd.isna(cell) else f"{cell:g}" for cell in cells], dtype=object)
        try:
            return pa.array(cells, kind, from_pandas=True)
        except (pa.ArrowTypeError, pa.ArrowInvalid):  # words among numbers
            return pa.array([None if pd.isna(cell) else str(cell) for cell in cells], kind)
    if kind == pa.int64() and values.dtype.kind == "f":
        return pa.array(np.rint(values.to_numpy()), pa.float64(), from_pandas=True).cast(kind)
    return pa.array(values, from_pandas=True).cast(kind)
