"""The one-dimensional dual of Simul-CROWN (the paper's Equation 3), for every norm.

    max μ·θ + ν  subject to  α·θ + β >= 0,  θ in the set                            (primal)
    min over λ >= 0 of  φ(λ) = ν + λβ + (μ + λα)·θ⁰ + Σ_i radius_i ‖(μ + λα)_i‖_q     (dual)

φ is convex in one variable, and *every* λ >= 0 gives a sound bound, however the search ends.

The search keeps two models: one that is best for the objective but breaks the constraint, and one that
satisfies it. Each gives a line below φ; the lines meet at the next λ. The height at which they meet is the
objective of the mixture of the two models that satisfies the constraint exactly, so it is also a lower limit
of the optimum, and the gap tells when to stop. On boxes and cross-polytopes φ is piecewise linear and the
search ends at a kink after a few steps.

Gradients do not run through the search: at the optimum ∂/∂μ = θ*, ∂/∂α = λ*θ*, ∂/∂β = λ*, ∂/∂ν = 1, with θ*
that mixture. (Differentiating φ at λ* is wrong at a kink: sign(0) is not the mixture.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds.affine import Affine
from veritracer.bounds.support import Slope, Support, mixture, other_rise, slopes, support_of
from veritracer.models.balls import Norm

MOST_STEPS = 80
"""Maximum steps of a search that stops by itself; it rarely needs more than a dozen."""

GAP = 1e-12
"""Relative gap between the bound and its lower limit at which a search stops by itself."""


CREEPS = 8
"""Consecutive moves of one side from which the search counts as creeping."""


class Dual(NamedTuple):
    """A sound upper bound (n,) and the multiplier λ (n,) that proves it; at 0, without the constraint."""

    value: Tensor
    multiplier: Tensor


class DualProblem(NamedTuple):
    """Flat functions of n rows, without gradients, and the radii (n,) of each tensor."""

    objective: Affine
    constraint: Affine
    radii: list[Tensor]
    norm: Norm

    @property
    def center(self) -> Tensor:
        """Return objective and constraint at today's model, (n, 2)."""
        return torch.stack([self.objective.center, self.constraint.center], -1)

    def slopes(self) -> list[Slope]:
        """Return the slopes of both functions, tensor by tensor."""
        return slopes(self.objective, self.constraint, self.radii, self.norm)

    def select(self, index: Tensor) -> DualProblem:
        """Return the problem of the given rows."""
        radii = [r[index] for r in self.radii]
        return DualProblem(self.objective.select(index), self.constraint.select(index), radii, self.norm)

    def detach(self) -> DualProblem:
        """Return the problem without gradients."""
        return self._replace(objective=self.objective.detach(), constraint=self.constraint.detach())


class DualSearch(NamedTuple):
    """State of a search: a model on either side of the optimum, and the best bound so far.

    ``left`` and ``right`` (n, 3) hold objective, constraint and multiplier; the constraint is negative
    on the left. ``streak`` counts how often one side moved in a row, negative for the left one.
    """

    left: Tensor
    right: Tensor
    best: Tensor
    multiplier: Tensor
    streak: Tensor


def maximum(
    objective: Affine,
    constraint: Affine,
    radii: Sequence[Tensor],
    norm: Norm,
    *,
    steps: int | None = None,
    sign_only: bool = False,
) -> Dual:
    """Bound max objective(θ) subject to constraint(θ) >= 0 over the balls from above, for each row.

    ``steps=None`` searches only the rows where the constraint binds, each until its gap closes. A number runs
    that many steps on all rows under masks: slower, but free of data-dependent control flow, as ``vmap``
    needs it. ``sign_only`` lets a row stop as soon as the sign of its optimum is known: the bound stays
    sound, but is only as tight as the sign needs. Batch dimensions of the functions are kept; the radii
    broadcast with them.
    """
    shape = objective.center.shape
    plain = objective.upper(radii, norm).flatten()
    rowwise = [r.detach().expand(shape).flatten() for r in radii]
    problem = DualProblem(objective.flatten(), constraint.flatten(), rowwise, norm)
    fixed = problem.detach()
    # The constraint at the model that is best for the objective alone: below 0, it binds.
    kept = fixed.constraint.center + other_rise(fixed.objective, fixed.constraint, rowwise, norm)
    if steps is not None:
        state = _settled(fixed, _search(fixed, plain.detach(), kept, steps))
        value = _with_gradient(problem, state)
        found = Dual(torch.where(kept < 0, value, plain), torch.where(kept < 0, state.multiplier, 0.0))
    else:
        binds = (kept < 0) & (plain.detach() >= 0) if sign_only else kept < 0
        found = _where_it_binds(problem, plain, kept, binds.nonzero().squeeze(-1), sign_only=sign_only)
    return Dual(found.value.view(shape), found.multiplier.view(shape))


