"""Leading people to answers that others believe too: real people to follow, and how closely.

A role model is a real person with the wanted label whom every model of the set and both halves of the panel
accept. Made legal for somebody else (who keeps what they cannot change) it is a point that the search stays
near to, only as near as it takes for the panel to believe the answer. Where no single role model convinces,
what several of them have is combined, one feature at a time, with the ends of what is usual among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.search.linearised import Found, assess
from veritracer.search.polish import Accepted, take_back
from veritracer.search.problem import Problem
from veritracer.search.reference import Evidence, nearest_of
from veritracer.search.solve import towards

PULLS = (0.75, 0.9, 1.0, 1.1)
"""How strongly a role model pulls, in shares of the price; the weakest that contents a panel is taken."""

NEAR, WIDE = 8, 16
"""Role models of each person that are tried at first, and where none of them convinces."""

COMBINED = 4
"""Role models whose features are combined: those that convince most."""

STEPS = 12
"""Features that are taken over from somebody else at most, one after the other."""


class Guides(NamedTuple):
    """A legal row (n, d) for each person to be led to, and whether it is proved and believed (n,)."""

    point: Tensor
    convincing: Tensor


def led(
    problem: Problem, evidence: Evidence, accepted: Accepted, *, expired: Callable[[], bool] = lambda: False
) -> Found:
    """Answers on the way to role models, accepted where that is possible; not proved where there are none.

    Most people follow one of the nearest role models at a distance. Those whose answer is not accepted follow
    one that convinces, closer; and where that is not enough they end at what convinces, less every change
    that can be taken back.
    """
    found, content = towards(problem, nearest(problem, evidence).point, PULLS[:1], accepted, expired=expired)
    rows = (~content).nonzero().squeeze(-1)
    if len(rows) == 0 or expired():
        return found
    part, guides = problem.select(rows), convincing(problem.select(rows), evidence)

    def still(points: Tensor, some: Tensor) -> Tensor:
        return accepted(points, rows[some])

    closer, content = towards(part, guides.point, PULLS[1:], still, expired=expired)
    found = found.replace(rows[closer.proved], closer.select(closer.proved))
    last = (~content & guides.convincing).nonzero().squeeze(-1)
    if len(last) == 0 or expired():
        return found
    here, own = part.select(last), guides.point[last]
    content = still(own, last)
    fewer = take_back(here, assess(here, own), lambda points, some: still(points, last[some]))
    return found.replace(rows[last[content]], fewer.select(content))


def nearest(problem: Problem, evidence: Evidence) -> Guides:
    """Of the nearest role models the cheapest that convinces, else the cheapest that is proved.

    The row itself where none is.
    """
    many, points = _role_models(problem, evidence, NEAR)
    worth = assess(many, points)
    sure = worth.proved
    sure[worth.proved] = evidence.believed(points[worth.proved], many.sign[worth.proved] < 0)
    cost, sure = (part.reshape(len(problem), -1) for part in (worth.objective, sure))
    some = sure.any(-1)
    best = torch.where(some, torch.where(sure, cost, torch.inf).argmin(-1), cost.argmin(-1))
    point, found = _pick(points, best), torch.isfinite(_pick(worth.objective, best))
    return Guides(torch.where(found.unsqueeze(-1), point, problem.x), some)


def convincing(problem: Problem, evidence: Evidence) -> Guides:
    """Of many role models the cheapest that convinces; else a combination of those that come closest."""
    n = len(problem)
    many, points = _role_models(problem, evidence, WIDE)
    worth = _conviction(many, points, evidence)
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
        taken, gained = _take_over(problem.select(rows), point[rows], reached[rows], others[rows], evidence)
        better = gained > reached[rows]
        point, reached = point.index_copy(0, rows, taken), reached.index_copy(0, rows, gained)
        rows = rows[better & (gained <= 0)]
    return Guides(point, reached > 0)


def _role_models(problem: Problem, evidence: Evidence, count: int) -> tuple[Problem, Tensor]:
    """The nearest role models of each row, made legal: (n * count, d), and the problem of these rows.

    The rows themselves where there are not so many.
    """
    favourable = problem.sign < 0
    candidates = problem.x.unsqueeze(1).repeat(1, count, 1)
    for side in (False, True):
        rows = (favourable == side).nonzero().squeeze(-1)
        if len(rows) == 0:
            continue
        pool = evidence.neighbours.role_models(problem.param_set, side, evidence.believed, evidence.panel)
        if len(pool) > 0:
            near = nearest_of(pool, problem.x[rows], count)
            candidates[rows, : near.shape[1]] = near
    rows = torch.arange(len(problem), device=candidates.device).repeat_interleave(count)
    many = problem.select(rows)
    return many, many.legal(candidates.flatten(0, 1))


def _pick(values: Tensor, which: Tensor) -> Tensor:
    """Of each row's values (n * count, ...) the one at the position ``which`` (n,)."""
    each = torch.arange(len(which), device=which.device)
    return values.reshape(len(which), -1, *values.shape[1:])[each, which]


def _conviction(problem: Problem, points: Tensor, evidence: Evidence) -> Tensor:
    """How far points are from being proved and believed, in logits (n,): above 0 they are."""
    believed = evidence.conviction(points, problem.sign < 0)
    return torch.minimum(believed, -problem.worst(points))


def _take_over(
    problem: Problem, point: Tensor, reached: Tensor, others: Tensor, evidence: Evidence
) -> tuple[Tensor, Tensor]:
    """The points after the one feature of the ``others`` (n, k, d) that convinces most, and how much then."""
    owner = problem.encoding.owner.to(point.device)
    row, other, feature = problem.encoding.changed(others, point.unsqueeze(1)).nonzero(as_tuple=True)
    if len(row) == 0:
        return point, reached
    tries = torch.where(owner == feature.unsqueeze(-1), others[row, other], point[row])
    score = _conviction(problem.select(row), tries, evidence)
    best = reached.scatter_reduce(0, row, score, "amax")
    position = torch.where(score == best[row], torch.arange(len(row), device=row.device), len(row) - 1)
    first = torch.full_like(best, len(row) - 1, dtype=torch.long).scatter_reduce(0, row, position, "amin")
    return torch.where((best > reached).unsqueeze(-1), tries[first], point), best
