"""Acceptance by independent models that share no row with the model, its panel or its prototypes.

All rows of a dataset are drawn into three parts: 45 % for the model and everything that belongs to it, 45 %
for the judges, and 10 % people who ask for recourse. Each class of judge is fitted twice: on the judges' rows
and, as a control of the same size, on the model's rows. A judge qualifies for a dataset if its mean accuracy
on the people is at most two points below that of a standard network fitted on the model's rows. A dataset
counts if enough judges of enough kinds qualify; otherwise it is reported as missed.

For counterfactuals that other people's models gave to test rows, half of those rows play the judges' part: a
person of one half is judged by what was fitted on the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.calibration import CalibratedClassifierCV
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.naive_bayes import BernoulliNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import KBinsDiscretizer, SplineTransformer, StandardScaler
from sklearn.svm import SVC

from veritracer_bench.judges import (
    BOOSTING,
    EXTRA,
    FOREST,
    LOGISTIC,
    MLP_SEEDS,
    MLPS,
    NEIGHBOURS,
    UNSEEN,
    Judge,
    Jury,
    Labelled,
    classes,
    halves,
    mlps,
    opinion,
)
from veritracer_bench.results import Cell, mean_of
from veritracer_bench.truth import ERROR, Measured, Number, summary

SHARES = {"model": 0.45, "judges": 0.45, "people": 0.1}
SMALLER_BY = 0.02
"""Accuracy below that of the standard network with which a judge still qualifies."""

JUDGES_NEEDED, KINDS_NEEDED = 6, 5
"""Judges, and kinds of judges, that have to qualify for a dataset to count."""

SVM, BAYES, GAM, LIGHTGBM, EBM = "RBF SVM", "naive Bayes", "GAM", "LightGBM", "explainable boosting"
KINDS = {
    BOOSTING: "boosting",
    LIGHTGBM: "boosting",
    FOREST: "bagged trees",
    EXTRA: "bagged trees",
    LOGISTIC: "linear",
    GAM: "additive",
    EBM: "additive",
    SVM: "kernel",
    BAYES: "Bayes",
    NEIGHBOURS: "neighbours",
    MLPS: "network",
}
"""Each judge's kind of model."""

OPTIONAL = {LIGHTGBM: "lightgbm", EBM: "interpret"}
"""Judges from packages that may be missing, which are then left out."""


class Parts(NamedTuple):
    """Positions of the rows of the model, of the judges, and of the people who ask; each row is in one."""

    model: NDArray[np.int64]
    judges: NDArray[np.int64]
    people: NDArray[np.int64]


def parts_of(y: NDArray[np.int64], split: int) -> Parts:
    """Draw the three parts, with the same shares of the labels (n,) in each; ``split`` is the seed."""
    rest, people = train_test_split(
        np.arange(len(y)), test_size=SHARES["people"], random_state=split, stratify=y
    )
    model, judges = train_test_split(rest, test_size=0.5, random_state=split, stratify=y[rest])
    return Parts(np.sort(model), np.sort(judges), np.sort(people))


# ---------------------------------------------------------------- judges


def models_of(rows: int) -> dict[str, Any]:
    """Return an unfitted model of each class for so many rows, without those whose package is missing.

    Where accuracy depends on one setting most, cross-validation on the judge's own rows chooses it.
    """
    found = classes(rows)
    found[LOGISTIC] = _tuned(LogisticRegression(max_iter=5000), C=[1, 10, 100])
    neighbours = KNeighborsClassifier(metric="manhattan", weights="distance")
    found[NEIGHBOURS] = _tuned(neighbours, n_neighbors=[3, 7, 15, 31])
    machine = make_pipeline(StandardScaler(), SVC())
    found[SVM] = CalibratedClassifierCV(_tuned(machine, svc__C=[1, 10]), ensemble=False, cv=2)
    bins = KBinsDiscretizer(10, strategy="quantile")
    found[BAYES] = make_pipeline(bins, BernoulliNB())
    splines = SplineTransformer(n_knots=6, degree=2, knots="uniform", extrapolation="constant")
    additive = make_pipeline(splines, LogisticRegression(max_iter=5000))
    found[GAM] = _tuned(additive, logisticregression__C=[1, 10, 100])
    if find_spec(OPTIONAL[LIGHTGBM]):
        from lightgbm import LGBMClassifier

        found[LIGHTGBM] = LGBMClassifier(learning_rate=0.05, random_state=0, n_jobs=1, verbose=-1)
    if find_spec(OPTIONAL[EBM]):
        from interpret.glassbox import ExplainableBoostingClassifier

        found[EBM] = ExplainableBoostingClassifier(outer_bags=4, interactions=0, random_state=0, n_jobs=1)
    return found


def _tuned(model: Any, **settings: list[int]) -> GridSearchCV:
    """Return the model with the settings that are most accurate in three-fold cross-validation."""
    return GridSearchCV(model, settings, cv=3)


def missing_judges() -> list[str]:
    """Return the judges whose package is not installed."""
    return [name for name, package in OPTIONAL.items() if find_spec(package) is None]


