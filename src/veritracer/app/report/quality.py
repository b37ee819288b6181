"""How good the classifier is, and how far its promises reach.

Accuracy, what it ranks, whether its probabilities mean what they say, and how training went: what each epoch
reached on the rows that were kept aside. What is certified at each kappa, and what an attack could still not
break.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
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
from veritracer.bounds.attack import attack
from veritracer.formatting import format_count, format_number
from veritracer.model import VeriTraCER
from veritracer.models.network import sign_of

BINS = 10
UNLIKELY = 3
"""Bins of ten outside of their 95 % interval that chance gives a true model once in 90 times."""

MOST_POINTS = 120
"""Points of a curve that are drawn: more could not be told apart."""

MOST_ATTACKED = 200
"""Counterfactuals that are attacked; each needs a copy of all parameters and a search of its own."""

ATTACK_STEPS = 15
ATTACK_BATCH = 50


class Reliability(NamedTuple):
    """Rows in bins of equal size by predicted probability: mean prediction, observed share, and how many."""

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    rows: NDArray[np.int64]

    @property
    def error(self) -> float:
        """The mean distance between prediction and observation, weighted by rows."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.rows))


def accuracy(context: ReportContext) -> float:
    """The share of rows that are decided as their label says."""
    assert context.labels is not None
    return float(((context.logit > 0) == (context.labels == 1)).mean())


def auc(context: ReportContext) -> float:
    """The chance that a favourable row is ranked above an unfavourable one; nan if there is one kind only."""
    labels = context.labels
    if labels is None or len(np.unique(labels)) < 2:
        return float("nan")
    return float(roc_auc_score(labels, context.logit))


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


def quality_figures(context: ReportContext) -> list[Figure]:
    """The ROC curve and the reliability curve; none without labels of both kinds."""
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
        line(axes, *zip(*points, strict=True), BLUE, "this model")
        line(axes, *([place] for place in here), ORANGE, "threshold", marker="o")
        label_lines(axes)
        picture = to_svg(axes, "roc")
    majority = max(labels.mean(), 1 - labels.mean())
    right = accuracy(context)
    gain = f"{100 * abs(right - majority):.1f} points {'more' if right >= majority else 'less'}"
    caption = (
        f"The AUC is {area:.3f} (0.5 is chance): of a row labelled {context.schema.favourable} and one "
        f"labelled {context.schema.unfavourable}, the model ranks the first higher {percent(area)} of the "
        f"time. At its threshold (the dot) the accuracy is {percent(right)} on "
        f"{format_count(len(labels), 'row')}, "
        f"{gain} than predicting the more frequent label."
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
    """What the bins allow to say of the probabilities, and where they are furthest off."""
    worst = int(np.abs(found.predicted - found.observed).argmax())
    said, seen = found.predicted[worst], found.observed[worst]
    tone = "too high" if said > seen else "too low"
    inside = int(((low <= found.predicted) & (found.predicted <= high)).sum())
    bins = len(found.rows)
    off = f"{100 * found.error:.1f} points"
    verdict = (
        f"the probabilities are well calibrated (mean error {off})"
        if bins - inside < UNLIKELY
        else f"the probabilities are not calibrated (mean error {off}, more than chance explains)"
    )
    return (
        f"In {inside} of {bins} bins the predicted probability lies in the 95\u00a0% interval of the "
        f"observed share: {verdict}. The largest error is {percent(said)} predicted "
        f"against {percent(seen)} observed, {tone}."
    )


# ---------------------------------------------------------------- how training went


STILL = 0.01
"""A loss that fell by more than this share in the last epoch was still falling."""

RISE = 0.05
"""A log loss that rises by more than this share after its least value is overfitting."""

RATES = {"accuracy": BLUE, "certified": ORANGE, "validity": BLACK}
PAIR = ("certified", "accuracy")
LOSSES = {"objective": BLUE, "log_loss": ORANGE}


def learning_figures(model: VeriTraCER) -> list[Figure]:
    """The rates and the losses by epoch; none for a model without a history."""
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
        f"{name.replace('_', ' ')} was {format_number(first)} after the first epoch, "
        f"{format_number(best)} in the selected "
        f"epoch and {format_number(last)} after the last: {_ending(history, name, best)}"
    )
    table = _table(history, names, format_number)
    return Figure("losses", "Losses by epoch", picture, caption[:1].upper() + caption[1:], table)


