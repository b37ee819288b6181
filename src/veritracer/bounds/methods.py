"""The registry of bounds and the problem that they share.

A bound is a function of a ``BoundProblem`` that returns an upper bound for each row. Training, ``certify``
and the ledger read one registry: a registered bound can be chosen by name wherever a method is chosen, and is
named in the certificates that it proves; other names are refused. How to add one:
``docs/how-to/add-a-bound.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from veritracer.bounds import dual
from veritracer.bounds.affine import Affine, keeps_decision
from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import Bound, Box, Trace, ibp_upper, trace
from veritracer.bounds.rounding import Precision, logit_error
from veritracer.errors import NotSupportedError, message, unknown_name
from veritracer.models.param_sets import ParamSet

Method = Literal["ibp", "crown-ibp", "simul-crown"]
"""Names of the library's own bounds, from the cheapest to the tightest."""

EXACT = "exact"
"""Method of certificates from ``bounds.branching``, which is no bound: it is the stage after all bounds."""

LAST_CODE = 255
"""Codes are stored in one byte; 0 stands for no method."""


class BoundProblem:
    """Maximise sign * logit(x_cf) over the models of the set with sign * logit(x) >= 0, for each row.

    Ranges and planes are computed when a bound first asks for them, and only once: CROWN-IBP builds on IBP's
    ranges, Simul-CROWN on CROWN-IBP's plane. ``interval``, ``plane`` and ``constraint`` include the slack for
    ``precision``; a bound made of ``ranges`` adds ``slack`` itself.

    Parameters
    ----------
    x, x_cf, sign
        Rows (..., n, d), their counterfactuals or boxes of them, and today's decisions, +1 or -1 (..., n).
    precision
        The arithmetic in which models may run; None is exact arithmetic, without slack.
    steps, sign_only
        How Simul-CROWN searches; see ``dual.maximum``.
    """

    def __init__(
        self,
        param_set: ParamSet,
        x: Tensor,
        x_cf: Tensor | Box,
        sign: Tensor,
        *,
        precision: Precision | None = None,
        steps: int | None = None,
        sign_only: bool = False,
    ) -> None:
        self.param_set, self.x, self.x_cf, self.sign = param_set, x, x_cf, sign
        self.precision, self.steps, self.sign_only = precision, steps, sign_only
        self._whole: tuple[BoundProblem, Tensor] | None = None

    def select(self, rows: Tensor) -> BoundProblem:
        """Return the problem of some rows of a flat batch; it reuses what was computed for all of them."""
        x_cf = self.x_cf.select(rows) if isinstance(self.x_cf, Box) else self.x_cf[rows]
        part = BoundProblem(
            self.param_set,
            self.x[rows],
            x_cf,
            self.sign[rows],
            precision=self.precision,
            steps=self.steps,
            sign_only=self.sign_only,
        )
        part._whole = self, rows
        return part

    @cached_property
    def ranges(self) -> Trace:
        """Return the ranges of every hidden layer at ``x_cf``, over the set."""
        if self._whole is None:
            return trace(self.param_set, self.x_cf)
        whole, rows = self._whole
        return whole.ranges.select(rows)

    @cached_property
    def slack(self) -> Tensor:
        """Return the largest rounding error at ``x_cf`` over the set, (..., n); 0 in exact arithmetic."""
        if self._whole is not None:
            whole, rows = self._whole
            return whole.slack[rows]
        if self.precision is None:
            return self.sign.new_zeros(self.sign.shape)
        return logit_error(self.param_set, self.ranges, self.precision)

    @cached_property
    def interval(self) -> Tensor:
        """Return IBP's upper bound (..., n), slack included."""
        if self._whole is not None:
            whole, rows = self._whole
            return whole.interval[rows]
        upper = ibp_upper(self.param_set, self.ranges, self.sign)
        return upper if self.precision is None else upper + self.slack

    @cached_property
    def plane(self) -> Affine:
        """Return CROWN-IBP's upper plane, slack included."""
        if self._whole is not None and "plane" in vars(self._whole[0]):
            whole, rows = self._whole
            return whole.plane.select(rows)
        plane = upper_plane(self.param_set, self.ranges, self.sign)
        return plane if self.precision is None else plane.shift(self.slack)

    def constraint(self) -> Affine:
        """Return an upper plane of sign * logit(x), slack included.

        It is at least 0 for every model that keeps x's decision.
        """
        own = trace(self.param_set, self.x)
        plane = upper_plane(self.param_set, own, self.sign)
        if self.precision is None:
            return plane
        return plane.shift(logit_error(self.param_set, own, self.precision))


