"""The paper's evaluation and the measurement of truth: what is measured, how it is run, and its tables.

``Run(plan, out).go(engine)`` measures what is missing; ``write_all(out, run.cells(), plan.tables)`` writes
tables, the page and pictures. ``baselines`` has other methods, ``shifts`` the ways in which a later model
differs. In ``veritracer`` only the command ``bench`` imports this package. Its pictures need the
extra ``bench``.
"""

from __future__ import annotations

from veritracer_bench.methods import METHODS, Method
from veritracer_bench.page import can_draw, page, write_all
from veritracer_bench.plan import TABLES, Plan, quick, smoke
from veritracer_bench.results import Cell, Key, read_results
from veritracer_bench.running import Run, Standing
from veritracer_bench.tables import Results, Table, markdown

__all__ = [
    "METHODS",
    "TABLES",
    "Cell",
    "Key",
    "Method",
    "Plan",
    "Results",
    "Run",
    "Standing",
    "Table",
    "can_draw",
    "markdown",
    "page",
    "quick",
    "read_results",
    "smoke",
    "write_all",
]
