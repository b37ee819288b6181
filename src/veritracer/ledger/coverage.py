"""Which kappa covers which share of updates, what it costs, and which one to promise.

So many updates tell so much: an order statistic of the kappas that they needed covers a share of all updates
with a stated confidence. What it costs is how much of the recourse is still certified, how far away it is,
and the accuracy. Recommended is one that was measured and is affordable; or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal

import numpy as np
import pandas as pd
from scipy.stats import binom
from sklearn.base import clone

from veritracer import metrics
from veritracer.errors import DataError, message
from veritracer.estimator import VeriTraCER
from veritracer.formatting import format_percent
from veritracer.ledger.displacement import Table, Updates, simulated


@dataclass(frozen=True)
class Coverage:
    """What is known of the kappa that covers a share of all updates.

    Attributes
    ----------
    share
        Of the updates that the measured ones are a sample of.
    measured
        The smallest kappa that covers this share of the measured updates.
    kappa
        A kappa that covers at least this share of all updates, with the confidence that was asked for: an
        order statistic of the measured ones. None where there are too few of them for any to be one.
    updates_needed
        The fewest updates with which it is known.
    """

    share: float
    measured: float
    kappa: float | None
    updates_needed: int


def coverage(needed: Sequence[float], share: float, confidence: float) -> Coverage:
    """The order statistics of the needed kappas that stand for a share of all updates.

    With n independent updates, k_(r) is at least the quantile of ``share`` with probability
    P(Binomial(n, share) <= r - 1), whatever the distribution. The smallest such r is taken; if not even the
    largest of them will do, no kappa is known to cover that share.

    >>> coverage([0.1, 0.2, 0.3, 0.4, 0.5], 0.5, confidence=0.95)
    Coverage(share=0.5, measured=0.3, kappa=0.5, updates_needed=5)
    >>> coverage([0.1, 0.2, 0.3, 0.4, 0.5], 0.9, confidence=0.95)
    Coverage(share=0.9, measured=0.5, kappa=None, updates_needed=29)
    """
    check_shares(share, confidence)
    ordered = sorted(needed)
    n = len(ordered)
    enough = np.flatnonzero(binom.cdf(np.arange(n), n, share) >= confidence)
    kappa = ordered[enough[0]] if len(enough) else None
    measured = ordered[max(1, math.ceil(share * n - 1e-9)) - 1]  # 0.9 * 10 may be an ulp above 9
    fewest = math.ceil(math.log(1 - confidence) / math.log(share) - 1e-9)
    return Coverage(share, measured, kappa, fewest)


def rounded_up(kappa: float) -> float:
    """The next number with three significant digits that is not below: what covers must not shrink.

    >>> rounded_up(1.2341), rounded_up(0.2), rounded_up(0.09991)
    (1.24, 0.2, 0.1)
    """
    if kappa == 0 or not math.isfinite(kappa):
        return kappa
    exact = Decimal(repr(kappa))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=ROUND_CEILING))


def check_shares(share: float, confidence: float) -> None:
    """Refuse what is no share."""
    for name, value in (("coverage", share), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            remedy = "nobody can know about all of them: 0.99 is a lot"
            raise DataError(message(f"a {name} between 0 and 1", f"{value:g}", remedy))


# ---------------------------------------------------------------- what a kappa costs


@dataclass(frozen=True)
class Cost:
    """What promising ``kappa`` costs with a model that was trained for ``trained_for``.

    Attributes
    ----------
    kappa, trained_for
        What is promised, and the model's own.
    refitted
        Whether the model was trained anew for this, or is today's.
    rows
        Declined test rows that recourse was looked for.
    certified, recourse
        The shares of them with a certified counterfactual, and with one that is at least valid today.
    distance
        The mean proximity of the certified ones (L1 over the number of encoded columns); nan for none.
    accuracy
        On all test rows.
    needed
        The kappa that covers each share of simulated updates of this very model, with the confidence that
        was asked for; None where it was not measured or there were too few updates.
    """

    kappa: float
    trained_for: float
    refitted: bool
    rows: int
    certified: float
    recourse: float
    distance: float
    accuracy: float
    needed: dict[float, float | None]


@dataclass(frozen=True)
class Pricing:
    """What is needed to price a kappa.

    Attributes
    ----------
    model
        Today's.
    train, test
        What refits learn from, and what costs are measured on.
    rows
        At most so many declined test rows are explained.
    updates, update_on
        The updates that are simulated for a refitted model too, and what they learn from.
    shares, confidence
        Of ``Cost.needed``.
    """

    model: VeriTraCER
    train: Table
    test: Table
    rows: int
    updates: Updates | None
    update_on: Table | None
    shares: Sequence[float]
    confidence: float

    def today(self, kappa: float) -> Cost:
        """What promising ``kappa`` costs with today's model."""
        return self._cost(self.model, kappa, refitted=False)

    def trained_for(self, kappa: float) -> Cost:
        """What promising ``kappa`` costs with a model that was trained for it.

        It is another model, and moves otherwise: its own updates are measured too, if they go on from it.
        """
        trained = clone(self.model).set_params(kappa=kappa, schema=self.model.schema_, verbose=0)
        found = self._cost(trained.fit(*self.train), kappa, refitted=True)
        if self.updates is None or self.update_on is None or not self.updates.is_warm:
            return found
        moves = [move.needed for move in simulated(trained, self.update_on, self.updates)]
        needed = {share: coverage(moves, share, self.confidence).kappa for share in self.shares}
        return replace(found, needed=needed)

    def _cost(self, model: VeriTraCER, kappa: float, *, refitted: bool) -> Cost:
        X, y = self.test
        declined = np.flatnonzero(model.decision_function(X) <= 0)[: self.rows]
        certified = recourse = distance = math.nan
        if len(declined):
            asked = X.iloc[declined] if isinstance(X, pd.DataFrame) else X[declined]
            found = model.explain(asked, kappa=kappa, search_radius=False)
            certified, recourse = float(found.certified.mean()), float(found.valid.mean())
            if found.certified.any():
                distance = metrics.proximity(found.x, found.x_cf, found.certified)
        accuracy = float(model.score(X, y))
        trained_for = model.settings_.kappa
        return Cost(kappa, trained_for, refitted, len(declined), certified, recourse, distance, accuracy, {})


