"""Comparison of groups: the cost of recourse and the approval rate.

Groups are formed by each feature that is immutable or may change in one direction only. The guidelines of
the American EEOC look first at groups whose approval rate is below four fifths of the highest one; a rate
below that line is a reason to look closer, not a verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest, kruskal

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
from veritracer.formatting import format_count, format_number, format_own_value, format_value, to_python
from veritracer.schema import Feature

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


def compare_features(context: ReportContext) -> list[Feature]:
    """The features that nobody can freely change."""
    return [f for f in context.schema.features if f.action != "free"]


def compare(context: ReportContext) -> list[Comparison]:
    """A comparison for each immutable or one-way feature with at least two groups, the widest gap first.

    Where there are too many features, one-way ones are left out before immutable ones: what people are
    born with has to be shown even where there is no gap.
    """
    features = compare_features(context)
    every = [_comparison(context, f, groups_of(f, context.table[f.name])) for f in features]
    found = sorted((c for c in every if len(c.groups) > 1), key=_gap, reverse=True)
    kept = sorted(found, key=lambda c: c.feature.action != "immutable")[:MOST_FEATURES]
    return sorted(kept, key=_gap, reverse=True)


def group_figure(context: ReportContext, found: list[Comparison]) -> Figure | None:
    """The mean cost of each group on one scale, the widest gap first; None where there is none to draw."""
    drawn = [c for c in found if not math.isnan(c.ratio)]
    if not drawn:
        return None
    rows = []
    for c in drawn:
        kept = tuple(c.cost[~np.isnan(c.cost)].tolist())
        low, high = (c.groups[int(pick(c.cost))].name for pick in (np.nanargmin, np.nanargmax))
        ends = shortened(low, 16), shortened(high, 16)
        rows.append(Interval(c.feature.name, "", min(kept), max(kept), kept, labels=ends))
    lines = [_summary(c, len(drawn)) for c in drawn]
    table = Table.of(["feature", "lowest mean cost", "highest", "ratio", "p-value"], lines)
    picture = interval_chart("groups", rows, "mean cost of each group")
    caption = _cost_caption(context, drawn)
    return Figure("groups", "Mean cost by group", picture, caption, table)


def group_tables(context: ReportContext, found: list[Comparison]) -> list[tuple[str, Table]]:
    """For each feature a table with a line for each group."""
    features = changed_features(context)
    tables = []
    for c in found:
        header = [
            "group",
            "people",
            context.role,
            "certified",
            "mean cost",
            "mean changes",
            "most frequent change",
        ]
        rows = [_cost_line(context, group, features) for group in c.groups]
        action = c.feature.action.replace("_", " ")
        name = f"By {c.feature.name} ({action})"
        tables.append((name, Table.of(header, rows)))
    return tables


def _cost_line(context: ReportContext, group: Group, features: list[FeatureChanges]) -> list[str]:
    explained, has_cf = group.rows & context.explained, group.rows & context.has_cf
    people = int(group.rows.sum())
    return [
        group.name,
        f"{people:,}",
        percent(explained.sum() / people),
        percent(_mean(context.certified[explained])),
        _of_few(format_number(_mean(context.cost[has_cf])), int(has_cf.sum())),
        format_number(_mean(context.n_changes[has_cf])),
        most_frequent_change(features, group.rows[context.has_cf]),
    ]


def _of_few(mean: str, people: int) -> str:
    """A mean, with how few it is of where it is not compared with others."""
    return mean if people >= FEWEST or people == 0 else f"{mean} (of\u00a0{people})"


def _summary(c: Comparison, tests: int) -> list[str]:
    """The gap of one feature as words: lowest, highest, their ratio, and the corrected chance."""
    ends = [format_number(float(end(c.cost))) for end in (np.nanmin, np.nanmax)]
    return [c.feature.name, *ends, f"{c.ratio:.2f}", f"{min(c.chance * tests, 1.0):.2g}"]


def _comparison(context: ReportContext, feature: Feature, groups: tuple[Group, ...]) -> Comparison:
    costs = [context.cost[group.rows & context.has_cf] for group in groups]
    kept = [cost for cost in costs if len(cost) >= FEWEST]
    differs = len(kept) > 1 and len(np.unique(np.concatenate(kept))) > 1
    chance = float(kruskal(*kept).pvalue) if differs else 1.0
    means = np.array([_mean(cost) if len(cost) >= FEWEST else float("nan") for cost in costs])
    return Comparison(feature, groups, means, chance)


def _cost_caption(context: ReportContext, drawn: list[Comparison]) -> str:
    """What the widest gap is, whether chance explains it, and whether certificates differ too."""
    widest = drawn[0]
    dear, cheap = int(np.nanargmax(widest.cost)), int(np.nanargmin(widest.cost))
    real = [c for c in drawn if c.chance * len(drawn) < CHANCE]
    said = (
        f"The largest difference is by {widest.feature.name}: the mean cost is "
        f"{format_number(widest.cost[dear])} "
        f"for {widest.groups[dear].name} and {format_number(widest.cost[cheap])} for "
        f"{widest.groups[cheap].name}, "
        f"a ratio of {widest.ratio:.2f}. "
    )
    few = sum(int(math.isnan(cost)) for c in drawn for cost in c.cost)
    if few:
        what = "group has" if few == 1 else "groups have"
        said += (
            f"{few} {what} fewer than {FEWEST} rows with a counterfactual; marked in the tables and not "
            "compared here. "
        )
    names = ", ".join(c.feature.name for c in real)
    chance = (
        f"The differences by {names} are significant (Kruskal–Wallis test, p < {CHANCE:g} after "
        f"correction for {format_count(len(drawn), 'feature')}). "
        if real
        else "No difference is significant "
        f"(Kruskal–Wallis test over {format_count(len(drawn), 'feature')}). "
    )
    return said + chance + _certified_gap(context, drawn)


def _certified_gap(context: ReportContext, drawn: list[Comparison]) -> str:
    shares = [
        (float(context.certified[rows].mean()), f"{group.name} ({c.feature.name})")
        for c in drawn
        for group in c.groups
        if (rows := group.rows & context.explained).sum() >= FEWEST
    ]
    low, high = min(shares), max(shares)
    if low[0] == high[0]:
        return f"The certified share is {percent(low[0])} in every group."
    return f"The certified share ranges from {percent(low[0])} ({low[1]}) to {percent(high[0])}."


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
        ends = format_value(low) if low == high else f"{format_value(low)}{dash}{format_value(high)}"
        named.append((ends, members))
    return named


def _values(feature: Feature, values: pd.Series[Any]) -> list[tuple[str, NDArray[np.int64]]]:
    """One group for each value, in the schema's order; rare ones together where there are too many."""
    codes, present = pd.factorize(values, sort=feature.is_numeric)
    found = {to_python(value): np.flatnonzero(codes == k) for k, value in enumerate(present)}
    order = [c for c in feature.categories if c in found] or list(found)
    if len(order) > MOST_GROUPS:
        common = sorted(order, key=lambda c: -len(found[c]))[: MOST_GROUPS - 1]
        rest = np.sort(np.concatenate([found[c] for c in order if c not in common]))
        named = [(format_own_value(c), found[c]) for c in order if c in common]
        return [*named, ("all others", rest)]
    return [(format_own_value(c), found[c]) for c in order]


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")


