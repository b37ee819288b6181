"""Agreement of the paper's recipe with the authors' code and with the paper, cell by cell.

A cell is one number of one method on one dataset, as a mean over models or over ordered pairs of models. Its
reference is the authors' code, run again, where there is such a run; otherwise the paper. Rates agree if
|ours - theirs| <= 2 sqrt(s^2 / n + s_ours^2 / n_ours) + 0.01, with the standard deviations s and n models,
for pairs too; where the reference has no deviation, ours is used. Distances agree within 15 %, sparsity
within 0.05. Cells without a reference, and columns that are none of these, are listed and not counted.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from veritracer.files import write_whole
from veritracer_bench.reproduction import ABLATION, ACROSS, BY_MODEL, IN_ABLATION, Summary, printed_of
from veritracer_bench.results import PAPER, settled

DISTANCES, DISTANCE_SHARE = ("proximity", "DDM"), 0.15
SPARSITY, SPARSITY_WIDTH = "sparsity", 0.05
RATES, RATE_WIDTH = ("accuracy", "δ-robust", ACROSS[0], "DS"), 0.01
OF_MAIN_METHODS = (*DISTANCES, SPARSITY)
MAIN_METHODS = ("veritracer", "counternet")
"""The methods whose distances and sparsity count."""

COLUMNS = (
    *("accuracy", "valid", "δ-robust", *ACROSS, *BY_MODEL),
    *("DS", "accuracy after", "proximity", "sparsity", "DDM"),
)
"""All columns, in the order of the page."""

FIELDS = ("experiment", "dataset", "method", "models", "column", "mean", "spread", "count")
"""Columns of the file of summaries; ``count`` is that of the models or of the pairs behind a mean."""

PAPER_MODELS = 10
"""Models behind each number of the paper."""


class Number(NamedTuple):
    """A mean, its standard deviation where it is known, and the number of models behind it."""

    mean: float
    spread: float | None
    models: int


class Comparison(NamedTuple):
    """One cell: ours, the authors' code, the paper, and whether it agrees; None where it does not count.

    ``allowed`` is the largest difference that agrees.
    """

    experiment: str
    dataset: str
    method: str
    column: str
    ours: Number
    authors: Number | None
    paper: Number | None
    allowed: float | None
    agrees: bool | None

    @property
    def difference(self) -> float | None:
        """Ours less the reference."""
        reference = self.authors or self.paper
        return None if reference is None else self.ours.mean - reference.mean


def allowed_difference(column: str, ours: Number, reference: Number) -> float:
    """Return the largest difference with which two numbers of a column agree."""
    if column in DISTANCES:
        return DISTANCE_SHARE * reference.mean
    if column == SPARSITY:
        return SPARSITY_WIDTH
    own = ours.spread or 0.0
    theirs = own if reference.spread is None else reference.spread
    return 2 * math.sqrt(theirs**2 / reference.models + own**2 / ours.models) + RATE_WIDTH


def comparisons(ours: Iterable[Summary], authors: Iterable[Summary]) -> list[Comparison]:
    """Compare every number of our runs that the authors' code or the paper has."""
    theirs = {each[:3]: each for each in authors}
    return [
        _compared(summary, column, theirs.get(summary[:3]))
        for summary in ours
        for column in COLUMNS
        if column in summary.numbers and (summary.experiment == "ri" or column in (*ACROSS, *BY_MODEL))
    ]


def _compared(summary: Summary, column: str, theirs: Summary | None) -> Comparison:
    ours = _number(summary, column)
    authors = None if theirs is None or column not in theirs.numbers else _number(theirs, column)
    paper = _printed(summary, column)
    reference = authors or paper
    counted = column in RATES or (column in OF_MAIN_METHODS and summary.method in MAIN_METHODS)
    allowed = agrees = None
    if reference is not None and counted:
        allowed = allowed_difference(column, ours, reference)
        agrees = settled(abs(ours.mean - reference.mean)) <= settled(allowed)
    return Comparison(*summary[:3], column, ours, authors, paper, allowed, agrees)


def _number(summary: Summary, column: str) -> Number:
    mean, spread, _ = summary.numbers[column]
    return Number(mean, spread, summary.models)


