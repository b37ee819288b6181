"""Recourse that a person can act on: for any supported model, a certified counterfactual that is near."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = ["Counterfactuals", "Reason", "ReasonCodes", "Recourse", "recourse_of"]

if TYPE_CHECKING:
    from veritracer.recourse.counterfactuals import Counterfactuals
    from veritracer.recourse.facade import Recourse, recourse_of
    from veritracer.recourse.reasons import Reason, ReasonCodes
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "counterfactuals": ["Counterfactuals"],
            "facade": ["Recourse", "recourse_of"],
            "reasons": ["Reason", "ReasonCodes"],
        },
    )
