"""Model families: networks as pure functions of their parameters, and sets of models around them."""

from __future__ import annotations

from veritracer.models.intersection import Intersection
from veritracer.models.network import Network, from_module, to_module
from veritracer.models.param_sets import ParamSet, RadiusRule, register_rule

__all__ = [
    "Intersection",
    "Network",
    "ParamSet",
    "RadiusRule",
    "from_module",
    "register_rule",
    "to_module",
]
