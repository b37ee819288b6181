"""The counterfactuals: cost, changed features, and example people."""

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
    bar_chart,
    drawing,
    histogram,
    interval_chart,
    mark,
    name_axes,
    percent,
    shortened,
    to_figure,
)
from veritracer.changes import Change
from veritracer.encoding import Block
from veritracer.encoding.cells import numbers
from veritracer.formatting import decimal_of, format_count, format_number, format_own_value, format_value
from veritracer.metrics import proximity
from veritracer.schema import Feature

MOST_ROWS = 8
"""Bars of the number of changes; larger numbers share the last one."""


def cost_figure(context: ReportContext) -> Figure:
    """Draw the distribution of the cost over the rows with a counterfactual."""
    cost, where = context.cost[context.has_cf], context.first[context.has_cf]
    middle, most = (float(np.quantile(cost, q)) for q in (0.5, 0.9))
    near = proximity(context.recourse.x[where], context.recourse.x_cf[where])
    caption = (
        f"The median cost is {format_number(middle)}; nine in ten applicants need at most "
        f"{format_number(most)} (a cost of 1 moves one feature along its whole range). "
        f"{percent(float((cost > 2 * middle).mean()))} need more than twice the median. "
        f"The mean distance per encoded column is {format_number(near)}."
    )
    heights, edges = np.histogram(cost, MaxNLocator(25).tick_values(0.0, float(cost.max()) or 1.0))
    axis = "cost (sum of changes, each as a share of its range)"
    with drawing() as axes:
        name_axes(axes, axis, "people", y_format="{:,.0f}".format)
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, heights.max() * 1.15))
        histogram(axes, edges, heights)
        mark(axes, middle, f"median {format_number(middle)}")
        return to_figure(axes, "cost", "Cost of the counterfactuals", caption)


def number_figure(context: ReportContext) -> Figure:
    """Draw the distribution of the number of changes over the rows with a counterfactual."""
    changes = context.n_changes[context.has_cf]
    lowest, most, people = int(changes.min()), int(changes.max()), len(changes)
    last = min(most, lowest + MOST_ROWS - 1)
    counts = {format_count(k, "change"): int((changes == k).sum()) for k in range(lowest, last)}
    counts[format_count(last, "change") if last == most else f"{last} to {most} changes"] = int(
        (changes >= last).sum()
    )
    longest = max(counts.values())
    bars = [Bar(name, f"{n:,} ({percent(n / people)})", ((n / longest, BLUE),)) for name, n in counts.items()]
    caption = (
        f"{percent(float((changes <= 3).mean()))} of the applicants change at most three of "
        f"{len(context.schema)} features. The most common number is {int(np.bincount(changes).argmax())}, "
        f"the mean {changes.mean():.2f} and the maximum {most}."
    )
    table = [{"": name, "people": f"{n:,}"} for name, n in counts.items()]
    return Figure("changes", "Number of changed features", bar_chart("changes", bars), caption, table)


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
    moves
        The signed encoded change, (n,); NaN where the feature stays, its old value is not known, or its
        values have no order.
    typical
        The typical change as text.
    """

    feature: Feature
    changed: NDArray[np.bool_]
    moves: NDArray[np.float64]
    typical: str

    @property
    def share(self) -> float:
        """Return the share of counterfactuals that change the feature."""
        return float(self.changed.mean())

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Return the sizes of the known changes."""
        return np.abs(self.moves[~np.isnan(self.moves)])


def changed_features(context: ReportContext) -> list[FeatureChanges]:
    """Return the changes of all features, the most frequent first."""
    where = context.first[context.has_cf]
    encoding, recourse = context.recourse.encoding, context.recourse
    changed = encoding.changed(recourse.x_cf[where], recourse.x[where]).numpy()
    found = [
        _feature_changes(context, block, changed[:, k], where) for k, block in enumerate(encoding.blocks)
    ]
    return sorted(found, key=lambda changes: -int(changes.changed.sum()))


def _feature_changes(
    context: ReportContext, block: Block, changed: NDArray[np.bool_], where: NDArray[np.int64]
) -> FeatureChanges:
    feature, recourse, moves = block.feature, context.recourse, np.full(len(changed), np.nan)
    rows = where[changed]
    before, after = recourse.original[feature.name].iloc[rows], recourse.frame[feature.name].iloc[rows]
    if block.group is not None or feature.kind == "binary":
        return FeatureChanges(feature, changed, moves, _commonest(before, after))
    known = ~recourse.encoding.missing(recourse.x[rows])[:, block.start].numpy()
    moved = (recourse.x_cf[rows, block.start] - recourse.x[rows, block.start]).numpy()
    moves[changed] = np.where(known, moved, np.nan)
    if feature.kind == "ordinal":
        return FeatureChanges(feature, changed, moves, _commonest(before, after))
    return FeatureChanges(feature, changed, moves, _usual_amounts(feature, before[known], after[known]))


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


def change_figures(context: ReportContext) -> list[Figure]:
    """Draw how often each feature changes, and how far."""
    found = [changes for changes in changed_features(context) if changes.changed.any()]
    if not found:
        return []
    ordered = [changes for changes in found[:MOST_DRAWN_FEATURES] if len(changes.sizes)]
    return [_how_often(context, found), *([_how_far(ordered)] if ordered else [])]