def _where_it_binds(
    problem: DualProblem, plain: Tensor, kept: Tensor, rows: Tensor, *, sign_only: bool
) -> Dual:
    """Replace the given rows of ``plain`` by the optimum of the dual."""
    multiplier = torch.zeros_like(kept)
    if rows.numel() == 0:
        return Dual(plain, multiplier)
    chosen = problem.select(rows)
    fixed = chosen.detach()
    state = _settled(
        fixed, _search_until_closed(fixed, plain.detach()[rows], kept[rows], sign_only=sign_only)
    )
    value = _with_gradient(chosen, state)
    return Dual(plain.index_copy(0, rows, value), multiplier.index_copy(0, rows, state.multiplier))


def _search(problem: DualProblem, plain: Tensor, kept: Tensor, steps: int) -> DualSearch:
    """Return the state after that many steps on all rows."""
    support, center = support_of(problem.slopes(), problem.norm), problem.center
    state = _start(problem, plain, kept)
    for _ in range(steps):
        state = _step(state, support, center, _next(state)[0])
    return state


def _search_until_closed(problem: DualProblem, plain: Tensor, kept: Tensor, *, sign_only: bool) -> DualSearch:
    """Return the state when every row's gap is closed (or its sign known); finished rows leave the batch."""
    # A tensor that cannot move has no effect.
    slopes_, center = problem.slopes(), problem.center
    parts = [part for part in slopes_ if bool(part.cols.any())] or slopes_[:1]
    support = support_of(parts, problem.norm)
    whole = state = _start(problem, plain, kept)
    rows = torch.arange(len(center), device=center.device)
    for _ in range(MOST_STEPS):
        multiplier, floor = _next(state)
        state = _step(state, support, center, multiplier)
        open_ = state.best - floor > GAP * (1 + state.best.abs())
        if sign_only:
            open_ &= (state.best >= 0) & (floor < 0)
        still = open_.nonzero().squeeze(-1)
        if 2 * len(still) > len(rows):
            continue  # leaving costs a copy of the slopes, so wait until half of the batch is done
        whole = _merge(whole, rows, state)
        if len(still) == 0:
            return whole
        rows, center, state = rows[still], center[still], DualSearch(*(t[still] for t in state))
        parts = [part.select(still) for part in parts]
        support = support_of(parts, problem.norm)
    return _merge(whole, rows, state)


def _settled(problem: DualProblem, state: DualSearch) -> DualSearch:
    """Evaluate the best bound of the state once more, for l2 from the slopes themselves.

    The search computes ‖μ + λα‖ from inner products, which loses half of the digits where the sum nearly
    cancels. That may mislead the search, which costs tightness, but it must not reach the bound.
    """
    if problem.norm != "l2":
        return state
    weights = torch.stack([torch.ones_like(state.multiplier), state.multiplier], -1)
    value = (weights * problem.center).sum(-1)
    for part in problem.slopes():
        value = value + part.mix(weights).flatten(1).norm(dim=-1)
    return state._replace(best=value)


def _merge(whole: DualSearch, rows: Tensor, part: DualSearch) -> DualSearch:
    """Return ``whole`` with the given rows replaced."""
    return DualSearch(*(old.index_copy(0, rows, new) for old, new in zip(whole, part, strict=True)))


def _start(problem: DualProblem, plain: Tensor, kept: Tensor) -> DualSearch:
    """Start from the models that are best for the objective alone and for the constraint alone."""
    zero = torch.zeros_like(plain)
    most = problem.constraint.upper(problem.radii, problem.norm)
    given = other_rise(problem.constraint, problem.objective, problem.radii, problem.norm)
    left = torch.stack([plain, kept, zero], -1)
    right = torch.stack([problem.objective.center + given, most, torch.full_like(zero, torch.inf)], -1)
    return DualSearch(left, right, best=plain, multiplier=zero, streak=zero)


