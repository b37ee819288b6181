"""Options are stated once, checked where they are given, and shown by every signature."""

from __future__ import annotations

import dataclasses
import inspect
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.errors import DataError
from veritracer.options import ExplainOptions, IssueOptions, drift_within, promise_end
from veritracer.search.outcomes import Outcome

FIELDS = {field.name: field for field in dataclasses.fields(ExplainOptions)}
NUMBERS = ["kappa", "plausibility", "agreement", "time_budget", "overshoot"]
COUNTS = ["max_changes", "n"]
FLAGS = ["only_unfavourable", "plausible", "extremes", "refine", "search_radius"]
MAPPINGS = ["cost", "limits", "drift"]
NAMES = ["immutable"]
CHOICES = ["effort"]
TERMS = ["term"]
INF, NAN = float("inf"), float("nan")


def encoding() -> vt.Encoding:
    return vt.Encoding.fit(SCHEMA, applicants(60, seed=1)[0])


def test_every_option_is_in_one_of_the_tables_of_this_module() -> None:
    assert sorted(FIELDS) == sorted([*NUMBERS, *COUNTS, *FLAGS, *MAPPINGS, *NAMES, *CHOICES, *TERMS])


@pytest.mark.parametrize("options", [ExplainOptions, IssueOptions])
def test_every_option_has_one_sentence(options: Any) -> None:
    for name, field in options.__pydantic_fields__.items():
        assert field.description, name
        assert field.description[0].isupper(), name
        assert field.description[-1] == ".", name


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, -1e-9, INF, NAN, True, "0.5", [0.5]])
def test_numbers_are_finite_and_at_least_0(name: str, value: object) -> None:
    with pytest.raises(
        DataError, match=f"expected {name} to be (a valid|a finite|greater than).*, got .* — for example"
    ):
        ExplainOptions(**{name: value})


@pytest.mark.parametrize("name", ["agreement", "overshoot"])
def test_shares_are_at_most_1(name: str) -> None:
    assert getattr(ExplainOptions(**{name: 1.0}), name) == 1.0
    with pytest.raises(DataError, match=f"expected {name} to be less than or equal to 1, got 1.01"):
        ExplainOptions(**{name: 1.01})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", [0, -3, 1.0, 2.5, True, "2"])
def test_counts_are_whole_and_positive(name: str, value: object) -> None:
    with pytest.raises(
        DataError, match=f"expected {name} to be (a valid integer|greater than or equal to 1), got"
    ):
        ExplainOptions(**{name: value})


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_flags_are_true_or_false(name: str, value: object) -> None:
    with pytest.raises(DataError, match=f"expected {name} to be a valid boolean, got .* — the default is"):
        ExplainOptions(**{name: value})


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize("value", [3, "savings", ["savings"]])
def test_mappings_are_mappings(name: str, value: object) -> None:
    with pytest.raises(DataError, match=f"expected {name} to be a valid dictionary, got"):
        ExplainOptions(**{name: value})


@pytest.mark.parametrize("value", [3, "savings", {"savings": 1.0}, [3]])
def test_names_are_lists_of_text(value: object) -> None:
    with pytest.raises(DataError, match=r"expected immutable to be a valid (tuple|string), got"):
        ExplainOptions(immutable=value)


@pytest.mark.parametrize("value", ["exat", None, True, 1])
def test_efforts_are_those_that_exist(value: object) -> None:
    with pytest.raises(DataError, match="expected effort to be 'fast' or 'exact', got"):
        ExplainOptions(effort=value)


def test_immutable_features_have_an_infinite_price() -> None:
    options = ExplainOptions(immutable=["savings"], cost={"income": 2.0})
    assert options.immutable == ("savings",)
    assert options.checked(encoding()).cost == {"income": 2.0, "savings": INF}
    with pytest.raises(DataError, match="a feature in immutable, got 'saving' — did you mean 'savings'"):
        ExplainOptions(immutable=["saving"]).checked(encoding())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cost": {"savings": 0}}, "'savings' in cost to be greater than 0, got 0"),
        ({"cost": {"savings": NAN}}, "'savings' in cost to be greater than 0, got nan"),
        ({"cost": {"savings": True}}, "'savings' in cost to be a valid number, got True"),
        ({"cost": {3: 1.0}}, "'3' in cost to be a valid string, got 3"),
        ({"limits": {"savings": -0.1}}, "'savings' in limits to be greater than or equal to 0, got -0.1"),
        ({"limits": {"savings": INF}}, "'savings' in limits to be a finite number, got inf"),
        ({"limits": {"savings": "0.3"}}, "'savings' in limits to be a valid number, got '0.3'"),
        ({"drift": {"savings": -1}}, "a number of at least 0 for 'savings' in drift, got -1"),
        ({"drift": {"savings": INF}}, "a finite amount for 'savings' in drift, got inf"),
        ({"drift": {"savings": (0, NAN)}}, "a number or a pair of numbers for 'savings' in drift"),
        ({"drift": {"savings": True}}, "a number or a pair of numbers for 'savings' in drift"),
        ({"drift": {"savings": "12"}}, "a number or a pair of numbers for 'savings' in drift"),
        ({"drift": {"savings": [0, 1, 2]}}, "a number or a pair of numbers for 'savings' in drift"),
        ({"drift": {"savings": (1, 2)}}, "a range of moves from at most 0 to at least 0"),
        (
            {"refine": False, "n": 2, "limits": {"savings": 0.3}},
            "refine=True, got refine=False with 'n', 'limits'",
        ),
    ],
)
def test_values_that_make_no_sense_are_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(DataError) as refused:
        ExplainOptions(**given)
    assert str(refused.value).startswith(f"expected {expected}")
    assert " — " in str(refused.value)


