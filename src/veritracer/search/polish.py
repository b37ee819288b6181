"""Better changes for proved points: smaller ones, fewer of them, or others.

The tangent knows nothing of grids and corners. Here every move is tried on the true bound, for all changed
features of all rows in one batch, and each row takes the one that saves most, until none is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from veritracer.proving import CASCADE
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


def polish(problem: SearchProblem, solutions: Solutions) -> Solutions:
    """Return the points after the moves that keep them proved and make them cheaper."""
    best = solutions
    rows = solutions.proved.nonzero().squeeze(-1)
    for _ in range(MOST_MOVES):
        if len(rows) == 0:
            break
        moved, helped = _best_move(problem.select(rows), best.select(rows))
        best = best.merge(rows, moved)
        rows = rows[helped]
    return best


def undo_changes(problem: SearchProblem, solutions: Solutions, accepted: Accepted) -> Solutions:
    """Return the proved points without the changes that neither the proof nor the acceptance needs.

    Each point is then 1-minimal: without any single one of its changes, no bound proves it, or it is not
    accepted. A change is undone as a whole or not at all, the most expensive one first: halves of changes
    lead to the edge of the acceptance. Objectives are those of ``problem``.
    """
    x_cf, rows = solutions.x_cf, solutions.proved.nonzero().squeeze(-1)
    some = rows
    while len(some) > 0:
        fewer, helped = _undo_one(problem.select(some), x_cf[some], some, accepted)
        x_cf = x_cf.index_copy(0, some, fewer)
        some = some[helped]
    rows = (x_cf != solutions.x_cf).any(-1).nonzero().squeeze(-1)
    worst = problem.select(rows).worst_logit(x_cf[rows], CASCADE)
    return solutions._replace(
        x_cf=x_cf,
        objective=torch.where(solutions.proved, problem.objective(x_cf), torch.inf),
        worst_logit=solutions.worst_logit.index_copy(0, rows, worst),
    )


def _undo_one(
    problem: SearchProblem, x_cf: Tensor, names: Tensor, accepted: Accepted
) -> tuple[Tensor, Tensor]:
    """Undo the most expensive needless change of each point; return the points, and a mask of those with one.

    ``names`` are the rows that ``accepted`` knows the points by.
    """
    row, feature = problem.encoding.changed(x_cf, problem.x).nonzero(as_tuple=True)
    part = problem.select(row)
    tries = torch.where(_columns_of(problem, feature), part.x, x_cf[row])
    fine = part.worst_logit(tries, CASCADE) < 0
    fine[fine.clone()] = accepted(tries[fine], names[row[fine]])
    cost = torch.where(fine, part.cost(tries), torch.inf)
    lowest = torch.full_like(problem.sign, torch.inf).scatter_reduce(0, row, cost, "amin")
    first = _first_of(fine & (cost == lowest[row]), row, len(problem))
    helped = first < len(row)
    return torch.where(helped.unsqueeze(-1), tries[first.clamp(max=len(row) - 1)], x_cf), helped


def _columns_of(problem: SearchProblem, feature: Tensor) -> Tensor:
    """Return a mask (m, d) of the columns of each of these features (m,)."""
    return problem.encoding.owner.to(feature.device) == feature.unsqueeze(-1)


def _first_of(chosen: Tensor, row: Tensor, n: int) -> Tensor:
    """Return the position of the first chosen entry of each row, (n,); the number of entries if none."""
    position = torch.where(chosen, torch.arange(len(row), device=row.device), len(row))
    return torch.full((n,), len(row), device=row.device).scatter_reduce(0, row, position, "amin")


def _undone_or_smaller(problem: SearchProblem, p: Tensor, marked: Tensor) -> Tensor:
    """Return the points without the change, without a part of it, and one step of the grid back: (k m, d)."""
    x = problem.x
    number = marked & problem.encoding.numeric.to(marked.device)
    share = p.new_tensor(SHARES)[:, None, None]
    less = torch.where(number, p + share * (x - p), p)
    less = problem.encoding.snap(less, x, p > x).flatten(0, 1)
    back = torch.where(marked, problem.encoding.step_back(p, x), p)
    return torch.cat([torch.where(marked, x, p), less, back])


def _best_move(problem: SearchProblem, solutions: Solutions) -> tuple[Solutions, Tensor]:
    """Return each row after its best proved move, and a mask of the rows that had one."""
    row, feature = problem.encoding.changed(solutions.x_cf, problem.x).nonzero(as_tuple=True)
    tries = _undone_or_smaller(problem.select(row), solutions.x_cf[row], _columns_of(problem, feature))
    rows = row.repeat(len(tries) // max(len(row), 1))
    many = problem.select(rows)
    objective = many.objective(tries)
    new = objective < solutions.objective[rows] * (1 - SMALLEST_GAIN)
    tries, rows, objective = tries[new], rows[new], objective[new]
    many = many.select(new.nonzero().squeeze(-1))
    worst = many.worst_logit(tries)
    objective = torch.where(worst < 0, objective, torch.inf)
    lowest = torch.full_like(solutions.objective, torch.inf).scatter_reduce(0, rows, objective, "amin")
    # Of equally good moves the first: the order of the list decides, not that of the other rows.
    first = _first_of((objective == lowest[rows]) & torch.isfinite(objective), rows, len(problem))
    some = first < len(rows)
    if len(rows) == 0:
        return solutions, some
    take = first.clamp(max=len(rows) - 1)
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

    accepted: bool
    objective: float
    x_cf: Tensor
    worst_logit: Tensor
    changed: frozenset[int]
    closed: frozenset[int]

    @property
    def rank(self) -> tuple[bool, float]:
        """Return the sort key: accepted ones first, the cheapest of them first."""
        return not self.accepted, self.objective


def alternatives(
    problem: SearchProblem, solutions: Solutions, n: int, solver: Solver, accepted: Accepted
) -> Solutions:
    """Return up to n counterfactuals of each row, each with other features changed.

    Accepted ones come first, and the cheapest of them first.
    The next one is the cheapest of those found when the features of the ones before it are forbidden one at a
    time; its own are forbidden in turn after that (Murty's scheme for the k best solutions).
    """
    everybody = range(len(problem))
    first = _options(problem, solutions, [(row, frozenset()) for row in everybody], accepted)
    chosen = [[option] for option in first]
    waiting: list[list[_Option]] = [[] for _ in everybody]
    for _ in range(n - 1):
        branches = [
            (row, chosen[row][-1].closed | {feature})
            for row in everybody
            if chosen[row][-1].objective < float("inf")
            for feature in sorted(chosen[row][-1].changed)[:WIDEST]
        ]
        options = _branch(problem, branches, solver, accepted)
        for (row, _closed), option in zip(branches, options, strict=True):
            waiting[row].append(option)
        for row in everybody:
            seen = {option.changed for option in chosen[row]}
            new = [o for o in waiting[row] if o.changed not in seen and o.objective < float("inf")]
            if new:
                chosen[row].append(min(new, key=lambda option: option.rank))
    # A counterfactual found on the way may be cheaper than the first: the search is local.
    ranked = [sorted(options, key=lambda option: option.rank) for options in chosen]
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
    problem: SearchProblem,
    branches: list[tuple[int, frozenset[int]]],
    solver: Solver,
    accepted: Accepted,
) -> list[_Option]:
    """Search the given rows with the given features forbidden, all in one batch."""
    if not branches:
        return []
    rows = torch.tensor([row for row, _ in branches], device=problem.x.device)
    part = problem.select(rows)
    open_ = part.changeable
    for position, (_, closed) in enumerate(branches):
        open_[position, sorted(closed)] = False
    return _options(part, solver(part.with_features(open_)), branches, accepted)


def _options(
    problem: SearchProblem,
    solutions: Solutions,
    branches: list[tuple[int, frozenset[int]]],
    accepted: Accepted,
) -> list[_Option]:
    """Return the solution of each branch: a row, and the features that were forbidden."""
    changed = problem.encoding.changed(solutions.x_cf, problem.x)
    passed = accepted(solutions.x_cf, torch.tensor([row for row, _ in branches], device=problem.x.device))
    return [
        _Option(
            bool(passed[i]),
            float(solutions.objective[i]),
            solutions.x_cf[i],
            solutions.worst_logit[i],
            frozenset(changed[i].nonzero().squeeze(-1).tolist()),
            closed,
        )
        for i, (_, closed) in enumerate(branches)
    ]
