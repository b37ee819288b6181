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

from veritracer.bounds.ibp import Trace, layers_of
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
    layers, (unit, tiny, largest) = layers_of(param_set), precision
    magnitude = ranges.inputs[0].magnitude
    error = unit * magnitude + tiny
    overflow = (magnitude >= largest).any(-1)
    for k, layer in enumerate(layers):
        # No entry of a tensor moves further than the radius of its ball, whatever the norm.
        weight = (layer.weight.abs() + layer.weight_radius[..., None, None]).mT
        bias = (layer.bias.abs() + layer.bias_radius.unsqueeze(-1)).unsqueeze(-2)
        operations = layer.weight.shape[-1] + 2
        size = ranges.inputs[k].magnitude @ weight + bias
        carried = error @ weight
        error = carried + _gamma(operations, unit) * (size + carried) + 2 * operations * tiny
        if k < len(layers) - 1 and param_set.network.slopes[k] not in (0.0, 1.0):
            error = error + unit * (size + error) + tiny  # the product with a LeakyReLU's slope
        overflow = overflow | (size + error >= largest).any(-1)
    readout = error.new_tensor(param_set.network.readout).abs()
    if len(readout) == 1:
        total = error[..., 0]
    else:
        total = ((error + _gamma(len(readout), unit) * (size + error) + tiny) * readout).sum(-1)
    return torch.where(overflow, torch.inf, total)


def _gamma(n: int, unit: float) -> float:
    return n * unit / (1 - n * unit) if n * unit < 0.5 else float("inf")
