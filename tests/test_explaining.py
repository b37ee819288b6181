"""``explain`` as its users meet it: legal, certified as shown, deterministic, and never without a reason."""

from __future__ import annotations

import json
import time

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks.legality import ranges_of, violations

import veritracer as vt
from recourse_tables import SCHEMA, applicants, fitted
from veritracer.bounds.attack import attack
from veritracer.errors import DataError

RANGES = ranges_of(SCHEMA, applicants()[0])

OPTIONS = [
    {},
    {"kappa": 0.05},
    {"max_changes": 2},
    {"cost": {"savings": 5.0, "job": float("inf")}},
    {"plausibility": 0.5},
    {"overshoot": 0.05, "drift": {"age": 2, "income": 500}},
    {"only_unfavourable": False},
    {"n": 3},
    {"refine": False},
    {"time_budget": 0.0},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "default")
def test_every_answer_is_legal_certified_as_shown_and_has_a_reason(options: dict[str, object]) -> None:
    model, rows = fitted()
    found = model.explain(rows, **options)
    assert violations(SCHEMA, RANGES, found.original, found.frame) == []
    assert list(found.frame.columns) == list(rows.columns)
    pd.testing.assert_frame_equal(found.original, rows.iloc[found.row].set_axis(found.original.index))
    assert all(isinstance(reason, str) and reason for reason in found.reason)
    assert set(found.status) <= {"certified", "valid", "none"}
    np.testing.assert_array_equal(found.certified, found.status == "certified")
    np.testing.assert_array_equal(found.valid, found.status != "none")
    nothing = found.status == "none"
    assert (found.n_changes[nothing] == 0).all()
    assert (found.radius[nothing] == 0).all()
    # The values that are shown, given back as a table, have the same certificate.
    some = np.flatnonzero(found.valid)
    again = model.certify(found.original.iloc[some], found.frame.iloc[some], kappa=options.get("kappa"))
    np.testing.assert_array_equal(again.valid, True)
    if "overshoot" in options:
        assert (again.certified >= found.certified[some]).all()  # a region is harder than a point
    else:
        np.testing.assert_array_equal(again.certified, found.certified[some])
        np.testing.assert_array_equal(again.radius, found.radius[some])
    kappa = options.get("kappa", 0.2)
    assert (found.radius[found.certified] >= kappa * (1 - 1e-12)).all()


def test_nearly_everybody_gets_an_answer_that_is_closer_than_the_generators() -> None:
    model, rows = fitted()
    found, start = model.explain(rows), model.explain(rows, refine=False)
    declined = ~found.favourable
    assert found.certified[declined].mean() > 0.9
    both = found.certified & start.certified
    assert both.sum() > 20
    assert found.cost[both].mean() < 0.8 * start.cost[both].mean()
    assert found.n_changes[both].mean() <= start.n_changes[both].mean()


def test_no_attack_breaks_a_certificate() -> None:
    model, rows = fitted()
    found = model.explain(rows, only_unfavourable=False)
    some = torch.from_numpy(np.flatnonzero(found.certified))
    sign = torch.where(torch.from_numpy(found.favourable), 1.0, -1.0).double()
    broken = attack(model.param_set(), found.x[some], found.x_cf[some], sign[some], steps=30, restarts=2)
    assert float(broken.worst_logit.max()) < 0


def test_a_region_holds_for_every_row_and_model_in_it() -> None:
    model, rows = fitted()
    found = model.explain(rows, overshoot=0.1, drift={"age": 3, "education": 1})
    some = np.flatnonzero(found.certified)
    assert len(some) > 20
    models = model.param_set()
    generator = torch.Generator().manual_seed(0)
    drawn = models.sample(12, generator=generator)
    thetas = [models.center, *(tuple(t[k] for t in drawn) for k in range(12))]
    sign = torch.where(torch.from_numpy(found.favourable[some]), 1.0, -1.0).double()
    lower, upper = found.region.lower[some], found.region.upper[some]
    corners = [lower, upper, torch.where(torch.rand(lower.shape, generator=generator) < 0.5, lower, upper)]
    corners += [lower + torch.rand(lower.shape, generator=generator) * (upper - lower) for _ in range(4)]
    for theta in thetas:
        for corner in corners:
            assert float((sign * models.network.logit(theta, corner)).max()) < 0
    for i in some[:40]:  # as raw rows: everything a person may do is inside of the box
        for change in found.changes_of(i):
            if change.feature.is_numeric:
                row = found.frame.iloc[[i]].copy()
                row[change.feature.name] = change.limit
                row["age"] = min(row["age"].iloc[0] + 3, 90)
                x = model.encoding_.encode(row)[0]
                assert bool(((x >= found.region.lower[i]) & (x <= found.region.upper[i])).all())


