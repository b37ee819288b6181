"""The closest certified counterfactual: from any start to one that is near, sparse, legal and proved."""

from __future__ import annotations

from veritracer.search.linearised import Solutions
from veritracer.search.problem import SearchProblem

__all__ = ["SearchProblem", "Solutions"]
