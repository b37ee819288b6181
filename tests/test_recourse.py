"""Models that are not ours: any torch MLP, and LogisticRegression, whose closest answer is exact."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks.legality import ranges_of, violations
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.errors import DataError, NotSupportedError, SchemaError, TargetError
from veritracer.schema import Feature, Schema
from veritracer.search.problem import CoveredRegion, SearchProblem

RANGES = ranges_of(SCHEMA, applicants()[0])


def trained(
    width: int, outputs: int = 1, dtype: torch.dtype = torch.float32
) -> tuple[nn.Module, vt.Encoding]:
    """A torch MLP that somebody trained on encoded applicants."""
    frame, y = applicants()
    encoding = vt.Encoding.fit(SCHEMA, frame)
    x, labels = encoding.encode(frame).to(dtype), torch.from_numpy(SCHEMA.labels(y))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(encoding.dim, width), nn.LeakyReLU(0.01), nn.Linear(width, outputs)).to(
        dtype
    )
    optimiser = torch.optim.Adam(module.parameters(), 1e-2)
    for _ in range(150):
        out = module(x)
        loss = (
            nn.functional.cross_entropy(out, labels)
            if outputs == 2
            else nn.functional.binary_cross_entropy_with_logits(out[:, 0], labels.to(dtype))
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module, encoding


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("with_rows", [True, False])
def test_a_torch_model_is_explained(outputs: int, with_rows: bool) -> None:
    module, encoding = trained(12, outputs)
    frame, _ = applicants(200, seed=9)
    rows = applicants()[0] if with_rows else None
    found = vt.Recourse(module, SCHEMA, encoding, rows=rows, kappa=0.03).explain(frame)
    assert violations(SCHEMA, RANGES, frame, found.frame) == []
    declined = ~found.favourable
    assert found.certified[declined].mean() > 0.7
    assert found.valid[declined].mean() > 0.95


def test_rules_may_change_and_nothing_else() -> None:
    module, encoding = trained(6)
    frame, _ = applicants(50, seed=3)
    loose = Schema([f.replace(action="free") for f in SCHEMA.features], "approved", "yes", "no")
    found = vt.Recourse(module, loose, encoding, kappa=0.01).explain(frame)
    assert violations(loose, RANGES, frame, found.frame) == []
    other = Schema([f.replace(upper=99) if f.name == "age" else f for f in SCHEMA.features])
    refitted = vt.Encoding.fit(other, frame)
    with pytest.raises(SchemaError, match="encodes rows as the encoding does"):
        vt.Recourse(module, SCHEMA, refitted)


def test_counterfactuals_from_elsewhere_are_certified() -> None:
    module, encoding = trained(12)
    frame, _ = applicants(60, seed=3)
    explainer = vt.Recourse(module, SCHEMA, encoding, kappa=0.03, threshold=0.5)
    found = explainer.explain(frame)
    some = np.flatnonzero(found.valid)
    certs = explainer.certify(found.original.iloc[some], found.frame.iloc[some])
    np.testing.assert_array_equal(certs.certified, found.certified[some])
    np.testing.assert_array_equal(certs.radius, found.radius[some])
    assert (certs.encoding_digest, certs.threshold) == (encoding.digest, 0.5)
    with pytest.raises(DataError, match="one counterfactual for each row, got 59 for 60"):
        explainer.certify(frame, frame.head(59))


def test_the_exact_stage_is_for_boxes() -> None:
    module, encoding = trained(6)
    frame, _ = applicants(5)
    explainer = vt.Recourse(module, SCHEMA, encoding, norm="l2")
    for call in (explainer.explain, lambda X, **more: explainer.certify(X, X, **more)):
        with pytest.raises(NotSupportedError, match="a set of norm 'linf' for effort='exact', got 'l2'"):
            call(frame, effort="exact")


def deep(encoding: vt.Encoding, x: torch.Tensor) -> nn.Sequential:
    """A network of three hidden layers that nobody trained, and that turns half of these rows down."""
    torch.manual_seed(4)
    sizes = [encoding.dim, 8, 8, 8]
    layers = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    module = nn.Sequential(*layers, nn.Linear(8, 1)).double()
    with torch.no_grad():
        for layer in module[::2]:
            layer.weight *= 2.0
        module[-1].bias -= module(x).median()
    return module


def test_explain_ends_what_the_bounds_leave_open() -> None:
    frame, _ = applicants(120, seed=9)
    encoding = vt.Encoding.fit(SCHEMA, frame)
    module = deep(encoding, encoding.encode(frame))
    explainer = vt.Recourse(module, SCHEMA, encoding, rows=frame, kappa=0.12)
    fast = explainer.explain(frame, refine=False)
    found = explainer.explain(frame, refine=False, effort="exact")
    assert (found.certified & ~fast.certified).any()
    broken = found.certificates.broken
    assert broken.any()
    assert not (broken & found.certified).any()
    assert (found.status[broken] == "valid").all()
    assert all("broken by a model at kappa = 0.12" in reason for reason in found.reason[broken])
    exactly = found.certified & ~fast.certified
    assert (found.method[exactly] == "exact").all()
    assert (found.radius[exactly] >= 0.12).all()
    assert all("by exact" in reason for reason in found.reason[exactly])
    assert fast.certificates.counterexample is None
    again = explainer.certify(found.original[broken], found.frame[broken], effort="exact")
    assert again.broken.all()
    for row in np.flatnonzero(broken):
        example = found.certificates.counterexample[row]
        assert found.covers(example.module)
        both = example.module(torch.stack([found.x[row], found.x_cf[row]]))[:, 0] > 0
        assert (both == bool(found.favourable[row])).all()


def test_without_time_nothing_is_decided_exactly() -> None:
    frame, _ = applicants(60, seed=9)
    encoding = vt.Encoding.fit(SCHEMA, frame)
    explainer = vt.Recourse(deep(encoding, encoding.encode(frame)), SCHEMA, encoding, rows=frame, kappa=0.02)
    found = explainer.explain(frame, refine=False, effort="exact", time_budget=0.0)
    assert not found.certificates.broken.any()
    assert "exact" not in found.method


def test_what_does_not_fit_is_refused() -> None:
    module, encoding = trained(6)
    with pytest.raises(DataError, match="inputs"):
        vt.Recourse(nn.Linear(3, 1), SCHEMA, encoding)
    with pytest.raises(NotSupportedError, match="Ridge"):
        vt.Recourse(Ridge(), SCHEMA, encoding)
    with pytest.raises(NotSupportedError, match="fit it first"):
        vt.Recourse(LogisticRegression(), SCHEMA, encoding)
    with pytest.raises(DataError, match="an encoding"):
        vt.Recourse(module)
    x, y = encoding.encode(applicants()[0]).numpy(), applicants()[1]
    wrong = LogisticRegression().fit(x, np.where(y == "yes", "good", "bad"))
    with pytest.raises(TargetError, match="favourable label"):
        vt.Recourse(wrong, SCHEMA, encoding)


SMALL = Schema(
    [
        Feature("a", "integer", lower=0, upper=7),
        Feature("b", "integer", lower=0, upper=5, action="increase_only"),
        Feature("c", "categorical", categories=["u", "v", "w"]),
        Feature("d", "continuous", lower=0.0, upper=2.0, step=0.5, action="decrease_only"),
    ],
    "ok",
    "yes",
    "no",
)


@pytest.mark.parametrize("labels", [("no", "yes"), (0, 1)])
def test_a_linear_model_gets_the_closest_of_all_rows(labels: tuple[object, object]) -> None:
    rng = np.random.default_rng(0)
    every = pd.DataFrame(
        list(itertools.product(range(8), range(6), "uvw", np.arange(5) / 2)), columns=["a", "b", "c", "d"]
    )
    encoding = vt.Encoding.fit(SMALL, every)
    x = encoding.encode(every)
    score = x.numpy() @ rng.normal(size=encoding.dim) + rng.normal(0, 0.3, len(every))
    y = np.where(score > np.median(score), labels[1], labels[0])
    linear = LogisticRegression().fit(x.numpy(), y)
    people = every.sample(60, random_state=1)
    recourse = vt.Recourse(linear, SMALL, encoding, kappa=0.1)
    found = recourse.explain(people, only_unfavourable=False, cost={"a": 2.0})
    prices = torch.tensor([2.0, 1, 1, 1, 1, 1], dtype=torch.float64)
    own = encoding.encode(people)
    sign = torch.where(torch.from_numpy(found.favourable), 1.0, -1.0).double()
    still = torch.zeros(encoding.dim, dtype=torch.float64)
    problem = SearchProblem.of(
        encoding, recourse.param_set(), own, sign, prices, CoveredRegion(still, still, still)
    )
    checked = 0
    for i in range(len(people)):
        part = problem.select(torch.full((len(every),), i))
        legal = (encoding.project(x, part.x) == x).all(-1) & (part.worst_logit(x) < 0)
        best = torch.where(legal, part.objective(x), torch.inf).min()
        assert bool(torch.isfinite(best)) == bool(found.certified[i])
        if found.certified[i]:
            mine = problem.select(torch.tensor([i])).objective(found.x_cf[i : i + 1])
            assert float(mine) == pytest.approx(float(best), abs=1e-7)
            checked += 1
    assert checked > 30
