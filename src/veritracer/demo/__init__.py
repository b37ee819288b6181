"""A year in the life of promises: train, explain, let time pass, retrain, and count which of them hold.

``run`` answers with a ``Demo``: numbers, a model and a story, and nothing that is printed.
"""

from __future__ import annotations

from veritracer.demo.methods import Outcome
from veritracer.demo.telling import Demo, run
from veritracer.demo.years import Years, years

__all__ = ["Demo", "Outcome", "Years", "run", "years"]