def test_numpy_scalars_are_numbers_and_none_is_an_empty_mapping() -> None:
    found = ExplainOptions(
        kappa=np.float32(0.5),
        n=np.int64(2),
        plausible=np.bool_(True),
        cost=MappingProxyType({"savings": np.float64(2), "income": INF}),
        drift={"savings": [np.int64(-1), 2], "age": np.float32(2)},
        limits=None,
        time_budget=torch.tensor(3.0),
    )
    assert (found.kappa, found.n, found.plausible, found.time_budget) == (0.5, 2, True, 3.0)
    assert [type(value) for value in (found.kappa, found.n, found.plausible)] == [float, int, bool]
    assert found.cost == {"savings": 2.0, "income": INF}
    assert found.drift == {"savings": (-1.0, 2.0), "age": 2.0}
    assert found.limits == {}


def test_options_do_not_change_and_do_not_share_their_mappings() -> None:
    first, second = ExplainOptions(), ExplainOptions()
    assert first == second
    assert first.cost is not second.cost
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.kappa = 0.1  # type: ignore[misc]


def test_json_is_checked_by_the_same_bounds() -> None:
    adapter = TypeAdapter(ExplainOptions)
    found = adapter.validate_json('{"drift": {"age": [0, 2]}, "kappa": 1}')
    assert found == ExplainOptions(drift={"age": (0, 2)}, kappa=1.0)
    with pytest.raises(ValidationError) as refused:
        adapter.validate_json('{"drift": {"age": [1, 2]}, "kappa": -1, "kapa": 1, "n": "2"}')
    assert {problem["loc"] for problem in refused.value.errors()} == {
        ("drift", "age"),
        ("kappa",),
        ("kapa",),
        ("n",),
    }
    bounds = adapter.json_schema()["properties"]
    assert bounds["overshoot"]["maximum"] == 1
    assert bounds["kappa"]["anyOf"][0] == {"type": "number", "minimum": 0}
    assert set(bounds) == set(FIELDS)


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("name", MAPPINGS)
def test_features_are_those_of_the_table(name: str) -> None:
    options = ExplainOptions(**{name: {"saving": 1.0}})
    with pytest.raises(
        DataError, match=f"expected a feature in {name}, got 'saving' — did you mean 'savings'"
    ):
        options.checked(encoding())


@pytest.mark.parametrize("name", ["limits", "drift"])
def test_categories_have_no_amounts(name: str) -> None:
    with pytest.raises(DataError, match="got the categorical feature 'job'"):
        ExplainOptions(**{name: {"job": 1.0}}).checked(encoding())
    assert ExplainOptions(cost={"job": 2.0}).checked(encoding()).cost == {"job": 2.0}


def test_the_drift_of_the_schema_is_added() -> None:
    features = [f.model_copy(update={"yearly": (0, 1)} if f.name == "age" else {}) for f in SCHEMA.features]
    schema = SCHEMA.model_copy(update={"features": features})
    fitted = vt.Encoding.fit(schema, applicants(60, seed=1)[0])
    assert drift_within(schema, timedelta(days=767)) == {"age": (0, 3)}
    assert drift_within(schema, timedelta(days=1)) == {"age": (0, 1)}
    assert drift_within(schema, timedelta(0)) == {}
    assert ExplainOptions(drift={"savings": 1.0}).checked(fitted).drift == {"age": (0.0, 1.0), "savings": 1.0}
    assert ExplainOptions(drift={"age": 5.0}).checked(fitted).drift == {"age": 5.0}
    assert ExplainOptions(term="2y").checked(fitted).drift == {"age": (0.0, 2.0)}
    assert ExplainOptions(term=None).checked(fitted).drift == {}


