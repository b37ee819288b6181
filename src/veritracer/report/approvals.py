"""Approval rate of each group with confidence intervals, compared with the four-fifths rule.

Groups are made by the features that nobody can freely change. A group whose rate is below four fifths of the
highest one is what the guidelines of the American EEOC look at first; it is a place to look, and no verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from veritracer.formatting import format_count
from veritracer.report.charts import Figure, Span, Table, percent, span_picture
from veritracer.report.levers import FEWEST, Group, compare_features, groups_of
from veritracer.report.subject import Subject
from veritracer.schema import Feature

FOUR_FIFTHS = 0.8
"""Below this share of the highest rate a group is pointed out."""

Z = 1.959963984540054
"""Of a 95 % interval."""

MOST_DRAWN = 24
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


def approvals(subject: Subject) -> list[Approvals]:
    """The approval rates by each feature that nobody can freely change, the widest gap first."""
    accepted = subject.logit > 0
    found = []
    for feature in compare_features(subject):
        groups = tuple(_approval(g, accepted) for g in groups_of(feature, subject.table[feature.name]))
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
            series = "s2" if ratio < FOUR_FIFTHS else "s1"
            said = [_two(number) for number in (ratio, low, high)]
            remark = f"{said[0]} ({said[1]} to {said[2]})"
            rows.append(Span(name, remark, ratio, low, high, series))
            lines.append([name, percent(one.rate), *said])
    if not rows:
        return None
    header = ["group", "approved", "ratio", "from", "to"]
    picture = span_picture(
        "approvals",
        rows[:MOST_DRAWN],
        "approval rate divided by that of the highest group",
        FOUR_FIFTHS,
        "4/5",
    )
    legend = (
        ("dot s1", "ratio with 95\u00a0% interval"),
        ("dot s2", "below four fifths"),
        ("line s3", "four fifths"),
    )
    title = "Approval rate compared with the highest group"
    return Figure("approvals", title, picture, caption(found), Table.of(header, lines), legend)


def caption(found: list[Approvals]) -> str:
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
        (f"Approved, by {one.feature.name}", Table.of(header, [_line(one, g) for g in one.groups]))
        for one in found
    ]


def _line(feature: Approvals, one: Approval) -> list[str]:
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
