r"""Sequential linear programming over legal rows, all rows of a batch at once.

Each round replaces the bound by its tangent at the present point, solves that problem exactly, rounds to the
grid towards the certified side, and looks at the true bound there. Points that turn out proved and cheaper
are kept; a trust region shrinks where the tangent promised too much. Rows leave the batch when they are done,
and nothing in a row's course depends on the other rows.

The linearised problem is a continuous knapsack: with the bound replaced by :math:`v + g·(y - p)`, every
column offers up to two stretches (towards the anchor, and beyond it), every category group one switch; each
has a price and a gain, and the best ratio comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.search.problem import Problem, Slopes

ROUNDS = 20
PATIENCE = 5
"""Rounds without a cheaper proved point after which a row that has one is done."""
MARGIN = 1e-5
"""How far below zero the tangent is brought: the true bound is curved, and certified means strictly below."""
STUCK = 2e-3
"""A row without a proved point is given up (from this start) once its trust region is smaller than this."""
PROGRESS = 1e-3
"""A point counts as progress if its objective is lower by this share."""


class Found(NamedTuple):
    """The best point of each row (n, d), its objective (n,), infinite if it is not proved, its bound (n,).

    Where none is proved, the point is the one with the lowest bound that was seen.
    """

    x_cf: Tensor
    objective: Tensor
    worst: Tensor

    @property
    def proved(self) -> Tensor:
        """Which rows have a proved counterfactual."""
        return torch.isfinite(self.objective)

    def better(self, other: Found) -> Found:
        """The better point of the two for each row: the cheaper proved one, else the lower bound."""
        cheaper = other.objective < self.objective
        closer = ~self.proved & ~other.proved & (other.worst < self.worst)
        take = cheaper | closer
        return Found(
            torch.where(take.unsqueeze(-1), other.x_cf, self.x_cf),
            torch.where(take, other.objective, self.objective),
            torch.where(take, other.worst, self.worst),
        )

    def select(self, rows: Tensor | slice) -> Found:
        """The points of the given rows."""
        return Found(*(field[rows] for field in self))

    def replace(self, rows: Tensor, part: Found) -> Found:
        """The same with other points in these rows."""
        return Found(*(f.index_copy(0, rows, p) for f, p in zip(self, part, strict=True)))

    def merge(self, rows: Tensor, part: Found) -> Found:
        """The same with the better of the two in these rows."""
        return self.replace(rows, self.select(rows).better(part))


def assess(problem: Problem, x_cf: Tensor, worst: Tensor | None = None) -> Found:
    """What legal points are worth: their objective where they are proved."""
    worst = problem.worst(x_cf) if worst is None else worst
    return Found(x_cf, torch.where(worst < 0, problem.objective(x_cf), torch.inf), worst)


def refine(
    problem: Problem,
    start: Tensor,
    *,
    rounds: int = ROUNDS,
    expired: Callable[[], bool] = lambda: False,
) -> Found:
    """The cheapest proved point found for each row, from the legal points ``start`` (n, d)."""
    here = problem.linearised(start)
    best = assess(problem, start, here.value)
    rows = torch.arange(len(problem), device=start.device)
    course = _Course(start, here, torch.ones_like(here.value), torch.zeros_like(rows))
    part = problem
    for _ in range(rounds):
        if len(rows) == 0 or expired():
            break
        course, seen, settled = _round(part, course, best.objective[rows])
        best = best.merge(rows, seen)
        going = (~settled).nonzero().squeeze(-1)
        if len(going) < len(rows):
            rows, course, part = rows[going], course.select(going), part.select(going)
    return best


class _Course(NamedTuple):
    """Where each row's search stands: point, tangent there, trust radius, rounds without progress."""

    p: Tensor
    at: Slopes
    trust: Tensor
    idle: Tensor

    def select(self, rows: Tensor) -> _Course:
        return _Course(self.p[rows], Slopes(*(t[rows] for t in self.at)), self.trust[rows], self.idle[rows])


def _round(problem: Problem, course: _Course, record: Tensor) -> tuple[_Course, Found, Tensor]:
    """One step of every row: the new state, the point that was seen, and which rows are settled."""
    p, at, trust, idle = course
    radius = trust.unsqueeze(-1)
    lower, upper = _held(problem, p)
    near = torch.maximum(torch.minimum(p - radius, upper), lower)
    far = torch.minimum(torch.maximum(p + radius, lower), upper)
    y = cheapest(problem, p, at, near, far, -MARGIN)
    y = problem.encoding.snap(y, problem.x, at.slope < 0)
    there = problem.linearised(y)
    seen = assess(problem, y, there.value)
    progress = seen.objective < record * (1 - PROGRESS)
    progress |= torch.isfinite(seen.objective) & torch.isinf(record)
    idle = torch.where(progress, 0, idle + 1)
    trust = torch.where(seen.proved, (trust * 1.3).clamp(max=1.0), trust * 0.6)
    has_one = torch.isfinite(record) | seen.proved
    settled = has_one & ((idle >= PATIENCE) | ((y == p).all(-1) & seen.proved))
    settled |= ~has_one & ((trust < STUCK) | (y == p).all(-1))
    return _Course(y, there, trust, idle), seen, settled


