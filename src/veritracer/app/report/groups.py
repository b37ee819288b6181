"""Comparison of groups: the cost of recourse and the approval rate.

Groups are formed by each feature that is immutable or may change in one direction only. The guidelines of
the American EEOC look first at groups whose approval rate is below four fifths of the highest one; a rate
below that line is a reason to look closer, not a verdict. Groups of any size are compared: those with fewer
than 20 people by permutation tests, which need no assumption about their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest, fisher_exact, kruskal, rankdata

from veritracer.app.report.context import ReportContext
from veritracer.app.report.figures import (
    BLUE,
    ORANGE,
    Figure,
    Interval,
    Table,
    interval_chart,
    percent,
    shortened,
)
from veritracer.app.report.people import FeatureChanges, changed_features, most_frequent_change
from veritracer.encoding.cells import numbers
from veritracer.errors import listing
from veritracer.formatting import format_count, format_number, format_own_value, format_value, to_python
from veritracer.schema import Feature

FEWEST = 20
"""Groups with fewer people are compared by a permutation test."""

PERMUTATIONS, MOST_PERMUTED = 4_999, 200
"""Permutations of a test, and the people of each large group who are drawn for it."""

MOST_GROUPS, MOST_FEATURES, BINS = 8, 12, 4
CHANCE = 0.01
"""Significance level, after correction for the number of features."""


class Group(NamedTuple):
    """The rows with one value of a feature, or in one bin of it, (n,) bool."""

    name: str
    rows: NDArray[np.bool_]


def groups_of(feature: Feature, column: pd.Series[Any]) -> tuple[Group, ...]:
    """Group the rows by value of the feature; numbers with many values in four bins of about equal size."""
    absent = (column.isna() | column.isin(list(feature.missing_codes))).to_numpy(dtype=bool)
    values = column[~absent]
    if feature.is_numeric and values.nunique() > BINS + 1:
        named = _bins(numbers(feature, values)[0])
    else:
        named = _values(feature, values)
    found = []
    for name, members in named:
        rows = np.zeros(len(column), dtype=bool)
        rows[np.flatnonzero(~absent)[members]] = True
        found.append(Group(name, rows))
    return (*found, Group("missing", absent)) if absent.any() else tuple(found)


def compared_features(context: ReportContext) -> list[tuple[Feature, tuple[Group, ...]]]:
    """Return the immutable and one-way features that form at least two groups, with these groups."""
    features = [feature for feature in context.schema.features if feature.action != "free"]
    found = [(feature, groups_of(feature, context.table[feature.name])) for feature in features]
    return [(feature, groups) for feature, groups in found if len(groups) > 1]


def _bins(values: NDArray[np.float64]) -> list[tuple[str, NDArray[np.int64]]]:
    """Split the values into quarters, named by the smallest and the largest value in each."""
    inner = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1], method="inverted_cdf"))
    place = np.searchsorted(inner, values, side="left")
    named = []
    for k in np.unique(place):
        members = np.flatnonzero(place == k)
        low, high = (float(f"{end(values[members]):.4g}") for end in (np.min, np.max))
        dash = "–" if low >= 0 else " to "  # a dash before a minus sign would not be read as one
        ends = format_value(low) if low == high else f"{format_value(low)}{dash}{format_value(high)}"
        named.append((ends, members))
    return named


def _values(feature: Feature, values: pd.Series[Any]) -> list[tuple[str, NDArray[np.int64]]]:
    """Return a group for each value, in the schema's order; rare values share one if there are too many."""
    codes, present = pd.factorize(values, sort=feature.is_numeric)
    found = {to_python(value): np.flatnonzero(codes == k) for k, value in enumerate(present)}
    order = [c for c in feature.categories if c in found] or list(found)
    if len(order) > MOST_GROUPS:
        common = sorted(order, key=lambda c: -len(found[c]))[: MOST_GROUPS - 1]
        rest = np.sort(np.concatenate([found[c] for c in order if c not in common]))
        named = [(format_own_value(c), found[c]) for c in order if c in common]
        return [*named, ("all others", rest)]
    return [(format_own_value(c), found[c]) for c in order]


