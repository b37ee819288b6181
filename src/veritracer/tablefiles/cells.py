"""Text cells as typed columns: by a schema where there is one, else by what all cells of a column allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from veritracer.errors import DataError, message
from veritracer.schema import Feature, Schema
from veritracer.schema.feature import is_number

EMPTY = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null")
"""What stands for an empty cell in CSV, unless the schema knows it as a value."""


def typed(piece: pa.RecordBatch, schema: Schema, *, is_text: bool, start: int) -> pd.DataFrame:
    """The piece as a table that fits ``schema``: its features and its target as values, the rest as it is.

    The index counts the rows of the file from 1 on, ``start`` of them before this piece, so that messages
    can name them.
    """
    index = pd.RangeIndex(start + 1, start + 1 + piece.num_rows, name="row")
    if not is_text:
        frame: pd.DataFrame = piece.to_pandas(ignore_metadata=True)
        return frame.set_axis(index)
    readers = {feature.name: feature for feature in schema.features}
    columns: dict[str, Any] = {}
    for name in piece.schema.names:
        column = piece.column(name)
        if name == schema.target and schema.favourable is not None:
            columns[name] = _levels(column, [schema.unfavourable, schema.favourable])
        elif name not in readers:
            columns[name] = column.to_pandas().to_numpy(dtype=object)
        else:
            columns[name] = _cells(readers[name], column, start)
    return pd.DataFrame(columns, index=index)


def inferred(table: pa.Table, *, is_text: bool) -> pd.DataFrame:
    """A whole table with the narrowest type for each column: whole numbers, numbers, true/false, text."""
    if not is_text:
        whole: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        return whole
    return pd.DataFrame({name: _narrowest(table.column(name)) for name in table.schema.names})


def _cells(feature: Feature, column: pa.Array, start: int) -> Any:
    if not feature.is_numeric:
        return _levels(column, [*feature.categories, *feature.missing_codes])
    texts = [code for code in feature.missing_codes if not is_number(code)]
    if texts:  # numbers among words, one by one: such columns are rare
        return np.array([_number_or(cell, texts) for cell in column.to_pylist()], dtype=object)
    try:
        return _numbers(column).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        raise _no_number(feature, column, start) from None


def _numbers(column: Any) -> Any:
    """The column in float64; empty cells are null."""
    trimmed = pc.utf8_trim_whitespace(column)
    present = pc.if_else(pc.is_in(trimmed, value_set=pa.array(EMPTY)), None, trimmed)
    return present.cast(pa.float64())


def _levels(column: pa.Array, known: list[Any]) -> Any:
    """Each text as the value that it is written for: one of ``known``, nothing, or itself."""
    coded = column.dictionary_encode()
    values = _Values(known)
    found = np.empty(len(coded.dictionary), dtype=object)
    found[:] = [values.of(text) for text in coded.dictionary.to_pylist()]
    return found[coded.indices.to_numpy()]


class _Values:
    """The values of a column by how people write them: 1 also as 1.0, True also as true."""

    def __init__(self, known: list[Any]) -> None:
        self.by_text = {str(value): value for value in known}
        self.truths = {str(value).casefold(): value for value in known if isinstance(value, bool)}
        self.by_number = {float(value): value for value in known if is_number(value)}

    def of(self, text: str) -> Any:
        """The value; None for an empty cell, and the text itself where it is no known value."""
        if text in self.by_text:
            return self.by_text[text]
        if text in EMPTY:
            return None
        number = _as_float(text)
        if number is not None and number in self.by_number:
            return self.by_number[number]
        return self.truths.get(text.casefold(), text)


def _as_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _number_or(text: str, codes: list[Any]) -> Any:
    if text in codes:
        return text
    number = _as_float(text)
    return None if text in EMPTY else text if number is None else number


def _no_number(feature: Feature, column: pa.Array, start: int) -> DataError:
    cells = [cell.strip() for cell in column.to_pylist()]
    wrong = [i for i, cell in enumerate(cells) if cell not in EMPTY and _as_float(cell) is None]
    position = wrong[0] if wrong else 0
    received = f"{cells[position][:60]!r} in row {start + position + 1}"
    received += f" and {len(wrong) - 1:,} more like it" if len(wrong) > 1 else ""
    remedy = "write plain numbers such as 1200.5, and leave unknown cells empty"
    return DataError(message(f"numbers in the column {feature.name!r}", received, remedy))


def _narrowest(column: pa.ChunkedArray) -> Any:
    trimmed = pc.utf8_trim_whitespace(column)
    present = pc.if_else(pc.is_in(trimmed, value_set=pa.array(EMPTY)), None, trimmed)
    for kind in (pa.int64(), pa.float64(), pa.bool_()):
        try:
            found = present.cast(kind)
        except pa.ArrowInvalid:
            continue
        if kind == pa.bool_() and found.null_count:
            return found.to_pandas().to_numpy(dtype=object)
        return found.to_pandas().to_numpy()
    emptied = pc.if_else(pc.is_in(column, value_set=pa.array(EMPTY)), None, column)
    return emptied.to_pandas().to_numpy(dtype=object)