def _how_often(context: ReportContext, found: list[FeatureChanges]) -> Figure:
    table = [
        {
            "feature": changes.feature.name,
            "typical change": changes.typical,
            "changed for": percent(changes.share),
            "up": f"{int((changes.moves > 0).sum()):,}",
            "down": f"{int((changes.moves < 0).sum()):,}",
            "may change": changes.feature.action.replace("_", " "),
        }
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
    bars = [_bar(changes) for changes in found[:MOST_DRAWN_FEATURES]]
    used = {colour for bar in bars for share, colour in bar.parts if share > 0}
    keys = ((BLUE, "s1", "up"), (ORANGE, "s2", "down"), (BLACK, "s3", "another value"))
    legend = tuple((key, words) for colour, key, words in keys if colour in used)
    return Figure("features", "Changed features", bar_chart("features", bars), caption, table, legend)


def _bar(changes: FeatureChanges) -> Bar:
    value = percent(changes.share)
    if changes.typical:
        value += f" · {shortened(changes.typical, 26)}"
    up, down = (float(part.mean()) for part in (changes.moves > 0, changes.moves < 0))
    parts = ((up, BLUE), (down, ORANGE)) if up + down else ((changes.share, BLACK),)
    return Bar(changes.feature.name, value, parts)


def _how_far(found: list[FeatureChanges]) -> Figure:
    rows, table = [], []
    for changes in found:
        low, middle, high = np.quantile(changes.sizes, [0.1, 0.5, 0.9]).tolist()
        rows.append(Interval(changes.feature.name, f"median {percent(middle)}", low, high, (middle,)))
        ends = {"10\u00a0%": percent(low), "median": percent(middle), "90\u00a0%": percent(high)}
        table.append({"feature": changes.feature.name, "people": f"{len(changes.sizes):,}", **ends})
    far, near = max(rows, key=lambda row: row.dots[0]), min(rows, key=lambda row: row.dots[0])
    caption = f"The largest median change is that of {far.name}, {percent(far.dots[0])} of its range"
    if far is not near:
        caption += f"; the smallest is that of {near.name}, {percent(near.dots[0])}"
    long = np.any([np.abs(changes.moves) > HALF for changes in found], axis=0)
    share = percent(float(long.mean()))
    caption += f". {share} of the counterfactuals change a feature by more than half of its range."
    axis = "share of the range (10th, 50th, 90th percentile)"
    picture = interval_chart("sizes", rows, axis, tick_format=percent)
    return Figure("sizes", "Size of the changes", picture, caption, table)


def most_frequent_change(found: list[FeatureChanges], rows: NDArray[np.bool_]) -> str:
    """Return the feature that these counterfactuals, (n,) bool, change most often, with its share."""
    top = max(found, key=lambda changes: int(changes.changed[rows].sum()))
    share = float(top.changed[rows].mean()) if rows.any() else 0.0
    return f"{top.feature.name} ({percent(share)})" if share > 0 else "–"


# ---------------------------------------------------------------- examples


MOST_CARDS = 5
PLACES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the cost at which examples are taken."""

MOST_FACTS = 6

Card = dict[str, Any]
"""One applicant, for the template: the row, its immutable features, the changes and the certificate."""


def cards(context: ReportContext) -> list[Card]:
    """Return up to five rows spread over the cost; the last has no certificate if there is such a row."""
    with_cf = np.flatnonzero(context.has_cf)
    by_cost = with_cf[np.argsort(context.cost[with_cf], kind="stable")]
    without = np.flatnonzero(context.explained & ~context.certified)
    places = PLACES[: MOST_CARDS - 1] if len(without) else PLACES
    ranks = [round(p * (len(by_cost) - 1)) for p in places] if len(by_cost) else []
    chosen = list(dict.fromkeys(int(by_cost[rank]) for rank in ranks))
    made = []
    for row in chosen:
        dearer = percent(float((context.cost[with_cf] > context.cost[row]).mean()))
        cost = format_number(context.cost[row])
        made.append(_card(context, row, f"cost {cost}, lower than for {dearer} of the applicants"))
    spare = [int(row) for row in without if int(row) not in chosen]
    return [*made, *(_card(context, row, "without a certificate") for row in spare[:1])]


def _card(context: ReportContext, row: int, place: str) -> Card:
    recourse, i = context.recourse, int(context.first[row])
    label = recourse.frame.index[i]
    fixed = [f.name for f in context.schema.features if f.action == "immutable"][:MOST_FACTS]
    return {
        "title": f"Row {label[0] if isinstance(label, tuple) else label}",
        "place": place,
        "status": str(recourse.status[i]),
        "facts": {name: format_own_value(context.table[name].iloc[row]) for name in fixed},
        "changes": [in_words(change) for change in recourse.changes_of(i)],
        "sentence": recourse.sentence(i),
        "certificate": _certificate(context, i),
    }


def in_words(change: Change) -> tuple[str, str, str, str]:
    """Return a change as name, from, to and, for numbers, the difference."""
    before, after = format_value(change.stated), format_value(change.after)
    if not change.feature.is_numeric or change.was_missing:
        return change.feature.name, before, after, ""
    difference = decimal_of(change.after) - decimal_of(change.stated)
    return (
        change.feature.name,
        before,
        after,
        f"{'+' if difference > 0 else '−'}{format_value(abs(difference))}",
    )


def _certificate(context: ReportContext, i: int) -> dict[str, str]:
    """Return the certificate as names and values."""
    recourse = context.recourse
    radius = {} if recourse.status[i] == "none" else {"certified radius": f"κ = {recourse.radius[i]:.3g}"}
    if not recourse.certified[i]:
        return {"reason": str(recourse.reason[i]), **radius}
    return {
        "certified for": context.models,
        **radius,
        "bound": str(recourse.method[i]),
        "worst logit": f"{recourse.worst_logit[i]:.4f} (below 0 is a proof)".replace("-", "−"),
        "condition": "the model still declines the original row" if recourse.conditional[i] else "none",
    }
