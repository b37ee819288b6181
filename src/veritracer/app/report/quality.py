"""The quality of the classifier: accuracy, calibration, and the course of training."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from veritracer.app.report.context import ReportContext
from veritracer.app.report.figures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    Figure,
    drawing,
    line,
    mark,
    name_axes,
    percent,
    to_figure,
)
from veritracer.estimator import VeriTraCER
from veritracer.formatting import format_count, format_number

BINS = 10
UNLIKELY = 3
"""Bins of ten outside their 95 % interval; a calibrated model has so many once in 90 times."""


def accuracy(context: ReportContext) -> float:
    """Return the accuracy on the labelled rows."""
    assert context.labels is not None
    return float(((context.logit > 0) == (context.labels == 1)).mean())


def describe_quality(context: ReportContext) -> str:
    """State accuracy and AUC, where there are labels for them."""
    labels = context.labels
    if labels is None:
        return "No labels were given with the table, so the quality of the model cannot be measured."
    right, majority = accuracy(context), max(labels.mean(), 1 - labels.mean())
    gain = f"{100 * abs(right - majority):.1f} points {'more' if right >= majority else 'less'}"
    said = (
        f"The accuracy is {percent(right)} on {format_count(len(labels), 'row')}, {gain} than always "
        "predicting the more frequent label."
    )
    if len(np.unique(labels)) < 2:
        return f"{said} All labels of the table are equal, so no ranking can be measured."
    area = float(roc_auc_score(labels, context.logit))
    return (
        f"{said} The AUC is {area:.3f} (0.5 is chance): in {percent(area)} of all pairs of a row labelled "
        f"{context.schema.favourable} and one labelled {context.schema.unfavourable}, the model ranks the "
        "former higher."
    )


def reliability(
    probability: NDArray[np.float64], labels: NDArray[np.int64], bins: int = BINS
) -> pd.DataFrame:
    """Compare predicted and observed shares in up to ``bins`` bins of equal size.

    ``low`` and ``high`` are the ends of the 95 % interval of the observed share (Wilson's, valid near 0 and 1
    too).
    """
    order = np.argsort(probability, kind="stable")
    lines = []
    for part in np.array_split(order, min(bins, len(order))):
        yes = int(labels[part].sum())
        low, high = binomtest(yes, len(part)).proportion_ci(method="wilson")
        lines.append((probability[part].mean(), yes / len(part), len(part), low, high))
    return pd.DataFrame(lines, columns=["predicted", "observed", "rows", "low", "high"])


def calibration_figure(context: ReportContext) -> Figure | None:
    """Draw the calibration curve; None without labels of both kinds."""
    if context.labels is None or len(np.unique(context.labels)) < 2:
        return None
    found = reliability(context.probability, context.labels)
    with drawing() as axes:
        name_axes(axes, "predicted probability", "observed share, with 95\u00a0% intervals", x_format=percent)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        line(axes, [0, 1], [0, 1], GREY)
        axes.plot(
            [found["predicted"]] * 2, [found["low"], found["high"]], color=BLUE, linewidth=1.2, alpha=0.75
        )
        line(axes, found["predicted"], found["observed"], BLUE, marker="o")
        table = [
            {"predicted": percent(a), "observed": percent(b), "rows": f"{n:,}"}
            for a, b, n in zip(found["predicted"], found["observed"], found["rows"], strict=True)
        ]
        return to_figure(axes, "reliability", "Calibration", describe_calibration(found), table)


def describe_calibration(found: pd.DataFrame) -> str:
    """State whether the probabilities are calibrated, and their largest error."""
    apart = (found["predicted"] - found["observed"]).abs()
    worst = found.iloc[int(apart.to_numpy().argmax())]
    inside = int(found["predicted"].between(found["low"], found["high"]).sum())
    verdict = "well calibrated" if len(found) - inside < UNLIKELY else "not calibrated"
    return (
        f"The probabilities are {verdict}: in {inside} of {len(found)} bins, the predicted probability lies "
        "in the 95\u00a0% interval of the observed share (a perfect model is on the dotted line). The mean "
        "error "
        f"is {100 * np.average(apart, weights=found['rows']):.1f} points; the largest is "
        f"{percent(worst['predicted'])} predicted against {percent(worst['observed'])} observed."
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
    figures = []
    for identity, title, colours, axis, write in (
        ("rates", "Validation metrics by epoch", RATES, "share of validation rows", percent),
        ("losses", "Losses by epoch", LOSSES, "loss", format_number),
    ):
        known = [name for name in colours if name in history]
        names = [name for name in known if np.isfinite(history[name].astype(float)).sum() > 1]
        if not names:
            continue
        best = history[history["epoch"] == model.best_epoch_].iloc[0]
        caption = (
            f"Epoch {model.best_epoch_} of {len(history)} was selected: "
            f"{', '.join(f'{_called(name)} {write(float(best[name]))}' for name in names)}. "
        )
        caption += (
            _growth(history, best)
            if identity == "rates"
            else _ending(history, names[0], float(best[names[0]]))
        )
        with drawing() as axes:
            name_axes(axes, "epoch", axis, y_format=write)
            values = history[names].astype(float).to_numpy()
            values = values[np.isfinite(values)]
            low, high = float(values.min()), float(values.max())
            axes.set_ylim(
                (min(np.floor(10 * low) / 10, 0.9), 1.0) if write is percent else (0.0, 1.05 * high)
            )
            axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
            for name in names:
                line(axes, history["epoch"], history[name].astype(float), colours[name], _called(name))
            mark(axes, model.best_epoch_, "selected epoch")
            figures.append(to_figure(axes, identity, title, caption))
    return figures


def _called(name: str) -> str:
    return name.replace("_", " ")


def _growth(history: pd.DataFrame, best: pd.Series[float]) -> str:
    """State accuracy and certified share before kappa grew and in the selected epoch.

    The two differ in how long they trained as well, so no cost of robustness is claimed here.
    """
    before = history[history["kappa"] == 0]
    if before.empty or "certified" not in history or not history["kappa"].max() > 0:
        return ""
    certified, right = (
        f"from {percent(float(before.iloc[-1][name]))} to {percent(float(best[name]))}"
        for name in ("certified", "accuracy")
    )
    grown = f"While κ grew from 0 to {history['kappa'].max():g}"
    return f"{grown}, the certified share went {certified} and the accuracy {right}."


def _ending(history: pd.DataFrame, name: str, best: float) -> str:
    """State how training ended: by overfitting, converged, or still falling."""
    first, before, last = (float(history[name].iloc[k]) for k in (0, -2, -1))
    said = (
        f"The {_called(name)} was {format_number(first)} after the first epoch and {format_number(last)} "
        "after the last: "
    )
    found = overfitting(history)
    if found is not None:
        least, at, end = found
        return (
            f"{said}the validation log loss rose from {format_number(least)} after epoch {at} to "
            f"{format_number(end)} at the end. The model overfits; train for fewer epochs."
        )
    if last <= best and before - last > STILL * abs(last):
        return f"{said}it was still falling, so more epochs may help."
    converged = abs(last - best) <= RISE * abs(best)
    return f"{said}training had {'' if converged else 'not '}converged."


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
