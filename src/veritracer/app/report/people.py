"""The counterfactuals: cost, changed features, acceptance by independent models, example people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from veritracer.app.report.context import ReportContext
from veritracer.app.report.figures import (
    BLACK,
    BLUE,
    ORANGE,
    Bar,
    Figure,
    Interval,
    Table,
    bar_chart,
    drawing,
    histogram,
    interval_chart,
    label_lines,
    mark,
    name_axes,
    percent,
    shortened,
    to_svg,
)
from veritracer.changes import Change
from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Block
from veritracer.encoding.cells import numbers
from veritracer.formatting import (
    as_written,
    decimal_of,
    format_count,
    format_number,
    format_own_value,
    format_value,
)
from veritracer.metrics import proximity
from veritracer.schema import Feature

MOST_ROWS = 8
"""Bars of the number of changes; larger numbers share the last one."""


def effort_figures(context: ReportContext) -> list[Figure]:
    """Draw the distributions of cost and number of changes over the rows with a counterfactual."""
    return [_cost(context), _changes(context)]


def _cost(context: ReportContext) -> Figure:
    cost = context.cost[context.has_cf]
    middle, most = (float(np.quantile(cost, q)) for q in (0.5, 0.9))
    heights, edges = np.histogram(cost, bins=_edges(cost))
    columns = list(zip(edges[:-1].tolist(), edges[1:].tolist(), heights.tolist(), strict=True))
    with drawing() as axes:
        name_axes(
            axes,
            "cost (sum of changes, each as a share of its range)",
            "people",
            y_format="{:,.0f}".format,
        )
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, heights.max() * 1.15))
        histogram(axes, edges, heights)
        mark(axes, middle, f"median {format_number(middle)}")
        label_lines(axes)
        picture = to_svg(axes, "cost")
    where = context.first[context.has_cf]
    near = proximity(context.recourse.x[where], context.recourse.x_cf[where])
    tail = float((cost > 2 * middle).mean())
    caption = (
        f"The median cost is {format_number(middle)}; nine in ten applicants need at most "
        f"{format_number(most)} (a cost of 1 moves one feature along its whole range). "
        f"{percent(tail)} need more than twice the median. "
        f"The mean distance per encoded column is {format_number(near)}."
    )
    rows = [[format_number(a), format_number(b), f"{n:,}"] for a, b, n in columns]
    table = Table.of(["from", "to", "people"], rows, words=0)
    return Figure("cost", "Cost of the counterfactuals", picture, caption, table)


def _edges(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return round edges of some twenty bins from 0 to beyond the largest cost."""
    return np.asarray(MaxNLocator(25).tick_values(0.0, float(cost.max()) or 1.0))


def _changes(context: ReportContext) -> Figure:
    changes = context.n_changes[context.has_cf]
    most, people = int(changes.max()), len(changes)
    lowest = int(changes.min())
    last = min(most, lowest + MOST_ROWS - 1)
    names = [format_count(k, "change") for k in range(lowest, last)]
    counts = [int((changes == k).sum()) for k in range(lowest, last)]
    names.append(format_count(last, "change") if last == most else f"{last} to {most} changes")
    counts.append(int((changes >= last).sum()))
    longest = max(counts)
    rows = [
        Bar(name, f"{n:,} ({percent(n / people)})", ((n / longest, BLUE),))
        for name, n in zip(names, counts, strict=True)
    ]
    few, features = float((changes <= 3).mean()), len(context.schema)
    usual = int(np.bincount(changes).argmax())
    caption = (
        f"{percent(few)} of the applicants change at most three of {features} features. The most common "
        f"number is {usual}, the mean {changes.mean():.2f} and the maximum {most}."
    )
    table = Table.of(["", "people"], [[a, f"{n:,}"] for a, n in zip(names, counts, strict=True)])
    picture = bar_chart("changes", rows)
    return Figure("changes", "Number of changed features", picture, caption, table)


# ---------------------------------------------------------------- changed features


MOST_DRAWN_FEATURES = 12
"""Features that are drawn; the table has all of them."""


HALF = 0.5
"""A change of more than this share of a feature's range is a large one."""


@dataclass(frozen=True)
class FeatureChanges:
    """The changes of one feature.

    Attributes
    ----------
    changed
        The counterfactuals that change it, (n,) bool.
    moves, known
        The signed encoded change where the old value is known, and a mask of these among the changed ones;
        empty for a feature whose values have no order.
    up, down
        Numbers of increases and decreases; both 0 where values have no order.
    typical
        The typical change as text.
    """

    feature: Feature
    changed: NDArray[np.bool_]
    moves: NDArray[np.float64]
    known: NDArray[np.bool_]
    up: int
    down: int
    typical: str

    @property
    def share(self) -> float:
        """Return the share of counterfactuals that change the feature."""
        return float(self.changed.mean())