def test_overshooting_is_said() -> None:
    model, rows = fitted()
    found = model.explain(rows, overshoot=0.05, drift={"age": 2})
    numeric = [
        i for i in np.flatnonzero(found.certified) if any(c.feature.is_numeric for c in found.changes_of(i))
    ]
    sentence = found.sentence(numeric[0])
    assert "at least" in sentence
    assert "age may change by up to 2" in sentence
    assert "at_most" in found.changes().columns
    plain = model.explain(rows)
    assert (
        found.cost[found.certified & plain.certified] >= plain.cost[found.certified & plain.certified] - 0.02
    ).mean() > 0.9


def test_prices_and_limits_are_kept_to() -> None:
    model, rows = fitted()
    dear = model.explain(rows, cost={"savings": float("inf"), "job": float("inf")})
    assert not set(dear.changes()["feature"]) & {"savings", "job"}
    few = model.explain(rows, max_changes=1)
    assert few.n_changes.max() <= 1
    cheap = model.explain(rows, cost={"savings": 0.1})
    touched = [(f.changes()["feature"] == "savings").sum() for f in (cheap, model.explain(rows))]
    assert touched[0] >= touched[1]
    np.testing.assert_array_equal(dear.cost >= 0, True)


def test_alternatives_have_a_level_of_the_index_and_differ_in_their_features() -> None:
    model, rows = fitted()
    found = model.explain(rows.head(40), n=3)
    assert found.frame.index.names[-1] == "alternative"
    assert set(found.row) == set(range(40))
    declined = {person for person in found.row if not found.favourable[found.row == person].any()}
    several = 0
    for person in declined:
        mine = np.flatnonzero((found.row == person) & found.valid)
        sets = [frozenset(c.feature.name for c in found.changes_of(i)) for i in mine]
        assert len(set(sets)) == len(sets)
        assert (np.diff(found.cost[mine]) >= -0.2).all()  # cheapest first, up to the price of a change
        several += len(sets) > 1
    assert several > 0.5 * len(declined)
    assert {"row", "alternative", "feature", "from", "to"} == set(found.changes().columns)


def test_the_same_call_gives_the_same_answer_and_company_does_not_matter() -> None:
    model, rows = fitted()
    first, again = model.explain(rows), model.explain(rows)
    pd.testing.assert_frame_equal(first.frame, again.frame)
    np.testing.assert_array_equal(first.worst_logit, again.worst_logit)
    alone = [model.explain(rows.iloc[[i]]) for i in range(0, len(rows), 7)]
    together = model.explain(rows.iloc[::-1])
    same = [
        a.frame.iloc[0].equals(first.frame.loc[a.frame.index[0]])
        and a.frame.iloc[0].equals(together.frame.loc[a.frame.index[0]])
        for a in alone
    ]
    assert all(same)  # rounding in a batch of another size could turn a tie, but here it does not


def test_favourable_rows_are_left_alone() -> None:
    model, rows = fitted()
    found = model.explain(rows)
    accepted = model.predict(rows) == "yes"
    assert (found.status[accepted] == "none").all()
    assert set(found.reason[accepted]) == {"already favourable"}
    assert found.sentence(int(accepted.argmax())) == "No change is proposed: already favourable."
    both = model.explain(rows, only_unfavourable=False)
    assert both.valid[accepted].mean() > 0.5  # most features may not change for the worse


def test_where_a_constraint_stands_in_the_way_it_is_named() -> None:
    model, rows = fitted()
    only = {name: float("inf") for name in SCHEMA.names if name not in ("sex", "age")}
    found = model.explain(rows, cost=only)
    declined = ~found.favourable
    assert (found.status[declined] != "certified").all()
    said = " ".join(found.reason[declined])
    assert "no certified counterfactual was found" in said or "none exists" in said


def test_a_proof_that_none_exists_needs_every_feature_to_be_fixed_or_hopeless() -> None:
    model, rows = fitted()
    frozen = [feature.replace(action="immutable") for feature in SCHEMA.features]
    schema = vt.Schema(frozen, "approved", "yes", "no")
    found = model.recourse(schema).explain(rows)
    declined = ~found.favourable
    assert all(reason.startswith("none exists") for reason in found.reason[declined])
    one = [f.replace(action="immutable") if f.name != "savings" else f for f in SCHEMA.features]
    loose = model.recourse(vt.Schema(one, "approved", "yes", "no")).explain(rows)
    never = np.array([reason.startswith("none exists") for reason in loose.reason])
    # Where it says so, no value of savings helps.
    for i in np.flatnonzero(never & ~loose.favourable)[:20]:
        tried = pd.concat([rows.iloc[[i]]] * 501, ignore_index=True)
        tried["savings"] = np.arange(501) * 100
        assert (model.predict(tried) == "no").all()
    relaxed = [r for r in loose.reason if "could change freely" in r]
    assert all("savings" not in r.split("if")[-1] for r in relaxed)


def test_a_larger_kappa_than_possible_says_how_far_the_proof_goes() -> None:
    model, rows = fitted()
    found = model.explain(rows, kappa=3.0)
    declined = ~found.favourable
    assert (found.status[declined] == "valid").mean() > 0.5
    some = np.flatnonzero(found.status == "valid")
    assert all("certified only up to kappa" in found.reason[i] for i in some if found.radius[i] > 0)
    assert "proved only for later versions" in found.sentence(int(some[found.radius[some].argmax()]))


