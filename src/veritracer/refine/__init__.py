"""The closest certified counterfactual: from any start to one that is near, sparse, legal and proved."""

from __future__ import annotations

from veritracer.refine.exhaustive import countable, exhaustive
from veritracer.refine.polish import Accepted, take_back
from veritracer.refine.problem import CoveredRegion, Problem
from veritracer.refine.search import Found, assess, refine
from veritracer.refine.selection import alternatives, at_most
from veritracer.refine.solve import Start, nearer_the_data, solve, towards

__all__ = [
    "Accepted",
    "CoveredRegion",
    "Found",
    "Problem",
    "Start",
    "alternatives",
    "assess",
    "at_most",
    "countable",
    "exhaustive",
    "nearer_the_data",
    "refine",
    "solve",
    "take_back",
    "towards",
]
