"""Support points of the set of models: the model that is worst in a given direction.

Two affine functions of the parameters are considered together, an objective with slope μ and a constraint
with slope α. In the direction p·μ + w·α the worst model of the set is theta⁰ + Σ_i radius_i v_i, where v_i is
the point of the unit ball that is furthest along the direction's i-th tensor. The dual needs only how far
both functions rise there: Σ_i radius_i <μ_i, v_i> and Σ_i radius_i <α_i, v_i>.

A dimension of size 2 always means (objective, constraint).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds.affine import Affine
from veritracer.models import balls
from veritracer.models.balls import DUAL, Norm

Support = Callable[[Tensor], Tensor]
"""Maps (p, w) as (n, 2) to the rises of both functions at the support point, (n, 2)."""


class Slope(NamedTuple):
    """One tensor's part of both slopes, each the outer product of a row and a column.

    ``rows`` (n, out, 2), ``cols`` (n, 2, in); the radius is folded into the columns.
    """

    rows: Tensor
    cols: Tensor

    def mix(self, weights: Tensor) -> Tensor:
        """Return p·μ + w·α for weights (n, 2), as (n, out, in)."""
        return self.rows @ (self.cols * weights.unsqueeze(-1))

    def rises(self, v: Tensor) -> Tensor:
        """Return <μ, v> and <α, v> for v of shape (n, out, in), as (n, 2)."""
        return ((self.rows.mT @ v) * self.cols).sum(-1)

    def select(self, index: Tensor) -> Slope:
        """Return the part of the given rows."""
        return Slope(self.rows[index], self.cols[index])


def slopes(objective: Affine, constraint: Affine, radii: Sequence[Tensor], norm: Norm) -> list[Slope]:
    """Return the parts of two flat functions, tensor by tensor; ``radii[i]`` has shape (n,).

    Over a box the norms of a weight and of its bias add up entry by entry, so the bias is one more column of
    the weight; over other balls each tensor has a norm of its own.
    """
    parts: list[Slope] = []
    for k in range(len(objective.rows)):
        rows = torch.stack([objective.rows[k], constraint.rows[k]], -1)
        cols = radii[2 * k][:, None, None] * torch.stack([objective.cols[k], constraint.cols[k]], -2)
        ones = radii[2 * k + 1][:, None, None].expand(-1, 2, 1)
        if norm == "linf":
            parts.append(Slope(rows, torch.cat([cols, ones], -1)))
        else:
            parts += [Slope(rows, cols), Slope(rows, ones)]
    return parts


def other_rise(own: Affine, other: Affine, radii: Sequence[Tensor], norm: Norm) -> Tensor:
    """Return how far ``other`` rises at the support point of ``own`` alone, (n,), from the factors only.

    Where a slope of ``own`` is zero its support point is free, and is set to where ``other`` points: a ReLU
    that is off makes many such entries, and with this choice the rise is the right-hand derivative of the
    dual function at 0 (and, with the roles exchanged, its limit at infinity).
    """
    if norm == "linf":
        return _other_rise_in_a_box(own, other, radii)
    total = torch.zeros_like(own.center)
    planes = zip(own.rows, own.cols, other.rows, other.cols, strict=True)
    for k, (row, col, other_row, other_col) in enumerate(planes):
        one = torch.ones_like(col[:, :1])
        total = total + radii[2 * k] * _other_rise(row, col, other_row, other_col, norm)
        total = total + radii[2 * k + 1] * _other_rise(row, one, other_row, one, norm)
    return total


def _other_rise_in_a_box(own: Affine, other: Affine, radii: Sequence[Tensor]) -> Tensor:
    """Return Σ_i radius_i (Σ over slope ≠ 0 of sign(slope) other + Σ over slope = 0 of |other|).

    Each sum over an outer product is a product of sums over rows and columns. All layers are laid side by
    side, and the sums of each layer are taken by one matrix product: on small batches the cost is the number
    of operations, not their size.
    """
    row, other_row = torch.cat(own.rows, -1), torch.cat(other.rows, -1)
    col, other_col = torch.cat(own.cols, -1), torch.cat(other.cols, -1)
    by_row = _sums_by_layer(row, other_row, [r.shape[-1] for r in own.rows])
    by_col = _sums_by_layer(col, other_col, [c.shape[-1] for c in own.cols])
    weight, bias = torch.stack(list(radii[0::2]), -1), torch.stack(list(radii[1::2]), -1)
    # along, held, free: (n, layers) each. The bias is a column of ones, for either function.
    rise = (by_row * (weight * by_col + bias)).unbind(0)
    return (rise[0] + rise[2] - rise[1]).sum(-1)


def _sums_by_layer(own: Tensor, other: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return sums of sign(own)·other, of |other| where own is not 0, and of |other|: (3, n, layers)."""
    sign, size = own.sign(), other.abs()
    return torch.stack([sign * other, sign.abs() * size, size]) @ _membership(
        tuple(sizes), own.dtype, own.device
    )


