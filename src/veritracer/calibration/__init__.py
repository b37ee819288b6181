"""Choosing kappa: how far models really move when they are updated, and what it costs to cover that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.lazy import attach

__all__ = ["Calibration", "Displacement", "calibrate", "measure"]

if TYPE_CHECKING:
    from veritracer.calibration.calibrating import Calibration, calibrate
    from veritracer.calibration.displacement import Displacement, measure
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "calibrating": ["Calibration", "calibrate"],
            "displacement": ["Displacement", "measure"],
        },
    )
