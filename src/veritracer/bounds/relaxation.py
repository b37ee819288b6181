r"""Relax the largest logit over a box of weights to a linear program, and bound it by its dual.

The problem. Every weight of the set is used once, so the units of a layer move independently: with w in
[w⁻, w⁺] and activations h, the values that unit i of the next layer can take are exactly the interval
[L_i(h), U_i(h)], where each h_j counts with w⁺ or w⁻ by its sign. Write a unit's value as z = p - q with
p, q >= 0; where not both are positive, h = p - a q for a LeakyReLU of slope a, and

    U_i = Σ_j w⁺_ij p_j - a w⁻_ij q_j + b⁺_i,        L_i = Σ_j w⁻_ij p_j - a w⁺_ij q_j + b⁻_i.

So the largest logit is the maximum of a linear function of all p and q subject to

    L_i <= p_i - q_i <= U_i  for every unit (1),    p_i - q_i in its range [l_i, u_i], p_i q_i = 0 (2).

Without p q = 0 it is a linear program, and with the sign of every unit fixed, that program is exact. A region
is no other problem: its inputs are units at the bottom that have a range alone. At a point the bottom is the
first layer.

The bound. Multiply the constraints (1) of unit i by max(y_i, 0) above and max(-y_i, 0) below. For *any* y,

    D(y) = constant + Σ_i max { r_i p - s_i q : (p, q) as in (2) },

with r and s the coefficients that the multiplied constraints leave, is at least the maximum; the linear
program's own multipliers make it smallest. Each inner maximum is at an end of the range or at 0.

It errs upwards: the ends of the weights are rounded outwards, and D(y) is evaluated in float64 with the
rounding error of the evaluation itself added. A solver only proposes y, and nothing it says is believed.

NOTE[paper]: the paper stops at CROWN-IBP's planes, which are D(y) for one choice of y, and calls the exact
worst case expensive. So it is in training; for a finished certificate it takes some hundredths of a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from veritracer.models.param_sets import ParamSet

Array = NDArray[np.float64]

UNIT = 2.0**-53
"""Unit roundoff of float64."""

LOST = 1e-290
"""More than all underflows of one evaluation together."""


class Range(NamedTuple):
    """The interval [low, high] of the value of each unit of one layer, (n,) each."""

    low: Array
    high: Array


@dataclass(frozen=True)
class Link:
    """A layer as a function of the activations below it: the ends of its weights, rounded outwards.

    ``slope`` is that of the activation below.
    """

    low: Array
    high: Array
    bias_low: Array
    bias_high: Array
    slope: float

    @property
    def size(self) -> Array:
        """Return the largest magnitude of each weight."""
        return np.maximum(np.abs(self.low), np.abs(self.high))


class _Step(NamedTuple):
    """One layer of a backward pass: y above it split by sign, the coefficients of p and q, and its own y."""

    at: int
    up: Array
    down: Array
    above: Array
    below: Array
    y: Array


class Program(NamedTuple):
    """The optimum of a linear program as a solver sees it: p and q of each layer, and the multipliers y."""

    positive: list[Array]
    negative: list[Array]
    multipliers: list[Array]

    @property
    def values(self) -> list[Array]:
        """Return the value p - q of each unit."""
        return [p - q for p, q in zip(self.positive, self.negative, strict=True)]


@dataclass(frozen=True)
class Relaxation:
    """The program above for one counterfactual: the bottom's range and the layers over it.

    The last link has one output, sign * logit.
    """

    bottom: Range
    links: tuple[Link, ...]

    @classmethod
    def of(cls, param_set: ParamSet, x_cf: Range, sign: float) -> Relaxation:
        """Build the program for a counterfactual, or for a region of them, over a box of weights."""
        whole = cls(x_cf, links_of(param_set, sign))
        if len(whole.links) == 1 or bool((x_cf.low < x_cf.high).any()):
            return whole
        return cls(whole.interval([x_cf], 0), whole.links[1:])

    @property
    def depth(self) -> int:
        """Return the number of layers with signs, the bottom included."""
        return len(self.links)

    def propagate(self, signs: Sequence[Array]) -> list[Range] | None:
        """Return the range of every unit whose sign is +1, -1 or, with 0, free; None if one is empty.

        The smaller of the interval product and of D at CROWN's multipliers, for each end.
        """
        ranges = [_signed(self.bottom, signs[0])]
        for k in range(self.depth - 1):
            near = self.interval(ranges, k)
            if k > 0:
                n = len(near.low)
                ends = self.upper(ranges, k, np.concatenate([np.eye(n), -np.eye(n)]))
                near = Range(np.maximum(near.low, -ends[n:]), np.minimum(near.high, ends[:n]))
            ranges.append(_signed(near, signs[k + 1]))
            if bool((ranges[-1].low > ranges[-1].high).any()):
                return None
        return ranges

    def interval(self, ranges: Sequence[Range], k: int) -> Range:
        """Return the ranges of the layer that link ``k`` leads to, from those of the layer below alone."""
        n = len(self.links[k].bias_low)
        goal = np.concatenate([np.eye(n), -np.eye(n)])
        ends = Relaxation(ranges[k], self.links[k:]).upper(ranges[k:], 0, goal)
        return Range(-ends[n:], ends[:n])

    def upper(
        self,
        ranges: Sequence[Range],
        k: int,
        goal: Array,
        multipliers: Sequence[Array] | None = None,
    ) -> Array:
        """Bound ``goal`` · (values of the layer that link ``k`` leads to) from above, (m, n) -> (m,).

        ``multipliers`` holds y for each layer, the bottom's being ignored; None takes CROWN's lines.
        """
        total, size, operations = np.zeros(len(goal)), np.zeros(len(goal)), 0
        for step in self._backward(ranges, k, goal, multipliers):
            link, near = self.links[step.at], ranges[step.at]
            total = total + (step.up @ link.bias_high - step.down @ link.bias_low)
            total = total + _highest(step.above, step.below, near).sum(-1)
            both = step.up + step.down
            size = size + both @ np.maximum(np.abs(link.bias_low), np.abs(link.bias_high))
            reach = np.maximum(np.abs(near.low), np.abs(near.high))
            size = size + ((both @ link.size + np.abs(step.y)) * reach).sum(-1)
            operations += 2 * len(link.bias_low) + len(near.low) + 8
        # Every sum is off by at most its operations * UNIT times the magnitudes of its terms; twice that also
        # covers how ``size`` itself is rounded.
        return np.nextafter(total + (2 * operations * UNIT * size + LOST), np.inf)

    def logit(self, ranges: Sequence[Range], multipliers: Sequence[Array] | None = None) -> float:
        """Bound sign * logit from above by D at these multipliers."""
        return float(self.upper(ranges, self.depth - 1, np.ones((1, 1)), multipliers)[0])

    def heights(self, ranges: Sequence[Range], multipliers: Sequence[Array]) -> list[Array]:
        """Return each unit's inner maximum in D: what the bound would lose if the unit gave nothing."""
        steps = self._backward(ranges, self.depth - 1, np.ones((1, 1)), multipliers)
        return [_highest(s.above, s.below, ranges[s.at])[0] for s in steps][::-1]

    def _backward(
        self, ranges: Sequence[Range], k: int, goal: Array, multipliers: Sequence[Array] | None
    ) -> Iterator[_Step]:
        """Yield the coefficients that D gives to each layer, from the one below link ``k`` to the bottom."""
        y = goal
        for at in reversed(range(k + 1)):
            link = self.links[at]
            up, down = np.maximum(y, 0.0), np.maximum(-y, 0.0)
            above = up @ link.high - down @ link.low
            below = link.slope * (down @ link.high - up @ link.low)
            if at == 0:
                y = np.zeros((1, link.low.shape[1]))
            elif multipliers is None:
                y = _lines(above, below, ranges[at])
            else:
                y = multipliers[at][None]
            yield _Step(at, up, down, above - y, below + y, y)

    def solve(
        self, ranges: Sequence[Range], penalty: float | None = None, seconds: float = math.inf
    ) -> Program | None:
        """Solve the linear program by HiGHS; None where it finds no optimum in so many seconds.

        With a ``penalty``, constraints (1) may be broken at that price, which limits every y: for a program
        without solutions, whose dual has no minimum.
        """
        columns = _Columns(ranges, [link.slope for link in self.links])
        rows: list[Array] = []
        right: list[Array] = []
        for at in range(self.depth - 1):
            link, upper = self.links[at], columns.matrix(at + 1)
            below = columns.activation(at, link)
            rows += [upper - below[0], below[1] - upper]
            right += [link.bias_high, -link.bias_low]
        linked = sum(map(len, right))
        hull, most = columns.hulls(ranges)
        left, price, limits = np.concatenate([*rows, hull]), columns.price(self.links[-1]), columns.limits
        if penalty is not None:
            left = np.concatenate([left, -np.eye(len(left), linked)], 1)
            price = np.append(price, np.full(linked, -penalty))
            limits = np.concatenate([limits, np.tile([0.0, np.inf], (linked, 1))])
        limit = {} if math.isinf(seconds) else {"time_limit": max(seconds, 0.0)}
        found = linprog(
            -price, left, np.concatenate([*right, most]), bounds=limits, method="highs-ds", options=limit
        )
        if found.status != 0:
            return None
        prices, multipliers, start = -found.ineqlin.marginals, [np.zeros(len(ranges[0].low))], 0
        for at in range(1, self.depth):
            n = len(ranges[at].low)
            multipliers.append(prices[start : start + n] - prices[start + n : start + 2 * n])
            start += 2 * n
        positive, negative = columns.parts(found.x[: columns.count])
        return Program(positive, negative, multipliers)


