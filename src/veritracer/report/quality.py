"""How good the classifier is: accuracy, what it ranks, and whether its probabilities mean what they say."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from veritracer.report.chart import Axis, Chart
from veritracer.report.figure import Figure, Table, count, percent
from veritracer.report.subject import Subject

BINS = 10
UNLIKELY = 3
"""Bins of ten outside of their 95 % interval that chance gives a true model once in 90 times."""

MOST_POINTS = 120
"""Points of a curve that are drawn: more could not be told apart."""


class Reliability(NamedTuple):
    """Rows in bins of equal size by predicted probability: mean prediction, observed share, and how many."""

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    rows: NDArray[np.int64]

    @property
    def error(self) -> float:
        """The mean distance between prediction and observation, weighted by rows."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.rows))


def accuracy(subject: Subject) -> float:
    """The share of rows that are decided as their label says."""
    assert subject.labels is not None
    return float(((subject.logit > 0) == (subject.labels == 1)).mean())


def auc(subject: Subject) -> float:
    """The chance that a favourable row is ranked above an unfavourable one; nan if there is one kind only."""
    labels = subject.labels
    if labels is None or len(np.unique(labels)) < 2:
        return float("nan")
    return float(roc_auc_score(labels, subject.logit))


def reliability(probability: NDArray[np.float64], labels: NDArray[np.int64], bins: int = BINS) -> Reliability:
    """Predicted against observed shares in up to ``bins`` bins of equal size."""
    order = np.argsort(probability, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return Reliability(
        predicted=np.array([probability[part].mean() for part in parts]),
        observed=np.array([labels[part].mean() for part in parts]),
        rows=np.array([len(part) for part in parts]),
    )


def wilson(
    share: NDArray[np.float64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of the 95 % interval of each observed share: Wilson's, which serves near 0 and 1 too."""
    z = 1.96
    middle = (share + z**2 / (2 * rows)) / (1 + z**2 / rows)
    half = z / (1 + z**2 / rows) * np.sqrt(share * (1 - share) / rows + z**2 / (4 * rows**2))
    return np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)


def quality_figures(subject: Subject) -> list[Figure]:
    """The ROC curve and the reliability curve; none without labels of both kinds."""
    if np.isnan(auc(subject)):
        return []
    return [_roc(subject), _reliability(subject)]


def _roc(subject: Subject) -> Figure:
    assert subject.labels is not None
    labels, area = subject.labels, auc(subject)
    false_rate, true_rate, _ = roc_curve(labels, subject.logit)
    keep = np.unique(np.linspace(0, len(false_rate) - 1, MOST_POINTS).round().astype(int))
    points = list(zip(false_rate[keep].tolist(), true_rate[keep].tolist(), strict=True))
    favourable = subject.logit > 0
    here = (float(favourable[labels == 0].mean()), float(favourable[labels == 1].mean()))
    rate = Axis(0, 1, "wrongly favourable", percent)
    chart = Chart(rate, Axis(0, 1, "rightly favourable", percent))
    chart = chart.line([(0, 0), (1, 1)], "s0").line(points, "s1").dots([here], "s2")
    majority = max(labels.mean(), 1 - labels.mean())
    right = accuracy(subject)
    gain = f"{100 * abs(right - majority):.1f} points {'more' if right >= majority else 'less'}"
    caption = (
        f"Given a row labelled {subject.schema.favourable} and one labelled {subject.schema.unfavourable}, "
        f"the model ranks them correctly {percent(area)} of the time (AUC {area:.3f}; 0.5 is a coin). At its "
        f"threshold (the dot) it decides {percent(right)} of {count(len(labels), 'row')} as labelled, {gain} "
        f"than always answering with the commoner label."
    )
    rows = [[f"{a:.3f}", f"{b:.3f}"] for a, b in points[:: max(len(points) // 20, 1)]]
    legend = (("line s1", "the model"), ("dot s2", "its threshold"), ("line s0", "a coin"))
    table = Table.of(["wrongly favourable", "rightly favourable"], rows, words=0)
    return Figure("roc", "How well it ranks (ROC)", chart.picture("roc"), caption, table, legend)


def _reliability(subject: Subject) -> Figure:
    assert subject.labels is not None
    found = reliability(subject.probability, subject.labels)
    points = list(zip(found.predicted.tolist(), found.observed.tolist(), strict=True))
    low, high = wilson(found.observed, found.rows)
    spans = list(zip(found.predicted.tolist(), low.tolist(), high.tolist(), strict=True))
    chart = Chart(Axis(0, 1, "predicted probability", percent), Axis(0, 1, "observed share", percent))
    chart = chart.line([(0, 0), (1, 1)], "s0").spans(spans, "s1").line(points, "s1").dots(points, "s1")
    caption = _truth(found, low, high)
    rows = [
        [percent(p), percent(o), f"{n:,}"]
        for p, o, n in zip(found.predicted, found.observed, found.rows, strict=True)
    ]
    table = Table.of(["predicted", "observed", "rows"], rows, words=0)
    legend = (("line s1", "the model, with 95\u00a0% intervals"), ("line s0", "perfect"))
    picture = chart.picture("reliability")
    return Figure("reliability", "Whether its probabilities are true", picture, caption, table, legend)


def _truth(found: Reliability, low: NDArray[np.float64], high: NDArray[np.float64]) -> str:
    """What the bins allow to say of the probabilities, and where they are furthest off."""
    worst = int(np.abs(found.predicted - found.observed).argmax())
    said, seen = found.predicted[worst], found.observed[worst]
    tone = "too hopeful" if said > seen else "too strict"
    inside = int(((low <= found.predicted) & (found.predicted <= high)).sum())
    bins = len(found.rows)
    off = f"{100 * found.error:.1f} points"
    verdict = (
        f"nothing speaks against reading the model's numbers as probabilities (mean distance {off})"
        if bins - inside < UNLIKELY
        else f"read the model's numbers as scores that are off by {off} on average, more than chance explains"
    )
    return (
        f"In {inside} of {bins} bins the prediction lies inside the 95\u00a0% interval of what happened: "
        f"{verdict}. It is furthest off where it says {percent(said)} and {percent(seen)} were seen: "
        f"{tone} there."
    )
