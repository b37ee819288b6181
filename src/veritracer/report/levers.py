"""Which features recourse asks people to change, which way, and by how much."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.encoding import Block
from veritracer.report.bars import Bar, Row, bar_picture
from veritracer.report.figure import Figure, Table, count, percent
from veritracer.report.ranges import Range, range_picture
from veritracer.report.subject import Subject
from veritracer.schema import Feature
from veritracer.schema.values import value_in_words

MOST = 12
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
    ordered = [lever for lever in found[:MOST] if len(lever.moves)]
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
        f"{sign}{value_in_words(float(f'{np.median(part):.3g}'))}"
        for part, sign in ((amount[amount > 0], "+"), (-amount[amount < 0], "−"))
        if len(part)
    ]
    return " or ".join(said) if said else "stated"


def _commonest(before: pd.Series[Any], after: pd.Series[Any]) -> str:
    pairs = Counter(
        f"{value_in_words(a)} → {value_in_words(b)}"
        for a, b in zip(before.tolist(), after.tolist(), strict=True)
    )
    # Ties are broken by the words, so that a report is the same every time.
    return min(pairs, key=lambda pair: (-pairs[pair], pair)) if pairs else ""


def _how_often(subject: Subject, found: list[Lever]) -> Figure:
    people = int(subject.given.sum())
    rows = [Row(lever.feature.name, (_bar(lever, people),)) for lever in found[:MOST]]
    header = ["feature", "usual change", "asked", "up", "down", "may change"]
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
        f"Recourse works mostly through {top.feature.name}: {percent(top.share)} of people are asked to "
        f"change it, usually {top.typical}. {percent(least)} are asked to change at least one of the "
        f"{count(min(3, len(found)), 'most used feature')}; {count(untouched, 'feature')} "
        f"{'is' if untouched == 1 else 'are'} never touched."
    )
    legend = (("bar s1", "up"), ("bar s2", "down"), ("bar s3", "another value"))
    picture = bar_picture("levers", rows)
    table = Table.of(header, lines, words=2)
    return Figure("levers", "What they are asked to change", picture, caption, table, legend)


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
        values = ((low, "one in ten moves less"), (middle, "median"), (high, "one in ten moves more"))
        rows.append(Range(lever.feature.name, f"median {percent(middle)}", values))
        lines.append(
            [lever.feature.name, f"{len(lever.moves):,}", *(percent(v) for v in (low, middle, high))]
        )
    middles = [float(np.median(np.abs(lever.moves))) for lever in found]
    far, near = int(np.argmax(middles)), int(np.argmin(middles))
    caption = (
        f"Where it is asked for, {found[far].feature.name} has to move furthest: by "
        f"{percent(middles[far])} of its range in the median"
    )
    if far != near:
        caption += f"; {found[near].feature.name} least, by {percent(middles[near])}"
    long = np.zeros(len(found[0].changed), dtype=bool)
    for lever in found:
        long[np.flatnonzero(lever.changed)[lever.known]] |= np.abs(lever.moves) > HALF
    caption += (
        f". {percent(float(long.mean()))} of people are asked for a change of more than half of a range."
    )
    table = Table.of(["feature", "people", "10\u00a0%", "median", "90\u00a0%"], lines)
    picture = range_picture("moves", rows, "share of the feature's range", percent)
    legend = (("dot s1", "one in ten moves less"), ("dot s0", "median"), ("dot s2", "one in ten moves more"))
    return Figure("moves", "By how much", picture, caption, table, legend)


def usual_lever(found: list[Lever], rows: NDArray[np.bool_]) -> str:
    """The feature that these people (n,), of those with a counterfactual, are asked to change most often."""
    if not rows.any():
        return "–"
    shares = [float(lever.changed[rows].mean()) for lever in found]
    best = int(np.argmax(shares))
    return f"{found[best].feature.name} ({percent(shares[best])})" if shares[best] > 0 else "–"