# ---------------------------------------------------------------- approval rates


FOUR_FIFTHS = 0.8
"""Below this share of the highest rate a group is pointed out."""

Z = 1.959963984540054
"""Of a 95 % interval."""

MOST_DRAWN_GROUPS = 24
"""Groups that are drawn; the tables have all of them."""


@dataclass(frozen=True)
class Approval:
    """How many of a group are accepted: of how many, and the 95 % interval of the share (Wilson's)."""

    group: Group
    accepted: int
    people: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        """The share that is accepted."""
        return self.accepted / self.people if self.people else math.nan

    @property
    def is_small(self) -> bool:
        """Whether it is too small to be compared."""
        return self.people < FEWEST


@dataclass(frozen=True)
class Approvals:
    """The approval rates of one feature's groups, and which of them is the highest one of those compared."""

    feature: Feature
    groups: tuple[Approval, ...]

    @property
    def highest(self) -> Approval | None:
        """The group that others are compared with; None where there are not two that are large enough."""
        large = [one for one in self.groups if not one.is_small]
        return max(large, key=lambda one: one.rate) if len(large) > 1 else None

    def ratio(self, one: Approval) -> tuple[float, float, float]:
        """A group's rate over the highest one, and its 95 % interval (Katz's, of the logarithm)."""
        top = self.highest
        if top is None or one is top or one.is_small or top.accepted == 0:
            return (math.nan,) * 3
        ratio = one.rate / top.rate
        if one.accepted == 0:
            return 0.0, 0.0, one.high / top.rate
        spread = sum(1 / g.accepted - 1 / g.people for g in (one, top))
        width = Z * math.sqrt(max(spread, 0.0))
        return ratio, ratio * math.exp(-width), ratio * math.exp(width)

    @property
    def lowest(self) -> float:
        """The lowest ratio; nan where there is none."""
        ratios = [r for one in self.groups if not math.isnan(r := self.ratio(one)[0])]
        return min(ratios, default=math.nan)