# ---------------------------------------------------------------- cost


@dataclass(frozen=True)
class Comparison:
    """The costs in each group of one feature, and the p-value of their difference.

    ``groups`` are those in which somebody has a counterfactual, ``left_out`` the names of the others.
    """

    feature: Feature
    groups: tuple[Group, ...]
    costs: tuple[NDArray[np.float64], ...]
    left_out: tuple[str, ...]
    chance: float

    @property
    def means(self) -> NDArray[np.float64]:
        """Return the mean cost of each group."""
        return np.array([cost.mean() for cost in self.costs])

    @property
    def ratio(self) -> float:
        """Return the largest mean cost over the smallest."""
        return float(self.means.max() / self.means.min()) if self.means.min() > 0 else math.nan

    @property
    def is_permuted(self) -> bool:
        """Return whether a group is too small for another test than one by permutation."""
        return min(map(len, self.costs)) < FEWEST

    def sized(self, k: int) -> str:
        """Return the name of a group with its number of people."""
        return f"{self.groups[k].name} ({format_count(len(self.costs[k]), 'person', 'people')})"


def compare(context: ReportContext) -> list[Comparison]:
    """Compare the groups of each immutable or one-way feature, the most significant difference first.

    If there are too many features, one-way ones are left out before immutable ones.
    """
    found = []
    for feature, groups in compared_features(context):
        costs = [context.cost[group.rows & context.has_cf] for group in groups]
        some = [k for k, cost in enumerate(costs) if len(cost)]
        if len(some) < 2:
            continue
        left_out = tuple(group.name for k, group in enumerate(groups) if k not in some)
        kept = tuple(costs[k] for k in some)
        found.append(Comparison(feature, tuple(groups[k] for k in some), kept, left_out, chance(kept)))
    kept_features = sorted(found, key=lambda c: c.feature.action != "immutable")[:MOST_FEATURES]
    return sorted(kept_features, key=lambda c: c.chance)


def chance(costs: Sequence[NDArray[np.float64]]) -> float:
    """Return the p-value of groups with the same distribution: Kruskal and Wallis, or by permutation."""
    if len(np.unique(np.concatenate(costs))) < 2:
        return 1.0
    if min(map(len, costs)) >= FEWEST:
        return float(kruskal(*costs).pvalue)
    rng = np.random.default_rng(0)
    some = [rng.choice(cost, min(len(cost), MOST_PERMUTED), replace=False) for cost in costs]
    sizes = np.array([len(cost) for cost in some])
    ranks = rankdata(np.concatenate(some))
    observed, extreme = _between_groups(ranks, sizes), 1
    for _ in range(PERMUTATIONS):
        extreme += _between_groups(rng.permutation(ranks), sizes) >= observed * (1 - 1e-12)
    return extreme / (PERMUTATIONS + 1)


def _between_groups(ranks: NDArray[np.float64], sizes: NDArray[np.int64]) -> float:
    """Return the part of Kruskal and Wallis's statistic that a permutation changes."""
    sums = np.add.reduceat(ranks, np.cumsum(sizes) - sizes)
    return float((sums**2 / sizes).sum())


