"""Bounds of a counterfactual's logit over a set of models.

Each method is one pure, differentiable function ``(param_set, x, x_cf, sign) -> Bound``; ``BOUNDS`` holds
them from the cheapest to the tightest, and ``register`` adds one. ``attack`` searches the same set for a
counterexample.
"""

from __future__ import annotations

from veritracer.bounds.attack import Counterexample
from veritracer.bounds.ibp import Bound, Box
from veritracer.bounds.methods import (
    BOUNDS,
    UNCONDITIONAL,
    BoundMethod,
    BoundProblem,
    Method,
    crown_ibp,
    ibp,
    method_named,
    methods_named,
    names_by_code,
    register,
    simul_crown,
)

__all__ = [
    "BOUNDS",
    "UNCONDITIONAL",
    "Bound",
    "BoundMethod",
    "BoundProblem",
    "Box",
    "Counterexample",
    "Method",
    "crown_ibp",
    "ibp",
    "method_named",
    "methods_named",
    "names_by_code",
    "register",
    "simul_crown",
]
