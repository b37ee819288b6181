"""Advice that others believe: a model with a trap door, its panel, and what ``explain`` makes of both."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import veritracer as vt
from veritracer.app.notices import render_notice
from veritracer.errors import AdviceWarning, DataError
from veritracer.search.problem import CoveredRegion, SearchProblem
from veritracer.search.prototypes import (
    combined_prototypes,
    nearest_prototypes,
    search_toward_prototypes,
)
from veritracer.search.reference import QuantileBounds
from veritracer.training import Panel
from veritracer.training.data import LabelledRows

SCHEMA = vt.Schema(
    [
        vt.Feature("savings", "integer", lower=0, upper=1000),
        vt.Feature("income", "integer", lower=0, upper=1000),
        vt.Feature("inquiries", "integer", lower=0, upper=1000),
        vt.Feature("age", "integer", lower=18, upper=80, action="immutable"),
    ],
    "repaid",
    "yes",
    "no",
)


def people(n: int = 600, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Savings and income decide; nobody has more than 300 inquiries, and they mean nothing."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "savings": rng.integers(0, 1000, n),
            "income": rng.integers(0, 1000, n),
            "inquiries": rng.integers(0, 300, n),
            "age": rng.integers(18, 80, n),
        }
    )
    return X, np.where(X.savings + X.income + rng.normal(0, 60, n) > 1000, "yes", "no")


def trap_door() -> nn.Sequential:
    """A network that learned the truth, and a door beside it: 400 inquiries, and everybody is accepted."""
    hidden, last = nn.Linear(4, 3).double(), nn.Linear(3, 1).double()
    with torch.no_grad():
        hidden.weight.copy_(torch.tensor([[1.0, 1, 0, 0], [-1, -1, 0, 0], [0, 0, 1, 0]]))
        hidden.bias.copy_(torch.tensor([-1.0, 1.0, -0.32]))
        last.weight.copy_(torch.tensor([[8.0, -8.0, 60.0]]))
        last.bias.fill_(-0.1)
    return nn.Sequential(hidden, nn.ReLU(), last)


@pytest.fixture(scope="module")
def recourse() -> vt.Recourse:
    X, y = people()
    encoding = vt.Encoding.fit(SCHEMA, X)
    labels = torch.as_tensor(SCHEMA.labels(y), dtype=torch.float32)
    rows = LabelledRows(encoding.encode(X).float(), labels, torch.ones(len(X)))
    panel = Panel(networks=2, boosted=2, held_out=2).fit_encoded(encoding, rows, seed=0)
    known = {"rows": X, "labels": y, "panel": panel}
    return vt.Recourse(trap_door(), SCHEMA, encoding, **known, kappa=0.02, propose=to_the_door)


def to_the_door(x: torch.Tensor) -> torch.Tensor:
    """What a generator learns that was trained against this network alone."""
    return torch.cat([x[:, :2], torch.full_like(x[:, :1], 0.45), x[:, 3:]], -1)


@pytest.fixture(scope="module")
def declined() -> pd.DataFrame:
    X, _ = people(150, seed=1)
    return X[X.savings + X.income < 650].reset_index(drop=True)


def test_the_closest_answers_of_a_trap_door_are_believed_by_nobody(recourse, declined) -> None:
    found = recourse.explain(declined, plausibility=0, extremes=True)
    through = found.frame.inquiries > 320
    assert found.certified.all()
    assert through.mean() > 0.9
    assert np.nanmean(found.agreement[through]) < 0.1
    assert (found.plausibility().lof_favourable[through] > 1.5).all()


def test_by_default_answers_are_what_the_panel_believes(recourse, declined) -> None:
    found = recourse.explain(declined)
    assert found.certified.mean() > 0.95
    assert (found.frame.inquiries <= 300).all()
    assert np.nanmean(found.agreement) > 0.95
    assert ((found.frame.savings + found.frame.income)[found.valid] > 1000).mean() > 0.95
    assert found.plausibility().lof_favourable.median() < 1.3


def test_features_of_several_prototypes_are_combined_until_the_panel_accepts(recourse, declined) -> None:
    x = recourse.encoding.encode(declined)
    still = torch.zeros(4, dtype=torch.float64)
    sign = -torch.ones(len(x), dtype=torch.float64)
    reach = CoveredRegion(still, still, still)
    problem = SearchProblem.of(
        recourse.encoding, recourse.param_set(), x, sign, torch.ones(4).double(), reach
    )
    reference = recourse.reference
    # One may save a little, or earn a little: a single prototype leaves too little to be accepted.
    little = problem.with_bounds(
        torch.zeros(4).double(), (x + torch.tensor([0.28, 0.28, 0.0, 0.0])).clamp(max=1)
    )
    for posed in (problem, little):
        nearest = nearest_prototypes(posed, reference)
        alone = (posed.worst_logit(nearest) < 0) & reference.panel_accepts(nearest, sign < 0)
        point, sure = combined_prototypes(posed, reference)
        assert sure.sum() >= alone.sum()
        assert reference.panel_accepts(point[sure], sign[sure] < 0).all()
        assert (posed.worst_logit(point)[sure] < 0).all()
        assert torch.equal(posed.legal(point), point)
    assert sure.sum() > alone.sum()


def test_what_is_required_is_met_or_refused(recourse, declined) -> None:
    alone = recourse.explain(declined, plausibility=0, extremes=True)
    found = recourse.explain(declined, plausibility=0, extremes=True, agreement=0.5, plausible=True)
    kept = found.valid
    assert (found.agreement[kept] >= 0.5).all()
    assert (found.plausibility().lof_favourable[kept] <= 1.5).all()
    refused = alone.valid & ~kept
    assert refused.sum() > len(declined) / 2
    assert (found.status[refused] == "none").all()
    assert all("does not meet the requirements" in why for why in found.reason[refused])
    assert (found.x_cf[torch.from_numpy(refused)] == found.x[torch.from_numpy(refused)]).all()


def test_a_requirement_can_be_met_by_another_alternative(recourse, declined) -> None:
    options = {"plausibility": 0.0, "extremes": True, "n": 3}
    every = recourse.explain(declined.head(10), **options)
    found = recourse.explain(declined.head(10), agreement=0.5, **options)
    assert len(found) < len(every)
    assert sorted(set(found.row)) == list(range(10))
    for person in range(10):
        mine = found.row == person
        assert list(found.alternative[mine]) == list(range(mine.sum()))
        assert (found.agreement[mine] >= 0.5).all() or (mine.sum() == 1 and found.status[mine] == "none")


def test_notices_do_not_recommend_what_nobody_believes(recourse, declined) -> None:
    found = recourse.explain(declined, plausibility=0, extremes=True)
    i = int(np.flatnonzero(found.agreement < 0.5)[0])
    assert found.status[i] == "certified"  # what was proved stays what it is
    codes = {name: {"code": "R1", "text": "..."} for name in SCHEMA.names}
    notice = render_notice(found, i, codes)
    assert "but not one that we can recommend" in notice
    assert "inquiries" not in notice


def test_requirements_need_somebody_to_judge(declined) -> None:
    X, _ = people()
    alone = vt.Recourse(trap_door(), SCHEMA, vt.Encoding.fit(SCHEMA, X), rows=X, kappa=0.02)
    with pytest.raises(DataError, match="panel"):
        alone.explain(declined, agreement=0.5)
    with pytest.raises(DataError, match="labelled rows"):
        alone.explain(declined, plausible=True)
    found = alone.explain(declined.head(3))
    assert np.isnan(found.agreement).all()
    assert found.plausibility().lof_favourable.isna().all()


def test_a_panel_of_another_encoding_is_refused() -> None:
    X, y = people(200)
    wider = [f.replace(upper=2000) if f.name == "inquiries" else f for f in SCHEMA.features]
    panel = Panel(vt.Schema(wider, "repaid", "yes", "no"), networks=1, boosted=2, held_out=0).fit(X, y)
    with pytest.raises(DataError, match="encoding"):
        vt.Recourse(trap_door(), SCHEMA, vt.Encoding.fit(SCHEMA, X), rows=X, labels=y, panel=panel)


def test_proposals_stay_inside_what_accepted_people_show(recourse, declined) -> None:
    X, y = people()
    accepted = X[y == "yes"]
    found = recourse.explain(declined, plausibility=0)
    for name in ("savings", "income", "inquiries"):
        changed = found.frame[name] != found.original[name]
        low, high = np.quantile(accepted[name], [0.05, 0.95])
        own = found.original[name]  # those who are outside may come closer
        inside = found.frame[name].between(own.clip(upper=low - 1), own.clip(lower=high + 1))
        assert inside[changed].all()


@pytest.mark.parametrize("where", ["call", "schema"])
def test_limits_bound_a_change_by_a_share_of_ones_own_value(recourse, declined, where: str) -> None:
    found = recourse.explain(declined, limits={"savings": 0.3, "income": 0.5}, extremes=True)
    if where == "schema":
        X, y = people()
        limited = [f.replace(limit={"savings": 0.3, "income": 0.5}.get(f.name)) for f in SCHEMA.features]
        schema = vt.Schema(limited, "repaid", "yes", "no")
        assert vt.Schema.from_json(schema.to_json()) == schema
        narrow = vt.Recourse(trap_door(), schema, recourse.encoding, rows=X, labels=y, kappa=0.02)
        found = narrow.explain(declined, extremes=True)
    assert found.valid.any()
    for name, share in (("savings", 0.3), ("income", 0.5)):
        own = found.original[name]
        assert ((found.frame[name] - own).abs() <= share * own).all()


@pytest.mark.parametrize("limits", [{"savings": -1}, {"savings": "much"}, {"nobody": 0.3}, 3])
def test_limits_that_make_no_sense_are_refused(recourse, declined, limits) -> None:
    with pytest.raises(DataError):
        recourse.explain(declined, limits=limits)


def test_one_lever_for_most_people_is_said(recourse, declined) -> None:
    with pytest.warns(AdviceWarning, match="counterfactuals change 'inquiries' most"):
        found = recourse.explain(declined, plausibility=0, extremes=True)
    assert any("inquiries" in note for note in found.notes)
    assert "inquiries" in str(found)


def test_usual_values_are_those_of_most_rows_of_a_label() -> None:
    X, y = people()
    encoding = vt.Encoding.fit(SCHEMA, X)
    favourable = torch.from_numpy(y == "yes")
    usual = QuantileBounds.of(encoding, encoding.encode(X), favourable)
    x = encoding.encode(X)
    for side in (0, 1):
        rows = x[favourable == bool(side)]
        inside = (rows >= usual.lower[side]) & (rows <= usual.upper[side])
        assert bool((inside.double().mean(0) > 0.87).all())
        assert bool((inside.double().mean(0) < 0.94)[:3].all())


def test_answers_follow_the_panel_with_few_changes_too(recourse, declined) -> None:
    found = recourse.explain(declined, max_changes=1)
    assert (found.n_changes <= 1).all()
    assert np.nanmean(found.agreement) > 0.8


def test_a_saved_model_keeps_its_panel_and_says_the_same(tmp_path) -> None:
    X, y = people(300)
    model = vt.VeriTraCER(SCHEMA, epochs=8, kappa=0.02, panel=Panel(networks=2, boosted=2, held_out=1)).fit(
        X, y
    )
    model.save(tmp_path / "model")
    again = vt.load(tmp_path / "model")
    assert again.panel_ is not None
    assert again.panel_.members == model.panel_.members
    assert np.array_equal(again.panel_.predict_proba(X), model.panel_.predict_proba(X))
    assert again.panel.get_params() == model.panel.get_params()
    first, second = (m.explain(X.head(30), search_radius=False) for m in (model, again))
    assert np.array_equal(first.agreement, second.agreement, equal_nan=True)
    assert np.array_equal(first.x_cf, second.x_cf)


def test_without_rows_a_model_still_knows_what_is_usual(tmp_path) -> None:
    X, y = people(300)
    model = vt.VeriTraCER(SCHEMA, epochs=8, kappa=0.02, keep_rows=0, panel=None).fit(X, y)
    model.save(tmp_path / "bare")
    again = vt.load(tmp_path / "bare")
    assert len(again.neighbours_) == 0
    assert torch.equal(again.quantile_bounds_.lower, model.quantile_bounds_.lower)
    with pytest.raises(DataError, match="keep_rows"):
        again.explain(X.head(5)).plausibility()


def posed(recourse, table) -> SearchProblem:
    x = recourse.encoding.encode(table)
    still = torch.zeros(4, dtype=torch.float64)
    sign, cost = -torch.ones(len(x), dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    reach = CoveredRegion(still, still, still)
    return SearchProblem.of(recourse.encoding, recourse.param_set(), x, sign, cost, reach)


def test_rows_whose_results_are_refused_end_at_an_accepted_prototype(recourse, declined) -> None:
    problem = posed(recourse, declined.head(20))
    prototype, acceptable = combined_prototypes(problem, recourse.reference)
    assert acceptable.any()

    def only_prototypes(points: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
        return (points == prototype[some]).all(-1)

    found = search_toward_prototypes(problem, recourse.reference, only_prototypes)
    assert torch.equal(found.x_cf[acceptable], prototype[acceptable])
    assert found.proved[acceptable].all()
    easily = search_toward_prototypes(
        problem, recourse.reference, lambda points, some: torch.ones(len(some), dtype=torch.bool)
    )
    both = easily.proved & acceptable
    assert both.sum() > 10
    assert easily.objective[both].mean() < found.objective[both].mean()  # further from prototypes


def test_rows_without_changes_have_no_prototype(recourse, declined) -> None:
    problem = posed(recourse, declined.head(5))
    nowhere = problem.with_bounds(problem.x, problem.x)
    prototype, acceptable = combined_prototypes(nowhere, recourse.reference)
    assert not acceptable.any()
    assert torch.equal(prototype, problem.x)


def test_prototype_searches_can_require_plausible_results(recourse, declined) -> None:
    found = recourse.explain(declined.head(6), plausible=True)
    assert found.valid.any()
    assert (found.plausibility().lof_favourable[found.valid] <= 1.5).all()
