"""Text cells as typed columns: by a schema where there is one, else by what all cells of a column allow.

``read_table`` reads a table as a whole, to learn from.
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
from veritracer.schema.formats import FEWEST_MARKED
from veritracer.schema.tables import without_decimals
from veritracer.tables.places import MIXED
from veritracer.tables.reading import ROW, Limits, open_table
from veritracer.tables.writing import TEXT, Rejects


def typed(
    piece: pa.RecordBatch, schema: Schema, *, is_text: bool, start: int, lenient: bool = False
) -> pd.DataFrame:
    """The piece as a table that fits ``schema``: its features and its target as values, the rest as it is.

    The index counts the rows of the file from 1 on, ``start`` of them before this piece, so that messages
    can name them. With ``lenient`` text that is no number stays text, for whoever looks at each row.
    """
    index: pd.Index[Any] = pd.RangeIndex(start + 1, start + 1 + piece.num_rows, name="row")
    if ROW in piece.schema.names:
        index = pd.Index(piece.column(ROW).to_numpy(), name="row")
        piece = piece.drop_columns(ROW)
    if not is_text:
        return _with_types(piece, schema).set_axis(index)
    readers = {feature.name: feature for feature in schema.features}
    columns: dict[str, Any] = {}
    for name in piece.schema.names:
        column = piece.column(name)
        if name == schema.target and schema.favourable is not None:
            labels = [label for label in (schema.unfavourable, schema.favourable) if label is not None]
            columns[name] = _values(Texts(name, labels), column)
        elif name not in readers:
            columns[name] = column.to_pandas().to_numpy(dtype=object)
        else:
            columns[name] = _cells(readers[name], column, start, lenient=lenient)
    return pd.DataFrame(columns, index=index)


def inferred(table: pa.Table, *, is_text: bool) -> pd.DataFrame:
    """A whole table with the narrowest type for each column: whole numbers, numbers, true/false, text."""
    index: pd.Index[Any] = pd.RangeIndex(1, table.num_rows + 1, name="row")
    if ROW in table.schema.names:
        index = pd.Index(table.column(ROW).to_numpy(), name="row")
        table = table.drop_columns(ROW)
    if not is_text:
        whole: pd.DataFrame = without_decimals(table).to_pandas(ignore_metadata=True)
        return whole.set_axis(index)
    return pd.DataFrame({name: _narrowest(table.column(name)) for name in table.schema.names}, index=index)


def _cells(feature: Feature, column: pa.Array, start: int, *, lenient: bool) -> Any:
    if needs_text(feature) or not feature.is_numeric:
        return _values(Texts.of(feature), column)
    try:
        return _numbers(column).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        if lenient:
            return _values(Texts.of(feature), column)
        raise _no_number(feature, column, start) from None


def _numbers(column: Any) -> Any:
    """The column in float64; empty cells are null."""
    trimmed = pc.utf8_trim_whitespace(column)
    present = pc.if_else(pc.is_in(trimmed, value_set=pa.array(EMPTY)), None, trimmed)
    return present.cast(pa.float64())


def _values(texts: Texts, column: pa.Array) -> Any:
    """Each text as the value that it stands for, or itself; None for null and for empty cells."""
    coded = column.dictionary_encode()
    found = np.empty(len(coded.dictionary) + 1, dtype=object)  # the last one for null
    found[:-1] = [texts.value(text) for text in coded.dictionary.to_pylist()]
    return found[coded.indices.fill_null(len(coded.dictionary)).to_numpy()]


def _with_types(piece: pa.RecordBatch, schema: Schema) -> pd.DataFrame:
    """A piece whose columns have types; a text is read only where the feature's values need it."""
    piece = without_decimals(piece)
    frame: pd.DataFrame = piece.to_pandas(ignore_metadata=True)
    for feature in schema.features:
        if feature.name not in piece.schema.names:
            continue
        column = piece.column(feature.name)
        mixed = MIXED in (piece.schema.field(feature.name).metadata or {})
        if _is_text(column.type) and (mixed or needs_text(feature)) and not only_words(feature):
            texts = Texts.of(feature, empty=())  # with types an empty cell is null, and no text
            frame[feature.name] = pd.Series(_values(texts, column.cast(pa.string())), dtype=object)
        elif pa.types.is_integer(column.type) and not _fits_float(column):
            frame[feature.name] = column.to_pandas(integer_object_nulls=True).astype(object)
    return frame


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(is_kind(kind) for is_kind in TEXT)