# ---------------------------------------------------------------- which kappa to promise


FROM_SCRATCH = (
    "Networks that are trained from scratch end far apart even where they decide alike: very different "
    "weights give nearly the same decisions. No kappa worth promising covers that. Let updates go on from "
    "today's model instead (fine-tuning), inside of the promised set: model.update(X, y, keep=ledger)."
)
STAY_INSIDE = (
    "Updates that stay inside of the promised set need no larger kappa: model.update(X, y, keep=ledger). "
    "Gentler ones need less: fewer epochs, a smaller learning rate."
)


@dataclass(frozen=True)
class Acceptable:
    """What a kappa may cost: how much recourse must stay certified, how much accuracy may be lost."""

    certified: float = 0.9
    loss: float = 0.02


@dataclass(frozen=True)
class Recommendation:
    """The kappa to promise, the share of updates that it covers, whether to train for it, and why.

    ``kappa`` and ``covers`` are None where nothing that was measured can be recommended.
    """

    kappa: float | None
    covers: float | None
    train_for_it: bool
    sentence: str


def recommend(
    covered: Sequence[Coverage], costs: Sequence[Cost], acceptable: Acceptable, *, from_scratch: bool
) -> Recommendation:
    """The kappa that covers the largest share that is known, among those that are affordable."""
    known = sorted((c for c in covered if c.kappa is not None), key=lambda c: -c.share)
    instead = FROM_SCRATCH if from_scratch else STAY_INSIDE
    if not known:
        fewest = min(c.updates_needed for c in covered)
        return _none(f"these updates are too few to tell about any share; at least {fewest} are needed.", "")
    if not costs:
        return _covering(known[0], "what it costs was not measured.", train=False)
    for each in known:
        found = _affordable(each, costs, acceptable)
        if found is not None:
            return found
    return _none(_too_dear(known[-1], costs), instead)


def _affordable(each: Coverage, costs: Sequence[Cost], acceptable: Acceptable) -> Recommendation | None:
    """The kappa of this share, if today's model affords it, or else one that is trained for it."""
    kappa = _kappa(each)
    here = [c for c in costs if c.kappa == kappa and c.certified >= acceptable.certified]
    if any(not c.refitted for c in here):
        return _covering(each, "today's model affords it.", train=False)
    usual = max((c.accuracy for c in costs if c.refitted), default=0.0)
    for c in here:
        own = c.needed.get(each.share)
        if c.accuracy >= usual - acceptable.loss and own is not None and own <= kappa:
            return _covering(each, f"train for it: VeriTraCER(kappa={kappa:g}).", train=True)
    return None


def _covering(each: Coverage, and_: str, *, train: bool) -> Recommendation:
    kappa = _kappa(each)
    said = f"kappa = {kappa:g} covers {format_percent(each.share)} of updates such as these; {and_}"
    return Recommendation(kappa, each.share, train, said)


def _none(why: str, instead: str) -> Recommendation:
    return Recommendation(None, None, False, f"None: {why} {instead}".strip())


def _too_dear(least: Coverage, costs: Sequence[Cost]) -> str:
    """Why not even the smallest share is affordable, in numbers."""
    kappa = _kappa(least)
    first = f"already {format_percent(least.share)} of updates need kappa = {kappa:g}"
    shares = [c.certified for c in costs if c.kappa == kappa]
    if not shares:
        return f"{first}."
    return f"{first}, at which {format_percent(max(shares))} of recourse is certified at best."


def _kappa(each: Coverage) -> float:
    assert each.kappa is not None
    return rounded_up(each.kappa)
