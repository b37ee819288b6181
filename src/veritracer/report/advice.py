"""What people are told: how far they have to go, who else believes it, and a few of them in full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.formatting import format_count, format_number, format_own_value, format_value
from veritracer.metrics import proximity
from veritracer.recourse import Counterfactuals
from veritracer.recourse.wording import Change, difference_in_words
from veritracer.report.charts import Axis, Bar, Chart, Figure, Row, Table, bar_picture, percent, ticks
from veritracer.report.subject import Subject

MOST_ROWS = 8
"""Bars of the number of changes; what lies beyond them shares the last one."""


def effort_figures(subject: Subject) -> list[Figure]:
    """The distributions of the cost and of the number of changes, over people with a counterfactual."""
    return [_cost(subject), _changes(subject)]


def _cost(subject: Subject) -> Figure:
    cost = subject.cost[subject.given]
    middle, most = (float(np.quantile(cost, q)) for q in (0.5, 0.9))
    heights, edges = np.histogram(cost, bins=_edges(cost))
    columns = list(zip(edges[:-1].tolist(), edges[1:].tolist(), heights.tolist(), strict=True))
    across = Axis(float(edges[0]), float(edges[-1]), "cost (sum of changes, each a share of its range)")
    chart = Chart(across, Axis(0, float(heights.max()) * 1.12, "people", lambda v: f"{v:,.0f}"))
    chart = chart.columns(columns, "s1").mark(middle, f"median {format_number(middle)}")
    where = subject.first[subject.given]
    near = proximity(subject.recourse.x[where], subject.recourse.x_cf[where])
    tail = float((cost > 2 * middle).mean())
    caption = (
        f"Half of the people reach the other decision at a cost of {format_number(middle)} or less, nine "
        "in ten at "
        f"{format_number(most)} or less (1 is one feature moved along its whole range). "
        f"{percent(tail)} have to go more than twice as far as the median. "
        f"Per encoded column that is {format_number(near)} on average."
    )
    rows = [[format_number(a), format_number(b), f"{n:,}"] for a, b, n in columns]
    table = Table.of(["from", "to", "people"], rows, words=0)
    return Figure("cost", "How far people have to go", chart.picture("cost"), caption, table)


def _edges(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round edges of some twenty bins from 0 to the largest cost."""
    top = float(cost.max()) or 1.0
    marks = ticks(0.0, top, most=25)
    step = marks[1] - marks[0]
    return np.arange(0, np.floor(top / step) + 2) * step


def _changes(subject: Subject) -> Figure:
    changes = subject.n_changes[subject.given]
    most, people = int(changes.max()), len(changes)
    lowest = int(changes.min())
    last = min(most, lowest + MOST_ROWS - 1)
    names = [format_count(k, "change") for k in range(lowest, last)]
    counts = [int((changes == k).sum()) for k in range(lowest, last)]
    names.append(format_count(last, "change") if last == most else f"{last} to {most} changes")
    counts.append(int((changes >= last).sum()))
    longest = max(counts)
    rows = [
        Row(name, (Bar(n / longest, f"{n:,} ({percent(n / people)})"),))
        for name, n in zip(names, counts, strict=True)
    ]
    few, features = float((changes <= 3).mean()), len(subject.schema)
    usual = int(np.bincount(changes).argmax())
    caption = (
        f"{percent(few)} of the people have to change three features or fewer, of {features}; the usual "
        f"number is {usual}, the mean {changes.mean():.2f} and the largest {most}."
    )
    table = Table.of(["", "people"], [[a, f"{n:,}"] for a, n in zip(names, counts, strict=True)])
    picture = bar_picture("changes", rows)
    return Figure("changes", "How many things they have to change", picture, caption, table)


# ---------------------------------------------------------------- who else believes it


TITLES = {
    "model": ("s1", "this model"),
    "panel": ("s2", "its panel"),
    "held_out": ("s3", "held-out models"),
    "truth": ("s0", "the truth"),
}

QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)

DOOR = 0.25
"""Where model and panel are so far apart at the end of a way, the picture is called what it is."""


