"""Choosing kappa: how far models really move when they are updated, and what it costs to cover that."""

from __future__ import annotations

from veritracer.calibration.calibrated import Calibration
from veritracer.calibration.calibrating import calibrate
from veritracer.calibration.moves import Move, measure

__all__ = ["Calibration", "Move", "calibrate", "measure"]
