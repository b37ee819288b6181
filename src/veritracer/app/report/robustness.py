"""Acceptance of the counterfactuals by models near this one, and by independent ones.

For models near this one, the share that is certified at each kappa, and what an attack cannot break. For
independent ones, the votes of the panel's held-out members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from veritracer.app.report.context import ReportContext
from veritracer.app.report.figures import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    Figure,
    drawing,
    histogram,
    line,
    mark,
    name_axes,
    percent,
    to_figure,
)
from veritracer.bounds.attack import attack
from veritracer.formatting import format_count
from veritracer.models.network import sign_of

MOST_ATTACKED = 200
"""Counterfactuals that are attacked; each needs a copy of all parameters and a search."""

ATTACK_STEPS = 15
ATTACK_BATCH = 50


class Limits(NamedTuple):
    """Lower and upper limits of the share of valid counterfactuals, for each kappa.

    ``certified`` is the lower limit and ``unbroken`` the upper one. ``broken`` counts the attacked
    counterfactuals that some model of the set declines, of ``attacked`` ones, the same at each kappa.
    """

    kappa: NDArray[np.float64]
    certified: NDArray[np.float64]
    unbroken: NDArray[np.float64]
    broken: NDArray[np.int64]
    attacked: int


def limits(context: ReportContext) -> Limits:
    """Measure the certified share of all explained rows, and its upper limit by an attack.

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
    """Draw the band between the certified share and what the attack could not break, against kappa."""
    found = limits(context)
    top = float(found.kappa[-1])
    unit = ", in multiples of the radius" if context.recourse.param_set.rule == "absolute" else ""
    table = [
        {
            "κ": f"{k:.3g}",
            "certified": percent(c),
            "upper bound": percent(u),
            "broken by the attack": f"{b:,} of {found.attacked:,}",
        }
        for k, c, u, b in zip(found.kappa, found.certified, found.unbroken, found.broken, strict=True)
    ]
    with drawing() as axes:
        name_axes(axes, f"κ{unit}", "share of applicants")
        axes.set(xlim=(0, top), ylim=(0, 1.02))
        axes.locator_params(axis="x", nbins=8)
        # A certificate for kappa is one for every smaller kappa, and what the attack broke is broken at every
        # larger one: both are stairs, and the truth lies in the band between them.
        certified = _stairs(*_certified(context, top))
        at_zero = float(context.has_cf.sum() / context.explained.sum())
        limit = _stairs([0.0, *found.kappa], [at_zero, *found.unbroken])
        band = [np.concatenate([up, down[::-1]]) for up, down in zip(certified, limit, strict=True)]
        axes.fill(*band, color=BLUE, alpha=0.12)
        line(axes, *limit, ORANGE, "not broken by the attack")
        line(axes, *certified, BLUE, "certified")
        mark(axes, context.recourse.kappa, f"requested κ = {context.recourse.kappa:g}")
        return to_figure(
            axes, "robustness", "Certified share against distance κ", _caption(context, found), table
        )


def _caption(context: ReportContext, found: Limits) -> str:
    """State the certified share at the requested kappa, and how far half of the counterfactuals hold."""
    kappa, with_cf = context.recourse.kappa, int(context.has_cf.sum())
    at = int(np.abs(found.kappa - kappa).argmin())
    low, high = float(found.certified[at]), float(found.unbroken[at])
    people = format_count(int(context.explained.sum()), "applicant")
    said = f"At {context.models}, {percent(low)} of {people} have a certified counterfactual"
    if high > low:
        said += f", and at most {percent(high)} could have one, since the attack breaks the others"
    tried = (
        "every counterfactual"
        if found.attacked == with_cf
        else f"{found.attacked:,} of {with_cf:,} counterfactuals"
    )
    proved = float(np.median(context.recourse.radius[context.first[context.has_cf]]))
    share = found.broken / max(found.attacked, 1)
    k = int((share > 0.5).argmax()) if (share > 0.5).any() else len(share) - 1
    said += (
        f". The attack tried {tried} and broke no certificate. The median certified radius is "
        f"κ = {proved:.3g}, and at κ = {found.kappa[k]:.3g} the attack breaks {percent(float(share[k]))} of "
        "the counterfactuals"
    )
    few = share[k] > 0.5 and found.kappa[k] <= 1.25 * kappa
    beyond = (
        " Few stay valid much beyond the requested κ; request a larger one if the model may move further."
    )
    return f"{said}.{beyond if few else ''}"


