"""Lines above and below an activation on an interval."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds.intervals import Box


class Lines(NamedTuple):
    """``lower_slope * z <= activation(z) <= upper_slope * z + upper_offset`` on the interval."""

    lower_slope: Tensor
    upper_slope: Tensor
    upper_offset: Tensor


def leaky_relu_lines(z: Box, slope: float) -> Lines:
    """Lines that bound LeakyReLU between ``z.lower`` and ``z.upper``; ReLU for slope 0.

    Above: the chord, which a convex function never exceeds. Below: a line through the origin with
    either of the two slopes, since the function is the larger of them; the one that loses less area,
    chosen by the longer side. Where the interval keeps its sign both lines are the function itself.
    """
    positive, negative = z.upper.clamp(min=0), -z.lower.clamp(max=0)
    # The chord through (-negative, -slope * negative) and (positive, positive). Where one of them is 0
    # it is 1 or ``slope`` by itself, and where both are, the interval is {0} and any line will do.
    width = positive + negative
    safe = torch.where(width > 0, width, 1.0)
    low = (positive >= negative).to(width.dtype)
    if slope == 0.0:  # the same with fewer operations, and this is the inner loop of training
        chord = positive / safe
        return Lines(low, chord, chord * negative)
    chord = (positive + slope * negative) / safe
    return Lines(low * (1.0 - slope) + slope, chord, (chord - slope) * negative)
