"""Which rows of a table can not be encoded, and why: one bad cell must not cost everybody else's row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.encoding import cells
from veritracer.errors import DataError
from veritracer.schema import Feature, Schema

Refusal = Callable[[Feature, "pd.Series[Any]"], str | None]
"""Why the cells of a feature's column can not be read; None where they can."""


def unreadable(feature: Feature, column: pd.Series[Any]) -> str | None:
    """Why cells are none of the feature's, before a scale was fitted."""
    try:
        cells.read(feature, column)
    except DataError as error:
        return str(error)
    return None


def refused_rows(schema: Schema, frame: pd.DataFrame, refusal: Refusal = unreadable) -> dict[int, str]:
    """The rows that ``refusal`` refuses a cell of, by position, each with the first reason.

    Equal cells are looked at once, and halved until one is left: a few bad ones among many are found fast.
    """
    found: dict[int, str] = {}
    for feature in schema.features:
        column = frame[feature.name]
        if refusal(feature, column) is None:
            continue
        form = column.map(lambda cell: f"{type(cell).__name__} {cell!r}")
        wrong = _halved(feature, column, np.flatnonzero(~form.duplicated()), refusal)
        for row in np.flatnonzero(form.isin(form.iloc[wrong])).tolist():
            found.setdefault(row, refusal(feature, column.iloc[[row]]) or "")
    return dict(sorted(found.items()))


def _halved(feature: Feature, column: pd.Series[Any], rows: NDArray[np.int64], refusal: Refusal) -> list[int]:
    if refusal(feature, column.iloc[rows]) is None:
        return []
    if len(rows) == 1:
        return [int(rows[0])]
    middle = len(rows) // 2
    return [
        *_halved(feature, column, rows[:middle], refusal),
        *_halved(feature, column, rows[middle:], refusal),
    ]
