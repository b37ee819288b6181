"""What recourse costs people: how far they have to go, and how many things they have to change."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from veritracer.metrics import proximity
from veritracer.report.bars import Bar, Row, bar_picture
from veritracer.report.chart import Axis, Chart, ticks
from veritracer.report.figure import Figure, Table, count, percent, short
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
    chart = chart.columns(columns, "s1").mark(middle, f"median {short(middle)}")
    where = subject.first[subject.given]
    near = proximity(subject.recourse.x[where], subject.recourse.x_cf[where])
    tail = float((cost > 2 * middle).mean())
    caption = (
        f"Half of the people reach the other decision at a cost of {short(middle)} or less, nine in ten at "
        f"{short(most)} or less (1 is one feature moved along its whole range). "
        f"{percent(tail)} have to go more than twice as far as the median. "
        f"Per encoded column that is {short(near)} on average."
    )
    rows = [[short(a), short(b), f"{n:,}"] for a, b, n in columns]
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
    names = [count(k, "change") for k in range(lowest, last)]
    counts = [int((changes == k).sum()) for k in range(lowest, last)]
    names.append(count(last, "change") if last == most else f"{last} to {most} changes")
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
