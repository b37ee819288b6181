"""Small problems, whole: every legal row of a person, cheapest first, until one is proved.

The search over large grids is local. Where all rows that a person could have can be counted, nothing needs to
be searched: the first proved row in the order of the objective is the best one; without one there is none.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from veritracer.proving import CASCADE, ProofBatch, prove
from veritracer.refine.problem import Problem
from veritracer.refine.search import Found, assess

MOST_ROWS = 4096
"""Rows that a person could have, at most, for all of them to be looked at."""

ROWS_AT_ONCE = 512


def countable(problem: Problem) -> Tensor:
    """Whose rows (n,) are few enough."""
    return _counts(problem).log().sum(-1) <= torch.log(torch.tensor(float(MOST_ROWS)))


def exhaustive(problem: Problem, most: int | None, *, expired: Callable[[], bool] = lambda: False) -> Found:
    """The best proved row of each countable person, with at most so many changes; else the row itself."""
    found = assess(problem, problem.x)
    for i in range(len(problem)):
        if expired():
            break
        one = torch.tensor([i], device=problem.x.device)
        found = found.merge(one, _best(problem.select(one), most))
    return found


def _best(problem: Problem, most: int | None) -> Found:
    rows = _rows(problem)
    whole = problem.select(torch.zeros(len(rows), dtype=torch.long, device=rows.device))
    rows = torch.unique(whole.legal(rows), dim=0)
    changes = problem.encoding.changed(rows, problem.x.expand_as(rows)).sum(-1)
    rows = rows[(changes > 0) & (changes <= (len(problem.encoding.blocks) if most is None else most))]
    whole = problem.select(torch.zeros(len(rows), dtype=torch.long, device=rows.device))
    order = whole.objective(rows).argsort(stable=True)
    for some in torch.split(order, ROWS_AT_ONCE):
        part = whole.select(some)
        batch = ProofBatch(part.x, part.region(rows[some]), part.sign)
        with torch.no_grad():
            worst = prove(problem.param_set, batch, CASCADE, sign_only=True).worst_logit
        proved = (worst < 0).nonzero().squeeze(-1)
        if len(proved) > 0:
            first = proved[:1]
            return assess(part.select(first), rows[some][first], worst[first])
    return assess(problem, problem.x)


def _counts(problem: Problem) -> Tensor:
    """How many values each feature may have, (n, n_features), as numbers that may be too many."""
    _, step = problem.encoding.display_grid(problem.x.device)
    span = torch.floor((problem.upper - problem.lower) / step + 1e-6)
    missing = problem.encoding.missing(problem.x).to(span)
    found = []
    for block in problem.encoding.blocks:
        if block.group is None:
            moves = span[:, block.start]
            found.append(torch.where(moves > 0, moves + 2 + missing[:, block.start], torch.ones_like(moves)))
        else:
            open_ = (problem.upper[:, block.group] > 0.5).sum(-1).clamp(min=1)
            found.append(open_ + missing[:, block.start])
    return torch.stack(found, -1)


def _rows(problem: Problem) -> Tensor:
    """All combinations (m, d) of what each feature of one person may be; not all of them are different."""
    first, step = problem.encoding.display_grid(problem.x.device)
    rows, own = problem.x.clone(), problem.x[0]
    for block in problem.encoding.blocks:
        choices = own[block.start : block.stop].unsqueeze(0)
        low, high = problem.lower[0, block.start], problem.upper[0, block.start]
        if block.group is None and bool(high > low):
            begin = torch.ceil((low - first[block.start]) / step[block.start] - 1e-6)
            end = torch.floor((high - first[block.start]) / step[block.start] + 1e-6)
            k = torch.arange(int(begin), int(end) + 1, device=own.device, dtype=own.dtype)
            values = first[block.start] + k * step[block.start]
            values = torch.cat([values, low.view(1), high.view(1)])
            moved = choices.new_zeros(len(values), choices.shape[1])  # with a value, no cell is missing
            moved[:, 0] = values
            choices = torch.cat([choices, moved])
        elif block.group is not None:
            open_ = (problem.upper[0, block.group] > 0.5).nonzero().squeeze(-1)
            width = block.group.stop - block.group.start
            moved = choices.new_zeros(len(open_), choices.shape[1])
            at = slice(block.group.start - block.start, block.group.stop - block.start)
            moved[:, at] = torch.eye(width, dtype=own.dtype, device=own.device)[open_]
            choices = torch.cat([choices, moved])
        here = rows.repeat_interleave(len(choices), 0)
        here[:, block.start : block.stop] = choices.repeat(len(rows), 1)
        rows = here
    return rows
