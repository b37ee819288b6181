"""How far the promises reach: what is certified at each kappa, and what an attack could still not break."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from veritracer.bounds.attack import attack
from veritracer.network import sign_of
from veritracer.report.charts import Axis, Chart, Figure, Table, count, percent, ticks
from veritracer.report.subject import Subject

MOST_ATTACKED = 200
"""Counterfactuals that are attacked; each needs a copy of all parameters and a search of its own."""

STEPS = 15
ATTACK_BATCH = 50


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


def limits(subject: Subject) -> Limits:
    """The certified share of all people asked about, and its limit from the other side.

    Sets are nested: what breaks at one kappa is broken at every larger one. The attack sees a sample of
    the counterfactuals; of those without a certificate, as many are taken to hold as in the sample.
    """
    asked = subject.first[subject.asked]
    radius, sampled = subject.recourse.radius[asked], _sample(subject)
    reach = subject.recourse.radius[sampled]
    kappas = _kappas(subject.recourse.kappa, radius)
    certified = np.array([(radius >= k).mean() for k in kappas])
    given = len(subject.first[subject.given]) / len(asked)
    unbroken, counts, broken = [], [], np.zeros(len(sampled), dtype=bool)
    for kappa, share in zip(kappas.tolist(), certified.tolist(), strict=True):
        alive = np.flatnonzero(~broken)
        broken[alive] = _breaks(subject, sampled[alive], kappa)
        assert not (broken & (reach >= kappa)).any(), "an attack broke a certificate"
        open_ = reach < kappa
        holds = float((~broken[open_]).mean()) if open_.any() else 1.0
        unbroken.append(share + (given - share) * holds)
        counts.append(int(broken.sum()))
    # Sets are nested, so a limit for one kappa is one for every larger kappa too.
    return Limits(kappas, certified, np.minimum.accumulate(unbroken), np.array(counts), len(sampled))


def robustness_figure(subject: Subject) -> Figure:
    """The band between what is certified and what the attack could not break, against kappa."""
    found = limits(subject)
    # A certificate for kappa is one for every smaller one, so the certified share falls in steps.
    edge = _steps(subject, found)
    measured = list(zip(found.kappa.tolist(), found.unbroken.tolist(), strict=True))
    upper = _held(_at_zero(subject), measured)
    top = float(found.kappa[-1])
    unit = ", in multiples of the radius" if subject.recourse.param_set.rule == "absolute" else ""
    across = Axis(0, top, f"κ: how far the model may move{unit}", at=tuple(ticks(0, top, most=8)))
    chart = Chart(across, Axis(0, 1, "share of people", percent))
    chart = chart.band(edge, upper, "s1").line(upper, "s2").line(edge, "s1")
    kappa = subject.recourse.kappa
    chart = chart.dots(measured, "s2").mark(kappa, f"asked for: {subject.models}", height=0.5)
    rows = [
        [f"{k:.3g}", percent(c), percent(u), f"{b:,} of {found.attacked:,}"]
        for k, c, u, b in zip(found.kappa, found.certified, found.unbroken, found.broken, strict=True)
    ]
    header = ["κ", "certified", "at most", "attacked ones broken"]
    legend = (("line s1", "certified: proved to hold"), ("line s2", "not broken by the attack"))
    picture = chart.picture("robustness")
    title = "How far the model may move"
    table = Table.of(header, rows, words=0)
    return Figure("robustness", title, picture, _caption(subject, found), table, legend)


def _caption(subject: Subject, found: Limits) -> str:
    """What is proved where it was asked for, how exact that is, and what lies beyond."""
    kappa, given = subject.recourse.kappa, int(subject.given.sum())
    at = int(np.abs(found.kappa - kappa).argmin())
    low, high = float(found.certified[at]), float(found.unbroken[at])
    people = count(int(subject.asked.sum()), "person", "people")
    said = f"At {subject.models}, {percent(low)} of {people} have recourse that is proved to hold"
    if high > low:
        said += f", and at most {percent(high)} can hold: the attack breaks the others"
    sample = (
        "every counterfactual" if found.attacked == given else f"a sample of {found.attacked:,} of {given:,}"
    )
    return f"{said}. The attack saw {sample}, and broke no certificate. {_half(subject, found)}"


def _half(subject: Subject, found: Limits) -> str:
    """Up to which kappa half of the promises hold, from both sides."""
    kappa = subject.recourse.kappa
    proved = float(np.median(subject.recourse.radius[subject.first[subject.given]]))
    share = found.broken / max(found.attacked, 1)
    lost = np.flatnonzero(share > 0.5)
    if not len(lost):
        return (
            f"Half of the promises are proved up to κ = {proved:.3g} or further, and even at "
            f"κ = {found.kappa[-1]:.3g} the attack breaks only {percent(float(share[-1]))} of them."
        )
    broken = float(found.kappa[lost[0]])
    close = "the proofs are nearly exact" if broken <= 1.1 * proved else "the truth lies somewhere between"
    beyond = (
        " Answers reach hardly further than was asked for: ask at a larger κ if the model may move more."
        if broken <= 1.25 * kappa
        else ""
    )
    return (
        f"Half of the promises are proved up to κ = {proved:.3g}, and at κ = {broken:.3g} the attack breaks "
        f"{percent(float(share[lost[0]]))}: {close}.{beyond}"
    )


def _held(start: float, measured: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The upper limit as a staircase: it holds for every larger kappa until the next one measured."""
    points = [(0.0, start)]
    for kappa, share in measured:
        points += [(kappa, points[-1][1]), (kappa, share)]
    return points


