"""Whether recourse is the same for everybody: by group of each feature that people can not freely change."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import kruskal

from veritracer.report.figure import Figure, Table, count, percent, short
from veritracer.report.levers import Lever, levers, usual_lever
from veritracer.report.ranges import Range, range_picture
from veritracer.report.subject import Subject
from veritracer.schema import Feature
from veritracer.schema.values import own, value_in_words

FEWEST = 20
"""People with a counterfactual that a group needs before it is compared with others."""

MOST_GROUPS, MOST_FEATURES, BINS = 8, 12, 4
CHANCE = 0.01
"""A gap counts as more than chance below this probability, after correction for the number of features."""


@dataclass(frozen=True)
class Group:
    """The people with one value of a feature (or in one bin of it), as positions in the table, (n,) bool."""

    name: str
    rows: NDArray[np.bool_]


@dataclass(frozen=True)
class Comparison:
    """The groups of one feature: who they are, the mean cost of each, and how likely chance is.

    ``cost`` is nan for a group that is too small to compare; ``chance`` is the p-value of Kruskal and
    Wallis over the others (1 where fewer than two are left), not yet corrected for other features.
    """

    feature: Feature
    groups: tuple[Group, ...]
    cost: NDArray[np.float64]
    chance: float

    @property
    def ratio(self) -> float:
        """The largest mean cost over the smallest; nan where there are not two to compare."""
        kept = self.cost[~np.isnan(self.cost)]
        return float(kept.max() / kept.min()) if len(kept) > 1 and kept.min() > 0 else float("nan")


def groups_of(feature: Feature, column: pd.Series[Any]) -> tuple[Group, ...]:
    """The people by value of the feature; numbers with many values in four bins of about equal size."""
    absent = (column.isna() | column.isin(list(feature.missing_codes))).to_numpy(dtype=bool)
    values = column[~absent]
    if feature.is_numeric and values.nunique() > BINS + 1:
        named = _bins(values.astype(np.float64))
    else:
        named = _values(feature, values)
    found = []
    for name, members in named:
        rows = np.zeros(len(column), dtype=bool)
        rows[np.flatnonzero(~absent)[members]] = True
        found.append(Group(name, rows))
    return (*found, Group("missing", absent)) if absent.any() else tuple(found)


def compare(subject: Subject) -> list[Comparison]:
    """A comparison for each immutable or one-way feature with at least two groups, the widest gap first.

    Where there are too many features, one-way ones are left out before immutable ones: what people are
    born with has to be shown even where there is no gap.
    """
    features = [f for f in subject.schema.features if f.action != "free"]
    every = [_comparison(subject, f, groups_of(f, subject.table[f.name])) for f in features]
    found = sorted((c for c in every if len(c.groups) > 1), key=_gap, reverse=True)
    kept = sorted(found, key=lambda c: c.feature.action != "immutable")[:MOST_FEATURES]
    return sorted(kept, key=_gap, reverse=True)


def group_figure(subject: Subject, found: list[Comparison]) -> Figure | None:
    """The mean cost of each group on one scale, the widest gap first; None where there is none to draw."""
    drawn = [c for c in found if not math.isnan(c.ratio)]
    if not drawn:
        return None
    rows = []
    for c in drawn:
        kept = [(float(v), f"{g.name}: {short(v)}") for g, v in zip(c.groups, c.cost, strict=True) if v == v]
        low, high = (c.groups[int(pick(c.cost))].name for pick in (np.nanargmin, np.nanargmax))
        rows.append(Range(c.feature.name, f"{_cut(low)} < {_cut(high)}", tuple(kept)))
    lines = [_summary(c, len(drawn)) for c in drawn]
    table = Table.of(["feature", "lowest mean cost", "highest", "ratio", "chance"], lines)
    picture = range_picture("groups", rows, "mean cost of a group", lambda v: f"{v:g}")
    legend = (("dot s1", "cheapest group"), ("dot s0", "between"), ("dot s2", "dearest group"))
    caption = _caption(subject, drawn)
    return Figure("groups", "Mean cost by group", picture, caption, table, legend)


def group_tables(subject: Subject, found: list[Comparison]) -> list[tuple[str, Table]]:
    """For each feature a table with a line for each group."""
    ways = levers(subject)
    tables = []
    for c in found:
        header = ["group", "people", subject.role, "certified", "cost", "changes", "asked most for"]
        rows = [_line(subject, group, ways) for group in c.groups]
        action = c.feature.action.replace("_", " ")
        name = f"By {c.feature.name} ({action})"
        tables.append((name, Table.of(header, rows)))
    return tables


def _line(subject: Subject, group: Group, ways: list[Lever]) -> list[str]:
    asked, given = group.rows & subject.asked, group.rows & subject.given
    people = int(group.rows.sum())
    return [
        group.name,
        f"{people:,}",
        percent(asked.sum() / people),
        percent(_mean(subject.certified[asked])),
        short(_mean(subject.cost[given])),
        short(_mean(subject.n_changes[given])),
        usual_lever(ways, group.rows[subject.given]),
    ]


def _summary(c: Comparison, tests: int) -> list[str]:
    """The gap of one feature as words: lowest, highest, their ratio, and the corrected chance."""
    ends = [short(float(end(c.cost))) for end in (np.nanmin, np.nanmax)]
    return [c.feature.name, *ends, f"{c.ratio:.2f}", f"{min(c.chance * tests, 1.0):.2g}"]


def _comparison(subject: Subject, feature: Feature, groups: tuple[Group, ...]) -> Comparison:
    costs = [subject.cost[group.rows & subject.given] for group in groups]
    kept = [cost for cost in costs if len(cost) >= FEWEST]
    differs = len(kept) > 1 and len(np.unique(np.concatenate(kept))) > 1
    chance = float(kruskal(*kept).pvalue) if differs else 1.0
    means = np.array([_mean(cost) if len(cost) >= FEWEST else float("nan") for cost in costs])
    return Comparison(feature, groups, means, chance)


def _caption(subject: Subject, drawn: list[Comparison]) -> str:
    """What the widest gap is, whether chance explains it, and whether certificates differ too."""
    widest = drawn[0]
    dear, cheap = int(np.nanargmax(widest.cost)), int(np.nanargmin(widest.cost))
    real = [c for c in drawn if c.chance * len(drawn) < CHANCE]
    said = (
        f"The widest gap is in {widest.feature.name}: the mean cost is {short(widest.cost[dear])} for "
        f"{widest.groups[dear].name} and {short(widest.cost[cheap])} for {widest.groups[cheap].name}, "
        f"{widest.ratio:.2f} times as much. "
    )
    names = ", ".join(c.feature.name for c in real)
    chance = (
        f"Chance alone does not explain the gaps in {names} (Kruskal–Wallis, below {CHANCE:g} after "
        f"correction for {count(len(drawn), 'feature')}). "
        if real
        else f"Chance alone could explain every gap (Kruskal–Wallis over {count(len(drawn), 'feature')}). "
    )
    return said + chance + _certified_gap(subject, drawn)


def _certified_gap(subject: Subject, drawn: list[Comparison]) -> str:
    shares = [
        (float(subject.certified[rows].mean()), f"{group.name} ({c.feature.name})")
        for c in drawn
        for group in c.groups
        if (rows := group.rows & subject.asked).sum() >= FEWEST
    ]
    low, high = min(shares), max(shares)
    if low[0] == high[0]:
        return f"The certified share is {percent(low[0])} in every group."
    return f"The certified share is lowest for {low[1]}, {percent(low[0])}, and {percent(high[0])} at best."


def _gap(c: Comparison) -> float:
    return -1.0 if math.isnan(c.ratio) else c.ratio


def _bins(values: pd.Series[Any]) -> list[tuple[str, NDArray[np.int64]]]:
    """Quarters of the values, named by the smallest and the largest value in each."""
    numbers = values.to_numpy(dtype=np.float64)
    inner = np.unique(np.quantile(numbers, np.linspace(0, 1, BINS + 1)[1:-1], method="inverted_cdf"))
    place = np.searchsorted(inner, numbers, side="left")
    named = []
    for k in np.unique(place):
        members = np.flatnonzero(place == k)
        low, high = (float(f"{end(numbers[members]):.4g}") for end in (np.min, np.max))
        dash = "–" if low >= 0 else " to "  # a dash before a minus sign would not be read as one
        ends = value_in_words(low) if low == high else f"{value_in_words(low)}{dash}{value_in_words(high)}"
        named.append((ends, members))
    return named


def _values(feature: Feature, values: pd.Series[Any]) -> list[tuple[str, NDArray[np.int64]]]:
    """One group for each value, in the schema's order; rare ones together where there are too many."""
    codes, present = pd.factorize(values, sort=feature.is_numeric)
    found = {own(value): np.flatnonzero(codes == k) for k, value in enumerate(present)}
    order = [c for c in feature.categories if c in found] or list(found)
    if len(order) > MOST_GROUPS:
        common = sorted(order, key=lambda c: -len(found[c]))[: MOST_GROUPS - 1]
        rest = np.sort(np.concatenate([found[c] for c in order if c not in common]))
        named = [(value_in_words(c), found[c]) for c in order if c in common]
        return [*named, ("all others", rest)]
    return [(value_in_words(c), found[c]) for c in order]


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _cut(name: str, longest: int = 16) -> str:
    return name if len(name) <= longest else name[: longest - 1].rstrip() + "…"
