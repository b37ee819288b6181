"""How training went: what each epoch reached on the rows that were kept aside."""

from __future__ import annotations

import numpy as np
import pandas as pd

from veritracer.model import VeriTraCER
from veritracer.report.chart import Axis, Chart, ticks
from veritracer.report.figure import Figure, Table, percent, short

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
    settled = abs(last - best) <= 0.05 * abs(best)
    caption = (
        f"{name.replace('_', ' ')} was {short(first)} after the first epoch, {short(best)} in the one that "
        f"was kept and {short(last)} at the end: "
    ) + ("training had settled." if settled else "training had not settled; more epochs may help.")
    legend = tuple((f"line {series}", n.replace("_", " ")) for n, series in kept)
    picture, table = chart.picture("losses"), _table(history, names, short)
    return Figure("losses", "How the losses fell", picture, caption[:1].upper() + caption[1:], table, legend)


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
