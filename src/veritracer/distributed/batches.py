"""The one batch function: tables in, tables with counterfactuals out, for whoever maps over partitions.

Spark's ``mapInPandas`` and Dask's ``map_partitions`` hand a function some
rows and want some rows back; docs/how-to/run-on-many-cores.md has the recipe for each.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray

from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import DataError, DataWarning, message
from veritracer.persistence import load
from veritracer.recourse import Recourse
from veritracer.schema import Schema
from veritracer.schema import tables as named
from veritracer.schema.tables import arrow_table, is_arrow
from veritracer.streaming import explain_table
from veritracer.tables import TableSource, check_columns

MODELS = 4
"""Models that a worker keeps in memory."""

NULLABLE = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
"""What pandas has for a column that may have empty cells, and else would change its type with them."""


def explain_batches(
    batches: Iterable[Any],
    model: str | os.PathLike[str] | Recourse,
    *,
    keep: Sequence[str] = (),
    sentences: bool = False,
    **options: Any,
) -> Iterator[Any]:
    """For each batch of rows their counterfactuals, as ``veritracer explain`` writes them, in its own type.

    Parameters
    ----------
    batches
        Tables: pandas DataFrames, Arrow tables or record batches, or polars DataFrames. An empty one gives an
        empty one. The answers to a pandas DataFrame have its index, with the label of a person at each of
        their alternatives; types are those of the schema, whatever is missing in a batch.
    model
        The folder of a saved model, loaded once in each process; or what answers already.
    keep
        Columns to carry along, such as an identity.
    sentences
        Whether to add each counterfactual as a person should read it.
    options
        Those of ``Recourse.explain``.
    """
    recourse = model if isinstance(model, Recourse) else _loaded(os.fspath(model))
    schema = recourse.encoding.schema
    for batch in batches:
        table = _as_arrow(batch)
        empty = table.num_rows == 0
        taken = _Taken()
        source = TableSource("the batch", tuple(table.schema.names), iter(_one(table)))
        if empty:
            check_columns(source, schema, keep)
            source = _example(recourse, table, keep)
        done = explain_table(
            recourse, source, taken, options=options, keep=tuple(keep), sentences=sentences, also=taken.whose
        )
        for note in () if empty else done.notes:
            warnings.warn(note, DataWarning, stacklevel=2)
        whole, rows = pa.concat_tables(taken.pieces), np.concatenate(taken.rows)
        if empty:
            whole, rows = whole.slice(0, 0), rows[:0]
        yield _framed(batch, whole, rows, schema, keep) if _is_pandas(batch) else _like(batch, whole)


class _Taken:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[pa.Table] = []
        self.rows: list[NDArray[np.int64]] = []

    def whose(self, found: Counterfactuals, kept: pd.DataFrame) -> dict[str, pa.Array]:
        """No more columns; which row of the batch each answer belongs to is noted."""
        self.rows.append(kept.index.to_numpy()[found.person] - 1)
        return {}

    def write(self, piece: pa.Table) -> None:
        """Keep the piece."""
        self.pieces.append(piece.cast(pa.schema([field.remove_metadata() for field in piece.schema])))

    def notes(self) -> list[str]:
        """None."""
        return []


@lru_cache(MODELS)
def _loaded(folder: str) -> Recourse:
    return load(folder).recourse()


def _is_pandas(batch: Any) -> bool:
    return isinstance(batch, pd.DataFrame)


def _as_arrow(batch: Any) -> pa.Table:
    if _is_pandas(batch):
        return _from_pandas(batch)
    if isinstance(batch, pa.RecordBatch):
        return pa.Table.from_batches([batch])
    try:
        if is_arrow(batch):
            return arrow_table(batch)
    except pa.ArrowInvalid:  # one column, such as a Series
        pass
    received = f"a {type(batch).__name__}"
    raise DataError(message("tables of pandas, polars or Arrow", received, "convert it to one of these"))


def _from_pandas(batch: pd.DataFrame) -> pa.Table:
    named.check_columns(batch)
    try:
        return pa.Table.from_pandas(batch, preserve_index=False)
    except pa.ArrowException as error:
        received = f"others ({error.args[-1]})"
        raise DataError(message("columns whose cells are of one type", received, "convert them")) from None


def _one(table: pa.Table) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return found


def _like(batch: Any, table: pa.Table) -> Any:
    """The table in the type of the batch."""
    if isinstance(batch, pa.RecordBatch):
        (found,) = table.combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], schema=table.schema)
        ]
        return found
    return table if isinstance(batch, pa.Table) else type(batch)(table)


def _framed(
    batch: pd.DataFrame, table: pa.Table, rows: NDArray[np.int64], schema: Schema, keep: Sequence[str]
) -> pd.DataFrame:
    """The table as a DataFrame: labels are those of these rows of the batch, and so are kept columns.

    But texts are pandas' own in every answer: Dask has another type for them than the frame it was given.
    """
    frame: pd.DataFrame = table.to_pandas()
    for feature in schema.features:
        if feature.missing != "refuse":
            frame[feature.name] = table.column(feature.name).to_pandas(types_mapper=NULLABLE.get)
    for name in keep:
        if not isinstance(batch[name].dtype, pd.StringDtype):
            frame[name] = batch[name].array.take(rows)
    return frame.set_axis(batch.index.take(rows), axis=0)


def _example(recourse: Recourse, table: pa.Table, keep: Sequence[str]) -> TableSource:
    """One row that anybody could have, where there is none: its answer has the columns of all answers."""
    encoding = recourse.encoding
    row = encoding.decode(torch.zeros(1, encoding.dim, dtype=torch.float64))
    batch = pa.RecordBatch.from_pandas(row, preserve_index=False)
    for name in keep:
        batch = batch.append_column(name, pa.nulls(1, table.schema.field(name).type))
    return TableSource("the batch", tuple(batch.schema.names), iter([batch]))
