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
from veritracer.encoding.cells import numbers
from veritracer.formatting import format_count, format_number, format_own_value, format_value, to_python
from veritracer.schema import Feature

FEWEST = 20
"""Smallest group that is compared: in rows with a counterfactual, or for approval rates in rows."""

MOST_GROUPS, MOST_FEATURES, BINS = 8, 12, 4
CHANCE = 0.01
"""Significance level, after correction for the number of features."""


@dataclass(frozen=True)
class Group:
    """The rows with one value of a feature, or in one bin of it, (n,) bool."""

    name: str
    rows: NDArray[np.bool_]


@dataclass(frozen=True)
class Comparison:
    """The groups of one feature, the mean cost of each, and the p-value of their difference.

    ``cost`` is nan for a group that is too small to compare; ``chance`` is the p-value of Kruskal and
    Wallis over the others (1 where fewer than two are left), not yet corrected for other features.
    """

    feature: Feature
    groups: tuple[Group, ...]
    cost: NDArray[np.float64]
    chance: float

    @property
    def ratio(self) -> float:
        """Return the largest mean cost over the smallest; NaN where fewer than two can be compared."""
        kept = self.cost[~np.isnan(self.cost)]
        return float(kept.max() / kept.min()) if len(kept) > 1 and kept.min() > 0 else float("nan")


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


def compare_features(context: ReportContext) -> list[Feature]:
    """Return the features that are immutable or may change in one direction only."""
    return [f for f in context.schema.features if f.action != "free"]


def compare(context: ReportContext) -> list[Comparison]:
    """Compare the groups of each immutable or one-way feature, the widest gap first.

    If there are too many features, one-way ones are left out before immutable ones, which are shown even
    where there is no gap.
    """
    features = compare_features(context)
    every = [_comparison(context, f, groups_of(f, context.table[f.name])) for f in features]
    found = sorted((c for c in every if len(c.groups) > 1), key=_gap, reverse=True)
    kept = sorted(found, key=lambda c: c.feature.action != "immutable")[:MOST_FEATURES]
    return sorted(kept, key=_gap, reverse=True)


def group_figure(context: ReportContext, found: list[Comparison]) -> Figure | None:
    """Draw the mean cost of each group on one scale, the widest gap first; None without a comparison."""
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
    """Return a table for each feature, with a line for each group."""
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
    """Format a mean; that of a group too small to compare is followed by the number of rows."""
    return mean if people >= FEWEST or people == 0 else f"{mean} (of\u00a0{people})"


def _summary(c: Comparison, tests: int) -> list[str]:
    """Return lowest and highest mean, their ratio and the corrected p-value as text."""
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
    """State the widest gap, which gaps are significant, and the range of the certified share."""
    widest = drawn[0]
    dear, cheap = int(np.nanargmax(widest.cost)), int(np.nanargmin(widest.cost))
    real = [c for c in drawn if c.chance * len(drawn) < CHANCE]
    said = (
        f"The largest difference is by {widest.feature.name}: the mean cost is "
        f"{format_number(widest.cost[dear])} for {widest.groups[dear].name} and "
        f"{format_number(widest.cost[cheap])} for {widest.groups[cheap].name}, a ratio of "
        f"{widest.ratio:.2f}. "
    )
    few = sum(int(math.isnan(cost)) for c in drawn for cost in c.cost)
    if few:
        what = "group has" if few == 1 else "groups have"
        said += (
            f"{few} {what} fewer than {FEWEST} rows with a counterfactual: marked in the tables, not "
            "compared. "
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


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")


# ---------------------------------------------------------------- approval rates


FOUR_FIFTHS = 0.8
"""Groups below this share of the highest approval rate are marked."""

Z = 1.959963984540054
"""Normal quantile of a 95 % interval."""

MOST_DRAWN_GROUPS = 24
"""Groups that are drawn; the tables have all of them."""


@dataclass(frozen=True)
class Approval:
    """The approvals of one group, with Wilson's 95 % interval of the rate."""

    group: Group
    accepted: int
    people: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        """Return the share of the group that is approved."""
        return self.accepted / self.people if self.people else math.nan

    @property
    def is_small(self) -> bool:
        """Return whether the group is too small to be compared."""
        return self.people < FEWEST


@dataclass(frozen=True)
class Approvals:
    """The approval rates of the groups of one feature."""

    feature: Feature
    groups: tuple[Approval, ...]

    @property
    def highest(self) -> Approval | None:
        """Return the group with the highest rate; None where fewer than two groups can be compared."""
        large = [one for one in self.groups if not one.is_small]
        return max(large, key=lambda one: one.rate) if len(large) > 1 else None

    def ratio(self, one: Approval) -> tuple[float, float, float]:
        """Return the rate of a group over the highest one, and Katz's 95 % interval (of the logarithm)."""
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
        """Return the lowest ratio; NaN where there is none."""
        ratios = [r for one in self.groups if not math.isnan(r := self.ratio(one)[0])]
        return min(ratios, default=math.nan)


def approvals(context: ReportContext) -> list[Approvals]:
    """Return the approval rates by each immutable or one-way feature, the widest gap first."""
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
    """Draw the ratio of each group to the highest one of its feature, with the four-fifths line."""
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
        "approval rate over the highest one (95\u00a0% interval)",
        highest=max(1.0, *(min(row.high, 2.0) for row in drawn)),
        line_at=(FOUR_FIFTHS, "four fifths"),
    )
    title = "Approval rate compared with the highest group"
    return Figure("approvals", title, picture, approval_caption(found), Table.of(header, lines))


def approval_caption(found: list[Approvals]) -> str:
    """State the groups below four fifths, how certain that is, and how many groups are too small."""
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
            "approval rate below four fifths of that of the highest group of the same feature: "
            f"{named}{more}. For {surely} of them the whole interval is below that line. "
        )
    else:
        said = (
            f"None of {format_count(compared, 'group')} has an approval rate below four fifths of that of "
            "the highest group of the same feature. "
        )
    if small:
        what = "group has" if small == 1 else "groups have"
        said += f"{small} {what} fewer than {FEWEST} rows: shown in the tables, not compared. "
    return (
        said
        + "A different rate does not prove unfair treatment, and an equal one does not prove fair treatment."
    )


def approval_tables(found: list[Approvals]) -> list[tuple[str, Table]]:
    """Return a table for each feature, with a line for each group, small ones included."""
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
    """Format a ratio with two decimals, rounded down, so that 0.799 does not reach four fifths."""
    return "–" if math.isnan(ratio) else f"{math.floor(100 * ratio + 1e-9) / 100:.2f}"
