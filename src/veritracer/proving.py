"""Proving a counterfactual: a cascade of bounds, and the search for the radius up to which it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds import Bound, Box, Method
from veritracer.bounds.affine import Affine
from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import ibp_upper, trace
from veritracer.bounds.rounding import Precision, logit_error
from veritracer.bounds.simul_crown import constrained
from veritracer.bounds.worst_model import keeps_decision
from veritracer.param_sets import ParamSet

CASCADE: tuple[Method, ...] = ("ibp", "crown-ibp", "simul-crown")
"""From cheap to tight; each method only sees the rows that those before it could not prove."""

PER_OCTAVE = 32
"""Steps of the certified radius between one kappa and its double: 2.2 % each."""

OCTAVES = 12
"""How often kappa is doubled or halved at most in the search for the certified radius."""

PRECISION = Precision.of(torch.float32).plus(16 * Precision.of(torch.float64).unit)
"""What the slack covers: models that compute in float32 or better, and 16 passes of our own in float64.

Also for a model in float64, since the set does not say in which precision a later model will run.
"""


class Proofs(NamedTuple):
    """What a cascade of bounds found, (n,) each; ``method`` indexes the cascade.

    ``slack``, part of ``worst_logit``, is what floating point can cost at ``x_cf`` over the whole set.
    """

    worst_logit: Tensor
    multiplier: Tensor
    method: Tensor
    slack: Tensor


class Question(NamedTuple):
    """Rows to be proved: counterfactuals (or boxes of them), their originals, and today's decisions."""

    x: Tensor
    x_cf: Tensor | Box
    sign: Tensor

    def select(self, rows: Tensor) -> Question:
        """The question of the given rows."""
        x_cf = self.x_cf.select(rows) if isinstance(self.x_cf, Box) else self.x_cf[rows]
        return Question(self.x[rows], x_cf, self.sign[rows])


class _Cascade:
    """The bounds of one question, from cheap to tight, each built on what those before it computed."""

    def __init__(self, param_set: ParamSet, question: Question) -> None:
        self.param_set, self.question = param_set, question
        self.ranges = trace(param_set, question.x_cf)
        self.slack = logit_error(param_set, self.ranges, PRECISION)
        self.interval = ibp_upper(param_set, self.ranges, question.sign) + self.slack
        self._plane: tuple[Tensor, Affine] | None = None

    def plane(self, rows: Tensor) -> Affine:
        """The upper plane of the given rows, slack included, from the last one if that had these rows."""
        if self._plane is not None and len(rows) == len(self._plane[0]):
            return self._plane[1]
        if self._plane is not None:  # rows only ever leave
            return self._plane[1].select(torch.searchsorted(self._plane[0], rows))
        ranges = self.ranges if len(rows) == len(self.slack) else self.ranges.select(rows)
        plane = upper_plane(self.param_set, ranges, self.question.sign[rows]).shift(self.slack[rows])
        self._plane = rows, plane
        return plane

    def bound(self, method: Method, rows: Tensor, *, decide: bool) -> Bound:
        """The method's bound of the given rows, slack included."""
        interval = self.interval[rows]
        if method == "ibp":
            return Bound(interval, torch.zeros_like(interval))
        plane = self.plane(rows)
        if method == "crown-ibp":
            crown = plane.upper(self.param_set.row_radii, self.param_set.norm)
            return Bound(torch.minimum(crown, interval), torch.zeros_like(interval))
        return self._simul_crown(rows, plane, interval, decide=decide)

    def _simul_crown(self, rows: Tensor, plane: Affine, interval: Tensor, *, decide: bool) -> Bound:
        """Simul-CROWN where the worst model of the plane loses x's decision; elsewhere it is CROWN."""
        x, sign = self.question.x[rows], self.question.sign[rows]
        worst = torch.minimum(plane.upper(self.param_set.row_radii, self.param_set.norm), interval)
        multiplier = torch.zeros_like(worst)
        some = (~keeps_decision(self.param_set, plane, x, sign)).nonzero().squeeze(-1)
        if len(some) > 0:
            own = trace(self.param_set, x[some])
            constraint = upper_plane(self.param_set, own, sign[some])
            constraint = constraint.shift(logit_error(self.param_set, own, PRECISION))
            found = constrained(self.param_set, plane.select(some), constraint, interval[some], decide=decide)
            worst, multiplier = worst.index_copy(0, some, found[0]), multiplier.index_copy(0, some, found[1])
        return Bound(worst, multiplier)


def prove(
    param_set: ParamSet, question: Question, methods: Sequence[Method] = CASCADE, *, decide: bool = False
) -> Proofs:
    """The best bound of the cascade for each row, slack included; below 0 is a proof.

    A row leaves the cascade with its first proof, so cheap and unconditional ones win. ``decide`` lets
    Simul-CROWN stop as soon as it knows the sign.
    """
    cascade = _Cascade(param_set, question)
    worst = torch.full_like(question.sign, torch.inf)
    multiplier = torch.zeros_like(question.sign)
    method = torch.zeros_like(question.sign, dtype=torch.long)
    rows = torch.arange(len(worst), device=worst.device)
    for index, name in enumerate(methods):
        found = cascade.bound(name, rows, decide=decide)
        better = found.worst_logit < worst[rows]
        worst[rows] = torch.where(better, found.worst_logit, worst[rows])
        multiplier[rows] = torch.where(better, found.multiplier, multiplier[rows])
        method[rows] = torch.where(better, index, method[rows])
        rows = rows[found.worst_logit >= 0]
        if len(rows) == 0:
            break
    return Proofs(worst, multiplier, method, cascade.slack)


def search_radius(
    param_set: ParamSet, question: Question, proved: Tensor, methods: Sequence[Method] = CASCADE
) -> Tensor:
    """The largest kappa of a geometric grid at which a proof was found, (n,); 0 where there is none.

    Each row gallops by octaves and then bisects; rows that ask for the same kappa are proved
    together. Adaptive slopes are not monotone in kappa, so the answer is a kappa with a proof, and, the
    sets being nested, a certificate for every smaller one; a larger one with a proof may exist.
    """
    base = param_set.kappa if param_set.kappa > 0 else 1.0
    limit = OCTAVES * PER_OCTAVE
    grid = [base * 2.0 ** (index / PER_OCTAVE) for index in range(-limit, limit + 1)]
    lowest, highest = -limit - PER_OCTAVE, limit + PER_OCTAVE
    low = torch.where(
        proved & (param_set.kappa > 0), 0, lowest
    )  # grid index with a proof; ``lowest``: none yet
    high = torch.where(proved, highest, 0)  # grid index without one; ``highest``: none yet
    if param_set.kappa == 0:
        high = torch.full_like(high, highest)
    while True:
        ask = torch.where(
            high == highest,
            low + PER_OCTAVE,
            torch.where(low == lowest, high - PER_OCTAVE, (low + high) // 2),
        )
        open_ = (high - low > 1) & (ask.abs() <= limit)
        if not bool(open_.any()):
            break
        for index in sorted(set(ask[open_].tolist())):
            rows = (open_ & (ask == index)).nonzero().squeeze(-1)
            there, asked = param_set.at(grid[index + limit]), question.select(rows)
            found = prove(there, asked, methods, decide=True).worst_logit < 0
            low[rows] = torch.where(found, index, low[rows])
            high[rows] = torch.where(found, high[rows], index)
    reached = question.sign.new_tensor(grid)[(low + limit).clamp(min=0)]
    return torch.where(low == lowest, 0.0, reached)
