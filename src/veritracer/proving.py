"""Proving a counterfactual: a cascade of bounds, and the search for the radius up to which it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds import BOUNDS, Box, Method
from veritracer.bounds.ibp import trace
from veritracer.bounds.rounding import logit_error, unit_roundoff
from veritracer.param_sets import ParamSet

CASCADE: tuple[Method, ...] = ("ibp", "crown-ibp", "simul-crown")
"""From cheap to tight; each method only sees the rows that those before it could not prove."""

PER_OCTAVE = 32
"""Steps of the certified radius between one kappa and its double: 2.2 % each."""

OCTAVES = 12
"""How often kappa is doubled or halved at most in the search for the certified radius."""

ARITHMETIC = 16.0
"""Operations of a bound, in units of one forward pass, for the rounding of the bound itself."""


class Proofs(NamedTuple):
    """What a cascade of bounds found, (n,) each; ``method`` indexes the cascade."""

    worst_logit: Tensor
    multiplier: Tensor
    method: Tensor


class Question(NamedTuple):
    """Rows to be proved: counterfactuals (or boxes of them), their originals, and today's decisions."""

    x: Tensor
    x_cf: Tensor | Box
    sign: Tensor
    unit: float  # unit roundoff of the model's own arithmetic

    def select(self, rows: Tensor) -> Question:
        """The question of the given rows."""
        x_cf = Box(*(end[rows] for end in self.x_cf)) if isinstance(self.x_cf, Box) else self.x_cf[rows]
        return Question(self.x[rows], x_cf, self.sign[rows], self.unit)


def slack_of(param_set: ParamSet, question: Question) -> tuple[Tensor, Tensor]:
    """What floating point can cost at ``x_cf`` and at ``x``, (n,) each, over the whole set.

    The model's own arithmetic (``unit``) and, with a factor, that of the bound in float64.
    """
    fine = ARITHMETIC * unit_roundoff(torch.float64)
    ranges = trace(param_set, question.x_cf), trace(param_set, question.x)
    cf, own = (logit_error(param_set, r, question.unit) + logit_error(param_set, r, fine) for r in ranges)
    return cf, own


def prove(
    param_set: ParamSet,
    question: Question,
    slack: tuple[Tensor, Tensor],
    methods: Sequence[Method] = CASCADE,
    *,
    decide: bool = False,
) -> Proofs:
    """The best bound of the cascade for each row, slack included; below 0 is a proof.

    Unconditional methods come first and win ties. ``decide`` lets Simul-CROWN stop at the sign.
    """
    n = len(question.sign)
    worst = torch.full_like(question.sign, torch.inf)
    multiplier = torch.zeros_like(question.sign)
    method = torch.zeros(n, dtype=torch.long, device=worst.device)
    rows = torch.arange(n, device=worst.device)
    for index, name in enumerate(methods):
        asked = question if len(rows) == n else question.select(rows)
        cf_slack, x_slack = slack[0][rows], slack[1][rows]
        if name == "simul-crown":
            options = {"slack": cf_slack, "x_slack": x_slack, "decide": decide}
            bound, found_multiplier = BOUNDS[name](param_set, asked.x, asked.x_cf, asked.sign, **options)
        else:
            bound, found_multiplier = BOUNDS[name](param_set, asked.x, asked.x_cf, asked.sign)
            bound = bound + cf_slack
        better = bound < worst[rows]
        gained = rows[better]
        worst[gained], multiplier[gained], method[gained] = bound[better], found_multiplier[better], index
        rows = rows[bound >= 0]
        if len(rows) == 0:
            break
    return Proofs(worst, multiplier, method)


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
            found = prove(there, asked, slack_of(there, asked), methods, decide=True).worst_logit < 0
            low[rows] = torch.where(found, index, low[rows])
            high[rows] = torch.where(found, high[rows], index)
    reached = question.sign.new_tensor(grid)[(low + limit).clamp(min=0)]
    return torch.where(low == lowest, 0.0, reached)
