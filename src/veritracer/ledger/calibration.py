"""Choose the kappa that covers past or simulated updates.

``Calibration`` is what was found: displacements, coverage, costs and a recommendation, as tables, text and
JSON.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binom
from sklearn.base import clone
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import check_is_fitted

from veritracer import metrics
from veritracer.errors import DataError, message
from veritracer.estimator import VeriTraCER
from veritracer.files import document_text, envelope
from veritracer.formatting import format_percent
from veritracer.ledger.displacement import (
    Displacement,
    Kind,
    Table,
    Updates,
    Watch,
    displacements_of,
    simulated,
    tensor_names,
)
from veritracer.models.balls import Norm
from veritracer.models.network import from_module
from veritracer.training.fine_tuning import EPOCHS

FORMAT, VERSION = "veritracer-calibration", 1


@dataclass(frozen=True)
class Coverage:
    """The kappa that covers a share of all updates, as far as it is known.

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
    """Return the order statistics of the needed kappas that cover a share of all updates.

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
    """Round up to three significant digits: what covers must not shrink.

    >>> rounded_up(1.2341), rounded_up(0.2), rounded_up(0.09991)
    (1.24, 0.2, 0.1)
    """
    if kappa == 0 or not math.isfinite(kappa):
        return kappa
    exact = Decimal(repr(kappa))
    return float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=ROUND_CEILING))


def check_shares(share: float, confidence: float) -> None:
    """Refuse a number that is not a share."""
    for name, value in (("coverage", share), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            remedy = "nobody can know about all of them: 0.99 is a lot"
            raise DataError(message(f"a {name} between 0 and 1", f"{value:g}", remedy))


# ---------------------------------------------------------------- what a kappa costs


@dataclass(frozen=True)
class Cost:
    """The cost of promising ``kappa`` with a model that was trained for ``trained_for``.

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
    """The data from which the cost of a kappa is measured.

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
        """Return the cost of promising ``kappa`` with today's model."""
        return self._cost(self.model, kappa, refitted=False)

    def trained_for(self, kappa: float) -> Cost:
        """Return the cost of promising ``kappa`` with a model that was trained for it.

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
    """Limits of the cost: the share of recourse to stay certified, and the accuracy that may be lost."""

    certified: float = 0.9
    loss: float = 0.02


@dataclass(frozen=True)
class Recommendation:
    """The kappa to promise, the share of updates it covers, whether to train for it, and why.

    ``kappa`` and ``covers`` are None where nothing that was measured can be recommended.
    """

    kappa: float | None
    covers: float | None
    train_for_it: bool
    sentence: str


def recommend(
    covered: Sequence[Coverage], costs: Sequence[Cost], acceptable: Acceptable, *, from_scratch: bool
) -> Recommendation:
    """Return the affordable kappa that covers the largest known share."""
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
    """Return the kappa of this share, with today's model if affordable, else with a trained one."""
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
    """Return in numbers why not even the smallest share is affordable."""
    kappa = _kappa(least)
    first = f"already {format_percent(least.share)} of updates need kappa = {kappa:g}"
    shares = [c.certified for c in costs if c.kappa == kappa]
    if not shares:
        return f"{first}."
    return f"{first}, at which {format_percent(max(shares))} of recourse is certified at best."


def _kappa(each: Coverage) -> float:
    assert each.kappa is not None
    return rounded_up(each.kappa)


