"""Recourse that a person can act on: for any supported model, the closest certified counterfactual."""

from __future__ import annotations

from veritracer.recourse.counterfactuals import Counterfactuals
from veritracer.recourse.facade import Recourse
from veritracer.recourse.neighbours import Neighbours
from veritracer.recourse.reason_codes import Reason, ReasonCodes

__all__ = ["Counterfactuals", "Neighbours", "Reason", "ReasonCodes", "Recourse"]
