"""The demo from its first row to its last number."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from veritracer.defaults import DEMO_EPOCHS
from veritracer.demo.methods import (
    Belief,
    DriftScenario,
    Outcome,
    Training,
    all_trained,
    believed,
    certified_recourse,
    drift_scenario,
    gradient_search,
    judge_of,
    kept_by_update,
    outcome,
    proposals,
)
from veritracer.errors import AdviceWarning, DataWarning
from veritracer.model import VeriTraCER
from veritracer.recourse import Counterfactuals
from veritracer.report.retraining_comparison import RetrainingComparison

EPOCHS = DEMO_EPOCHS
"""Enough for the quality of a longer run on ``loans``, and few enough for a first minute."""

TRUE, HOLLOW = "with a panel (the default)", "without one (hollow)"
OURS, COUNTERNET, GRADIENT = "certified recourse", "CounterNet", "plain gradient search"

TRAININGS = [  # those that take longest first
    Training("veritracer", "today", {}),
    Training("veritracer", "tomorrow", {}),
    Training("veritracer", "today", {"panel": None}),
    Training("counternet", "today", {}),
    Training("counternet", "tomorrow", {}),
    Training("standard", "today", {}),
    Training("standard", "tomorrow", {}),
]


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
    tell("finding the closest certified recourse of everybody who is turned down")
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