class _Columns:
    """The variables of a linear program: p and q of every unit, without those that must be 0."""

    def __init__(self, ranges: Sequence[Range], slopes: Sequence[float]) -> None:
        self.sizes = [len(near.low) for near in ranges]
        self.index: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        limits: list[Array] = []
        count = 0
        for at, near in enumerate(ranges):
            # Below a ReLU the bottom's q has no effect.
            has_p = near.high > 0
            has_q = (near.low < 0) & (at > 0 or slopes[0] != 0.0)
            pair = []
            for has, low, high in ((has_p, near.low, near.high), (has_q, -near.high, -near.low)):
                number = np.full(len(has), -1)
                number[has] = count + np.arange(int(has.sum()))
                count += int(has.sum())
                limits.append(np.stack([np.maximum(low[has], 0.0), high[has]], -1))
                pair.append(number)
            self.index.append((pair[0], pair[1]))
        self.count, self.limits = count, np.concatenate(limits)

    def matrix(self, at: int) -> Array:
        """Return the matrix that gives p - q of a layer."""
        found = np.zeros((self.sizes[at], self.count))
        for number, sign in zip(self.index[at], (1.0, -1.0), strict=True):
            has = (number >= 0).nonzero()[0]
            found[has, number[has]] = sign
        return found

    def activation(self, at: int, link: Link) -> tuple[Array, Array]:
        """Return the matrices that give U and L, without the biases, from the layer ``at``."""
        high, low = (np.zeros((len(link.bias_low), self.count)) for _ in range(2))
        p, q = self.index[at]
        has_p, has_q = p >= 0, q >= 0
        high[:, p[has_p]], low[:, p[has_p]] = link.high[:, has_p], link.low[:, has_p]
        high[:, q[has_q]] = -link.slope * link.low[:, has_q]
        low[:, q[has_q]] = -link.slope * link.high[:, has_q]
        return high, low

    def price(self, last: Link) -> Array:
        """Return the coefficients of the last layer's upper end."""
        price: Array = self.activation(len(self.sizes) - 1, last)[0][0]
        return price

    def hulls(self, ranges: Sequence[Range]) -> tuple[Array, Array]:
        """Return the rows p / u + q / -l <= 1 of the units of either sign."""
        rows = []
        for (p, q), near in zip(self.index, ranges, strict=True):
            for i in ((p >= 0) & (q >= 0)).nonzero()[0]:
                row = np.zeros(self.count)
                row[p[i]], row[q[i]] = 1.0 / near.high[i], -1.0 / near.low[i]
                rows.append(row)
        return (np.stack(rows) if rows else np.zeros((0, self.count))), np.ones(len(rows))

    def parts(self, x: Array) -> tuple[list[Array], list[Array]]:
        """Return p and q of every layer of a solution."""
        padded = np.append(x, 0.0)  # index -1
        return [padded[p] for p, _ in self.index], [padded[q] for _, q in self.index]


