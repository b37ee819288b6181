"""What a model is worth as a classifier, for everybody and for those who are few or unlike the others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from veritracer.bench.judges import Floats, Labelled
from veritracer.bench.subjects import Subject
from veritracer.recourse import Neighbours

RARE, UNEQUAL = 0.125, 2 / 3
"""A category is rare that at most so large a share of the training rows has, and so much of an equal share:
one of ten categories of a tenth each is not."""

FEWEST = 30
"""Test rows that a group has at least; less than that say nothing."""

DISTANT = "most distant tenth"
EVERYBODY = "all"

Flags = NDArray[np.bool_]


def groups_of(subject: Subject, train: Labelled, test: Labelled) -> dict[str, Flags]:
    """Which test rows (t,) are in each group: rare categories, and those that are most unlike training rows.

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