def changed_features(context: ReportContext) -> list[FeatureChanges]:
    """Return the changes of all features, the most frequent first."""
    where = context.first[context.has_cf]
    encoding, recourse = context.recourse.encoding, context.recourse
    changed = encoding.changed(recourse.x_cf[where], recourse.x[where]).numpy()
    found = [
        _feature_changes(context, block, changed[:, k], where) for k, block in enumerate(encoding.blocks)
    ]
    return sorted(found, key=lambda changes: -int(changes.changed.sum()))


def change_figures(context: ReportContext) -> list[Figure]:
    """Draw how often each feature changes, and how far."""
    found = [changes for changes in changed_features(context) if changes.changed.any()]
    if not found:
        return []
    figures = [_how_often(context, found)]
    ordered = [changes for changes in found[:MOST_DRAWN_FEATURES] if len(changes.moves)]
    return [*figures, _how_far(ordered)] if ordered else figures


def _feature_changes(
    context: ReportContext, block: Block, changed: NDArray[np.bool_], where: NDArray[np.int64]
) -> FeatureChanges:
    feature, recourse = block.feature, context.recourse
    rows = where[changed]
    before, after = recourse.original[feature.name].iloc[rows], recourse.frame[feature.name].iloc[rows]
    if block.group is not None or feature.kind == "binary":
        return FeatureChanges(
            feature, changed, np.zeros(0), np.zeros(0, dtype=bool), 0, 0, _commonest(before, after)
        )
    known = ~recourse.encoding.missing(recourse.x[rows])[:, block.start].numpy()
    moves = (recourse.x_cf[rows, block.start] - recourse.x[rows, block.start]).numpy()[known]
    up, down = int((moves > 0).sum()), int((moves < 0).sum())
    if feature.kind == "ordinal":
        typical = _commonest(before, after)
    else:
        typical = _usual_amounts(feature, before[known], after[known])
    return FeatureChanges(feature, changed, moves, known, up, down, typical)


def _usual_amounts(feature: Feature, before: pd.Series[Any], after: pd.Series[Any]) -> str:
    """Format the median increase and the median decrease, in the feature's own units."""
    amount = numbers(feature, after)[0] - numbers(feature, before)[0]
    said = [
        f"{sign}{format_value(float(f'{np.median(part):.3g}'))}"
        for part, sign in ((amount[amount > 0], "+"), (-amount[amount < 0], "−"))
        if len(part)
    ]
    return " or ".join(said) if said else "stated"


def _commonest(before: pd.Series[Any], after: pd.Series[Any]) -> str:
    pairs = Counter(
        f"{format_own_value(a)} → {format_value(b)}"
        for a, b in zip(before.tolist(), after.tolist(), strict=True)
    )
    # Ties are broken by the words, so that a report is the same every time.
    return min(pairs, key=lambda pair: (-pairs[pair], pair)) if pairs else ""


def _how_often(context: ReportContext, found: list[FeatureChanges]) -> Figure:
    people = int(context.has_cf.sum())
    rows = [_bar(changes, people) for changes in found[:MOST_DRAWN_FEATURES]]
    header = ["feature", "typical change", "changed for", "up", "down", "may change"]
    lines = [
        [
            changes.feature.name,
            changes.typical,
            percent(changes.share),
            f"{changes.up:,}",
            f"{changes.down:,}",
            changes.feature.action.replace("_", " "),
        ]
        for changes in found
    ]
    top, untouched = found[0], len(context.schema) - len(found)
    least = float(np.mean(np.any([changes.changed for changes in found[:3]], axis=0)))
    caption = (
        f"The most frequent change is {top.feature.name}: {percent(top.share)} of the counterfactuals change "
        f"it (typically {top.typical}). {percent(least)} change at least one of the "
        f"{format_count(min(3, len(found)), 'most frequent feature')}; {format_count(untouched, 'feature')} "
        f"{'is' if untouched == 1 else 'are'} never changed."
    )
    used = {colour for row in rows for share, colour in row.parts if share > 0}
    keys = ((BLUE, "s1", "up"), (ORANGE, "s2", "down"), (BLACK, "s3", "another value"))
    legend = tuple((key, words) for colour, key, words in keys if colour in used)
    picture = bar_chart("features", rows)
    table = Table.of(header, lines, words=2)
    return Figure("features", "Changed features", picture, caption, table, legend)


def _bar(changes: FeatureChanges, people: int) -> Bar:
    value = percent(changes.share)
    if changes.typical:
        value += f" · {shortened(changes.typical, 26)}"
    if len(changes.moves) == 0:
        return Bar(changes.feature.name, value, ((changes.share, BLACK),))
    return Bar(changes.feature.name, value, ((changes.up / people, BLUE), (changes.down / people, ORANGE)))


