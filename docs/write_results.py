"""Write docs/RESULTS.md and its appendix from the stored tables of full runs.

``python docs/write_results.py``; tests/bench/test_results.py compares.
"""

from __future__ import annotations

from pathlib import Path

from veritracer_bench import page, truth_tables, unseen_tables
from veritracer_bench.results import read_results

PAGE = Path(__file__).with_name("RESULTS.md")
APPENDIX = Path(__file__).parent / "reference" / "results-appendix.md"
STORED = Path(__file__).parents[1] / "benchmarks/results/bench"
TRUTH = STORED.with_name("truth")
"""Where ``python -m benchmarks.truth --table`` writes."""

UNSEEN = STORED.with_name("unseen")
"""Where ``python -m benchmarks.unseen`` writes."""

PICTURE = f"../benchmarks/results/{TRUTH.name}/frontier.png"

HEAD = """\
All numbers are generated from the stored tables in `benchmarks/results` by `python
docs/write_results.py`, and a test compares them. To cite them, cite the repository
([CITATION.cff](../CITATION.cff)) with its commit. Every table, setting and condition is in the
[appendix](reference/results-appendix.md).

Two runs are reported: one of the library's default settings against independent models, and one of the
paper's evaluation with *Algorithm 1 alone* (`panel=None`), which is the paper's method with this
library's generator and search. The paper's own settings are a [recipe](explanation/paper-recipe.md), and
its results stand beside the paper's in [paper-results.md](reference/paper-results.md).
"""

APPENDIX_HEAD = """\
The full tables behind [the results](../RESULTS.md), written by `python docs/write_results.py`.

To run the paper's evaluation again: `veritracer bench --rows 1000 --out out/bench`, with the datasets'
files in `VERITRACER_DATA`; then copy the tables in `out/bench/results` to `benchmarks/results/bench`. A
stopped run continues where it was. For independent models: `python -m benchmarks.truth`, then the same
with `--table`.

Pictures: [robustness against distance](../../benchmarks/results/bench/pareto.png), boxes over seeds for
[another seed](../../benchmarks/results/bench/boxes_ri_keeps.png) and
[distance](../../benchmarks/results/bench/boxes_ri_proximity.png), and the [tightness of the three
bounds](../../benchmarks/results/tightness.png). `veritracer bench figures` draws Figures 1 and 2 of the
paper.
"""


def text() -> str:
    """Return the text of the page."""
    truth = truth_tables.summary(read_results(TRUTH), PICTURE)
    truth += "\n" + unseen_tables.section(read_results(UNSEEN), f"../benchmarks/results/{UNSEEN.name}")
    return page.page(read_results(STORED), head=HEAD, truth=truth)


def appendix() -> str:
    """Return the text of the appendix."""
    truth = truth_tables.page(read_results(TRUTH))
    return page.appendix(read_results(STORED), head=APPENDIX_HEAD, truth=truth)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
    APPENDIX.write_text(appendix(), encoding="utf-8")
