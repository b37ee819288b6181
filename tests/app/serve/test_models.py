"""Rows from a schema: types, categories and declared bounds are checked, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from veritracer.app.serve.models import ErasureRequest, PromiseRequest, row_model, row_of
from veritracer.options import IssueOptions
from veritracer.schema import Feature, Schema

SCHEMA = Schema(
    [
        Feature("age", "integer", lower=18, upper=90),
        Feature("net income", "continuous", lower=0.0, missing="impute", missing_codes=(-1,)),
        Feature("job", "categorical", categories=["clerk", "cook"]),
        Feature("grade", "ordinal", categories=[1, 2, 3]),
        Feature("owner", "binary", categories=[False, True], missing="category"),
    ],
    "approved",
    "yes",
    "no",
)
ROW: dict[str, Any] = {"age": 30, "net income": 2e4, "job": "cook", "grade": 2, "owner": True}
MODEL = row_model(SCHEMA)


def read(**changed: Any) -> dict[str, Any]:
    return row_of(MODEL.model_validate({**ROW, **{k.replace("_", " "): v for k, v in changed.items()}}))


@pytest.mark.parametrize(
    ("changed", "value"),
    [
        ({"age": 30.0}, 30),
        ({"net_income": -1}, -1),
        ({"net_income": None}, None),
        ({"owner": None}, None),
        ({"grade": 2.0}, 2),
    ],
)
def test_values_that_are_legal(changed: dict[str, Any], value: Any) -> None:
    (name,) = changed
    assert read(**changed)[name.replace("_", " ")] == value


def test_a_feature_that_may_be_missing_may_be_left_out() -> None:
    given = {name: value for name, value in ROW.items() if name not in ("net income", "owner")}
    assert row_of(MODEL.model_validate(given)) == {**ROW, "net income": None, "owner": None}


@pytest.mark.parametrize(
    "changed",
    [
        {"age": None},
        {"age": 17},
        {"age": 91},
        {"age": 30.5},
        {"age": "30"},
        {"age": True},
        {"age": 10**400},
        {"net_income": float("nan")},
        {"net_income": float("inf")},
        {"net_income": -2},
        {"net_income": 1e300},
        {"job": "pilot"},
        {"job": None},
        {"grade": 4},
        {"grade": True},
        {"owner": 1},
        {"owner": "True"},
        {"other": 1},
    ],
)
def test_values_that_are_not_legal(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read(**changed)


def test_a_column_must_not_be_left_out() -> None:
    with pytest.raises(ValidationError, match="job"):
        MODEL.model_validate({name: value for name, value in ROW.items() if name != "job"})


def test_the_document_states_bounds_and_categories() -> None:
    told = MODEL.model_json_schema()["properties"]
    assert told["age"] == {"type": "integer", "minimum": 18, "maximum": 90, "title": "Age"}
    assert told["job"]["enum"] == ["clerk", "cook"]
    assert MODEL.model_json_schema()["required"] == ["age", "job", "grade"]


@pytest.mark.parametrize(
    ("given", "identity"), [(1000001, "1000001"), (1000001.0, "1000001"), ("007", "007"), ("1.10", "1.10")]
)
def test_ids_are_text_or_whole_numbers(given: Any, identity: str) -> None:
    body = json.dumps({"rows": [ROW], "ids": [given]})
    assert PromiseRequest[MODEL].model_validate_json(body).ids == [identity]  # type: ignore[valid-type]
    assert ErasureRequest.model_validate_json(json.dumps({"id": given})).id == identity


def test_requests_for_promises() -> None:
    kind = PromiseRequest[MODEL]  # type: ignore[valid-type]
    assert kind.model_validate({"rows": [ROW], "ids": ["a"]}).allow_duplicate is IssueOptions.allow_duplicate
    bad: list[dict[str, Any]] = [
        {"rows": [ROW], "ids": ["a", "b"]},
        {"rows": [ROW], "ids": ["a"], "choose": [0, 1]},
        {"rows": [ROW], "ids": [" "]},
        {"rows": [ROW], "ids": [1.5]},
        {"rows": [ROW], "ids": [2.0**60]},
        {"rows": [ROW], "ids": [True]},
        {"rows": [ROW], "ids": ["a"], "options": {"n": 0}},
        {"rows": [ROW], "ids": ["a"], "options": {"kapa": 1}},
        {"rows": [ROW], "ids": ["a"], "allow_duplicate": 1},
    ]
    for body in bad:
        with pytest.raises(ValidationError):
            kind.model_validate(body)
    assert kind.__name__ == "PromiseRequest"
