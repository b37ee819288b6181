r"""Sequential linear programming over legal rows, all rows of a batch at once.

Each round replaces the bound by its tangent at the present point, solves that problem exactly, rounds to the
grid towards the certified side, and looks at the true bound there. Points that turn out proved and cheaper
are kept; a trust region shrinks where the tangent promised too much. Rows leave the batch when they are done,
and the course of a row does not depend on the other rows.

The linearised problem is a continuous knapsack: with the bound replaced by :math:`v + g·(y - p)`, every
column offers up to two stretches (towards the anchor, and beyond it), every category group one switch; each
has a cost and a gain, and the best ratio comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.search.problem import SearchProblem, Slopes

ROUNDS = 20
"""Largest number of rounds."""
PATIENCE = 5
"""Rounds without a cheaper proved point after which a row that has one is done."""
MARGIN = 1e-5
"""Target of the tangent below zero: the true bound is curved, and certified means strictly below."""
STUCK = 2e-3
"""Trust radius below which a row without a proved point is given up (from this start)."""
PROGRESS = 1e-3
"""Share by which the objective has to fall to count as progress."""


class Solutions(NamedTuple):
    """Counterfactuals of a batch: one for each row or, with alternatives, several, (m,) or (m, d) each.

    Attributes
    ----------
    row, alternative
        The position of the row that each counterfactual is for, and its number among that row's, from 0.
    x_cf
        The points; where none is proved, the one with the lowest bound that was seen.
    objective
        What was minimised; infinite where there is no proof.
    worst_logit
        The bound of the point; below zero is a proof.
    complete
        Whether the search ended by itself rather than by its time budget.
    """

    row: Tensor
    alternative: Tensor
    x_cf: Tensor
    objective: Tensor
    worst_logit: Tensor
    complete: Tensor

    @classmethod
    def joined(cls, parts: Sequence[Solutions]) -> Solutions:
        """Return all counterfactuals of the parts, in the order of their rows."""
        whole = cls(*(torch.cat(column) for column in zip(*parts, strict=True)))
        return whole.select(torch.argsort(whole.row, stable=True))

    @property
    def proved(self) -> Tensor:
        """Return a mask of the proved counterfactuals."""
        return torch.isfinite(self.objective)

    def better(self, other: Solutions) -> Solutions:
        """Return the better point of the two for each row: the cheaper proved one, else the lower bound."""
        cheaper = other.objective < self.objective
        closer = ~self.proved & ~other.proved & (other.worst_logit < self.worst_logit)
        take = cheaper | closer
        return self._replace(
            x_cf=torch.where(take.unsqueeze(-1), other.x_cf, self.x_cf),
            objective=torch.where(take, other.objective, self.objective),
            worst_logit=torch.where(take, other.worst_logit, self.worst_logit),
        )

    def select(self, rows: Tensor | slice) -> Solutions:
        """Return the counterfactuals at the given positions."""
        return Solutions(*(field[rows] for field in self))

    def replace(self, rows: Tensor, part: Solutions) -> Solutions:
        """Return the same with the points of ``part`` at these positions."""
        return self._replace(
            x_cf=self.x_cf.index_copy(0, rows, part.x_cf),
            objective=self.objective.index_copy(0, rows, part.objective),
            worst_logit=self.worst_logit.index_copy(0, rows, part.worst_logit),
        )

    def merge(self, rows: Tensor, part: Solutions) -> Solutions:
        """Return the same with the better of the two points at these positions."""
        return self.replace(rows, self.select(rows).better(part))

    def without(self, refused: Tensor, x: Tensor) -> tuple[Solutions, Tensor]:
        """Leave out the refused counterfactuals (m,); return the others, and a mask of rows that lost all.

        A row keeps its other alternatives, numbered anew. A row that loses all keeps its own values of ``x``.
        """
        passing = torch.zeros(len(x), dtype=torch.bool, device=refused.device)
        passing[self.row[~refused]] = True
        lost = refused & ~passing[self.row]
        kept = ~refused | (lost & (self.alternative == 0))
        left, lost = self.select(kept), lost[kept]
        number = torch.arange(len(left.row), device=refused.device)
        number -= torch.searchsorted(left.row, left.row)
        x_cf = torch.where(lost.unsqueeze(-1), x[left.row], left.x_cf)
        return left._replace(alternative=number, x_cf=x_cf), lost


def assess(problem: SearchProblem, x_cf: Tensor, worst_logit: Tensor | None = None) -> Solutions:
    """Return legal points (n, d) with their bound, and their objective where it is a proof."""
    worst = problem.worst_logit(x_cf) if worst_logit is None else worst_logit
    row = torch.arange(len(x_cf), device=x_cf.device)
    return Solutions(
        row=row,
        alternative=torch.zeros_like(row),
        x_cf=x_cf,
        objective=torch.where(worst < 0, problem.objective(x_cf), torch.inf),
        worst_logit=worst,
        complete=torch.ones_like(row, dtype=torch.bool),
    )


def refine(
    problem: SearchProblem,
    start: Tensor,
    *,
    rounds: int = ROUNDS,
    expired: Callable[[], bool] = lambda: False,
) -> Solutions:
    """Return the cheapest proved point found for each row, from the legal points ``start`` (n, d)."""
    here = problem.linearised(start)
    best = assess(problem, start, here.value)
    rows = torch.arange(len(problem), device=start.device)
    course = _Course(start, here, torch.ones_like(here.value), torch.zeros_like(rows))
    part = problem
    for _ in range(rounds):
        if len(rows) == 0 or expired():
            break
        course, seen, settled = _round(part, course, best.objective[rows])
        best = best.merge(rows, seen)
        going = (~settled).nonzero().squeeze(-1)
        if len(going) < len(rows):
            rows, course, part = rows[going], course.select(going), part.select(going)
    return best


class _Course(NamedTuple):
    """State of each row's search: point, tangent there, trust radius, rounds without progress."""

    p: Tensor
    at: Slopes
    trust: Tensor
    idle: Tensor

    def select(self, rows: Tensor) -> _Course:
        return _Course(self.p[rows], Slopes(*(t[rows] for t in self.at)), self.trust[rows], self.idle[rows])


