"""Sequential linear programming over legal rows, all rows of a batch at once.

Each round replaces the bound by its tangent at the present point, solves that problem exactly (a knapsack),
rounds to the grid towards the certified side, and looks at the true bound there. Points that turn out
proved and cheaper are kept; a trust region shrinks where the tangent promised too much. Rows leave the batch
when they are done, and nothing in a row's course depends on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.refine.knapsack import cheapest
from veritracer.refine.problem import Problem, Slopes

ROUNDS = 20
PATIENCE = 5
"""Rounds without a cheaper proved point after which a row that has one is done."""
MARGIN = 1e-5
"""How far below zero the tangent is brought: the true bound is curved, and certified means strictly below."""
STUCK = 2e-3
"""A row without a proved point is given up (from this start) once its trust region is smaller than this."""
PROGRESS = 1e-3
"""A point counts as progress if its objective is lower by this share."""


class Found(NamedTuple):
    """The best point of each row (n, d), its objective (n,), infinite if it is not proved, its bound (n,).

    Where none is proved, the point is the one with the lowest bound that was seen.
    """

    x_cf: Tensor
    objective: Tensor
    worst: Tensor

    @property
    def proved(self) -> Tensor:
        """Which rows have a proved counterfactual."""
        return torch.isfinite(self.objective)

    def better(self, other: Found) -> Found:
        """The better point of the two for each row: the cheaper proved one, else the lower bound."""
        cheaper = other.objective < self.objective
        closer = ~self.proved & ~other.proved & (other.worst < self.worst)
        take = cheaper | closer
        return Found(
            torch.where(take.unsqueeze(-1), other.x_cf, self.x_cf),
            torch.where(take, other.objective, self.objective),
            torch.where(take, other.worst, self.worst),
        )

    def select(self, rows: Tensor | slice) -> Found:
        """The points of the given rows."""
        return Found(*(field[rows] for field in self))

    def replace(self, rows: Tensor, part: Found) -> Found:
        """The same with other points in these rows."""
        return Found(*(f.index_copy(0, rows, p) for f, p in zip(self, part, strict=True)))

    def merge(self, rows: Tensor, part: Found) -> Found:
        """The same with the better of the two in these rows."""
        return self.replace(rows, self.select(rows).better(part))


def assess(problem: Problem, x_cf: Tensor, worst: Tensor | None = None) -> Found:
    """What legal points are worth: their objective where they are proved."""
    worst = problem.worst(x_cf) if worst is None else worst
    return Found(x_cf, torch.where(worst < 0, problem.objective(x_cf), torch.inf), worst)


def refine(
    problem: Problem,
    start: Tensor,
    *,
    rounds: int = ROUNDS,
    expired: Callable[[], bool] = lambda: False,
) -> Found:
    """The cheapest proved point found for each row, from the legal points ``start`` (n, d)."""
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
    """Where each row's search stands: point, tangent there, trust radius, rounds without progress."""

    p: Tensor
    at: Slopes
    trust: Tensor
    idle: Tensor

    def select(self, rows: Tensor) -> _Course:
        return _Course(self.p[rows], Slopes(*(t[rows] for t in self.at)), self.trust[rows], self.idle[rows])


def _round(problem: Problem, course: _Course, record: Tensor) -> tuple[_Course, Found, Tensor]:
    """One step of every row: the new state, the point that was seen, and which rows are settled."""
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


def _held(problem: Problem, p: Tensor) -> tuple[Tensor, Tensor]:
    """The limits of each column while a cell that is missing at ``p`` stays missing."""
    missing = problem.encoding.missing(p)
    return torch.where(missing, p, problem.lower), torch.where(missing, p, problem.upper)
