"""How far a logit computed in floating point can be from the exact one, over a set of models.

A proof speaks of exact arithmetic; ``predict`` does not compute in it. The distance is bounded by the
standard analysis: a sum of n products, in any order, is off by at most γ_n = n u / (1 - n u) times the
sum of their magnitudes, with u the unit roundoff. It holds for blocked sums and fused multiply-adds,
on any device, as long as the products are taken in that precision (TF32 stays off).
"""

from __future__ import annotations

import torch
from torch import Tensor

from veritracer.bounds.ibp import Trace, layers_of
from veritracer.param_sets import ParamSet


def logit_error(param_set: ParamSet, ranges: Trace, unit: float) -> Tensor:
    """Upper bound (n,) of |computed logit - exact logit|, for every model of the set and all inputs.

    ``unit`` is the unit roundoff of the computation: 2**-24 in float32, 2**-53 in float64. The inputs
    themselves are taken to be rounded once.
    """
    layers = layers_of(param_set)
    error = unit * ranges.inputs[0].magnitude
    for k, layer in enumerate(layers):
        # No entry of a tensor moves further than the radius of its ball, whatever the norm.
        weight = (layer.weight.abs() + layer.weight_radius[..., None, None]).mT
        bias = (layer.bias.abs() + layer.bias_radius.unsqueeze(-1)).unsqueeze(-2)
        size = ranges.inputs[k].magnitude @ weight + bias
        carried = error @ weight
        error = carried + _gamma(layer.weight.shape[-1] + 2, unit) * (size + carried)
        if k < len(layers) - 1 and param_set.network.slopes[k] not in (0.0, 1.0):
            error = error + unit * (size + error)  # the product with a LeakyReLU's slope
    readout = error.new_tensor(param_set.network.readout).abs()
    if len(readout) == 1:
        return error[..., 0]
    return ((error + _gamma(len(readout), unit) * (size + error)) * readout).sum(-1)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Half the distance from 1 to the next number.

    >>> unit_roundoff(torch.float32) == 2.0**-24
    True
    """
    return torch.finfo(dtype).eps / 2


def _gamma(n: int, unit: float) -> float:
    return n * unit / (1 - n * unit)