def _printed(summary: Summary, column: str) -> Number | None:
    """Return the paper's number; VeriTraCER's rate of certified ones is that of the ablation."""
    printed = summary.paper.get(column)
    if column == "δ-robust" and summary.method in ABLATION:
        printed = PAPER.get(("ablation certified", summary.dataset, ABLATION[summary.method]), printed)
    return None if printed is None else Number(printed.mean, printed.spread, PAPER_MODELS)


# ---------------------------------------------------------------- files


def write_summaries(path: Path, found: Sequence[Summary]) -> None:
    """Write summaries as a table with a line for each number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    for each in found:
        for column, (mean, spread, count) in each.numbers.items():
            writer.writerow([*each[:4], column, f"{mean:.6g}", f"{spread:.6g}", count])
    write_whole(path, text.getvalue(), shared=True)


def read_summaries(path: Path) -> list[Summary]:
    """Read the summaries of a table, with the paper's numbers beside them."""
    found: dict[tuple[str, str, str], Summary] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = row["experiment"], row["dataset"], row["method"]
            summary = found.setdefault(key, Summary(*key, int(row["models"]), {}, printed_of(*key)))
            summary.numbers[row["column"]] = float(row["mean"]), float(row["spread"]), int(row["count"])
    return list(found.values())


def merged(stored: Iterable[Summary], found: Iterable[Summary]) -> list[Summary]:
    """Return the stored summaries with the found ones in place of those of the same models, sorted."""
    return sorted({each[:3]: each for each in (*stored, *found)}.values(), key=lambda each: each[:3])


# ---------------------------------------------------------------- the page


def counted_lines(found: Sequence[Comparison]) -> list[str]:
    """Return a table of how many cells agree, by dataset and experiment."""
    lines = ["| dataset | experiment | cells that count | agree | outside |", "|---|---|---|---|---|"]
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for each in found:
        if each.agrees is not None:
            groups.setdefault((each.dataset, each.experiment), []).append(each)
    for (dataset, experiment), cells in groups.items():
        outside = "; ".join(f"{c.method} {c.column.split(',')[0]}" for c in cells if not c.agrees)
        agree = sum(c.agrees is True for c in cells)
        lines.append(f"| {dataset} | {experiment} | {len(cells)} | {agree} | {outside or '–'} |")
    counted = [each for each in found if each.agrees is not None]
    agree = sum(each.agrees is True for each in counted)
    return [*lines, f"| all | | {len(counted)} | {agree} | |"]


def cell_lines(found: Sequence[Comparison]) -> list[str]:
    """Return a table of all cells of one dataset and experiment."""
    lines = [
        "| method | number | ours | authors' code again | paper | difference | allowed | agrees |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in found:
        difference = "–" if each.difference is None else f"{each.difference:+.3f}"
        allowed = "–" if each.allowed is None else f"{each.allowed:.3f}"
        verdict = "–" if each.agrees is None else "yes" if each.agrees else "**no**"
        column = each.column.replace("RI or LOO", each.experiment.upper())
        cells = [each.method, column, _text(each.ours), _text(each.authors), _text(each.paper)]
        lines.append("| " + " | ".join([*cells, difference, allowed, verdict]) + " |")
    return lines


def _text(number: Number | None) -> str:
    if number is None:
        return "–"
    spread = "" if number.spread is None else f" ({number.spread:.3f})"
    return f"{number.mean:.3f}{spread}, {number.models}"


def ablation_text(summary: Summary, column: str) -> str:
    """Return a number of a summary, with that of the paper's ablation in brackets."""
    if column not in summary.numbers:
        return "–"
    mean, spread, _ = summary.numbers[column]
    printed = PAPER.get((f"ablation {IN_ABLATION[column]}", summary.dataset, ABLATION[summary.method]))
    return f"{mean:.3f} ({spread:.3f})" + ("" if printed is None else f" [{printed.mean:g}]")


def sections(found: Sequence[Comparison]) -> list[str]:
    """Return the tables of all datasets and experiments, with headings, as lines of Markdown."""
    lines = []
    for key in dict.fromkeys((each.dataset, each.experiment) for each in found):
        cells = [each for each in found if (each.dataset, each.experiment) == key]
        lines += [f"### {HEADINGS[key[1]].format(dataset=key[0])}", "", *cell_lines(cells), ""]
    return lines


HEADINGS = {"ri": "{dataset}: other seeds", "loo": "{dataset}: one percent of the rows left out"}