def test_time_is_kept_and_what_is_there_is_given() -> None:
    model, rows = fitted()
    many = pd.concat([rows] * 40, ignore_index=True)
    start = time.perf_counter()
    found = model.explain(many, time_budget=0.05, extremes=True)
    assert time.perf_counter() - start < 60  # it ends: a slow machine is no failure
    unfinished = [r for r in found.reason if "time budget ran out" in r]
    assert unfinished
    assert found.certified[~found.favourable].mean() > 0.3  # the generator's answers, at least


def test_tables_of_every_kind_come_back_as_they_were() -> None:
    model, rows = fitted()
    labelled = rows.head(6).set_axis([f"p{i}" for i in range(6)])
    assert list(model.explain(labelled).frame.index) == list(labelled.index)
    shuffled = rows.head(6)[rows.columns[::-1]]
    assert list(model.explain(shuffled).frame.columns) == list(shuffled.columns)
    assert model.explain(rows.head(6)).frame.dtypes.equals(rows.head(6).dtypes)
    assert len(model.explain(rows.iloc[[0]])) == 1
    nested = rows.head(4).set_index(pd.MultiIndex.from_product([["a", "b"], [1, 2]]))
    assert model.explain(nested).frame.index.equals(nested.index)
    assert model.explain(nested, n=2).frame.index.nlevels == 3


def test_a_saved_model_explains_alike(tmp_path) -> None:
    model, rows = fitted()
    model.save(tmp_path / "model")
    loaded = vt.load(tmp_path / "model")
    pd.testing.assert_frame_equal(model.explain(rows).frame, loaded.explain(rows).frame)
    bare = fitted()[0].__class__(**{**model.get_params(), "keep_rows": 0, "epochs": 2})
    frame, y = applicants()
    bare.fit(frame[:200], y[:200]).save(tmp_path / "bare")
    assert len(vt.load(tmp_path / "bare").neighbours_) == 0
    with pytest.raises(DataError, match="keep_rows"):
        bare.explain(rows.head(3)).plausibility()


@pytest.mark.parametrize("method", ["standard", "counternet"])
def test_models_of_every_method_are_explained(method: str) -> None:
    model, rows = fitted(method)
    found = model.explain(rows, kappa=0.01)
    assert violations(SCHEMA, RANGES, rows, found.frame) == []
    assert found.valid[~found.favourable].mean() > 0.9
    assert found.certified.sum() > 10


def test_plausibility_is_reported_and_heeded() -> None:
    model, rows = fitted()
    plain, pulled = (model.explain(rows, plausibility=pull) for pull in (0.0, 1.5))
    both = plain.certified & pulled.certified
    near = [f.plausibility()["distance"].to_numpy()[both].mean() for f in (plain, pulled)]
    assert near[1] < near[0]
    columns = {"distance", "lof", "distance_favourable", "lof_favourable"}
    assert columns == set(plain.plausibility().columns)


def test_json_has_a_version_and_everything_else(tmp_path) -> None:
    model, rows = fitted()
    found = model.explain(rows.head(12), n=2, overshoot=0.02)
    content = json.loads(found.to_json(tmp_path / "recourse.json"))
    assert json.loads((tmp_path / "recourse.json").read_text()) == content
    assert (content["format"], content["version"]) == ("veritracer-recourse", 1)
    assert len(content["rows"]) == len(found)
    first = content["rows"][int(np.flatnonzero(found.certified)[0])]
    assert {"row", "alternative", "status", "reason", "radius", "original", "counterfactual"} <= set(first)
    assert first["changes"][0]["from"] != first["changes"][0]["to"]
    assert content["model_digest"] == model.certify(rows.head(1), rows.head(1)).model_digest


def test_parquet_comes_back(tmp_path) -> None:
    model, rows = fitted()
    found = model.explain(rows)
    found.to_parquet(tmp_path / "recourse.parquet")
    back = pd.read_parquet(tmp_path / "recourse.parquet")
    assert list(back["recourse.status"]) == list(found.status)
    np.testing.assert_array_equal(back["savings"], found.frame["savings"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kappa": -0.1}, "kappa to be greater than or equal to 0"),
        ({"max_changes": 0}, "max_changes to be greater than or equal to 1"),
        ({"n": 0}, "n to be greater than or equal to 1"),
        ({"overshoot": 5}, "overshoot to be less than or equal to 1"),
        ({"plausibility": -1}, "plausibility to be greater than or equal to 0"),
        ({"time_budget": float("nan")}, "time_budget"),
        ({"cost": {"saving": 1}}, "did you mean 'savings'"),
        ({"cost": {"savings": 0}}, "to be greater than 0"),
        ({"drift": {"job": 1}}, "categorical feature 'job'"),
        ({"drift": {"age": -1}}, "at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    model, rows = fitted()
    with pytest.raises(DataError, match=said):
        model.explain(rows.head(2), **options)