def _next(state: DualSearch) -> tuple[Tensor, Tensor]:
    """Return the next multiplier, and the height at which the two lines meet: a lower limit of the optimum.

    If one side moves many times in a row, the middle of the bracket replaces the meeting point: φ may have a
    shape on which the search creeps, though none is known. If no model satisfies the constraint, the lines do
    not meet to the right of 0, and any λ is equally sound.
    """
    (o_l, c_l, m_l), (o_r, c_r, m_r) = state.left.unbind(-1), state.right.unbind(-1)
    rise = c_r - c_l
    meets = rise > 0
    meet = torch.where(meets, (o_l - o_r) / torch.where(meets, rise, 1.0), m_l + 1.0).clamp(min=0.0)
    creeps = (state.streak.abs() >= CREEPS) & torch.isfinite(m_r)
    return torch.where(creeps, (m_l + m_r) / 2, meet), o_l + meet * c_l


def _step(state: DualSearch, support: Support, center: Tensor, multiplier: Tensor) -> DualSearch:
    """Return the state after evaluating one more multiplier."""
    at = center + support(torch.stack([torch.ones_like(multiplier), multiplier], -1))
    value = at[:, 0] + multiplier * at[:, 1]
    seen = torch.cat([at, multiplier.unsqueeze(-1)], -1)
    goes_left = at[:, 1] < 0
    better = value < state.best
    return DualSearch(
        torch.where(goes_left.unsqueeze(-1), seen, state.left),
        torch.where(goes_left.unsqueeze(-1), state.right, seen),
        torch.where(better, value, state.best),
        torch.where(better, multiplier, state.multiplier),
        torch.where(goes_left, state.streak.clamp(max=0) - 1, state.streak.clamp(min=0) + 1),
    )


def _with_gradient(problem: DualProblem, state: DualSearch) -> Tensor:
    """Return the best bound with the gradient of the optimum.

    That is the gradient of the Lagrangian with the multiplier and the mixture of the two models held fixed;
    the mixture is the one that satisfies the constraint exactly.
    """
    needed = problem.objective.center.requires_grad or problem.constraint.center.requires_grad
    if not (torch.is_grad_enabled() and needed):
        return state.best
    c_l, c_r = state.left[:, 1], state.right[:, 1]
    rise = c_r - c_l
    share = torch.where(rise > 0, -c_l / torch.where(rise > 0, rise, 1.0), 1.0).clamp(0.0, 1.0)
    ends = state.left[:, 2], state.right[:, 2]
    points = mixture(problem.detach().slopes(), problem.norm, ends, share)
    weights = torch.stack([torch.ones_like(state.multiplier), state.multiplier], -1)
    value = (weights * problem.center).sum(-1)
    for part, v in zip(problem.slopes(), points, strict=True):
        value = value + (weights * part.rises(v)).sum(-1)
    return value + (state.best - value).detach()


def greedy_maximum(
    mu: Tensor, nu: Tensor, alpha: Tensor, beta: Tensor, center: Tensor, radius: Tensor
) -> Tensor:
    """Maximise μ·θ + ν subject to α·θ + β >= 0 over |θ - center| <= radius; -inf if infeasible.

    The paper's Algorithm 2: exact on a box, by sorting. The dual is tested and timed against it.

    ``mu`` and ``alpha`` have shape (n, P), ``nu`` and ``beta`` (n,), ``center`` and ``radius`` (P,).

    It starts from the point that satisfies the constraint best and, where the objective pulls the other way,
    trades constraint for objective in the order of the exchange rate |μ_i| / |α_i|, until the constraint is
    tight. A coordinate with α_i = 0 costs nothing and has its best value from the start.
    """
    direction = torch.where(alpha != 0, alpha.sign(), mu.sign())
    theta = center + radius * direction
    margin = (alpha * theta).sum(-1) + beta
    value = (mu * theta).sum(-1) + nu
    opposed = mu * alpha < 0
    rate = torch.where(opposed, mu.abs() / torch.where(opposed, alpha.abs(), 1.0), -1.0)
    order = rate.argsort(dim=-1, descending=True)
    spend = torch.where(opposed, 2 * radius * alpha.abs(), 0.0).gather(-1, order)
    gain = torch.where(opposed, 2 * radius * mu.abs(), 0.0).gather(-1, order)
    before = spend.cumsum(-1) - spend
    share = ((margin.unsqueeze(-1) - before) / torch.where(spend > 0, spend, 1.0)).clamp(0.0, 1.0)
    value = value + (gain * share).sum(-1)
    return torch.where(margin >= 0, value, -torch.inf)
