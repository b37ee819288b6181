"""CROWN-IBP in the parameters: one backward pass of planes over ranges from IBP.

Write the product of a weight w, within its ball around w⁰, and an activation h around a point h⁰ as

    w h = w⁰ h + h⁰ (w - w⁰) + (w - w⁰)(h - h⁰).

The first term is passed on to the layer below and the second is linear in w; with coefficients A on the
layer's outputs, the slope of the weight matrix is the outer product of A and h⁰. The last term, summed over
the layer, is at most

* on boxes, with h⁰ the lower end: radius * ‖A‖₁ * Σ (h - h⁰), since h - h⁰ >= 0. It is linear in h and joins
  the first term (the corner of McCormick's envelope at h⁰);
* on other balls, with h⁰ the centre of a box of radius ρ: radius * ‖A‖_q * ‖ρ‖_q, a constant.

Either way the backward pass is ordinary matrix products with today's weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veritracer.bounds.affine import Affine
from veritracer.bounds.ibp import Box, Trace, coefficients
from veritracer.models import balls
from veritracer.models.balls import DUAL
from veritracer.models.param_sets import ParamSet


def leaky_relu_lines(z: Box, slope: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return lines that bound LeakyReLU between ``z.lower`` and ``z.upper``; ReLU for slope 0.

    They are the slope of the lower line, which has no offset, and slope and offset of the upper one.

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
        return low, chord, chord * negative
    chord = (positive + slope * negative) / safe
    return low * (1.0 - slope) + slope, chord, (chord - slope) * negative


def upper_plane(param_set: ParamSet, ranges: Trace, sign: Tensor) -> Affine:
    """Return an affine function of theta that is nowhere in the set below ``sign * logit``.

    Where the inputs are a box, its worst case is part of the offset.

    NOTE[paper]: on boxes the paper's code uses the same corner. The mean of both corners, whose residual is a
    constant, is looser for most networks: the constant cannot shrink in the layers below.
    """
    q = DUAL[param_set.norm]
    layers = param_set.layers
    row = coefficients(param_set, sign)
    value = torch.zeros_like(sign)
    rows, cols = [row], []
    for k in reversed(range(len(layers))):
        layer, h = layers[k], ranges.inputs[k]
        value = value + (row * layer.bias.unsqueeze(-2)).sum(-1)
        back = row @ layer.weight
        point = h.lower is h.upper  # of one row, both ends of the box are the same tensor
        if not point:
            reach = layer.weight_radius.unsqueeze(-1) * balls.norm(row, q)
            if param_set.norm == "linf":
                back = back + reach.unsqueeze(-1)
                value = value - reach * h.lower.sum(-1)
            else:
                value = value + reach * balls.norm(h.radius, q)
        cols.append(h.lower if param_set.norm == "linf" else h.center)
        if k > 0:
            slope = param_set.network.slopes[k - 1]
            low_slope, high_slope, offset = leaky_relu_lines(ranges.outputs[k - 1], slope)
            up, down = back.clamp(min=0), back.clamp(max=0)
            value = value + (up * offset).sum(-1)
            row = up * high_slope + down * low_slope
            rows.append(row)
        else:
            highest = back * h.center if point else back * h.center + back.abs() * h.radius
            value = value + highest.sum(-1)
    return Affine(value, tuple(reversed(rows)), tuple(reversed(cols)))
