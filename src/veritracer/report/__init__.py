"""Pictures and reports, drawn from what the library itself computes."""

from __future__ import annotations

from veritracer.report.story import Story, Survival

__all__ = ["Story", "Survival"]
