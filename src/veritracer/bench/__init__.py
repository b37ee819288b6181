"""The paper's evaluation: what is measured, how it is run, and the tables that come of it.

``Run(plan, out).go(workers)`` measures what is missing; ``write_all(out, run.cells(), plan.tables)`` writes
tables, the page and pictures.
"""

from __future__ import annotations

from veritracer.bench.cells import Cell, Key, read_results
from veritracer.bench.methods import METHODS, Method
from veritracer.bench.page import page
from veritracer.bench.plan import TABLES, Plan, quick, smoke
from veritracer.bench.running import Run, Standing
from veritracer.bench.tables import Results, Table, markdown
from veritracer.bench.writing import write_all

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
    "markdown",
    "page",
    "quick",
    "read_results",
    "smoke",
    "write_all",
]
