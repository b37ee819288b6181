"""How good a model is on rows that it has never seen, beside what anybody would try first.

Two models are trained side by side, in one run: one without the rows that are held out, which is judged on
them, and one on all rows, which is kept. The first says what to expect of the second. What takes most of the
time of a small training is shared, so that both take about a third more than one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray

from veritracer.errors import AdviceWarning, VeriTracerWarning
from veritracer.estimator import VeriTraCER
from veritracer.files import envelope
from veritracer.formatting import format_percent
from veritracer.models.network import rate_threshold
from veritracer.schema.inspection import area_under_curve
from veritracer.training.data import labelled_schema

HOLDOUT = 0.2
FEWEST_HELD_OUT = 20
"""With fewer rows to hold out, or fewer than five of either label, nothing could be said about a model."""

FEWEST_OF_A_LABEL = 5
MOST_JUDGED = 20_000
MOST_FITTED = 100_000
"""Rows, at most, that the comparisons are judged on and fitted to."""

EXPLAINED = 100
"""Declined rows that recourse is looked for."""

RESAMPLES = 400
CONFIDENCE = 95
WORSE = 0.01
OVERFIT = 0.05
NO_RECOURSE = 0.5

THIS, BASE, LINEAR, BOOSTED = "this model", "base rate", "logistic regression", "gradient boosting"

Proba = NDArray[np.float64]


class Interval(NamedTuple):
    """A number measured on some rows, and between what it would lie on others: 95 %, by resampling them."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """How well probabilities and decisions fit the labels; ``auc`` is None where everybody gets the same."""

    accuracy: Interval
    auc: Interval | None
    log_loss: Interval
    brier: Interval
    accepted: float


@dataclass(frozen=True)
class Evaluation:
    """What a model is worth on rows that neither trained it nor chose its epoch.

    Attributes
    ----------
    rows, trained
        How many rows it was judged on, and how many it had learned from.
    scores
        Of the model, and of what anybody would try first, on the same rows: the base rate, logistic
        regression and gradient boosting.
    fitted
        Its accuracy on the rows that it learned from.
    asked, valid, certified
        How many declined rows recourse was looked for, and the shares with one that is valid, and certified.
    agreement
        The mean share of the panel's held-out members that believe it; None without a panel.
    warnings
        What somebody should know before the model is used, in sentences.
    """

    rows: int
    trained: int
    scores: Mapping[str, Scores]
    fitted: float
    asked: int
    valid: float | None
    certified: float | None
    agreement: float | None
    warnings: Sequence[str] = field(default=())

    def to_plain(self) -> dict[str, Any]:
        """The evaluation as numbers, texts, lists and mappings."""
        return {**envelope("veritracer-evaluation", 1), **asdict(self), "warnings": list(self.warnings)}


def fit_evaluated(
    model: VeriTraCER, X: pd.DataFrame, y: ArrayLike, *, holdout: float = HOLDOUT
) -> tuple[VeriTraCER, Evaluation | None]:
    """The model trained on all rows, and what one without ``holdout`` of them is worth on those.

    No evaluation (None) of tables that are too small to hold rows out.
    """
    known = labelled_schema(X, y, model.schema, model.favourable).labels(y)
    held = held_out(known, holdout, model.random_state)
    if len(held) == 0:
        return model.fit(X, y), None
    seed = model.random_state if isinstance(model.random_state, int) else 0
    judged, kept = model.fit_many(X, y, [seed, seed], leave_out=[held, []])
    if judged.interrupted_:
        return kept, None
    return kept, evaluate(judged, X, known, held)


def held_out(labels: NDArray[np.int64], share: float, seed: Any) -> NDArray[np.int64]:
    """Positions of rows to hold out, both labels in the proportions of the table; none of a small table."""
    generator = np.random.default_rng(seed if isinstance(seed, int) else 0)
    chosen = []
    for label in (0, 1):
        rows = generator.permutation(np.flatnonzero(labels == label))
        chosen.append(rows[: round(share * len(rows))])
    enough = min(map(len, chosen)) >= FEWEST_OF_A_LABEL and sum(map(len, chosen)) >= FEWEST_HELD_OUT
    return np.sort(np.concatenate(chosen)) if enough else np.array([], dtype=np.int64)


def evaluate(
    model: VeriTraCER, X: pd.DataFrame, labels: NDArray[np.int64], held: NDArray[np.int64]
) -> Evaluation:
    """What a fitted model is worth on the rows ``held``, which it has not seen; it has seen all others."""
    seen = np.setdiff1d(np.arange(len(labels)), held)
    held, seen = _thinned(held, MOST_JUDGED), _thinned(seen, MOST_FITTED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VeriTracerWarning)  # they were said when the table was read
        x = model.encoding_.encode(X.iloc[np.concatenate([seen, held])])
        fitted = model.decision_function(X.iloc[seen]) > 0
        found = _recourse(model, X.iloc[held])
    known = labels[held] == 1
    judges = _judges(model, x[: len(seen)].numpy(), labels[seen])
    probabilities = {name: judge(x[len(seen) :].numpy()) for name, judge in judges.items()}
    decided = {name: _decided(model, name, each) for name, each in probabilities.items()}
    draws = np.random.default_rng(0).integers(len(held), size=(RESAMPLES, len(held)))
    areas = {name: _areas(each, known, draws) for name, each in probabilities.items()}
    scores = {
        name: _scores(each, decided[name], known, draws, areas[name]) for name, each in probabilities.items()
    }
    partial = Evaluation(
        rows=len(held),
        trained=len(seen),
        scores=scores,
        fitted=float((fitted == (labels[seen] == 1)).mean()),
        **found,
    )
    told = [*_about_people(partial), *_compared(partial, areas, decided, known, draws)]
    return Evaluation(**{**partial.__dict__, "warnings": told})


def _thinned(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return rows if len(rows) <= most else np.random.default_rng(0).permutation(rows)[:most]


def _judges(model: VeriTraCER, x: Proba, labels: NDArray[np.int64]) -> dict[str, Callable[[Proba], Proba]]:
    """What gives each encoded row a probability: the model, and what was fitted to the same rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # here: only this needs them
    from sklearn.linear_model import LogisticRegression

    linear = LogisticRegression(max_iter=1000).fit(x, labels)
    boosted = HistGradientBoostingClassifier(random_state=0, early_stopping=False, max_iter=60).fit(x, labels)
    rate = float(labels.mean())
    offset = float(torch.logit(torch.tensor(model.threshold_, dtype=torch.float64)))

    def own(rows: Proba) -> Proba:
        return torch.sigmoid(model.logits(torch.from_numpy(rows)) + offset).numpy()

    return {
        THIS: own,
        BASE: lambda rows: np.full(len(rows), rate),
        LINEAR: lambda rows: linear.predict_proba(rows)[:, 1],
        BOOSTED: lambda rows: boosted.predict_proba(rows)[:, 1],
    }