def _stairs(x: Sequence[float], y: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the corners of a staircase on which each value of ``y`` holds from its ``x`` to the next."""
    return np.repeat(np.asarray(x), 2)[1:], np.repeat(np.asarray(y), 2)[:-1]


def _kappas(kappa: float, radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """Choose each kappa to try: closely around the requested one, then evenly up to where few hold."""
    kappa = kappa or 0.1
    top = max(1.4 * kappa, min(1.1 * float(np.quantile(radius, 0.99)), 4 * kappa))
    around = kappa * np.array([0.5, 0.9, 1.0, 1.02, 1.05, 1.1])
    return np.unique(np.concatenate([around, np.linspace(1.2 * kappa, top, 4)]))


def _sample(context: ReportContext) -> NDArray[np.int64]:
    """Return positions in ``recourse`` of the counterfactuals to attack, spread evenly."""
    with_cf = context.first[context.has_cf]
    if len(with_cf) <= MOST_ATTACKED:
        return with_cf
    spread = np.linspace(0, len(with_cf) - 1, MOST_ATTACKED).round().astype(np.int64)
    chosen: NDArray[np.int64] = with_cf[spread]
    return chosen


def _breaks(context: ReportContext, rows: NDArray[np.int64], kappa: float) -> NDArray[np.bool_]:
    """Return a mask of the counterfactuals for which the attack finds a model that declines them."""
    recourse = context.recourse
    param_set = recourse.param_set.at(kappa)
    found = [np.zeros(0, dtype=bool)]
    for part in torch.split(torch.from_numpy(rows), ATTACK_BATCH):
        x, x_cf = recourse.x[part], recourse.x_cf[part]
        sign = sign_of(param_set.network.logit(param_set.center, x).detach())
        worst = attack(param_set, x, x_cf, sign, steps=ATTACK_STEPS, restarts=0).worst_logit
        found.append((worst >= 0).numpy())
    return np.concatenate(found)


def _certified(context: ReportContext, top: float) -> tuple[list[float], list[float]]:
    """Return each kappa up to ``top`` at which a certificate ends, and the certified share beyond it."""
    radius = context.recourse.radius[context.first[context.explained]]
    ends = [0.0, *np.unique(radius[(radius > 0) & (radius < top)]).tolist(), top]
    shares = [float((radius > end).mean()) for end in ends]
    return ends, [*shares[:-1], shares[-2]]


# ---------------------------------------------------------------- acceptance by independent models


TITLES = {
    "model": (BLUE, "this model"),
    "panel": (ORANGE, "its panel"),
    "held_out": (BLACK, "held-out models"),
    "truth": (GREY, "true probability"),
}

QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)

MODEL_SPECIFIC = 0.25
"""A larger gap between the model and the others at the counterfactual is reported as model-specific."""


def agreement_figures(context: ReportContext) -> list[Figure]:
    """Return the panel's agreement and one interpolation path; nothing without a panel."""
    recourse = context.recourse
    with_cf = context.first[context.has_cf]
    if recourse.reference.panel is None or len(with_cf) == 0:
        return []
    agreement = recourse.agreement[with_cf]
    typical = with_cf[np.argsort(recourse.cost[with_cf], kind="stable")[len(with_cf) // 2]]
    figures = [path_figure(recourse.interpolation_path(int(typical)), "the row of median cost")]
    return figures if np.isnan(agreement).all() else [agreement_figure(agreement), *figures]


def agreement_figure(agreement: NDArray[np.float64]) -> Figure:
    """Draw the histogram of agreement: the share of held-out panel members that accept each row."""
    edges = np.linspace(0, 1, 6)
    counts, _ = np.histogram(agreement, edges)
    most = float((agreement >= 0.5).mean())
    caption = (
        f"{percent(most)} of the counterfactuals are accepted by at least half of the held-out panel "
        "members, independent models that took no part in training or search."
        + (" Do not hand out the others." if most < 1 else "")
    )
    with drawing() as axes:
        axis = "share of held-out models that accept it"
        name_axes(axes, axis, "people", x_format=percent, y_format="{:,.0f}".format)
        axes.set(xlim=(0, 1), ylim=(0, 1.05 * max(counts.max(), 1)))
        histogram(axes, edges, counts)
        return to_figure(axes, "agreement", "Agreement of held-out models", caption)


def path_figure(path: pd.DataFrame, whose: str) -> Figure:
    """Draw each model's probability along the line from x (0) to x′ (1) and a little beyond."""
    known = [name for name in TITLES if name in path]
    end = {name: float(_at(path, 1.0)[name]) for name in known}
    gap = end["model"] - float(np.mean([end[name] for name in known if name != "model"]))
    said = ", ".join(f"{TITLES[name][1]} {percent(end[name])}" for name in known)
    verdict = (
        "Only this model's probability rises: the counterfactual is model-specific."
        if gap > MODEL_SPECIFIC
        else "The probabilities rise together."
    )
    table = [
        {"position": f"{t:g}", **{TITLES[name][1]: percent(float(_at(path, t)[name])) for name in known}}
        for t in QUARTERS
    ]
    with drawing() as axes:
        name_axes(axes, "position between x (0) and x′ (1)", "probability of the favourable decision")
        axes.set(xlim=(0, path.index[-1]), ylim=(0, 1))
        for name in known:
            line(axes, path.index, path[name], *TITLES[name])
        mark(axes, 1.0)
        title = "From the original row to the counterfactual"
        return to_figure(axes, "path", title, f"At x′, for {whose}: {said}. {verdict}", table)


def _at(path: pd.DataFrame, share: float) -> Any:
    return path.iloc[int(np.argmin(np.abs(path.index.to_numpy(dtype=float) - share)))]
