"""The paper's tables from stored results: our mean and deviation over seeds, the paper's number beside it.

``Results`` are asked for entries; ``tables_of`` makes each of the paper's tables, and those that say what the
paper leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from veritracer_bench.methods import BY_BOUND, BY_KAPPA, BY_START, COMPARED, METHODS, TIMED
from veritracer_bench.plan import PAPER_DATASETS, THREE, TITLES
from veritracer_bench.results import PAPER, Cell, Printed, mean_of, settled


class Column(NamedTuple):
    """A column of a table; ``sign`` is 1 where more is better, -1 where less is, 0 where neither."""

    title: str
    sign: int


class Entry(NamedTuple):
    """What a table says of one method: mean and deviation over seeds, the paper's number, and what caps it.

    ``broken`` is whether the method's counterfactuals break one-hot groups.
    """

    mean: float
    spread: float
    seeds: int
    paper: Printed | None = None
    cap: float | None = None
    broken: bool = False


class Table(NamedTuple):
    """A table: a name, a sentence about it, columns, and lines of a title and its entries."""

    name: str
    title: str
    note: str
    columns: list[Column]
    lines: list[tuple[str, list[Entry | None]]]

    def best(self, column: int) -> list[bool]:
        """Which lines win a column, as printed: equal digits are a tie."""
        sign = self.columns[column].sign
        shown = [_rounded(entries[column]) for _, entries in self.lines]
        there = [value for value in shown if not math.isnan(value)]
        if sign == 0 or len(there) < 2:
            return [False] * len(shown)
        top = max(there) if sign > 0 else min(there)
        return [value == top for value in shown]


class Results:
    """Stored results, asked by experiment, dataset, method and number."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells = list(cells)
        self._by: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.key):
            self._by.setdefault(cell.key[:3], []).append(cell)

    def datasets(self, experiment: str, order: Sequence[str]) -> list[str]:
        """The datasets with a result of the experiment, in this order; others after them."""
        there = dict.fromkeys(cell.key.dataset for cell in self.cells if cell.key.experiment == experiment)
        return [name for name in order if name in there] + [name for name in there if name not in order]

    def methods(self, experiment: str, order: Sequence[str]) -> list[str]:
        """The methods with a result of the experiment, in this order; foreign ones after them."""
        there = dict.fromkeys(cell.key.method for cell in self.cells if cell.key.experiment == experiment)
        return [name for name in order if name in there] + [name for name in there if ":" in name]

    def values(self, experiment: str, dataset: str, method: str, number: str) -> list[float]:
        """The number of every seed."""
        cells = self._by.get((experiment, dataset, method), [])
        found = [cell.numbers.get(number, math.nan) for cell in cells]
        return [value for value in found if not math.isnan(value)]

    def entry(
        self, key: tuple[str, str, str], number: str, *, printed: str = "", cap: str = ""
    ) -> Entry | None:
        """Mean and deviation over seeds; ``printed`` names the paper's table, ``cap`` the number beside."""
        values = self.values(*key, number)
        if not values:
            return None
        limits = self.values(*key, cap) if cap else []
        return Entry(
            mean_of(values),
            settled(float(np.std(values))),
            len(values),
            PAPER.get((printed, key[1], key[2])),
            mean_of(limits) if limits else None,
            sum(self.values(*key, "broken_groups")) > 0,
        )


