"""Figures of the changed features, and a comparison of cost between groups of applicants.

Groups are formed by each feature that is immutable or may change in one direction only.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import kruskal

from veritracer.encoding import Block
from veritracer.formatting import format_count, format_number, format_own_value, format_value, to_python
from veritracer.report.charts import Bar, Figure, Range, Row, Table, bar_picture, percent, range_picture
from veritracer.schema import Feature

if TYPE_CHECKING:
    from veritracer.report.subject import Subject

DRAWN_LEVERS = 12
"""Features that are drawn; the table has all of them."""


HALF = 0.5
"""A change along more than half of a range is a long one."""


@dataclass(frozen=True)
class Lever:
    """What people are asked to do with one feature.

    Attributes
    ----------
    changed
        Who is asked to change it, of those with a counterfactual, (n,) bool.
    moves, known
        The encoded change of those whose old value is known, signed, and which of those who change it that
        are; empty for a feature whose values have no order.
    up, down
        How many go up and how many down; both 0 where values have no order.
    typical
        The usual change, in words.
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
        """The share of people with a counterfactual who are asked to change it."""
        return float(self.changed.mean())


def levers(subject: Subject) -> list[Lever]:
    """All features, the most often changed first."""
    where = subject.first[subject.given]
    encoding, recourse = subject.recourse.encoding, subject.recourse
    changed = encoding.changed(recourse.x_cf[where], recourse.x[where]).numpy()
    found = [_lever(subject, block, changed[:, k], where) for k, block in enumerate(encoding.blocks)]
    return sorted(found, key=lambda lever: -int(lever.changed.sum()))


def lever_figures(subject: Subject) -> list[Figure]:
    """How often each feature is asked to change, and how far."""
    found = [lever for lever in levers(subject) if lever.changed.any()]
    if not found:
        return []
    figures = [_how_often(subject, found)]
    ordered = [lever for lever in found[:DRAWN_LEVERS] if len(lever.moves)]
    return [*figures, _how_far(ordered)] if ordered else figures


def _lever(subject: Subject, block: Block, changed: NDArray[np.bool_], where: NDArray[np.int64]) -> Lever:
    feature, recourse = block.feature, subject.recourse
    rows = where[changed]
    before, after = recourse.original[feature.name].iloc[rows], recourse.frame[feature.name].iloc[rows]
    if block.group is not None or feature.kind == "binary":
        return Lever(feature, changed, np.zeros(0), np.zeros(0, dtype=bool), 0, 0, _commonest(before, after))
    known = ~recourse.encoding.missing(recourse.x[rows])[:, block.start].numpy()
    moves = (recourse.x_cf[rows, block.start] - recourse.x[rows, block.start]).numpy()[known]
    up, down = int((moves > 0).sum()), int((moves < 0).sum())
    if feature.kind == "ordinal":
        typical = _commonest(before, after)
    else:
        typical = _usual_amounts(before[known], after[known])
    return Lever(feature, changed, moves, known, up, down, typical)


def _usual_amounts(before: pd.Series[Any], after: pd.Series[Any]) -> str:
    """The median rise and the median fall, in the feature's own units."""
    amount = after.to_numpy(dtype=np.float64) - before.to_numpy(dtype=np.float64)
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


def _how_often(subject: Subject, found: list[Lever]) -> Figure:
    people = int(subject.given.sum())
    rows = [Row(lever.feature.name, (_bar(lever, people),)) for lever in found[:DRAWN_LEVERS]]
    header = ["feature", "typical change", "changed for", "up", "down", "may change"]
    lines = [
        [
            lever.feature.name,
            lever.typical,
            percent(lever.share),
            f"{lever.up:,}",
            f"{lever.down:,}",
            lever.feature.action.replace("_", " "),
        ]
        for lever in found
    ]
    top, untouched = found[0], len(subject.schema) - len(found)
    least = float(np.mean(np.any([lever.changed for lever in found[:3]], axis=0)))
    caption = (
        f"The most frequent change is {top.feature.name}: {percent(top.share)} of the counterfactuals change "
        f"it, typically by {top.typical}. {percent(least)} change at least one of the "
        f"{format_count(min(3, len(found)), 'most frequent feature')}; {format_count(untouched, 'feature')} "
        f"{'is' if untouched == 1 else 'are'} never changed."
    )
    legend = (("bar s1", "up"), ("bar s2", "down"), ("bar s3", "another value"))
    picture = bar_picture("levers", rows)
    table = Table.of(header, lines, words=2)
    return Figure("levers", "Changed features", picture, caption, table, legend)


def _bar(lever: Lever, people: int) -> Bar:
    said = f"{percent(lever.share)} · {_clipped(lever.typical)}" if lever.typical else percent(lever.share)
    if len(lever.moves) == 0:
        return Bar(lever.share, said, "s3")
    return Bar(lever.up / people, said, "s1", second=lever.down / people)


