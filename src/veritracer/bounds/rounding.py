r"""Bound the distance of a logit computed in floating point from the exact one, over a set of models.

A proof is about exact arithmetic; ``predict`` does not compute in it. With u the unit roundoff and τ the
smallest normal number, every operation, and every conversion of a number to this precision, gives
a (1 + ε) + η instead of a, with \|ε\| <= u and \|η\| <= τ: η is the loss by underflow, whether it is gradual,
the result is flushed to zero (FTZ), or it is kept and read as zero by the next operation (DAZ); a number is
lost once, when it is written or when it is read.

Let an exact layer be z = Σ w_j h_j + b over n inputs, and let its inputs be off by at most e_j.

* Each weight is converted: w_j (1 + ε) + η. The first part is one more factor of the product; the second
  costs up to τ \|h_j\| however small the weight is, which matters where an activation is huge.
* Each product meets its own rounding and that of n additions, in any order, blocked or fused. With the
  conversion these are n + 2 factors 1 + ε, so that a sum is off by at most γ = (n + 2) u / (1 - (n + 2) u)
  times the sum of the magnitudes of its terms.
* n products, n partial sums and the bias may each underflow: (2 n + 1) τ, times 1 + γ for what follows.

Altogether, with the magnitudes taken over the whole set and the whole range of h,

    e' = (1 + γ) (Σ \|w_j\| e_j + τ Σ (\|h_j\| + e_j) + (2 n + 1) τ) + γ (Σ \|w_j\| \|h_j\| + \|b\|).

ReLU adds nothing. A LeakyReLU's slope a <= 1 is converted and multiplied: two factors, τ \|z\| for a slope
that is lost, τ for the product. This holds on any device, as long as products are computed in that precision
(TF32 stays off). Where a number might overflow, a weight included, there is no bound: the error is infinite.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds.ibp import Trace
from veritracer.models.network import affine
from veritracer.models.param_sets import ParamSet

DIGITS = 10
"""Digits to which a bound is rounded: significant ones, or decimals if it is small."""

SMALL = 1e4
"""A bound is small below this many times its slack, or below 1 if that is less; its digits end there."""


class Precision(NamedTuple):
    """A floating-point arithmetic: unit roundoff u, smallest normal number τ, largest number.

    A number below the smallest normal one is counted as lost, so that flushing it to zero is covered.
    """

    unit: float
    tiny: float
    largest: float

    @classmethod
    def of(cls, dtype: torch.dtype) -> Precision:
        """Return the arithmetic of that type.

        >>> Precision.of(torch.float32).unit == 2.0**-24
        True
        """
        info = torch.finfo(dtype)
        return cls(info.eps / 2, info.tiny, info.max)

    def plus(self, unit: float) -> Precision:
        """Return the same arithmetic with another rounding on top of each operation."""
        return self._replace(unit=self.unit + unit)


def logit_error(param_set: ParamSet, ranges: Trace, precision: Precision) -> Tensor:
    """Bound |computed logit - exact logit| (n,) for every model of the set and all inputs.

    The inputs themselves are assumed to be rounded once. (The error grows faster than the unit, so that the
    error of two arithmetics, one on top of the other, is at most that of one with the sum of their units.)
    """
    unit, tiny, largest = precision
    depth, slopes = param_set.network.depth, param_set.network.slopes
    magnitude = ranges.inputs[0].magnitude
    error, largest_size = unit * magnitude + tiny, magnitude.amax(-1)
    for k, (gamma, weight, bias) in enumerate(_grown(param_set, precision)):
        if k > 0:  # the output of a ReLU is its own magnitude
            magnitude = ranges.inputs[k].upper if slopes[k - 1] == 0.0 else ranges.inputs[k].magnitude
        # One product for both: |W| h, the magnitudes of each sum, and |W| e, the errors so far.
        error = affine(torch.add(gamma * magnitude, error, alpha=1 + gamma), weight, bias)
        # It contains the sums, γ times: a slightly larger value saves computing them.
        size = error / gamma
        largest_size = torch.maximum(largest_size, size.amax(-1))
        if k < depth - 1 and slopes[k] not in (0.0, 1.0):
            error = error + (3 * unit + 2 * tiny) * (size + error) + 2 * tiny
    readout = error.new_tensor(param_set.network.readout).abs()
    if len(readout) == 1:
        total = error[..., 0]
    else:
        total = ((error + _gamma(len(readout), unit) * (size + error) + tiny) * readout).sum(-1)
    # A quarter of the largest number leaves room for the errors: where they exceed the other three quarters,
    # the slack alone exceeds every bound.
    room = largest / 4 if param_set.largest_weight < largest / 4 else 0.0
    return torch.where(largest_size < room, total, torch.inf)


def _grown(param_set: ParamSet, precision: Precision) -> list[tuple[float, Tensor, Tensor]]:
    """Return for each layer its γ, and the weights and biases that map γ h + (1 + γ) e to the next error.

    Weights that grow by 2τ/γ pay for those that are lost: γ times that is 2τ for each unit of h, and the
    errors get more. (Beside a weight that swallows the addition, it is less than our own rounding.)
    """

    def layers() -> list[tuple[float, Tensor, Tensor]]:
        found, tiny = [], precision.tiny
        for weight, bias in param_set.magnitudes:
            operations = weight.shape[-1] + 2
            gamma = _gamma(operations, precision.unit)
            found.append((gamma, weight + 2 * tiny / gamma, gamma * bias + 4 * operations * tiny))
        return found

    return param_set.once(precision, layers)


def round_up(bound: Tensor, slack: Tensor | None = None) -> Tensor:
    """Round upper bounds up to the tenth digit, so that they claim no more than was proved.

    Digits are counted from the first one of the bound or, for a small bound, from that of 1; with ``slack``,
    from that of ``SMALL`` times it if that is less: some networks have tiny logits.

    The last bits of a sum depend on its order, and that on the processor, its kernels, the number of threads
    and the rows that are computed together. Ten digits do not, except where a bound lies within such a bit of
    the next number of ten digits: then it may be rounded to either of the two, and both are true.

    >>> round_up(torch.tensor([-0.12345678901, 0.0, 1234.5678901234, -1e-12], dtype=torch.float64)).tolist()
    [-0.123456789, 0.0, 1234.567891, 0.0]
    """
    small = 1.0 if slack is None else (SMALL * slack).clamp(1e-280, 1.0)
    size = torch.maximum(bound.abs(), torch.as_tensor(small, dtype=bound.dtype, device=bound.device))
    before_point = torch.where(size.isfinite(), size.log10().ceil(), 0.0)
    scale = 10.0 ** (DIGITS - before_point)
    steps = (bound * scale).ceil()
    up = torch.where(steps / scale < bound, (steps + 1.0) / scale, steps / scale)
    return torch.where(bound.isfinite(), up + 0.0, bound)


def _gamma(n: int, unit: float) -> float:
    return n * unit / (1 - n * unit) if n * unit < 0.5 else float("inf")
