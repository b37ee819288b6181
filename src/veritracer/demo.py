"""A year in the life of promises: train, explain, let time pass, retrain, and count which of them hold.

There are three ways to give recourse, each with a model of its own that is later retrained in the ordinary
way. A ``DriftScenario`` has today's rows and tomorrow's: what a model is trained on, and what it is retrained
on. ``run`` answers with a ``Demo``: numbers, a model and a comparison, and nothing that is printed.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from veritracer import datasets
from veritracer.datasets import Dataset, Split, loans_truth
from veritracer.defaults import DEMO_EPOCHS
from veritracer.encoding import Encoding
from veritracer.errors import AdviceWarning, DataError, DatasetError, DataWarning, VeriTracerWarning, message
from veritracer.ledger import Ledger
from veritracer.model import VeriTraCER
from veritracer.recourse import Counterfactuals
from veritracer.report.retraining_comparison import RetrainingComparison, Survival
from veritracer.threads import cores, one_thread
from veritracer.training import config
from veritracer.training.fine_tuning import fine_tune
from veritracer_bench.baselines import Wachter

SHIFTED = ("ctg", "who")

ROWS = 4000
"""Rows of ``loans``, this year and next: enough to see who is right, and few enough for a first minute."""

EPOCHS = DEMO_EPOCHS
"""Enough for the quality of a longer run on ``loans``, and few enough for a first minute."""

TRUE, HOLLOW = "with a panel (the default)", "without one (hollow)"
OURS, COUNTERNET, GRADIENT = "certified recourse", "CounterNet", "plain gradient search"


@dataclass(frozen=True)
class DriftScenario:
    """Two samples of one table.

    Attributes
    ----------
    data
        The dataset of today.
    today, tomorrow
        Rows to learn from and rows to test on, before and after.
    passing
        What happened in between, as the end of a sentence.
    """

    data: Dataset
    today: Split
    tomorrow: Split
    passing: str


def drift_scenario(
    dataset: str = "loans", *, drift: float = 1.0, seed: int = 0, data_dir: Path | None = None
) -> DriftScenario:
    """Today and tomorrow of a dataset.

    ``loans`` moves on by a year, ``ctg`` and ``who`` have the paper's shift; the others get a bootstrap
    sample of their own training rows.
    """
    if dataset == "loans":
        data = datasets.loans(ROWS, random_state=seed)
        later = datasets.loans(ROWS, year=2, drift=drift, random_state=seed)
        passing = f"a year passes: economy, applicants and policy drift (drift {drift:g})"
        return DriftScenario(data, data.split(), later.split(), passing)
    if drift != 1.0:
        remedy = "leave --drift out: the other datasets are as they are"
        raise DatasetError(message("a drift for loans only", f"one for {dataset!r}", remedy))
    whole = datasets.load(dataset, data_dir=data_dir)
    if dataset in SHIFTED:
        data = whole.original
        later = whole.shifted
        passing = f"the data shifts as in the paper: {len(data.X):,} rows become {len(later.X):,}"
        return DriftScenario(data, data.split(random_state=seed), later.split(random_state=seed), passing)
    split = whole.split(random_state=seed)
    passing = "the model is retrained on a bootstrap sample of the training rows"
    return DriftScenario(whole, split, _bootstrap(split, seed), passing)


def _bootstrap(split: Split, seed: int) -> Split:
    """The same test rows, and as many training rows, drawn with replacement."""
    drawn = np.random.default_rng(seed).integers(0, len(split.X_train), len(split.X_train))
    X: pd.DataFrame = split.X_train.iloc[drawn].reset_index(drop=True)
    y: pd.Series[Any] = split.y_train.iloc[drawn].reset_index(drop=True)
    return split._replace(X_train=X, y_train=y)


# ---------------------------------------------------------------- three ways to give recourse


class Given(NamedTuple):
    """What people were told.

    ``X`` are their rows, ``x_cf`` the encoded counterfactuals, ``shown`` the same as raw values (None for a
    method whose answers are no rows of a table), ``promised`` says who got one that was valid on the day.
    """

    X: pd.DataFrame
    x_cf: Tensor
    shown: pd.DataFrame | None
    promised: NDArray[np.bool_]
    certified: int | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of one method's promises, and how good its models were (accuracy on test rows)."""

    survival: Survival
    accuracy: float
    accuracy_fine_tuned: float
    accuracy_from_scratch: float

    @property
    def kept_fine_tuned(self) -> float:
        """The share of the promises that the fine-tuned model keeps."""
        return (self.survival.fine_tuned or 0) / max(self.survival.given, 1)

    @property
    def kept_from_scratch(self) -> float:
        """The share of the promises that the model trained anew keeps."""
        return (self.survival.from_scratch or 0) / max(self.survival.given, 1)


