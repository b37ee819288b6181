"""What is asked for a batch of rows: within which limits, at which prices, proved by which bound.

And for which rows around the shown one: how far people may end up from what they were told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds.ibp import Box
from veritracer.bounds.methods import BoundProblem, method_named
from veritracer.bounds.rounding import logit_error
from veritracer.encoding import Encoding
from veritracer.formatting import strip_float_noise
from veritracer.models.param_sets import ParamSet
from veritracer.proving import CASCADE, PRECISION, ProofBatch, prove

OUTWARDS = 1e-12
"""A region is wider by this much than what it stands for: a row on its edge is inside once it is encoded."""


class Drift(NamedTuple):
    """How far a value may move by itself, in its own units (or levels), wherever its owner brings it.

    From ``least``, which is not above 0, to ``most``, which is not below. What a person may be *asked* to
    change plays no part: savings that one is asked to raise only may fall all the same.
    """

    least: float
    most: float

    @classmethod
    def of(cls, asked: float | Sequence[float]) -> Drift:
        """What was asked for: one number goes both ways, a pair from its first to its second."""
        if isinstance(asked, Sequence):
            least, most = asked
        else:
            least, most = -asked, asked
        return cls(strip_float_noise(least) + 0.0, strip_float_noise(most) + 0.0)

    @property
    def asked(self) -> float | Sequence[float]:
        """What to ask for to get it: a number where both ways are equal, else the two ends."""
        return self.most if self.most == -self.least else self


class CoveredRegion(NamedTuple):
    """What a person may do beyond the shown values, in units of each column, (d,) each.

    ``overshoot`` is how far a changed number may be carried on in the direction of its change; ``down``
    and ``up`` are how far a column may drift by itself, whether it was changed or not.
    """

    overshoot: Tensor
    down: Tensor
    up: Tensor

    @property
    def is_point(self) -> bool:
        """Whether the shown row alone is spoken for."""
        return not any(bool(part.any()) for part in self)

    def region(self, x_cf: Tensor, x: Tensor) -> Tensor | Box:
        """Every row that is spoken for: the shown one, or the box around all that may become of it.

        The box also covers rows between the points of a grid, and so errs towards more rows. Values beyond
        the encoding's range are clipped to it whenever a row is encoded, hence the clamp.
        """
        if self.is_point:
            return x_cf
        below, above = map(_outwards, self.widths(x_cf, x))
        return Box((x_cf - below).clamp(0.0, 1.0), (x_cf + above).clamp(0.0, 1.0))

    def widths(self, x_cf: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """How far below and how far above the shown row is spoken for, (n, d) each, beyond any range too."""
        still = torch.zeros_like(x_cf)
        below = torch.where(x_cf < x, self.overshoot, still) + self.down
        above = torch.where(x_cf > x, self.overshoot, still) + self.up
        return below, above


def _outwards(width: Tensor) -> Tensor:
    return width + OUTWARDS * (width > 0)


def cost_weights(encoding: Encoding, cost: Mapping[str, float]) -> Tensor:
    """Return the price of one unit of each encoded column, (dim,): 1 by default, infinite for never."""
    each = torch.tensor([float(cost.get(name, 1.0)) for name in encoding.schema.names], dtype=torch.float64)
    return each[encoding.owner]


def certified_region(
    encoding: Encoding, overshoot: float, drift: Mapping[str, float | Sequence[float]]
) -> CoveredRegion:
    """Return how far people may go beyond what they are told, in units of the encoded columns."""
    still = torch.zeros(encoding.dim, dtype=torch.float64)
    down, up = still.clone(), still.clone()
    for name, asked in drift.items():
        start = encoding.blocks[encoding.schema.names.index(name)].start
        moves, rounding = Drift.of(asked), encoding.units.rounding(name)
        for way, amount in ((down, -moves.least), (up, moves.most)):
            way[start] = encoding.units.of(name, amount) + rounding if amount > 0 else 0.0
    return CoveredRegion(torch.where(encoding.numeric, overshoot, still), down, up)


PRICE_OF_A_CHANGE = 0.01
"""What touching one more feature costs, in scaled units: as much as moving a number by 1 % of its range."""


class Slopes(NamedTuple):
    """The bound (n,) at a point, and its gradient with respect to the point (n, d)."""

    value: Tensor
    slope: Tensor


@dataclass(frozen=True)
class Problem:
    """The closest certified counterfactual for each of n encoded rows, as a problem to be solved.

    Minimise Σ price·|x_cf - x| + pull·price·|x_cf - anchor| + a little for each changed feature, over legal
    rows between ``lower`` and ``upper`` whose bound over the set is below zero, everywhere in their reach.

    Attributes
    ----------
    x, sign
        The rows (n, d) and today's decisions on them, +1 or -1 (n,).
    lower, upper
        What each column may become (n, d); equal where it must stay.
    price
        Of each column, for one unit, (d,).
    anchor, pull
        A training row for each row to stay near to (n, d), and how strongly, in shares of the price (n,).
    method
        The bound that has to be below zero.
    """

    encoding: Encoding
    param_set: ParamSet
    x: Tensor
    sign: Tensor
    lower: Tensor
    upper: Tensor
    price: Tensor
    reach: CoveredRegion
    anchor: Tensor
    pull: Tensor
    method: str = "ibp"

    @classmethod
    def of(
        cls,
        encoding: Encoding,
        param_set: ParamSet,
        x: Tensor,
        sign: Tensor,
        price: Tensor,
        reach: CoveredRegion,
    ) -> Problem:
        """The problem in which everything may change that the schema allows and whose price is finite."""
        lower, upper = encoding.limits(x)
        fixed = torch.isinf(price)
        lower, upper = torch.where(fixed, x, lower), torch.where(fixed, x, upper)
        return cls(
            *(encoding, param_set, x, sign, lower, upper, torch.where(fixed, 1.0, price).to(x), reach),
            anchor=x,
            pull=torch.zeros_like(sign),
        )

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: Tensor) -> Problem:
        """The problem of the given rows."""
        of_rows = ("x", "sign", "lower", "upper", "anchor", "pull")
        return replace(self, **{name: getattr(self, name)[rows] for name in of_rows})

    def proved_by(self, method: str) -> Problem:
        """The same problem with another bound."""
        return replace(self, method=method)

    def near(self, anchor: Tensor, pull: Tensor | float) -> Problem:
        """The same problem, in which staying near the anchors is worth something, (n,) or to all alike."""
        return replace(self, anchor=anchor, pull=torch.zeros_like(self.sign) + pull)

    def within(self, lowest: Tensor, highest: Tensor) -> Problem:
        """The same problem, in which changed columns end between ``lowest`` and ``highest`` (d,) or (n, d).

        Limits of numbers are moved inwards to values that may be shown; what a person has already may stay.
        A category is allowed where its ``highest`` is at least one half.
        """
        numeric = self.encoding.numeric.to(self.x.device)
        low, high = (
            self.encoding.snap(
                limit.expand_as(self.x).to(self.x), self.x, torch.full_like(self.x, up, dtype=torch.bool)
            )
            for limit, up in ((lowest, True), (highest, False))
        )
        low, high = torch.minimum(low, self.x), torch.maximum(high, self.x)
        allowed = torch.where(highest >= 0.5, self.upper, torch.minimum(self.upper, self.x))
        return replace(
            self,
            lower=torch.where(numeric, torch.maximum(self.lower, low), self.lower),
            upper=torch.where(numeric, torch.minimum(self.upper, high), allowed),
        )

    def only(self, features: Tensor) -> Problem:
        """The same problem, in which only these features (n, n_features) may change."""
        fixed = ~features[:, self.encoding.owner.to(features.device)]
        return replace(
            self,
            lower=torch.where(fixed, self.x, self.lower),
            upper=torch.where(fixed, self.x, self.upper),
        )

    def legal(self, x_cf: Tensor) -> Tensor:
        """The legal row next to each proposal, within the limits and with what must stay as it is."""
        open_ = self.free
        inside = torch.minimum(torch.maximum(x_cf.to(self.x), self.lower), self.upper)
        row = self.encoding.project(inside, self.x)
        return torch.where(open_[:, self.encoding.owner.to(open_.device)], row, self.x)

    @property
    def free(self) -> Tensor:
        """Which features may change at all, (n, n_features)."""
        return self.encoding.changed(self.upper, self.lower)

    def cost(self, x_cf: Tensor) -> Tensor:
        """The price of all changes (n,), as people are told."""
        return ((x_cf - self.x).abs() * self.price).sum(-1)

    def objective(self, x_cf: Tensor) -> Tensor:
        """What is minimised (n,): cost, distance from the anchor, and number of changed features."""
        changes = self.encoding.changed(x_cf, self.x).sum(-1)
        apart = ((x_cf - self.anchor).abs() * self.price).sum(-1)
        return self.cost(x_cf) + PRICE_OF_A_CHANGE * changes + self.pull * apart

    def region(self, x_cf: Tensor) -> Tensor | Box:
        """All rows that a certificate for ``x_cf`` has to speak for."""
        return self.reach.region(x_cf, self.x)

    def worst(self, x_cf: Tensor) -> Tensor:
        """The bound (n,) with all slack: below zero is a proof."""
        return self._proved(x_cf, (self.method,))

    def best_bound(self, x_cf: Tensor) -> Tensor:
        """The same by all bounds, one after the other until one of them is a proof."""
        return self._proved(x_cf, CASCADE)

    def _proved(self, x_cf: Tensor, methods: Sequence[str]) -> Tensor:
        with torch.no_grad():
            batch = ProofBatch(self.x, self.region(x_cf), self.sign)
            return prove(self.param_set, batch, methods, sign_only=True).worst_logit

    def linearised(self, x_cf: Tensor) -> Slopes:
        """The bound with its slack, and how it changes with each column."""
        point = x_cf.detach().requires_grad_()
        asked = BoundProblem(self.param_set, self.x, self.region(point), self.sign)
        value = method_named(self.method).bound(asked).worst_logit
        (slope,) = torch.autograd.grad(value.sum(), point)
        with torch.no_grad():
            slack = logit_error(self.param_set, asked.ranges, PRECISION)
        return Slopes(value.detach() + slack, slope)
