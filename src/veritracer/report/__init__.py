"""Pictures and reports, drawn from what the library itself computes."""

from __future__ import annotations

from veritracer.report.retraining_comparison import RetrainingComparison, Survival

__all__ = ["RetrainingComparison", "Survival"]
