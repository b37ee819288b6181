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
    positive, negative = torch.relu(z.upper), torch.relu(-z.lower)
    width = positive + negative
    straddles = (positive > 0) & (negative > 0)
    # The chord through (-negative, -slope * negative) and (positive, positive); the division is kept
    # away from zero where the chord is not used, so that no gradient becomes nan.
    chord = (positive + slope * negative) / torch.where(straddles, width, torch.ones_like(width))
    one, low = torch.ones_like(width), torch.full_like(width, slope)
    kept = torch.where(z.lower >= 0, one, low)
    upper_slope = torch.where(straddles, chord, kept)
    upper_offset = torch.where(straddles, (chord - slope) * negative, torch.zeros_like(width))
    lower_slope = torch.where(straddles, torch.where(positive >= negative, one, low), kept)
    return Lines(lower_slope, upper_slope, upper_offset)