def _fits_float(column: pa.Array) -> bool:
    """Whether float64, which pandas takes for whole numbers around gaps, holds every one of these.

    Where it does not they are objects, in this piece and next to other pieces.
    """
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


CODE = r"^0[0-9]"
"""A whole number that begins like this is a code: 01234 is not 1,234."""

THOUSANDS = r"^[+-]?[1-9][0-9]{0,2}(\.[0-9]{3})+$"
"""Points that could separate thousands."""


def _narrowest(column: pa.ChunkedArray) -> Any:
    trimmed = pc.utf8_trim_whitespace(column)
    present = pc.if_else(pc.is_in(trimmed, value_set=pa.array(EMPTY)), None, trimmed)
    for kind in () if _needs_a_look(present) else (pa.int64(), pa.float64(), pa.bool_()):
        try:
            found = present.cast(kind)
        except pa.ArrowInvalid:
            continue
        if kind == pa.bool_() and found.null_count:
            return found.to_pandas().to_numpy(dtype=object)
        return found.to_pandas().to_numpy()
    emptied = pc.if_else(pc.is_in(column, value_set=pa.array(EMPTY)), None, column)
    return emptied.to_pandas().to_numpy(dtype=object)


def _needs_a_look(present: pa.ChunkedArray) -> bool:
    """Whether numbers could be meant as codes, or points as marks of thousands: then they stay text."""
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
    path: str,
    *,
    schema: Schema | None = None,
    ignore: Sequence[str] = (),
    separator: str = ",",
    limits: Limits = Limits(),  # noqa: B008  # frozen
    rejects: Rejects | None = None,
) -> pd.DataFrame:
    """The whole table without the columns to ignore: typed by the schema, or by what its cells allow.

    What the schema itself ignores may be there, and is left out too. Rows with too few or too many cells go
    to ``rejects``, if there is one, and are refused if not. The index counts rows from 1.
    """
    ragged = None if rejects is None else rejects.add_ragged
    with open_table(path, separator=separator, limits=limits, ragged=ragged) as table:
        for name in ignore:
            if name not in table.names:
                raise DataError(unknown_name("a column to ignore", name, table.names))
        unseen = {*ignore, *(() if schema is None else schema.ignored_names)}
        kept = [name for name in table.names if name not in unseen]
        if not kept:
            remedy = "ignore fewer of them"
            raise DataError(message(f"columns to read in {table.name}", "none", remedy))
        if rejects is not None:
            rejects.begin(kept)
        chunks, size = [], 0
        for chunk in table.chunks:
            chunks.append(chunk.select([*kept, *([ROW] if ROW in chunk.schema.names else [])]))
            size += chunks[-1].nbytes
            limits.check_whole(table.name, size)
        if schema is None:
            whole = pa.concat_tables(
                [pa.Table.from_batches([chunk]) for chunk in chunks], promote_options="permissive"
            )
            return inferred(whole, is_text=table.is_text)
        start, frames = 0, []
        for chunk in chunks:
            lenient = rejects is not None
            frame = typed(chunk, schema, is_text=table.is_text, start=start, lenient=lenient)
            if rejects is not None:
                features = [feature for feature in schema.features if feature.name in frame.columns]
                frame = rejects.without(frame, chunk, refused_rows(Schema(features), frame), schema)
            frames.append(frame)
            start += chunk.num_rows
        return pd.concat(frames)