def links_of(param_set: ParamSet, sign: float) -> tuple[Link, ...]:
    """Return the layers of a box of weights, the outputs of the last one read as sign * logit."""

    def build() -> tuple[Link, ...]:
        found, slopes = [], (1.0, *param_set.network.slopes)
        for k, (layer, slope) in enumerate(zip(param_set.layers, slopes, strict=True)):
            ends = []
            for center, radius in ((layer.weight, layer.weight_radius), (layer.bias, layer.bias_radius)):
                middle, reach = center.detach().cpu().numpy(), float(radius)
                still = reach == 0.0
                ends.append(middle if still else np.nextafter(middle - reach, -np.inf))
                ends.append(middle if still else np.nextafter(middle + reach, np.inf))
            link = Link(ends[0], ends[1], ends[2], ends[3], slope)
            found.append(link if k < len(slopes) - 1 else _read(link, sign, param_set.network.readout))
        return tuple(found)

    return param_set.once(("links", sign), build)


def _read(link: Link, sign: float, readout: Sequence[float]) -> Link:
    """Return the link to sign * logit: for two logits, whose rows move independently, their difference."""
    if len(readout) == 1:
        if sign > 0:
            return link
        return Link(-link.high, -link.low, -link.bias_high, -link.bias_low, link.slope)
    up, down = (1, 0) if sign * readout[1] > 0 else (0, 1)

    def difference(a: Array, b: Array, towards: float) -> Array:
        return np.nextafter(a[up : up + 1] - b[down : down + 1], towards)

    return Link(
        difference(link.low, link.high, -np.inf),
        difference(link.high, link.low, np.inf),
        difference(link.bias_low, link.bias_high, -np.inf),
        difference(link.bias_high, link.bias_low, np.inf),
        link.slope,
    )


