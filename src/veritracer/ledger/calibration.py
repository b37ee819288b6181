"""From a history of models, or from simulated updates, to the kappa that covers them.

``Calibration`` is what was found: displacements, coverage, costs and a recommendation, as tables, text and
JSON.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import check_is_fitted

from veritracer.errors import DataError, message
from veritracer.estimator import VeriTraCER
from veritracer.files import document_text, envelope
from veritracer.formatting import format_percent
from veritracer.ledger.coverage import (
    Acceptable,
    Cost,
    Coverage,
    Pricing,
    Recommendation,
    check_shares,
    coverage,
    recommend,
    rounded_up,
)
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
from veritracer.models.param_sets import RadiusRule
from veritracer.training.fine_tuning import EPOCHS

FORMAT, VERSION = "veritracer-calibration", 1


@dataclass(frozen=True, repr=False)
class Calibration:
    """How far updates move a model, which kappa covers how many of them, and what it costs.

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
    radius_rule: RadiusRule | float
    tensors: tuple[str, ...]
    moves: tuple[Displacement, ...]
    coverage: tuple[Coverage, ...]
    confidence: float
    costs: tuple[Cost, ...]
    recommendation: Recommendation

    @property
    def table(self) -> pd.DataFrame:
        """A row for each update: the move of each tensor, in units of its radius at kappa = 1; ``needed``."""
        rows = [[*move.tensors, move.needed] for move in self.moves]
        index = pd.Index([move.name for move in self.moves], name="update")
        return pd.DataFrame(rows, columns=[*self.tensors, "needed"], index=index)

    @property
    def layers(self) -> pd.DataFrame:
        """A row for each tensor: how far it moved, in the middle and at most, and how often it decided."""
        moved = self.table.drop(columns="needed")
        decided = Counter(moved.idxmax(axis=1))
        counts = [decided[name] for name in moved.columns]
        found = pd.DataFrame({"median": moved.median(), "largest": moved.max(), "decided": counts})
        return found.rename_axis("tensor")

    @property
    def price(self) -> pd.DataFrame:
        """A row for each kappa and model: certified share, recourse, distance, accuracy."""
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
        """One JSON document with everything, under a versioned schema; also written to ``path``."""
        return document_text(self.to_dict(), path)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values; a number that is not finite is None."""
        content = {**envelope(FORMAT, VERSION), **asdict(self)}
        finite: dict[str, Any] = _finite(content)
        return finite

    def headline(self) -> str:
        """The updates and what they need, in a sentence."""
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
    """How far updates move ``model``, which kappa covers how many of them, what it costs, and which to take.

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
    """The rows to learn from, and those to measure on."""
    if (X is None) != (y is None):
        missing = "y" if y is None else "X"
        raise DataError(message("rows and their labels", f"no {missing}", "give both, or neither"))
    if X is None:
        return None, None
    parts = train_test_split(X, y, test_size=TEST_SHARE, random_state=random_state, stratify=y)
    return Table(parts[0], parts[2]), Table(parts[1], parts[3])


def _update_table(updates: Updates, whole: Table, X_new: Any, y_new: Any) -> Table:
    """What simulated updates learn from: all rows, because more rows are more steps, which lead further."""
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
    """The kappas whose cost is measured: today's, those that are known to cover a share, and the largest."""
    wanted = [c.kappa for c in covered if c.kappa is not None] + [max(m.needed for m in moves)]
    found = {rounded_up(kappa) for kappa in wanted if math.isfinite(kappa)}
    return sorted({model.settings_.kappa, *found})


def _costs(pricing: Pricing, candidates: Sequence[float], watch: Watch | None, *, refit: bool) -> list[Cost]:
    """The cost of each candidate with today's model, then with one that was trained for it."""
    jobs = [(kappa, again) for again in ((False, True) if refit else (False,)) for kappa in candidates]
    found = []
    for done, (kappa, again) in enumerate(jobs):
        if watch is not None:
            watch(f"costs at kappa = {kappa:g}{', trained for it' if again else ''}", done / len(jobs))
        found.append(pricing.trained_for(kappa) if again else pricing.today(kappa))
    return found