@dataclass(frozen=True, repr=False)
class Calibration:
    """The distances of updates, the kappa that covers each share of them, and its cost.

    Attributes
    ----------
    source
        Where the updates come from: ``history``, or the kind that was simulated.
    horizon
        How many updates in a row were measured together.
    kappa, norm, radius_rule
        Today's set of models.
    tensors
        The names of the tensors: W1, b1, W2, ...
    moves, coverage, costs
        One entry for each update; for each share that was asked about; for each kappa and model.
    confidence
        Of what ``coverage`` says.
    recommendation
        A kappa that was measured, or none, and why.
    """

    source: str
    horizon: int
    kappa: float
    norm: Norm
    radius_rule: str | float
    tensors: tuple[str, ...]
    moves: tuple[Displacement, ...]
    coverage: tuple[Coverage, ...]
    confidence: float
    costs: tuple[Cost, ...]
    recommendation: Recommendation

    @property
    def table(self) -> pd.DataFrame:
        """Return a row for each update: the move of each tensor in radii at kappa = 1, and ``needed``."""
        rows = [[*move.tensors, move.needed] for move in self.moves]
        index = pd.Index([move.name for move in self.moves], name="update")
        return pd.DataFrame(rows, columns=[*self.tensors, "needed"], index=index)

    @property
    def layers(self) -> pd.DataFrame:
        """Return a row for each tensor: its median and largest move, and how often it decided."""
        moved = self.table.drop(columns="needed")
        decided = Counter(moved.idxmax(axis=1))
        counts = [decided[name] for name in moved.columns]
        found = pd.DataFrame({"median": moved.median(), "largest": moved.max(), "decided": counts})
        return found.rename_axis("tensor")

    @property
    def price(self) -> pd.DataFrame:
        """Return a row for each kappa and model: certified share, recourse, distance, accuracy."""
        columns = [
            "kappa",
            "trained_for",
            "refitted",
            "rows",
            "certified",
            "recourse",
            "distance",
            "accuracy",
        ]
        return pd.DataFrame([[getattr(c, name) for name in columns] for c in self.costs], columns=columns)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return everything as one versioned JSON document, and write it to ``path`` if given."""
        return document_text(self.to_dict(), path)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values; a number that is not finite is None."""
        content = {**envelope(FORMAT, VERSION), **asdict(self)}
        finite: dict[str, Any] = _finite(content)
        return finite

    def headline(self) -> str:
        """Return the updates and the kappa they need in a sentence."""
        needed = self.table["needed"]
        kind = "real" if self.source == "history" else f"simulated ({self.source})"
        rows = f", each of {self.horizon} in a row" if self.horizon > 1 else ""
        return (
            f"{len(self.moves)} {kind} updates{rows}: they need kappa = {needed.min():.3g} to "
            f"{needed.max():.3g}; today's is {self.kappa:g} ({self.norm})"
        )

    def __str__(self) -> str:
        lines = [self.headline(), "", *(_covered(each, self.confidence) for each in self.coverage)]
        if self.costs:
            lines += ["", self.price.to_string(index=False, float_format=lambda v: f"{v:.4g}", na_rep="–")]
        return "\n".join([*lines, "", f"Recommended: {self.recommendation.sentence}"])

    __repr__ = __str__


def _covered(each: Coverage, confidence: float) -> str:
    known = (
        f"not known: {each.updates_needed} updates are needed to tell"
        if each.kappa is None
        else f"kappa = {rounded_up(each.kappa):g} with {format_percent(confidence)} confidence"
    )
    return (
        f"{format_percent(each.share)} of updates: {known} (of the measured ones: "
        f"{rounded_up(each.measured):g})"
    )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- from updates to a kappa


SHARES = (0.5, 0.9, 0.99)
TEST_SHARE = 0.25
ACCEPTABLE = Acceptable()