def _signed(near: Range, signs: Array) -> Range:
    """Return the ranges on the side of zero that the signs say."""
    low = np.where(signs > 0, np.maximum(near.low, 0.0), near.low)
    high = np.where(signs < 0, np.minimum(near.high, 0.0), near.high)
    return Range(low, high)


def _highest(above: Array, below: Array, near: Range) -> Array:
    """Return the maximum over z in each range of above * z where z >= 0 and below * -z where z <= 0."""

    def at(z: Array) -> Array:
        return np.where(z >= 0, above, -below) * z

    best = np.maximum(at(near.low), at(near.high))
    crosses = (near.low <= 0) & (near.high >= 0)
    found: Array = np.where(crosses, np.maximum(best, 0.0), best)
    return found


def _lines(above: Array, below: Array, near: Range) -> Array:
    """Return the slope of a line over each function of ``_highest``: CROWN's choice.

    The chord where the function is convex, else the slope of the longer side.
    """
    up, down = np.maximum(near.high, 0.0), np.maximum(-near.low, 0.0)
    width = up + down
    chord = (above * up - below * down) / np.where(width > 0, width, 1.0)
    side = np.where(up >= down, above, -below)
    found: Array = np.where((above + below > 0) | (near.low >= 0) | (near.high <= 0), chord, side)
    return found