def group_figure(context: ReportContext, found: list[Comparison]) -> Figure:
    """Draw the mean cost of each group on one scale, the most significant difference first."""
    rows, table = [], []
    for c in found:
        low, high = int(c.means.argmin()), int(c.means.argmax())
        ends = f"{shortened(c.groups[low].name, 16)} … {shortened(c.groups[high].name, 16)}"
        dots = tuple(c.means.tolist())
        rows.append(Interval(c.feature.name, ends, min(dots), max(dots), dots))
        line = {
            "feature": c.feature.name,
            "compared": ", ".join(c.sized(k) for k in range(len(c.groups))),
            "left out": ", ".join(c.left_out) or "none",
            "ratio": "–" if math.isnan(c.ratio) else f"{c.ratio:.2f}",
            "p-value": _p(c.chance * len(found)).removeprefix("p = ").removeprefix("p "),
            "test": "permutation" if c.is_permuted else "Kruskal–Wallis",
        }
        table.append(line)
    picture = interval_chart("groups", rows, "mean cost of each group")
    return Figure("groups", "Mean cost by group", picture, cost_caption(context, found), table)


def cost_caption(context: ReportContext, found: list[Comparison]) -> str:
    """State the most significant difference with its groups, which others are, and who is left out."""
    top = found[0]
    dear, cheap = int(top.means.argmax()), int(top.means.argmin())
    test = "permutation test" if top.is_permuted else "Kruskal–Wallis test"
    p = min(top.chance * len(found), 1.0)
    said = (
        f"The most significant difference is by {top.feature.name}: the mean cost is "
        f"{format_number(top.means[dear])} for {top.sized(dear)} and {format_number(top.means[cheap])} for "
        f"{top.sized(cheap)}. "
    )
    if len(top.groups) > 2:
        others = [top.sized(k) for k in range(len(top.groups)) if k not in (dear, cheap)]
        said += f"Also compared: {', '.join(others)}. "
    correction = f"{_p(p)} after correction for {format_count(len(found), 'feature')}"
    said += f"{'It is' if p < CHANCE else 'It is not'} significant ({test}, {correction}). "
    real = [c.feature.name for c in found[1:] if c.chance * len(found) < CHANCE]
    if len(found) > 1:
        said += f"Also significant: {', '.join(real)}. " if real else "No other difference is significant. "
    left = [f"{c.feature.name} {name}" for c in found for name in c.left_out]
    said += f"Left out, since nobody in them has a counterfactual: {listing(left)}. " if left else ""
    return said + _certified_gap(context, found)


def _certified_gap(context: ReportContext, found: list[Comparison]) -> str:
    shares = [
        (float(context.certified[rows].mean()), f"{group.name} ({c.feature.name})")
        for c in found
        for group in c.groups
        if (rows := group.rows & context.explained).any()
    ]
    low, high = min(shares), max(shares)
    if low[0] == high[0]:
        return f"The certified share is {percent(low[0])} in every group."
    return f"The certified share ranges from {percent(low[0])} ({low[1]}) to {percent(high[0])}."


def group_tables(context: ReportContext, found: list[Comparison]) -> dict[str, Table]:
    """Return a table for each feature, with a line for each group."""
    features = changed_features(context)
    return {
        f"By {c.feature.name} ({c.feature.action.replace('_', ' ')})": [
            _cost_line(context, group, features)
            for group in groups_of(c.feature, context.table[c.feature.name])
        ]
        for c in found
    }


def _cost_line(context: ReportContext, group: Group, features: list[FeatureChanges]) -> dict[str, str]:
    explained, has_cf = group.rows & context.explained, group.rows & context.has_cf
    people, given = int(group.rows.sum()), int(has_cf.sum())
    cost = format_number(_mean(context.cost[has_cf]))
    return {
        "group": group.name,
        "people": f"{people:,}",
        context.role: percent(explained.sum() / people),
        "certified": percent(_mean(context.certified[explained])),
        "mean cost": f"{cost} (of\u00a0{given})" if 0 < given < FEWEST else cost,
        "mean changes": format_number(_mean(context.n_changes[has_cf])),
        "most frequent change": most_frequent_change(features, group.rows[context.has_cf]),
    }


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else math.nan


# ---------------------------------------------------------------- approval rates


FOUR_FIFTHS = 0.8
"""Groups below this share of the highest approval rate are marked."""

Z = 1.959963984540054
"""Normal quantile of a 95 % interval."""

