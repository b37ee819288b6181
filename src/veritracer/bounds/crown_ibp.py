"""CROWN-IBP in the parameters: one backward pass of planes over ranges from IBP.

For a product of a weight and an activation, with w within its ball around w⁰ and h in a box around h⁰ of
radius ρ,

    w h = w⁰ h + h⁰ (w - w⁰) + (w - w⁰)(h - h⁰),

and the last term, summed with coefficients A over a layer, is at most radius * ‖A‖_q * ‖ρ‖_q. So the backward
pass is ordinary matrix products with today's weights, and the slope of a weight matrix is the outer product
of A and h⁰. (On boxes this is the mean of the two McCormick planes.)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds.affine import Affine
from veritracer.bounds.ibp import Box, Trace, coefficients
from veritracer.models import balls
from veritracer.models.balls import DUAL
from veritracer.models.param_sets import ParamSet


class Lines(NamedTuple):
    """``lower_slope * z <= activation(z) <= upper_slope * z + upper_offset`` on the interval."""

    lower_slope: Tensor
    upper_slope: Tensor
    upper_offset: Tensor


def leaky_relu_lines(z: Box, slope: float) -> Lines:
    """Return lines that bound LeakyReLU between ``z.lower`` and ``z.upper``; ReLU for slope 0.

    Above: the chord, which a convex function never exceeds. Below: a line through the origin with one of the
    two slopes, since the function is the larger of them; the one that loses less area, chosen by the longer
    side. Where the interval keeps its sign both lines are the function itself.
    """
    positive, negative = z.upper.clamp(min=0), -z.lower.clamp(max=0)
    # The chord through (-negative, -slope * negative) and (positive, positive). Where one of them is 0
    # its slope is 1 or ``slope``, and where both are, the interval is {0} and any line will do.
    width = positive + negative
    safe = torch.where(width > 0, width, 1.0)
    low = (positive >= negative).to(width.dtype)
    if slope == 0.0:  # the same with fewer operations: this is the inner loop of training
        chord = positive / safe
        return Lines(low, chord, chord * negative)
    chord = (positive + slope * negative) / safe
    return Lines(low * (1.0 - slope) + slope, chord, (chord - slope) * negative)


def upper_plane(param_set: ParamSet, ranges: Trace, sign: Tensor) -> Affine:
    """Return an affine function of theta that is nowhere in the set below ``sign * logit``.

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