def _clipped(words: str, longest: int = 26) -> str:
    return words if len(words) <= longest else words[: longest - 1].rstrip() + "…"


def _how_far(found: list[Lever]) -> Figure:
    rows, lines = [], []
    for lever in found:
        low, middle, high = np.quantile(np.abs(lever.moves), [0.1, 0.5, 0.9]).tolist()
        values = ((low, "10th percentile"), (middle, "median"), (high, "90th percentile"))
        rows.append(Range(lever.feature.name, f"median {percent(middle)}", values))
        lines.append(
            [lever.feature.name, f"{len(lever.moves):,}", *(percent(v) for v in (low, middle, high))]
        )
    middles = [float(np.median(np.abs(lever.moves))) for lever in found]
    far, near = int(np.argmax(middles)), int(np.argmin(middles))
    caption = (
        f"The largest median change is that of {found[far].feature.name}, "
        f"{percent(middles[far])} of its range"
    )
    if far != near:
        caption += f"; the smallest is that of {found[near].feature.name}, {percent(middles[near])}"
    long = np.zeros(len(found[0].changed), dtype=bool)
    for lever in found:
        long[np.flatnonzero(lever.changed)[lever.known]] |= np.abs(lever.moves) > HALF
    share = percent(float(long.mean()))
    caption += f". {share} of the counterfactuals change a feature by more than half of its range."
    table = Table.of(["feature", "people", "10\u00a0%", "median", "90\u00a0%"], lines)
    picture = range_picture("moves", rows, "share of the feature's range", percent)
    legend = (("dot s1", "10th percentile"), ("dot s0", "median"), ("dot s2", "90th percentile"))
    return Figure("moves", "Size of the changes", picture, caption, table, legend)


def usual_lever(found: list[Lever], rows: NDArray[np.bool_]) -> str:
    """The feature that these people (n,), of those with a counterfactual, are asked to change most often."""
    if not rows.any():
        return "–"
    shares = [float(lever.changed[rows].mean()) for lever in found]
    best = int(np.argmax(shares))
    return f"{found[best].feature.name} ({percent(shares[best])})" if shares[best] > 0 else "–"


# ---------------------------------------------------------------- by group


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


def compare_features(subject: Subject) -> list[Feature]:
    """The features that nobody can freely change."""
    return [f for f in subject.schema.features if f.action != "free"]


def compare(subject: Subject) -> list[Comparison]:
    """A comparison for each immutable or one-way feature with at least two groups, the widest gap first.

    Where there are too many features, one-way ones are left out before immutable ones: what people are
    born with has to be shown even where there is no gap.
    """
    features = compare_features(subject)
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
        kept = [
            (float(v), f"{g.name}: {format_number(v)}")
            for g, v in zip(c.groups, c.cost, strict=True)
            if v == v
        ]
        low, high = (c.groups[int(pick(c.cost))].name for pick in (np.nanargmin, np.nanargmax))
        rows.append(Range(c.feature.name, f"{_cut(low)} < {_cut(high)}", tuple(kept)))
    lines = [_summary(c, len(drawn)) for c in drawn]
    table = Table.of(["feature", "lowest mean cost", "highest", "ratio", "p-value"], lines)
    picture = range_picture("groups", rows, "mean cost of a group", lambda v: f"{v:g}")
    legend = (("dot s1", "lowest mean"), ("dot s0", "between"), ("dot s2", "highest mean"))
    caption = _caption(subject, drawn)
    return Figure("groups", "Mean cost by group", picture, caption, table, legend)


def group_tables(subject: Subject, found: list[Comparison]) -> list[tuple[str, Table]]:
    """For each feature a table with a line for each group."""
    ways = levers(subject)
    tables = []
    for c in found:
        header = [
            "group",
            "people",
            subject.role,
            "certified",
            "mean cost",
            "mean changes",
            "most frequent change",
        ]
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
        _of_few(format_number(_mean(subject.cost[given])), int(given.sum())),
        format_number(_mean(subject.n_changes[given])),
        usual_lever(ways, group.rows[subject.given]),
    ]


def _of_few(mean: str, people: int) -> str:
    """A mean, with how few it is of where it is not compared with others."""
    return mean if people >= FEWEST or people == 0 else f"{mean} (of\u00a0{people})"


def _summary(c: Comparison, tests: int) -> list[str]:
    """The gap of one feature as words: lowest, highest, their ratio, and the corrected chance."""
    ends = [format_number(float(end(c.cost))) for end in (np.nanmin, np.nanmax)]
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


def _cut(name: str, longest: int = 16) -> str:
    return name if len(name) <= longest else name[: longest - 1].rstrip() + "…"