def _held(problem: Problem, p: Tensor) -> tuple[Tensor, Tensor]:
    """The limits of each column while a cell that is missing at ``p`` stays missing."""
    missing = problem.encoding.missing(p)
    return torch.where(missing, p, problem.lower), torch.where(missing, p, problem.upper)


class _Items(NamedTuple):
    """What can be bought: the price of all of it, and how much lower the tangent gets, (n, items) each."""

    price: Tensor
    gain: Tensor


class _Switches(NamedTuple):
    """The most worthwhile change of category in each group: (n, groups) items, and (n, groups, k) blocks.

    ``base_value`` (n,) is how much higher the tangent stands where everybody has their own category.
    """

    items: _Items
    own: Tensor
    other: Tensor
    base_value: Tensor


def cheapest(problem: Problem, p: Tensor, at: Slopes, lower: Tensor, upper: Tensor, target: float) -> Tensor:
    """The cheapest y (n, d) between ``lower`` and ``upper`` whose tangent is at most ``target``.

    Where that cannot be reached, y is as low on the tangent as it gets. Numbers may be off their grid;
    a category is always a whole one, switched if any part of the switch is needed.
    """
    numeric = problem.encoding.numeric.to(p.device)
    base, turn, end = _corners(problem, at.slope, lower, upper)
    lengths = torch.stack([(turn - base).abs(), (end - turn).abs()], -1) * numeric.unsqueeze(-1)
    prices = torch.stack([_rate(problem, base, turn), _rate(problem, turn, end)], -1)
    items = _Items((prices * lengths).flatten(1), (at.slope.abs().unsqueeze(-1) * lengths).flatten(1))
    value = at.value + (at.slope * (base - p) * numeric).sum(-1)
    slots, filled = problem.encoding.group_slots(p.device)
    if len(slots) > 0:
        switches = _switches(problem, p, at.slope, upper)
        items = _Items(*(torch.cat(parts, -1) for parts in zip(items, switches.items, strict=True)))
        value = value + switches.base_value
    taken = _buy(items, value - target)
    shares = taken[:, : 2 * p.shape[1]].reshape(*p.shape, 2)
    y = base + (turn - base) * shares[..., 0] + (end - turn) * shares[..., 1]
    y = torch.where(numeric, y, p)
    if len(slots) > 0:
        used = taken[:, 2 * p.shape[1] :, None] > 0
        y[:, slots[filled]] = torch.where(used, switches.other, switches.own)[:, filled]
    return y


def _corners(problem: Problem, slope: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each column: where it costs least, where its price turns, and the end in the useful direction."""
    led = problem.pull.unsqueeze(-1) > 1
    free = torch.where(led, problem.anchor, problem.x)
    other = torch.where(led, problem.x, problem.anchor)
    base = torch.minimum(torch.maximum(free, lower), upper)
    end = torch.where(slope > 0, lower, upper)
    low, high = torch.minimum(base, end), torch.maximum(base, end)
    return base, torch.minimum(torch.maximum(other, low), high), end


def _rate(problem: Problem, start: Tensor, stop: Tensor) -> Tensor:
    """The price for one unit of the way from ``start`` to ``stop``, along which it does not turn."""
    middle, way = (start + stop) / 2, torch.sign(stop - start)
    pull = problem.pull.unsqueeze(-1)
    rate = way * torch.sign(middle - problem.x) + pull * way * torch.sign(middle - problem.anchor)
    return (rate * problem.price).clamp(min=0.0)


def _switches(problem: Problem, p: Tensor, slope: Tensor, upper: Tensor) -> _Switches:
    """From the person's own category to the one with the best ratio of price and gain, in every group."""
    slots, filled = problem.encoding.group_slots(p.device)
    own, gradient, anchor = (part[:, slots] * filled for part in (problem.x, slope, problem.anchor))
    here = (gradient * own).sum(-1, keepdim=True)
    gain = (here - gradient) * (filled & (upper[:, slots] >= 0.5))
    pull = problem.pull[:, None, None]
    price = 2 + 2 * pull * ((own * anchor).sum(-1, keepdim=True) - anchor)
    price = (price * problem.price[slots]).clamp(min=1e-9)
    ratio = torch.where(gain > 0, price / gain.clamp(min=_TINY), torch.inf)
    best = ratio.argmin(-1, keepdim=True)
    other = torch.zeros_like(own).scatter(-1, best, 1.0)
    items = _Items(price.gather(-1, best)[..., 0], gain.gather(-1, best)[..., 0].clamp(min=0.0))
    base_value = (here[..., 0] - (gradient * p[:, slots]).sum(-1)).sum(-1)
    return _Switches(items, own, other, base_value)


def _buy(items: _Items, need: Tensor) -> Tensor:
    """The share (n, items) of each item, best ratio first, until the gains add up to ``need`` (n,)."""
    ratio = torch.where(items.gain > 0, items.price / items.gain.clamp(min=_TINY), torch.inf)
    order = ratio.argsort(dim=-1, stable=True)
    gains = items.gain.gather(-1, order)
    before = gains.cumsum(-1) - gains
    share = ((need.unsqueeze(-1) - before) / gains.clamp(min=_TINY)).clamp(0.0, 1.0)
    share = torch.where(gains > 0, share, 0.0)
    return torch.zeros_like(share).scatter(-1, order, share)


_TINY = 1e-300
