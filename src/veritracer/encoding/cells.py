"""Read the cells of one raw column as numbers, and write numbers as cells.

A cell is a value (a number, or the position of a category) or a marker: 0 for an empty cell, 1 and up for the
declared codes, and -1 if the value is present. ``refused_rows`` finds the rows that cannot be read, so that
the others can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.errors import DataError, message
from veritracer.formatting import narrow_dtype, to_python, to_python_list
from veritracer.schema.feature import Feature, Value, is_number

if TYPE_CHECKING:
    from veritracer.schema import Schema

Floats = NDArray[np.float64]
Markers = NDArray[np.int64]

Refusal = Callable[[Feature, "pd.Series[Any]"], str | None]
"""Function that returns the reason why the cells of a column cannot be read, or None."""

_SHORTEST = {2: (3, 4, 5), 4: (6, 7, 8, 9)}  # digits that a float of so many bytes always holds, up to needs
_TENS = np.array([float(10**k) for k in range(23)])  # those that a float64 holds exactly


def read(feature: Feature, column: pd.Series[Any]) -> tuple[Floats, Markers]:
    """Read the cells of a column as values, 0 for missing cells, and markers; refuse illegal cells."""
    values, marker = numbers(feature, column) if feature.is_numeric else _levels(feature, column)
    missing = marker >= 0
    if missing.any() and feature.missing == "refuse":
        row = int(missing.argmax())
        cell = "an empty cell" if marker[row] == 0 else f"the missing code {feature.markers[marker[row]]!r}"
        count = int(missing.sum())
        raise DataError(
            message(
                f"a value in every row of the column {feature.name!r}",
                f"{cell} in {_row(column, row)} ({count:,} of {len(column):,} rows)",
                "fill or drop these rows, or declare missing='impute' (or 'category') for it",
            )
        )
    values[missing] = 0.0
    return values, marker


def levels(feature: Feature, column: pd.Series[Any]) -> NDArray[np.int64]:
    """Return the position of each cell of a column in ``[*feature.categories, *feature.markers]``."""
    values, marker = read(feature, column)
    return np.where(marker >= 0, len(feature.categories) + marker, values.astype(np.int64))


def refuse(
    feature: Feature, column: pd.Series[Any], wrong: NDArray[np.bool_], expected: str, remedy: str
) -> None:
    """Raise for the first row where ``wrong`` holds, naming the value and the row."""
    if wrong.any():
        row = int(wrong.argmax())
        got = f"{to_python(column.iloc[row])!r} in {_row(column, row)}"
        more = int(wrong.sum()) - 1
        got += f" and {more:,} more" if more else ""
        raise DataError(message(f"{expected} in the column {feature.name!r}", got, remedy))


def _row(column: pd.Series[Any], position: int) -> str:
    return f"row {to_python(column.index[position])!r}"


def numbers(feature: Feature, column: pd.Series[Any]) -> tuple[Floats, Markers]:
    """Return the numbers and the markers of the cells; numeric codes are numbers, other markers NaN."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(narrow_dtype(column.dtype.categories.dtype) or object)
    foreign: dict[Value, list[int]] = {}
    narrow = narrow_dtype(column.dtype)
    if narrow is not None:
        values = shortest(column.to_numpy(dtype=narrow, na_value=np.nan))
        empty = np.isnan(values)
    elif column.dtype.kind in "biuf":
        values = column.to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
        empty = np.isnan(values)
    else:
        values, empty, foreign = _numbers_one_by_one(feature, column)
    marker = np.where(empty, 0, -1)
    for position, code in enumerate(feature.missing_codes, start=1):
        if is_number(code):
            marker[values == code] = position
        elif code in foreign:
            marker[foreign[code]] = position
    remedy = "replace it by a number, or by an empty cell and declare missing='impute'"
    refuse(feature, column, np.isinf(values) & (marker < 0), "finite numbers", remedy)
    return values, marker


def shortest(values: NDArray[Any]) -> Floats:
    """Convert narrow floats to their shortest decimals: the float32 next to 0.1 is 0.1, not 0.10000000149.

    This is the decimal with the fewest digits that rounds to the float, as ``str`` finds it, so that a cell
    encodes in the same way after it was shown or written.
    """
    out = values.astype(np.float64)
    left = np.isfinite(out) & (out != 0)
    wide = np.where(left, out, 1.0)
    doubtful = left & (np.abs(np.frexp(wide)[0]) == 0.5)  # neighbours of a power of two are not evenly spaced
    doubtful |= left & (
        np.abs(wide) < float(np.finfo(values.dtype).smallest_normal)
    )  # these have fewer digits
    before_point = np.floor(np.log10(np.abs(wide))).astype(np.int64)
    for digits in _SHORTEST[values.dtype.itemsize]:
        power = digits - 1 - before_point
        doubtful |= left & (np.abs(power) >= len(_TENS))
        ten = _TENS[np.minimum(np.abs(power), len(_TENS) - 1)]
        scaled = np.where(power >= 0, wide * ten, wide / ten)
        doubtful |= left & (np.abs(scaled - np.floor(scaled) - 0.5) < 1e-6)  # halfway between two decimals
        decimal = np.where(power >= 0, np.rint(scaled) / ten, np.rint(scaled) * ten)
        found = left & ~doubtful & (_narrowed(decimal, values.dtype) == values)
        out[found] = decimal[found]
        left &= ~found & ~doubtful
        if not left.any():
            break
    doubtful |= left
    out[doubtful] = [float(str(value)) for value in values[doubtful]]
    return out


