"""The quality of the classifier: accuracy, ROC curve, calibration, and the course of training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score, roc_curve

from veritracer.app.report.context import ReportContext
from veritracer.app.report.figures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    Figure,
    Table,
    drawing,
    label_lines,
    line,
    mark,
    name_axes,
    percent,
    to_svg,
)
from veritracer.estimator import VeriTraCER
from veritracer.formatting import format_count, format_number

BINS = 10
UNLIKELY = 3
"""Bins of ten outside their 95 % interval; a calibrated model has so many once in 90 times."""

MOST_POINTS = 120
"""Points of a curve that are drawn; more would look the same."""


class Reliability(NamedTuple):
    """Rows in bins of equal size by predicted probability: mean prediction, observed share, and how many."""

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    rows: NDArray[np.int64]

    @property
    def error(self) -> float:
        """Return the mean distance between prediction and observation, weighted by rows."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.rows))


def accuracy(context: ReportContext) -> float:
    """Return the accuracy on the labelled rows."""
    assert context.labels is not None
    return float(((context.logit > 0) == (context.labels == 1)).mean())


def auc(context: ReportContext) -> float:
    """Return the area under the ROC curve; NaN without labels of both kinds."""
    labels = context.labels
    if labels is None or len(np.unique(labels)) < 2:
        return float("nan")
    return float(roc_auc_score(labels, context.logit))


