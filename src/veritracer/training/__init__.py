"""Joint training of classifier and generator, and the panel that keeps a classifier honest."""

from __future__ import annotations

from veritracer.training.panel import Panel

__all__ = ["Panel"]