def _ending(history: pd.DataFrame, name: str, best: float) -> str:
    """How training ended: by overfitting, settled, or before its end."""
    found = overfitting(history)
    if found is not None:
        least, at, end = found
        return (
            f"the validation log loss rose from {format_number(least)} after epoch {at} to "
            f"{format_number(end)} at the end. "
            "The model overfits; train for fewer epochs."
        )
    before, last = (float(value) for value in history[name].iloc[-2:])
    if last <= best and before - last > STILL * abs(last):
        return "it was still falling, so more epochs may help."
    if abs(last - best) <= RISE * abs(best):
        return "training had converged."
    return "training had not converged."


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


class Limits(NamedTuple):
    """For each kappa the share of people with a certificate, and the share that may hold at most.

    ``broken`` counts the attacked counterfactuals that a model of the set breaks; ``attacked`` is how many
    were tried, the same ones at each kappa.
    """

    kappa: NDArray[np.float64]
    certified: NDArray[np.float64]
    unbroken: NDArray[np.float64]
    broken: NDArray[np.int64]
    attacked: int


def limits(context: ReportContext) -> Limits:
    """The certified share of all people asked about, and its limit from the other side.

    Sets are nested: what breaks at one kappa is broken at every larger one. The attack sees a sample of
    the counterfactuals; of those without a certificate, as many are taken to hold as in the sample.
    """
    explained = context.first[context.explained]
    radius, sampled = context.recourse.radius[explained], _sample(context)
    reach = context.recourse.radius[sampled]
    kappas = _kappas(context.recourse.kappa, radius)
    certified = np.array([(radius >= k).mean() for k in kappas])
    with_cf = len(context.first[context.has_cf]) / len(explained)
    unbroken, counts, broken = [], [], np.zeros(len(sampled), dtype=bool)
    for kappa, share in zip(kappas.tolist(), certified.tolist(), strict=True):
        alive = np.flatnonzero(~broken)
        broken[alive] = _breaks(context, sampled[alive], kappa)
        assert not (broken & (reach >= kappa)).any(), "an attack broke a certificate"
        open_ = reach < kappa
        holds = float((~broken[open_]).mean()) if open_.any() else 1.0
        unbroken.append(share + (with_cf - share) * holds)
        counts.append(int(broken.sum()))
    # Sets are nested, so a limit for one kappa is one for every larger kappa too.
    return Limits(kappas, certified, np.minimum.accumulate(unbroken), np.array(counts), len(sampled))


def robustness_figure(context: ReportContext) -> Figure:
    """The band between what is certified and what the attack could not break, against kappa."""
    found = limits(context)
    top = float(found.kappa[-1])
    unit = ", in multiples of the radius" if context.recourse.param_set.rule == "absolute" else ""
    with drawing() as axes:
        name_axes(axes, f"κ{unit}", "share of applicants")
        axes.set(xlim=(0, top), ylim=(0, 1))
        axes.locator_params(axis="x", nbins=8)
        # A certificate for kappa is one for every smaller kappa, and what the attack broke is broken at every
        # larger one: both are stairs, and the truth lies in the band between them.
        certified = _stairs(*_certified(context, top))
        limit = _stairs([0.0, *found.kappa], [_at_zero(context), *found.unbroken])
        band = [np.concatenate([up, down[::-1]]) for up, down in zip(certified, limit, strict=True)]
        axes.fill(*band, color=BLUE, alpha=0.12)
        line(axes, *limit, ORANGE, "not broken by the attack")
        line(axes, *certified, BLUE, "certified")
        axes.plot(found.kappa, found.unbroken, "o", color=ORANGE)
        mark(axes, context.recourse.kappa, f"requested κ = {context.recourse.kappa:g}")
        label_lines(axes)
        picture = to_svg(axes, "robustness")
    rows = [
        [f"{k:.3g}", percent(c), percent(u), f"{b:,} of {found.attacked:,}"]
        for k, c, u, b in zip(found.kappa, found.certified, found.unbroken, found.broken, strict=True)
    ]
    header = ["κ", "certified", "upper bound", "broken by the attack"]
    title = "Certified share against distance κ"
    table = Table.of(header, rows, words=0)
    return Figure("robustness", title, picture, _caption(context, found), table)