MOST_DRAWN_GROUPS, MOST_CALLOUTS = 12, 4
"""Groups that are drawn, and those below four fifths that are named; the tables have all of them."""


class Approval(NamedTuple):
    """The approvals of one group, beside those of the group with the highest rate: the best one.

    ``rate`` and ``ratio`` (to the best group) are a number and the ends of its 95 % interval; the ratio is
    NaN for the best group itself. ``chance`` is the p-value of Fisher's test, which is by permutation.
    """

    name: str
    accepted: int
    people: int
    rate: tuple[float, float, float]
    ratio: tuple[float, float, float]
    chance: float


class Approvals(NamedTuple):
    """The approvals of the groups of one feature; ``best`` is the one with the highest rate, if any."""

    feature: str
    groups: list[Approval]
    best: Approval | None

    @property
    def compared(self) -> list[Approval]:
        """Return the groups that are compared with the best one, the lowest ratio first."""
        kept = [one for one in self.groups if not math.isnan(one.ratio[0])]
        return sorted(kept, key=lambda one: one.ratio[0])


def approvals(context: ReportContext) -> list[Approvals]:
    """Return the approval rates by each immutable or one-way feature, the widest gap first.

    The group that others are compared with has at least 20 people.
    """
    found = []
    for feature, groups in compared_features(context):
        counts = [(int((g.rows & (context.logit > 0)).sum()), int(g.rows.sum())) for g in groups]
        large = [k for k, (_, people) in enumerate(counts) if people >= FEWEST]
        top = max(large, key=lambda k: counts[k][0] / counts[k][1], default=None)
        best = None if top is None or counts[top][0] == 0 else counts[top]
        made = [
            _approval(group.name, *count, best if k != top else None)
            for k, (group, count) in enumerate(zip(groups, counts, strict=True))
        ]
        found.append(Approvals(feature.name, made, None if best is None or top is None else made[top]))
    return sorted(found, key=lambda one: one.compared[0].ratio[0] if one.compared else math.inf)


def _approval(name: str, accepted: int, people: int, best: tuple[int, int] | None) -> Approval:
    ends = binomtest(accepted, people).proportion_ci(method="wilson")
    rate = accepted / people, float(ends.low), float(ends.high)
    if best is None:
        return Approval(name, accepted, people, rate, (math.nan,) * 3, math.nan)
    highest = best[0] / best[1]
    table = [[accepted, people - accepted], [best[0], best[1] - best[0]]]
    if accepted == 0 or people < FEWEST:  # Katz's interval needs more
        ratio = rate[0] / highest, rate[1] / highest, rate[2] / highest
    else:
        width = Z * math.sqrt(1 / accepted - 1 / people + 1 / best[0] - 1 / best[1])
        ratio = rate[0] / highest, rate[0] / highest * math.exp(-width), rate[0] / highest * math.exp(width)
    return Approval(name, accepted, people, rate, ratio, float(fisher_exact(table).pvalue))


def approval_figure(found: list[Approvals]) -> Figure | None:
    """Draw the ratio of each group to the highest one of its feature, with the four-fifths line."""
    rows, table = [], []
    for feature in found:
        for one in feature.compared:
            ratio, low, high = one.ratio
            name = f"{feature.feature}: {one.name}"
            colour = ORANGE if ratio < FOUR_FIFTHS else BLUE
            remark = f"{_two(ratio)} ({_two(low)} to {_two(high)})"
            rows.append(Interval(name, remark, low, high, (ratio,), colour))
            ends = {"ratio": _two(ratio), "from": _two(low), "to": _two(high)}
            table.append({"group": name, "approved": percent(one.rate[0]), **ends})
    if not rows:
        return None
    drawn = rows[:MOST_DRAWN_GROUPS]
    picture = interval_chart(
        "approvals",
        drawn,
        "approval rate over the highest one (95\u00a0% interval)",
        highest=max(1.0, *(min(row.high, 2.0) for row in drawn)),
        line_at=(FOUR_FIFTHS, "four fifths"),
    )
    title = "Approval rate compared with the highest group"
    return Figure("approvals", title, picture, approval_caption(found), table)


