"""Write docs/reference/paper-results.md from the stored summaries of the paper's recipe.

``python docs/write_paper.py``; tests/bench/test_agreement.py compares.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from veritracer_bench import agreement, assumption
from veritracer_bench.reproduction import ABLATION, METHODS, Summary

PAGE = Path(__file__).with_name("reference") / "paper-results.md"
STORED = Path(__file__).parents[1] / "benchmarks/results/paper"
NOTES = STORED / "notes.md"
"""Sections about the comparison that are not derived from the numbers: causes of differences."""

DATASETS = ("heloc", "taiwan_credit", "oula", "ctg", "who")
EXPERIMENTS = {"ri": DATASETS, "loo": DATASETS[:3]}
"""The experiments of the paper, and their datasets."""

HEAD = """\
# Results of the paper's recipe

Written by `python docs/write_paper.py` from `benchmarks/results/paper`; a test compares the two. The
[recipe](../explanation/paper-recipe.md) trains and measures as the paper's code does. This page compares its
results with that code, run again, and with the paper. The results of the library's own settings are in
[RESULTS.md](../RESULTS.md).

```console
$ veritracer bench --recipe paper --datasets {datasets} \\
    --methods {methods} \\
    --tables {experiments} --workers 1 --out out/paper
$ python -m benchmarks.paper --runs out/paper
$ python docs/write_paper.py
```

The second command replaces the stored numbers of the models in the folder and keeps all others, so that the
parts of a long run can be made one after another.

## How numbers are compared

- A number is the mean over models, its standard deviation in parentheses, and how many models there are. RI
  and LOO are means over ordered pairs of models, as in the paper; *by model* has the deviation over models.
- The reference is the authors' code, run again with the authors' settings and test rows. Models of each
  method: {authors}. Where there is no such run the reference is the paper, with ten models.
- **Rates** (accuracy, δ-robustness, RI or LOO as the code computes it, DS) agree if the difference is at most
  2·√(s²/n + s_ours²/n_ours) + 0.01. **Proximity and DDM** agree within 15 %, **sparsity** within 0.05, for
  VeriTraCER and CounterNet. Other numbers are listed and not counted.
- δ-robustness is the share of valid counterfactuals that Simul-CROWN certifies at the recipe's κ, with any
  method of training. The paper's number for VeriTraCER is that of its ablation.
"""


ASSUMPTION = """\
## What the paper assumes

