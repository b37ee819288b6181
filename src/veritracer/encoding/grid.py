r"""The values that one number may take: a range, and a grid on it whose points are the decimals people write.

A grid point is :math:`(a + k s) / 10^m` with whole :math:`a, k, s`: computed so, 3 steps of 0.05 are the
float ``0.15`` and not ``0.15000000000000002``. A feature without a step gets the finest such grid that
survives the way to the tensor and back, 14 significant digits of its range.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import NamedTuple

import torch
from torch import Tensor

# (v - low) / width * width + low is off by at most 7.7e-16 of the larger end; half a unit in the 14th
# digit is 5e-15 of it. The 15th digit would already be lost for some values.
DIGITS = 14
MOST_STEPS = 1e14
_EXACT = 2.0**53
_EXACT_POWER = 22
_NEARLY = 1e-6  # of a step: what is a grid point up to rounding counts as one
SHOWN_DIGITS = 3
READABLE_STEPS = 1e12  # from 0: more would need digits that the way to the tensor and back does not keep


class Grid(NamedTuple):
    """The legal values ``(offset + k*stride) / scale`` from ``low`` to ``high``, one or many of them."""

    low: Tensor
    high: Tensor
    offset: Tensor
    stride: Tensor
    scale: Tensor

    def nearest(self, raw: Tensor) -> Tensor:
        """The legal value nearest to ``raw`` (halves to even); the ends belong to the legal values."""
        steps = torch.round((raw * self.scale - self.offset) / self.stride)
        point = (self.offset + steps * self.stride) / self.scale
        point = torch.where(raw <= self.low, self.low, point)
        point = torch.where(raw >= self.high, self.high, point)
        return torch.minimum(torch.maximum(point, self.low), self.high)

    def beyond(self, raw: Tensor, up: Tensor) -> Tensor:
        """The first legal value at or above ``raw`` where ``up`` holds, else the first at or below it."""
        steps = (raw * self.scale - self.offset) / self.stride
        steps = torch.where(up, torch.ceil(steps - _NEARLY), torch.floor(steps + _NEARLY))
        return self.nearest((self.offset + steps * self.stride) / self.scale)

    def to_unit(self, raw: Tensor) -> Tensor:
        """``raw`` scaled so that low is 0 and high is 1; 0 where there is no extent."""
        width = self.high - self.low
        unit = (raw - self.low) / torch.where(width > 0, width, torch.ones_like(width))
        return torch.where(width > 0, unit, torch.zeros_like(unit))

    def to_raw(self, unit: Tensor) -> Tensor:
        """The legal value nearest to ``unit``, which is taken into [0, 1] first."""
        return self.nearest(self.at(unit))

    def at(self, unit: Tensor) -> Tensor:
        """The raw value at ``unit``, legal or not; ``unit`` is taken into [0, 1] first."""
        unit = unit.clamp(0.0, 1.0)
        raw = self.low + unit * (self.high - self.low)
        # The ends come back exactly, not by way of low + (high - low).
        return torch.where(unit >= 1.0, self.high, raw)


def stepped(low: float, high: float, anchor: float, step: float, nearly: float = _NEARLY) -> Grid:
    """The grid ``anchor + k*step``, from its first point at or above ``low`` to its last up to ``high``.

    An end that is a point up to the share ``nearly`` of a step counts as one.
    """
    digits = max(_decimals(anchor), _decimals(step))
    offset, stride = (float(Decimal(repr(number)).scaleb(digits)) for number in (anchor, step))
    scale = float(10**digits)
    if digits > _EXACT_POWER or max(abs(low), abs(high), abs(anchor)) * scale >= _EXACT:
        offset, stride, scale = anchor, step, 1.0  # a step such as 1/3 is no short decimal: plain floats
    first = math.ceil((low * scale - offset) / stride - nearly)
    last = math.floor((high * scale - offset) / stride + nearly)
    ends = ((offset + k * stride) / scale for k in (first, last))
    return _grid(*ends, offset, stride, scale)


def fine(low: float, high: float) -> Grid:
    """The decimals of 14 significant digits (of the larger end) between ``low`` and ``high``.

    Of ranges from 1e-11 to 1e-8, 12 to 14 digits: 10**22 is the last power of ten that a float holds
    exactly, and only with an exact one does a decimal come back to the last bit. Below 1e-11 it need not.
    """
    size = max(abs(low), abs(high))
    before_point = math.floor(math.log10(size)) + 1 if size > 0 else 0
    digits = DIGITS - before_point
    if digits > _EXACT_POWER >= 12 - before_point:
        digits = _EXACT_POWER
    return _grid(low, high, 0.0, 10.0 ** max(-digits, 0), float(10 ** max(digits, 0)))


def display_step(low: float, high: float) -> float | None:
    """The step with three significant digits of the range: 100 to 1,000 steps of it; None without extent.

    >>> display_step(0.0, 250_000.0), display_step(0.0, 1.0)
    (1000.0, 0.01)
    """
    if not high > low:
        return None
    return float(Decimal(1).scaleb(math.floor(math.log10(high - low)) + 1 - SHOWN_DIGITS))


def readable(low: float, high: float, step: float | None) -> Grid | None:
    """The multiples of ``step`` within the range; None where fewer than two are, or they would be inexact."""
    size = max(abs(low), abs(high))
    if step is None or not 1e-9 <= step <= 1e15 or size / step > READABLE_STEPS:
        return None
    grid = stepped(low, high, 0.0, step, nearly=0.0)
    first, last = (round(float(end * grid.scale / grid.stride)) for end in (grid.low, grid.high))
    points = [k * float(grid.stride) / float(grid.scale) for k in (first, first + 1, last - 1, last)]
    # An end that is a float's rounding away from a multiple, as 7 * 0.05 is from 0.35, has it outside.
    ends = points[points[0] < low], points[3 - (points[3] > high)]
    inside = low <= ends[0] < ends[1] <= high
    return (
        grid._replace(low=grid.low.new_tensor(ends[0]), high=grid.low.new_tensor(ends[1])) if inside else None
    )


def stack(grids: list[Grid]) -> Grid:
    """One grid whose tensors have an entry for each of ``grids``."""
    return Grid(*(torch.stack(parts) for parts in zip(*grids, strict=True)))


def _grid(*numbers: float) -> Grid:
    return Grid(*(torch.tensor(number, dtype=torch.float64) for number in numbers))


def _decimals(number: float) -> int:
    exponent = Decimal(repr(float(number))).normalize().as_tuple().exponent
    return max(-int(exponent), 0)
