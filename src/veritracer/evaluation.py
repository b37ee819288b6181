"""Evaluate a model on held-out rows, beside simple baselines on the same rows.

Two models are trained side by side in one run: one without the held-out rows, which is evaluated on them, and
one on all rows, which is kept. Most of the time of a small training is overhead that both share, so the pair
takes about a third longer than one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from veritracer.options import HOLDOUT
from veritracer.schema.inspection import area_under_curve
from veritracer.training.data import labelled_schema

FEWEST_HELD_OUT = 20
"""Fewest held-out rows for an evaluation."""

FEWEST_OF_A_LABEL = 5
"""Fewest held-out rows of either label."""

MOST_EVALUATED = 20_000
"""Maximum number of rows that models are evaluated on."""

MOST_FITTED = 100_000
"""Maximum number of rows that the baselines are fitted to."""

EXPLAINED = 100
"""Number of declined rows for which the evaluation searches counterfactuals."""

RESAMPLES = 400
CONFIDENCE = 95
WORSE = 0.01
OVERFIT = 0.05
NO_RECOURSE = 0.5

THIS, BASE, LINEAR, BOOSTED = "this model", "base rate", "logistic regression", "gradient boosting"

Proba = NDArray[np.float64]


class Estimate(NamedTuple):
    """A number measured on some rows, with its 95 % interval by resampling them."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """Fit of probabilities and decisions to the labels; ``auc`` is None if all probabilities are equal."""

    accuracy: Estimate
    auc: Estimate | None
    log_loss: Estimate
    brier: Estimate
    accepted: float


@dataclass(frozen=True)
class Evaluation:
    """Results of a model on rows that were used neither for training nor for the choice of the epoch.

    Attributes
    ----------
    rows, trained
        Numbers of evaluation rows and of training rows.
    scores
        Scores of the model and of three baselines on the same rows: the base rate, logistic regression and
        gradient boosting.
    fitted
        Accuracy on the training rows.
    explained, valid, certified
        Number of declined rows that were explained, and the shares of valid and of certified counterfactuals.
    agreement
        Mean share of the panel's held-out members that accept the counterfactuals; None without a panel.
    warnings
        Sentences about weaknesses of the model.
    """

    rows: int
    trained: int
    scores: Mapping[str, Scores]
    fitted: float
    explained: int
    valid: float | None
    certified: float | None
    agreement: float | None
    warnings: Sequence[str] = field(default=())

    def to_plain(self) -> dict[str, Any]:
        """Return the evaluation as a versioned JSON document."""
        return {**envelope("veritracer-evaluation", 1), **asdict(self), "warnings": list(self.warnings)}


def fit_evaluated(
    model: VeriTraCER, X: pd.DataFrame, y: ArrayLike, *, holdout: float = HOLDOUT
) -> tuple[VeriTraCER, Evaluation | None]:
    """Train on all rows, and evaluate a second model, trained without the share ``holdout``, on that share.

    The evaluation is None if the table is too small to hold rows out.
    """
    known = labelled_schema(X, y, model.schema, model.favourable).labels(y)
    held = held_out(known, holdout, model.random_state)
    if len(held) == 0:
        return model.fit(X, y), None
    seed = model.random_state if isinstance(model.random_state, int) else 0
    evaluated, final = model.fit_many(X, y, [seed, seed], leave_out=[held, []])
    if evaluated.interrupted_:
        return final, None
    return final, evaluate(evaluated, X, known, held)


def held_out(labels: NDArray[np.int64], share: float, seed: Any) -> NDArray[np.int64]:
    """Return positions of rows to hold out, stratified by label; none for a small table."""
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
    """Evaluate a fitted model on the rows ``held``; it must have been trained on all others."""
    seen = np.setdiff1d(np.arange(len(labels)), held)
    held, seen = _subsample(held, MOST_EVALUATED), _subsample(seen, MOST_FITTED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VeriTracerWarning)  # already given when the table was read
        x = model.encoding_.encode(X.iloc[np.concatenate([seen, held])])
        fitted = model.decision_function(X.iloc[seen]) > 0
        shares = _recourse(model, X.iloc[held])
    known = labels[held] == 1
    classifiers = _classifiers(model, x[: len(seen)].numpy(), labels[seen])
    probabilities = {name: each(x[len(seen) :].numpy()) for name, each in classifiers.items()}
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
        **shares,
    )
    sentences = [*_weaknesses(partial), *_comparisons(partial, areas, decided, known, draws)]
    return replace(partial, warnings=sentences)


def _subsample(rows: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return rows if len(rows) <= most else np.random.default_rng(0).permutation(rows)[:most]


def _classifiers(
    model: VeriTraCER, x: Proba, labels: NDArray[np.int64]
) -> dict[str, Callable[[Proba], Proba]]:
    """Return functions from encoded rows to probabilities: the model, and baselines fitted to ``x``."""
    from sklearn.ensemble import HistGradientBoostingClassifier  # here: only this needs them
    from sklearn.linear_model import LogisticRegression

    linear = LogisticRegression(max_iter=1000).fit(x, labels)
    boosted = HistGradientBoostingClassifier(random_state=0, early_stopping=False, max_iter=60).fit(x, labels)
    rate = float(labels.mean())
    offset = float(torch.logit(torch.tensor(model.threshold_, dtype=torch.float64)))

    def by_model(rows: Proba) -> Proba:
        return torch.sigmoid(model.logits(torch.from_numpy(rows)) + offset).numpy()

    return {
        THIS: by_model,
        BASE: lambda rows: np.full(len(rows), rate),
        LINEAR: lambda rows: linear.predict_proba(rows)[:, 1],
        BOOSTED: lambda rows: boosted.predict_proba(rows)[:, 1],
    }


def _decided(model: VeriTraCER, name: str, probability: Proba) -> NDArray[np.bool_]:
    """Return a mask of accepted rows: above the threshold, or at the approval rate for baselines."""
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
        auc=None if constant else Estimate(area_under_curve(probability, known), *_ends(areas)),
        log_loss=_mean(loss, draws),
        brier=_mean((probability - known) ** 2, draws),
        accepted=float(accepted.mean()),
    )


def _mean(values: NDArray[np.float64], draws: NDArray[np.int64]) -> Estimate:
    """Return the mean with its bootstrap interval.

    The interval of a share is never tighter than the rule of three allows for a sample without errors.
    """
    low, high = _ends(values[draws].mean(1))
    if set(np.unique(values)) <= {0.0, 1.0}:
        low, high = min(low, 1 - 3 / len(values)), max(high, 3 / len(values))
    return Estimate(float(values.mean()), low, high)


def _areas(score: Proba, known: NDArray[np.bool_], draws: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the AUC of each bootstrap sample that has both labels."""
    from scipy.stats import rankdata

    yes = known[draws].sum(1)
    both = (yes > 0) & (yes < draws.shape[1])
    complete, yes = draws[both], yes[both]
    ranks = np.where(known[complete], rankdata(score[complete], axis=1), 0.0).sum(1)
    areas: NDArray[np.float64] = (ranks - yes * (yes + 1) / 2) / (yes * (draws.shape[1] - yes))
    return areas


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)


