"""Stored numbers of truth over seeds: means, worst seeds and 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

from veritracer.bench.cells import Cell
from veritracer.bench.fit_quality import EVERYBODY
from veritracer.bench.judges import COUNTED
from veritracer.bench.methods import COMPARED
from veritracer.bench.tables import Results
from veritracer.bench.truth import MIDDLE
from veritracer.bench.truth_cells import COMMON, ERROR

POOLED = 200
"""With fewer rows than these in a seed, all rows of all seeds count alike."""

OURS, HOLLOW = "veritracer-default", "veritracer-plain"
ORDER = (OURS, HOLLOW, *COMPARED, "dice")
DATASETS = ("heloc", "taiwan_credit", "oula", "ctg", "who", "loans", "loans-repaid")


class Spread(NamedTuple):
    """A number over seeds: mean, ends of its 95 % interval, worst seed, and how many seeds there are."""

    mean: float
    low: float
    high: float
    worst: float
    seeds: int


class Column(NamedTuple):
    """A number and its title; ``sign`` says whether more (1) or less (-1) is better; a share is in [0, 1]."""

    number: str
    title: str
    sign: int = 0
    share: bool = True


DISTANCE = Column("distance", "distance", -1, share=False)


def interval(
    values: Sequence[float], errors: Sequence[float], rows: Sequence[float], column: Column
) -> Spread:
    """The mean over seeds with an interval for both trainings and rows.

    Seeds share their rows, so the error of the rows does not shrink with more seeds. A share's interval is
    Wilson's, with as many rows as would have that error.
    """
    each, weights = np.asarray(values, dtype=float), np.ones(len(values)) / len(values)
    if min(rows) < POOLED and sum(rows) > 0:
        weights = np.asarray(rows, dtype=float) / sum(rows)
    mean, count = float(weights @ each), len(each)
    half = MIDDLE**2 * float(weights @ np.square(np.nan_to_num(errors)))
    if count > 1:
        between = float(np.square(weights * (each - mean)).sum()) * count / (count - 1)
        half += float(student.ppf(0.975, count - 1)) ** 2 * between
    ends = _wilson(mean, half, max(rows)) if column.share else (mean - half**0.5, mean + half**0.5)
    worst = math.nan if column.sign == 0 else each.min() if column.sign > 0 else each.max()
    return Spread(mean, ends[0], ends[1], float(worst), count)


def _wilson(share: float, half: float, rows: float) -> tuple[float, float]:
    inside = share * (1 - share)
    count = rows if half == 0 or inside <= 0 else min(rows, inside * MIDDLE**2 / half)
    count = max(count, 1.0)
    middle = (share + MIDDLE**2 / (2 * count)) / (1 + MIDDLE**2 / count)
    away = MIDDLE / (1 + MIDDLE**2 / count) * (inside / count + MIDDLE**2 / (4 * count**2)) ** 0.5
    return max(0.0, middle - away), min(1.0, middle + away)


class Truth:
    """Stored numbers, asked by dataset, method and column; what is not there is None."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self.results = Results(cells)
        self._by: dict[tuple[str, str], list[Cell]] = {}
        for cell in self.results.cells:
            if cell.key.experiment == "truth":
                self._by.setdefault((cell.key.dataset, cell.key.method), []).append(cell)

    def datasets(self) -> list[str]:
        """The datasets with an answer, in the order of the tables."""
        return self.results.datasets("truth", DATASETS)

    def methods(self, dataset: str) -> list[str]:
        """The methods with an answer on a dataset: ours first, in all its settings, then the others."""
        there = [method for name, method in self._by if name == dataset]
        rank = {name: position for position, name in enumerate(ORDER)}
        return sorted(there, key=lambda name: (rank.get(name.partition("[")[0], 99), name))

    def spread(self, dataset: str, method: str, column: Column) -> Spread | None:
        """The number over seeds."""
        values, errors, rows = [], [], []
        for cell in self._by.get((dataset, method), []):
            value = cell.numbers.get(column.number, math.nan)
            if not math.isnan(value):
                values.append(value)
                errors.append(cell.numbers.get(column.number + ERROR, 0.0))
                common = column.number.endswith(COMMON)
                rows.append(cell.numbers["rows" + COMMON if common else "rows"])
        return interval(values, errors, rows, column) if values else None

    def mean(self, dataset: str, method: str, column: Column) -> float:
        """The mean over seeds, nan where there is none."""
        spread = self.spread(dataset, method, column)
        return math.nan if spread is None else spread.mean

    def lowest(self, dataset: str, method: str, suffix: str = "") -> Spread | None:
        """Acceptance by the judge, of those that count, who accepts least in the mean over seeds."""
        columns = [Column(f"acceptance, {name}{suffix}", name, 1) for name in COUNTED]
        found = [s for column in columns if (s := self.spread(dataset, method, column)) is not None]
        return min(found, key=lambda spread: spread.mean, default=None)

    def peers(self, dataset: str) -> list[str]:
        """The methods of others on a dataset."""
        return [name for name in self.methods(dataset) if not name.startswith(("veritracer", "generator"))]

    def above_ours(self, dataset: str) -> list[str] | None:
        """The others whose lowest judge accepts more than ours in any setting that goes no further.

        Those that are nearer than any setting of ours are left out; None where we have no answer.
        """
        points = {}
        for name in self.methods(dataset):
            low = self.lowest(dataset, name)
            if low is not None:
                points[name] = self.mean(dataset, name, DISTANCE), low.mean
        ours = [point for name, point in points.items() if name.partition("[")[0] == OURS]
        found = []
        for name in self.peers(dataset):
            far, accepted = points.get(name, (math.nan, math.nan))
            reached = [share for near, share in ours if near <= far]
            if reached and accepted > max(reached):
                found.append(name)
        return found if ours else None

    def paired(self, dataset: str, trainer: str, number: str) -> list[float]:
        """The number of each seed less that of the standard model of the same seed."""
        by = {
            cell.key[2:]: cell.numbers.get(number, math.nan)
            for cell in self.results.cells
            if cell.key[:2] == ("model", dataset)
        }
        seeds = [seed for name, seed in by if name == trainer and ("standard", seed) in by]
        return [by[trainer, seed] - by["standard", seed] for seed in seeds]

    def groups(self, dataset: str) -> list[str]:
        """The groups of people on a dataset."""
        for cell in self.results.cells:
            if cell.key[:2] == ("model", dataset):
                names = [n.removeprefix("rows, ") for n in cell.numbers if n.startswith("rows, ")]
                return [name for name in names if name != EVERYBODY]
        return []

    def group_differences(self, dataset: str, trainer: str, kind: str) -> dict[str, float]:
        """How each group differs from a standard model's: in approval, Brier score or agreement."""
        found = {name: self.paired(dataset, trainer, f"{kind}, {name}") for name in self.groups(dataset)}
        return {group: float(np.mean(values)) for group, values in found.items() if values}


def worst_of(differences: dict[str, float], kind: str) -> tuple[str, float]:
    """The group with the worst difference: of approval either way, of the others the worse way."""
    order: dict[str, Callable[[float], float]] = {"approval": abs, "Brier": float, "agreement": lambda d: -d}
    worst = max(differences, key=lambda group: order[kind](differences[group]))
    return worst, differences[worst]
