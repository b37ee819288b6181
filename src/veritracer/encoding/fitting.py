"""What an encoding learns about one feature from its training column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.encoding import cells, grid
from veritracer.encoding.cells import Cells
from veritracer.encoding.grid import Grid
from veritracer.errors import DataError, SchemaError, listing, message
from veritracer.files import check_keys
from veritracer.schema.feature import Feature, is_number, plain

if TYPE_CHECKING:
    from veritracer.schema import Schema

_SMALLEST, _LARGEST = 1e-280, 1e300  # what we compute from the two ends must neither vanish nor overflow


@dataclass(frozen=True)
class FeatureScale:
    """The scale of one feature, the value that stands in for a missing one, and the dtype to go back to.

    ``low``, ``high`` and ``fill`` are raw numbers, or positions of categories where a feature is not numeric.
    """

    low: float
    high: float
    fill: float
    dtype: Any
    constant: bool = False

    def grid(self, feature: Feature) -> Grid:
        """The legal values of ``feature`` on this scale."""
        if not feature.is_numeric:
            return grid.stepped(self.low, self.high, 0.0, 1.0)
        if feature.grid_step is None:
            return grid.fine(self.low, self.high)
        return _steps(feature, feature.grid_step, self.low, self.high)

    def shown(self, feature: Feature) -> Grid:
        """The values that a counterfactual may propose: those of the grid, in steps that people read."""
        legal = self.grid(feature)
        if not feature.is_numeric or feature.grid_step is not None or feature.display_step == "exact":
            return legal
        automatic = grid.display_step(self.low, self.high)
        step = automatic if isinstance(feature.display_step, str) else feature.display_step
        return grid.readable(self.low, self.high, step) or legal

    def to_plain(self) -> dict[str, Any]:
        """The fields as JSON can hold them."""
        out = {"low": self.low, "high": self.high, "fill": self.fill, "constant": self.constant}
        if isinstance(self.dtype, pd.CategoricalDtype):
            index = self.dtype.categories
            levels = {
                "values": [plain(v) for v in index],
                "dtype": str(index.dtype),
                "ordered": self.dtype.ordered,
            }
            return {**out, "dtype": "category", "levels": levels}
        return {**out, "dtype": str(self.dtype)}

    @classmethod
    def from_plain(cls, entry: dict[str, Any]) -> Self:
        """The fields as :meth:`to_plain` wrote them."""
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
    """Between the raw values of a feature (or positions of its categories) and its encoded column."""

    schema: Schema
    grids: tuple[Grid, ...]

    def width(self, name: str) -> float:
        """The extent of a feature's scale: of its raw values, or of the positions of its categories."""
        legal = self._legal(name)
        return float(legal.high - legal.low)

    def of(self, name: str, amount: float) -> float:
        """The width in the encoded column of a difference of ``amount`` between raw values (or levels)."""
        width = self.width(name)
        return amount / width if width > 0 else 0.0

    def rounding(self, name: str) -> float:
        """How far, at most, rounding moves the encoded column of a raw value that was computed from another.

        Two roundings of raw values, and those of scaling them; much where a range is narrow and far from 0.
        """
        legal, width = self._legal(name), self.width(name)
        size = float(torch.maximum(legal.low.abs(), legal.high.abs()))
        return 2.0**-50 * (1.0 + size / width) if width > 0 else 0.0

    def interval(self, name: str, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Between which two numbers every value from ``lower`` to ``upper`` is encoded, (n,) each.

        The values are raw numbers (or positions of categories), as far out as anybody likes: they are clipped
        as ``encode`` clips them. Encoding is monotone, in floating point too, so that none lies outside.
        """
        legal = self._legal(name)
        first, last = (legal.to_unit(end.clamp(legal.low, legal.high)) for end in (lower, upper))
        return first, last

    def tolerance(self, name: str, raw: Tensor) -> Tensor:
        """How far a number may be from a point of the feature's grid and still be read as that point."""
        return slack(self.schema[name], np.dtype(np.float64), raw)

    def _legal(self, name: str) -> Grid:
        return self.grids[self.schema.names.index(name)]


def check(feature: Feature, fitted: FeatureScale) -> None:
    """Refuse a scale that cannot be the feature's, as in a file that was edited by hand."""
    levels = (0.0, float(len(feature.categories) - 1))
    if not fitted.low <= fitted.fill <= fitted.high or not (
        feature.is_numeric or (fitted.low, fitted.high) == levels
    ):
        got = f"{fitted.low:g} to {fitted.high:g}, filled with {fitted.fill:g}"
        raise SchemaError(
            message(f"a scale that fits the feature {feature.name!r}", got, "write it with to_json()")
        )


def fit(feature: Feature, column: pd.Series[Any]) -> FeatureScale:
    """The scale of ``feature`` in ``column``, after every cell of it was checked."""
    read = cells.read(feature, column)
    present = read.present
    if len(present) == 0:
        got = f"only missing values in {len(column):,} rows"
        raise DataError(
            message(f"values in the column {feature.name!r}", got, "drop it from table and schema")
        )
    dtype = _readable(column.dtype)
    constant = read.marker is None and bool((present == present[0]).all())
    if not feature.is_numeric:
        counts = np.bincount(present.astype(np.int64), minlength=len(feature.categories))
        middle = np.sort(present)[(len(present) - 1) // 2]
        fill = middle if feature.kind == "ordinal" else counts.argmax()
        return FeatureScale(0.0, float(len(feature.categories) - 1), float(fill), dtype, constant)
    low, high = _range(feature, column, present, read)
    _refuse_inner_codes(feature, low, high)
    legal = FeatureScale(low, high, low, dtype).grid(feature)
    fill = legal.nearest(torch.tensor(float(np.median(np.clip(present, low, high))), dtype=torch.float64))
    return FeatureScale(low, high, float(fill), dtype, constant)


def refuse_off_grid(feature: Feature, column: pd.Series[Any], raw: Tensor, legal: Tensor) -> None:
    """Raise where a number in ``raw`` is not the one in ``legal``, up to the column's precision."""
    step = feature.grid_step
    if step is None:
        return
    allowed = slack(feature, column.dtype, raw)
    wrong: NDArray[np.bool_] = ((raw - legal).abs() > allowed).numpy()
    anchor = f"{feature.lower:g} plus " if feature.lower else ""
    what = "whole numbers" if step == 1 and not (feature.lower or 0) % 1 else f"{anchor}multiples of {step:g}"
    cells.refuse(feature, column, wrong, what, "round the column, or declare it continuous without a step")


def slack(feature: Feature, dtype: Any, raw: Tensor) -> Tensor:
    """How far a number may be from a legal one and still count as it: the rounding of its column, no more.

    0.1 + 0.2 is the grid point 0.3, and a float32 column holds the float32 next to a declared end.
    """
    narrow = cells.narrow_dtype(dtype)
    if feature.grid_step is None and narrow is None:
        return torch.zeros_like(raw)
    precision = float(np.finfo(np.float64 if narrow is None else narrow).eps)
    return 1e-9 * (feature.grid_step or 0.0) + 4 * precision * raw.abs()


def _range(
    feature: Feature, column: pd.Series[Any], present: NDArray[np.float64], read: Cells
) -> tuple[float, float]:
    """The two ends of the scale: those declared, else those of the data; on the grid where there is one."""
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
    if max(abs(low), abs(high)) / step > grid.MOST_STEPS:
        got = f"{low:g} to {high:g} in steps of {step:g}"
        raise DataError(
            message(
                f"at most 1e14 steps from 0 in the column {feature.name!r}",
                got,
                "declare it continuous, or drop an ID",
            )
        )
    _check_grid(feature, column, read, low, high)
    legal = _steps(feature, step, low, high)
    return float(legal.low) + 0.0, float(legal.high) + 0.0


def _steps(feature: Feature, step: float, low: float, high: float) -> Grid:
    """The feature's grid; a declared end that is its last point up to rounding is that point."""
    legal = grid.stepped(low, high, feature.lower or 0.0, step)
    if feature.lower is not None:
        legal = legal._replace(low=legal.low.clamp(min=feature.lower))
    if feature.upper is not None:
        legal = legal._replace(high=legal.high.clamp(max=feature.upper))
    return legal


def _check_grid(feature: Feature, column: pd.Series[Any], read: Cells, low: float, high: float) -> None:
    # A learned end is itself in question, so the grid for this check reaches one step beyond it.
    step = feature.grid_step or 1.0
    wide = grid.stepped(
        low if feature.lower is not None else low - step,
        high if feature.upper is not None else high + step,
        feature.lower or 0.0,
        step,
    )
    values = read.values if read.marker is None else np.where(read.marker < 0, read.values, float(wide.low))
    raw = torch.from_numpy(values).clamp(wide.low, wide.high)
    refuse_off_grid(feature, column, raw, wide.nearest(raw))


def _refuse_inner_codes(feature: Feature, low: float, high: float) -> None:
    inside = [code for code in feature.missing_codes if is_number(code) and low <= float(code) <= high]
    if inside:
        raise DataError(
            message(
                f"missing codes outside of the range {low:g} to {high:g} of the column {feature.name!r}",
                f"{listing(inside)} inside of it, where it could also be a number",
                "turn the code into an empty cell beforehand",
            )
        )


def _readable(dtype: Any) -> Any:
    """The dtype if its name says all about it, else object."""
    if isinstance(dtype, pd.CategoricalDtype):
        return dtype
    try:
        return dtype if pd.api.types.pandas_dtype(str(dtype)) == dtype else np.dtype(object)
    except TypeError:
        return np.dtype(object)
