"""Who else believes the advice: the panel's held-out members, and one person's way step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from veritracer.recourse import Counterfactuals
from veritracer.report.chart import Axis, Chart
from veritracer.report.figure import Figure, Table, percent
from veritracer.report.subject import Subject

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


def notes_in_words(recourse: Counterfactuals) -> str:
    """What somebody should know before this advice goes out, as one paragraph."""
    return " ".join(f"Note: {note}." for note in recourse.notes)
