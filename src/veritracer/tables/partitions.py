"""Explain the partitions of a table that another library distributes, such as Dask, Spark or Ray Data.

Spark's ``mapInPandas`` and Dask's ``map_partitions`` hand a function some rows and expect some rows back;
docs/how-to/run-on-many-cores.md has the recipe for each.
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

from veritracer.encoding import Encoding
from veritracer.errors import DataError, DataWarning, message
from veritracer.persistence import load
from veritracer.recourse import Recourse
from veritracer.schema import Schema
from veritracer.schema import tables as named
from veritracer.schema.tables import arrow_table, is_arrow
from veritracer.tables.batches import MODELS, explain_rows, naming, typed_rows
from veritracer.tables.columns import check_columns
from veritracer.tables.exact_columns import counterfactual_table
from veritracer.tables.jobs import Batch, collect_warnings

NAME = "the batch"
"""What messages call a batch."""

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
    """Yield the counterfactuals of each batch, as ``veritracer explain`` writes them, in its own type.

    Parameters
    ----------
    batches
        Tables: pandas DataFrames, Arrow tables or record batches, or polars DataFrames. An empty one gives an
        empty one. The answers to a pandas DataFrame have its index, with the label of a person at each of
        their alternatives; types are those of the schema, whatever is missing in a batch.
    model
        The folder of a saved model, loaded once in each process, or a ``Recourse``.
    keep
        Columns to copy to the output, such as an identity.
    sentences
        Whether to add a sentence for each counterfactual.
    options
        Those of ``Recourse.explain``.
    """
    recourse = model if isinstance(model, Recourse) else _loaded(os.fspath(model))
    encoding, keep = recourse.encoding, list(keep)
    for batch in batches:
        table = _as_arrow(batch)
        check_columns(NAME, table.schema.names, encoding.schema, keep)
        rows = _one_batch(table) if table.num_rows else _example(encoding, table, keep)
        frame, _ = typed_rows(Batch(NAME, rows), encoding.schema, encoding, keep)
        with collect_warnings() as noticed, naming(NAME):
            answers = explain_rows(recourse, options, frame)
        found = counterfactual_table(answers, frame[keep], sentences=sentences)
        found = found.cast(pa.schema([field.remove_metadata() for field in found.schema]))
        if table.num_rows == 0:
            found = found.slice(0, 0)
        for sentence in noticed.values() if table.num_rows else ():
            warnings.warn(sentence, DataWarning, stacklevel=2)
        if isinstance(batch, pd.DataFrame):
            yield _framed(batch, found, answers.row[: found.num_rows], encoding.schema, keep)
        else:
            yield _like(batch, found)


@lru_cache(MODELS)
def _loaded(folder: str) -> Recourse:
    return load(folder).recourse()


def _as_arrow(batch: Any) -> pa.Table:
    if isinstance(batch, pd.DataFrame):
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


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    (batch,) = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    return batch


def _like(batch: Any, table: pa.Table) -> Any:
    """Return the table in the type of the batch."""
    if isinstance(batch, pa.RecordBatch):
        return _one_batch(table)
    return table if isinstance(batch, pa.Table) else type(batch)(table)


def _framed(
    batch: pd.DataFrame, table: pa.Table, rows: NDArray[np.int64], schema: Schema, keep: Sequence[str]
) -> pd.DataFrame:
    """Return the table as a DataFrame with the labels and the kept columns of these rows of the batch.

    Texts are pandas' own in every answer, since Dask has another type for them than the frame it was given.
    """
    frame: pd.DataFrame = table.to_pandas()
    for feature in schema.features:
        if feature.missing != "refuse":
            frame[feature.name] = table.column(feature.name).to_pandas(types_mapper=NULLABLE.get)
    for name in keep:
        if not isinstance(batch[name].dtype, pd.StringDtype):
            frame[name] = batch[name].array.take(rows)
    return frame.set_axis(batch.index.take(rows), axis=0)


def _example(encoding: Encoding, table: pa.Table, keep: Sequence[str]) -> pa.RecordBatch:
    """Return one legal row for a batch without rows: its answer has the columns of all answers."""
    row = encoding.decode(torch.zeros(1, encoding.dim, dtype=torch.float64))
    batch = pa.RecordBatch.from_pandas(row, preserve_index=False)
    for name in keep:
        batch = batch.append_column(name, pa.nulls(1, table.schema.field(name).type))
    return batch
