"""Give the cells of a table their types.

Where there is a schema it decides what a text means, through ``encoding.exact.Texts``; where there is none, a
column gets the narrowest type that holds all of its cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from veritracer.encoding.cells import refused_rows
from veritracer.encoding.exact import EMPTY, Texts, as_number, needs_text, only_words
from veritracer.errors import DataError, message, unknown_name
from veritracer.schema import Feature, Schema
from veritracer.schema.number_formats import FEWEST_MARKED
from veritracer.schema.tables import without_decimals
from veritracer.tables.csv_blocks import ROW, CSVFormat
from veritracer.tables.reading import open_table
from veritracer.tables.rejects import Rejects

TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)

CODE = r"^0[0-9]"
"""A whole number that begins like this is a code: 01234 is not 1,234."""

THOUSANDS = r"^[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+$"
"""Points that could separate thousands."""


def apply_schema(
    batch: pa.RecordBatch, schema: Schema, *, is_text: bool, start: int = 0, lenient: bool = False
) -> pd.DataFrame:
    """Return a batch as a table whose features and target have the types of ``schema``.

    Parameters
    ----------
    batch
        Rows of a table; other columns than those of the schema stay as they are.
    schema
        The features, and the labels of the target.
    is_text
        Whether every cell is text (CSV), or columns have types already.
    start
        Rows of the table before these: the index counts from ``start + 1``, as messages do.
    lenient
        Leave text that is no number as it is, for checks of single rows, instead of refusing it.
    """
    index: pd.Index[Any] = pd.RangeIndex(start + 1, start + 1 + batch.num_rows, name="row")
    if ROW in batch.schema.names:
        index = pd.Index(batch.column(ROW).to_numpy(), name="row")
        batch = batch.drop_columns(ROW)
    if not is_text:
        return _from_types(batch, schema).set_axis(index)
    readers = {feature.name: feature for feature in schema.features}
    columns: dict[str, Any] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if name == schema.target and schema.favourable is not None:
            labels = [label for label in (schema.unfavourable, schema.favourable) if label is not None]
            columns[name] = _values(Texts(name, labels), column)
        elif name not in readers:
            columns[name] = column.to_pandas().to_numpy(dtype=object)
        else:
            columns[name] = _from_text(readers[name], column, start, lenient=lenient)
    return pd.DataFrame(columns, index=index)


def _from_text(feature: Feature, column: pa.Array, start: int, *, lenient: bool) -> Any:
    if needs_text(feature) or not feature.is_numeric:
        return _values(Texts.of(feature), column)
    try:
        return _present(column).cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        if lenient:
            return _values(Texts.of(feature), column)
        raise _no_number(feature, column, start) from None


def _present(column: Any) -> Any:
    """Return the texts without the spaces around them; empty cells are null."""
    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(trimmed, value_set=pa.array(EMPTY)), None, trimmed)


def _values(texts: Texts, column: pa.Array) -> Any:
    """Return the value that each text stands for, or the text; None for null and for empty cells."""
    coded = column.dictionary_encode()
    found = np.empty(len(coded.dictionary) + 1, dtype=object)  # the last one for null
    found[:-1] = [texts.value(text) for text in coded.dictionary.to_pylist()]
    return found[coded.indices.fill_null(len(coded.dictionary)).to_numpy()]


def _from_types(batch: pa.RecordBatch, schema: Schema) -> pd.DataFrame:
    """Return a batch whose columns have types; text is read only where the feature's values need it."""
    batch = without_decimals(batch)
    frame: pd.DataFrame = batch.to_pandas(ignore_metadata=True)
    for feature in schema.features:
        if feature.name not in batch.schema.names:
            continue
        column = batch.column(feature.name)
        if _is_text(column.type) and needs_text(feature) and not only_words(feature):
            texts = Texts.of(feature, empty=())  # with types an empty cell is null, and no text
            frame[feature.name] = pd.Series(_values(texts, column.cast(pa.string())), dtype=object)
        elif pa.types.is_integer(column.type) and not _fits_float(column):
            frame[feature.name] = column.to_pandas(integer_object_nulls=True).astype(object)
    return frame


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(is_kind(kind) for is_kind in TEXT)


def _fits_float(column: pa.Array) -> bool:
    """Return whether float64, which pandas takes for whole numbers around gaps, holds all of these."""
    try:
        column.cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _no_number(feature: Feature, column: pa.Array, start: int) -> DataError:
    cells = [cell.strip() for cell in column.to_pylist()]
    wrong = [i for i, cell in enumerate(cells) if cell not in EMPTY and as_number(cell) is None]
    position = wrong[0] if wrong else 0
    received = f"{cells[position][:60]!r} in row {start + position + 1}"
    received += f" and {len(wrong) - 1:,} more like it" if len(wrong) > 1 else ""
    remedy = "write plain numbers such as 1200.5, and leave unknown cells empty"
    return DataError(message(f"numbers in the column {feature.name!r}", received, remedy))


