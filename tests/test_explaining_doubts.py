"""Advice that the panel expects to do harm: avoided where that is possible, and reported where it is not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import veritracer as vt
from search.small_grids import posed
from veritracer.counterfactuals import Counterfactuals
from veritracer.search.reference import HARM
from veritracer.training import Panel
from veritracer.training.data import LabelledRows

SCHEMA = vt.Schema(
    [
        vt.Feature("savings", "integer", lower=0, upper=1000),
        vt.Feature("income", "integer", lower=0, upper=1000),
        vt.Feature("inquiries", "integer", lower=0, upper=1000),
    ],
    "repaid",
    "yes",
    "no",
)


def people(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Savings and income help; inquiries harm."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({name: rng.integers(0, 1000, n) for name in SCHEMA.names})
    return X, np.where(X.savings + X.income - X.inquiries + rng.normal(0, 60, n) > 500, "yes", "no")


@cache
def recourse() -> vt.Recourse:
    """A model that learned the contrary about inquiries, with a panel that knows better."""
    X, y = people(800, seed=0)
    encoding = vt.Encoding.fit(SCHEMA, X)
    labels = torch.as_tensor(SCHEMA.labels(y), dtype=torch.float32)
    rows = LabelledRows(encoding.encode(X).float(), labels, torch.ones(len(X)))
    panel = Panel(networks=2, boosted=2, held_out=2).fit_encoded(encoding, rows, seed=0)
    hidden, last = nn.Linear(3, 2).double(), nn.Linear(2, 1).double()
    with torch.no_grad():
        hidden.weight.copy_(torch.tensor([[1.0, 1.0, 1.5], [-1.0, -1.0, -1.5]]))
        hidden.bias.copy_(torch.tensor([-1.8, 1.8]))
        last.weight.copy_(torch.tensor([[8.0, -8.0]]))
        last.bias.fill_(-0.1)
    module = nn.Sequential(hidden, nn.ReLU(), last)
    return vt.Recourse(module, SCHEMA, encoding, rows=X, labels=y, panel=panel, kappa=0.01)


def explained(**options: object) -> Counterfactuals:
    """The counterfactuals of people who have few inquiries."""
    X, _ = people(200, seed=1)
    model = recourse()
    return model.explain(X[(X.inquiries < 200)].head(30), **options)


@pytest.mark.parametrize("options", [{}, {"n": 2}, {"plausibility": 0, "extremes": True}])
@pytest.mark.filterwarnings("ignore::veritracer.errors.AdviceWarning")
def test_every_doubtful_change_is_reported(options: dict[str, object]) -> None:
    found = explained(**options)
    panel = found.reference.panel
    assert panel is not None
    for i in range(len(found)):
        doubted = []
        for change in found.changes_of(i) if found.valid[i] else ():
            name = change.feature.name
            alone, undone = found.original.iloc[[i]].copy(), found.frame.iloc[[i]].copy()
            alone[name], undone[name] = found.frame[name].iloc[i], found.original[name].iloc[i]
            points = torch.cat([found.x[[i]], found.x_cf[[i]], *map(found.encoding.encode, (alone, undone))])
            before, after, with_it, without = panel.vote(points).tolist()
            if with_it < before - HARM and without >= after - HARM:
                doubted.append(name)
        assert [n for n, d in zip(SCHEMA.names, found.doubtful[i], strict=True) if d] == doubted
        assert ("does harm" in found.reason[i]) == bool(doubted)
        assert all(repr(name) in found.reason[i] for name in doubted)


@pytest.mark.filterwarnings("ignore::veritracer.errors.AdviceWarning")
def test_harmful_changes_are_avoided_where_another_way_is_accepted() -> None:
    found = explained(plausibility=0, extremes=True)
    accepted = found.reference.panel_accepts(found.x_cf, torch.ones(len(found), dtype=torch.bool)).numpy()
    model = recourse()
    alone = vt.Recourse(model.module, SCHEMA, model.encoding, kappa=0.01).explain(found.original)
    through = alone.frame.inquiries > alone.original.inquiries + 50
    assert through.mean() > 0.9  # the cheapest way
    assert found.certified.all()
    assert accepted.mean() > 0.9
    assert not found.doubtful[accepted].any()
    # Some people start where the panel's vote is 0 and cannot fall: the change is not doubtful there.
    assert (found.frame.inquiries > found.original.inquiries + 50).mean() < 0.3


def test_better_values_are_the_only_advice() -> None:
    X, _ = people(200, seed=1)
    model = recourse()
    features = [f.replace(better="lower") if f.name == "inquiries" else f for f in SCHEMA.features]
    schema = vt.Schema(features, "repaid", "yes", "no")
    one_way = vt.Recourse(model.module, schema, vt.Encoding.fit(schema, people(800, seed=0)[0]), kappa=0.01)
    found = one_way.explain(X.head(40), plausibility=0)
    assert found.certified.any()
    assert (found.frame.inquiries <= found.original.inquiries).all()


def test_closed_moves_leave_the_other_direction_open() -> None:
    problem, every = posed(0)
    x_cf = problem.legal(every[torch.arange(len(problem)) * 37 % len(every)])
    changed = problem.encoding.changed(x_cf, problem.x)
    closed = problem.without_moves(changed, x_cf)
    again = closed.legal(x_cf)
    assert torch.equal(again, problem.x)
    number = problem.encoding.numeric
    rose, fell = number & (x_cf > problem.x), number & (x_cf < problem.x)
    assert bool((closed.upper == problem.x)[rose].all())
    assert torch.equal(closed.lower[rose], problem.lower[rose])
    assert torch.equal(closed.upper[fell], problem.upper[fell])
