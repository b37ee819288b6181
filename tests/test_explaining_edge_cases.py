"""What a reviewer once broke: labels, fine grids, repeated indices, words that promised too much."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import veritracer as vt
from recourse_tables import fitted
from veritracer.changes import Change, describe_change
from veritracer.errors import DataError, TargetError
from veritracer.formatting import format_value, round_down
from veritracer.schema import Feature, Schema


def linear_problem(schema: Schema, n: int = 300) -> tuple[pd.DataFrame, vt.Encoding, np.ndarray]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.integers(0, 20, n), "b": rng.integers(0, 20, n)})
    y = np.where(frame["a"] + frame["b"] > 19, schema.favourable, schema.unfavourable)
    return frame, vt.Encoding.fit(schema, frame), y


def test_a_linear_model_is_never_turned_round() -> None:
    schema = Schema([Feature("a", "integer"), Feature("b", "integer")], "y", 0, 1)
    frame, encoding, y = linear_problem(schema)
    x = encoding.encode(frame).numpy()
    as_told, raw = LogisticRegression().fit(x, schema.labels(y)), LogisticRegression().fit(x, y)
    with pytest.raises(TargetError, match="classes that name the favourable one"):
        vt.Recourse(as_told, schema, encoding)
    for model, favourable in ((as_told, 1), (raw, 0)):
        found = vt.Recourse(model, schema, encoding, kappa=0.01, favourable=favourable).explain(frame)
        np.testing.assert_array_equal(found.favourable, model.predict(x) == favourable)
        shown = encoding.encode(found.frame).numpy()[found.certified]
        assert (model.predict(shown) == favourable).all()
        assert found.certified.sum() > 50


@pytest.mark.parametrize("upper", [10.0, 1e5, 1e9, 1e12])
def test_an_exact_answer_is_found_on_grids_of_any_fineness(upper: float) -> None:
    schema = Schema([Feature("a", "integer", lower=0, upper=upper)], "y", "yes", "no")
    frame = pd.DataFrame({"a": [0, int(upper)]})
    module = nn.Sequential(nn.Linear(1, 1, dtype=torch.float64))
    with torch.no_grad():
        module[0].weight.fill_(1.0)
        module[0].bias.fill_(-0.37)
    found = vt.Recourse(module, schema, vt.Encoding.fit(schema, frame), kappa=0.1).explain(frame.head(1))
    assert found.certified.all()
    # 0.9 a / upper > 0.37 * 1.1
    assert found.frame["a"].iloc[0] == pytest.approx(0.407 / 0.9 * upper, abs=1 + 1e-5 * upper)


def test_an_unconstrained_linear_model_is_answered() -> None:
    schema = Schema([Feature("a", "integer"), Feature("b", "integer")], "y", "yes", "no").unconstrained()
    frame, encoding, y = linear_problem(schema)
    model = LogisticRegression().fit(encoding.encode(frame).numpy(), y)
    found = vt.Recourse(model, schema, encoding, kappa=0.05).explain(frame)
    assert found.certified[~found.favourable].all()


def test_parquet_and_json_keep_rows_apart_whose_labels_repeat(tmp_path) -> None:
    model, rows = fitted()
    same = rows.head(8).set_axis([7] * 8)
    for n in (1, 2):
        found = model.explain(same, n=n)
        found.to_parquet(tmp_path / "r.parquet")
        back = pd.read_parquet(tmp_path / "r.parquet")
        assert list(back["recourse.status"]) == list(found.status)
        np.testing.assert_array_equal(back["savings"], found.frame["savings"])
    first = json.loads(found.to_json())["rows"][0]
    assert isinstance(first["original"]["savings"], int)
    named = rows.head(8).rename_axis("alternative")
    assert list(model.explain(named).changes()["row"].unique()) == [
        i for i in range(8) if model.explain(named).n_changes[i]
    ]
    nested = rows.head(2).set_index(pd.MultiIndex.from_tuples([(1, "a"), (2, "b")]))
    assert json.loads(model.explain(nested).to_json())["rows"][0]["row"] == [1, "a"]


def test_words_never_promise_more_than_was_proved() -> None:
    number = Feature("a", "integer", missing="impute", missing_codes=[-9])
    assert describe_change(Change(number, 0, 6, limit=6)) == "Raise a from 0 to 6."
    assert describe_change(Change(number, 0, 6, limit=7)) == "Raise a from 0 to at least 6."
    assert describe_change(Change(number, -9, 51)) == "State a: 51."
    assert describe_change(Change(number, pd.NA, 51, limit=60)) == "State a: 51."
    assert format_value(1000000000.5006) == "1,000,000,000.5006"
    assert [round_down(x) for x in (0.0749, 2.996, 100 * 0.2, 100 * 0.07)] == ["0.0749", "2.99", "20", "7"]
    for value in np.random.default_rng(0).uniform(1e-4, 100, 300):
        assert float(round_down(value)) <= value


def test_missing_cells_do_not_stop_sentences_about_regions() -> None:
    model, rows = fitted()
    gaps = rows.assign(rating=rows["rating"].astype("Float64").mask(rows.index % 2 == 0, pd.NA))
    found = model.explain(gaps, overshoot=0.05)
    assert all(isinstance(found.sentence(i), str) for i in range(len(found)))
    json.loads(found.to_json())


def test_a_narrow_column_that_can_not_hold_the_answer_is_not_called_valid() -> None:
    schema = Schema([Feature("a", "continuous", display_step="exact")], "y", "yes", "no")
    frame = pd.DataFrame({"a": np.array([1e6, 1e6 + 1], dtype=np.float32)})
    module = nn.Sequential(nn.Linear(1, 1, dtype=torch.float64))
    with torch.no_grad():
        module[0].weight.fill_(1.0)
        module[0].bias.fill_(-0.5004)  # the next float32 above 1e6 + 0.5004 is 1e6 + 0.5625
    recourse = vt.Recourse(module, schema, vt.Encoding.fit(schema, frame), kappa=0.0)
    found = recourse.explain(frame.head(1))
    logit = module(recourse.encoding.encode(found.frame))[0, 0]
    assert bool(found.valid[0]) == bool(logit > 0)


def test_a_relaxation_is_named_only_if_the_number_of_changes_allows_it() -> None:
    schema = Schema(
        [
            Feature("a", "integer", lower=0, upper=10),
            Feature("b", "integer", lower=0, upper=10, action="immutable"),
        ],
        "y",
        "yes",
        "no",
    )
    frame = pd.DataFrame({"a": [0, 10], "b": [0, 10]})
    module = nn.Sequential(nn.Linear(2, 1, dtype=torch.float64))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([[1.0, 0.5]]))
        module[0].bias.fill_(-0.9)
    recourse = vt.Recourse(module, schema, vt.Encoding.fit(schema, frame), kappa=0.1)
    assert "'b' could change" in recourse.explain(frame.head(1)).reason[0]
    assert "could change" not in recourse.explain(frame.head(1), max_changes=1).reason[0]


def test_a_dead_start_is_not_the_end() -> None:
    """Where every unit is inactive at x, the tangent there says nothing."""
    schema = Schema([Feature(n, "integer", lower=0, upper=10) for n in "ab"], "y", "yes", "no")
    frame = pd.DataFrame({"a": [0, 10], "b": [0, 10]})
    module = nn.Sequential(
        nn.Linear(2, 1, dtype=torch.float64), nn.ReLU(), nn.Linear(1, 1, dtype=torch.float64)
    )
    with torch.no_grad():
        module[0].weight.fill_(1.0)
        module[0].bias.fill_(-1.2)
        module[2].weight.fill_(4.0)
        module[2].bias.fill_(-1.0)
    found = vt.Recourse(module, schema, vt.Encoding.fit(schema, frame), kappa=0.05).explain(frame.head(1))
    assert found.certified.all()


@pytest.mark.parametrize(
    "options",
    [
        {"kappa": "0.1"},
        {"n": 2.5},
        {"max_changes": 1.5},
        {"cost": ["savings"]},
        {"search_radius": "norm"},
        {"refine": False, "max_changes": 2},
        {"refine": False, "n": 2},
        {"refine": False, "plausibility": 0.5},
    ],
)
def test_odd_requests_are_refused_in_words(options: dict[str, object]) -> None:
    model, rows = fitted()
    with pytest.raises(DataError, match=r"expected .*, got .* — "):
        model.explain(rows.head(2), **options)


def test_numpy_numbers_and_no_rows_are_fine() -> None:
    model, rows = fitted()
    assert len(model.explain(rows.head(3), cost={"income": np.int64(2)}, n=np.int64(1))) == 3
    assert repr(model.explain(rows.head(1))).startswith("1 counterfactual at kappa = 0.2")
    assert "today's model" in model.explain(rows, kappa=0.0).sentence(
        int(model.explain(rows, kappa=0.0).certified.argmax())
    )
