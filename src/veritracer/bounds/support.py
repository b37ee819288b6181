"""Support points of the set of models: the model that is worst in a given direction.

Two affine functions of the parameters are looked at together, an objective with slope μ and a
constraint with slope α. In the direction p·μ + w·α the worst model of the set is theta⁰ + Σ_i radius_i v_i,
where v_i is the point of the unit ball that the direction's i-th tensor singles out. All that the dual
needs of it is how far both functions rise there: Σ_i radius_i <μ_i, v_i> and Σ_i radius_i <α_i, v_i>.

A last dimension of size 2 always means (objective, constraint).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer import balls
from veritracer.balls import DUAL, Norm
from veritracer.bounds.affine import Affine

Support = Callable[[Tensor], Tensor]
"""(p, w) as (n, 2) -> how far both functions rise at the support point, (n, 2)."""


class Slope(NamedTuple):
    """One tensor's part of both slopes, each the outer product of a row and a column.

    ``rows`` (n, out, 2), ``cols`` (n, in, 2); the radius is folded into the columns.
    """

    rows: Tensor
    cols: Tensor

    def mix(self, weights: Tensor) -> Tensor:
        """p·μ + w·α for weights (n, 2), as (n, out, in)."""
        return self.rows @ (self.cols * weights.unsqueeze(-2)).mT

    def rises(self, v: Tensor) -> Tensor:
        """<μ, v> and <α, v> for v of shape (n, out, in), as (n, 2)."""
        return (self.rows * (v @ self.cols)).sum(-2)

    def select(self, index: Tensor) -> Slope:
        """The part of the given rows."""
        return Slope(self.rows[index], self.cols[index])

    def swap(self) -> Slope:
        """The same part with objective and constraint exchanged."""
        return Slope(self.rows.flip(-1), self.cols.flip(-1))


def slopes(objective: Affine, constraint: Affine, radii: Sequence[Tensor], norm: Norm) -> list[Slope]:
    """The parts of two flat functions, tensor by tensor; ``radii[i]`` has shape (n,).

    Over a box the norms of a weight and of its bias add up entry by entry, so the bias is one more
    column of the weight; over other balls each tensor has a norm of its own.
    """
    parts: list[Slope] = []
    for k in range(len(objective.rows)):
        rows = torch.stack([objective.rows[k], constraint.rows[k]], -1)
        cols = radii[2 * k][:, None, None] * torch.stack([objective.cols[k], constraint.cols[k]], -1)
        ones = radii[2 * k + 1][:, None, None].expand(-1, 1, 2)
        if norm == "linf":
            parts.append(Slope(rows, torch.cat([cols, ones], -2)))
        else:
            parts += [Slope(rows, cols), Slope(rows, ones)]
    return parts


def objective_alone(parts: Sequence[Slope], norm: Norm) -> Tensor:
    """Both rises at the support point of μ alone, (n, 2), from the factors only.

    Where μ is zero the point is still free, and is put where α points: a ReLU that is off makes many
    such entries, and with this choice the second rise is the right-hand derivative of the dual at 0.
    """
    return torch.stack([_alone(part, norm) for part in parts]).sum(0)


def constraint_alone(parts: Sequence[Slope], norm: Norm) -> Tensor:
    """Both rises at the support point of α alone, (n, 2): the limit for an infinite multiplier."""
    return objective_alone([part.swap() for part in parts], norm).flip(-1)


def _alone(part: Slope, norm: Norm) -> Tensor:
    """<μ, v> and <α, v> at the support point v of μ."""
    size = balls.norm(part.rows.mT, DUAL[norm]) * balls.norm(part.cols.mT, DUAL[norm])  # (n, 2): ‖μ‖_q, ‖α‖_q
    (row, x_row), (col, x_col) = part.rows.unbind(-1), part.cols.unbind(-1)
    if norm == "linf":
        held = (x_row.abs() * (row != 0)).sum(-1) * (x_col.abs() * (col != 0)).sum(-1)
        along = (x_row * row.sign()).sum(-1) * (x_col * col.sign()).sum(-1)
        return torch.stack([size[:, 0], along + (size[:, 1] - held)], -1)
    if norm == "l2":
        along = (row * x_row).sum(-1) * (col * x_col).sum(-1) / torch.where(size[:, 0] > 0, size[:, 0], 1.0)
    else:
        i, j = row.abs().argmax(-1, keepdim=True), col.abs().argmax(-1, keepdim=True)
        sign = row.gather(-1, i).sign() * col.gather(-1, j).sign()
        along = (sign * x_row.gather(-1, i) * x_col.gather(-1, j)).squeeze(-1)
    return torch.stack([size[:, 0], torch.where(size[:, 0] > 0, along, size[:, 1])], -1)


def support_of(parts: Sequence[Slope], norm: Norm) -> Support:
    """The function that gives both rises at the support point of p·μ + w·α."""
    if norm == "l2":
        return _l2_support(parts)

    def rises(weights: Tensor) -> Tensor:
        total = torch.zeros_like(weights)
        for part in parts:
            direction = part.mix(weights)
            # In place: this is the inner loop, and ``direction`` is the largest tensor in it.
            total += part.rises(direction.sign_() if norm == "linf" else balls.furthest(direction, norm))
        return total

    return rises


def _l2_support(parts: Sequence[Slope]) -> Support:
    """For l2 the inner products of μ and α, tensor by tensor, say everything: no dense slope is formed."""
    gram = torch.stack([(p.rows.mT @ p.rows) * (p.cols.mT @ p.cols) for p in parts])  # (tensors, n, 2, 2)

    def rises(weights: Tensor) -> Tensor:
        along = (gram @ weights.unsqueeze(-1)).squeeze(-1)
        size = (along * weights).sum(-1, keepdim=True).clamp(min=0).sqrt()
        return (along / torch.where(size > 0, size, torch.inf)).sum(0)

    return rises


def mixture(
    parts: Sequence[Slope], norm: Norm, multipliers: tuple[Tensor, Tensor], share: Tensor
) -> list[Tensor]:
    """The point ``share`` of the way between the support points of two multipliers, v for each part.

    Ties at the multipliers 0 and ∞ are broken as ``objective_alone`` and ``constraint_alone`` do.
    """
    first, last = ([_point(part, m, norm) for part in parts] for m in multipliers)
    return [torch.lerp(a, b, share[:, None, None]) for a, b in zip(first, last, strict=True)]


def _point(part: Slope, multiplier: Tensor, norm: Norm) -> Tensor:
    """The support point of μ + multiplier·α, (n, out, in); where that is zero, of what was left out."""
    infinite = torch.isinf(multiplier)
    zero, one = torch.zeros_like(multiplier), torch.ones_like(multiplier)
    weights = torch.stack([torch.where(infinite, zero, one), torch.where(infinite, one, multiplier)], -1)
    direction = part.mix(weights)
    other = part.mix((weights == 0).to(weights.dtype))
    if norm == "linf":
        return torch.where(direction == 0, other, direction).sign()
    nothing = direction.abs().flatten(1).amax(-1)[:, None, None] == 0
    return balls.furthest(torch.where(nothing, other, direction), norm)