@lru_cache(maxsize=32)
def _membership(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return 1 where an entry belongs to a layer, (Σ sizes, layers)."""
    layer = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return torch.nn.functional.one_hot(layer, len(sizes)).to(device, dtype)


def _other_rise(row: Tensor, col: Tensor, other_row: Tensor, other_col: Tensor, norm: Norm) -> Tensor:
    """Return <other_row ⊗ other_col, v> at the support point v of row ⊗ col in an l1 or l2 ball."""
    q = DUAL[norm]
    size = balls.norm(row, q) * balls.norm(col, q)
    free = balls.norm(other_row, q) * balls.norm(other_col, q)
    if norm == "l2":
        along = (row * other_row).sum(-1) * (col * other_col).sum(-1) / torch.where(size > 0, size, 1.0)
    elif norm != "l1":
        raise balls.unknown_norm(norm)
    else:
        i, j = row.abs().argmax(-1, keepdim=True), col.abs().argmax(-1, keepdim=True)
        sign = row.gather(-1, i).sign() * col.gather(-1, j).sign()
        along = (sign * other_row.gather(-1, i) * other_col.gather(-1, j)).squeeze(-1)
    return torch.where(size > 0, along, free)


def support_of(parts: Sequence[Slope], norm: Norm) -> Support:
    """Return the function that computes both rises at the support point of p·μ + w·α."""
    if norm == "l2":
        return _l2_support(parts)

    def rises(weights: Tensor) -> Tensor:
        total = torch.zeros_like(weights)
        for part in parts:
            direction = part.mix(weights)
            # In place: this is the inner loop, and ``direction`` is the largest tensor in it.
            total += part.rises(direction.sign_() if norm == "linf" else balls.support_point(direction, norm))
        return total

    return rises


def _l2_support(parts: Sequence[Slope]) -> Support:
    """Use the inner products of μ and α, tensor by tensor: for l2 no dense slope is formed."""
    gram = torch.stack([(p.rows.mT @ p.rows) * (p.cols @ p.cols.mT) for p in parts])  # (tensors, n, 2, 2)

    def rises(weights: Tensor) -> Tensor:
        along = (gram @ weights.unsqueeze(-1)).squeeze(-1)
        size = (along * weights).sum(-1, keepdim=True).clamp(min=0).sqrt()
        return (along / torch.where(size > 0, size, torch.inf)).sum(0)

    return rises


def mixture(
    parts: Sequence[Slope], norm: Norm, multipliers: tuple[Tensor, Tensor], share: Tensor
) -> list[Tensor]:
    """Return the point ``share`` of the way between the support points of two multipliers, v for each part.

    Ties at the multipliers 0 and ∞ are broken as in ``other_rise``.
    """
    first, last = ([_point(part, m, norm) for part in parts] for m in multipliers)
    return [torch.lerp(a, b, share[:, None, None]) for a, b in zip(first, last, strict=True)]


def _point(part: Slope, multiplier: Tensor, norm: Norm) -> Tensor:
    """Return the support point of μ + multiplier·α, (n, out, in); of the other slope where that is zero."""
    infinite = torch.isinf(multiplier)
    zero, one = torch.zeros_like(multiplier), torch.ones_like(multiplier)
    weights = torch.stack([torch.where(infinite, zero, one), torch.where(infinite, one, multiplier)], -1)
    direction = part.mix(weights)
    other = part.mix((weights == 0).to(weights.dtype))
    if norm == "linf":
        return torch.where(direction == 0, other, direction).sign()
    nothing = direction.abs().flatten(1).amax(-1)[:, None, None] == 0
    return balls.support_point(torch.where(nothing, other, direction), norm)