def markdown(table: Table) -> str:
    """The table as Markdown: the winners of a column in bold, the paper's numbers in brackets."""
    header = ["", *(column.title for column in table.columns)]
    winners = [table.best(index) for index in range(len(table.columns))]
    lines = [
        [
            title,
            *(
                _text(entry, column.sign, won[row])
                for entry, column, won in zip(entries, table.columns, winners, strict=True)
            ),
        ]
        for row, (title, entries) in enumerate(table.lines)
    ]
    text = [f"### {table.title}", ""]
    text += [table.note, ""] if table.note else []
    text += ["| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *lines]]
    return "\n".join(text) + "\n"


def plain(table: Table) -> dict[str, Any]:
    """The table as plain values, for JSON."""
    lines = [
        {"title": title, "entries": [None if entry is None else _fields(entry) for entry in entries]}
        for title, entries in table.lines
    ]
    columns = [{**column._asdict(), "best": table.best(i)} for i, column in enumerate(table.columns)]
    return {"name": table.name, "title": table.title, "columns": columns, "lines": lines}


def verdict(entry: Entry, sign: int) -> str:
    """▲ where our number is better than the paper's, ▼ where it is worse, = where they print alike."""
    if entry.paper is None or sign == 0:
        return ""
    difference = round(entry.mean, entry.paper.digits) - entry.paper.mean
    if abs(difference) < 1e-9:  # both are decimal numbers of so many digits
        return "="
    return "▲" if difference * sign > 0 else "▼"


def number_text(value: float) -> str:
    """Three digits after the point, or three significant ones for what is small or large.

    >>> number_text(0.9312), number_text(0.00042), number_text(126.61)
    ('0.931', '0.00042', '127')
    """
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 10 else f"{value:.3g}"


def _text(entry: Entry | None, sign: int, won: bool) -> str:
    if entry is None:
        return "–"
    mean = number_text(entry.mean) + ("*" if entry.broken else "")
    parts = [f"**{mean}**" if won else mean]
    parts += [f"({number_text(entry.spread)})"] if entry.seeds > 1 else []
    parts += [f"≤ {number_text(entry.cap)}"] if entry.cap is not None else []
    if entry.paper is not None:
        paper = f"{entry.paper.mean:.{min(entry.paper.digits, 3)}f}"
        parts.append(f"[{paper} {verdict(entry, sign)}]")
    return " ".join(parts)


def _rounded(entry: Entry | None) -> float:
    return math.nan if entry is None else float(number_text(entry.mean))


def _fields(entry: Entry) -> dict[str, Any]:
    return {**entry._asdict(), "paper": None if entry.paper is None else entry.paper._asdict()}


# ---------------------------------------------------------------- which tables there are


ORDER = ("veritracer", "veritracer-steady", *COMPARED[1:], "dice")


def tables_of(results: Results, names: Sequence[str]) -> list[Table]:
    """The named tables, each with what the results have for it; a table without an entry is left out."""
    made = [table for name in names for table in MAKERS[name](results)]
    return [table for table in made if any(entry for _, line in table.lines for entry in line)]


def title_of(method: str) -> str:
    """What tables call a method; a foreign one by its class."""
    return METHODS[method].title if method in METHODS else method.partition(":")[2]


def _over_datasets(
    results: Results,
    name: str,
    title: str,
    number: str,
    sign: int,
    *,
    experiment: str = "ri",
    printed: str = "",
    cap: str = "",
    note: str = "",
) -> Table:
    """A line for each method, a column for each dataset."""
    datasets = [
        dataset
        for dataset in results.datasets(experiment, PAPER_DATASETS)
        if any(
            results.values(experiment, dataset, method, number)
            for method in results.methods(experiment, ORDER)
        )
    ]
    lines = [
        (
            title_of(method),
            [results.entry((experiment, d, method), number, printed=printed, cap=cap) for d in datasets],
        )
        for method in results.methods(experiment, ORDER)
    ]
    return Table(name, title, note, [Column(TITLES[d], sign) for d in datasets], lines)


_WORDS = "Share of the valid counterfactuals of one model that the other models decide as their own does."
_CODE = (
    "The definition in the authors' code: the other model decides x′ otherwise than x. After ≤ stands "
    "how often the models agree on x, which is all that a counterfactual that always holds can reach."
)


def _cross(experiment: str, title: str) -> Callable[[Results], list[Table]]:
    def make(results: Results) -> list[Table]:
        words = _over_datasets(
            results,
            experiment,
            f"{title}, f_m(x′) = f(x′)",
            "keeps",
            1,
            experiment=experiment,
            printed=experiment,
            note=_WORDS,
        )
        code = _over_datasets(
            results,
            f"{experiment}-code",
            f"{title}, f_m(x′) ≠ f_m(x)",
            "differs",
            1,
            experiment=experiment,
            cap="agreement",
            note=_CODE,
        )
        return [words, code]

    return make


def _shift(results: Results) -> list[Table]:
    note = "Today's model is fine-tuned on old and new rows; test rows, old and new, are among neither."
    words = _over_datasets(
        results, "shift", "Distribution shift, f_m(x′) = f(x′)", "shift_keeps", 1, printed="shift", note=note
    )
    code = _over_datasets(
        results,
        "shift-code",
        "Distribution shift, f_m(x′) ≠ f_m(x)",
        "shift_differs",
        1,
        cap="shift_agreement",
        note=_CODE,
    )
    return [words, code, *_groups(results)]


def _groups(results: Results) -> list[Table]:
    """The shift by group of rows: CTG's classes, years elsewhere."""
    made = []
    for dataset in results.datasets("ri", PAPER_DATASETS):
        prefix = "shift_keeps, "
        cells = [cell for cell in results.cells if cell.key.dataset == dataset]
        names = list(
            dict.fromkeys(n.removeprefix(prefix) for c in cells for n in c.numbers if n.startswith(prefix))
        )
        if not names:
            continue
        order = {"normal": 0, "suspect": 1, "pathological": 2}
        names.sort(key=lambda name: (order.get(name, 0), name))
        lines = [
            (
                title_of(m),
                [results.entry(("ri", dataset, m), prefix + n, printed=f"shift, {n}") for n in names],
            )
            for m in results.methods("ri", ORDER)
        ]
        title = f"Distribution shift on {TITLES[dataset]}, by group"
        columns = [Column(name, 1) for name in names]
        made.append(
            Table(f"shift-{dataset}", title, "f_m(x′) = f(x′) for the rows of each group.", columns, lines)
        )
    return made


def _delta(results: Results) -> list[Table]:
    limit = "What an attack of the set's models leaves: no proof could reach more. The first rows only."
    return [
        _over_datasets(
            results,
            "delta",
            "δ-robustness at κ = 0.2, of all rows",
            "certified",
            1,
            printed="delta",
            note="The share of test rows with a certified counterfactual; one without counts as 0.",
        ),
        _over_datasets(
            results,
            "delta-valid",
            "δ-robustness at κ = 0.2, of valid counterfactuals",
            "certified_of_valid",
            1,
            printed="delta",
            note="As the paper measures it.",
        ),
        _over_datasets(
            results, "attacked", "Attacked limit of δ-robustness", "unbroken_of_attacked", 1, note=limit
        ),
        _over_datasets(results, "validity", "Validity", "validity", 1, note="Of all test rows."),
    ]


_BROKEN = "\\* breaks one-hot groups: nobody can be such a row."


def _distance(name: str, title: str, note: str) -> Callable[[Results], list[Table]]:
    def make(results: Results) -> list[Table]:
        return [_over_datasets(results, name, title, name, -1, printed=name, note=f"{note} {_BROKEN}")]

    return make


def _accuracy(results: Results) -> list[Table]:
    """One line for each training; methods that share a training share its accuracy."""
    table = _over_datasets(results, "accuracy", "Accuracy on test rows", "accuracy", 1, printed="accuracy")
    titles = {title_of("veritracer"): "VeriTraCER", title_of("counternet"): "CounterNet"}
    standard = [m for m in results.methods("ri", ORDER) if m not in ("veritracer", "generator", "counternet")]
    if standard:
        titles[title_of(standard[0])] = "trained for accuracy (ROAR, SNS, Wachter, neighbour)"
    return [table._replace(lines=[(titles[t], line) for t, line in table.lines if t in titles])]


def _ablation(results: Results) -> list[Table]:
    numbers = {"certified": 1, "keeps": 1, "accuracy": 1, "proximity": -1, "sparsity": -1, "ddm": -1}
    titles = ["δ-robust", "RI", "accuracy", "proximity", "sparsity", "DDM"]
    made = []
    for dataset in results.datasets("ri", THREE):
        lines = [
            (
                f"{bound}, {'refined' if method.startswith('veritracer') else 'generator'}",
                [results.entry(("ri", dataset, method), n, printed=f"ablation {n}") for n in numbers],
            )
            for bound, pair in BY_BOUND.items()
            for method in pair
        ]
        if not results.values("ri", dataset, "generator-ibp", "certified"):
            continue
        columns = [Column(t, sign) for t, sign in zip(titles, numbers.values(), strict=True)]
        note = "Training with each bound; certified afterwards by the cascade with Simul-CROWN."
        made.append(
            Table(f"ablation-{dataset}", f"Bounds in training, {TITLES[dataset]}", note, columns, lines)
        )
    return made


def _curve(results: Results) -> list[Table]:
    """Robustness to another seed against distance, as the radius that is certified grows."""
    numbers = {"keeps": 1, "certified": 1, "validity": 1, "proximity": -1, "sparsity": -1}
    titles = ["RI", "δ-robust at κ = 0.2", "validity", "proximity", "sparsity"]
    made = []
    for dataset in results.datasets("ri", PAPER_DATASETS):
        if not results.values("ri", dataset, BY_KAPPA[0.3], "keeps"):
            continue
        lines = [
            (f"κ = {kappa}", [results.entry(("ri", dataset, method), n) for n in numbers])
            for kappa, method in BY_KAPPA.items()
        ]
        columns = [Column(t, sign) for t, sign in zip(titles, numbers.values(), strict=True)]
        title = f"Another seed against distance, {TITLES[dataset]}"
        note = "The models are those trained at κ = 0.2; counterfactuals are certified at a larger one."
        made.append(Table(f"curve-{dataset}", title, note, columns, lines))
    return made


def _start(results: Results) -> list[Table]:
    """What a classifier that starts near zero brings, for the method and for CounterNet."""
    numbers = {"keeps": 1, "agreement": 1, "certified": 1, "accuracy": 1, "proximity": -1, "sparsity": -1}
    titles = ["RI", "agreement on x", "δ-robust", "accuracy", "proximity", "sparsity"]
    made = []
    for dataset in results.datasets("ri", PAPER_DATASETS):
        if not results.values("ri", dataset, "veritracer-torch", "keeps"):
            continue
        lines = [
            (title, [results.entry(("ri", dataset, method), n) for n in numbers])
            for title, method in BY_START.items()
        ]
        columns = [Column(t, sign) for t, sign in zip(titles, numbers.values(), strict=True)]
        note = "The classifier starts near zero (the default), or as torch starts a layer."
        made.append(Table(f"start-{dataset}", f"The start, {TITLES[dataset]}", note, columns, lines))
    return made


def _time(results: Results) -> list[Table]:
    note = "Seconds on one core, all test rows together, amortised; the paper's are for one row at a time."
    made = [
        _over_datasets(
            results,
            "seconds",
            "Seconds per counterfactual",
            "seconds_per_counterfactual",
            -1,
            printed="seconds",
            note=note,
        )
    ]
    datasets = results.datasets("time", PAPER_DATASETS)
    lines = [
        (name, [results.entry(("time", d, name), "seconds_per_epoch", printed="epoch") for d in datasets])
        for name in TIMED
    ]
    columns = [Column(TITLES[d], -1) for d in datasets]
    made.append(Table("epoch", "Seconds per epoch, one model on one core", "", columns, lines))
    return made


MAKERS: dict[str, Callable[[Results], list[Table]]] = {
    "ri": _cross("ri", "Random initialisation"),
    "loo": _cross("loo", "Leave-out (1 % of the rows)"),
    "shift": _shift,
    "delta": _delta,
    "proximity": _distance("proximity", "Proximity", "L1 distance over encoded columns, of valid rows."),
    "sparsity": _distance("sparsity", "Sparsity", "Share of features that move by more than 0.01."),
    "ddm": _distance("ddm", "Distance to the data manifold", "L1 distance to the nearest training row."),
    "accuracy": _accuracy,
    "ablation": _ablation,
    "curve": _curve,
    "start": _start,
    "time": _time,
}
"""What makes each table that ``plan.TABLES`` names."""