def _decided(model: VeriTraCER, name: str, probability: Proba) -> NDArray[np.bool_]:
    """Who is accepted: at the model's threshold; with an approval rate, others accept as many as it asks."""
    if name == BASE:
        return probability > 0.5
    if model.approval_rate is None or name == THIS:
        return probability > model.threshold_
    return probability > float(rate_threshold(torch.from_numpy(probability), model.approval_rate))


def _scores(
    probability: Proba,
    accepted: NDArray[np.bool_],
    known: NDArray[np.bool_],
    draws: NDArray[np.int64],
    areas: NDArray[np.float64],
) -> Scores:
    right = (accepted == known).astype(float)
    safe = np.clip(probability, 1e-6, 1 - 1e-6)
    loss = -np.where(known, np.log(safe), np.log1p(-safe))
    constant = bool((probability == probability[0]).all())
    return Scores(
        accuracy=_mean(right, draws),
        auc=None if constant else Interval(area_under_curve(probability, known), *_ends(areas)),
        log_loss=_mean(loss, draws),
        brier=_mean((probability - known) ** 2, draws),
        accepted=float(accepted.mean()),
    )


def _mean(values: NDArray[np.float64], draws: NDArray[np.int64]) -> Interval:
    """The mean, and where it lies when the rows are drawn again.

    The ends are never tighter than a sample without a single mistake allows ("rule of three").
    """
    low, high = _ends(values[draws].mean(1))
    if set(np.unique(values)) <= {0.0, 1.0}:
        low, high = min(low, 1 - 3 / len(values)), max(high, 3 / len(values))
    return Interval(float(values.mean()), low, high)