def reliability(probability: NDArray[np.float64], labels: NDArray[np.int64], bins: int = BINS) -> Reliability:
    """Compare predicted and observed shares in up to ``bins`` bins of equal size."""
    order = np.argsort(probability, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return Reliability(
        predicted=np.array([probability[part].mean() for part in parts]),
        observed=np.array([labels[part].mean() for part in parts]),
        rows=np.array([len(part) for part in parts]),
    )


def intervals(found: Reliability) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of the 95 % interval of each observed share (Wilson's, valid near 0 and 1 too)."""
    counts = np.round(found.observed * found.rows).astype(int)
    ends = [
        binomtest(int(k), int(n)).proportion_ci(method="wilson")
        for k, n in zip(counts, found.rows, strict=True)
    ]
    return np.array([end.low for end in ends]), np.array([end.high for end in ends])


def quality_figures(context: ReportContext) -> list[Figure]:
    """Draw the ROC curve and the calibration curve; nothing without labels of both kinds."""
    if np.isnan(auc(context)):
        return []
    return [_roc(context), _reliability(context)]


def _roc(context: ReportContext) -> Figure:
    assert context.labels is not None
    labels, area = context.labels, auc(context)
    false_rate, true_rate, _ = roc_curve(labels, context.logit)
    keep = np.unique(np.linspace(0, len(false_rate) - 1, MOST_POINTS).round().astype(int))
    points = list(zip(false_rate[keep].tolist(), true_rate[keep].tolist(), strict=True))
    favourable = context.logit > 0
    here = (float(favourable[labels == 0].mean()), float(favourable[labels == 1].mean()))
    with drawing() as axes:
        name_axes(axes, "false positive rate", "true positive rate", x_format=percent)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        line(axes, [0, 1], [0, 1], GREY, "chance")
        line(axes, false_rate[keep], true_rate[keep], BLUE, "this model")
        line(axes, here[:1], here[1:], ORANGE, "threshold", marker="o")
        label_lines(axes)
        picture = to_svg(axes, "roc")
    majority = max(labels.mean(), 1 - labels.mean())
    right = accuracy(context)
    gain = f"{100 * abs(right - majority):.1f} points {'more' if right >= majority else 'less'}"
    caption = (
        f"The AUC is {area:.3f} (0.5 is chance): in {percent(area)} of all pairs of a row labelled "
        f"{context.schema.favourable} and one labelled {context.schema.unfavourable}, the model ranks the "
        f"former higher. At its threshold (the dot), the accuracy is {percent(right)} on "
        f"{format_count(len(labels), 'row')}, {gain} than always predicting the more frequent label."
    )
    rows = [[f"{a:.3f}", f"{b:.3f}"] for a, b in points[:: max(len(points) // 20, 1)]]
    table = Table.of(["false positive rate", "true positive rate"], rows, words=0)
    return Figure("roc", "ROC curve", picture, caption, table)


def _reliability(context: ReportContext) -> Figure:
    assert context.labels is not None
    found = reliability(context.probability, context.labels)
    low, high = intervals(found)
    with drawing() as axes:
        name_axes(axes, "predicted probability", "observed share, with 95\u00a0% intervals", x_format=percent)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        line(axes, [0, 1], [0, 1], GREY, "perfect")
        axes.plot([found.predicted] * 2, [low, high], color=BLUE, linewidth=1.2, alpha=0.75)
        line(axes, found.predicted, found.observed, BLUE, "this model")
        axes.plot(found.predicted, found.observed, "o", color=BLUE)
        label_lines(axes)
        picture = to_svg(axes, "reliability")
    caption = _truth(found, low, high)
    rows = [
        [percent(p), percent(o), f"{n:,}"]
        for p, o, n in zip(found.predicted, found.observed, found.rows, strict=True)
    ]
    table = Table.of(["predicted", "observed", "rows"], rows, words=0)
    return Figure("reliability", "Calibration", picture, caption, table)


def _truth(found: Reliability, low: NDArray[np.float64], high: NDArray[np.float64]) -> str:
    """State whether the probabilities are calibrated, and their largest error."""
    worst = int(np.abs(found.predicted - found.observed).argmax())
    said, seen = found.predicted[worst], found.observed[worst]
    inside = int(((low <= found.predicted) & (found.predicted <= high)).sum())
    bins = len(found.rows)
    verdict = "well calibrated" if bins - inside < UNLIKELY else "not calibrated"
    return (
        f"The probabilities are {verdict}: in {inside} of {bins} bins, the predicted probability lies in the "
        f"95\u00a0% interval of the observed share. The mean error is {100 * found.error:.1f} points; the "
        f"largest is {percent(said)} predicted against {percent(seen)} observed."
    )


# ---------------------------------------------------------------- how training went


STILL = 0.01
"""A loss that fell by more than this share in the last epoch is still falling."""

RISE = 0.05
"""A log loss that rises by more than this share after its least value is overfitting."""

RATES = {"accuracy": BLUE, "certified": ORANGE, "validity": BLACK}
LOSSES = {"objective": BLUE, "log_loss": ORANGE}


def learning_figures(model: VeriTraCER) -> list[Figure]:
    """Draw the validation metrics and the losses by epoch; nothing without a history."""
    history = model.history_
    if len(history) < 2:
        return []
    return [figure for figure in (_rates(model, history), _losses(model, history)) if figure is not None]


def _rates(model: VeriTraCER, history: pd.DataFrame) -> Figure | None:
    names = _kept(history, RATES)
    if not names:
        return None
    low = min(float(np.floor(10 * history[names].min().min()) / 10), 0.9)
    with drawing() as axes:
        name_axes(axes, "epoch", "share of validation rows")
        axes.set_ylim(low, 1)
        _draw_epochs(axes, model, names, RATES)
        picture = to_svg(axes, "rates")
    best = _best(model, history)
    said = ", ".join(f"{name} {percent(float(best[name]))}" for name in names)
    caption = f"Epoch {model.best_epoch_} of {len(history)} was selected: {said}. "
    if "certified" in names:
        caption += _meanwhile(model, history)
    table = _table(history, names, percent)
    return Figure("rates", "Validation metrics by epoch", picture, caption, table)


def _meanwhile(model: VeriTraCER, history: pd.DataFrame) -> str:
    """State accuracy and certified share before kappa grew and in the selected epoch.

    The two differ in how long they trained as well, so no cost of robustness is claimed here.
    """
    before = history[history["kappa"] == 0]
    if before.empty or not history["kappa"].max() > 0:
        return ""
    start, end = before.iloc[-1], _best(model, history)
    certified, accuracy = (
        f"from {percent(float(start[name]))} to {percent(float(end[name]))}"
        for name in ("certified", "accuracy")
    )
    grown = f"While κ grew from 0 to {history['kappa'].max():g}"
    return f"{grown}, the certified share went {certified} and the accuracy {accuracy}."


def _losses(model: VeriTraCER, history: pd.DataFrame) -> Figure | None:
    names = _kept(history, LOSSES)
    if not names:
        return None
    values = history[names].to_numpy(dtype=np.float64)
    top = float(np.nanmax(np.where(np.isfinite(values), values, np.nan)))
    with drawing() as axes:
        name_axes(axes, "epoch", "loss", y_format=format_number)
        axes.set_ylim(0, top * 1.05)
        _draw_epochs(axes, model, names, LOSSES)
        picture = to_svg(axes, "losses")
    name = names[0]
    first, last, best = (
        float(v) for v in (history[name].iloc[0], history[name].iloc[-1], _best(model, history)[name])
    )
    caption = (
        f"The {name.replace('_', ' ')} was {format_number(first)} after the first epoch, "
        f"{format_number(best)} in the selected "
        f"epoch and {format_number(last)} after the last: {_ending(history, name, best)}"
    )
    table = _table(history, names, format_number)
    return Figure("losses", "Losses by epoch", picture, caption, table)


def _ending(history: pd.DataFrame, name: str, best: float) -> str:
    """State how training ended: by overfitting, converged, or still falling."""
    found = overfitting(history)
    if found is not None:
        least, at, end = found
        return (
            f"the validation log loss rose from {format_number(least)} after epoch {at} to "
            f"{format_number(end)} at the end. The model overfits; train for fewer epochs."
        )
    before, last = (float(value) for value in history[name].iloc[-2:])
    if last <= best and before - last > STILL * abs(last):
        return "it was still falling, so more epochs may help."
    if abs(last - best) <= RISE * abs(best):
        return "training had converged."
    return "training had not converged."


def overfitting(history: pd.DataFrame) -> tuple[float, int, float] | None:
    """Return the least validation log loss, its epoch and the last loss if that is more than 5 % higher."""
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


def _kept(history: pd.DataFrame, wanted: Iterable[str]) -> list[str]:
    """Return the columns that were measured in at least two epochs."""
    return [name for name in wanted if name in history and np.isfinite(history[name].astype(float)).sum() > 1]


def _draw_epochs(axes: Axes, model: VeriTraCER, names: list[str], colours: dict[str, str]) -> None:
    """Draw these columns of the history, and mark the selected epoch."""
    history = model.history_
    for name in names:
        line(axes, history["epoch"], history[name].astype(float), colours[name], name.replace("_", " "))
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    mark(axes, model.best_epoch_, f"selected: epoch {model.best_epoch_}")
    label_lines(axes)


def _best(model: VeriTraCER, history: pd.DataFrame) -> pd.Series[float]:
    return history[history["epoch"] == model.best_epoch_].iloc[0]


def _table(history: pd.DataFrame, names: list[str], write: object) -> Table:
    assert callable(write)
    rows = [
        [f"{int(line['epoch'])}", f"{line['kappa']:.3g}", *(write(float(line[n])) for n in names)]
        for _, line in history.iterrows()
    ]
    return Table.of(["epoch", "κ", *(n.replace("_", " ") for n in names)], rows, words=0)
