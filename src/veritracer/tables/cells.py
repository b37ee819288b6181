"""Give the cells of a table their types.

Where there is a schema it decides what a text means, through ``encoding.exact.Texts``; where there is none, a
column gets the narrowest type that holds all of its cells.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
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
from veritracer.tables.csv_blocks import CSVFormat
from veritracer.tables.jobs import ROW, Batch, Reject
from veritracer.tables.reading import read_batches
from veritracer.tables.writing import TEXT

WHOLE_ROWS = 16_384
"""Rows of a batch where a whole table is read."""

CODE = r"^0[0-9]"
"""A whole number that begins like this is a code: 01234 is not 1,234."""

THOUSANDS = r"^[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+$"
"""Points that could separate thousands."""


def apply_schema(
    batch: pa.RecordBatch, schema: Schema, *, is_text: bool, lenient: bool = False
) -> pd.DataFrame:
    """Return a batch as a table whose features and target have the types of ``schema``.

    Parameters
    ----------
    batch
        Rows of a table, numbered in ``ROW`` or else from 1; other columns than those of the schema stay as
        they are.
    schema
        The features, and the labels of the target.
    is_text
        Whether every cell is text (CSV), or columns have types already.
    lenient
        Leave text that is no number as it is, for checks of single rows, instead of refusing it.
    """
    index, batch = _numbers_and_cells(batch)
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
            columns[name] = _from_text(readers[name], column, index, lenient=lenient)
    return pd.DataFrame(columns, index=index)


def _numbers_and_cells(rows: Any) -> tuple[pd.Index[Any], Any]:
    """Return the numbers of rows, and the rows without them."""
    if ROW not in rows.schema.names:
        return pd.RangeIndex(1, 1 + rows.num_rows, name="row"), rows
    return pd.Index(rows.column(ROW).to_numpy(), name="row"), rows.drop_columns([ROW])


def _from_text(feature: Feature, column: pa.Array, rows: pd.Index[Any], *, lenient: bool) -> Any:
    if needs_text(feature) or not feature.is_numeric:
        return _values(Texts.of(feature), column)
    try:
        return _present(column).cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        if lenient:
            return _values(Texts.of(feature), column)
        raise _no_number(feature, column, rows) from None


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


def _no_number(feature: Feature, column: pa.Array, rows: pd.Index[Any]) -> DataError:
    cells = [cell.strip() for cell in column.to_pylist()]
    wrong = [i for i, cell in enumerate(cells) if cell not in EMPTY and as_number(cell) is None]
    position = wrong[0] if wrong else 0
    received = f"{cells[position][:60]!r} in row {rows[position]}"
    received += f" and {len(wrong) - 1:,} more like it" if len(wrong) > 1 else ""
    remedy = "write plain numbers such as 1200.5, and leave unknown cells empty"
    return DataError(message(f"numbers in the column {feature.name!r}", received, remedy))


# ---------------------------------------------------------------- without a schema


def infer_types(table: pa.Table, *, is_text: bool) -> pd.DataFrame:
    """Return a whole table with the narrowest type for each column: integers, floats, booleans, text."""
    index, table = _numbers_and_cells(table)
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
    rejects: list[Reject] | None = None,
) -> pd.DataFrame:
    """Read a whole table into memory.

    Parameters
    ----------
    place, query, csv
        A single table, as for :class:`TableSource`.
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
    left_out = {*ignore, *(() if schema is None else schema.ignored_names)}
    batches = list[Batch]()
    for batch in read_batches(place, query, csv=csv, rows=WHOLE_ROWS, collect_rejects=rejects is not None):
        kept = _kept_columns(batch, ignore, left_out)
        # Rejected rows are written with all their cells; otherwise nothing else is kept in memory.
        batches.append(batch if rejects is not None else replace(batch, rows=batch.rows.select(kept)))
    if rejects is not None:
        rejects += [reject for batch in batches for reject in batch.rejects]
    if schema is None:
        tables = [pa.Table.from_batches([batch.rows.select(kept)]) for batch in batches]
        return infer_types(pa.concat_tables(tables, promote_options="permissive"), is_text=batch.is_text)
    frames = []
    for batch in batches:
        rows, lenient = batch.rows.select(kept), rejects is not None
        frame = apply_schema(rows, schema, is_text=batch.is_text, lenient=lenient)
        if rejects is not None:
            features = [feature for feature in schema.features if feature.name in frame.columns]
            frame, found = without_refused(frame, batch, refused_rows(Schema(features), frame), schema)
            rejects += found
        frames.append(frame)
    return pd.concat(frames)


def _kept_columns(batch: Batch, ignore: Sequence[str], left_out: Collection[str]) -> list[str]:
    """Return the columns to read, and that of the row numbers."""
    for name in ignore:
        if name not in batch.columns:
            raise DataError(unknown_name("a column to ignore", name, batch.columns))
    kept = [name for name in batch.columns if name not in left_out]
    if not kept:
        raise DataError(message(f"columns to read in {batch.table}", "none", "ignore fewer of them"))
    return [*kept, ROW]


# ---------------------------------------------------------------- rejected rows


def without_refused(
    frame: pd.DataFrame, batch: Batch, refused: Mapping[int, str], schema: Schema
) -> tuple[pd.DataFrame, list[Reject]]:
    """Return the rows of a batch that are not refused, and the others as they are in the file.

    ``refused`` has the reasons by the positions of the rows.
    """
    if not refused:
        return frame, []
    rows = batch.rows.select(batch.columns).take(pa.array(list(refused))).to_pylist()
    rejects = [
        Reject(
            int(frame.index[position]),
            reason,
            {name: "" if cell is None else str(cell) for name, cell in cells.items()},
        )
        for (position, reason), cells in zip(refused.items(), rows, strict=True)
    ]
    left = frame.drop(index=frame.index[list(refused)])
    numeric = [feature.name for feature in schema.features if feature.is_numeric]
    return left.assign(**{name: _as_numbers(left[name]) for name in numeric if name in left.columns}), rejects


def _as_numbers(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return a column of objects as numbers, where only rejected cells made it objects."""
    found = column.infer_objects()
    return found if found.dtype.kind in "iuf" else column
