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

    def to_unit(self, raw: Tensor) -> Tensor:
        """``raw`` scaled so that low is 0 and high is 1; 0 where there is no extent."""
        width = self.high - self.low
        unit = (raw - self.low) / torch.where(width > 0, width, torch.ones_like(width))
        return torch.where(width > 0, unit, torch.zeros_like(unit))

    def to_raw(self, unit: Tensor) -> Tensor:
        """The legal value nearest to ``unit``, which is taken into [0, 1] first."""
        unit = unit.clamp(0.0, 1.0)
        raw = self.low + unit * (self.high - self.low)
        # The ends come back exactly, not by way of low + (high - low).
        raw = torch.where(unit >= 1.0, self.high, raw)
        return self.nearest(raw)


def stepped(low: float, high: float, anchor: float, step: float) -> Grid:
    """The grid ``anchor + k*step``, from its first point at or above ``low`` to its last up to ``high``."""
    digits = max(_decimals(anchor), _decimals(step))
    offset, stride = (float(Decimal(repr(number)).scaleb(digits)) for number in (anchor, step))
    scale = float(10**digits)
    if digits > _EXACT_POWER or max(abs(low), abs(high), abs(anchor)) * scale >= _EXACT:
        offset, stride, scale = anchor, step, 1.0  # a step such as 1/3 is no short decimal: plain floats
    slack = 1e-6  # of a step: an end that is a grid point up to rounding counts as one
    first = math.ceil((low * scale - offset) / stride - slack)
    last = math.floor((high * scale - offset) / stride + slack)
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


def stack(grids: list[Grid]) -> Grid:
    """One grid whose tensors have an entry for each of ``grids``."""
    return Grid(*(torch.stack(parts) for parts in zip(*grids, strict=True)))


def _grid(*numbers: float) -> Grid:
    return Grid(*(torch.tensor(number, dtype=torch.float64) for number in numbers))


def _decimals(number: float) -> int:
    exponent = Decimal(repr(float(number))).normalize().as_tuple().exponent
    return max(-int(exponent), 0)
