"""The paper's tables from stored results: our mean and deviation over seeds, the paper's number beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from veritracer.bench.cells import Cell
from veritracer.bench.paper_numbers import PAPER, Printed


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
            float(np.mean(values)),
            float(np.std(values)),
            len(values),
            PAPER.get((printed, key[1], key[2])),
            float(np.mean(limits)) if limits else None,
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