def calibrate(
    model: VeriTraCER,
    X: Any = None,
    y: Any = None,
    *,
    history: Sequence[VeriTraCER | str | os.PathLike[str]] = (),
    simulate: Kind | None = None,
    X_new: Any = None,
    y_new: Any = None,
    runs: int = 30,
    horizon: int = 1,
    epochs: int = EPOCHS,
    learning_rate: float | None = None,
    shares: Sequence[float] = SHARES,
    confidence: float = 0.95,
    refit: bool = True,
    rows: int = 200,
    acceptable: Acceptable = ACCEPTABLE,
    random_state: int = 0,
    watch: Watch | None = None,
) -> Calibration:
    """Measure how far updates move ``model``, and choose the kappa that covers them at what cost.

    Parameters
    ----------
    model
        Today's, fitted.
    X, y
        Raw rows and labels, as many as an update learns from: more rows are more steps, which lead further.
        A quarter of them is kept from refits, to measure costs on. Without them costs are not measured.
    history
        The models that were deployed before it, in their order (fitted, or their folders).
    simulate
        Instead of a history: ``fine-tune`` or ``next`` (training goes on from today's model, on bootstrap
        samples of ``X`` or of the next period's ``X_new``), ``seeds`` or ``bootstrap`` (from scratch).
    runs, horizon
        How many updates to simulate (30: with 29 the kappa for 90 % is known), and how many in a row a
        promise has to outlive.
    epochs, learning_rate
        Of simulated fine-tuning: make them those of your updates, or the answer is about others.
    shares, confidence
        Which shares of updates to cover, and how sure to be.
    refit, rows
        Whether to train a model for each candidate kappa, and how many declined rows to explain at each.
    acceptable
        What a recommended kappa may cost.
    """
    check_is_fitted(model, "classifier_")
    if bool(history) == (simulate is not None):
        received = "both" if history else "neither"
        raise DataError(message("a history of models or simulate=...", received, "give one of them"))
    for share in shares:
        check_shares(share, confidence)
    train, test = _parts(X, y, random_state)
    updates, update_on = None, None
    if simulate is None:
        moves = displacements_of(history, model, horizon)
    else:
        updates = Updates(simulate, runs, horizon, epochs, learning_rate, random_state)
        update_on = _update_table(updates, Table(X, y), X_new, y_new)
        moves = simulated(model, update_on, updates, watch)
    covered = [coverage([m.needed for m in moves], share, confidence) for share in shares]
    costs: list[Cost] = []
    if train is not None and test is not None:
        pricing = Pricing(model, train, test, rows, updates, update_on, shares, confidence)
        costs = _costs(pricing, _candidates(model, moves, covered), watch, refit=refit)
    cold = updates is not None and not updates.is_warm
    return Calibration(
        source=simulate or "history",
        horizon=horizon,
        kappa=model.settings_.kappa,
        norm=model.norm,
        radius_rule=model.settings_.radius,
        tensors=tuple(tensor_names(from_module(model.classifier_)[0])),
        moves=tuple(moves),
        coverage=tuple(covered),
        confidence=confidence,
        costs=tuple(costs),
        recommendation=recommend(covered, costs, acceptable, from_scratch=cold),
    )


def _parts(X: Any, y: Any, random_state: int) -> tuple[Table | None, Table | None]:
    """Return the rows to learn from, and those to measure on."""
    if (X is None) != (y is None):
        missing = "y" if y is None else "X"
        raise DataError(message("rows and their labels", f"no {missing}", "give both, or neither"))
    if X is None:
        return None, None
    parts = train_test_split(X, y, test_size=TEST_SHARE, random_state=random_state, stratify=y)
    return Table(parts[0], parts[2]), Table(parts[1], parts[3])


def _update_table(updates: Updates, whole: Table, X_new: Any, y_new: Any) -> Table:
    """Return the data of simulated updates: all rows, because more steps lead further."""
    if updates.kind == "next":
        if X_new is None or y_new is None:
            received = "none"
            remedy = "give X_new and y_new, or simulate='fine-tune'"
            raise DataError(message("the next period's rows and labels", received, remedy))
        return Table(X_new, y_new)
    if whole.X is None:
        remedy = "give X and y, rows such as the model was trained on"
        raise DataError(message(f"rows to simulate {updates.kind!r} with", "none", remedy))
    return whole


def _candidates(model: VeriTraCER, moves: Sequence[Displacement], covered: Sequence[Coverage]) -> list[float]:
    """Return the kappas to measure: today's, those that are known to cover a share, and the largest."""
    wanted = [c.kappa for c in covered if c.kappa is not None] + [max(m.needed for m in moves)]
    found = {rounded_up(kappa) for kappa in wanted if math.isfinite(kappa)}
    return sorted({model.settings_.kappa, *found})


def _costs(pricing: Pricing, candidates: Sequence[float], watch: Watch | None, *, refit: bool) -> list[Cost]:
    """Return the cost of each candidate with today's model, then with one trained for it."""
    jobs = [(kappa, again) for again in ((False, True) if refit else (False,)) for kappa in candidates]
    found = []
    for done, (kappa, again) in enumerate(jobs):
        if watch is not None:
            watch(f"costs at kappa = {kappa:g}{', trained for it' if again else ''}", done / len(jobs))
        found.append(pricing.trained_for(kappa) if again else pricing.today(kappa))
    return found