@dataclass(frozen=True)
class Belief:
    """What others make of advice: its mean cost, and the shares that a judge and the truth accept.

    The judge is a gradient-boosted model of today's rows that neither training nor search has seen; the
    truth is known of ``loans`` alone.
    """

    method: str
    certified: float
    cost: float
    judged: float
    true: float | None


class Training(NamedTuple):
    """One model to train: the method, on which day's rows, and arguments of ``VeriTraCER``."""

    method: config.Training
    day: Literal["today", "tomorrow"]
    options: dict[str, Any]


TRAININGS = [  # those that take longest first
    Training("veritracer", "today", {}),
    Training("veritracer", "tomorrow", {}),
    Training("veritracer", "today", {"panel": None}),
    Training("counternet", "today", {}),
    Training("counternet", "tomorrow", {}),
    Training("standard", "today", {}),
    Training("standard", "tomorrow", {}),
]


def trained(training: Training, scenario: DriftScenario, epochs: int | None, seed: int) -> VeriTraCER:
    """Today's model, or with another seed tomorrow's."""
    split = scenario.today if training.day == "today" else scenario.tomorrow
    model = VeriTraCER(
        scenario.data.schema,
        method=training.method,
        epochs=epochs,
        random_state=seed + (training.day != "today"),
        **training.options,
    )
    with warnings.catch_warnings(), one_thread():
        warnings.simplefilter("ignore", VeriTracerWarning)  # filters are not known to other processes
        return model.fit(split.X_train, split.y_train)


def all_trained(
    trainings: list[Training], scenario: DriftScenario, epochs: int | None, seed: int, workers: int | None
) -> list[VeriTraCER]:
    """All of these models, side by side where there are cores; nothing depends on how many."""
    wanted = [delayed(trained)(each, scenario, epochs, seed) for each in trainings]
    found: list[VeriTraCER] = Parallel(n_jobs=workers or min(cores(), len(wanted)), batch_size=1)(wanted)
    return found


def certified_recourse(recourse: Counterfactuals) -> Given:
    """The certified counterfactuals of everybody who was turned down."""
    declined = ~recourse.favourable
    _check_somebody(int(declined.sum()))
    certified = recourse.certified[declined]
    return Given(
        recourse.original[declined],
        recourse.x_cf[torch.from_numpy(declined)],
        recourse.frame[declined],
        certified,
        int(certified.sum()),
    )


def proposals(model: VeriTraCER, X: pd.DataFrame) -> Given:
    """What the generator of a CounterNet proposes."""
    declined = _declined(model, X)
    x_cf = model.propose_encoded(model.encoding_.encode(declined))
    shown = model.encoding_.decode(x_cf, original=declined)
    return Given(declined, x_cf, shown, _says_yes(model.classifier_, x_cf))


def gradient_search(model: VeriTraCER, X: pd.DataFrame, scenario: DriftScenario) -> Given:
    """Plain gradient counterfactuals, as they are published: points of the encoded space.

    The method knows nothing of grids, of categories or of what people can change. Nothing is rounded, and
    that matters. Of 802 answers (loans, seed 0; kept after fine-tuning and after training anew: 0.94, 0.84)
    rounding to the nearest values leaves 405 valid (0.96, 0.87); rounding away from where people are leaves
    690 (0.99, 0.96), which then ask for three times as much: a longer way lasts longer.
    """
    declined = _declined(model, X)
    x_train = model.encoding_.encode(scenario.today.X_train)
    labels = torch.as_tensor(model.schema_.labels(scenario.today.y_train), dtype=x_train.dtype)
    searched = Wachter(model.classifier_, model.encoding_, x_train, labels)
    x_cf = searched.explain(model.encoding_.encode(declined))
    return Given(declined, x_cf, None, _says_yes(model.classifier_, x_cf))


def judge_of(scenario: DriftScenario, encoding: Encoding) -> HistGradientBoostingClassifier:
    """A model of another kind, fitted for accuracy on today's rows."""
    labels = encoding.schema.labels(scenario.today.y_train)
    return HistGradientBoostingClassifier(random_state=0).fit(encoding.encode(scenario.today.X_train), labels)


