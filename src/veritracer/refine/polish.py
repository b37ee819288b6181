"""Small exact moves on proved points: undo a change or a part of it, or take one step of the grid back.

The tangent knows nothing of grids and corners. Here every move is tried on the true bound, for all changed
features of all rows in one batch, and each row takes the one that saves most, until none is left.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from veritracer.refine.problem import Problem
from veritracer.refine.search import Found

MOST_MOVES = 12

SHARES = (0.5, 0.25, 0.125)
"""Parts of a change that are tried to do without."""

SMALLEST_GAIN = 1e-4
"""A move has to lower the objective by this share; steps of a fine grid are not worth a look."""


Accepted = Callable[[Tensor, Tensor], Tensor]
"""Which of the points (m, d) of these rows of a problem (m,) somebody else does not turn down."""

_Moves = Callable[[Problem, Tensor, Tensor], Tensor]
"""The points (k * m, d) that points (m, d) could move to, in one feature each, whose columns are marked."""


def polish(problem: Problem, found: Found) -> Found:
    """The same points after the moves that keep them proved and make them cheaper."""
    return _moved(problem, found, _undone_or_smaller, lambda points, rows: torch.ones_like(rows).bool())


def take_back(problem: Problem, found: Found, accepted: Accepted) -> Found:
    """The same points without the changes that they stay proved and accepted without.

    A change is taken back as a whole or not at all: halves of changes lead to the edge of what is accepted.
    """
    return _moved(problem, found, _undone, accepted)


def _moved(problem: Problem, found: Found, moves: _Moves, accepted: Accepted) -> Found:
    best = found
    rows = found.proved.nonzero().squeeze(-1)
    for _ in range(MOST_MOVES):
        if len(rows) == 0:
            break
        names = rows

        def still(points: Tensor, some: Tensor, names: Tensor = names) -> Tensor:
            return accepted(points, names[some])

        moved, helped = _best_move(problem.select(rows), best.select(rows), moves, still)
        best = best.merge(rows, moved)
        rows = rows[helped]
    return best


def _undone(problem: Problem, p: Tensor, mine: Tensor) -> Tensor:
    """The points (m, d) with the columns of one feature (m, d) as the person has them."""
    return torch.where(mine, problem.x, p)


def _undone_or_smaller(problem: Problem, p: Tensor, mine: Tensor) -> Tensor:
    """The same, then with a part of the change less, then with a step of the grid less: (k m, d)."""
    x = problem.x
    number = mine & problem.encoding.numeric.to(mine.device)
    share = p.new_tensor(SHARES)[:, None, None]
    less = torch.where(number, p + share * (x - p), p)
    less = problem.encoding.snap(less, x, p > x).flatten(0, 1)
    back = torch.where(mine, problem.encoding.step_back(p, x), p)
    return torch.cat([_undone(problem, p, mine), less, back])


def _best_move(problem: Problem, found: Found, moves: _Moves, accepted: Accepted) -> tuple[Found, Tensor]:
    """Each row after its most saving proved move, and which rows had one."""
    owner = problem.encoding.owner.to(found.x_cf.device)
    row, feature = problem.encoding.changed(found.x_cf, problem.x).nonzero(as_tuple=True)
    tries = moves(problem.select(row), found.x_cf[row], owner == feature.unsqueeze(-1))
    rows = row.repeat(len(tries) // max(len(row), 1))
    many = problem.select(rows)
    objective = many.objective(tries)
    new = objective < found.objective[rows] * (1 - SMALLEST_GAIN)
    tries, rows, objective = tries[new], rows[new], objective[new]
    many = many.select(new.nonzero().squeeze(-1))
    worst = many.worst(tries)
    proved = worst < 0
    proved[worst < 0] = accepted(tries[worst < 0], rows[worst < 0])
    objective = torch.where(proved, objective, torch.inf)
    lowest = torch.full_like(found.objective, torch.inf).scatter_reduce(0, rows, objective, "amin")
    # Of equally good moves the first: the order of the list decides, not that of the other rows.
    chosen = (objective == lowest[rows]) & torch.isfinite(objective)
    position = torch.where(chosen, torch.arange(len(rows), device=rows.device), len(rows))
    first = torch.full_like(lowest, len(rows), dtype=torch.long).scatter_reduce(0, rows, position, "amin")
    some = first < len(rows)
    take = first.clamp(max=max(len(rows) - 1, 0))
    if len(rows) == 0:
        return found, some
    moved = Found(tries[take], torch.where(some, objective[take], torch.inf), worst[take])
    return found.better(moved), some & (moved.objective < found.objective)