@dataclass(frozen=True)
class BoundMethod:
    """An upper bound of the counterfactual's logit over a set of models.

    Attributes
    ----------
    name
        Its name in certificates.
    code
        Its code in ledgers, from 1 to 255; it never changes and is never given to another bound.
    conditional
        Whether its proofs may use that ``x`` keeps its decision. They do where the multiplier is above 0.
    function
        Returns the bound of a problem, which must lie above the logit of every model of the set, with the
        problem's slack included.
    """

    name: str
    code: int
    conditional: bool
    function: Callable[[BoundProblem], Bound]

    def __call__(
        self,
        param_set: ParamSet,
        x: Tensor,
        x_cf: Tensor | Box,
        sign: Tensor,
        *,
        steps: int | None = None,
    ) -> Bound:
        """Return the bound in exact arithmetic, differentiable; ``steps`` is that of ``dual.maximum``."""
        return self.function(BoundProblem(param_set, x, x_cf, sign, steps=steps))

    def bound(self, problem: BoundProblem) -> Bound:
        """Return the bound as a proof.

        Raises
        ------
        NotSupportedError
            If the bound is registered as unconditional and a multiplier is not 0.
        """
        found = self.function(problem)
        if not self.conditional and bool((found.multiplier != 0).any()):
            remedy = "register it as conditional"
            received = "multipliers other than 0"
            raise NotSupportedError(message(f"an unconditional bound from {self.name!r}", received, remedy))
        return found


BOUNDS: dict[str, BoundMethod] = {}
"""All bounds by name, from the cheapest to the tightest; ``register`` adds to it."""


def register(entry: BoundMethod) -> BoundMethod:
    """Add a bound after the existing ones; its name and its code must be new."""
    codes = {known.code for known in BOUNDS.values()}
    taken = [*BOUNDS, EXACT]
    if entry.name in taken or entry.code in codes or not 0 < entry.code <= LAST_CODE:
        expected = f"a name other than {taken} and a code from 1 to {LAST_CODE} other than {sorted(codes)}"
        received = f"{entry.name!r} with code {entry.code}"
        raise NotSupportedError(message(expected, received, "choose others"))
    BOUNDS[entry.name] = entry
    return entry


def method_named(name: str) -> BoundMethod:
    """Return the registered bound of that name, or raise ``NotSupportedError``."""
    if name not in BOUNDS:
        raise NotSupportedError(unknown_name(f"methods among {list(BOUNDS)}", name, BOUNDS))
    return BOUNDS[name]


def methods_named(names: Sequence[str]) -> list[BoundMethod]:
    """Return the registered bounds of those names, at least one."""
    if not names:
        remedy = "choose one or more of these"
        raise NotSupportedError(message(f"methods among {list(BOUNDS)}", "none", remedy))
    return [method_named(name) for name in names]


def check_exact(param_set: ParamSet) -> None:
    """Refuse sets other than boxes: only there do the rows of a weight matrix move independently."""
    if param_set.norm != "linf":
        expected, received = "a set of norm 'linf' for effort='exact'", repr(param_set.norm)
        raise NotSupportedError(message(expected, received, "leave effort out: the bounds take every norm"))


def names_by_code() -> tuple[str, ...]:
    """Return the name of each code, counted from 0; empty where no bound has the code."""
    names = {entry.code: entry.name for entry in BOUNDS.values()}
    return tuple(names.get(code, "") for code in range(max(names) + 1))