def believed(
    name: str, recourse: Counterfactuals, scenario: DriftScenario, judge: HistGradientBoostingClassifier
) -> Belief:
    """What the judge, and the truth where it is known, say of everybody who was turned down."""
    declined = ~recourse.favourable
    shown, own = recourse.frame[declined], recourse.original[declined]
    true = None
    if scenario.data.name == "loans":
        true = float((loans_truth(shown, own) > 0.5)[recourse.valid[declined]].sum() / declined.sum())
    accepted = judge.predict(recourse.x_cf[torch.from_numpy(declined)].numpy()) == 1
    return Belief(
        name,
        certified=float(recourse.certified[declined].mean()),
        cost=float(recourse.cost[declined & recourse.valid].mean()),
        judged=float((accepted & recourse.valid[declined]).mean()),
        true=true,
    )


def kept_by_update(model: VeriTraCER, recourse: Counterfactuals, scenario: DriftScenario) -> float:
    """The share of the promises that an update on tomorrow's rows keeps which was told to keep them."""
    certified_rows = np.flatnonzero(recourse.certified & ~recourse.favourable)
    if len(certified_rows) == 0:
        return 1.0  # nothing was promised
    people = recourse.original.iloc[certified_rows]
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder, "promises.db")) as ledger:
        model.issue(people, ids=list(range(len(people))), ledger=ledger)
        made = model.update(scenario.tomorrow.X_train, scenario.tomorrow.y_train, keep=ledger, compare=False)
    return float(_says_yes(made.classifier_, recourse.x_cf[torch.from_numpy(certified_rows)]).mean())


def outcome(
    name: str, model: VeriTraCER, anew: VeriTraCER, given: Given, scenario: DriftScenario, *, seed: int
) -> Outcome:
    """What two ordinary retrainings on tomorrow's rows make of the promises.

    *Fine-tuned*: today's network goes on learning by cross-entropy. *From scratch* (``anew``): the same
    procedure as today, with another seed.
    """
    tuned = _fine_tuned(model, scenario.tomorrow, seed)
    later = {
        "fine_tuned": _says_yes(tuned, given.x_cf),
        "from_scratch": _says_yes(anew.classifier_, _seen_by(anew.encoding_, model.encoding_, given)),
    }
    counts = {when: int((yes & given.promised).sum()) for when, yes in later.items()}
    distance = (given.x_cf - model.encoding_.encode(given.X)).abs().sum(-1).numpy()[given.promised]
    y = model.schema_.labels(scenario.tomorrow.y_test)
    right = _says_yes(tuned, model.encoding_.encode(scenario.tomorrow.X_test)) == (y == 1)
    return Outcome(
        Survival(
            name,
            rows=len(given.X),
            given=int(given.promised.sum()),
            cost=float(distance.mean()) if len(distance) else None,
            certified=given.certified,
            **counts,
        ),
        accuracy=float(model.score(scenario.today.X_test, scenario.today.y_test)),
        accuracy_fine_tuned=float(right.mean()),
        accuracy_from_scratch=float(anew.score(scenario.tomorrow.X_test, scenario.tomorrow.y_test)),
    )


def _seen_by(later: Encoding, today: Encoding, given: Given) -> Tensor:
    """The counterfactuals as rows of a later encoding, which learned its scales anew.

    Raw values are encoded. A point that is no row of a table is the person's row with the same change.
    """
    if given.shown is not None:
        return later.encode(given.shown)
    ratio = torch.ones(later.dim, dtype=torch.float64)
    for block in later.blocks:
        name = block.feature.name
        if block.feature.is_numeric and today.units.of(name, 1.0) > 0:
            ratio[block.start] = later.units.of(name, 1.0) / today.units.of(name, 1.0)
    change = given.x_cf - today.encode(given.X)
    return (later.encode(given.X) + change * ratio).clamp(0.0, 1.0)


def _declined(model: VeriTraCER, X: pd.DataFrame) -> pd.DataFrame:
    declined = X[model.decision_function(X) <= 0]
    _check_somebody(len(declined))
    return declined


def _check_somebody(declined: int) -> None:
    if declined == 0:
        remedy = "train for more epochs, or take another seed"
        raise DataError(message("somebody who is turned down", "nobody among the test rows", remedy))


def _fine_tuned(model: VeriTraCER, tomorrow: Split, seed: int) -> torch.nn.Module:
    x = model.encoding_.encode(tomorrow.X_train)
    y = torch.as_tensor(model.schema_.labels(tomorrow.y_train), dtype=x.dtype)
    return fine_tune(
        model.classifier_,
        x,
        y,
        **model.fine_tuning(random_state=seed),
    )