def approvals(context: ReportContext) -> list[Approvals]:
    """The approval rates by each feature that nobody can freely change, the widest gap first."""
    accepted = context.logit > 0
    found = []
    for feature in compare_features(context):
        groups = tuple(_approval(g, accepted) for g in groups_of(feature, context.table[feature.name]))
        if len(groups) > 1:
            found.append(Approvals(feature, groups))
    return sorted(found, key=lambda one: 2.0 if math.isnan(one.lowest) else one.lowest)


def _approval(group: Group, accepted: NDArray[np.bool_]) -> Approval:
    people, yes = int(group.rows.sum()), int((group.rows & accepted).sum())
    if people == 0:
        return Approval(group, 0, 0, math.nan, math.nan)
    ends = binomtest(yes, people).proportion_ci(method="wilson")
    return Approval(group, yes, people, float(ends.low), float(ends.high))


def approval_figure(found: list[Approvals]) -> Figure | None:
    """The ratio of each group to the highest one of its feature, on one scale with the four-fifths line."""
    rows, lines = [], []
    for feature in found:
        for one in feature.groups:
            ratio, low, high = feature.ratio(one)
            if math.isnan(ratio):
                continue
            name = f"{feature.feature.name}: {one.group.name}"
            colour = ORANGE if ratio < FOUR_FIFTHS else BLUE
            said = [_two(number) for number in (ratio, low, high)]
            remark = f"{said[0]} ({said[1]} to {said[2]})"
            rows.append(Interval(name, remark, low, high, (ratio,), colour))
            lines.append([name, percent(one.rate), *said])
    if not rows:
        return None
    header = ["group", "approved", "ratio", "from", "to"]
    drawn = rows[:MOST_DRAWN_GROUPS]
    picture = interval_chart(
        "approvals",
        drawn,
        "approval rate divided by that of the highest group, with 95\u00a0% interval",
        highest=max(1.0, *(min(row.high, 2.0) for row in drawn)),
        line_at=(FOUR_FIFTHS, "four fifths"),
    )
    title = "Approval rate compared with the highest group"
    return Figure("approvals", title, picture, approval_caption(found), Table.of(header, lines))


def approval_caption(found: list[Approvals]) -> str:
    """What is below four fifths, how sure that is, and which groups are too small to say."""
    below, surely, small, compared = [], 0, 0, 0
    for feature in found:
        for one in feature.groups:
            ratio, _, high = feature.ratio(one)
            small += one.is_small
            compared += not math.isnan(ratio)
            if ratio < FOUR_FIFTHS:
                below.append((ratio, f"{feature.feature.name} {one.group.name} ({_two(ratio)})"))
                surely += high < FOUR_FIFTHS
    if below:
        named = ", ".join(name for _, name in sorted(below)[:4])
        more = f" and {len(below) - 4} more" if len(below) > 4 else ""
        said = (
            f"{len(below)} of {format_count(compared, 'group')} {'has' if len(below) == 1 else 'have'} an "
            "approval "
            f"rate below four fifths of the highest group of the same feature: {named}{more}. "
            f"For {surely} of them the whole interval is below that line. "
        )
    else:
        said = (
            f"None of {format_count(compared, 'group')} has an approval rate below four fifths of the "
            "highest. "
        )
    if small:
        what = "group has" if small == 1 else "groups have"
        said += f"{small} {what} fewer than {FEWEST} rows; shown in the tables and not compared. "
    return (
        said
        + "A different rate does not prove unfair treatment, and an equal one does not prove fair treatment."
    )


def approval_tables(found: list[Approvals]) -> list[tuple[str, Table]]:
    """For each feature a table with a line for each group, small ones too."""
    header = ["group", "people", "approved", "95\u00a0% interval", "ratio", "95\u00a0% interval"]
    return [
        (f"Approved, by {one.feature.name}", Table.of(header, [_approval_line(one, g) for g in one.groups]))
        for one in found
    ]


def _approval_line(feature: Approvals, one: Approval) -> list[str]:
    ratio, low, high = feature.ratio(one)
    interval = f"{percent(one.low)} to {percent(one.high)}"
    compared = [_two(ratio), f"{_two(low)} to {_two(high)}"]
    if one is feature.highest:
        compared = ["1", "the highest"]
    elif one.is_small:
        compared = ["–", f"fewer than {FEWEST}"]
    elif math.isnan(ratio):
        compared = ["–", "–"]
    return [one.group.name, f"{one.people:,}", percent(one.rate), interval, *compared]


def _two(ratio: float) -> str:
    """A ratio with two decimals, never more than it is: what is below a line is not rounded onto it."""
    return "–" if math.isnan(ratio) else f"{math.floor(100 * ratio + 1e-9) / 100:.2f}"