def _recourse(model: VeriTraCER, X: pd.DataFrame) -> dict[str, Any]:
    """Explain some of the declined rows, and return the shares of valid and certified ones."""
    declined = X[model.decision_function(X) <= 0].head(EXPLAINED)
    if len(declined) == 0:
        return {"explained": 0, "valid": None, "certified": None, "agreement": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)
        recourse = model.explain(declined, search_radius=False)
    agreement = recourse.agreement[np.isfinite(recourse.agreement)]
    return {
        "explained": len(declined),
        "valid": float(recourse.valid.mean()),
        "certified": float(recourse.certified.mean()),
        "agreement": float(agreement.mean()) if len(agreement) else None,
    }


# ---------------------------------------------------------------- warnings


def _rounded(share: float) -> str:
    """Format a share like an accuracy: rounded to the nearest digit."""
    return f"{100 * share:.1f} %"


def _weaknesses(result: Evaluation) -> Iterator[str]:
    """Yield warnings about the decisions, the counterfactuals and overfitting."""
    ours = result.scores[THIS]
    if ours.accepted in (0.0, 1.0):
        whom = "everybody" if ours.accepted else "nobody"
        yield f"The model accepts {whom}: try --class-weight balanced, --threshold or --approval-rate."
    if result.valid is not None and result.valid < 1 - NO_RECOURSE:
        yield (
            f"Only {format_percent(result.valid)} of the declined applicants have a valid counterfactual: "
            "check that the schema lets people change the features that the decision depends on."
        )
    gap = result.fitted - ours.accuracy.value
    if gap > OVERFIT and result.fitted > ours.accuracy.high:
        yield (
            f"The model overfits: its accuracy is {_rounded(result.fitted)} on the training rows and "
            f"{_rounded(ours.accuracy.value)} on others. More rows help; see the losses in the report before "
            "you add epochs."
        )


def _comparisons(
    result: Evaluation,
    areas: Mapping[str, NDArray[np.float64]],
    decided: Mapping[str, NDArray[np.bool_]],
    known: NDArray[np.bool_],
    draws: NDArray[np.int64],
) -> Iterator[str]:
    """Yield warnings if the model is no better than a baseline on the same bootstrap samples."""
    right = {name: (each == known).astype(float) for name, each in decided.items()}
    low, high = _ends((right[THIS] - right[BASE])[draws].mean(1))
    if low <= 0:
        verdict = "worse" if high < 0 else "not significantly better"
        yield (
            f"The model is {verdict} than one decision for everybody: accuracy "
            f"{_rounded(right[THIS].mean())} against {_rounded(right[BASE].mean())}, on {result.rows:,} rows."
        )
    for name in (LINEAR, BOOSTED):
        gaps = areas[THIS] - areas[name]
        mean, high = float(gaps.mean()), _ends(gaps)[1]
        if high < 0 and mean < -WORSE:
            ours, theirs = result.scores[THIS].auc, result.scores[name].auc
            ranks = (
                ""
                if ours is None or theirs is None
                else f" (AUC {ours.value:.3f} against {theirs.value:.3f})"
            )
            yield f"The model ranks people worse than {name}{ranks}."
