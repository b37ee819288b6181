"""The paper's tables from stored results: our mean and deviation over seeds, the paper's number beside it.

``Results`` looks up entries; ``tables_of`` makes the paper's tables, and some that the paper does not have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from veritracer_bench.methods import BY_BOUND, BY_KAPPA, BY_START, COMPARED, METHODS, TIMED
from veritracer_bench.plan import PAPER_DATASETS, THREE, short_title
from veritracer_bench.results import PAPER, SQUARE, Cell, Printed, mean_of, settled


class Column(NamedTuple):
    """A column of a table; ``sign`` is 1 where more is better, -1 where less is, 0 where neither.

    ``like_paper`` is False where the paper measured something else, such as the time of single rows.
    """

    title: str
    sign: int
    like_paper: bool = True


class Entry(NamedTuple):
    """One method in one column: mean and deviation over seeds, the paper's number, and an upper limit.

    ``broken`` is True if the method's counterfactuals break one-hot groups. ``over_pairs`` is the deviation
    over ordered pairs of models, as the paper has it, of a number that concerns pairs.
    """

    mean: float
    spread: float
    seeds: int
    paper: Printed | None = None
    cap: float | None = None
    broken: bool = False
    over_pairs: float | None = None


class Table(NamedTuple):
    """A table: a name, a sentence about it, columns, and lines of a title and its entries."""

    name: str
    title: str
    note: str
    columns: list[Column]
    lines: list[tuple[str, list[Entry | None]]]

    def best(self, column: int) -> list[bool]:
        """Mark the line that wins a column: by more than a standard deviation, its own or the runner-up's.

        A tie, as printed, has no winner.
        """
        sign = self.columns[column].sign
        entries = [line[column] for _, line in self.lines]
        there = [
            (i, each) for i, each in enumerate(entries) if each is not None and not math.isnan(each.mean)
        ]
        marks = [False] * len(entries)
        if sign == 0 or len(there) < 2:
            return marks
        (first, top), (_, second) = sorted(there, key=lambda pair: -sign * pair[1].mean)[:2]
        lead = abs(_rounded(top) - _rounded(second))
        marks[first] = lead > max(top.spread, second.spread) and lead > 0
        return marks


class Results:
    """Stored results, by experiment, dataset, method and number."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.cells = list(cells)
        self._by: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in sorted(self.cells, key=lambda cell: cell.key):
            self._by.setdefault(cell.key[:3], []).append(cell)

    def datasets(self, experiment: str, order: Sequence[str]) -> list[str]:
        """Return the datasets with a result of the experiment, in this order; others after them."""
        there = dict.fromkeys(cell.key.dataset for cell in self.cells if cell.key.experiment == experiment)
        return [name for name in order if name in there] + [name for name in there if name not in order]

    def methods(self, experiment: str, order: Sequence[str]) -> list[str]:
        """Return the methods with a result of the experiment, in this order; foreign ones after them."""
        there = dict.fromkeys(cell.key.method for cell in self.cells if cell.key.experiment == experiment)
        return [name for name in order if name in there] + [name for name in there if ":" in name]

    def values(self, experiment: str, dataset: str, method: str, number: str) -> list[float]:
        """Return the number of every seed."""
        cells = self._by.get((experiment, dataset, method), [])
        found = [cell.numbers.get(number, math.nan) for cell in cells]
        return [value for value in found if not math.isnan(value)]

    def entry(
        self, key: tuple[str, str, str], number: str, *, printed: str = "", cap: str = ""
    ) -> Entry | None:
        """Return mean and deviation over seeds; ``printed`` names the paper's table, ``cap`` a limit."""
        values = self.values(*key, number)
        if not values:
            return None
        limits = self.values(*key, cap) if cap else []
        return Entry(
            mean_of(values),
            settled(float(np.std(values))),
            len(values),
            paper_number(printed, key[1], key[2]),
            mean_of(limits) if limits else None,
            sum(self.values(*key, "broken_groups")) > 0,
            self._over_pairs(key, number, values),
        )

    def _over_pairs(self, key: tuple[str, str, str], number: str, means: Sequence[float]) -> float | None:
        """Return the deviation over pairs from each model's mean and mean square, if they were stored."""
        squares = self.values(*key, number + SQUARE)
        if len(squares) != len(means):
            return None
        return settled(math.sqrt(max(float(np.mean(squares)) - float(np.mean(means)) ** 2, 0.0)))


def paper_number(table: str, dataset: str, method: str) -> Printed | None:
    """Return the number in the paper's table; its VeriTraCER is our Algorithm 1 alone."""
    if method == "veritracer":
        return None
    return PAPER.get((table, dataset, "veritracer" if method == "algorithm-1" else method))