def _round(problem: SearchProblem, course: _Course, record: Tensor) -> tuple[_Course, Solutions, Tensor]:
    """Take one step of every row; return the new state, the point seen, and a mask of the settled rows."""
    p, at, trust, idle = course
    radius = trust.unsqueeze(-1)
    lower, upper = _held(problem, p)
    near = torch.maximum(torch.minimum(p - radius, upper), lower)
    far = torch.minimum(torch.maximum(p + radius, lower), upper)
    y = cheapest(problem, p, at, near, far, -MARGIN)
    y = problem.encoding.snap(y, problem.x, at.slope < 0)
    there = problem.linearised(y)
    seen = assess(problem, y, there.value)
    progress = seen.objective < record * (1 - PROGRESS)
    progress |= torch.isfinite(seen.objective) & torch.isinf(record)
    idle = torch.where(progress, 0, idle + 1)
    trust = torch.where(seen.proved, (trust * 1.3).clamp(max=1.0), trust * 0.6)
    has_one = torch.isfinite(record) | seen.proved
    settled = has_one & ((idle >= PATIENCE) | ((y == p).all(-1) & seen.proved))
    settled |= ~has_one & ((trust < STUCK) | (y == p).all(-1))
    return _Course(y, there, trust, idle), seen, settled


def _held(problem: SearchProblem, p: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds of each column while a cell that is missing at ``p`` stays missing."""
    missing = problem.encoding.missing(p)
    return torch.where(missing, p, problem.lower), torch.where(missing, p, problem.upper)


class _Items(NamedTuple):
    """Moves to choose from: cost of a whole move, and how much it lowers the tangent, (n, items) each."""

    cost: Tensor
    gain: Tensor


class _Switches(NamedTuple):
    """The most worthwhile change of category in each group: (n, groups) items, and (n, groups, k) blocks.

    ``base_value`` (n,) is how much higher the tangent stands where everybody has their own category.
    """

    items: _Items
    own: Tensor
    other: Tensor
    base_value: Tensor


def cheapest(
    problem: SearchProblem, p: Tensor, at: Slopes, lower: Tensor, upper: Tensor, target: float
) -> Tensor:
    """Return the cheapest y (n, d) between ``lower`` and ``upper`` whose tangent is at most ``target``.

    Where that cannot be reached, y is as low on the tangent as it gets. Numbers may be off their grid;
    a category is always a whole one, switched if any part of the switch is needed.
    """
    numeric = problem.encoding.numeric.to(p.device)
    base, turn, end = _corners(problem, at.slope, lower, upper)
    lengths = torch.stack([(turn - base).abs(), (end - turn).abs()], -1) * numeric.unsqueeze(-1)
    rates = torch.stack([_rate(problem, base, turn), _rate(problem, turn, end)], -1)
    items = _Items((rates * lengths).flatten(1), (at.slope.abs().unsqueeze(-1) * lengths).flatten(1))
    value = at.value + (at.slope * (base - p) * numeric).sum(-1)
    slots, filled = problem.encoding.group_slots(p.device)
    if len(slots) > 0:
        switches = _switches(problem, p, at.slope, upper)
        items = _Items(*(torch.cat(parts, -1) for parts in zip(items, switches.items, strict=True)))
        value = value + switches.base_value
    taken = _buy(items, value - target)
    shares = taken[:, : 2 * p.shape[1]].reshape(*p.shape, 2)
    y = base + (turn - base) * shares[..., 0] + (end - turn) * shares[..., 1]
    y = torch.where(numeric, y, p)
    if len(slots) > 0:
        used = taken[:, 2 * p.shape[1] :, None] > 0
        y[:, slots[filled]] = torch.where(used, switches.other, switches.own)[:, filled]
    return y


def _corners(
    problem: SearchProblem, slope: Tensor, lower: Tensor, upper: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each column, its cheapest value, the turn of its cost, and the end on the useful side."""
    heavy = problem.prototype_weight.unsqueeze(-1) > 1
    cheapest_value = torch.where(heavy, problem.anchor, problem.x)
    other = torch.where(heavy, problem.x, problem.anchor)
    base = torch.minimum(torch.maximum(cheapest_value, lower), upper)
    end = torch.where(slope > 0, lower, upper)
    low, high = torch.minimum(base, end), torch.maximum(base, end)
    return base, torch.minimum(torch.maximum(other, low), high), end


def _rate(problem: SearchProblem, start: Tensor, stop: Tensor) -> Tensor:
    """Return the cost of one unit between ``start`` and ``stop``, between which it does not turn."""
    middle, side = (start + stop) / 2, torch.sign(stop - start)
    weight = problem.prototype_weight.unsqueeze(-1)
    rate = side * torch.sign(middle - problem.x) + weight * side * torch.sign(middle - problem.anchor)
    return (rate * problem.cost_weights).clamp(min=0.0)


def _switches(problem: SearchProblem, p: Tensor, slope: Tensor, upper: Tensor) -> _Switches:
    """Return the switch of category with the best ratio of cost and gain, in every group."""
    slots, filled = problem.encoding.group_slots(p.device)
    own, gradient, anchor = (part[:, slots] * filled for part in (problem.x, slope, problem.anchor))
    here = (gradient * own).sum(-1, keepdim=True)
    gain = (here - gradient) * (filled & (upper[:, slots] >= 0.5))
    weight = problem.prototype_weight[:, None, None]
    cost = 2 + 2 * weight * ((own * anchor).sum(-1, keepdim=True) - anchor)
    cost = (cost * problem.cost_weights[slots]).clamp(min=1e-9)
    ratio = torch.where(gain > 0, cost / gain.clamp(min=_TINY), torch.inf)
    best = ratio.argmin(-1, keepdim=True)
    other = torch.zeros_like(own).scatter(-1, best, 1.0)
    items = _Items(cost.gather(-1, best)[..., 0], gain.gather(-1, best)[..., 0].clamp(min=0.0))
    base_value = (here[..., 0] - (gradient * p[:, slots]).sum(-1)).sum(-1)
    return _Switches(items, own, other, base_value)


def _buy(items: _Items, need: Tensor) -> Tensor:
    """Return the share (n, items) of each item, best ratio first, until the gains reach ``need`` (n,)."""
    ratio = torch.where(items.gain > 0, items.cost / items.gain.clamp(min=_TINY), torch.inf)
    order = ratio.argsort(dim=-1, stable=True)
    gains = items.gain.gather(-1, order)
    before = gains.cumsum(-1) - gains
    share = ((need.unsqueeze(-1) - before) / gains.clamp(min=_TINY)).clamp(0.0, 1.0)
    share = torch.where(gains > 0, share, 0.0)
    return torch.zeros_like(share).scatter(-1, order, share)


_TINY = 1e-300
