"""CROWN-IBP in the parameters: one backward pass of planes over ranges from IBP.

For a product of a weight and an activation, with w within its ball around w⁰ and h in a box around
h⁰ of radius ρ,

    w h = w⁰ h + h⁰ (w - w⁰) + (w - w⁰)(h - h⁰),

and the last term, summed with coefficients A over a layer, is at most radius * ‖A‖_q * ‖ρ‖_q. So the
backward pass is ordinary matrix products with today's weights, and the slope on a weight matrix is
the outer product of A and h⁰. (On boxes this is the mean of the two McCormick planes.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from veritracer import balls
from veritracer.balls import DUAL
from veritracer.bounds.affine import Affine
from veritracer.bounds.ibp import Trace, coefficients
from veritracer.bounds.relaxations import leaky_relu_lines
from veritracer.param_sets import ParamSet


def upper_plane(param_set: ParamSet, ranges: Trace, sign: Tensor) -> Affine:
    """An affine function of theta that is nowhere in the set below ``sign * logit``.

    Where the inputs are a box, its worst case is part of the offset.
    """
    q = DUAL[param_set.norm]
    layers = param_set.layers
    row = coefficients(param_set, sign)
    value = torch.zeros_like(sign)
    rows, cols = [row], []
    for k in reversed(range(len(layers))):
        layer, h = layers[k], ranges.inputs[k]
        value = value + (row * layer.bias.unsqueeze(-2)).sum(-1)
        cols.append(h.center)
        back = row @ layer.weight
        point = h.lower is h.upper
        if not point:
            value = value + layer.weight_radius.unsqueeze(-1) * balls.norm(row, q) * balls.norm(h.radius, q)
        if k > 0:
            lines = leaky_relu_lines(ranges.outputs[k - 1], param_set.network.slopes[k - 1])
            up, down = back.clamp(min=0), back.clamp(max=0)
            value = value + (up * lines.upper_offset).sum(-1)
            row = up * lines.upper_slope + down * lines.lower_slope
            rows.append(row)
        else:
            reach = back * h.center if point else back * h.center + back.abs() * h.radius
            value = value + reach.sum(-1)
    return Affine(value, tuple(reversed(rows)), tuple(reversed(cols)))