def _kappas(kappa: float, radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where to look: evenly up to where few certificates reach, and closely around what was asked for."""
    kappa = kappa or 0.1
    top = max(1.4 * kappa, min(1.1 * float(np.quantile(radius, 0.99)), 4 * kappa))
    around = kappa * np.array([0.5, 0.9, 1.0, 1.02, 1.05, 1.1])
    return np.unique(np.concatenate([around, np.linspace(1.2 * kappa, top, 4)]))


def _sample(subject: Subject) -> NDArray[np.int64]:
    """Positions in ``recourse`` of the counterfactuals to attack, evenly over all that were given."""
    given = subject.first[subject.given]
    if len(given) <= MOST_ATTACKED:
        return given
    spread = np.linspace(0, len(given) - 1, MOST_ATTACKED).round().astype(np.int64)
    chosen: NDArray[np.int64] = given[spread]
    return chosen


def _breaks(subject: Subject, rows: NDArray[np.int64], kappa: float) -> NDArray[np.bool_]:
    """Which of these counterfactuals a model within ``kappa`` breaks, as far as the attack finds one."""
    recourse = subject.recourse
    param_set = recourse.param_set.at(kappa)
    found = [np.zeros(0, dtype=bool)]
    for part in torch.split(torch.from_numpy(rows), ATTACK_BATCH):
        x, x_cf = recourse.x[part], recourse.x_cf[part]
        sign = sign_of(param_set.network.logit(param_set.center, x).detach())
        worst = attack(param_set, x, x_cf, sign, steps=STEPS, restarts=0).worst_logit
        found.append((worst >= 0).numpy())
    return np.concatenate(found)


def _at_zero(subject: Subject) -> float:
    """The share of people with a counterfactual that is valid today."""
    return float(subject.given.sum() / subject.asked.sum())


def _steps(subject: Subject, found: Limits) -> list[tuple[float, float]]:
    """The certified share as a staircase: it falls where the certificate of somebody ends."""
    radius = np.sort(subject.recourse.radius[subject.first[subject.asked]])
    top = float(found.kappa[-1])
    points = [(0.0, float((radius > 0).mean()))]
    for value in np.unique(radius[(radius > 0) & (radius < top)]).tolist():
        after = float((radius > value).mean())
        points += [(value, points[-1][1]), (value, after)]
    return [*points, (top, points[-1][1])]
