"""Small random schemas, and every raw row that a person could have under one, written from the documentation.

Nothing of the encoding is used: a legal value is a point of the declared grid (of the ``display_step``, for
a continuous feature without a step), a declared category, or what the person has already.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from veritracer.schema import Feature, Schema

LEAST, MOST = 60, 3_000
"""Rows of a full grid."""

Values = list[Any]


@dataclass(frozen=True)
class Column:
    """A feature, and all values that may be proposed for it, in their order."""

    feature: Feature
    values: Values

    @property
    def ordered(self) -> bool:
        """Whether its values have an order."""
        return self.feature.kind != "categorical"

    def legal(self, own: Any) -> Values:
        """What a person who has ``own`` could have; their own value comes first."""
        action = self.feature.action
        if action == "immutable" or (is_missing(own) and action != "free"):
            return [own]
        others = [v for v in self.values if is_missing(own) or not _same(v, own)]
        if action in ("increase_only", "decrease_only"):
            sign = 1 if action == "increase_only" else -1
            others = [v for v in others if sign * (self.rank(v) - self.rank(own)) > 0]
        return [own, *others]

    def rank(self, value: Any) -> float:
        """Where a value is in the order: a number itself, or the place of a category."""
        return float(value) if self.feature.is_numeric else float(self.feature.categories.index(value))

    def cost(self, own: Any, new: Any) -> float:
        """The L1 distance in scaled units; a category is left and another one entered, which is 2."""
        if (is_missing(own) and is_missing(new)) or _same(own, new):
            return 0.0
        if self.feature.kind == "categorical":
            return 2.0
        extent = self.rank(self._end(-1)) - self.rank(self._end(0))
        return abs(self.rank(new) - self.rank(own)) / extent

    def _end(self, which: int) -> Any:
        feature = self.feature
        if feature.is_numeric:
            return feature.lower if which == 0 else feature.upper
        return feature.categories[which]


def is_missing(value: Any) -> bool:
    """Whether a cell is empty."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _same(one: Any, other: Any) -> bool:
    if is_missing(one) or is_missing(other):
        return is_missing(one) and is_missing(other)
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    return abs(float(one) - float(other)) <= 1e-9 * max(1.0, abs(float(one)))


def draw_schema(rng: np.random.Generator) -> tuple[Schema, list[Column]]:
    """A schema of two to five features whose full grid is small, and which leaves something to change."""
    while True:
        columns = [_column(rng, f"f{k}") for k in range(int(rng.integers(2, 6)))]
        size = math.prod(len(column.values) + 1 for column in columns)
        if LEAST <= size <= MOST and any(c.feature.action != "immutable" for c in columns):
            break
    return Schema([column.feature for column in columns], "decision", "yes", "no"), columns


def _column(rng: np.random.Generator, name: str) -> Column:
    kind = str(rng.choice(["integer", "stepped", "continuous", "ordinal", "categorical", "binary"]))
    actions = ["free", "free", "free", "immutable", "increase_only", "decrease_only"]
    action = str(rng.choice(actions[:4] if kind == "categorical" else actions))
    if kind in ("integer", "stepped", "continuous"):
        return _numeric(rng, name, kind, action)
    count = 2 if kind == "binary" else int(rng.integers(2, 5))
    values = [f"{name}{chr(97 + i)}" for i in range(count)]
    return Column(Feature(name, kind, categories=values, action=action), values)  # type: ignore[arg-type]


def _numeric(rng: np.random.Generator, name: str, kind: str, action: str) -> Column:
    steps = int(rng.integers(2, 13))
    low = int(rng.integers(-3, 20))
    if kind == "integer":
        step = int(rng.choice([1, 1, 2, 5]))
        feature = Feature(name, "integer", lower=low, upper=low + steps * step, step=step, action=action)  # type: ignore[arg-type]
        return Column(feature, [low + k * step for k in range(steps + 1)])
    step = float(rng.choice([0.05, 0.25, 0.5, 100.0]))
    ends = {"lower": low * step, "upper": (low + steps) * step}
    values = [round((low + k) * step, 6) for k in range(steps + 1)]
    if kind == "stepped":
        return Column(Feature(name, "continuous", step=step, action=action, **ends), values)  # type: ignore[arg-type]
    missing = "impute" if rng.random() < 0.3 else "refuse"
    feature = Feature(name, "continuous", display_step=step, action=action, missing=missing, **ends)  # type: ignore[arg-type]
    return Column(feature, values)


def people(rng: np.random.Generator, columns: list[Column], n: int) -> pd.DataFrame:
    """Rows of people: on the grids, but for continuous features, whose values may be anywhere, or missing."""
    cells: dict[str, Any] = {}
    for column in columns:
        feature = column.feature
        if feature.kind == "continuous" and feature.step is None:
            assert feature.lower is not None
            assert feature.upper is not None
            digits = 4 if feature.upper < 100 else 1
            values = (
                rng.uniform(feature.lower, feature.upper, n).round(digits).clip(feature.lower, feature.upper)
            )
            if feature.missing == "impute":
                values[rng.random(n) < 0.1] = np.nan
            cells[feature.name] = values
        else:
            cells[feature.name] = [column.values[i] for i in rng.integers(0, len(column.values), n)]
    return pd.DataFrame(cells)


def every_row(columns: list[Column], own: dict[str, Any], free: str | None = None) -> pd.DataFrame:
    """All rows that this person could have, their own first; ``free`` names a feature without constraint."""
    choices = []
    for column in columns:
        mine = own[column.feature.name]
        if column.feature.name == free:
            choices.append([mine, *(v for v in column.values if is_missing(mine) or not _same(v, mine))])
        else:
            choices.append(column.legal(mine))
    return pd.DataFrame(list(itertools.product(*choices)), columns=[c.feature.name for c in columns])


def changed(columns: list[Column], own: dict[str, Any], rows: pd.DataFrame) -> np.ndarray:
    """Which features of each row differ from the person's own, (rows, features)."""
    names = [column.feature.name for column in columns]
    return np.stack([[not _same(own[name], v) for v in rows[name].tolist()] for name in names], axis=1)


def costs(
    columns: list[Column], prices: dict[str, float], own: dict[str, Any], rows: pd.DataFrame
) -> np.ndarray:
    """What each row costs the person; NaN where a missing value gets one, which raw values cannot price."""
    total = np.zeros(len(rows))
    for column in columns:
        name, mine = column.feature.name, own[column.feature.name]
        for i, value in enumerate(rows[name].tolist()):
            if is_missing(mine) and not is_missing(value):
                total[i] = np.nan
            else:
                each = column.cost(mine, value)
                total[i] += prices.get(name, 1.0) * each if each > 0 else 0.0
    return total
