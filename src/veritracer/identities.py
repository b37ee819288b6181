"""Ids of applicants as text: one person has one id, whatever table it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from veritracer.errors import DataError, message
from veritracer.formatting import is_missing, narrow_dtype

_WRITTEN_FLOAT = re.compile(r"(0|-?[1-9][0-9]*)\.0")
"""A whole number as programs write a column of floats: 1000001.0, but neither 1.10 nor 007."""


def identity_text(identity: Any) -> str:
    """Return one id as text: whole numbers as integers, and text as it is.

    >>> identity_text(1000001.0), identity_text(1000001), identity_text("007"), identity_text("1.10")
    ('1000001', '1000001', '007', '1.10')

    Raises
    ------
    DataError
        If the id is a fraction, or a float so large that it may stand for other whole numbers too.
    """
    if isinstance(identity, float | np.floating | Decimal):
        return str(_whole(identity))
    return str(identity)


def identity_texts(ids: Iterable[Any]) -> list[str]:
    """Return ids as text; a missing one is empty. Columns of pandas and Arrow keep their precision."""
    column = _column(ids)
    dtype = getattr(column, "dtype", None)
    narrow = narrow_dtype(dtype.categories.dtype if isinstance(dtype, pd.CategoricalDtype) else dtype)
    cells = column if narrow is None else np.asarray(column, dtype=narrow)  # pandas would widen each
    return ["" if is_missing(one) else identity_text(one) for one in cells]


def identity_in_csv(cell: str | None) -> str | None:
    """Return the id in a cell of a CSV file, where a column of numbers may be written as floats.

    >>> identity_in_csv("1000001.0"), identity_in_csv("1.10"), identity_in_csv("007")
    ('1000001', '1.10', '007')
    """
    return cell[:-2] if cell is not None and _WRITTEN_FLOAT.fullmatch(cell) else cell


def _column(ids: Iterable[Any]) -> Iterable[Any]:
    """Return a column of Arrow or polars as one of pandas, and everything else unchanged."""
    if isinstance(ids, pd.Series | pd.Index):
        return ids
    stream, array = (hasattr(ids, f"__arrow_c_{name}__") for name in ("stream", "array"))
    if not (stream or array):
        return ids
    import pyarrow as pa

    return pd.arrays.ArrowExtensionArray(pa.chunked_array(ids) if stream else pa.array(ids))


def _whole(number: Any) -> int:
    remedy = "read the column as whole numbers or as text"
    if not np.isfinite(float(number)) or number != int(number):
        raise DataError(message("ids that are text or whole numbers", f"{number}", remedy))
    if isinstance(number, float | np.floating):
        digits = np.finfo(type(number)).nmant + 1
        if abs(number) >= 2**digits:
            expected = f"ids below {2**digits:,} in a column of {np.dtype(type(number))}"
            received = f"{int(number):,}, which may stand for its neighbours too"
            raise DataError(message(expected, received, remedy))
    return int(number)
