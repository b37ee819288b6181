r"""The linearised problem, solved exactly: which changes lower the bound enough at the least price.

With the bound replaced by its tangent, :math:`v + g·(y - p)`, finding the cheapest y that brings it
down to a target is a continuous knapsack: every column offers up to two stretches (towards the anchor, and
beyond it), every category group one switch; each has a price and a gain, and the best ratio comes first.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.refine.problem import Problem, Slopes


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

    Where that can not be reached, y is as low on the tangent as it gets. Numbers may be off their grid;
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