def _areas(score: Proba, known: NDArray[np.bool_], draws: NDArray[np.int64]) -> NDArray[np.float64]:
    """The AUC of each draw that has both labels."""
    from scipy.stats import rankdata

    yes = known[draws].sum(1)
    both = (yes > 0) & (yes < draws.shape[1])
    kept, yes = draws[both], yes[both]
    ranks = np.where(known[kept], rankdata(score[kept], axis=1), 0.0).sum(1)
    areas: NDArray[np.float64] = (ranks - yes * (yes + 1) / 2) / (yes * (draws.shape[1] - yes))
    return areas


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def _recourse(model: VeriTraCER, X: pd.DataFrame) -> dict[str, Any]:
    """How the declined of these rows end, some of them."""
    declined = X[model.decision_function(X) <= 0].head(EXPLAINED)
    if len(declined) == 0:
        return {"asked": 0, "valid": None, "certified": None, "agreement": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        found = model.explain(declined, search_radius=False)
    believed = found.agreement[np.isfinite(found.agreement)]
    return {
        "asked": len(declined),
        "valid": float(found.valid.mean()),
        "certified": float(found.certified.mean()),
        "agreement": float(believed.mean()) if len(believed) else None,
    }


# ---------------------------------------------------------------- what somebody should know


def _rounded(share: float) -> str:
    """A share as tables of accuracy have it: rounded, not cut off."""
    return f"{100 * share:.1f} %"


def _about_people(found: Evaluation) -> Iterator[str]:
    own = found.scores[THIS]
    if own.accepted in (0.0, 1.0):
        whom = "everybody" if own.accepted else "nobody"
        yield f"The model accepts {whom}: try --class-weight balanced, --threshold or --approval-rate."
    if found.valid is not None and found.valid < 1 - NO_RECOURSE:
        yield (
            f"Only {format_percent(found.valid)} of the declined have recourse that is valid: does the "
            "schema let "
            "people change what the decision depends on?"
        )
    gap = found.fitted - own.accuracy.value
    if gap > OVERFIT and found.fitted > own.accuracy.high:
        yield (
            f"It is better on the rows that it learned from: {_rounded(found.fitted)} right, "
            f"{_rounded(own.accuracy.value)} on others. More rows help; whether more epochs would is in the "
            "report, under how the losses fell."
        )


def _compared(
    found: Evaluation,
    areas: Mapping[str, NDArray[np.float64]],
    decided: Mapping[str, NDArray[np.bool_]],
    known: NDArray[np.bool_],
    draws: NDArray[np.int64],
) -> Iterator[str]:
    """That the model is no better than something simple, by the same rows drawn again for both."""
    right = {name: (each == known).astype(float) for name, each in decided.items()}
    low, high = _ends((right[THIS] - right[BASE])[draws].mean(1))
    if low <= 0:
        sure = "worse" if high < 0 else "not surely better"
        yield (
            f"Its decisions are {sure} than one answer for everybody: {_rounded(right[THIS].mean())} right "
            f"against {_rounded(right[BASE].mean())}, on {found.rows:,} rows."
        )
    for name in (LINEAR, BOOSTED):
        gaps = areas[THIS] - areas[name]
        mean, high = float(gaps.mean()), _ends(gaps)[1]
        if high < 0 and mean < -WORSE:
            own, other = found.scores[THIS].auc, found.scores[name].auc
            ranks = (
                "" if own is None or other is None else f" (AUC {own.value:.3f} against {other.value:.3f})"
            )
            yield f"It ranks people worse than {name} does{ranks}."