@torch.no_grad()
def _says_yes(module: torch.nn.Module, x: Tensor) -> NDArray[np.bool_]:
    yes: NDArray[np.bool_] = (module(x)[:, 0] > 0).numpy()
    return yes


@dataclass(frozen=True)
class Demo:
    """What the demo found.

    Attributes
    ----------
    scenario
        The rows of today and of tomorrow.
    model, recourse
        Today's certified model, and what it told everybody among the test rows.
    example
        The position in ``recourse`` of one person with an ordinary answer; None where nobody has one.
    outcomes
        The methods, ours first.
    beliefs
        What others make of the advice: ours, and that of the same training without a panel.
    kept
        The share of our promises that an update keeps which was told to keep them.
    """

    scenario: DriftScenario
    model: VeriTraCER
    recourse: Counterfactuals
    example: int | None
    outcomes: tuple[Outcome, ...]
    beliefs: tuple[Belief, ...]
    kept: float

    @property
    def comparison(self) -> RetrainingComparison:
        """The same numbers for the report."""
        caption = (
            f"After today's models had spoken, {self.scenario.passing}. Each method's model was retrained in "
            "two ordinary ways: fine-tuned by cross-entropy on the new rows, and trained from scratch on "
            "them by the method's own procedure with another seed. A promise is a counterfactual that was "
            "valid on the day it was given. Plain gradient search is taken as it is published: it "
            "knows nothing of what people can change."
        )
        return RetrainingComparison([each.survival for each in self.outcomes], caption)


def run(
    dataset: str = "loans",
    *,
    drift: float = 1.0,
    seed: int = 0,
    epochs: int | None = None,
    data_dir: Path | None = None,
    workers: int | None = None,
    tell: Callable[[str], None] = lambda step: None,
) -> Demo:
    """The demo on one dataset; ``tell`` hears what is being done, models are trained by so many ``workers``.

    Without ``epochs`` there are ``EPOCHS`` for loans, and as many as the model itself chooses elsewhere.

    Numbers beyond the ranges that a model has learned are clipped by it, as in production, without a word.
    """
    if epochs is None and dataset == "loans":
        epochs = EPOCHS
    with warnings.catch_warnings():
        for kind in (DataWarning, AdviceWarning):  # hollow advice is what the demo shows
            warnings.simplefilter("ignore", kind)
        scenario = drift_scenario(dataset, drift=drift, seed=seed, data_dir=data_dir)
        tell("training seven models: ours with a panel and without, CounterNet, a plain one; today, tomorrow")
        return _compared(scenario, all_trained(TRAININGS, scenario, epochs, seed, workers), seed, tell)


def _compared(
    scenario: DriftScenario, models: list[VeriTraCER], seed: int, tell: Callable[[str], None]
) -> Demo:
    model, anew, hollow, counternet, counternet_anew, plain, plain_anew = models
    X = scenario.today.X_test
    tell("finding certified recourse for everybody who is turned down")
    recourse = model.explain(X)
    tell("what others make of it, and of recourse from the model without a panel")
    judge = judge_of(scenario, model.encoding_)
    closest = hollow.explain(X, plausibility=0.0, extremes=True, search_radius=False)
    beliefs = believed(TRUE, recourse, scenario, judge), believed(HOLLOW, closest, scenario, judge)
    tell(f"{scenario.passing}; retraining")
    advice = (
        (OURS, model, anew, certified_recourse(recourse)),
        (COUNTERNET, counternet, counternet_anew, proposals(counternet, X)),
        (GRADIENT, plain, plain_anew, gradient_search(plain, X, scenario)),
    )
    found = tuple(outcome(*each, scenario, seed=seed) for each in advice)
    tell("keeping the promises: an update inside of what was promised")
    kept = kept_by_update(model, recourse, scenario)
    return Demo(scenario, model, recourse, _ordinary(recourse), found, beliefs, kept)


def _ordinary(recourse: Counterfactuals) -> int | None:
    """A certified answer with two or three changes, if there is one, cheaper than three quarters of them."""
    certified = recourse.certified.nonzero()[0]
    few = certified[np.isin(recourse.n_changes[certified], (2, 3))]
    rows = few if len(few) else certified
    if len(rows) == 0:
        return None
    order = np.argsort(recourse.cost[rows], kind="stable")
    return int(rows[order[len(rows) // 4]])
