"""Write docs/RESULTS.md from the stored tables of full runs.

``python docs/write_results.py``; tests/bench/test_results.py compares.
"""

from __future__ import annotations

from pathlib import Path

import veritracer_bench as bench
from veritracer_bench import truth_tables

PAGE = Path(__file__).with_name("RESULTS.md")
STORED = Path(__file__).parents[1] / "benchmarks/results/bench"
TRUTH = STORED.with_name("truth")
"""Where ``python -m benchmarks.truth --table`` writes; without it the page says nothing of truth."""

HEAD = """\
Written by `python docs/write_results.py` from `benchmarks/results/bench`; a test compares the two. To make
the results again: `veritracer bench --rows 1000 --out out/bench` with the datasets' files in
`VERITRACER_DATA`, then copy the tables in `out/bench/results` there. The run can be stopped and goes on where
it was. This one took 404 s of wall time on 16 cores, training included.
Pictures of the same numbers: [robustness against distance](../benchmarks/results/bench/pareto.png), boxes
over seeds for [another seed](../benchmarks/results/bench/boxes_ri_keeps.png) and
[distance](../benchmarks/results/bench/boxes_ri_proximity.png). The tightness of the three bounds is drawn in
[tightness.png](../benchmarks/results/tightness.png) (`python -m benchmarks.tightness`), the paper's Figure 1
and 2 by `veritracer bench figures`. All of this is with the library's own settings;
[paper-results.md](reference/paper-results.md) has those of the paper, beside the authors' code and the paper.
"""


def text() -> str:
    """Return the text of the page."""
    picture = f"../benchmarks/results/{TRUTH.name}/frontier.png"
    truth = truth_tables.page(bench.read_results(TRUTH), picture)
    return bench.page(bench.read_results(STORED), head=HEAD, truth=truth)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
