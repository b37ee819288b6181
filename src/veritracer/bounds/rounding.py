"""How far a logit computed in floating point can be from the exact one, over a set of models.

A proof speaks of exact arithmetic; ``predict`` does not compute in it. The distance is bounded by the
standard analysis: a sum of n products, in any order, is off by at most γ_n = n u / (1 - n u) times the
sum of their magnitudes, with u the unit roundoff, plus what underflow can swallow in each operation. It
holds for blocked sums and fused multiply-adds, on any device, as long as the products are taken in that
precision (TF32 stays off). Where a number might overflow there is no bound, and the error is infinite.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds.ibp import Trace
from veritracer.param_sets import ParamSet


class Precision(NamedTuple):
    """A floating-point arithmetic: unit roundoff, smallest normal number, largest number.

    A result below the smallest normal number is counted as lost, so that flushing it to zero is covered.
    """

    unit: float
    tiny: float
    largest: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Precision:
        """The arithmetic of that type.

        >>> Precision.of(torch.float32).unit == 2.0**-24
        True
        """
        info = torch.finfo(dtype)
        return cls(info.eps / 2, info.tiny, info.max)

    def plus(self, unit: float) -> Precision:
        """The same arithmetic with another rounding on top of each operation."""
        return self._replace(unit=self.unit + unit)


def logit_error(param_set: ParamSet, ranges: Trace, precision: Precision) -> Tensor:
    """Upper bound (n,) of |computed logit - exact logit|, for every model of the set and all inputs.

    The inputs themselves are taken to be rounded once. (The error grows faster than the unit, so that of
    two arithmetics, one on top of the other, is at most that of one with the sum of their units.)
    """
    unit, tiny, largest = precision
    depth, slopes = param_set.network.depth, param_set.network.slopes
    error = unit * ranges.inputs[0].magnitude + tiny
    sizes = [ranges.inputs[0].magnitude]
    for k, (weight, bias) in enumerate(param_set.magnitudes):
        magnitude = ranges.inputs[k].magnitude
        # One product for both: |W| h, which each sum is made of, and |W| e, what the errors so far become.
        n = magnitude.shape[-2]
        both = torch.cat([magnitude, error], -2) @ weight.mT
        size, carried = both[..., :n, :] + bias.unsqueeze(-2), both[..., n:, :]
        operations = weight.shape[-1] + 2
        gamma = _gamma(operations, unit)
        error = torch.add(carried * (1 + gamma), size, alpha=gamma) + 2 * operations * tiny
        if k < depth - 1 and slopes[k] not in (0.0, 1.0):
            error = torch.add(error * (1 + unit), size, alpha=unit) + tiny  # times a LeakyReLU's slope
        sizes.append(size)
    readout = error.new_tensor(param_set.network.readout).abs()
    if len(readout) == 1:
        total = error[..., 0]
    else:
        total = ((error + _gamma(len(readout), unit) * (size + error) + tiny) * readout).sum(-1)
    # A quarter of the largest number is room for the errors: where they are larger than the other three
    # quarters, the slack exceeds every bound by itself.
    return torch.where(torch.cat(sizes, -1).amax(-1) < largest / 4, total, torch.inf)


def _gamma(n: int, unit: float) -> float:
    return n * unit / (1 - n * unit) if n * unit < 0.5 else float("inf")
