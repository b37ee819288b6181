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
    believed,
    certified_recourse,
    drift_scenario,
    gradient_search,
    judge_of,
    kept_by_update,
    outcome,
    proposals,
    trained,
)
from veritracer.errors import AdviceWarning, DataWarning
from veritracer.model import VeriTraCER
from veritracer.recourse import Counterfactuals
from veritracer.report.retraining_comparison import RetrainingComparison

EPOCHS = DEMO_EPOCHS
"""Enough for the quality of a longer run on ``loans``, and few enough for a first minute."""

TRUE, HOLLOW = "with a panel (the default)", "without one (hollow)"
OURS, COUNTERNET, GRADIENT = "certified recourse", "CounterNet", "plain gradient search"


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
    tell: Callable[[str], None] = lambda step: None,
) -> Demo:
    """The demo on one dataset; ``tell`` hears what is being done.

    Without ``epochs`` there are ``EPOCHS`` for loans, and as many as the model itself chooses elsewhere.

    Numbers beyond the ranges that a model has learned are clipped by it, as in production, without a word.
    """
    if epochs is None and dataset == "loans":
        epochs = EPOCHS
    with warnings.catch_warnings():
        for kind in (DataWarning, AdviceWarning):  # hollow advice is what the demo shows
            warnings.simplefilter("ignore", kind)
        return _run(drift_scenario(dataset, drift=drift, seed=seed, data_dir=data_dir), epochs, seed, tell)


def _run(scenario: DriftScenario, epochs: int | None, seed: int, tell: Callable[[str], None]) -> Demo:
    X = scenario.today.X_test
    tell("training a model whose recourse is certified")
    model = trained("veritracer", scenario, epochs=epochs, seed=seed)
    tell("finding the closest certified recourse of everybody who is turned down")
    recourse = model.explain(X)
    tell("the same without a panel, to see what others make of both")
    hollow = trained("veritracer", scenario, epochs=epochs, seed=seed, panel=None)
    judge = judge_of(scenario, model.encoding_)
    closest = hollow.explain(X, plausibility=0.0, extremes=True, search_radius=False)
    beliefs = believed(TRUE, recourse, scenario, judge), believed(HOLLOW, closest, scenario, judge)
    tell(f"certified recourse: {scenario.passing}; retraining")
    found = [outcome(OURS, model, certified_recourse(recourse), scenario, seed=seed)]
    tell("CounterNet: training, proposing, retraining")
    counternet = trained("counternet", scenario, epochs=epochs, seed=seed)
    found.append(outcome(COUNTERNET, counternet, proposals(counternet, X), scenario, seed=seed))
    tell("plain gradient search: training, searching, retraining")
    plain = trained("standard", scenario, epochs=epochs, seed=seed)
    found.append(outcome(GRADIENT, plain, gradient_search(plain, X, scenario), scenario, seed=seed))
    tell("keeping the promises: an update inside of what was promised")
    kept = kept_by_update(model, recourse, scenario)
    return Demo(scenario, model, recourse, _ordinary(recourse), tuple(found), beliefs, kept)


def _ordinary(recourse: Counterfactuals) -> int | None:
    """A certified answer with two or three changes, if there is one, cheaper than three quarters of them."""
    certified = recourse.certified.nonzero()[0]
    few = certified[np.isin(recourse.n_changes[certified], (2, 3))]
    rows = few if len(few) else certified
    if len(rows) == 0:
        return None
    order = np.argsort(recourse.cost[rows], kind="stable")
    return int(rows[order[len(rows) // 4]])
