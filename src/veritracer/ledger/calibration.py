"""Choose the kappa that covers past or simulated updates.

``Calibration`` is what was found: displacements, coverage, costs and a recommendation, as tables, text and
JSON.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
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
from veritracer.options import FINE_TUNING_EPOCHS

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


def _cost(
    model: VeriTraCER,
    kappa: float,
    test: Table,
    rows: int,
    *,
    refitted: bool = False,
    needed: dict[float, float | None] | None = None,
) -> Cost:
    """Measure what promising ``kappa`` with this model costs, on at most ``rows`` declined test rows."""
    X, y = test
    declined = np.flatnonzero(model.decision_function(X) <= 0)[:rows]
    certified = recourse = distance = math.nan
    if len(declined):
        some = X.iloc[declined] if isinstance(X, pd.DataFrame) else X[declined]
        found = model.explain(some, kappa=kappa, search_radius=False)
        certified, recourse = float(found.certified.mean()), float(found.valid.mean())
        if found.certified.any():
            distance = metrics.proximity(found.x, found.x_cf, found.certified)
    accuracy, trained_for = float(model.score(X, y)), model.settings_.kappa
    shares = certified, recourse, distance, accuracy
    return Cost(kappa, trained_for, refitted, len(declined), *shares, needed or {})


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


MIN_CERTIFIED = 0.9
"""A recommended kappa keeps at least this share of recourse certified."""

MAX_LOSS = 0.02
"""A model trained for a recommended kappa loses at most this much accuracy."""


@dataclass(frozen=True)
class Recommendation:
    """The kappa to promise, the share of updates it covers, whether to train for it, and why.

    ``kappa`` and ``covers`` are None where nothing that was measured can be recommended.
    """

    kappa: float | None
    covers: float | None
    train_for_it: bool
    sentence: str


def recommend(covered: Sequence[Coverage], costs: Sequence[Cost], *, from_scratch: bool) -> Recommendation:
    """Return the affordable kappa that covers the largest known share."""
    known = {c.share: rounded_up(c.kappa) for c in covered if c.kappa is not None}
    known = dict(sorted(known.items(), reverse=True))
    if not known:
        fewest = min(c.updates_needed for c in covered)
        why = f"these updates are too few to tell about any share; at least {fewest} are needed."
        return Recommendation(None, None, False, f"None: {why}")
    for share, kappa in known.items():
        why, train = "what it costs was not measured.", False
        if costs:
            affordable = [c for c in costs if c.kappa == kappa and _is_affordable(c, share, costs)]
            if not affordable:
                continue
            train = all(c.refitted for c in affordable)
            why = f"train for it: VeriTraCER(kappa={kappa:g})." if train else "today's model affords it."
        sentence = f"kappa = {kappa:g} covers {format_percent(share)} of updates such as these; {why}"
        return Recommendation(kappa, share, train, sentence)
    share, kappa = min(known.items())
    why = f"already {format_percent(share)} of updates need kappa = {kappa:g}"
    if shares := [c.certified for c in costs if c.kappa == kappa]:
        why += f", at which {format_percent(max(shares))} of recourse is certified at best"
    instead = FROM_SCRATCH if from_scratch else STAY_INSIDE
    return Recommendation(None, None, False, f"None: {why}. {instead}")


def _is_affordable(cost: Cost, share: float, costs: Sequence[Cost]) -> bool:
    """Return whether enough recourse stays certified and, of a refitted model, accuracy and coverage too."""
    if not cost.certified >= MIN_CERTIFIED:
        return False
    if not cost.refitted:
        return True
    best, needed = max(c.accuracy for c in costs if c.refitted), cost.needed.get(share)
    return cost.accuracy >= best - MAX_LOSS and needed is not None and needed <= cost.kappa


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
        columns = [field.name for field in fields(Cost) if field.name != "needed"]
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
    epochs: int = FINE_TUNING_EPOCHS,
    learning_rate: float | None = None,
    shares: Sequence[float] = SHARES,
    confidence: float = 0.95,
    refit: bool = True,
    rows: int = 200,
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

    def covering(moved: Sequence[Displacement]) -> list[Coverage]:
        return [coverage([move.needed for move in moved], share, confidence) for share in shares]

    covered, costs = covering(moves), []
    candidates = [] if test is None else _candidates(model, moves, covered)
    jobs = [(kappa, refitted) for refitted in ((False, True) if refit else (False,)) for kappa in candidates]
    for done, (kappa, refitted) in enumerate(jobs):
        assert train is not None
        assert test is not None
        if watch is not None:
            watch(f"costs at kappa = {kappa:g}{', trained for it' if refitted else ''}", done / len(jobs))
        if not refitted:
            costs.append(_cost(model, kappa, test, rows))
            continue
        trained = clone(model).set_params(kappa=kappa, schema=model.schema_, verbose=0).fit(*train)
        needed: dict[float, float | None] = {}
        if updates is not None and update_on is not None and updates.is_warm:  # it moves in its own way
            needed = {c.share: c.kappa for c in covering(simulated(trained, update_on, updates))}
        costs.append(_cost(trained, kappa, test, rows, refitted=True, needed=needed))
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
        recommendation=recommend(covered, costs, from_scratch=cold),
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