def _caption(context: ReportContext, found: Limits) -> str:
    """What is proved where it was asked for, how exact that is, and what lies beyond."""
    kappa, with_cf = context.recourse.kappa, int(context.has_cf.sum())
    at = int(np.abs(found.kappa - kappa).argmin())
    low, high = float(found.certified[at]), float(found.unbroken[at])
    people = format_count(int(context.explained.sum()), "applicant")
    said = f"At {context.models}, {percent(low)} of {people} have a certified counterfactual"
    if high > low:
        said += f", and at most {percent(high)} could have one, since the attack breaks the others"
    sample = (
        "every counterfactual"
        if found.attacked == with_cf
        else f"a sample of {found.attacked:,} of {with_cf:,}"
    )
    return f"{said}. The attack tried {sample} and broke no certificate. {_half(context, found)}"


def _half(context: ReportContext, found: Limits) -> str:
    """Up to which kappa half of the promises hold, from both sides."""
    kappa = context.recourse.kappa
    proved = float(np.median(context.recourse.radius[context.first[context.has_cf]]))
    share = found.broken / max(found.attacked, 1)
    lost = np.flatnonzero(share > 0.5)
    if not len(lost):
        return (
            f"The median certified radius is κ = {proved:.3g}; at κ = {found.kappa[-1]:.3g} the attack "
            f"breaks {percent(float(share[-1]))} of the counterfactuals."
        )
    broken = float(found.kappa[lost[0]])
    close = "the bound is nearly exact" if broken <= 1.1 * proved else "the true share lies between the two"
    beyond = (
        " Few hold much beyond the requested κ; request a larger κ if the model may move further."
        if broken <= 1.25 * kappa
        else ""
    )
    return (
        f"The median certified radius is κ = {proved:.3g}, and at κ = {broken:.3g} the attack breaks "
        f"{percent(float(share[lost[0]]))}; {close}.{beyond}"
    )


def _stairs(x: Sequence[float], y: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the corners of a staircase on which each value of ``y`` holds from its ``x`` to the next."""
    return np.repeat(np.asarray(x), 2)[1:], np.repeat(np.asarray(y), 2)[:-1]


def _kappas(kappa: float, radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where to look: evenly up to where few certificates reach, and closely around what was asked for."""
    kappa = kappa or 0.1
    top = max(1.4 * kappa, min(1.1 * float(np.quantile(radius, 0.99)), 4 * kappa))
    around = kappa * np.array([0.5, 0.9, 1.0, 1.02, 1.05, 1.1])
    return np.unique(np.concatenate([around, np.linspace(1.2 * kappa, top, 4)]))


def _sample(context: ReportContext) -> NDArray[np.int64]:
    """Positions in ``recourse`` of the counterfactuals to attack, evenly over all that were given."""
    with_cf = context.first[context.has_cf]
    if len(with_cf) <= MOST_ATTACKED:
        return with_cf
    spread = np.linspace(0, len(with_cf) - 1, MOST_ATTACKED).round().astype(np.int64)
    chosen: NDArray[np.int64] = with_cf[spread]
    return chosen


def _breaks(context: ReportContext, rows: NDArray[np.int64], kappa: float) -> NDArray[np.bool_]:
    """Which of these counterfactuals a model within ``kappa`` breaks, as far as the attack finds one."""
    recourse = context.recourse
    param_set = recourse.param_set.at(kappa)
    found = [np.zeros(0, dtype=bool)]
    for part in torch.split(torch.from_numpy(rows), ATTACK_BATCH):
        x, x_cf = recourse.x[part], recourse.x_cf[part]
        sign = sign_of(param_set.network.logit(param_set.center, x).detach())
        worst = attack(param_set, x, x_cf, sign, steps=ATTACK_STEPS, restarts=0).worst_logit
        found.append((worst >= 0).numpy())
    return np.concatenate(found)


def _at_zero(context: ReportContext) -> float:
    """The share of people with a counterfactual that is valid today."""
    return float(context.has_cf.sum() / context.explained.sum())


def _certified(context: ReportContext, top: float) -> tuple[list[float], list[float]]:
    """Return each kappa up to ``top`` at which a certificate ends, and the certified share beyond it."""
    radius = context.recourse.radius[context.first[context.explained]]
    ends = [0.0, *np.unique(radius[(radius > 0) & (radius < top)]).tolist(), top]
    shares = [float((radius > end).mean()) for end in ends]
    return ends, [*shares[:-1], shares[-2]]
