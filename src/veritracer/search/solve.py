"""From starts to answers: which start, which bound, in which order, until every row has its best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.proving import CASCADE
from veritracer.search.linearised import Found, assess, refine
from veritracer.search.polish import Accepted, polish
from veritracer.search.problem import Problem

Start = Callable[[Problem], Tensor]
"""Points (n, d) to begin from; they need not be legal yet."""

TIGHTENING_GAIN = 0.03
"""A tighter bound is tried where it could bring a proved row closer by this share."""


def solve(problem: Problem, starts: Sequence[Start], *, expired: Callable[[], bool] = lambda: False) -> Found:
    """The best counterfactual found for each row.

    The first start and the row itself serve everybody, and the better end counts (the search is local);
    the other starts are for the rows that have no proof yet. Rows that IBP cannot prove go on with the
    tighter bounds, from the point where they came closest; and where a tighter one promises closer answers,
    it refines them.
    """
    found = _from_both(problem, problem.legal(starts[0](problem)), expired)
    for start in starts[1:]:
        rows = _open(found)
        if len(rows) > 0 and not expired():
            part = problem.select(rows)
            found = found.merge(rows, refine(part, part.legal(start(part)), expired=expired))
    found = _by_tighter_bounds(problem, found, expired)
    found = polish(problem, found) if not expired() else found
    return _tighten(problem, found, expired)


def _by_tighter_bounds(problem: Problem, found: Found, expired: Callable[[], bool]) -> Found:
    """The same, with open rows refined by tighter bounds, from the points that came closest."""
    for method in CASCADE[1:]:
        rows = _open(found)
        if len(rows) > 0 and not expired():
            part = problem.select(rows).proved_by(method)
            found = found.merge(rows, refine(part, found.x_cf[rows], expired=expired))
    return found


def _from_both(problem: Problem, start: Tensor, expired: Callable[[], bool]) -> Found:
    """The better of what comes of ``start`` and of the rows themselves, searched as one batch."""
    n = len(problem)
    twice = torch.arange(n, device=start.device).repeat(2)
    found = refine(problem.select(twice), torch.cat([start, problem.x]), expired=expired)
    return found.select(slice(n)).better(found.select(slice(n, None)))


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


class Led(NamedTuple):
    """Answers near their anchors, and which of them were accepted (n,)."""

    found: Found
    accepted: Tensor


def towards(
    problem: Problem,
    anchor: Tensor,
    pulls: Sequence[float],
    accepted: Accepted,
    *,
    expired: Callable[[], bool] = lambda: False,
) -> Led:
    """Answers that stay near an ``anchor`` (n, d) of each row, as near as it takes to be accepted.

    All pulls, which grow, are searched as one batch. Of each row's answers the first one counts that is
    ``accepted``; where there is none, the last one that is proved; where none is, the anchor itself.
    Objectives are those of the pull that each row ended with.
    """
    n, most = len(problem), len(pulls)
    each = torch.arange(n, device=anchor.device)
    rows = each.repeat(most)
    strength = problem.sign.new_tensor(pulls).repeat_interleave(n)
    many = problem.select(rows).near(anchor[rows], strength)
    here = (
        _from_both(many, anchor[rows], expired) if most == 1 else refine(many, anchor[rows], expired=expired)
    )
    here = polish(many, here)
    content = here.proved
    content[here.proved] = accepted(here.x_cf[here.proved], rows[here.proved])
    order = torch.arange(most, device=anchor.device).unsqueeze(-1)
    rank = torch.where(here.proved.reshape(most, n), 2 * most - order, 3 * most)
    rank = torch.where(content.reshape(most, n), order, rank)
    best = rank.argmin(0) * n + each
    found = here.select(best)
    proved = found.proved.nonzero().squeeze(-1)
    return Led(assess(problem, anchor).replace(proved, found.select(proved)), content[best])


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
        rows, best = rows[kept], best.select(kept)
        found = found.replace(rows, best)
    return found
