"""State the search for a batch of rows: bounds of the columns, cost weights, region and proof method."""

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
from veritracer.proving import PRECISION, ProofBatch, prove

OUTWARDS = 1e-12
"""Width added to a region on each side, so that a row on its edge is still inside once it is encoded."""

COST_OF_A_CHANGE = 0.01
"""Cost of changing one more feature, in scaled units: as much as moving a number by 1 % of its range."""


class Drift(NamedTuple):
    """Covered drift of a value in its own units (or levels).

    ``least`` is at most 0 and ``most`` at least 0. Drift is independent of actions: savings that people can
    only be asked to raise may still fall.
    """

    least: float
    most: float

    @classmethod
    def of(cls, given: float | Sequence[float]) -> Drift:
        """Return the drift of an option: one number goes both ways, a pair from its first to its second."""
        least, most = given if isinstance(given, Sequence) else (-given, given)
        return cls(strip_float_noise(least) + 0.0, strip_float_noise(most) + 0.0)

    @property
    def option(self) -> float | Sequence[float]:
        """Return the value of the option: a number if both ways are equal, else the two ends."""
        return self.most if self.most == -self.least else self


class CoveredRegion(NamedTuple):
    """Region around a shown row that a certificate covers, in units of each column, (d,) each.

    A changed number may go further by ``overshoot`` in the direction of its change. Every column may drift by
    ``down`` and ``up``.
    """

    overshoot: Tensor
    down: Tensor
    up: Tensor

    @property
    def is_point(self) -> bool:
        """True if only the shown row is covered."""
        return not any(bool(part.any()) for part in self)

    def around(self, x_cf: Tensor, x: Tensor) -> Tensor | Box:
        """Return the covered rows: the shown ones (n, d), or boxes around them.

        A box also covers rows between the points of a grid, and so errs towards more rows. Values beyond the
        encoding's range are clipped to it whenever a row is encoded, hence the clamp.
        """
        if self.is_point:
            return x_cf
        below, above = map(_outwards, self.widths(x_cf, x))
        return Box((x_cf - below).clamp(0.0, 1.0), (x_cf + above).clamp(0.0, 1.0))

    def widths(self, x_cf: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the covered widths below and above the shown row, (n, d) each, not clipped."""
        still = torch.zeros_like(x_cf)
        below = torch.where(x_cf < x, self.overshoot, still) + self.down
        above = torch.where(x_cf > x, self.overshoot, still) + self.up
        return below, above


def _outwards(width: Tensor) -> Tensor:
    return width + OUTWARDS * (width > 0)


def cost_weights(encoding: Encoding, cost: Mapping[str, float]) -> Tensor:
    """Return the cost of one unit of each encoded column, (d,): 1 by default, infinite for never."""
    each = torch.tensor([float(cost.get(name, 1.0)) for name in encoding.schema.names], dtype=torch.float64)
    return each[encoding.owner]


def certified_region(
    encoding: Encoding, overshoot: float, drift: Mapping[str, float | Sequence[float]]
) -> CoveredRegion:
    """Return the region of the options ``overshoot`` and ``drift``, in units of the encoded columns."""
    still = torch.zeros(encoding.dim, dtype=torch.float64)
    down, up = still.clone(), still.clone()
    for name, given in drift.items():
        start = encoding.blocks[encoding.schema.names.index(name)].start
        moves, rounding = Drift.of(given), encoding.units.rounding(name)
        for side, amount in ((down, -moves.least), (up, moves.most)):
            side[start] = encoding.units.of(name, amount) + rounding if amount > 0 else 0.0
    return CoveredRegion(torch.where(encoding.numeric, overshoot, still), down, up)


class Slopes(NamedTuple):
    """The bound (n,) at a point, and its gradient with respect to the point (n, d)."""

    value: Tensor
    slope: Tensor


@dataclass(frozen=True)
class SearchProblem:
    """The closest certified counterfactual for each of n encoded rows, as an optimisation problem.

    Minimise Σ w·|x_cf - x| + ρ·Σ w·|x_cf - anchor| + a little for each changed feature, over legal rows
    between ``lower`` and ``upper`` whose bound over the set is below zero, everywhere in their region. Here w
    are the ``cost_weights`` and ρ is the ``prototype_weight``.

    Attributes
    ----------
    encoding, model_set
        The map from raw rows to columns, and the set of models that certificates cover.
    x, sign
        The rows (n, d) and today's decisions on them, +1 or -1 (n,).
    lower, upper
        Bounds of each column (n, d); equal where it must stay.
    cost_weights
        Cost of one unit of each column, (d,).
    region
        The region around a counterfactual that its certificate has to cover.
    anchor, prototype_weight
        A row for each row to stay near to (n, d), and how strongly, in shares of the cost (n,).
    method
        Name of the bound that has to be below zero.
    """

    encoding: Encoding
    model_set: ParamSet
    x: Tensor
    sign: Tensor
    lower: Tensor
    upper: Tensor
    cost_weights: Tensor
    region: CoveredRegion
    anchor: Tensor
    prototype_weight: Tensor
    method: str = "ibp"

    @classmethod
    def of(
        cls,
        encoding: Encoding,
        model_set: ParamSet,
        x: Tensor,
        sign: Tensor,
        weights: Tensor,
        region: CoveredRegion,
    ) -> SearchProblem:
        """Return the problem in which every feature may change as the schema allows, at a finite cost."""
        lower, upper = encoding.limits(x)
        fixed = torch.isinf(weights)
        return cls(
            encoding=encoding,
            model_set=model_set,
            x=x,
            sign=sign,
            lower=torch.where(fixed, x, lower),
            upper=torch.where(fixed, x, upper),
            cost_weights=torch.where(fixed, 1.0, weights).to(x),
            region=region,
            anchor=x,
            prototype_weight=torch.zeros_like(sign),
        )

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: Tensor) -> SearchProblem:
        """Return the problem of the given rows."""
        of_rows = ("x", "sign", "lower", "upper", "anchor", "prototype_weight")
        return replace(self, **{name: getattr(self, name)[rows] for name in of_rows})

    def with_method(self, method: str) -> SearchProblem:
        """Return the same problem with another bound."""
        return replace(self, method=method)

    def with_anchor(self, anchor: Tensor, weight: Tensor | float) -> SearchProblem:
        """Return the same problem with anchors (n, d), and how strongly to stay near them, (n,) or one."""
        return replace(self, anchor=anchor, prototype_weight=torch.zeros_like(self.sign) + weight)

    def with_bounds(self, lowest: Tensor, highest: Tensor) -> SearchProblem:
        """Return the same problem, with changed columns between ``lowest`` and ``highest``, (d,) or (n, d).

        Bounds of numbers are moved inwards to values that may be shown; a person may keep their own value. A
        category is allowed if its ``highest`` is at least one half.
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

    def with_features(self, features: Tensor) -> SearchProblem:
        """Return the same problem, in which only these features (n, n_features) may change."""
        fixed = ~features[:, self.encoding.owner.to(features.device)]
        return replace(
            self,
            lower=torch.where(fixed, self.x, self.lower),
            upper=torch.where(fixed, self.x, self.upper),
        )

    def without_moves(self, features: Tensor, x_cf: Tensor) -> SearchProblem:
        """Return the same problem, in which these features (n, n_features) cannot move as in ``x_cf``.

        Numbers stay on the other side of ``x``, or at ``x``; a category that ``x_cf`` changes to is closed.
        """
        closed = features[:, self.encoding.owner.to(features.device)]
        numeric = self.encoding.numeric.to(self.x.device)
        return replace(
            self,
            lower=torch.where(closed & numeric & (x_cf < self.x), self.x, self.lower),
            upper=torch.where(closed & (x_cf > self.x), self.x, self.upper),
        )

    def legal(self, x_cf: Tensor) -> Tensor:
        """Return the legal row next to each proposal, inside the bounds, with fixed features as they are."""
        changeable = self.changeable
        inside = torch.minimum(torch.maximum(x_cf.to(self.x), self.lower), self.upper)
        row = self.encoding.project(inside, self.x)
        return torch.where(changeable[:, self.encoding.owner.to(changeable.device)], row, self.x)

    @property
    def changeable(self) -> Tensor:
        """Return a mask of the features that may change at all, (n, n_features)."""
        return self.encoding.changed(self.upper, self.lower)

    def cost(self, x_cf: Tensor) -> Tensor:
        """Return the cost of all changes (n,), without the anchor."""
        return ((x_cf - self.x).abs() * self.cost_weights).sum(-1)

    def objective(self, x_cf: Tensor) -> Tensor:
        """Return the objective (n,): cost, distance from the anchor, and number of changed features."""
        changes = self.encoding.changed(x_cf, self.x).sum(-1)
        apart = ((x_cf - self.anchor).abs() * self.cost_weights).sum(-1)
        return self.cost(x_cf) + COST_OF_A_CHANGE * changes + self.prototype_weight * apart

    def covered(self, x_cf: Tensor) -> Tensor | Box:
        """Return all rows that a certificate of ``x_cf`` has to cover."""
        return self.region.around(x_cf, self.x)

    def worst_logit(self, x_cf: Tensor, methods: Sequence[str] | None = None) -> Tensor:
        """Return the bound (n,) with all slack; below zero is a proof.

        It is that of the problem's method, or of ``methods``, one after the other until one is a proof.
        """
        with torch.no_grad():
            batch = ProofBatch(self.x, self.covered(x_cf), self.sign)
            names = (self.method,) if methods is None else methods
            return prove(self.model_set, batch, names, sign_only=True).worst_logit

    def linearised(self, x_cf: Tensor) -> Slopes:
        """Return the bound with its slack, and its gradient with respect to each column."""
        point = x_cf.detach().requires_grad_()
        problem = BoundProblem(self.model_set, self.x, self.covered(point), self.sign)
        value = method_named(self.method).bound(problem).worst_logit
        (slope,) = torch.autograd.grad(value.sum(), point)
        with torch.no_grad():
            slack = logit_error(self.model_set, problem.ranges, PRECISION)
        return Slopes(value.detach() + slack, slope)