def test_a_drift_is_rounded_outwards_to_the_grid() -> None:
    savings = vt.Feature("savings", "integer", step=100, yearly=(-50, 250))
    assert savings.drift_within(timedelta(days=365)) == (-100, 300)
    assert savings.drift_within(timedelta(days=1)) == (-100, 100)
    months = vt.Feature("months", "continuous", yearly=(0, 12))
    assert months.drift_within(timedelta(days=73)) == pytest.approx((0, 2.4))
    assert vt.Feature("income", "integer").drift_within(timedelta(days=73)) == (0, 0)


@pytest.mark.parametrize("term", ["365d", "1y", timedelta(days=365)])
def test_a_term_is_kept_as_text_in_days(term: str | timedelta) -> None:
    assert ExplainOptions(term=term).term == ExplainOptions().term == "365d"
    assert ExplainOptions(term=term).duration == timedelta(days=365)


@pytest.mark.parametrize("term", [None, "0d", timedelta(0)])
def test_no_term_covers_the_shown_values(term: str | timedelta | None) -> None:
    assert ExplainOptions(term=term).term is None


@pytest.mark.parametrize("term", ["7 years", "-1d", 365, timedelta(days=-1)])
def test_bad_terms_are_refused(term: Any) -> None:
    with pytest.raises(DataError, match="a duration"):
        ExplainOptions(term=term)


def test_promises_end_within_their_term() -> None:
    required = {"ids": ["a"], "ledger": "x.db"}
    assert IssueOptions(**required).end == timedelta(days=365)
    shorter = IssueOptions(**required, expires=timedelta(days=30))
    assert shorter.end == timedelta(days=30)
    assert shorter.of_explain().term == "30d"
    assert IssueOptions(**required, term="2y").end == timedelta(days=730)
    with pytest.raises(DataError, match="expires within the term of 365d, got 730d — state term='730d' too"):
        IssueOptions(**required, expires=timedelta(days=730))
    with pytest.raises(DataError, match="a term, or expires="):
        promise_end("term", None)


# ---------------------------------------------------------------- signatures


def test_issue_takes_what_explain_takes_and_the_terms() -> None:
    names = [field.name for field in dataclasses.fields(IssueOptions)]
    assert names[: len(FIELDS)] == list(FIELDS)
    asked = IssueOptions(ids=["a"], ledger="ledger.db", kappa=0.1)
    assert (asked.kappa, asked.uncertified, asked.allow_duplicate) == (0.1, "skip", False)
    with pytest.raises(TypeError, match="expected an option of issue, got 'leger' — did you mean 'ledger'"):
        IssueOptions(ids=["a"], leger="ledger.db")
    with pytest.raises(DataError, match="expected ledger=, got nothing"):
        IssueOptions(ids=["a"])
    with pytest.raises(DataError, match="expected original to be 'plain', 'encrypted' or 'commitment'"):
        IssueOptions(ids=["a"], ledger="ledger.db", original="secret")
    with_key = IssueOptions(ids=["a"], ledger="ledger.db", n=2, key="confidential")
    assert "confidential" not in repr(with_key)
    assert with_key.of_explain() == ExplainOptions(n=2)


def test_an_editor_sees_the_terms_of_issue() -> None:
    shown = inspect.signature(vt.VeriTraCER.issue).parameters
    assert list(shown) == ["self", "X", *(field.name for field in dataclasses.fields(IssueOptions))]
    assert shown["ids"].default is shown["ledger"].default is inspect.Parameter.empty
    assert (shown["expires"].default, shown["uncertified"].default) == (IssueOptions.expires, "skip")


@pytest.mark.parametrize("explain", [vt.Recourse.explain, vt.VeriTraCER.explain])
def test_an_editor_sees_every_option_and_its_default(explain: object) -> None:
    shown = inspect.signature(explain).parameters
    assert list(shown) == ["self", "X", *FIELDS]
    plain = ExplainOptions()
    defaults = {name: None if name in MAPPINGS else getattr(plain, name) for name in FIELDS}
    assert {name: shown[name].default for name in FIELDS} == defaults
    assert {p.kind for p in list(shown.values())[2:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert shown["kappa"].annotation == float | None


def test_an_unknown_option_is_refused_by_name() -> None:
    X, y = applicants(120, seed=1)
    model = vt.VeriTraCER(SCHEMA, method="standard", epochs=40, panel=None).fit(X, y)
    with pytest.raises(TypeError, match="did you mean 'max_changes'"):
        model.explain(X, max_change=2)
    found = model.explain(X=X, cost=None, limits=None, drift=None)
    accepted = found.outcome == Outcome.FAVOURABLE
    assert (accepted == found.favourable).all()
    assert set(found.reason[accepted]) == {"already favourable"}
    assert {type(ended) for ended in found.outcome} == {Outcome}
    assert ((found.outcome == Outcome.CERTIFIED) == found.certified).all()
