"""Bounds of a counterfactual's logit over a set of models.

Each method is one pure, differentiable function ``(param_set, x, x_cf, sign) -> Bound``; ``BOUNDS`` has
them from the cheapest to the tightest. ``attack`` searches the same set from the other side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from veritracer.bounds.crown_ibp import crown_ibp
from veritracer.bounds.ibp import Bound, ibp
from veritracer.bounds.intervals import Box
from veritracer.bounds.simul_crown import simul_crown

Method = Literal["ibp", "crown-ibp", "simul-crown"]

BOUNDS: dict[Method, Callable[..., Bound]] = {"ibp": ibp, "crown-ibp": crown_ibp, "simul-crown": simul_crown}

__all__ = ["BOUNDS", "Bound", "Box", "Method", "crown_ibp", "ibp", "simul_crown"]
