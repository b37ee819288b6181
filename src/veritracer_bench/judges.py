"""Judges: models of other classes, fitted for accuracy alone, that accept or refuse counterfactuals.

A judge takes no part in training, choosing or refining what it judges. It is fitted once for a dataset, from
fixed seeds, on the encoded training rows, and decides at the threshold of the model whose answers it judges.
Two classes, networks and boosting, are also those of a panel (``vt.Panel``). They have a second
judge, fitted on rows that neither a model nor its panel saw: the test rows are cut into halves, and a
counterfactual of a person of one half is judged by what was learned from the other.

``quality`` is the other question: what a model is worth as a classifier, for everybody and for those who are
few or unlike the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

from veritracer.errors import VeriTracerWarning
from veritracer.estimator import VeriTraCER
from veritracer.models.network import from_module
from veritracer.schema import Feature, Schema
from veritracer.search.reference import Neighbours
from veritracer_bench import shifts
from veritracer_bench.methods import arguments

if TYPE_CHECKING:
    from veritracer_bench.plan import Subject

Floats = NDArray[np.float64]
Opinion = Callable[[Floats], Floats]
"""The probabilities (n,) of the favourable label of encoded rows (n, d)."""

BOOSTING, FOREST, EXTRA, LOGISTIC = "boosting", "forest", "extra trees", "logistic"
MLPS, NEIGHBOURS = "MLPs", "neighbours"
UNSEEN = ", unseen rows"
"""The end of the name of a judge that was fitted on rows that neither a model nor its panel saw."""

NAMES = (BOOSTING, BOOSTING + UNSEEN, FOREST, EXTRA, LOGISTIC, MLPS, MLPS + UNSEEN, NEIGHBOURS)

COUNTED = (BOOSTING + UNSEEN, FOREST, EXTRA, LOGISTIC, MLPS + UNSEEN)
"""The judges each of which has to accept: of the classes of a panel only those that saw other rows."""

LEFT_OUT = "left-out MLPs"
"""Standard MLPs each of which misses a hundredth of the training rows: for the paper's leave-out alone."""

TREES, SMALLEST_LEAF, NEAREST = 300, 3, 25
MLP_SEEDS = tuple(range(1000, 1005))
"""Seeds of the standard MLPs: none of a compared model is among them."""

SMALLEST_NEAREST = 5


