"""The one batch function: tables in, tables with counterfactuals out, for whoever maps over partitions.

Spark's ``mapInPandas`` and Dask's ``map_partitions`` hand a function some
rows and want some rows back; docs/scale.md has the recipe for each.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Unpack

import pandas as pd
import pyarrow as pa
import torch

from veritracer.errors import DataError, DataWarning, message
from veritracer.recourse import Recourse
from veritracer.recourse.options import ExplainOptions
from veritracer.saved import load
from veritracer.schema.tables import arrow_table, is_arrow
from veritracer.streaming import explain_table
from veritracer.tablefiles import Table

MODELS = 4
"""Models that a worker keeps in memory."""


def explain_batches(
    batches: Iterable[Any],
    model: str | os.PathLike[str] | Recourse,
    *,
    keep: Sequence[str] = (),
    sentences: bool = False,
    **options: Unpack[ExplainOptions],
) -> Iterator[Any]:
    """For each batch of rows their counterfactuals, as ``veritracer explain`` writes them, in its own type.

    Parameters
    ----------
    batches
        Tables: pandas DataFrames, Arrow tables or record batches, or polars DataFrames. An empty one gives an
        empty one.
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
    for batch in batches:
        table = _as_arrow(batch)
        empty = table.num_rows == 0
        taken = _Taken()
        source = Table("the batch", tuple(table.schema.names), False, lambda: None, iter(_one(table)))
        if empty:
            source = _example(recourse, table, keep)
        done = explain_table(recourse, source, taken, options=options, keep=tuple(keep), sentences=sentences)
        for note in () if empty else done.notes:
            warnings.warn(note, DataWarning, stacklevel=2)
        whole = pa.concat_tables(taken.pieces)
        yield _like(batch, whole.slice(0, 0) if empty else whole)


class _Taken:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.pieces: list[pa.Table] = []

    def write(self, piece: pa.Table) -> None:
        """Keep the piece."""
        self.pieces.append(piece.cast(pa.schema([field.remove_metadata() for field in piece.schema])))

    def notes(self) -> list[str]:
        """None."""
        return []


@lru_cache(MODELS)
def _loaded(folder: str) -> Recourse:
    return load(folder).recourse()


def _as_arrow(batch: Any) -> pa.Table:
    if isinstance(batch, pd.DataFrame):
        return pa.Table.from_pandas(batch, preserve_index=False)
    if isinstance(batch, pa.RecordBatch):
        return pa.Table.from_batches([batch])
    if not is_arrow(batch):
        received = f"a {type(batch).__name__}"
        raise DataError(message("tables of pandas, polars or Arrow", received, "convert it to one of these"))
    found: pa.Table = arrow_table(batch)
    return found


def _one(table: pa.Table) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return found


def _like(batch: Any, table: pa.Table) -> Any:
    """The table in the type of the batch."""
    if isinstance(batch, pd.DataFrame):
        return table.to_pandas()
    if isinstance(batch, pa.RecordBatch):
        (found,) = table.combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], schema=table.schema)
        ]
        return found
    return table if isinstance(batch, pa.Table) else type(batch)(table)


def _example(recourse: Recourse, table: pa.Table, keep: Sequence[str]) -> Table:
    """One row that anybody could have, where there is none: its answer has the columns of all answers."""
    encoding = recourse.encoding
    row = encoding.decode(torch.zeros(1, encoding.dim, dtype=torch.float64))
    batch = pa.RecordBatch.from_pandas(row, preserve_index=False)
    for name in keep:
        batch = batch.append_column(name, pa.nulls(1, table.schema.field(name).type))
    return Table("the batch", tuple(batch.schema.names), False, lambda: None, iter([batch]))
