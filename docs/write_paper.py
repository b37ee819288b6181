"""Write docs/reference/paper-results.md from the stored summaries of the paper's recipe.

``python docs/write_paper.py``; tests/bench/test_agreement.py compares.
"""

from __future__ import annotations

import json
from pathlib import Path

from veritracer_bench import agreement

PAGE = Path(__file__).with_name("reference") / "paper-results.md"
STORED = Path(__file__).parents[1] / "benchmarks/results/paper"

HEAD = """\
# Results of the paper's recipe

Written by `python docs/write_paper.py` from `benchmarks/results/paper`; a test compares the two. The
[recipe](../explanation/paper-recipe.md) trains and measures as the paper's code does. This page compares its
results with that code, run again, and with the paper. The results of the library's own settings are in
[RESULTS.md](../RESULTS.md).

```console
$ veritracer bench --recipe paper --datasets heloc,ctg,who --methods veritracer,counternet \\
    --workers 1 --out out/paper
$ python -m benchmarks.paper --runs out/paper
$ python docs/write_paper.py
```

## How numbers are compared

- A number is the mean over models, its standard deviation in parentheses, and how many models there are. RI
  and LOO are means over ordered pairs of models.
- The reference is the authors' code, run again with the authors' settings and test rows (HELOC 4 to 6 seeds,
  CTG and WHO ten). Where there is no such run, as for LOO, it is the paper, with ten models.
- **Rates** (accuracy, δ-robustness, RI or LOO as the code computes it, DS) agree if the difference is at most
  2·√(s²/n + s_ours²/n_ours) + 0.01. **Proximity and DDM** agree within 15 %, **sparsity** within 0.05, for
  VeriTraCER and CounterNet. Other numbers are listed and not counted.
- δ-robustness is the share of valid counterfactuals that Simul-CROWN certifies at the recipe's κ, with any
  method of training. The paper's number for VeriTraCER is that of its ablation.
"""

NOTES = STORED / "notes.md"
"""Sections about the comparison that are not tables: what was not run, and causes of differences."""


def text() -> str:
    """Return the text of the page."""
    ours = agreement.read_summaries(STORED / "ours.csv")
    authors = agreement.read_summaries(STORED / "authors.csv")
    found = agreement.comparisons(ours, authors)
    where = json.loads((STORED / "ours.conditions.json").read_text(encoding="utf-8"))
    conditions = ", ".join(f"{name} {value}" for name, value in where.items())
    lines = [HEAD, "## Agreement", "", *agreement.counted_lines(found), ""]
    lines += [f"Summarised with {conditions}.", "", NOTES.read_text(encoding="utf-8").rstrip(), ""]
    lines += ["## All numbers", "", *agreement.sections(found)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