def _narrowed(values: Floats, dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # a number rounded up may be infinite in the narrow type: no match
        return values.astype(dtype)


def _numbers_one_by_one(
    feature: Feature, column: pd.Series[Any]
) -> tuple[Floats, NDArray[np.bool_], dict[Value, list[int]]]:
    """Return the numbers of a column of objects, a mask of empty cells, and the rows of codes in text."""
    empty = column.isna().to_numpy(dtype=bool)
    values = np.full(len(column), np.nan)  # and not 0, which may be a code
    foreign: dict[Value, list[int]] = {code: [] for code in feature.missing_codes if not is_number(code)}
    wrong = np.zeros(len(column), dtype=bool)
    written = feature.writing
    for row, cell in enumerate(column.to_numpy(dtype=object)):
        if empty[row]:
            continue
        if isinstance(cell, str | bool) and cell in foreign:
            foreign[cell].append(row)
        elif isinstance(cell, str) and written is not None:
            number = written.read(cell)
            values[row], wrong[row] = (np.nan, True) if number is None else (number, False)
        elif isinstance(cell, Real):
            values[row] = float(str(cell)) if narrow_dtype(getattr(cell, "dtype", None)) else float(cell)
        else:
            wrong[row] = True
    remedy, written_like = "convert the column (pandas.to_numeric), or declare it categorical", ""
    if written is not None:
        remedy, written_like = "correct the cell, or leave it empty", f" written like {written.example}"
    refuse(feature, column, wrong, f"numbers{written_like}", remedy)
    return values, empty, foreign


def _levels(feature: Feature, column: pd.Series[Any]) -> tuple[Floats, Markers]:
    try:
        positions, distinct = pd.factorize(column)
    except TypeError:
        nested = np.array([isinstance(cell, list | dict | set) for cell in column])
        refuse(feature, column, nested, "single values", "spread nested values over columns of their own")
        raise
    # Equality is Python's: 1.0 is the category 1 (a column of whole numbers turns float around a gap).
    levels = {value: level for level, value in enumerate(feature.categories)}
    codes = {value: code for code, value in enumerate(feature.missing_codes, start=1)}
    found = list(_readings(distinct))
    level_of = np.array([_first_known(levels, value) for value in found] + [0], dtype=np.float64)
    marker_of = np.array([_first_known(codes, value) for value in found] + [0], dtype=np.int64)
    values, marker = level_of[positions], marker_of[positions]  # position -1 (empty) is the last entry
    known = ", ".join(repr(value) for value in feature.categories[:5])
    known += f" and {len(feature.categories) - 5:,} more" if len(feature.categories) > 5 else ""
    refuse(
        feature,
        column,
        (values < 0) & (marker < 0),
        f"one of {known}",
        "check its spelling and type, add it to the feature's categories, or declare it a missing code",
    )
    return values, marker


def _readings(cells: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each cell as people read it and as the exact number: they differ in narrow floats."""
    narrow = narrow_dtype(
        cells.categories.dtype if isinstance(cells.dtype, pd.CategoricalDtype) else cells.dtype
    )
    decimals = to_python_list(cells)
    exact = decimals if narrow is None else np.asarray(cells, dtype=narrow).tolist()
    return zip(decimals, exact, strict=True)


def _first_known(position_of: Mapping[Any, int], readings: tuple[Any, Any]) -> int:
    return next((position_of[value] for value in readings if value in position_of), -1)


def write(feature: Feature, values: Floats, marker: Markers, dtype: Any) -> pd.Series[Any]:
    """Return the raw column, in ``dtype`` if every value fits into it, otherwise in a wider dtype."""
    if not feature.is_numeric:
        entry = np.where(marker >= 0, len(feature.categories) + marker, values.astype(np.int64))
        return _looked_up([*feature.categories, None, *feature.missing_codes], entry, dtype)
    words = [i for i, m in enumerate(feature.markers) if m is not None and not is_number(m)]
    if np.isin(marker, words).any():
        mixed = np.array([_native(feature, value) for value in values], dtype=object)
        for position, code in enumerate(feature.markers):
            mixed[marker == position] = np.nan if code is None else code
        return fit(pd.Series(mixed, dtype=object), dtype)
    codes = np.array([float(m) if is_number(m) else np.nan for m in feature.markers])  # type: ignore[arg-type]
    values = np.where(marker >= 0, codes[marker], values)
    written = feature.writing
    text = isinstance(dtype, pd.StringDtype) or pd.api.types.is_object_dtype(dtype)  # as in pandas 2
    if written is not None and text:
        return pd.Series([None if np.isnan(value) else written.write(value) for value in values], dtype=dtype)
    if pd.api.types.is_object_dtype(dtype):
        return pd.Series([_native(feature, value) for value in values], dtype=object)
    return _fit_numbers(values, dtype)


def fit(column: pd.Series[Any], dtype: Any) -> pd.Series[Any]:
    """Convert a column to ``dtype`` if that changes no value; otherwise let pandas choose the dtype."""
    if isinstance(dtype, pd.CategoricalDtype):
        levels = {value: level for level, pair in enumerate(_readings(dtype.categories)) for value in pair}
        position = [-1 if pd.isna(value) else levels.get(value, -2) for value in column]
        if -2 in position:
            return column.infer_objects()
        return pd.Series(pd.Categorical.from_codes(position, dtype=dtype))
    try:
        converted = column.astype(dtype)
    except (TypeError, ValueError, OverflowError):
        return column.infer_objects()
    same = all(
        (pd.isna(cell) and pd.isna(pair[0]))
        or (cell in pair and isinstance(cell, str) == isinstance(pair[0], str))
        for cell, pair in zip(column.astype(object), _readings(converted.array), strict=True)
    )
    return converted if same else column.infer_objects()


def _looked_up(entries: list[Any], entry: NDArray[np.int64], dtype: Any) -> pd.Series[Any]:
    # The few distinct values are converted, not the many cells.
    used, position = np.unique(entry, return_inverse=True)
    distinct = pd.Series([np.nan if entries[i] is None else entries[i] for i in used], dtype=object)
    return fit(distinct, dtype).take(position).reset_index(drop=True)


def _fit_numbers(values: Floats, dtype: Any) -> pd.Series[Any]:
    column = pd.Series(values)
    if isinstance(dtype, np.dtype) and dtype.kind == "f":
        return column.astype(
            dtype
        )  # a float32 column keeps its dtype: the nearest float32 is the value shown
    if isinstance(dtype, pd.CategoricalDtype):
        return fit(column, dtype)
    whole = np.isnan(values) | (values == np.rint(values))
    if dtype.kind in "iub" and not whole.all():
        return column if isinstance(dtype, np.dtype) else column.astype("Float64")
    if isinstance(dtype, np.dtype) and np.isnan(values).any():
        return column
    try:
        converted = column.astype(dtype)
        back = converted.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError, OverflowError):
        return column
    return converted if dtype.kind == "f" or np.array_equal(back, values, equal_nan=True) else column


def _native(feature: Feature, value: float) -> Any:
    return int(value) if feature.kind == "integer" and value == np.rint(value) else float(value)


def merge(column: pd.Series[Any], rows: NDArray[np.bool_], new: pd.Series[Any]) -> pd.Series[Any]:
    """Replace the cells of ``rows`` by ``new``, in a dtype that holds both; other cells stay the same."""
    if not rows.any():
        return column
    if new.dtype == column.dtype and isinstance(column.dtype, np.dtype):
        cells = column.to_numpy(copy=True)
        cells[rows] = new.to_numpy()
        return pd.Series(cells, dtype=column.dtype)  # pandas would turn objects into text
    others = column[~rows]
    if new.dtype != column.dtype:
        whole = column.dtype.kind in "iu" and (others.isna() | (others.abs() <= 2**53)).all()
        # Whole numbers that a float cannot hold must not change because of their neighbours.
        others = others if whole or column.dtype.kind not in "iu" else others.astype(object)
    joined = pd.concat([others, new], ignore_index=True)
    position = np.empty(len(column), dtype=np.int64)
    position[~rows], position[rows] = np.arange(len(others)), len(others) + np.arange(len(new))
    return joined.take(position)


def unreadable(feature: Feature, column: pd.Series[Any]) -> str | None:
    """Return the reason why cells cannot be read, without a fitted scale; None if they can."""
    try:
        read(feature, column)
    except DataError as error:
        return str(error)
    return None


def refused_rows(schema: Schema, frame: pd.DataFrame, refusal: Refusal = unreadable) -> dict[int, str]:
    """Return the positions of rows with a refused cell, each with the first reason.

    Distinct cells are tested together and bisected, which finds a few bad ones among many quickly.
    """
    found: dict[int, str] = {}
    for feature in schema.features:
        column = frame[feature.name]
        if refusal(feature, column) is None:
            continue
        form = column.map(lambda cell: f"{type(cell).__name__} {cell!r}")
        wrong = _bisected(feature, column, np.flatnonzero(~form.duplicated()), refusal)
        for row in np.flatnonzero(form.isin(form.iloc[wrong])).tolist():
            found.setdefault(row, refusal(feature, column.iloc[[row]]) or "")
    return dict(sorted(found.items()))


def _bisected(
    feature: Feature, column: pd.Series[Any], rows: NDArray[np.int64], refusal: Refusal
) -> list[int]:
    """Return the refused rows among ``rows``."""
    if refusal(feature, column.iloc[rows]) is None:
        return []
    if len(rows) == 1:
        return [int(rows[0])]
    middle = len(rows) // 2
    return [
        *_bisected(feature, column, rows[:middle], refusal),
        *_bisected(feature, column, rows[middle:], refusal),
    ]
