"""How far the promises reach: what is certified at each kappa, and what an attack could still not break."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from veritracer.bounds.attack import attack
from veritracer.network import sign_of
from veritracer.param_sets import ParamSet
from veritracer.report.chart import Axis, Chart
from veritracer.report.figure import Figure, Table, count, percent
from veritracer.report.subject import Subject

MOST_ATTACKED = 200
"""Counterfactuals that are attacked; each needs a copy of all parameters and a search of its own."""

STEPS = 15
AT_ONCE = 50


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
    return Limits(kappas, certified, np.array(unbroken), np.array(counts), len(sampled))


def robustness_figure(subject: Subject) -> Figure:
    """The band between what is certified and what the attack could not break, against kappa."""
    found = limits(subject)
    # A certificate for kappa is one for every smaller one, so the certified share falls in steps.
    edge = _steps(subject, found)
    upper = list(
        zip([0.0, *found.kappa.tolist()], [_at_zero(subject), *found.unbroken.tolist()], strict=True)
    )
    top = float(found.kappa[-1])
    chart = Chart(Axis(0, top, "κ: how far the model may move"), Axis(0, 1, "share of people", percent))
    chart = chart.band(edge, upper, "s1").line(upper, "s2").line(edge, "s1")
    chart = chart.dots(upper[1:], "s2").mark(
        subject.recourse.kappa, f"asked for: κ = {subject.recourse.kappa:g}"
    )
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
    kappa = subject.recourse.kappa
    at = int(np.abs(found.kappa - kappa).argmin())
    gap = float((found.unbroken - found.certified).max())
    people = count(int(subject.asked.sum()), "person", "people")
    said = (
        f"At κ = {kappa:g}, {percent(found.certified[at])} of {people} have recourse that is proved to hold. "
        f"The truth lies between the two lines, which are at most {percent(gap)} apart"
    )
    tight = ", so the proofs give away next to nothing. " if gap < 0.02 else ". "
    beyond = np.flatnonzero(found.kappa > kappa * 1.001)
    end = int(beyond[np.abs(found.kappa[beyond] - 1.1 * kappa).argmin()])
    return (
        f"{said}{tight}The attack tried {count(found.attacked, 'counterfactual')} and broke "
        f"{found.broken[at]:,} at κ = {kappa:g}, and {found.broken[end]:,} at κ = {found.kappa[end]:.3g}: "
        + (
            "most answers reach hardly further than was asked for, so ask at a larger κ if the model may."
            if found.broken[end] > found.attacked / 2
            else "there is room beyond what was asked for."
        )
    )


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
    return given[np.linspace(0, len(given) - 1, MOST_ATTACKED).round().astype(int)]


def _breaks(subject: Subject, rows: NDArray[np.int64], kappa: float) -> NDArray[np.bool_]:
    """Which of these counterfactuals a model within ``kappa`` breaks, as far as the attack finds one."""
    recourse = subject.recourse
    param_set = ParamSet.around(subject.model.classifier_, kappa, recourse.norm, recourse.radius_rule)
    found = [np.zeros(0, dtype=bool)]
    for part in torch.split(torch.from_numpy(rows), AT_ONCE):
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