def _how_far(found: list[FeatureChanges]) -> Figure:
    rows, lines = [], []
    for changes in found:
        low, middle, high = np.quantile(np.abs(changes.moves), [0.1, 0.5, 0.9]).tolist()
        rows.append(Interval(changes.feature.name, f"median {percent(middle)}", low, high, (middle,)))
        lines.append(
            [changes.feature.name, f"{len(changes.moves):,}", *(percent(v) for v in (low, middle, high))]
        )
    middles = [float(np.median(np.abs(changes.moves))) for changes in found]
    far, near = int(np.argmax(middles)), int(np.argmin(middles))
    caption = (
        f"The largest median change is that of {found[far].feature.name}, "
        f"{percent(middles[far])} of its range"
    )
    if far != near:
        caption += f"; the smallest is that of {found[near].feature.name}, {percent(middles[near])}"
    long = np.zeros(len(found[0].changed), dtype=bool)
    for changes in found:
        long[np.flatnonzero(changes.changed)[changes.known]] |= np.abs(changes.moves) > HALF
    share = percent(float(long.mean()))
    caption += f". {share} of the counterfactuals change a feature by more than half of its range."
    table = Table.of(["feature", "people", "10\u00a0%", "median", "90\u00a0%"], lines)
    axis = "share of the range (10th, 50th, 90th percentile)"
    picture = interval_chart("sizes", rows, axis, tick_format=percent)
    return Figure("sizes", "Size of the changes", picture, caption, table)


def most_frequent_change(found: list[FeatureChanges], rows: NDArray[np.bool_]) -> str:
    """Return the feature that these counterfactuals, (n,) bool, change most often, with its share."""
    if not rows.any():
        return "–"
    shares = [float(changes.changed[rows].mean()) for changes in found]
    best = int(np.argmax(shares))
    return f"{found[best].feature.name} ({percent(shares[best])})" if shares[best] > 0 else "–"


# ---------------------------------------------------------------- examples


MOST_CARDS = 5
PLACES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the cost at which examples are taken."""

MOST_FACTS = 6


@dataclass(frozen=True)
class Card:
    """One applicant: the row, its immutable features, the changes and the certificate."""

    title: str
    place: str
    status: str
    facts: tuple[tuple[str, str], ...]
    changes: tuple[tuple[str, str, str, str], ...]
    sentence: str
    certificate: tuple[tuple[str, str], ...]


def cards(context: ReportContext) -> tuple[Card, ...]:
    """Return up to five rows spread over the cost; the last has no certificate if there is such a row."""
    with_cf = np.flatnonzero(context.has_cf)
    by_cost = with_cf[np.argsort(context.cost[with_cf], kind="stable")]
    without = np.flatnonzero(context.explained & ~context.certified)
    places = PLACES[: MOST_CARDS - 1] if len(without) else PLACES
    ranks = [round(p * (len(by_cost) - 1)) for p in places] if len(by_cost) else []
    chosen = list(dict.fromkeys(int(by_cost[rank]) for rank in ranks))
    made = [_card(context, row, _place(context, row)) for row in chosen]
    spare = [int(row) for row in without if int(row) not in chosen]
    if spare:
        made.append(_card(context, spare[0], "without a certificate"))
    return tuple(made)


def _place(context: ReportContext, row: int) -> str:
    """Return the cost of the row and its rank among all rows."""
    dearer = float((context.cost[context.has_cf] > context.cost[row]).mean())
    return f"cost {format_number(context.cost[row])}, lower than for {percent(dearer)} of the applicants"


def _card(context: ReportContext, row: int, place: str) -> Card:
    recourse, i = context.recourse, int(context.first[row])
    label = recourse.frame.index[i]
    name = label[0] if isinstance(label, tuple) else label
    fixed = [f.name for f in context.schema.features if f.action == "immutable"][:MOST_FACTS]
    return Card(
        title=f"Row {name}",
        place=place,
        status=str(recourse.status[i]),
        facts=tuple((f, format_own_value(context.table[f].iloc[row])) for f in fixed),
        changes=tuple(_in_words(change) for change in recourse.changes_of(i)),
        sentence=recourse.sentence(i),
        certificate=_certificate(recourse, i),
    )


def _in_words(change: Change) -> tuple[str, str, str, str]:
    """Return a change as name, from, to and, for numbers, the difference."""
    before, after = format_own_value(change.before), format_value(change.after)
    if not change.feature.is_numeric or change.was_missing:
        return change.feature.name, before, after, ""
    sign = "+" if change.after > change.before else "−"
    difference = format_value(abs(decimal_of(change.after) - decimal_of(as_written(change.before))))
    return change.feature.name, before, after, f"{sign}{difference}"


def _certificate(recourse: Counterfactuals, i: int) -> tuple[tuple[str, str], ...]:
    """Return the certificate as names and values."""
    if recourse.status[i] == "none":
        return (("reason", str(recourse.reason[i])),)
    if not recourse.certified[i]:
        return (("reason", str(recourse.reason[i])), ("certified radius", f"κ = {recourse.radius[i]:.3g}"))
    condition = "the model still declines the original row" if recourse.conditional[i] else "none"
    return (
        ("certified for", str(recourse.param_set).replace("kappa", "κ")),
        ("certified radius", f"κ = {recourse.radius[i]:.3g}"),
        ("bound", str(recourse.method[i])),
        ("worst logit", f"{_away(recourse, i):+.4f}"),
        ("condition", condition),
    )


def _away(recourse: Counterfactuals, i: int) -> float:
    """Return the bound of the logit over the set, signed so that a certified row is above 0."""
    return -float(recourse.worst_logit[i])
