"""Better changes for proved points: smaller ones, fewer of them, or others.

The tangent knows nothing of grids and corners. Here every move is tried on the true bound, for all changed
features of all rows in one batch, and each row takes the one that saves most, until none is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from veritracer.search.linearised import Solutions, assess
from veritracer.search.problem import SearchProblem

Solver = Callable[[SearchProblem], Solutions]

WIDEST = 6
"""Features of one counterfactual that are forbidden in turn to find its alternatives."""

MOST_MOVES = 12
"""Largest number of moves of one row."""

SHARES = (0.5, 0.25, 0.125)
"""Parts of a change that are taken back."""

SMALLEST_GAIN = 1e-4
"""Share by which a move has to lower the objective; steps of a fine grid are too small."""


Accepted = Callable[[Tensor, Tensor], Tensor]
"""Return a mask of the points (m, d), of these rows of a problem (m,), that pass an acceptance test."""

_Moves = Callable[[SearchProblem, Tensor, Tensor], Tensor]
"""Return the points (k * m, d) that points (m, d) can move to, each in the one feature that is marked."""


def polish(problem: SearchProblem, solutions: Solutions) -> Solutions:
    """Return the points after the moves that keep them proved and make them cheaper."""
    return _moved(problem, solutions, _undone_or_smaller, lambda points, rows: torch.ones_like(rows).bool())


def undo_changes(problem: SearchProblem, solutions: Solutions, accepted: Accepted) -> Solutions:
    """Return the points without the changes that are not needed for the proof and the acceptance.

    A change is undone as a whole or not at all: halves of changes lead to the edge of the acceptance.
    """
    return _moved(problem, solutions, _undone, accepted)


def _moved(problem: SearchProblem, solutions: Solutions, moves: _Moves, accepted: Accepted) -> Solutions:
    best = solutions
    rows = solutions.proved.nonzero().squeeze(-1)
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


def _undone(problem: SearchProblem, p: Tensor, marked: Tensor) -> Tensor:
    """Return the points (m, d) with the columns of one feature (m, d) as the person has them."""
    return torch.where(marked, problem.x, p)


def _undone_or_smaller(problem: SearchProblem, p: Tensor, marked: Tensor) -> Tensor:
    """Return the points without the change, without a part of it, and one step of the grid back: (k m, d)."""
    x = problem.x
    number = marked & problem.encoding.numeric.to(marked.device)
    share = p.new_tensor(SHARES)[:, None, None]
    less = torch.where(number, p + share * (x - p), p)
    less = problem.encoding.snap(less, x, p > x).flatten(0, 1)
    back = torch.where(marked, problem.encoding.step_back(p, x), p)
    return torch.cat([_undone(problem, p, marked), less, back])


def _best_move(
    problem: SearchProblem, solutions: Solutions, moves: _Moves, accepted: Accepted
) -> tuple[Solutions, Tensor]:
    """Return each row after its best proved move, and a mask of the rows that had one."""
    owner = problem.encoding.owner.to(solutions.x_cf.device)
    row, feature = problem.encoding.changed(solutions.x_cf, problem.x).nonzero(as_tuple=True)
    tries = moves(problem.select(row), solutions.x_cf[row], owner == feature.unsqueeze(-1))
    rows = row.repeat(len(tries) // max(len(row), 1))
    many = problem.select(rows)
    objective = many.objective(tries)
    new = objective < solutions.objective[rows] * (1 - SMALLEST_GAIN)
    tries, rows, objective = tries[new], rows[new], objective[new]
    many = many.select(new.nonzero().squeeze(-1))
    worst = many.worst_logit(tries)
    proved = worst < 0
    proved[worst < 0] = accepted(tries[worst < 0], rows[worst < 0])
    objective = torch.where(proved, objective, torch.inf)
    lowest = torch.full_like(solutions.objective, torch.inf).scatter_reduce(0, rows, objective, "amin")
    # Of equally good moves the first: the order of the list decides, not that of the other rows.
    chosen = (objective == lowest[rows]) & torch.isfinite(objective)
    position = torch.where(chosen, torch.arange(len(rows), device=rows.device), len(rows))
    first = torch.full_like(lowest, len(rows), dtype=torch.long).scatter_reduce(0, rows, position, "amin")
    some = first < len(rows)
    take = first.clamp(max=max(len(rows) - 1, 0))
    if len(rows) == 0:
        return solutions, some
    moved = solutions._replace(
        x_cf=tries[take],
        objective=torch.where(some, objective[take], torch.inf),
        worst_logit=worst[take],
    )
    return solutions.better(moved), some & (moved.objective < solutions.objective)


# ---------------------------------------------------------------- which features change


def limit_changes(problem: SearchProblem, solutions: Solutions, changes: int, solver: Solver) -> Solutions:
    """Return counterfactuals with at most so many changed features; rows with more are searched again.

    The features kept are those that lower the bound most; failing that, those that could lower it most.
    """
    rows = (problem.encoding.changed(solutions.x_cf, problem.x).sum(-1) > changes).nonzero().squeeze(-1)
    if len(rows) == 0:
        return solutions
    part, before = problem.select(rows), solutions.x_cf[rows]
    answer = assess(part, part.x)
    for worth in (_gain_of_changes(part, before), _largest_gain(part)):
        open_ = (~answer.proved).nonzero().squeeze(-1)
        if len(open_) > 0:
            few = part.select(open_).with_features(_largest(worth[open_], changes))
            answer = answer.merge(open_, solver(few))
    return solutions.replace(rows, answer)


def _gain_of_changes(problem: SearchProblem, x_cf: Tensor) -> Tensor:
    """Return how much each feature's change lowers the bound, by the tangent at ``x_cf``, (n, n_features)."""
    slope = problem.linearised(x_cf).slope
    return problem.encoding.by_feature(-slope * (x_cf - problem.x))


