"""Search toward prototypes: accepted people whom independent models agree on.

A prototype is a training row with the wanted label that every model of the set and both halves of the panel
accept. Made legal for another person (who keeps what they cannot change), it is an anchor: the search stays
as near to it as it takes for the panel to accept the counterfactual. If the panel accepts no single prototype
in a person's place, features of several are combined, one at a time, with the ends of the bounds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from veritracer.search.linearised import Solutions, assess
from veritracer.search.polish import Accepted
from veritracer.search.problem import SearchProblem
from veritracer.search.reference import ReferenceData, nearest_of
from veritracer.search.solve import anchored_search

WEIGHTS = (0.75, 0.9, 1.0, 1.1)
"""Weights of the distance from a prototype, in shares of the cost; the least accepted one counts."""

NEAR, WIDE = 8, 16
"""Prototypes tried for each person at first, and if the panel accepts none of them."""

COMBINED = 4
"""Prototypes whose features are combined: those with the largest margin."""

STEPS = 12
"""Largest number of features taken over from other prototypes, one after the other."""


def search_toward_prototypes(
    problem: SearchProblem,
    reference: ReferenceData,
    accepted: Accepted,
    *,
    expired: Callable[[], bool] = lambda: False,
) -> Solutions:
    """Return certified counterfactuals near prototypes; rows without a prototype stay without a proof.

    Most rows are searched with a small weight near one of the nearest prototypes. Rows whose result is not
    accepted are searched closer to one that the panel accepts; failing that, they get this prototype itself.
    """
    anchor = nearest_prototypes(problem, reference)
    solutions, passed = anchored_search(problem, anchor, WEIGHTS[:1], accepted, expired=expired)
    rows = (~passed).nonzero().squeeze(-1)
    if len(rows) == 0 or expired():
        return solutions
    part = problem.select(rows)
    anchor, acceptable = combined_prototypes(part, reference)

    def still(points: Tensor, some: Tensor) -> Tensor:
        return accepted(points, rows[some])

    closer, passed = anchored_search(part, anchor, WEIGHTS[1:], still, expired=expired)
    solutions = solutions.replace(rows[closer.proved], closer.select(closer.proved))
    last = (~passed & acceptable).nonzero().squeeze(-1)
    if len(last) == 0 or expired():
        return solutions
    passed = still(anchor[last], last)
    prototype = assess(part.select(last), anchor[last])
    return solutions.replace(rows[last[passed]], prototype.select(passed))


def nearest_prototypes(problem: SearchProblem, reference: ReferenceData) -> Tensor:
    """Return the cheapest of the nearest prototypes that is proved, accepted if possible, (n, d).

    Rows without one keep their own values.
    """
    many, points = _legal_prototypes(problem, reference, NEAR)
    worth = assess(many, points)
    sure = worth.proved
    sure[worth.proved] = reference.panel_accepts(points[worth.proved], many.sign[worth.proved] < 0)
    cost, sure = (part.reshape(len(problem), -1) for part in (worth.objective, sure))
    some = sure.any(-1)
    best = torch.where(some, torch.where(sure, cost, torch.inf).argmin(-1), cost.argmin(-1))
    point, solutions = _pick(points, best), torch.isfinite(_pick(worth.objective, best))
    return torch.where(solutions.unsqueeze(-1), point, problem.x)


def combined_prototypes(problem: SearchProblem, reference: ReferenceData) -> tuple[Tensor, Tensor]:
    """Return the cheapest prototype that is proved and accepted, else a combination of the best ones.

    They are legal rows (n, d); the second value is a mask (n,) of those that are proved and accepted.
    """
    n = len(problem)
    many, points = _legal_prototypes(problem, reference, WIDE)
    worth = _margin(many, points, reference)
    cost, score = (part.reshape(n, -1) for part in (many.objective(points), worth))
    sure = score > 0
    best = torch.where(sure.any(-1), torch.where(sure, cost, torch.inf).argmin(-1), score.argmax(-1))
    point, reached = _pick(points, best), _pick(worth, best)
    top = score.topk(COMBINED, dim=-1).indices.unbind(-1)
    ends = (problem.legal(end) for end in (problem.lower, problem.upper))
    others = torch.stack([*(_pick(points, other) for other in top), *ends], 1)
    rows = (reached <= 0).nonzero().squeeze(-1)
    for _ in range(STEPS):
        if len(rows) == 0:
            break
        taken, gained = _take_over(problem.select(rows), point[rows], reached[rows], others[rows], reference)
        better = gained > reached[rows]
        point, reached = point.index_copy(0, rows, taken), reached.index_copy(0, rows, gained)
        rows = rows[better & (gained <= 0)]
    return point, reached > 0


def _legal_prototypes(
    problem: SearchProblem, reference: ReferenceData, count: int
) -> tuple[SearchProblem, Tensor]:
    """Return the problem of each row ``count`` times, and its nearest prototypes made legal (n * count, d).

    Missing prototypes are filled up with the row itself.
    """
    favourable = problem.sign < 0
    candidates = problem.x.unsqueeze(1).repeat(1, count, 1)
    for side in (False, True):
        rows = (favourable == side).nonzero().squeeze(-1)
        if len(rows) == 0:
            continue
        pool = reference.neighbours.prototypes(
            problem.model_set, side, reference.panel_accepts, reference.panel
        )
        if len(pool) > 0:
            near = nearest_of(pool, problem.x[rows], count)
            candidates[rows, : near.shape[1]] = near
    rows = torch.arange(len(problem), device=candidates.device).repeat_interleave(count)
    many = problem.select(rows)
    return many, many.legal(candidates.flatten(0, 1))


def _pick(values: Tensor, which: Tensor) -> Tensor:
    """Return, of each row's values (n * count, ...), the one at the position ``which`` (n,)."""
    each = torch.arange(len(which), device=which.device)
    return values.reshape(len(which), -1, *values.shape[1:])[each, which]


def _margin(problem: SearchProblem, points: Tensor, reference: ReferenceData) -> Tensor:
    """Return the distance from being proved and accepted, in logits (n,): above 0 both hold."""
    accepted = reference.panel_margin(points, problem.sign < 0)
    return torch.minimum(accepted, -problem.worst_logit(points))


def _take_over(
    problem: SearchProblem, point: Tensor, reached: Tensor, others: Tensor, reference: ReferenceData
) -> tuple[Tensor, Tensor]:
    """Take over the one feature of the ``others`` (n, k, d) that helps most; return points and margins."""
    owner = problem.encoding.owner.to(point.device)
    row, other, feature = problem.encoding.changed(others, point.unsqueeze(1)).nonzero(as_tuple=True)
    if len(row) == 0:
        return point, reached
    tries = torch.where(owner == feature.unsqueeze(-1), others[row, other], point[row])
    score = _margin(problem.select(row), tries, reference)
    best = reached.scatter_reduce(0, row, score, "amax")
    position = torch.where(score == best[row], torch.arange(len(row), device=row.device), len(row) - 1)
    first = torch.full_like(best, len(row) - 1, dtype=torch.long).scatter_reduce(0, row, position, "amin")
    return torch.where((best > reached).unsqueeze(-1), tries[first], point), best
