"""From starts to answers: which start, which bound, in which order, until every row has its best."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from veritracer.proving import CASCADE
from veritracer.refine.polish import polish
from veritracer.refine.problem import Problem
from veritracer.refine.search import Found, assess, refine

Start = Callable[[Problem], Tensor]
"""Points (n, d) to begin from; they need not be legal yet."""

TIGHTENING_GAIN = 0.03
"""A tighter bound is tried where it could bring a proved row closer by this share."""


def solve(problem: Problem, starts: Sequence[Start], *, expired: Callable[[], bool] = lambda: False) -> Found:
    """The best counterfactual found for each row.

    The first start and the row itself serve everybody, and the better end counts (the search is local);
    the other starts are for the rows that have no proof yet. Rows that IBP can not prove go on with the
    tighter bounds, from the point where they came closest; and where a tighter one promises closer answers,
    it refines them.
    """
    found = _from_both(problem, problem.legal(starts[0](problem)), expired)
    for start in starts[1:]:
        rows = _open(found)
        if len(rows) > 0 and not expired():
            part = problem.select(rows)
            found = found.merge(rows, refine(part, part.legal(start(part)), expired=expired))
    for method in CASCADE[1:]:
        rows = _open(found)
        if len(rows) > 0 and not expired():
            part = problem.select(rows).proved_by(method)
            found = found.merge(rows, refine(part, found.x_cf[rows], expired=expired))
    found = polish(problem, found) if not expired() else found
    return _tighten(problem, found, expired)


def _from_both(problem: Problem, start: Tensor, expired: Callable[[], bool]) -> Found:
    """The better of what comes of ``start`` and of the rows themselves, searched as one batch."""
    n = len(problem)
    twice = torch.arange(n, device=start.device).repeat(2)
    found = refine(problem.select(twice), torch.cat([start, problem.x]), expired=expired)
    first, second = (Found(*(field[half] for field in found)) for half in (slice(n), slice(n, None)))
    return first.better(second)


def _open(found: Found) -> Tensor:
    return (~found.proved).nonzero().squeeze(-1)


def _tighten(problem: Problem, found: Found, expired: Callable[[], bool]) -> Found:
    """The same, with rows refined again by CROWN-IBP where its lower bound leaves room to come closer."""
    rows = found.proved.nonzero().squeeze(-1)
    if len(rows) == 0 or expired():
        return found
    part = problem.select(rows).proved_by("crown-ibp")
    point = found.x_cf[rows]
    slack = (found.worst[rows] - part.worst(point)).clamp(min=0)
    pull = (problem.select(rows).linearised(point).slope.abs() / part.price).amax(-1)
    worthwhile = slack > TIGHTENING_GAIN * found.objective[rows] * pull
    rows = rows[worthwhile]
    if len(rows) == 0:
        return found
    part = problem.select(rows).proved_by("crown-ibp")
    return found.merge(rows, polish(part, refine(part, found.x_cf[rows], expired=expired)))


def towards(
    problem: Problem,
    anchor: Tensor,
    pulls: Sequence[float],
    accepted: Callable[[Tensor, Tensor], Tensor],
    *,
    expired: Callable[[], bool] = lambda: False,
) -> Found:
    """Answers that stay near an ``anchor`` (n, d) of each row, pulled harder until they are accepted.

    The first pull serves everybody, each next one the rows that have no proof yet, or whose answer
    ``accepted(points, rows)`` turns down (``rows`` are positions in the problem). Where none is accepted the
    answer of the strongest pull stays, and the anchor itself where none is proved. Objectives are those of
    the pull that each row ended with.
    """
    rows = torch.arange(len(problem), device=anchor.device)
    found = assess(problem, anchor)
    for number, pull in enumerate(pulls):
        if len(rows) == 0 or expired():
            break
        part, start = problem.select(rows).near(anchor[rows], pull), anchor[rows]
        here = _from_both(part, start, expired) if number == 0 else refine(part, start, expired=expired)
        here = polish(part, here)
        better = here.proved | ~found.proved[rows]
        taken, new = rows[better], Found(*(field[better] for field in here))
        found = Found(*(f.index_copy(0, taken, n) for f, n in zip(found, new, strict=True)))
        done = here.proved.clone()
        done[here.proved] &= accepted(here.x_cf[here.proved], rows[here.proved])
        rows = rows[~done]
    return found


def nearer_the_data(
    problem: Problem,
    found: Found,
    nearest: Callable[[Tensor], Tensor],
    pull: float,
    *,
    expired: Callable[[], bool] = lambda: False,
) -> Found:
    """Answers that also stay near training rows: the one ``nearest`` to each answer pulls, twice over."""
    rows = found.proved.nonzero().squeeze(-1)
    for _ in range(2):
        if len(rows) == 0 or expired():
            break
        here = found.x_cf[rows]
        anchor = nearest(here)
        part = problem.select(rows).near(anchor, pull)
        best = assess(part, here)
        for start in (here, part.legal(anchor)):
            best = best.better(refine(part, start, expired=expired))
        best = polish(part, best)
        kept = best.proved  # a row that only a tighter bound proves stays as it is
        rows, best = rows[kept], Found(*(field[kept] for field in best))
        found = Found(*(f.index_copy(0, rows, b) for f, b in zip(found, best, strict=True)))
    return found
