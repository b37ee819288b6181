"""Which features may change: fewer of them, or others, for the same person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from veritracer.refine.problem import Problem
from veritracer.refine.search import Found, assess

Solver = Callable[[Problem], Found]

WIDEST = 6
"""How many features of one answer are forbidden in turn to find its alternatives."""


def at_most(problem: Problem, found: Found, changes: int, solver: Solver) -> Found:
    """Answers with at most so many changed features; rows that had more are searched again with fewer.

    Those kept are the ones that do most of the work in the answer; failing that, those that could do most.
    """
    rows = (problem.encoding.changed(found.x_cf, problem.x).sum(-1) > changes).nonzero().squeeze(-1)
    if len(rows) == 0:
        return found
    part, before = problem.select(rows), found.x_cf[rows]
    answer = assess(part, part.x)
    for worth in (_work_done(part, before), _work_possible(part)):
        open_ = (~answer.proved).nonzero().squeeze(-1)
        if len(open_) > 0:
            few = part.select(open_).only(_largest(worth[open_], changes))
            answer = answer.merge(open_, solver(few))
    return found.replace(rows, answer)


def _work_done(problem: Problem, x_cf: Tensor) -> Tensor:
    """How much each feature's change lowers the bound, by the tangent at the answer, (n, n_features)."""
    slope = problem.linearised(x_cf).slope
    return problem.encoding.by_feature(-slope * (x_cf - problem.x))


def _work_possible(problem: Problem) -> Tensor:
    """How much each feature could lower the bound at most, by the tangent at the row itself."""
    slope = problem.linearised(problem.x).slope
    end = torch.where(slope > 0, problem.lower, problem.upper)
    return problem.encoding.by_feature(slope.abs() * (end - problem.x).abs())


def _largest(worth: Tensor, count: int) -> Tensor:
    """Bool like ``worth``: the ``count`` largest entries of each row."""
    top = worth.topk(min(count, worth.shape[-1]), dim=-1).indices
    return torch.zeros_like(worth, dtype=torch.bool).scatter(-1, top, True)


@dataclass(frozen=True)
class _Option:
    """An answer of one row, the features it changes, and those that it was not allowed to."""

    objective: float
    x_cf: Tensor
    worst: Tensor
    changed: frozenset[int]
    closed: frozenset[int]


def alternatives(problem: Problem, found: Found, n: int, solver: Solver) -> list[list[Found]]:
    """Up to n answers for each row (a Found of one row each), cheapest first, no two with the same features.

    Each next one is the cheapest of those found when the features of the answers before it are forbidden one
    at a time; its own are forbidden in turn after that (Murty's scheme for the k best solutions).
    """
    everybody = range(len(problem))
    chosen = [[option] for option in _options(problem, found, [frozenset()] * len(problem))]
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
    # An answer found on the way may be cheaper than the first: the search is local.
    ranked = [sorted(options, key=lambda option: option.objective) for options in chosen]
    return [[_as_found(option) for option in options] for options in ranked]


def _branch(problem: Problem, branches: list[tuple[int, frozenset[int]]], solver: Solver) -> list[_Option]:
    """The answers of the given rows with the given features forbidden, all in one batch."""
    if not branches:
        return []
    rows = torch.tensor([row for row, _ in branches], device=problem.x.device)
    part = problem.select(rows)
    open_ = part.free
    for position, (_, closed) in enumerate(branches):
        open_[position, sorted(closed)] = False
    return _options(part, solver(part.only(open_)), [closed for _, closed in branches])


def _options(problem: Problem, found: Found, closed: list[frozenset[int]]) -> list[_Option]:
    changed = problem.encoding.changed(found.x_cf, problem.x)
    return [
        _Option(
            float(found.objective[i]),
            found.x_cf[i],
            found.worst[i],
            frozenset(changed[i].nonzero().squeeze(-1).tolist()),
            closed[i],
        )
        for i in range(len(problem))
    ]


def _as_found(option: _Option) -> Found:
    return Found(
        option.x_cf.unsqueeze(0),
        option.worst.new_tensor([option.objective]),
        option.worst.unsqueeze(0),
    )
