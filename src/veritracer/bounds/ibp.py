"""Interval bound propagation over sets of models (the paper's section 4.2.1): ranges, layer by layer.

A ``Box`` is a lower and an upper tensor. ``at_box`` bounds ``W h + b`` for every W and b in their balls and
every h in a box: the one place where an uncertain weight meets an uncertain activation.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.models import balls
from veritracer.models.balls import DUAL
from veritracer.models.network import activate, affine
from veritracer.models.param_sets import OVERLAP_RATIOS, Layer, ParamSet


class Box(NamedTuple):
    """All tensors between ``lower`` and ``upper``."""

    lower: Tensor
    upper: Tensor

    @property
    def center(self) -> Tensor:
        """Return the middle; a point is its own."""
        return self.lower if self.lower is self.upper else (self.lower + self.upper) / 2

    @property
    def radius(self) -> Tensor:
        """Return half of the width."""
        return (self.upper - self.lower) / 2

    @property
    def magnitude(self) -> Tensor:
        """Return the largest absolute value in the box."""
        return torch.maximum(self.lower.abs(), self.upper.abs())

    def select(self, rows: Tensor) -> Box:
        """Return the boxes of the given rows; a point stays a point."""
        lower = self.lower[rows]
        return Box(lower, lower if self.lower is self.upper else self.upper[rows])

    def activate(self, slope: float) -> Box:
        """Return the image under LeakyReLU, which is monotone: its ends are the images of the ends."""
        return Box(activate(self.lower, slope), activate(self.upper, slope))


def at_point(layer: Layer, x: Tensor) -> Box:
    """Return the exact range of each output at a point, (..., n, in) -> (..., n, out).

    The maximum of (W x)_i over the ball is (weight x)_i + radius * ‖x‖_q, by the definition of the dual norm.
    """
    center = affine(x, layer.weight, layer.bias)
    reach = layer.weight_radius.unsqueeze(-1) * balls.norm(x, DUAL[layer.norm]) + layer.bias_radius.unsqueeze(
        -1
    )
    reach = reach.unsqueeze(-1)
    return Box(center - reach, center + reach)


def at_box(layer: Layer, h: Box, *, nonnegative: bool) -> Box:
    """Return the range of each output over a box of inputs, (..., n, in) -> (..., n, out); errs outwards.

    ``nonnegative`` promises that ``h.lower >= 0``, as after a ReLU, and halves the work.
    """
    if layer.norm == "linf":
        return _interval_product(layer, h, nonnegative=nonnegative)
    center = affine(h.center, layer.weight, layer.bias)
    reach = layer.weight_radius.unsqueeze(-1) * balls.norm(h.magnitude, DUAL[layer.norm])
    reach = (reach + layer.bias_radius.unsqueeze(-1)).unsqueeze(-1) + h.radius @ layer.weight.abs().mT
    return Box(center - reach, center + reach)


def _interval_product(layer: Layer, h: Box, *, nonnegative: bool) -> Box:
    """Multiply the ends of h, split as ``Layer.corners`` expects them: the interval product."""
    ends = torch.cat(h, -1)
    if not nonnegative:
        ends = torch.cat([ends.clamp(min=0), ends.clamp(max=0), *_overlaps(h)], -1)
    return Box(*affine(ends, *layer.corners(nonnegative=nonnegative)).chunk(2, -1))


def _overlaps(h: Box) -> list[Tensor]:
    """Return min(u, r_m v) - min(u, r_(m-1) v) for the ratios r_m; h reaches up to u and down to -v."""
    up, down = h.upper.clamp(min=0), h.lower.clamp(max=0).neg()
    reached = [torch.minimum(up, ratio * down) for ratio in OVERLAP_RATIOS]
    return [reached[0], *(more - less for less, more in pairwise(reached))]


def output_upper(layer: Layer, h: Box, coefficient: Tensor, *, nonnegative: bool) -> Tensor:
    """Bound ``coefficient · (W h + b)`` from above, with shapes (..., n, out), (..., n, in) -> (..., n).

    The coefficients are read jointly: perturbing both rows of a two-logit layer spends one budget,
    ‖coefficient ⊗ h‖_q = ‖coefficient‖_q ‖h‖_q. For boxes the product of each single entry is exact as well,
    and the smaller of the two bounds holds.
    """
    if layer.norm == "linf" and coefficient.shape[-1] == 1:
        return _entrywise_upper(layer, h, coefficient, nonnegative=nonnegative)  # never above the joint bound
    q = DUAL[layer.norm]
    pulled = coefficient @ layer.weight
    size = balls.norm(coefficient, q)
    joint = (coefficient * layer.bias.unsqueeze(-2)).sum(-1) + (
        pulled * h.center + pulled.abs() * h.radius
    ).sum(-1)
    joint = joint + layer.weight_radius.unsqueeze(-1) * size * balls.norm(h.magnitude, q)
    joint = joint + layer.bias_radius.unsqueeze(-1) * size
    if layer.norm != "linf":
        return joint
    return torch.minimum(joint, _entrywise_upper(layer, h, coefficient, nonnegative=nonnegative))


def _entrywise_upper(layer: Layer, h: Box, coefficient: Tensor, *, nonnegative: bool) -> Tensor:
    """Sum the exact maxima of c w h and of c b over the entries, for a layer of one or two rows."""
    if nonnegative:
        low, high = at_box(layer, h, nonnegative=True)
        return (coefficient.clamp(min=0) * high + coefficient.clamp(max=0) * low).sum(-1)
    radius = layer.weight_radius[..., None, None]
    corners = [
        w.unsqueeze(-3) * end.unsqueeze(-2)  # (..., n, out, in)
        for w in (layer.weight - radius, layer.weight + radius)
        for end in h
    ]
    high = torch.maximum(torch.maximum(corners[0], corners[1]), torch.maximum(corners[2], corners[3])).sum(-1)
    low = torch.minimum(torch.minimum(corners[0], corners[1]), torch.minimum(corners[2], corners[3])).sum(-1)
    bias = layer.bias.unsqueeze(-2)
    reach = layer.bias_radius[..., None, None]
    upper, lower = high + bias + reach, low + bias - reach
    return (coefficient.clamp(min=0) * upper + coefficient.clamp(max=0) * lower).sum(-1)


class Bound(NamedTuple):
    """An upper bound of ``sign * logit(x_cf)`` for each row, over a set of models.

    ``multiplier`` is the weight λ that the proof puts on "x keeps its decision": where it is 0, the
    bound holds for every model of the set; above 0, for those that still decide ``x`` as today.
    """

    worst_logit: Tensor
    multiplier: Tensor


class Trace(NamedTuple):
    """Ranges along the network.

    ``inputs[k]`` is the input of layer k, ``outputs[k]`` its output before the activation. The last layer has
    no entry in ``outputs``: how to read it depends on the sign.
    """

    inputs: tuple[Box, ...]
    outputs: tuple[Box, ...]

    def select(self, rows: Tensor) -> Trace:
        """Return the ranges of the given rows."""
        return Trace(tuple(h.select(rows) for h in self.inputs), tuple(z.select(rows) for z in self.outputs))


def trace(param_set: ParamSet, x: Tensor | Box) -> Trace:
    """Return the ranges of every hidden layer over the set, at a point or over a box of inputs.

    At a point the first layer is exact. The box after a ReLU is nonnegative, which the next product uses.
    """
    layers = param_set.layers
    h = x if isinstance(x, Box) else Box(x, x)
    inputs, outputs = [h], []
    for k, slope in enumerate(param_set.network.slopes):
        if k == 0 and isinstance(x, Tensor):
            z = at_point(layers[0], x)
        else:
            z = at_box(layers[k], h, nonnegative=k > 0 and param_set.network.slopes[k - 1] == 0.0)
        h = z.activate(slope)
        outputs.append(z)
        inputs.append(h)
    return Trace(tuple(inputs), tuple(outputs))


def coefficients(param_set: ParamSet, sign: Tensor) -> Tensor:
    """Return the start of the backward pass: ``sign`` times the readout, (..., n, outputs)."""
    return sign.unsqueeze(-1) * sign.new_tensor(param_set.network.readout)


def ibp_upper(param_set: ParamSet, ranges: Trace, sign: Tensor) -> Tensor:
    """Bound ``sign * logit`` from above, (..., n), by the ranges before the last layer."""
    behind_relu = param_set.network.slopes[-1:] == (0.0,)
    last, h = param_set.layers[-1], ranges.inputs[-1]
    return output_upper(last, h, coefficients(param_set, sign), nonnegative=behind_relu)