A certificate covers the models of a box around today's parameters. Later models: other seeds (RI), other rows
left out (LOO), fine-tuned on later rows (DS), or retrained from scratch with another setting. Displacement is
the mean distance of each tensor from today's in radii of the box, and a model is inside if none is above 1.
A counterfactual survives if the later model gives it the decision of today's model. The condition of
Simul-CROWN binds if the proof needs it, and adds what neither CROWN-IBP nor IBP certifies.
"""


def order(summary: Summary) -> tuple[int, ...]:
    """Sort by dataset, experiment and method, as the paper does."""
    known = DATASETS, list(EXPERIMENTS), list(METHODS)
    names = summary.dataset, summary.experiment, summary.method
    return tuple(place.index(name) for place, name in zip(known, names, strict=True))


def head(ours: Sequence[Summary], authors: Iterable[Summary]) -> str:
    """Return the introduction, with the names that there are results of."""
    counts: dict[str, set[int]] = {}
    for summary in sorted(authors, key=order):
        counts.setdefault(summary.dataset, set()).add(summary.models)
    again = (f"{name} {' or '.join(map(str, sorted(each)))}" for name, each in counts.items())
    names = {"datasets": "dataset", "methods": "method", "experiments": "experiment"}
    present = {key: ",".join(dict.fromkeys(getattr(s, name) for s in ours)) for key, name in names.items()}
    return HEAD.format(**present, authors=", ".join(again))


def run_lines(ours: Sequence[Summary], conditions: dict[str, Any]) -> list[str]:
    """Return a table of what was run, and a sentence about what the paper has and this page does not."""
    lines = ["| dataset | experiment | models of each method | trained with commit |", "|---|---|---|---|"]
    for dataset, experiment in dict.fromkeys((s.dataset, s.experiment) for s in ours):
        same = [s for s in ours if (s.dataset, s.experiment) == (dataset, experiment)]
        methods = ", ".join(f"{s.method} {s.models}" for s in same)
        trained = (conditions[".".join((experiment, dataset, s.method))]["trained"] for s in same)
        commits = ", ".join(dict.fromkeys(commit or "not recorded" for commit in trained))
        lines.append(f"| {dataset} | {experiment} | {methods} | {commits} |")
    there = {s[:3] for s in ours}
    missing = [
        f"{dataset} {experiment} ({', '.join(left)})"
        for experiment, datasets in EXPERIMENTS.items()
        for dataset in datasets
        if (left := [m for m in methods_of(experiment, dataset) if (experiment, dataset, m) not in there])
    ]
    if missing:
        lines += ["", "Not run:", "", *(f"- {each}" for each in missing)]
    made = {json.dumps(conditions[".".join(s[:3])]["summarised"], sort_keys=True) for s in ours}
    described = [", ".join(f"{n} {v}" for n, v in json.loads(each).items()) for each in sorted(made)]
    return [*lines, "", *(f"Summarised with {each}." for each in described)]


def methods_of(experiment: str, dataset: str) -> tuple[str, ...]:
    """Return the methods that the paper trains; the ablation is on three datasets and other seeds alone."""
    ablation = ("crown-ibp", "ibp") if experiment == "ri" and dataset in EXPERIMENTS["loo"] else ()
    return ("veritracer", *ablation, "counternet")


def ablation_lines(ours: Iterable[Summary]) -> list[str]:
    """Return the table of the paper's ablation; the paper's numbers are in brackets."""
    columns = ("δ-robust", agreement.ACROSS[0], "accuracy", "proximity", "sparsity", "DDM")
    rows = [
        s for s in ours if s.experiment == "ri" and s.method in ABLATION and s.dataset in EXPERIMENTS["loo"]
    ]
    lines = ["| dataset | bound in training | " + " | ".join(columns) + " |", "|---" * 8 + "|"]
    for summary in rows:
        numbers = [agreement.ablation_text(summary, column) for column in columns]
        lines.append(f"| {summary.dataset} | {summary.method} | " + " | ".join(numbers) + " |")
    return [line.replace("RI or LOO", "RI") for line in lines]


def constraint_line(models: Sequence[dict[str, str]]) -> str:
    """Say how often the constraint of Simul-CROWN binds, from the table of models."""
    shares = [float(line["conditional"]) for line in models if line["conditional"]]
    binding = sum(share > 0 for share in shares)
    most = f", for at most {max(shares):.2%} of the rows of one model" if binding else ""
    return (
        "The constraint of Simul-CROWN binds for a counterfactual of "
        f"{binding} of {len(shares)} models{most}; all "
        "other certificates are those of CROWN-IBP and IBP (column `conditional` of "
        "`benchmarks/results/paper/models.csv`)."
    )


def text() -> str:
    """Return the text of the page."""
    ours = sorted(agreement.read_summaries(STORED / "ours.csv"), key=order)
    authors = agreement.read_summaries(STORED / "authors.csv")
    found = agreement.comparisons(ours, authors)
    conditions = json.loads((STORED / "ours.conditions.json").read_text(encoding="utf-8"))
    with (STORED / "models.csv").open(encoding="utf-8", newline="") as file:
        models = list(csv.DictReader(file))
    lines = [head(ours, authors), "## What was run", "", *run_lines(ours, conditions), ""]
    lines += ["## Agreement", "", *agreement.counted_lines(found), "", constraint_line(models), ""]
    lines += [NOTES.read_text(encoding="utf-8").rstrip(), ""]
    lines += ["## Bounds in training", "", *ablation_lines(ours), ""]
    if (path := STORED / "assumption.csv").exists():
        rows = sorted(assumption.read_rows(path), key=lambda row: (row.dataset, row.experiment, row.method))
        lines += [ASSUMPTION, *assumption.table(rows), ""]
    lines += ["## All numbers", "", *agreement.sections(found)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
