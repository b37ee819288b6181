"""Decide rows, prove counterfactuals with a cascade of bounds, and search for the certified radius."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from veritracer.bounds.ibp import Box, trace
from veritracer.bounds.methods import BOUNDS, BoundProblem, methods_named
from veritracer.bounds.rounding import Precision, logit_error
from veritracer.errors import NotSupportedError, message
from veritracer.models.network import from_module, sign_of
from veritracer.models.param_sets import ParamSet

CASCADE: tuple[str, ...] = tuple(BOUNDS)
"""From cheap to tight; each method sees only the rows that those before it could not prove."""

PER_OCTAVE = 32
"""Steps of the certified radius between one kappa and its double: 2.2 % each."""

OCTAVES = 12
"""Maximum number of times that the radius search doubles or halves kappa."""

PRECISION = Precision.of(torch.float32).plus(16 * Precision.of(torch.float64).unit)
"""Arithmetic that the slack covers: models in float32 or better, and 16 passes of ours in float64.

Also for a model in float64, since the set does not say in which precision a later model will run.
"""

ROWS_AT_ONCE = 2048
"""Rows whose rounding is bounded together: their intermediate sums fit in a core's cache."""


class Decisions(NamedTuple):
    """Decisions of a model, (n,) each.

    ``sign`` is +1 for favourable and -1 for unfavourable; ``clear`` is true where rounding could not change
    it.
    """

    sign: Tensor
    clear: Tensor


@singledispatch
def decide(model: Any, x: Tensor) -> Decisions:
    """Return the model's decisions on float64 rows (n, d), in its own precision.

    A decision is clear if no order of summation and no precision from float32 on could change it. Each family
    of models registers its implementation.

    Raises
    ------
    NotSupportedError
        If no implementation is registered for the type of ``model``.
    """
    raise NotSupportedError(message("a model of a registered family", _type_name(model), "pass a torch MLP"))


@decide.register(nn.Module)
def _decide_mlp(module: nn.Module, x: Tensor) -> Decisions:
    """Decide by the outputs of a torch MLP, and refuse one whose outputs differ from those of its layers."""
    network, theta = from_module(module)
    exact_theta = tuple(t.detach().to(x.device, torch.float64) for t in theta)
    with torch.no_grad():
        computed = network.read(module(x.to(theta[0].device, theta[0].dtype))).to(x)
        alone = ParamSet.of(network, exact_theta, kappa=0.0)
        exact = network.logit(exact_theta, x)
        parts = [x[at : at + ROWS_AT_ONCE] for at in range(0, max(len(x), 1), ROWS_AT_ONCE)]
        error = torch.cat([logit_error(alone, trace(alone, part), PRECISION) for part in parts])
    check_computed(computed, exact, error)
    return Decisions(sign_of(computed), exact.abs() > error)


def check_computed(computed: Tensor, exact: Tensor, error: Tensor) -> None:
    """Refuse a module whose logits differ by more than rounding from what its layers give."""
    if not bool(((computed - exact).abs() <= error).all()):
        received = "another logit than its layers give"
        remedy = "pass a plain nn.Sequential without hooks and overridden methods"
        raise NotSupportedError(message("a module that computes what its layers say", received, remedy))


class Proofs(NamedTuple):
    """Results of a cascade of bounds, (n,) each; ``method`` is the registered code of a bound.

    ``slack``, part of ``worst_logit``, is the largest rounding error at ``x_cf`` over the whole set.
    """

    worst_logit: Tensor
    multiplier: Tensor
    method: Tensor
    slack: Tensor


class ProofBatch(NamedTuple):
    """Rows to be proved: originals, counterfactuals (or boxes of them), and today's decisions."""

    x: Tensor
    x_cf: Tensor | Box
    sign: Tensor

    def select(self, rows: Tensor) -> ProofBatch:
        """Return the batch of the given rows."""
        x_cf = self.x_cf.select(rows) if isinstance(self.x_cf, Box) else self.x_cf[rows]
        return ProofBatch(self.x[rows], x_cf, self.sign[rows])


