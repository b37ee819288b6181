"""Small exact moves on proved points: undo a change, halve it, or take one step of the grid back.

The tangent knows nothing of grids and corners. Here every move is tried on the true bound, for all changed
features of all rows in one batch, and each row takes the one that saves most, until none is left.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veritracer.refine.problem import Problem
from veritracer.refine.search import Found

MOST_MOVES = 12

SMALLEST_GAIN = 1e-4
"""A move has to lower the objective by this share; steps of a fine grid are not worth a look."""


def polish(problem: Problem, found: Found) -> Found:
    """The same points after the moves that keep them proved and make them cheaper."""
    best = found
    rows = found.proved.nonzero().squeeze(-1)
    for _ in range(MOST_MOVES):
        if len(rows) == 0:
            break
        part = problem.select(rows)
        moved, helped = _best_move(part, Found(*(field[rows] for field in best)))
        best = best.merge(rows, moved)
        rows = rows[helped]
    return best


def _best_move(problem: Problem, found: Found) -> tuple[Found, Tensor]:
    """Each row after its most saving proved move, and which rows had one."""
    owner = problem.encoding.owner.to(found.x_cf.device)
    row, feature = problem.encoding.changed(found.x_cf, problem.x).nonzero(as_tuple=True)
    mine = owner == feature.unsqueeze(-1)
    p, x = found.x_cf[row], problem.x[row]
    number = mine & problem.encoding.numeric.to(mine.device)
    half = problem.encoding.snap(torch.where(number, (p + x) / 2, p), x, p > x)
    back = problem.encoding.step_back(p, x)
    tries = torch.cat([torch.where(mine, other, p) for other in (x, half, back)])
    rows = row.repeat(3)
    many = problem.select(rows)
    objective = many.objective(tries)
    new = objective < found.objective[rows] * (1 - SMALLEST_GAIN)
    tries, rows, objective = tries[new], rows[new], objective[new]
    many = many.select(new.nonzero().squeeze(-1))
    worst = many.worst(tries)
    objective = torch.where(worst < 0, objective, torch.inf)
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
