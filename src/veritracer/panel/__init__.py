"""Independent opinions that a classifier and its counterfactuals are held to."""

from __future__ import annotations

from veritracer.panel.members import BoostedTrees, Networks, Ranks
from veritracer.panel.panel import Member, Panel

__all__ = ["BoostedTrees", "Member", "Networks", "Panel", "Ranks"]