def markdown(table: Table) -> str:
    """Return the table as Markdown: the winner of a column in bold, the paper's numbers in brackets."""
    header = ["", *(column.title for column in table.columns)]
    winners = [table.best(index) for index in range(len(table.columns))]
    lines = [
        [
            title,
            *(
                _text(entry, column, won[row])
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
    """Return the table as plain values, for JSON."""
    lines = [
        {"title": title, "entries": [None if entry is None else _fields(entry) for entry in entries]}
        for title, entries in table.lines
    ]
    columns = [{**column._asdict(), "best": table.best(i)} for i, column in enumerate(table.columns)]
    return {"name": table.name, "title": table.title, "columns": columns, "lines": lines}


def verdict(entry: Entry, sign: int) -> str:
    """Return ▲ or ▼ where our number is better or worse than the paper's, = within a standard deviation.

    The larger deviation counts, ours or the paper's; numbers that print alike are equal.
    """
    if entry.paper is None or sign == 0:
        return ""
    difference = settled(round(entry.mean, entry.paper.digits) - entry.paper.mean)
    published = 0.0 if entry.paper.spread is None else entry.paper.spread
    if abs(difference) <= max(1e-9, entry.spread, published):  # 1e-9: both are decimal numbers
        return "="
    return "▲" if difference * sign > 0 else "▼"


def number_text(value: float) -> str:
    """Three digits after the point, or three significant ones for what is small or large.

    >>> number_text(0.9312), number_text(0.00042), number_text(126.61)
    ('0.931', '0.00042', '127')
    """
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) < 10 else f"{value:.3g}"


def _text(entry: Entry | None, column: Column, won: bool) -> str:
    if entry is None:
        return "–"
    mean = number_text(entry.mean) + ("*" if entry.broken else "")
    parts = [f"**{mean}**" if won else mean]
    pairs = "" if entry.over_pairs is None else f"; pairs {number_text(entry.over_pairs)}"
    parts += [f"({number_text(entry.spread)}{pairs})"] if entry.seeds > 1 else []
    parts += [f"≤ {number_text(entry.cap)}"] if entry.cap is not None else []
    if entry.paper is not None:
        paper = f"{entry.paper.mean:.{min(entry.paper.digits, 3)}f}"
        mark = f" {verdict(entry, column.sign)}" if column.like_paper else ""
        parts.append(f"[{paper}{mark}]")
    return " ".join(parts)


def _rounded(entry: Entry) -> float:
    return float(number_text(entry.mean))


def _fields(entry: Entry) -> dict[str, Any]:
    return {**entry._asdict(), "paper": None if entry.paper is None else entry.paper._asdict()}


# ---------------------------------------------------------------- the tables


ORDER = (*COMPARED[:2], "algorithm-1-steady", *COMPARED[2:], "dice")


def tables_of(results: Results, names: Sequence[str]) -> list[Table]:
    """Make the named tables; leave out those without an entry."""
    made = [table for name in names for table in MAKERS[name](results)]
    return [table for table in made if any(entry for _, line in table.lines for entry in line)]


def title_of(method: str) -> str:
    """Return the title of a method in tables; a foreign one is called by its class."""
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
    like_paper: bool = True,
) -> Table:
    """Make a table with a line for each method and a column for each dataset."""
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
    return Table(name, title, note, [Column(short_title(d), sign, like_paper) for d in datasets], lines)


_WORDS = "Share of a model's valid counterfactuals on which the other models decide as it does."
_CODE = (
    "The definition in the authors' code: the other model decides differently on x′ and x. After ≤: how "
    "often the models agree on x, the most that a counterfactual can reach."
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
    """Make the tables of the shift by group of rows: classes for CTG, years elsewhere."""
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
        title = f"Distribution shift on {short_title(dataset)}, by group"
        columns = [Column(name, 1) for name in names]
        made.append(
            Table(f"shift-{dataset}", title, "f_m(x′) = f(x′) for the rows of each group.", columns, lines)
        )
    return made


def _delta(results: Results) -> list[Table]:
    limit = "Upper limit: the share that an attack within the set of models does not break. First rows only."
    return [
        _over_datasets(
            results,
            "delta",
            "δ-robustness at κ = 0.2, of all rows",
            "certified",
            1,
            printed="delta",
            note="Share of test rows with a certified counterfactual.",
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


_BROKEN = "\\* breaks one-hot groups: no person can have such a row."


def _distance(name: str, title: str, note: str) -> Callable[[Results], list[Table]]:
    def make(results: Results) -> list[Table]:
        return [_over_datasets(results, name, title, name, -1, printed=name, note=f"{note} {_BROKEN}")]

    return make


def _accuracy(results: Results) -> list[Table]:
    """Make the table of accuracy: one line for each training."""
    table = _over_datasets(results, "accuracy", "Accuracy on test rows", "accuracy", 1, printed="accuracy")
    own = ("veritracer", "algorithm-1", "counternet")
    titles = {title_of(method): title_of(method) for method in own}
    others = (*own, "generator", "algorithm-1-steady")
    standard = [method for method in results.methods("ri", ORDER) if method not in others]
    if standard:
        titles[title_of(standard[0])] = "trained for accuracy (ROAR, SNS, Wachter, neighbour)"
    return [table._replace(lines=[(titles[t], line) for t, line in table.lines if t in titles])]


def _default(results: Results, dataset: str, numbers: Iterable[str]) -> list[tuple[str, list[Entry | None]]]:
    """Return the line of the library's default, which comes first in every table; none if not measured."""
    entries = [results.entry(("ri", dataset, COMPARED[0]), number) for number in numbers]
    return [(title_of(COMPARED[0]), entries)] if any(entries) else []


def _ablation(results: Results) -> list[Table]:
    numbers = {"certified": 1, "keeps": 1, "accuracy": 1, "proximity": -1, "sparsity": -1, "ddm": -1}
    titles = ["δ-robust", "RI", "accuracy", "proximity", "sparsity", "DDM"]
    made = []
    for dataset in results.datasets("ri", THREE):
        lines = [
            (
                f"Algorithm 1 alone, {bound}, {'generator' if method.startswith('generator') else 'refined'}",
                [results.entry(("ri", dataset, method), n, printed=f"ablation {n}") for n in numbers],
            )
            for bound, pair in BY_BOUND.items()
            for method in pair
        ]
        if not results.values("ri", dataset, "generator-ibp", "certified"):
            continue
        lines = _default(results, dataset, numbers) + lines
        columns = [Column(t, sign) for t, sign in zip(titles, numbers.values(), strict=True)]
        note = "Below the default: Algorithm 1 alone, trained with each bound; certified by the full cascade."
        made.append(
            Table(f"ablation-{dataset}", f"Bounds in training, {short_title(dataset)}", note, columns, lines)
        )
    return made


def _curve(results: Results) -> list[Table]:
    """Make the tables of robustness to another seed against distance, for growing certified radii."""
    numbers = {"keeps": 1, "certified": 1, "validity": 1, "proximity": -1, "sparsity": -1}
    titles = ["RI", "δ-robust at κ = 0.2", "validity", "proximity", "sparsity"]
    made = []
    for dataset in results.datasets("ri", PAPER_DATASETS):
        if not results.values("ri", dataset, BY_KAPPA[0.3], "keeps"):
            continue
        lines = [
            (f"Algorithm 1 alone, κ = {kappa}", [results.entry(("ri", dataset, method), n) for n in numbers])
            for kappa, method in BY_KAPPA.items()
        ]
        lines = _default(results, dataset, numbers) + lines
        columns = [Column(t, sign) for t, sign in zip(titles, numbers.values(), strict=True)]
        title = f"Another seed against distance, {short_title(dataset)}"
        note = (
            "Below the default: Algorithm 1 alone, trained at κ = 0.2; counterfactuals are certified at "
            "larger radii."
        )
        made.append(Table(f"curve-{dataset}", title, note, columns, lines))
    return made


def _start(results: Results) -> list[Table]:
    """Make the tables of initial parameters near zero, for Algorithm 1 alone and for CounterNet."""
    numbers = {"keeps": 1, "agreement": 1, "certified": 1, "accuracy": 1, "proximity": -1, "sparsity": -1}
    titles = ["RI", "agreement on x", "δ-robust", "accuracy", "proximity", "sparsity"]
    made = []
    for dataset in results.datasets("ri", PAPER_DATASETS):
        if not results.values("ri", dataset, "algorithm-1-torch", "keeps"):
            continue
        lines = [
            (title, [results.entry(("ri", dataset, method), n) for n in numbers])
            for title, method in BY_START.items()
        ]
        lines = _default(results, dataset, numbers) + lines
        columns = [Column(t, sign) for t, sign in zip(titles, numbers.values(), strict=True)]
        note = "Initial parameters near zero (small start), or torch's own (usual start)."
        made.append(
            Table(f"start-{dataset}", f"Initial parameters, {short_title(dataset)}", note, columns, lines)
        )
    return made


def _time(results: Results) -> list[Table]:
    note = "One core, all test rows in one batch. The paper's times are for single rows: not comparable."
    made = [
        _over_datasets(
            results,
            "seconds",
            "Seconds per counterfactual",
            "seconds_per_counterfactual",
            -1,
            printed="seconds",
            note=note,
            like_paper=False,
        )
    ]
    datasets = results.datasets("time", PAPER_DATASETS)
    lines = [
        (
            METHODS[name].title if name in METHODS else "classifier only",
            [results.entry(("time", d, name), "seconds_per_epoch", printed="epoch") for d in datasets],
        )
        for name in TIMED
    ]
    lines = [(title, entries) for title, entries in lines if any(entries)]
    columns = [Column(short_title(d), -1, like_paper=False) for d in datasets]
    note = "The paper's times are from another machine: not comparable."
    made.append(Table("epoch", "Seconds per epoch, one model on one core", note, columns, lines))
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
"""The function for each table in ``plan.TABLES``."""
