"""Choosing kappa: how far models really move when they are updated, and what it costs to cover that."""

from __future__ import annotations

from veritracer.calibration.calibrating import Calibration, calibrate
from veritracer.calibration.displacement import Displacement, measure

__all__ = ["Calibration", "Displacement", "calibrate", "measure"]