class Labelled(NamedTuple):
    """Encoded rows (n, d) and their labels (n,), 1 is favourable."""

    x: Floats
    y: NDArray[np.int64]

    def select(self, rows: NDArray[np.int64]) -> Labelled:
        """Return some of the rows."""
        return Labelled(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Judge:
    """One or several models of one class, fitted on the same rows; several have a mean opinion."""

    name: str
    members: tuple[Opinion, ...]

    def probabilities(self, x: Floats) -> Floats:
        """Return each member's probabilities for encoded rows (n, d): (members, n)."""
        return np.stack([member(x) for member in self.members])


@dataclass(frozen=True)
class Jury:
    """All judges of a dataset. ``half`` (t,) says in which half of the test rows each of them is, 0 or 1."""

    judges: tuple[Judge, ...]
    unseen: tuple[tuple[Judge, Judge], ...]
    half: NDArray[np.int64]

    def opinions(self, x: Floats, rows: NDArray[np.int64]) -> dict[str, Floats]:
        """Return each judge's probabilities for encoded rows (n, d) of the test rows at ``rows`` (n,).

        By name, (members, n). Judges of the second column were fitted on the half that the person is not in.
        """
        found = {judge.name: judge.probabilities(x) for judge in self.judges}
        for pair in self.unseen:
            said = np.stack([judge.probabilities(x) for judge in pair])  # (halves, members, n)
            found[pair[0].name] = np.where(self.half[rows] == 0, said[1], said[0])
        return found

    def quality(self, test: Labelled) -> dict[str, dict[str, float]]:
        """Accuracy and AUC of each judge on the test rows, the mean of its members."""
        everybody = np.arange(len(test.y))
        return {
            name: {
                "accuracy": float(np.mean((said > 0.5) == test.y)),
                "auc": float(np.mean([roc_auc_score(test.y, each) for each in said])),
            }
            for name, said in self.opinions(test.x, everybody).items()
        }


def jury_of(train: Labelled, test: Labelled, *, epochs: int | None = None) -> Jury:
    """Fit the judges of a dataset; ``epochs`` is for the standard MLPs (None: the library's default)."""
    shortened = standard_mlps(train, MLP_SEEDS, epochs=epochs, leave_out=True)
    judges = [Judge(name, (opinion(model.fit(*train)),)) for name, model in classes(len(train.y)).items()]
    judges.append(Judge(MLPS, mlps(train, MLP_SEEDS, epochs=epochs)))
    judges.append(Judge(LEFT_OUT, tuple(map(opinion_of, shortened))))
    half = halves(test.y)
    boosted, networks = [], []
    for side in (0, 1):
        part = test.select(np.flatnonzero(half == side))
        boosted.append(Judge(BOOSTING + UNSEEN, (opinion(boosting(len(part.y)).fit(*part)),)))
        networks.append(Judge(MLPS + UNSEEN, mlps(part, MLP_SEEDS, epochs=epochs)))
    return Jury(tuple(judges), ((boosted[0], boosted[1]), (networks[0], networks[1])), half)


def halves(y: NDArray[np.int64]) -> NDArray[np.int64]:
    """Assign each row to one of two halves, 0 or 1, with the same shares of the labels."""
    rare = np.bincount(y, minlength=2).min() < 2
    _, second = train_test_split(
        np.arange(len(y)), test_size=0.5, random_state=0, stratify=None if rare else y
    )
    half = np.zeros(len(y), dtype=np.int64)
    half[second] = 1
    return half


def boosting(rows: int) -> HistGradientBoostingClassifier:
    """Return scikit-learn's gradient boosting, with early stopping if there are enough rows."""
    return HistGradientBoostingClassifier(
        max_iter=300,
        learning_rate=0.06,
        early_stopping=rows >= 1000,
        min_samples_leaf=min(20, max(2, rows // 50)),
        random_state=0,
    )


def classes(rows: int) -> dict[str, Any]:
    """Return an unfitted model of each class, for so many rows."""
    trees = {"n_estimators": TREES, "min_samples_leaf": SMALLEST_LEAF, "random_state": 0}
    nearest = min(NEAREST, max(SMALLEST_NEAREST, rows // 20), rows)
    return {
        BOOSTING: boosting(rows),
        FOREST: RandomForestClassifier(**trees),
        EXTRA: ExtraTreesClassifier(**trees),
        LOGISTIC: LogisticRegression(max_iter=5000),
        NEIGHBOURS: KNeighborsClassifier(nearest, metric="manhattan"),
    }


def opinion(model: Any) -> Opinion:
    """Return the probability of label 1 under a fitted scikit-learn model."""
    yes = int(np.flatnonzero(model.classes_ == 1)[0])

    def probability(x: Floats) -> Floats:
        found: Floats = model.predict_proba(x)[:, yes]
        return found

    return probability


def standard_mlps(
    rows: Labelled, seeds: Iterable[int], *, epochs: int | None = None, leave_out: bool = False
) -> list[nn.Sequential]:
    """Classifiers of this library trained for accuracy alone, in one batched run.

    They see encoded rows as they are: each column is a number from 0 to 1. With ``leave_out`` all have the
    seed 0, and each misses another hundredth of the rows, as in the paper's experiment.
    """
    names = [f"x{column}" for column in range(rows.x.shape[1])]
    features = [Feature(name, "continuous", lower=0.0, upper=1.0) for name in names]
    model = VeriTraCER(Schema(features, "y", 1, 0), epochs=epochs, keep_rows=0, **arguments("standard"))
    table = pd.DataFrame(rows.x.clip(0.0, 1.0), columns=names)
    chosen = list(seeds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VeriTracerWarning)  # a column may be constant in these rows
        if leave_out:
            found = shifts.leave_out(model, table, rows.y, models=len(chosen))
        else:
            found = model.fit_many(table, rows.y, chosen)
    return [each.classifier_ for each in found]


def mlps(rows: Labelled, seeds: Iterable[int], *, epochs: int | None = None) -> tuple[Opinion, ...]:
    """Return standard MLPs with these seeds as judges."""
    return tuple(map(opinion_of, standard_mlps(rows, seeds, epochs=epochs)))


def opinion_of(module: nn.Module) -> Opinion:
    """Return the probabilities of a torch classifier with threshold 0.5."""
    network, theta = from_module(module)

    def opinion(x: Floats) -> Floats:
        with torch.no_grad():
            logit = network.logit(theta, torch.from_numpy(x).to(theta[0]))
        found: Floats = torch.sigmoid(logit).double().numpy()
        return found

    return opinion


def labelled(x: Tensor, y: ArrayLike) -> Labelled:
    """Return encoded rows and labels in the form that judges take."""
    return Labelled(x.detach().cpu().double().numpy(), np.asarray(y).astype(np.int64))


# ---------------------------------------------------------------- what a model is worth as a classifier


RARE, UNEQUAL = 0.125, 2 / 3
"""A category is rare that at most so large a share of the training rows has, and so much of an equal share:
one of ten categories of a tenth each is not."""

FEWEST = 30
"""Test rows that a group has at least; less than that say nothing."""

DISTANT = "most distant tenth"
EVERYBODY = "all"

Flags = NDArray[np.bool_]


def groups_of(subject: Subject, train: Labelled, test: Labelled) -> dict[str, Flags]:
    """Return a mask of the test rows (t,) in each group: rare categories, and rows unlike training rows.

    Nothing here depends on a model or on labels.
    """
    found = {EVERYBODY: np.ones(len(test.y), dtype=bool)}
    for feature in subject.schema.features:
        if feature.kind not in ("categorical", "binary", "ordinal"):
            continue
        shares = subject.X_train[feature.name].value_counts(normalize=True)
        most = min(RARE, UNEQUAL / len(shares))
        for level in shares.index[shares.to_numpy() <= most]:
            inside = (subject.X_test[feature.name] == level).to_numpy(dtype=bool)
            if inside.sum() >= FEWEST:
                found[f"{feature.name} = {level}"] = inside
    away = Neighbours(torch.from_numpy(train.x)).nearest(torch.from_numpy(test.x))[1]
    order = np.argsort(-away, kind="stable")[: max(1, len(away) // 10)]
    found[DISTANT] = np.isin(np.arange(len(away)), order)
    return found


def quality(
    probability: Floats,
    test: Labelled,
    groups: Mapping[str, Flags],
    judges: Mapping[str, Floats],
    *,
    threshold: float = 0.5,
) -> dict[str, float]:
    """Accuracy and AUC, and by group approval rate, Brier score and agreement with the judges.

    ``judges`` has what each of them says of the test rows, (members, t); the agreement is the mean share of
    decisions that are theirs.
    """
    decided = probability > threshold
    numbers = {
        "accuracy": float(np.mean(decided == test.y)),
        "auc": float(roc_auc_score(test.y, probability)),
    }
    alike = np.mean([((said > threshold) == decided).mean(0) for said in judges.values()], axis=0)
    for name, rows in groups.items():
        numbers[f"rows, {name}"] = float(rows.sum())
        numbers[f"approval, {name}"] = float(decided[rows].mean())
        numbers[f"Brier, {name}"] = float(np.mean((probability - test.y)[rows] ** 2))
        numbers[f"agreement, {name}"] = float(alike[rows].mean())
    return numbers