@singledispatch
def prove(
    model_set: Any, batch: ProofBatch, methods: Sequence[str] = CASCADE, *, sign_only: bool = False
) -> Proofs:
    """Return the best bound of the cascade for each row, slack included; below 0 is a proof.

    Each method is a registered bound. It sees only the rows that those before it could not prove, and builds
    on what they computed. A row leaves with its first proof, so cheap and unconditional bounds win.
    ``sign_only`` lets a bound stop as soon as the sign is known. Each family of models registers its
    implementation for its type of set.

    Raises
    ------
    NotSupportedError
        If no implementation is registered for the type of ``model_set``, or a method is unknown.
    """
    remedy = "pass a ParamSet"
    raise NotSupportedError(message("a set of models of a registered family", _type_name(model_set), remedy))


@prove.register(ParamSet)
def _prove_mlp(
    param_set: ParamSet, batch: ProofBatch, methods: Sequence[str] = CASCADE, *, sign_only: bool = False
) -> Proofs:
    """Run the cascade over a set of MLPs."""
    cascade = methods_named(methods)
    x, x_cf, sign = batch
    whole = problem = BoundProblem(param_set, x, x_cf, sign, precision=PRECISION, sign_only=sign_only)
    worst, multiplier = torch.full_like(sign, torch.inf), torch.zeros_like(sign)
    code = torch.full_like(sign, cascade[0].code, dtype=torch.long)
    rows = torch.arange(len(sign), device=sign.device)
    for entry in cascade:
        found = entry.bound(problem)
        better = found.worst_logit < worst[rows]
        worst[rows] = torch.where(better, found.worst_logit, worst[rows])
        multiplier[rows] = torch.where(better, found.multiplier, multiplier[rows])
        code[rows] = torch.where(better, entry.code, code[rows])
        still = (found.worst_logit >= 0).nonzero().squeeze(-1)
        if len(still) == 0:
            break
        if len(still) < len(rows):
            rows, problem = rows[still], problem.select(still)
    return Proofs(worst, multiplier, code, whole.slack)


def search_radius(
    param_set: ParamSet, batch: ProofBatch, proved: Tensor, methods: Sequence[str] = CASCADE
) -> Tensor:
    """Return the largest kappa of a geometric grid at which a proof was found, (n,); 0 if there is none.

    Each row gallops and then bisects: down by octaves, up by steps that double up to one octave, since most
    counterfactuals were made for the kappa at hand. Rows at the same kappa are proved together. Adaptive
    slopes are not monotone in kappa, so the result is a kappa with a proof and, the sets being nested, a
    certificate for every smaller one; a larger kappa with a proof may exist.
    """
    base = param_set.kappa if param_set.kappa > 0 else 1.0
    limit = OCTAVES * PER_OCTAVE
    grid = [base * 2.0 ** (index / PER_OCTAVE) for index in range(-limit, limit + 1)]
    lowest, highest = -limit - PER_OCTAVE, limit + PER_OCTAVE
    # Grid index with a proof (``lowest``: none yet) and without one (``highest``: none yet).
    low = torch.where(proved & (param_set.kappa > 0), 0, lowest)
    high = torch.where(proved, highest, 0)
    if param_set.kappa == 0:
        high = torch.full_like(high, highest)
    step = 1
    while True:
        ask = torch.where(
            high == highest,
            low + step,
            torch.where(low == lowest, high - PER_OCTAVE, (low + high) // 2),
        )
        step = min(2 * step, PER_OCTAVE)
        open_ = (high - low > 1) & (ask.abs() <= limit)
        if not bool(open_.any()):
            break
        for index in sorted(set(ask[open_].tolist())):
            rows = (open_ & (ask == index)).nonzero().squeeze(-1)
            there, part = param_set.at(grid[index + limit]), batch.select(rows)
            found = prove(there, part, methods, sign_only=True).worst_logit < 0
            low[rows] = torch.where(found, index, low[rows])
            high[rows] = torch.where(found, high[rows], index)
    reached = batch.sign.new_tensor(grid)[(low + limit).clamp(min=0)]
    return torch.where(low == lowest, 0.0, reached)


def _type_name(value: object) -> str:
    return type(value).__name__