def _largest_gain(problem: SearchProblem) -> Tensor:
    """Return how much each feature could lower the bound at most, by the tangent at the row itself."""
    slope = problem.linearised(problem.x).slope
    end = torch.where(slope > 0, problem.lower, problem.upper)
    return problem.encoding.by_feature(slope.abs() * (end - problem.x).abs())


def _largest(worth: Tensor, count: int) -> Tensor:
    """Return a mask of the ``count`` largest entries of each row."""
    top = worth.topk(min(count, worth.shape[-1]), dim=-1).indices
    return torch.zeros_like(worth, dtype=torch.bool).scatter(-1, top, True)


@dataclass(frozen=True)
class _Option:
    """A counterfactual of one row, the features it changes, and those that it was not allowed to."""

    objective: float
    x_cf: Tensor
    worst_logit: Tensor
    changed: frozenset[int]
    closed: frozenset[int]


def alternatives(problem: SearchProblem, solutions: Solutions, n: int, solver: Solver) -> Solutions:
    """Return up to n counterfactuals of each row, cheapest first, each with other features changed.

    The next one is the cheapest of those found when the features of the ones before it are forbidden one at a
    time; its own are forbidden in turn after that (Murty's scheme for the k best solutions).
    """
    everybody = range(len(problem))
    chosen = [[option] for option in _options(problem, solutions, [frozenset()] * len(problem))]
    waiting: list[list[_Option]] = [[] for _ in everybody]
    for _ in range(n - 1):
        branches = [
            (row, chosen[row][-1].closed | {feature})
            for row in everybody
            if chosen[row][-1].objective < float("inf")
            for feature in sorted(chosen[row][-1].changed)[:WIDEST]
        ]
        for (row, _closed), option in zip(branches, _branch(problem, branches, solver), strict=True):
            waiting[row].append(option)
        for row in everybody:
            seen = {option.changed for option in chosen[row]}
            new = [o for o in waiting[row] if o.changed not in seen and o.objective < float("inf")]
            if new:
                chosen[row].append(min(new, key=lambda option: option.objective))
    # A counterfactual found on the way may be cheaper than the first: the search is local.
    ranked = [sorted(options, key=lambda option: option.objective) for options in chosen]
    flat = [option for options in ranked for option in options]
    rows = solutions.row.new_tensor([row for row in everybody for _ in ranked[row]])
    numbers = solutions.row.new_tensor([number for options in ranked for number in range(len(options))])
    return solutions.select(rows)._replace(
        alternative=numbers,
        x_cf=torch.stack([option.x_cf for option in flat]),
        objective=solutions.objective.new_tensor([option.objective for option in flat]),
        worst_logit=torch.stack([option.worst_logit for option in flat]),
    )


def _branch(
    problem: SearchProblem, branches: list[tuple[int, frozenset[int]]], solver: Solver
) -> list[_Option]:
    """Search the given rows with the given features forbidden, all in one batch."""
    if not branches:
        return []
    rows = torch.tensor([row for row, _ in branches], device=problem.x.device)
    part = problem.select(rows)
    open_ = part.changeable
    for position, (_, closed) in enumerate(branches):
        open_[position, sorted(closed)] = False
    return _options(part, solver(part.with_features(open_)), [closed for _, closed in branches])


def _options(problem: SearchProblem, solutions: Solutions, closed: list[frozenset[int]]) -> list[_Option]:
    changed = problem.encoding.changed(solutions.x_cf, problem.x)
    return [
        _Option(
            float(solutions.objective[i]),
            solutions.x_cf[i],
            solutions.worst_logit[i],
            frozenset(changed[i].nonzero().squeeze(-1).tolist()),
            closed[i],
        )
        for i in range(len(problem))
    ]
