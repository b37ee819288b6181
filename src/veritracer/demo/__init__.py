"""A year in the life of promises: train, explain, let time pass, retrain, and count which of them hold.

``run`` answers with a ``Demo``: numbers, a model and a comparison, and nothing that is printed.
"""

from __future__ import annotations

from veritracer.demo.experiment import Demo, run
from veritracer.demo.methods import DriftScenario, Outcome, drift_scenario

__all__ = ["Demo", "DriftScenario", "Outcome", "drift_scenario", "run"]