def fitted(rows: Labelled, suffix: str = "", *, epochs: int | None = None) -> tuple[Judge, ...]:
    """Fit a judge of each class; ``epochs`` is for the networks (None: the library's default)."""
    found = [
        Judge(name + suffix, (opinion(model.fit(*rows)),)) for name, model in models_of(len(rows.y)).items()
    ]
    return *found, Judge(MLPS + suffix, mlps(rows, MLP_SEEDS[:3], epochs=epochs))


def jury_of_parts(model: Labelled, judges: Labelled, people: int, *, epochs: int | None = None) -> Jury:
    """Return the judges of unseen rows, and their controls, for so many people."""
    everybody = (*fitted(judges, UNSEEN, epochs=epochs), *fitted(model, epochs=epochs))
    return Jury(everybody, (), np.zeros(people, dtype=np.int64))


def jury_of_halves(train: Labelled, test: Labelled, *, epochs: int | None = None) -> Jury:
    """Return judges for test rows: each person's were fitted on the half of the test rows without them.

    The controls are fitted on as many training rows as such a half has.
    """
    half = halves(test.y)
    pair = [fitted(test.select(np.flatnonzero(half == side)), UNSEEN, epochs=epochs) for side in (0, 1)]
    some = np.random.default_rng(0).permutation(len(train.y))[: len(test.y) // 2]
    return Jury(fitted(train.select(some), epochs=epochs), tuple(zip(*pair, strict=True)), half)


# ---------------------------------------------------------------- numbers


def numbers_of(values: Measured, threshold: float = 0.5) -> dict[str, float]:
    """Return what is kept of the counterfactuals of one model: distances, and what each judge says.

    The standard error over rows is beside the acceptance of each judge of unseen rows.
    """
    if not values:
        return {"rows": 0.0}
    found = summary(values, threshold=threshold)
    numbers = {"rows": float(len(values["rows"]))}
    numbers |= {name: found[name].value for name in ("found", "certified", "distance", "changes", "LOF")}
    numbers |= {name: found[name].value for name in ("inliers", "nearest", "changed share")}
    for judge in KINDS:
        if f"acceptance, {judge}" not in found:
            continue
        numbers[f"acceptance, {judge}"] = found[f"acceptance, {judge}"].value
        numbers |= _with_error(f"acceptance, {judge}{UNSEEN}", found)
        for what in ("already", "of declined", "gain"):
            numbers[f"{what}, {judge}{UNSEEN}"] = found[f"{what}, {judge}{UNSEEN}"].value
    return numbers


def _with_error(name: str, found: Mapping[str, Number]) -> dict[str, float]:
    return {name: found[name].value, name + ERROR: found[name].error}


def accuracies(jury: Jury, people: Labelled) -> dict[str, float]:
    """Return the accuracy of each judge and of each control on the people."""
    return {f"accuracy, {judge}": each["accuracy"] for judge, each in jury.quality(people).items()}


class Standing(NamedTuple):
    """A judge on a dataset: mean accuracies over splits of it and its control, and whether it qualifies."""

    judge: str
    accuracy: float
    control: float
    qualifies: bool


def standings(cells: Iterable[Cell]) -> list[Standing]:
    """Compare the judges of one dataset with its standard network; ``cells`` are its judges' cells."""
    cells = list(cells)

    def accuracy(name: str) -> float:
        return mean_of([c.numbers[f"accuracy, {name}"] for c in cells if f"accuracy, {name}" in c.numbers])

    least = accuracy(MLPS) - SMALLER_BY
    found = []
    for judge in KINDS:
        own = accuracy(judge + UNSEEN)
        if np.isfinite(own):
            found.append(Standing(judge, own, accuracy(judge), own >= least))
    return found


def counts(found: Sequence[Standing]) -> bool:
    """Return whether enough judges of enough kinds qualify for the dataset to count."""
    kinds = [KINDS[each.judge] for each in found if each.qualifies]
    return len(kinds) >= JUDGES_NEEDED and len(set(kinds)) >= KINDS_NEEDED


class Acceptance(NamedTuple):
    """Mean acceptance over splits and seeds, and half the width of its 95 % interval."""

    mean: float
    half_width: float


def acceptance(cells: Sequence[Cell], judge: str) -> Acceptance:
    """Return the acceptance by a judge over cells of one dataset and method.

    The interval has the larger of two errors: that of the mean over splits, and that over the rows of a
    split, whose seeds explain the same people.
    """
    name = f"acceptance, {judge}"
    by_split: dict[str, list[Cell]] = {}
    for cell in cells:
        if name in cell.numbers:
            by_split.setdefault(cell.key.experiment, []).append(cell)
    means = [float(np.mean([c.numbers[name] for c in same])) for same in by_split.values()]
    if not means:
        return Acceptance(np.nan, np.nan)
    errors = [float(np.mean([c.numbers.get(name + ERROR, 0.0) for c in same])) for same in by_split.values()]
    rows = float(np.sqrt(np.mean(np.square(errors)) / len(means)))
    splits = float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0
    return Acceptance(float(np.mean(means)), 1.96 * max(rows, splits))
