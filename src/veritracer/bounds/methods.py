"""The bounds by name: one registry, which training, ``certify`` and the ledger read.

A bound is a function of a ``BoundProblem`` that gives an upper bound for each row. What is registered can
be asked for by its name wherever a method is chosen, and is named in the certificates that it proves;
a name that is not registered is refused. ``docs/architecture.md`` says how to add one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from veritracer.bounds import dual
from veritracer.bounds.affine import Affine, keeps_decision
from veritracer.bounds.ibp import Bound, Box
from veritracer.bounds.problem import BoundProblem
from veritracer.errors import NotSupportedError, message, unknown_name
from veritracer.models.param_sets import ParamSet

Method = Literal["ibp", "crown-ibp", "simul-crown"]
"""The names that come with the library, from the cheapest bound to the tightest."""

LAST_CODE = 255
"""Codes are stored in one byte; 0 stands for no method at all."""


@dataclass(frozen=True)
class BoundMethod:
    """An upper bound of the counterfactual's logit over a set of models.

    Attributes
    ----------
    name
        What certificates call it.
    code
        What ledgers store for it: from 1 to 255, never another one and never given to another bound.
    conditional
        Whether its proofs may use that ``x`` keeps its decision. They do where the multiplier is above 0.
    function
        From a problem to its bound, which must lie above the logit of every model that is spoken of, with
        the problem's slack in it.
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
        """The bound in exact arithmetic, differentiable; ``steps`` is that of ``dual.maximum``."""
        return self.function(BoundProblem(param_set, x, x_cf, sign, steps=steps))

    def bound(self, asked: BoundProblem) -> Bound:
        """The bound as a proof: refused where it is conditional and registered as not."""
        found = self.function(asked)
        if not self.conditional and bool((found.multiplier != 0).any()):
            remedy = "register it as conditional"
            received = "multipliers other than 0"
            raise NotSupportedError(message(f"an unconditional bound from {self.name!r}", received, remedy))
        return found


BOUNDS: dict[str, BoundMethod] = {}
"""Every bound by its name, from the cheapest to the tightest; ``register`` adds to it."""


def register(entry: BoundMethod) -> BoundMethod:
    """Add a bound, after those that are there; a name and a code are given once."""
    codes = {known.code for known in BOUNDS.values()}
    if entry.name in BOUNDS or entry.code in codes or not 0 < entry.code <= LAST_CODE:
        expected = (
            f"a name other than {list(BOUNDS)} and a code from 1 to {LAST_CODE} other than {sorted(codes)}"
        )
        received = f"{entry.name!r} with code {entry.code}"
        raise NotSupportedError(message(expected, received, "choose others"))
    BOUNDS[entry.name] = entry
    return entry


def method_named(name: str) -> BoundMethod:
    """The registered bound of that name, or an error."""
    if name not in BOUNDS:
        raise NotSupportedError(unknown_name(f"methods among {list(BOUNDS)}", name, BOUNDS))
    return BOUNDS[name]


def methods_named(names: Sequence[str]) -> list[BoundMethod]:
    """The registered bounds of those names, at least one."""
    if not names:
        remedy = "choose one or more of these"
        raise NotSupportedError(message(f"methods among {list(BOUNDS)}", "none", remedy))
    return [method_named(name) for name in names]


def names_by_code() -> tuple[str, ...]:
    """The name of each code, counted from 0, which no bound has; empty where there is none."""
    names = {entry.code: entry.name for entry in BOUNDS.values()}
    return tuple(names.get(code, "") for code in range(max(names) + 1))


def _ibp(asked: BoundProblem) -> Bound:
    """Upper bound of max over the set of sign * logit(x_cf), by intervals.

    It errs upwards: each range is computed as if all others could be at their worst at once. ``x`` is
    not used, so the proof is unconditional. Exact for boxes and one hidden layer, where every entry
    of the parameters appears once. The paper's section 4.2.1.
    """
    return Bound(asked.interval, torch.zeros_like(asked.interval))


def _crown_ibp(asked: BoundProblem) -> Bound:
    """Upper bound of max over the set of sign * logit(x_cf): the plane's maximum, or IBP's if smaller.

    It errs upwards: the plane lies above the logit everywhere in the set. ``x`` is not used, so the
    proof is unconditional.

    NOTE[paper]: Theorem 4.1 has CROWN-IBP never above IBP. That is false in general (the chord of a
    wide interval loses more than the interval does), hence the minimum.
    """
    param_set = asked.param_set
    worst = torch.minimum(asked.plane.upper(param_set.row_radii, param_set.norm), asked.interval)
    return Bound(worst, torch.zeros_like(worst))


def _simul_crown(asked: BoundProblem) -> Bound:
    """Upper bound of max sign * logit(x_cf) over the set's models with sign * logit(x) >= 0.

    The paper's Equation 3. With μ·θ + ν an upper plane of sign * logit(x_cf) and α·θ + β one of
    sign * logit(x), every model in the set that keeps x's decision satisfies α·θ + β >= 0, so

        max μ·θ + ν  subject to  α·θ + β >= 0

    over the set, which ``dual.maximum`` solves, bounds the counterfactual's logit. It errs upwards: both
    planes lie above their logits, so the constraint only admits more models. Conditional where the
    multiplier is above 0. Never above CROWN-IBP, and equal to it where the worst model of the plane keeps
    x's decision: there the constraint does not bind, and its plane is not built.

    NOTE[paper]: Algorithm 2 sorts all parameters for each row; the dual needs a search in one variable
    and works for every norm. ``dual.greedy_maximum`` is Algorithm 2 itself, and the tests compare them.
    """
    if asked.steps is not None:  # under vmap nothing may depend on the data
        return _constrained(asked, asked.constraint())
    binds = ~keeps_decision(asked.param_set, asked.plane, asked.x, asked.sign)
    if binds.dim() > 1:  # rows of several models: all or none
        return _constrained(asked, asked.constraint()) if bool(binds.any()) else _crown_ibp(asked)
    crown, rows = _crown_ibp(asked), binds.nonzero().squeeze(-1)
    if len(rows) == 0:
        return crown
    part = asked.select(rows)
    found = _constrained(part, part.constraint())
    return Bound(*(whole.index_copy(0, rows, some) for whole, some in zip(crown, found, strict=True)))


def _constrained(asked: BoundProblem, constraint: Affine) -> Bound:
    """The smaller of the planes' constrained maximum and IBP's bound.

    Where the latter is as good, the proof does not need the constraint.
    """
    radii, norm = asked.param_set.row_radii, asked.param_set.norm
    found = dual.maximum(asked.plane, constraint, radii, norm, steps=asked.steps, decide=asked.decide)
    multiplier = torch.where(asked.interval <= found.value, 0.0, found.multiplier)
    return Bound(torch.minimum(found.value, asked.interval), multiplier)


ibp = register(BoundMethod("ibp", 1, conditional=False, function=_ibp))
crown_ibp = register(BoundMethod("crown-ibp", 2, conditional=False, function=_crown_ibp))
simul_crown = register(BoundMethod("simul-crown", 3, conditional=True, function=_simul_crown))

UNCONDITIONAL: tuple[str, ...] = tuple(name for name, entry in BOUNDS.items() if not entry.conditional)
"""The bounds whose proofs hold whatever becomes of the decision on ``x``."""
