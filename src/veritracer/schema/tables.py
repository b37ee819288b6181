"""Convert DataFrames, arrays, lists and Arrow tables to a DataFrame with valid column names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.errors import DataError, closest, listing, message


def table(frame: Any) -> pd.DataFrame:
    """Return the table as a DataFrame; the columns of an array are called x0, x1 and so on."""
    frame = from_arrow(frame)
    if isinstance(frame, np.ndarray) and frame.ndim == 2:
        frame = pd.DataFrame(frame, columns=[f"x{i}" for i in range(frame.shape[1])])
        frame = frame.infer_objects()
    if not isinstance(frame, pd.DataFrame):
        got = f"a {type(frame).__name__}"
        raise DataError(
            message("a DataFrame or a two-dimensional array", got, "wrap it: pandas.DataFrame(...)")
        )
    check_columns(frame)
    if frame.shape[1] == 0:
        raise DataError(message("at least one column", "none", "check how the table was read"))
    if len(frame) == 0:
        raise DataError(
            message("at least one row", "an empty table", "check the file or the filter before this call")
        )
    return frame


def check_columns(frame: pd.DataFrame) -> None:
    """Refuse column names that are repeated or not text."""
    twice = list(dict.fromkeys(frame.columns[frame.columns.duplicated()]))
    if twice:
        raise DataError(
            message("each column once", f"{listing(twice)} more than once", "rename or drop the duplicates")
        )
    odd = [name for name in frame.columns if not isinstance(name, str)]
    if odd:
        got = f"{odd[0]!r} of type {type(odd[0]).__name__}"
        raise DataError(
            message("column names that are text", got, "rename: frame.columns = frame.columns.astype(str)")
        )


def select(X: Any, names: Sequence[str], others: Collection[str | None]) -> pd.DataFrame:
    """Return the columns ``names`` of ``X`` in this order; refuse an empty table and unknown columns."""
    X = from_arrow(X)
    table = _named(X, names, others) if isinstance(X, pd.DataFrame) else _unnamed(X, names)
    if len(table) == 0:
        raise DataError(
            message("at least one row", "an empty table", "check the file, or the filter before this call")
        )
    return table


def _named(table: pd.DataFrame, names: Sequence[str], others: Collection[str | None]) -> pd.DataFrame:
    given = list(table.columns)
    if given == list(names):
        return table
    check_columns(table)
    absent = [name for name in names if name not in given]
    extra = [name for name in given if name not in names and name not in others]
    if absent or extra:
        parts = [f"{listing(absent)} missing"] if absent else []
        parts += [f"{listing(extra)} not in the schema"] if extra else []
        close = closest(absent[0], extra) if absent else None
        remedy = f"was {close!r} meant as {absent[0]!r}?" if close else "was the table cut or joined before?"
        raise DataError(
            message(
                f"{len(names)} columns", f"{len(given)}; " + "; ".join(parts), remedy + " see schema.names"
            )
        )
    return table[list(names)]


def _unnamed(X: Any, names: Sequence[str]) -> pd.DataFrame:
    array = X if isinstance(X, np.ndarray) else _rows(X)
    if array.ndim != 2 or array.shape[1] != len(names):
        shape = "x".join(str(size) for size in array.shape) or "a single value"
        remedy = "pass one row as [[...]]" if array.ndim < 2 else "pass a DataFrame, whose columns have names"
        raise DataError(
            message(f"a table with {len(names)} columns", f"{shape} ({type(X).__name__})", remedy)
        )
    table = pd.DataFrame(array, columns=list(names))
    return table.infer_objects() if array.dtype == object else table


def _rows(X: Any) -> NDArray[Any]:
    if not isinstance(X, Sequence) or isinstance(X, str):
        return np.asarray(X)
    rows = [list(row) if isinstance(row, Iterable) and not isinstance(row, str) else row for row in X]
    widths = {len(row) if isinstance(row, list) else -1 for row in rows}
    if len(widths) > 1 or -1 in widths or not rows:
        return np.empty(len(rows), dtype=object)
    out = np.empty((len(rows), widths.pop()), dtype=object)  # one by one: numpy would turn [1, "a"] into text
    for i, row in enumerate(rows):
        out[i, :] = row
    return out


def is_arrow(X: Any) -> bool:
    """Return True for a table with the Arrow PyCapsule interface, such as those of polars and pyarrow."""
    return hasattr(X, "__arrow_c_stream__") and not isinstance(X, pd.DataFrame)


def from_arrow(X: Any) -> Any:
    """Convert an Arrow table to a DataFrame with Arrow dtypes; return anything else unchanged."""
    if not is_arrow(X):
        return X
    whole = without_decimals(arrow_table(X))
    frame: pd.DataFrame = whole.to_pandas(types_mapper=pd.ArrowDtype, ignore_metadata=True)
    return frame


def without_decimals(table: Any) -> Any:
    """Return an Arrow table or batch with plain numbers instead of decimals.

    Whole numbers become int64 if they fit; all others become the float64 with the same decimal.
    """
    import pyarrow as pa

    for i, kind in enumerate(table.schema.types):
        if pa.types.is_decimal(kind):
            table = table.set_column(i, table.schema.names[i], _undecimal(table.column(i)))
    return table


def _undecimal(column: Any) -> Any:
    import pyarrow as pa

    if column.type.scale <= 0:
        try:
            return column.cast(pa.int64())
        except pa.ArrowInvalid:
            pass  # too large
    return column.cast(pa.string()).cast(pa.float64())  # a direct cast to float64 can be off by a rounding


def arrow_table(X: Any) -> Any:
    """Return the table as a ``pyarrow.Table``, with plain columns instead of dictionaries and views."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        remedy = "pip install 'veritracer[arrow]'"
        raise DataError(message("the package pyarrow", "an install without it", remedy)) from None
    whole = pa.table(X)
    return pa.table([_plain_column(column) for column in whole.columns], names=whole.schema.names)


def _plain_column(column: Any) -> Any:
    """Return the column without a dictionary, and with text as Arrow's plain strings."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        parts = [_plain_column(c.dictionary).take(c.indices) for c in column.chunks]
        return pa.chunked_array(parts) if parts else pa.chunked_array([], pa.string())
    return column.cast(pa.string()) if _is_other_text(kind) else column


def _is_other_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
