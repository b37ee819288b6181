"""Simul-CROWN: bound the counterfactual's logit over the models that still decide x as today.

The paper's Equation 3. With μ·θ + ν an upper plane of sign * logit(x_cf) and α·θ + β one of
sign * logit(x), every model in the set that keeps x's decision satisfies α·θ + β >= 0, so

    max μ·θ + ν  subject to  α·θ + β >= 0

over the set bounds the counterfactual's logit. ``dual.maximum`` solves it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veritracer.bounds import dual
from veritracer.bounds.affine import Affine
from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import Bound, ibp_upper, trace
from veritracer.bounds.intervals import Box
from veritracer.bounds.worst_model import keeps_decision
from veritracer.param_sets import ParamSet


def simul_crown(
    param_set: ParamSet, x: Tensor, x_cf: Tensor | Box, sign: Tensor, *, steps: int | None = None
) -> Bound:
    """Upper bound of max sign * logit(x_cf) over the set's models with sign * logit(x) >= 0.

    It errs upwards: both planes lie above their logits, so the constraint only admits more models.
    Conditional where the multiplier is above 0. Never above CROWN-IBP. ``steps`` is that of
    ``dual.maximum``.

    NOTE[paper]: Algorithm 2 sorts all parameters for each row; the dual needs a search in one variable
    and works for every norm. ``greedy.maximum`` is Algorithm 2 itself, and the tests compare them.
    """
    ranges = trace(param_set, x_cf)
    objective = upper_plane(param_set, ranges, sign)
    interval = ibp_upper(param_set, ranges, sign)
    if steps is None and bool(keeps_decision(param_set, objective, x, sign).all()):
        plain = objective.upper(param_set.row_radii, param_set.norm)
        return Bound(torch.minimum(plain, interval), torch.zeros_like(plain))
    constraint = upper_plane(param_set, trace(param_set, x), sign)
    return constrained(param_set, objective, constraint, interval, steps=steps)


def constrained(
    param_set: ParamSet,
    objective: Affine,
    constraint: Affine,
    interval: Tensor,
    *,
    steps: int | None = None,
    decide: bool = False,
) -> Bound:
    """The smaller of the planes' constrained maximum and IBP's bound ``interval``.

    Where the latter is as good, the proof does not need the constraint.
    """
    found = dual.maximum(
        objective, constraint, param_set.row_radii, param_set.norm, steps=steps, decide=decide
    )
    multiplier = torch.where(interval <= found.value, 0.0, found.multiplier)
    return Bound(torch.minimum(found.value, interval), multiplier)
