r"""Fit the scale of one feature to its training column, and give the grid of its legal values.

A grid point is :math:`(a + k s) / 10^m` with whole :math:`a, k, s`, so that 3 steps of 0.05 are the float
``0.15`` and not ``0.15000000000000002``. A feature without a step gets the finest such grid that survives the
conversion to a tensor and back: 14 significant digits of its range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.encoding import cells
from veritracer.encoding.cells import Floats
from veritracer.errors import DataError, SchemaError, listing, message
from veritracer.files import check_keys
from veritracer.formatting import narrow_dtype, to_python_list
from veritracer.schema.feature import Feature, is_number

if TYPE_CHECKING:
    from veritracer.schema import Schema

# (v - low) / width * width + low is off by at most 7.7e-16 of the larger end; half a unit in the 14th
# digit is 5e-15 of it. The 15th digit would already be lost for some values.
DIGITS = 14
MOST_STEPS = 1e14
_EXACT = 2.0**53
_EXACT_POWER = 22
_NEARLY = 1e-6  # share of a step within which a number counts as a grid point
SHOWN_DIGITS = 3
READABLE_STEPS = 1e12  # from 0: more would need digits that the conversion does not keep
_SMALLEST, _LARGEST = 1e-280, 1e300  # results computed from the two ends must neither vanish nor overflow


class Grid(NamedTuple):
    """Legal values ``(offset + k*stride) / scale`` from ``low`` to ``high``, for one or many columns."""

    low: Tensor
    high: Tensor
    offset: Tensor
    stride: Tensor
    scale: Tensor

    def nearest(self, raw: Tensor) -> Tensor:
        """Return the legal value nearest to ``raw`` (halves to even); the ends are legal values."""
        steps = torch.round((raw * self.scale - self.offset) / self.stride)
        point = (self.offset + steps * self.stride) / self.scale
        point = torch.where(raw <= self.low, self.low, point)
        point = torch.where(raw >= self.high, self.high, point)
        return torch.minimum(torch.maximum(point, self.low), self.high)

    def beyond(self, raw: Tensor, up: Tensor) -> Tensor:
        """Return the first legal value at or above ``raw`` where ``up`` is true, else at or below it."""
        steps = (raw * self.scale - self.offset) / self.stride
        steps = torch.where(up, torch.ceil(steps - _NEARLY), torch.floor(steps + _NEARLY))
        return self.nearest((self.offset + steps * self.stride) / self.scale)

    def to_unit(self, raw: Tensor) -> Tensor:
        """Scale ``raw`` so that low is 0 and high is 1; 0 if both are equal."""
        width = self.high - self.low
        unit = (raw - self.low) / torch.where(width > 0, width, torch.ones_like(width))
        return torch.where(width > 0, unit, torch.zeros_like(unit))

    def to_raw(self, unit: Tensor) -> Tensor:
        """Return the legal value nearest to ``unit``, which is clipped to [0, 1]."""
        return self.nearest(self.at(unit))

    def at(self, unit: Tensor) -> Tensor:
        """Return the raw value at ``unit``, legal or not; ``unit`` is clipped to [0, 1]."""
        unit = unit.clamp(0.0, 1.0)
        raw = self.low + unit * (self.high - self.low)
        # The ends come back exactly, not by way of low + (high - low).
        return torch.where(unit >= 1.0, self.high, raw)


def step_grid(low: float, high: float, anchor: float, step: float, nearly: float = _NEARLY) -> Grid:
    """Return the points of the grid ``anchor + k*step`` from ``low`` to ``high``.

    An end within the share ``nearly`` of a step of a grid point counts as that point.
    """
    digits = max(_decimals(anchor), _decimals(step))
    offset, stride = (float(Decimal(repr(number)).scaleb(digits)) for number in (anchor, step))
    scale = float(10**digits)
    if digits > _EXACT_POWER or max(abs(low), abs(high), abs(anchor)) * scale >= _EXACT:
        offset, stride, scale = anchor, step, 1.0  # plain floats: a step such as 1/3 is no short decimal
    first = math.ceil((low * scale - offset) / stride - nearly)
    last = math.floor((high * scale - offset) / stride + nearly)
    ends = ((offset + k * stride) / scale for k in (first, last))
    return _grid_of(*ends, offset, stride, scale)


def finest_grid(low: float, high: float) -> Grid:
    """Return the grid of decimals with 14 significant digits (of the larger end) from ``low`` to ``high``.

    Ranges from 1e-11 to 1e-8 have 12 to 14 digits: 10**22 is the last power of ten that a float holds
    exactly, and only an exact one restores decimals to the last bit. Ranges below 1e-11 may lose it.
    """
    size = max(abs(low), abs(high))
    before_point = math.floor(math.log10(size)) + 1 if size > 0 else 0
    digits = DIGITS - before_point
    if digits > _EXACT_POWER >= 12 - before_point:
        digits = _EXACT_POWER
    return _grid_of(low, high, 0.0, 10.0 ** max(-digits, 0), float(10 ** max(digits, 0)))


def display_step(low: float, high: float) -> float | None:
    """Return the step with three significant digits of the range, 100 to 1,000 steps; None without a range.

    >>> display_step(0.0, 250_000.0), display_step(0.0, 1.0)
    (1000.0, 0.01)
    """
    if not high > low:
        return None
    return float(Decimal(1).scaleb(math.floor(math.log10(high - low)) + 1 - SHOWN_DIGITS))


def readable_grid(low: float, high: float, step: float | None) -> Grid | None:
    """Return the multiples of ``step`` in the range; None if there are fewer than two or they are inexact."""
    size = max(abs(low), abs(high))
    if step is None or not 1e-9 <= step <= 1e15 or size / step > READABLE_STEPS:
        return None
    grid = step_grid(low, high, 0.0, step, nearly=0.0)
    first, last = (round(float(end * grid.scale / grid.stride)) for end in (grid.low, grid.high))
    points = [k * float(grid.stride) / float(grid.scale) for k in (first, first + 1, last - 1, last)]
    # A multiple that is beyond an end by a float's rounding only, as 7 * 0.05 beyond 0.35, is left out.
    ends = points[points[0] < low], points[3 - (points[3] > high)]
    inside = low <= ends[0] < ends[1] <= high
    return (
        grid._replace(low=grid.low.new_tensor(ends[0]), high=grid.low.new_tensor(ends[1])) if inside else None
    )


def stack_grids(grids: list[Grid]) -> Grid:
    """Stack grids into one whose tensors have an entry for each of them."""
    return Grid(*(torch.stack(parts) for parts in zip(*grids, strict=True)))


@dataclass(frozen=True)
class FeatureScale:
    """Scale of one feature, with the value that replaces missing ones, and the dtype of the raw column.

    ``low``, ``high`` and ``fill`` are raw numbers, or positions of categories if the feature is not numeric.
    """

    low: float
    high: float
    fill: float
    dtype: Any
    constant: bool = False

    def grid(self, feature: Feature) -> Grid:
        """Return the legal values of ``feature`` on this scale."""
        if not feature.is_numeric:
            return step_grid(self.low, self.high, 0.0, 1.0)
        if feature.grid_step is None:
            return finest_grid(self.low, self.high)
        return _steps(feature, feature.grid_step, self.low, self.high)

    def shown(self, feature: Feature) -> Grid:
        """Return the values that a counterfactual may propose: legal ones, in readable steps."""
        legal = self.grid(feature)
        if not feature.is_numeric or feature.grid_step is not None or feature.display_step == "exact":
            return legal
        automatic = display_step(self.low, self.high)
        step = automatic if isinstance(feature.display_step, str) else feature.display_step
        return readable_grid(self.low, self.high, step) or legal

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        out = {"low": self.low, "high": self.high, "fill": self.fill, "constant": self.constant}
        if isinstance(self.dtype, pd.CategoricalDtype):
            index = self.dtype.categories
            levels = {
                "values": to_python_list(index),
                "dtype": str(index.dtype),
                "ordered": self.dtype.ordered,
            }
            return {**out, "dtype": "category", "levels": levels}
        return {**out, "dtype": str(self.dtype)}

    @classmethod
    def from_plain(cls, entry: dict[str, Any]) -> Self:
        """Read the fields that :meth:`to_plain` wrote."""
        needed = {"low", "high", "fill", "constant", "dtype"}
        check_keys(entry, needed | {"levels"}, needed, "a fitted feature")
        numbers = [entry[key] for key in ("low", "high", "fill")]
        if (
            not all(isinstance(n, float) and math.isfinite(n) for n in numbers)
            or not numbers[0] <= numbers[1]
        ):
            raise SchemaError(
                message("finite numbers low <= high and fill", repr(numbers), "write it with to_json()")
            )
        try:
            dtype = pd.api.types.pandas_dtype(entry["dtype"])
            if "levels" in entry:
                levels = entry["levels"]
                index = pd.Index(levels["values"], dtype=levels["dtype"])
                dtype = pd.CategoricalDtype(index, ordered=levels["ordered"])
        except (TypeError, ValueError, KeyError) as error:
            raise SchemaError(
                message("a dtype of pandas", f"{entry['dtype']!r}", f"pandas says: {error}")
            ) from None
        low, high, fill = numbers
        return cls(low, high, fill, dtype, bool(entry["constant"]))


@dataclass(frozen=True)
class Units:
    """Convert raw values of a feature (or positions of its categories) to its encoded column."""

    schema: Schema
    grids: tuple[Grid, ...]

    def width(self, name: str) -> float:
        """Return the width of a feature's scale in raw values, or in positions of its categories."""
        legal = self._legal(name)
        return float(legal.high - legal.low)

    def of(self, name: str, amount: float) -> float:
        """Convert a difference between raw values (or levels) to the encoded column."""
        width = self.width(name)
        return amount / width if width > 0 else 0.0

    def rounding(self, name: str) -> float:
        """Bound the rounding error in the encoded column of a raw value that was computed from another.

        It has two roundings of raw values and those of scaling; it is large if a range is narrow and far
        from 0.
        """
        legal, width = self._legal(name), self.width(name)
        size = float(torch.maximum(legal.low.abs(), legal.high.abs()))
        return 2.0**-50 * (1.0 + size / width) if width > 0 else 0.0

    def interval(self, name: str, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest encoding of the values from ``lower`` to ``upper``, (n,) each.

        The values are raw numbers (or positions of categories) of any size; they are clipped like in
        ``encode``. Encoding is monotone, also in floating point, so that the interval covers all of them.
        """
        legal = self._legal(name)
        first, last = (legal.to_unit(end.clamp(legal.low, legal.high)) for end in (lower, upper))
        return first, last

    def tolerance(self, name: str, raw: Tensor) -> Tensor:
        """Return the distance from a grid point within which a number is read as that point."""
        return slack(self.schema[name], np.dtype(np.float64), raw)

    def _legal(self, name: str) -> Grid:
        return self.grids[self.schema.names.index(name)]


def check_scale(feature: Feature, fitted: FeatureScale) -> None:
    """Refuse a scale that does not fit the feature, as in a file that was edited by hand."""
    levels = (0.0, float(len(feature.categories) - 1))
    if not fitted.low <= fitted.fill <= fitted.high or not (
        feature.is_numeric or (fitted.low, fitted.high) == levels
    ):
        got = f"{fitted.low:g} to {fitted.high:g}, filled with {fitted.fill:g}"
        raise SchemaError(
            message(f"a scale that fits the feature {feature.name!r}", got, "write it with to_json()")
        )


def fit_scale(feature: Feature, column: pd.Series[Any]) -> FeatureScale:
    """Fit the scale of a feature to a column, and check all of its cells."""
    values, marker = cells.read(feature, column)
    present = values[marker < 0]
    if len(present) == 0:
        got = f"only missing values in {len(column):,} rows"
        raise DataError(
            message(f"values in the column {feature.name!r}", got, "drop it from table and schema")
        )
    dtype = _readable(column.dtype)
    constant = len(present) == len(values) and bool((present == present[0]).all())
    if not feature.is_numeric:
        counts = np.bincount(present.astype(np.int64), minlength=len(feature.categories))
        middle = np.sort(present)[(len(present) - 1) // 2]
        fill = middle if feature.kind == "ordinal" else counts.argmax()
        return FeatureScale(0.0, float(len(feature.categories) - 1), float(fill), dtype, constant)
    low, high = _range(feature, column, values, marker < 0)
    _refuse_inner_codes(feature, low, high)
    legal = FeatureScale(low, high, low, dtype).grid(feature)
    fill = legal.nearest(torch.tensor(float(np.median(np.clip(present, low, high))), dtype=torch.float64))
    return FeatureScale(low, high, float(fill), dtype, constant)


def refuse_off_grid(feature: Feature, column: pd.Series[Any], raw: Tensor, legal: Tensor) -> None:
    """Refuse numbers in ``raw`` that differ from those in ``legal`` by more than the column's precision."""
    step = feature.grid_step
    if step is None:
        return
    allowed = slack(feature, column.dtype, raw)
    wrong: NDArray[np.bool_] = ((raw - legal).abs() > allowed).numpy()
    anchor = f"{feature.lower:g} plus " if feature.lower else ""
    what = "whole numbers" if step == 1 and not (feature.lower or 0) % 1 else f"{anchor}multiples of {step:g}"
    cells.refuse(feature, column, wrong, what, "round the column, or declare it continuous without a step")


def refuse_undeclared(feature: Feature, column: pd.Series[Any], raw: Tensor, known: Tensor) -> None:
    """Refuse numbers outside the range that the schema declares."""
    low = -math.inf if feature.lower is None else feature.lower
    high = math.inf if feature.upper is None else feature.upper
    beyond = torch.maximum(low - raw, raw - high)
    wrong: NDArray[np.bool_] = (known & (beyond > slack(feature, column.dtype, raw))).numpy()
    ends = [f"{word} {end:g}" for word, end in (("from", low), ("to", high)) if math.isfinite(end)]
    remedy = "correct the cell, or declare a wider range"
    cells.refuse(feature, column, wrong, f"numbers {' '.join(ends)}", remedy)


def slack(feature: Feature, dtype: Any, raw: Tensor) -> Tensor:
    """Return the distance within which a number counts as a legal one: the rounding error of its column.

    0.1 + 0.2 is the grid point 0.3, and a float32 column holds the float32 next to a declared end.
    """
    narrow = narrow_dtype(dtype)
    if feature.grid_step is None and narrow is None:
        return torch.zeros_like(raw)
    precision = float(np.finfo(np.float64 if narrow is None else narrow).eps)
    return 1e-9 * (feature.grid_step or 0.0) + 4 * precision * raw.abs()


def _range(
    feature: Feature, column: pd.Series[Any], values: Floats, known: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return the two ends of the scale: declared or taken from the data, and on the grid if there is one."""
    present = values[known]
    low = float(present.min()) + 0.0 if feature.lower is None else feature.lower
    high = float(present.max()) + 0.0 if feature.upper is None else feature.upper
    if low > high:
        end, declared = ("at or above lower", high) if feature.upper is None else ("at or below upper", low)
        got = f"none; the nearest one is {declared:g}"
        raise DataError(
            message(f"values {end} in the column {feature.name!r}", got, "correct the declared range")
        )
    if not (low == high == 0 or _SMALLEST <= max(abs(low), abs(high)) <= _LARGEST):
        got, remedy = f"{low:g} to {high:g}", "rescale it, or declare lower and upper"
        raise DataError(
            message(f"numbers between 1e-280 and 1e300 in size in the column {feature.name!r}", got, remedy)
        )
    step = feature.grid_step
    if step is None:
        return low, high
    if max(abs(low), abs(high)) / step > MOST_STEPS:
        got = f"{low:g} to {high:g} in steps of {step:g}"
        raise DataError(
            message(
                f"at most 1e14 steps from 0 in the column {feature.name!r}",
                got,
                "declare it continuous, or drop an ID",
            )
        )
    _check_grid(feature, column, np.where(known, values, np.nan), low, high)
    legal = _steps(feature, step, low, high)
    return float(legal.low) + 0.0, float(legal.high) + 0.0


def _steps(feature: Feature, step: float, low: float, high: float) -> Grid:
    """Return the feature's grid; a declared end within rounding of its last point is that point."""
    legal = step_grid(low, high, feature.lower or 0.0, step)
    if feature.lower is not None:
        legal = legal._replace(low=legal.low.clamp(min=feature.lower))
    if feature.upper is not None:
        legal = legal._replace(high=legal.high.clamp(max=feature.upper))
    return legal


def _check_grid(feature: Feature, column: pd.Series[Any], values: Floats, low: float, high: float) -> None:
    # Learned ends may be wrong themselves, so the grid for this check goes one step beyond them.
    step = feature.grid_step or 1.0
    wide = step_grid(
        low if feature.lower is not None else low - step,
        high if feature.upper is not None else high + step,
        feature.lower or 0.0,
        step,
    )
    raw = torch.from_numpy(np.nan_to_num(values, nan=float(wide.low))).clamp(wide.low, wide.high)
    refuse_off_grid(feature, column, raw, wide.nearest(raw))


def _refuse_inner_codes(feature: Feature, low: float, high: float) -> None:
    inside = [code for code in feature.missing_codes if is_number(code) and low <= float(code) <= high]
    if inside:
        raise DataError(
            message(
                f"missing codes outside the range {low:g} to {high:g} of the column {feature.name!r}",
                f"{listing(inside)} inside it, where it could also be a number",
                "turn the code into an empty cell beforehand",
            )
        )


def _readable(dtype: Any) -> Any:
    """Return the dtype if its name identifies it, else object."""
    if isinstance(dtype, pd.CategoricalDtype):
        return dtype
    try:
        return dtype if pd.api.types.pandas_dtype(str(dtype)) == dtype else np.dtype(object)
    except TypeError:
        return np.dtype(object)


def _grid_of(*numbers: float) -> Grid:
    return Grid(*(torch.tensor(number, dtype=torch.float64) for number in numbers))


def _decimals(number: float) -> int:
    exponent = Decimal(repr(float(number))).normalize().as_tuple().exponent
    return max(-int(exponent), 0)