def belief_figures(subject: Subject) -> list[Figure]:
    """How many believe how much, and the way of a typical person; none without a panel."""
    recourse = subject.recourse
    given = subject.first[subject.given]
    if recourse.evidence.panel is None or len(given) == 0:
        return []
    agreement = recourse.agreement[given]
    typical = given[np.argsort(recourse.cost[given], kind="stable")[len(given) // 2]]
    figures = [way_figure(recourse.way(int(typical)), "the person in the middle of all by cost")]
    return figures if np.isnan(agreement).all() else [_agreement(agreement), *figures]


def _agreement(agreement: np.ndarray) -> Figure:
    """How many people's advice is believed by which share of the held-out members."""
    edges = np.linspace(0, 1, 6)
    counts, _ = np.histogram(agreement, edges)
    chart = Chart(
        Axis(0, 1, "share of the held-out members that agree", percent),
        Axis(0, float(max(counts.max(), 1)), "people", lambda value: f"{value:,.0f}"),
    ).columns([(a, b, float(c)) for a, b, c in zip(edges[:-1], edges[1:], counts, strict=True)], "s1")
    most = float((agreement >= 0.5).mean())
    caption = (
        f"At least half of the independent models that took no part in training or search would decide "
        f"{percent(most)} of the answers as was asked for. What they do not believe is no advice."
    )
    rows = [
        (f"{percent(a)} to {percent(b)}", f"{c:,}") for a, b, c in zip(edges, edges[1:], counts, strict=False)
    ]
    table = Table.of(("agreement", "people"), rows)
    return Figure("agreement", "Who else believes it", chart.picture("agreement"), caption, table)


def way_figure(way: pd.DataFrame, whose: str) -> Figure:
    """What each opinion says on the way from x (0) to x′ (1), and a little beyond."""
    chart = Chart(
        Axis(0, float(way.index[-1]), "share of the way from x to x′", lambda v: f"{v:g}"),
        Axis(0, 1, "probability of the favourable decision", percent),
    )
    known = [name for name in TITLES if name in way]
    for name in known:
        chart = chart.line(list(zip(way.index, way[name], strict=True)), TITLES[name][0])
    end = {name: float(_at(way, 1.0)[name]) for name in known}
    chart = chart.mark(1.0, "x′", height=0.06)
    gap = end["model"] - float(np.mean([end[name] for name in known if name != "model"]))
    said = ", ".join(f"{TITLES[name][1]} {percent(end[name])}" for name in known)
    verdict = (
        "The model's opinion rises where nobody else's does: a trap door."
        if gap > DOOR
        else "The opinions rise together."
    )
    rows = [(f"{t:g}", *(percent(float(_at(way, t)[name])) for name in known)) for t in QUARTERS]
    table = Table.of(("share of the way", *(TITLES[name][1] for name in known)), rows)
    legend = tuple((f"line {TITLES[name][0]}", TITLES[name][1]) for name in known)
    caption = f"For {whose}, at x′: {said}. {verdict}"
    return Figure("way", "The way, as others see it", chart.picture("way"), caption, table, legend)


def _at(way: pd.DataFrame, share: float) -> Any:
    return way.iloc[int(np.argmin(np.abs(way.index.to_numpy(dtype=float) - share)))]


def warnings_of(recourse: Counterfactuals) -> tuple[str, ...]:
    """What somebody should know before this advice goes out, a sentence each."""
    said = (note.received.replace(" people told", " people are told") for note in recourse.notes)
    return tuple(f"{words}: {note.remedy}." for words, note in zip(said, recourse.notes, strict=True))


# ---------------------------------------------------------------- worked examples


MOST_CARDS = 5
PLACES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Where the examples stand among all people by cost."""

MOST_FACTS = 6


@dataclass(frozen=True)
class Card:
    """One person: which row, what they can not change, what would have to change, and what is proved."""

    title: str
    place: str
    status: str
    facts: tuple[tuple[str, str], ...]
    changes: tuple[tuple[str, str, str, str], ...]
    sentence: str
    certificate: tuple[tuple[str, str], ...]


def cards(subject: Subject) -> tuple[Card, ...]:
    """Up to five people, spread over the cost; the last is one without a certificate, where there are any."""
    given = np.flatnonzero(subject.given)
    by_cost = given[np.argsort(subject.cost[given], kind="stable")]
    without = np.flatnonzero(subject.asked & ~subject.certified)
    places = PLACES[: MOST_CARDS - 1] if len(without) else PLACES
    ranks = [round(p * (len(by_cost) - 1)) for p in places] if len(by_cost) else []
    chosen = list(dict.fromkeys(int(by_cost[rank]) for rank in ranks))
    made = [_card(subject, row, _place(subject, row)) for row in chosen]
    spare = [int(row) for row in without if int(row) not in chosen]
    if spare:
        made.append(_card(subject, spare[0], "without a certificate"))
    return tuple(made)


def _place(subject: Subject, row: int) -> str:
    """Where the person stands by cost, in words."""
    dearer = float((subject.cost[subject.given] > subject.cost[row]).mean())
    return f"cost {format_number(subject.cost[row])}: cheaper than for {percent(dearer)} of people"


def _card(subject: Subject, row: int, place: str) -> Card:
    recourse, i = subject.recourse, int(subject.first[row])
    label = recourse.frame.index[i]
    name = label[0] if isinstance(label, tuple) else label
    fixed = [f.name for f in subject.schema.features if f.action == "immutable"][:MOST_FACTS]
    return Card(
        title=f"Row {name}",
        place=place,
        status=str(recourse.status[i]),
        facts=tuple((f, format_own_value(subject.table[f].iloc[row])) for f in fixed),
        changes=tuple(_in_words(change) for change in recourse.changes_of(i)),
        sentence=recourse.sentence(i),
        certificate=_certificate(recourse, i),
    )


def _in_words(change: Change) -> tuple[str, str, str, str]:
    """A change as name, from, to, and the difference where it is a number."""
    before, after = format_own_value(change.before), format_value(change.after)
    if not change.feature.is_numeric or change.was_missing:
        return change.feature.name, before, after, ""
    sign = "+" if change.after > change.before else "−"
    return change.feature.name, before, after, f"{sign}{difference_in_words(change.before, change.after)}"


def _certificate(recourse: Counterfactuals, i: int) -> tuple[tuple[str, str], ...]:
    """What is proved, as names and values."""
    if recourse.status[i] == "none":
        return (("why", str(recourse.reason[i])),)
    if not recourse.certified[i]:
        return (("why", str(recourse.reason[i])), ("reaches to", f"κ = {recourse.radius[i]:.3g}"))
    condition = "the original row keeps its decision" if recourse.conditional[i] else "none"
    return (
        ("proved at", str(recourse.param_set).replace("kappa", "κ")),
        ("reaches to", f"κ = {recourse.radius[i]:.3g}"),
        ("by", str(recourse.method[i])),
        ("worst logit", f"{_away(recourse, i):+.4f}"),
        ("condition", condition),
    )


def _away(recourse: Counterfactuals, i: int) -> float:
    """The bound of the logit over the set, in the direction of the new decision: above 0 is proved."""
    return -float(recourse.worst_logit[i])