# ---------------------------------------------------------------- without a schema


def infer_types(table: pa.Table, *, is_text: bool) -> pd.DataFrame:
    """Return a whole table with the narrowest type for each column: integers, floats, booleans, text."""
    index: pd.Index[Any] = pd.RangeIndex(1, table.num_rows + 1, name="row")
    if ROW in table.schema.names:
        index = pd.Index(table.column(ROW).to_numpy(), name="row")
        table = table.drop_columns(ROW)
    if not is_text:
        whole: pd.DataFrame = without_decimals(table).to_pandas(ignore_metadata=True)
        return whole.set_axis(index)
    return pd.DataFrame({name: _narrowest(table.column(name)) for name in table.schema.names}, index=index)


def _narrowest(column: pa.ChunkedArray) -> Any:
    present = _present(column)
    for kind in () if _may_be_codes(present) else (pa.int64(), pa.float64(), pa.bool_()):
        try:
            found = present.cast(kind)
        except pa.ArrowInvalid:
            continue
        if kind == pa.bool_() and found.null_count:
            return found.to_pandas().to_numpy(dtype=object)
        return found.to_pandas().to_numpy()
    emptied = pc.if_else(pc.is_in(column, value_set=pa.array(EMPTY)), None, column)
    return emptied.to_pandas().to_numpy(dtype=object)


def _may_be_codes(present: pa.ChunkedArray) -> bool:
    """Return whether numbers may be codes, or their points mark thousands: then they stay text."""
    if _any(pc.match_substring_regex(present, CODE)):
        return True
    pointed = pc.match_substring(present, ".")
    if not _any(pointed) or not _any(pc.invert(pointed)):
        return False
    marked = pc.unique(present.filter(pc.fill_null(pointed, False)))
    return len(marked) >= FEWEST_MARKED and bool(pc.all(pc.match_substring_regex(marked, THOUSANDS)).as_py())


def _any(found: pa.ChunkedArray) -> bool:
    return bool(pc.any(found).as_py())


# ---------------------------------------------------------------- whole tables


def read_table(
    place: str,
    query: str | None = None,
    *,
    schema: Schema | None = None,
    ignore: Sequence[str] = (),
    csv: CSVFormat = CSVFormat(),  # noqa: B008  # frozen
    rejects: Rejects | None = None,
) -> pd.DataFrame:
    """Read a whole table into memory.

    Parameters
    ----------
    place, query, csv
        The table, as for :func:`open_table`.
    schema
        Gives columns their types; what it ignores may be there and is left out. By default types are
        inferred from all cells of a column.
    ignore
        Columns to leave out.
    rejects
        Takes the rows that cannot be read; without it they are refused.

    Returns
    -------
    DataFrame
        The rows, whose index counts those of the file from 1.
    """
    ragged = None if rejects is None else rejects.add
    with open_table(place, query, csv=csv, ragged=ragged) as table:
        for name in ignore:
            if name not in table.columns:
                raise DataError(unknown_name("a column to ignore", name, table.columns))
        left_out = {*ignore, *(() if schema is None else schema.ignored_names)}
        kept = [name for name in table.columns if name not in left_out]
        if not kept:
            remedy = "ignore fewer of them"
            raise DataError(message(f"columns to read in {table.name}", "none", remedy))
        if rejects is not None:
            rejects.columns = list(table.columns)
        # Rejected rows are written with all their cells; otherwise nothing else is kept in memory.
        batches = [batch if rejects is not None else _select(batch, kept) for batch in table.batches]
    if schema is None:
        tables = [pa.Table.from_batches([_select(batch, kept)]) for batch in batches]
        return infer_types(pa.concat_tables(tables, promote_options="permissive"), is_text=table.is_text)
    start, frames = 0, []
    for batch in batches:
        frame = apply_schema(
            _select(batch, kept), schema, is_text=table.is_text, start=start, lenient=rejects is not None
        )
        if rejects is not None:
            features = [feature for feature in schema.features if feature.name in frame.columns]
            frame = rejects.without(frame, batch, refused_rows(Schema(features), frame), schema)
        frames.append(frame)
        start += batch.num_rows
    return pd.concat(frames)


def _select(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return these columns of a batch, and the numbers of its rows if it has them."""
    return batch.select([*columns, *([ROW] if ROW in batch.schema.names else [])])
