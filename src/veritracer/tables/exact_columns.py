"""Counterfactuals as Arrow columns that read back as the rows that were certified, or are refused.

A feature's column has the same type in every piece of every file, whatever is in it. Text is taken where no
other type holds all of the feature's values; such a field says which values its texts stand for, so that a
format with types of its own (JSON lines) can write those.
"""

from __future__ import annotations

import json
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from veritracer.encoding import Encoding, cells
from veritracer.encoding.exact import needs_text, numbers, only_words, texts
from veritracer.errors import DataError, message
from veritracer.formatting import to_python
from veritracer.schema import Feature
from veritracer.schema.feature import is_number
from veritracer.tables.cells import apply_schema
from veritracer.tables.jobs import ADDED
from veritracer.tables.writing import VALUES

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals

_EXACT = 2**53
"""The largest integer up to which float64 holds all of them."""


def counterfactual_table(found: Counterfactuals, kept: pd.DataFrame, *, sentences: bool = False) -> pa.Table:
    """Return counterfactuals as a table to write: kept columns, the values shown, and ``recourse.*``."""
    columns: dict[str, Any] = {}
    if "alternative" in found.frame.index.names:
        columns[f"{ADDED}row"] = pa.array(found.frame.index.get_level_values(0))
        columns[f"{ADDED}alternative"] = pa.array(found.alternative + 1)
    columns |= kept_columns(kept, found.row)
    shown = {str(name): exact_column(found.encoding, found.frame[name]) for name in found.frame.columns}
    columns |= {name: column for name, (_, column) in shown.items()}
    columns |= {f"{ADDED}{name}": _plain(getattr(found, name)) for name in ("decision", "probability")}
    columns |= {f"{ADDED}{name}": _plain(getattr(found, name)) for name in found.table.columns}
    if sentences:
        columns[f"{ADDED}sentence"] = pa.array([found.sentence(i) for i in range(len(found))], pa.string())
    fields = [shown[n][0] if n in shown else pa.field(n, column.type) for n, column in columns.items()]
    table = pa.table(list(columns.values()), schema=pa.schema(fields))
    check_exact(table, found)
    return table


def kept_columns(kept: pd.DataFrame, rows: NDArray[np.int64] | None = None) -> dict[str, pa.Array]:
    """Return the columns of a table, of these rows or of all, in the types of the file."""
    chosen = kept if rows is None else kept.iloc[rows]
    return {str(name): pa.array(chosen[name].array) for name in chosen.columns}


def _plain(values: Any) -> pa.Array:
    """Return a column of the result; an infinite bound, which nobody has, is null."""
    if values.dtype.kind == "f":
        return pa.array(values, mask=~np.isfinite(values))
    if values.dtype.kind in "OU":
        return pa.array(values.astype(object), pa.string())
    return pa.array(values)


def exact_column(encoding: Encoding, column: pd.Series[Any]) -> tuple[pa.Field, pa.Array]:
    """Return the Arrow field and array of a feature's column; missing values are null."""
    feature = encoding.schema[str(column.name)]
    kind = arrow_type(feature)
    if kind == pa.string():
        array = _text_column(feature, texts(encoding, column))
    elif feature.is_numeric:
        array = _numbers(encoding, feature, column, kind)
    else:
        values = [*feature.categories, *feature.markers]
        array = pa.array(values, kind).take(pa.array(cells.levels(feature, column)))
    return pa.field(feature.name, kind, metadata=_meaning(feature)), array


def arrow_type(feature: Feature) -> pa.DataType:
    """Return the type that holds every value of a feature exactly."""
    if needs_text(feature):
        return pa.string()
    known = [*feature.categories, *feature.missing_codes]
    if feature.is_numeric:
        whole = all(float(code).is_integer() and abs(float(code)) <= _EXACT for code in known)
        return pa.int64() if whole and feature.kind == "integer" else pa.float64()
    if all(isinstance(value, bool) for value in known):
        return pa.bool_()
    return pa.int64() if all(isinstance(value, int) for value in known) else pa.float64()


def check_exact(table: pa.Table, found: Counterfactuals) -> None:
    """Refuse a table that would be read as other rows than the certified ones."""
    schema = found.encoding.schema
    (batch,) = table.select(schema.names).combine_chunks().to_batches()
    again = found.encoding.encode(apply_schema(batch, schema, is_text=False), out_of_range="ignore")
    differs = found.encoding.changed(again, found.x_cf)
    if bool(differs.any()):
        row, feature = (int(i) for i in differs.nonzero()[0])
        name = schema.names[feature]
        received = f"{table.column(name)[row].as_py()!r} for {to_python(found.frame[name].iloc[row])!r}"
        expected = f"values in the column {name!r} that can be written as they were certified"
        raise DataError(message(expected, received, "give that column in another type, such as float64"))


def _meaning(feature: Feature) -> dict[bytes, bytes] | None:
    """Return the metadata that map the texts of a field to values; None where each text is the value."""
    known = {str(value): value for value in (*feature.categories, *feature.missing_codes)}
    if not needs_text(feature) or (only_words(feature) and "" not in known):
        return None
    written = {} if feature.number_format is None else {"format": feature.number_format}
    return {VALUES: json.dumps({"known": known, "numbers": feature.is_numeric, **written}).encode()}


def _text_column(feature: Feature, cells_as_text: NDArray[np.object_]) -> pa.Array:
    try:
        return pa.array(cells_as_text, pa.string())
    except UnicodeEncodeError as error:
        received = f"{error.object[error.start]!r}, half of a character"
        expected = f"text in the column {feature.name!r} that UTF-8 can hold"
        raise DataError(message(expected, received, "correct the categories in the schema")) from None


def _numbers(encoding: Encoding, feature: Feature, column: pd.Series[Any], kind: pa.DataType) -> pa.Array:
    try:
        if column.dtype.kind in "iu":
            return pa.array(column, from_pandas=True).cast(kind)
        values, marker = numbers(encoding, column)
        if column.dtype != object:
            return pa.array(values, mask=marker == 0).cast(kind)
        mixed = zip(column, values.tolist(), marker.tolist(), strict=True)
        whole = kind == pa.int64()
        found = [None if mark == 0 else _number(cell, value, whole=whole) for cell, value, mark in mixed]
        return pa.array(found, kind)
    except (pa.ArrowInvalid, OverflowError):
        raise _unholdable(feature, column, kind) from None


def _number(cell: Any, value: float, *, whole: bool) -> int | float:
    """Return the number of a cell, as an integer if that is asked for or if no float holds it."""
    if isinstance(cell, Integral) and (whole or int(cell) != value):
        return int(cell)
    return int(value) if whole and value.is_integer() else value


def _unholdable(feature: Feature, column: pd.Series[Any], kind: pa.DataType) -> DataError:
    """Return the error for the first cell that does not fit into the type of its column."""
    whole = kind == pa.int64()
    values = [None if pd.isna(cell) else to_python(cell) for cell in column.astype(object)]
    wrong = [i for i, value in enumerate(values) if is_number(value) and not _fits(value, whole=whole)]
    received = f"{values[wrong[0]]!r} in row {to_python(column.index[wrong[0]])!r}" if wrong else "others"
    expected = f"{'whole numbers' if whole else 'numbers'} that {kind} holds in the column {feature.name!r}"
    return DataError(message(expected, received, "correct the cell: it would have to be rounded"))


def _fits(value: Any, *, whole: bool) -> bool:
    return float(value).is_integer() and -(2**63) <= value < 2**63 if whole else float(value) == value