def callouts(found: list[Approvals]) -> list[str]:
    """Return how many groups are below four fifths, and a sentence for each of the lowest ratios."""
    compared = [(one.ratio[0], feature, one) for feature in found for one in feature.compared]
    below = sorted((one for one in compared if one[0] < FOUR_FIFTHS), key=lambda one: one[0])
    if not below:
        return []
    first = (
        f"{len(below)} of {format_count(len(compared), 'group')} {'has' if len(below) == 1 else 'have'} an "
        "approval rate below four fifths of that of the highest group of the same feature; the lowest is "
        f"{below[0][1].feature} {below[0][2].name}, with {_two(below[0][0])} of it."
    )
    return [first, *(_callout(feature, one) for _, feature, one in below[:MOST_CALLOUTS])]


def _callout(feature: Approvals, one: Approval) -> str:
    assert feature.best is not None
    test = f"; permutation test, {_p(one.chance)}" if one.people < FEWEST else ""
    return (
        f"{feature.feature} {one.name}: {one.accepted:,} of {one.people:,} approved "
        f"({percent(one.rate[0])}), {_two(one.ratio[0])} times that of {feature.feature} "
        f"{feature.best.name} ({percent(feature.best.rate[0])}); 95\u00a0% interval {_two(one.ratio[1])} to "
        f"{_two(one.ratio[2])}{test}."
    )


def approval_caption(found: list[Approvals]) -> str:
    """State how many groups are below four fifths and how certain that is, and who is left out."""
    compared = [one for feature in found for one in feature.compared]
    below = [one for one in compared if one.ratio[0] < FOUR_FIFTHS]
    surely = sum(one.ratio[2] < FOUR_FIFTHS for one in below)
    small = sum(one.people < FEWEST for one in compared)
    said = (
        f"For {surely} of the {format_count(len(below), 'group')} below four fifths, the whole interval is "
        "below that line. "
        if below
        else f"None of {format_count(len(compared), 'group')} is below four fifths. "
    )
    if small:
        said += f"{format_count(small, 'group')} with fewer than {FEWEST} people: by permutation test. "
    left = [feature.feature for feature in found if not feature.compared]
    said += f"Not compared, for lack of a large group with approvals: {listing(left)}. " if left else ""
    return (
        f"{said}A different rate does not prove unfair treatment, and an equal one does not prove fair "
        "treatment."
    )


def approval_tables(found: list[Approvals]) -> dict[str, Table]:
    """Return a table for each feature, with a line for each group."""
    return {
        f"Approved, by {feature.feature}": [_approval_line(feature, one) for one in feature.groups]
        for feature in found
    }


def _approval_line(feature: Approvals, one: Approval) -> dict[str, str]:
    ratio, low, high = map(_two, one.ratio)
    ends = "–" if ratio == "–" else f"{low} to {high}"
    if one.people < FEWEST and ratio != "–":
        ends += f" ({_p(one.chance)})"
    return {
        "group": one.name,
        "people": f"{one.people:,}",
        "approved": percent(one.rate[0]),
        "95\u00a0% interval": f"{percent(one.rate[1])} to {percent(one.rate[2])}",
        "ratio": "highest" if one is feature.best else ratio,
        "interval of the ratio": ends,
    }


def _p(value: float) -> str:
    """Format a p-value."""
    return "p < 0.0001" if value < 0.0001 else f"p = {min(value, 1.0):.2g}"


def _two(ratio: float) -> str:
    """Format a ratio with two decimals, rounded down, so that 0.799 does not reach four fifths."""
    return "–" if math.isnan(ratio) else f"{math.floor(100 * ratio + 1e-9) / 100:.2f}"