def _ibp(problem: BoundProblem) -> Bound:
    """Bound the maximum over the set of sign * logit(x_cf) by intervals.

    It errs upwards: each range is computed as if all others could be at their worst at once. ``x`` is not
    used, so the proof is unconditional. Exact for boxes and one hidden layer, where every entry of the
    parameters appears once. The paper's section 4.2.1.
    """
    return Bound(problem.interval, torch.zeros_like(problem.interval))


def _crown_ibp(problem: BoundProblem) -> Bound:
    """Bound the maximum over the set of sign * logit(x_cf) by the plane's maximum, or IBP's if smaller.

    It errs upwards: the plane lies above the logit everywhere in the set. ``x`` is not used, so the proof is
    unconditional.

    NOTE[paper]: Theorem 4.1 has CROWN-IBP never above IBP. That is false in general (the chord of a wide
    interval loses more than the interval does), hence the minimum.
    """
    param_set = problem.param_set
    worst = torch.minimum(problem.plane.upper(param_set.row_radii, param_set.norm), problem.interval)
    return Bound(worst, torch.zeros_like(worst))


def _simul_crown(problem: BoundProblem) -> Bound:
    """Bound the maximum of sign * logit(x_cf) over the set's models with sign * logit(x) >= 0.

    The paper's Equation 3. With μ·θ + ν an upper plane of sign * logit(x_cf) and α·θ + β one of sign *
    logit(x), every model in the set that keeps x's decision satisfies α·θ + β >= 0, so

        max μ·θ + ν  subject to  α·θ + β >= 0

    over the set, which ``dual.maximum`` solves, bounds the counterfactual's logit. It errs upwards: both
    planes lie above their logits, so the constraint only admits more models. Conditional where the multiplier
    is above 0. Never above CROWN-IBP, and equal to it where the worst model of the plane keeps x's decision:
    there the constraint does not bind, and its plane is not built.

    NOTE[paper]: Algorithm 2 sorts all parameters for each row; the dual needs a search in one variable and
    works for every norm. ``dual.greedy_maximum`` is Algorithm 2 itself, and the tests compare them.
    """
    if problem.steps is not None:  # vmap allows no data-dependent control flow
        return _constrained(problem, problem.constraint())
    binds = ~keeps_decision(problem.param_set, problem.plane, problem.x, problem.sign)
    if binds.dim() > 1:  # rows of several models: all or none
        return _constrained(problem, problem.constraint()) if bool(binds.any()) else _crown_ibp(problem)
    crown, rows = _crown_ibp(problem), binds.nonzero().squeeze(-1)
    if len(rows) == 0:
        return crown
    part = problem.select(rows)
    found = _constrained(part, part.constraint())
    return Bound(*(whole.index_copy(0, rows, some) for whole, some in zip(crown, found, strict=True)))


def _constrained(problem: BoundProblem, constraint: Affine) -> Bound:
    """Return the smaller of the planes' constrained maximum and IBP's bound.

    Where the latter is as good, the proof does not need the constraint.
    """
    radii, norm = problem.param_set.row_radii, problem.param_set.norm
    found = dual.maximum(
        problem.plane, constraint, radii, norm, steps=problem.steps, sign_only=problem.sign_only
    )
    multiplier = torch.where(problem.interval <= found.value, 0.0, found.multiplier)
    return Bound(torch.minimum(found.value, problem.interval), multiplier)


ibp = register(BoundMethod("ibp", 1, conditional=False, function=_ibp))
crown_ibp = register(BoundMethod("crown-ibp", 2, conditional=False, function=_crown_ibp))
simul_crown = register(BoundMethod("simul-crown", 3, conditional=True, function=_simul_crown))

UNCONDITIONAL: tuple[str, ...] = tuple(name for name, entry in BOUNDS.items() if not entry.conditional)
"""Bounds whose proofs hold even if the decision on ``x`` changes."""
