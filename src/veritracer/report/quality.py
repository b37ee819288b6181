"""How good the classifier is: accuracy, what it ranks, and whether its probabilities mean what they say.

And how training went: what each epoch reached on the rows that were kept aside.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score, roc_curve

from veritracer.model import VeriTraCER
from veritracer.report.charts import Axis, Chart, Figure, Table, count, percent, short, ticks
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


def intervals(found: Reliability) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of the 95 % interval of each observed share: Wilson's, which serves near 0 and 1 too."""
    counts = np.round(found.observed * found.rows).astype(int)
    ends = [
        binomtest(int(k), int(n)).proportion_ci(method="wilson")
        for k, n in zip(counts, found.rows, strict=True)
    ]
    return np.array([end.low for end in ends]), np.array([end.high for end in ends])


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
    low, high = intervals(found)
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


# ---------------------------------------------------------------- how training went


STILL = 0.01
"""A loss that fell by more than this share in the last epoch was still falling."""

RISE = 0.05
"""A log loss that rises by more than this share after its least value is overfitting."""

RATES = (("accuracy", "s1"), ("certified", "s2"), ("validity", "s3"))
PAIR = ("certified", "accuracy")
LOSSES = (("objective", "s1"), ("log_loss", "s2"))


def learning_figures(model: VeriTraCER) -> list[Figure]:
    """The rates and the losses by epoch; none for a model without a history."""
    history = model.history_
    if len(history) < 2:
        return []
    return [figure for figure in (_rates(model, history), _losses(model, history)) if figure is not None]


def _rates(model: VeriTraCER, history: pd.DataFrame) -> Figure | None:
    kept = _kept(history, RATES)
    if not kept:
        return None
    names = [name for name, _ in kept]
    low = float(np.floor(10 * history[names].min().min()) / 10)
    chart = Chart(_epochs(history), Axis(min(low, 0.9), 1, "share of rows kept aside", percent))
    chart = _lines(chart, history, kept).mark(model.best_epoch_, f"kept: epoch {model.best_epoch_}")
    best = _best(model, history)
    said = ", ".join(f"{name} {percent(float(best[name]))}" for name in names)
    caption = f"Epoch {model.best_epoch_} of {len(history)} was kept: {said}. "
    if "certified" in names:
        caption += _meanwhile(model, history)
    picture = chart.picture("rates")
    legend = tuple((f"line {series}", name) for name, series in kept)
    table = _table(history, names, percent)
    return Figure("rates", "What each epoch reached", picture, caption, table, legend)


def _meanwhile(model: VeriTraCER, history: pd.DataFrame) -> str:
    """How accuracy and certificates stood before kappa grew and in the epoch that was kept.

    The two differ in how long they trained as well, so no cost of robustness is claimed here.
    """
    before = history[history["kappa"] == 0]
    if before.empty or not history["kappa"].max() > 0:
        return ""
    start, end = before.iloc[-1], _best(model, history)
    pairs = [f"{name} from {percent(float(start[name]))} to {percent(float(end[name]))}" for name in PAIR]
    return f"While κ grew from 0 to {history['kappa'].max():g}, {' and '.join(pairs)}."


def _losses(model: VeriTraCER, history: pd.DataFrame) -> Figure | None:
    kept = _kept(history, LOSSES)
    if not kept:
        return None
    names = [name for name, _ in kept]
    values = history[names].to_numpy(dtype=np.float64)
    top = float(np.nanmax(np.where(np.isfinite(values), values, np.nan)))
    chart = Chart(_epochs(history), Axis(0, top * 1.05, "loss", short))
    chart = _lines(chart, history, kept).mark(model.best_epoch_, f"kept: epoch {model.best_epoch_}")
    name = names[0]
    first, last, best = (
        float(v) for v in (history[name].iloc[0], history[name].iloc[-1], _best(model, history)[name])
    )
    caption = (
        f"{name.replace('_', ' ')} was {short(first)} after the first epoch, {short(best)} in the one that "
        f"was kept and {short(last)} at the end: {_ending(history, name, best)}"
    )
    legend = tuple((f"line {series}", n.replace("_", " ")) for n, series in kept)
    picture, table = chart.picture("losses"), _table(history, names, short)
    return Figure("losses", "How the losses fell", picture, caption[:1].upper() + caption[1:], table, legend)


def _ending(history: pd.DataFrame, name: str, best: float) -> str:
    """How training ended: by overfitting, settled, or before its end."""
    found = overfitting(history)
    if found is not None:
        least, at, end = found
        return (
            f"the log loss of rows kept aside was {short(least)} after epoch {at} and {short(end)} at the "
            "end. That is overfitting: more epochs would not help."
        )
    before, last = (float(value) for value in history[name].iloc[-2:])
    if last <= best and before - last > STILL * abs(last):
        return "it was still falling; more epochs may help."
    if abs(last - best) <= RISE * abs(best):
        return "training had settled."
    return "training had not settled; more epochs may not help."


def overfitting(history: pd.DataFrame) -> tuple[float, int, float] | None:
    """The least log loss of rows kept aside, its epoch, and the last one, where it rose by more than 5 %."""
    if "log_loss" not in history:
        return None
    measured = history[np.isfinite(history["log_loss"].astype(float))]
    if len(measured) < 2:
        return None
    values = measured["log_loss"].astype(float).to_numpy()
    k = int(values.argmin())
    if values[-1] <= (1 + RISE) * values[k]:
        return None
    return float(values[k]), int(measured["epoch"].iloc[k]), float(values[-1])


def _kept(history: pd.DataFrame, wanted: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Those that were measured in at least two epochs."""
    return [(n, s) for n, s in wanted if n in history and np.isfinite(history[n].astype(float)).sum() > 1]


def _epochs(history: pd.DataFrame) -> Axis:
    first, last = float(history["epoch"].iloc[0]), float(history["epoch"].iloc[-1])
    whole = tuple(t for t in ticks(first, last, most=7) if t == int(t))
    return Axis(first, last, "epoch", at=whole)


def _lines(chart: Chart, history: pd.DataFrame, kept: list[tuple[str, str]]) -> Chart:
    for name, series in kept:
        values = history[name].astype(float).tolist()
        chart = chart.line(list(zip(history["epoch"].astype(float).tolist(), values, strict=True)), series)
    return chart


def _best(model: VeriTraCER, history: pd.DataFrame) -> pd.Series[float]:
    return history[history["epoch"] == model.best_epoch_].iloc[0]


def _table(history: pd.DataFrame, names: list[str], write: object) -> Table:
    assert callable(write)
    rows = [
        [f"{int(line['epoch'])}", f"{line['kappa']:.3g}", *(write(float(line[n])) for n in names)]
        for _, line in history.iterrows()
    ]
    return Table.of(["epoch", "κ", *(n.replace("_", " ") for n in names)], rows, words=0)
