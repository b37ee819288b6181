"""Choose starts and bounds, and their order, until every row has its best counterfactual."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from veritracer.proving import CASCADE
from veritracer.search.linearised import Solutions, assess, refine
from veritracer.search.polish import Accepted, polish
from veritracer.search.problem import SearchProblem

Start = Callable[[SearchProblem], Tensor]
"""Return points (n, d) to start from; they need not be legal."""

TIGHTENING_GAIN = 0.03
"""Share by which a tighter bound has to be able to bring a proved row closer, to be tried."""


def closest(
    problem: SearchProblem, starts: Sequence[Start], *, expired: Callable[[], bool] = lambda: False
) -> Solutions:
    """Return the closest certified counterfactual found for each row.

    Every row is searched from the first start and from itself, and the better result counts (the search is
    local); the other starts are for rows without a proof. Rows that IBP cannot prove go on with the tighter
    bounds, from the point where they came closest; where a tighter bound promises closer counterfactuals, it
    refines them.
    """
    solutions = _from_both(problem, problem.legal(starts[0](problem)), expired)
    for start in starts[1:]:
        rows = _open(solutions)
        if len(rows) > 0 and not expired():
            part = problem.select(rows)
            solutions = solutions.merge(rows, refine(part, part.legal(start(part)), expired=expired))
    solutions = _by_tighter_bounds(problem, solutions, expired)
    solutions = polish(problem, solutions) if not expired() else solutions
    return _tighten(problem, solutions, expired)


def _by_tighter_bounds(
    problem: SearchProblem, solutions: Solutions, expired: Callable[[], bool]
) -> Solutions:
    """Refine the rows without a proof by tighter bounds, from the points that came closest."""
    for method in CASCADE[1:]:
        rows = _open(solutions)
        if len(rows) > 0 and not expired():
            part = problem.select(rows).with_method(method)
            solutions = solutions.merge(rows, refine(part, solutions.x_cf[rows], expired=expired))
    return solutions


def _from_both(problem: SearchProblem, start: Tensor, expired: Callable[[], bool]) -> Solutions:
    """Search from ``start`` and from the rows themselves as one batch; return the better of the two."""
    n = len(problem)
    twice = torch.arange(n, device=start.device).repeat(2)
    solutions = refine(problem.select(twice), torch.cat([start, problem.x]), expired=expired)
    return solutions.select(slice(n)).better(solutions.select(slice(n, None)))


def _open(solutions: Solutions) -> Tensor:
    return (~solutions.proved).nonzero().squeeze(-1)


def _tighten(problem: SearchProblem, solutions: Solutions, expired: Callable[[], bool]) -> Solutions:
    """Refine rows again by CROWN-IBP where its lower bound leaves room to come closer."""
    rows = solutions.proved.nonzero().squeeze(-1)
    if len(rows) == 0 or expired():
        return solutions
    part = problem.select(rows).with_method("crown-ibp")
    point = solutions.x_cf[rows]
    slack = (solutions.worst_logit[rows] - part.worst_logit(point)).clamp(min=0)
    steepest = (problem.select(rows).linearised(point).slope.abs() / part.cost_weights).amax(-1)
    worthwhile = slack > TIGHTENING_GAIN * solutions.objective[rows] * steepest
    rows = rows[worthwhile]
    if len(rows) == 0:
        return solutions
    part = problem.select(rows).with_method("crown-ibp")
    return solutions.merge(rows, polish(part, refine(part, solutions.x_cf[rows], expired=expired)))


def anchored_search(
    problem: SearchProblem,
    anchor: Tensor,
    weights: Sequence[float],
    accepted: Accepted,
    *,
    expired: Callable[[], bool] = lambda: False,
) -> tuple[Solutions, Tensor]:
    """Search near an ``anchor`` (n, d) of each row, with growing weights until the result is accepted.

    All prototype weights are searched as one batch. The result of a row is that of the first weight that is
    ``accepted``; failing that, of the last weight with a proof; failing that, the anchor itself. Objectives
    are those of the weight that each row ended with. The second value is a mask of the accepted ones (n,).
    """
    n, most = len(problem), len(weights)
    each = torch.arange(n, device=anchor.device)
    rows = each.repeat(most)
    strength = problem.sign.new_tensor(weights).repeat_interleave(n)
    many = problem.select(rows).with_anchor(anchor[rows], strength)
    here = (
        _from_both(many, anchor[rows], expired) if most == 1 else refine(many, anchor[rows], expired=expired)
    )
    here = polish(many, here)
    passed = here.proved
    passed[here.proved] = accepted(here.x_cf[here.proved], rows[here.proved])
    order = torch.arange(most, device=anchor.device).unsqueeze(-1)
    rank = torch.where(here.proved.reshape(most, n), 2 * most - order, 3 * most)
    rank = torch.where(passed.reshape(most, n), order, rank)
    best = rank.argmin(0) * n + each
    solutions = here.select(best)
    proved = solutions.proved.nonzero().squeeze(-1)
    return assess(problem, anchor).replace(proved, solutions.select(proved)), passed[best]


def anchor_to_data(
    problem: SearchProblem,
    solutions: Solutions,
    nearest: Callable[[Tensor], Tensor],
    weight: float,
    *,
    expired: Callable[[], bool] = lambda: False,
) -> Solutions:
    """Search again near the training row ``nearest`` to each counterfactual, twice."""
    rows = solutions.proved.nonzero().squeeze(-1)
    for _ in range(2):
        if len(rows) == 0 or expired():
            break
        here = solutions.x_cf[rows]
        anchor = nearest(here)
        part = problem.select(rows).with_anchor(anchor, weight)
        best = assess(part, here)
        for start in (here, part.legal(anchor)):
            best = best.better(refine(part, start, expired=expired))
        best = polish(part, best)
        proved = best.proved  # a row that only a tighter bound proves stays as it is
        rows, best = rows[proved], best.select(proved)
        solutions = solutions.replace(rows, best)
    return solutions
