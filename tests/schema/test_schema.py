"""The description of a table: what is guessed, what is refused and how, and what survives JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from table_strategies import Table, tables
from veritracer.encoding import Encoding
from veritracer.errors import DataError, DataWarning, SchemaError, TargetError
from veritracer.schema import Feature, Schema
from veritracer.schema.inference import characteristic, yearly_growth
from veritracer.schema.tables import arrow_table

many = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
three_parts = r"(?s)^expected .+, got .+ — .+"

people = pd.DataFrame(
    {
        "age": [25, 40, 33, 58],
        "income": [1200.5, 3100.0, 2500.25, np.nan],
        "owner": [True, False, True, True],
        "flag": [0, 1, 1, 0],
        "job": ["cook", "clerk", None, "baker"],
        "sex": ["f", "m", "f", "m"],
        "rank": pd.Categorical(["low", "high", "low", "mid"], ["low", "mid", "high"], ordered=True),
        "approved": ["no", "yes", "no", "yes"],
    }
)


# ---------------------------------------------------------------- inference


def test_guesses_and_what_is_said_about_them() -> None:
    schema = Schema.infer(people, target="approved", favourable="yes")
    assert {f.name: f.kind for f in schema.features} == {
        "age": "integer",
        "income": "continuous",
        "owner": "binary",
        "flag": "binary",
        "job": "categorical",
        "sex": "binary",
        "rank": "ordinal",
    }
    assert schema["age"].note.startswith("whole numbers, 4 distinct, none missing; immutable, since its name")
    assert schema["income"].missing == "impute"
    assert "1 missing; missing ones are filled and flagged" in schema["income"].note
    assert schema["job"].missing == "category"
    assert schema["rank"].categories == ("low", "mid", "high")
    assert schema["flag"].categories == (0, 1)
    assert (schema.favourable, schema.unfavourable) == ("yes", "no")
    assert str(schema).startswith("7 features; target 'approved': 'yes' is favourable, 'no' is not\n")
    table = schema.describe()
    assert list(table.index) == list(schema.names)
    assert list(table.columns) == ["kind", "range", "step", "categories", "missing", "action", "note"]
    assert Encoding.fit(schema, people).dim == 1 + 2 + 1 + 1 + 4 + 1 + 1


def test_what_is_said_wins_over_guesses() -> None:
    schema = Schema.infer(
        people,
        target="approved",
        favourable="no",
        immutable=["sex"],
        increase_only=["rank"],
        decrease_only=["flag"],
        continuous=["age"],
        ordinal={"job": ["cook", "baker", "clerk"]},
        ranges={"age": (18, None)},
        steps={"income": 0.25},
        missing={"job": "impute"},
        missing_codes={"age": [-1]},
    )
    assert (schema.favourable, schema.unfavourable, schema.note) == ("no", "yes", "")
    assert schema["age"].kind == "continuous"
    assert (schema["age"].lower, schema["age"].missing, schema["age"].missing_codes) == (
        18.0,
        "impute",
        (-1,),
    )
    assert schema["job"].categories == ("cook", "baker", "clerk")
    assert schema["job"].missing == "impute"
    assert schema["income"].step == 0.25
    assert [schema[n].action for n in ("sex", "rank", "flag")] == [
        "immutable",
        "increase_only",
        "decrease_only",
    ]
    assert {f.missing for f in Schema.infer(people, "approved", missing="impute").features} == {"impute"}


def test_rows_that_stand_in_the_table_twice_do_not_hide_an_identifier() -> None:
    people = pd.DataFrame({"customer_id": np.arange(5_000, 5_100), "name": [f"n{i}" for i in range(100)]})
    people = people.assign(income=np.arange(100) % 7, ok=["yes", "no"] * 50)
    with pytest.warns(DataWarning, match="'customer_id'"):
        schema = Schema.infer(pd.concat([people, people[:40]], ignore_index=True), target="ok")
    assert list(schema.names) == ["income"]
    assert set(schema.ignored_names) == {"customer_id", "name"}


def test_nasty_frames_are_described_or_refused_but_never_crash() -> None:
    odd = pd.DataFrame(
        {
            "float_whole": [1.0, np.nan, 3.0],
            "huge": [1e20, 2e20, 3e20],
            "objects": pd.Series([1, None, 2.5], dtype=object),
            "mixed": pd.Series([1, "1", None], dtype=object),
            "maybe": pd.array([True, None, False], dtype="boolean"),
            "nullable": pd.array([1, None, 7], dtype="Int64"),
            "same": ["x", "x", "x"],
            "unused": pd.Categorical(["a", "b", "a"], ["z", "b", "a"]),
        }
    ).set_axis([7, 7, 7])
    schema = Schema.infer(odd)
    kinds = [f.kind for f in schema.features]
    assert kinds == [
        "integer",
        "continuous",
        "continuous",
        "binary",
        "binary",
        "integer",
        "categorical",
        "binary",
    ]
    assert schema["mixed"].categories == (1, "1")
    assert schema["unused"].categories == ("b", "a")
    assert Schema.infer(np.arange(6.0).reshape(3, 2) / 7).names == ("x0", "x1")


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pd.to_datetime(["2020-01-01", "2021-01-01"]), "dates"),
        (pd.to_timedelta([1, 2], unit="D"), "durations"),
        ([1 + 2j, 3j], "imaginary"),
        ([[1], [2]], "nested"),
        ([{"a": 1}, {}], "nested"),
        ([np.inf, 1.0], "inf"),
        ([None, None], "only missing"),
        (pd.cut(pd.Series([1, 9]), 2), "Interval"),
    ],
)
def test_columns_that_are_no_values_are_refused(column: object, says: str) -> None:
    with pytest.raises(DataError, match=three_parts) as caught:
        Schema.infer(pd.DataFrame({"odd one": column}))
    assert says in str(caught.value)
    assert "'odd one'" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Schema.infer(people, immutable=["aeg"]), "did you mean 'age'?"),
        (lambda: Schema.infer(people, steps={"incom": 1}), "did you mean 'income'?"),
        (lambda: Schema.infer(people, ordinal={"rnak": ["a"]}), "did you mean 'rank'?"),
        (lambda: Schema.infer(people, immutable="age"), "write immutable=['age']"),
        (
            lambda: Schema.infer(people, immutable=["age"], increase_only=["age"]),
            "immutable and in increase_only",
        ),
        (lambda: Schema.infer(people, integer=["age"], categorical=["age"]), "integer and in categorical"),
        (lambda: Schema.infer(people, increase_only=["job"]), "categorical"),
        (lambda: Schema.infer(people, binary=["age"]), "'age'"),
        (lambda: Schema.infer(people, "approved", immutable=["approved"]), "'approved'"),
        (lambda: Schema.infer(people)["agee"], "did you mean 'age'?"),
    ],
)
def test_contradictions_in_the_description_are_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(SchemaError, match=three_parts) as caught:
        call()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (people[:0], "an empty table"),
        (pd.DataFrame(index=[0, 1]), "column"),
        (pd.concat([people, people[["age"]]], axis=1), "'age' more than once"),
        (people.rename(columns={"age": 3}), "3 of type int"),
        ([1, 2, 3], "a list"),
        (people[["approved"]], "beside the target"),
    ],
)
def test_tables_that_can_not_be_described(frame: object, says: str) -> None:
    with pytest.raises(DataError, match=three_parts) as caught:
        Schema.infer(frame, target="approved")
    assert says in str(caught.value)


def test_a_million_categories_are_refused_quickly() -> None:
    frame = pd.DataFrame({"id": [f"u{i // 2}" for i in range(10**6)]})
    start = time.perf_counter()
    with pytest.raises(DataError, match=r"at most 1,000 categories in the column 'id', got 500,000 — "):
        Schema.infer(frame)
    assert time.perf_counter() - start < 20  # on a busy machine; looking at each would take minutes
    with pytest.raises(DataError, match=r"got 1,001 — "):
        Schema.infer(pd.DataFrame({"n": range(1001)}), categorical=["n"])


# ---------------------------------------------------------------- features


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "", "kind": "integer"},
        {"name": 3, "kind": "integer"},
        {"name": "a", "kind": "number"},
        {"name": "a", "kind": "integer", "lower": "0"},
        {"name": "a", "kind": "integer", "lower": 5, "upper": 1},
        {"name": "a", "kind": "integer", "lower": 0.5},
        {"name": "a", "kind": "integer", "step": 0.5},
        {"name": "a", "kind": "continuous", "step": 0},
        {"name": "a", "kind": "continuous", "step": 5, "lower": 0, "upper": 1},
        {"name": "a", "kind": "continuous", "upper": float("inf")},
        {"name": "a", "kind": "continuous", "lower": float("nan")},
        {"name": "a", "kind": "continuous", "categories": [1]},
        {"name": "a", "kind": "binary", "categories": [1, 2, 3]},
        {"name": "a", "kind": "ordinal"},
        {"name": "a", "kind": "ordinal", "categories": "abc"},
        {"name": "a", "kind": "ordinal", "categories": [1, 1.0]},
        {"name": "a", "kind": "ordinal", "categories": [1, float("nan")]},
        {"name": "a", "kind": "ordinal", "categories": [None, 1]},
        {"name": "a", "kind": "ordinal", "categories": [1], "lower": 0},
        {"name": "a", "kind": "ordinal", "categories": [1], "missing_codes": [1]},
        {"name": "a", "kind": "integer", "lower": 0, "upper": 9, "missing_codes": [5]},
        {"name": "a", "kind": "integer", "missing": "ignore"},
        {"name": "a", "kind": "integer", "action": "up"},
        {"name": "a", "kind": "categorical", "categories": ["x"], "action": "increase_only"},
    ],
)
def test_contradictory_features_are_refused_in_three_parts(wrong: dict[str, object]) -> None:
    with pytest.raises(SchemaError, match=three_parts) as caught:
        Feature(**wrong)
    assert "\n" not in str(caught.value)


def test_contradictory_schemas_are_refused() -> None:
    age = Feature("age", "integer")
    for make in (
        lambda: Schema([]),
        lambda: Schema([age, age]),
        lambda: Schema([age], target="age"),
        lambda: Schema([age], favourable="yes", unfavourable="yes"),
        lambda: Schema([age], unfavourable="yes"),
        lambda: Schema(["age"]),
    ):
        with pytest.raises(SchemaError, match=three_parts):
            make()


def test_values_are_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Feature("age", "integer").name = "x"
    assert hash(Schema([Feature("age", "integer")])) == hash(Schema([Feature("age", "integer")]))


def test_unconstrained() -> None:
    schema = Schema(
        [
            Feature("n", "integer", lower=0, step=5, action="immutable"),
            Feature("o", "ordinal", categories=[3, 1, 2], action="increase_only"),
            Feature("w", "ordinal", categories=["lo", "hi"], action="increase_only"),
            Feature("c", "categorical", categories=["x", "y"], action="immutable", missing="category"),
            Feature("b", "binary", categories=[False, True]),
        ],
        "t",
        "yes",
        "no",
    )
    free = schema.unconstrained()
    assert [f.kind for f in free.features] == ["continuous", "continuous", "ordinal", "categorical", "binary"]
    assert {f.action for f in free.features} == {"free"}
    assert free["n"].grid_step is None
    assert free["n"].lower == 0
    assert (free["o"].lower, free["o"].upper) == (1.0, 3.0)
    assert free["c"].missing == "category"
    assert (free.target, free.favourable) == ("t", "yes")
    assert free.unconstrained() == free


# ---------------------------------------------------------------- JSON


def types(schema: Schema) -> list[object]:
    values = [v for f in schema.features for v in (*f.categories, *f.missing_codes)]
    return [type(v) for v in (*values, schema.favourable, schema.unfavourable)]


@many
@given(
    tables(), st.sampled_from([(True, False), (1, 0), ("1", "0"), (1.0, 0.0), ("ja", "nein"), (None, None)])
)
def test_json_keeps_everything_and_every_type(table: Table, labels: tuple[object, object]) -> None:
    schema = Schema(table.schema.features, "t", *labels)
    again = Schema.from_json(schema.to_json())
    assert again == schema
    assert types(again) == types(schema)
    assert again.to_json() == schema.to_json()


def test_json_that_is_not_ours_is_refused() -> None:
    good = json.loads(Schema([Feature("age", "integer")]).to_json())
    feature = good["features"][0]
    for text in (
        "",
        "nonsense",
        "[]",
        "{}",
        json.dumps({**good, "version": 2}),
        json.dumps({**good, "version": True}),
        json.dumps({**good, "format": "other"}),
        json.dumps({**good, "extra": 1}),
        json.dumps({**good, "features": None}),
        json.dumps({**good, "features": [1]}),
        json.dumps({**good, "features": [{**feature, "colour": 1}]}),
        json.dumps({**good, "features": [{"name": "age"}]}),
        json.dumps({**good, "features": [{**feature, "kind": "number"}]}),
        json.dumps({**good, "favourable": [1]}),
    ):
        with pytest.raises(SchemaError, match=three_parts):
            Schema.from_json(text)


# ---------------------------------------------------------------- tables and labels


def test_frame_takes_any_order_and_any_table() -> None:
    schema = Schema([Feature("a", "integer"), Feature("b", "categorical", categories=["x", "y"])], "t")
    frame = pd.DataFrame({"t": [0, 1], "b": ["x", "y"], "a": [1, 2]}, index=[3, 3])
    table = schema.frame(frame)
    assert list(table.columns) == ["a", "b"]
    assert list(table.index) == [3, 3]
    for rows in ([[1, "x"], [2, "y"]], ((1, "x"), (2, "y")), np.array([[1, "x"], [2, "y"]], dtype=object)):
        again = schema.frame(rows)
        assert again["a"].dtype == np.int64
        assert again["b"].tolist() == ["x", "y"]


@pytest.mark.parametrize("rows", [5, "ab", [], [1, 2], [[1], [2]], [[1, 2], [3]], np.zeros((2, 2, 2)), None])
def test_what_is_no_table_is_refused(rows: object) -> None:
    schema = Schema([Feature("a", "integer"), Feature("b", "integer")])
    with pytest.raises(DataError, match=three_parts):
        schema.frame(rows)


def test_a_misspelt_column_is_recognised() -> None:
    schema = Schema([Feature("savings", "integer"), Feature("age", "integer")])
    with pytest.raises(DataError, match="was 'saving' meant as 'savings'"):
        schema.frame(pd.DataFrame({"saving": [1], "age": [2]}))


@pytest.mark.parametrize(
    ("labels", "y"),
    [
        (("yes", "no"), ["yes", "no", "yes"]),
        (("yes", "no"), pd.Series(["yes", "no", "yes"], dtype="category")),
        (("yes", "no"), np.array(["yes", "no", "yes"])),
        (("yes", "no"), pd.DataFrame({"y": ["yes", "no", "yes"]})),
        ((True, False), [True, False, True]),
        ((True, False), np.array([True, False, True])),
        ((1, 0), np.array([1.0, 0.0, 1.0])),
        ((1, 0), np.array([[1], [0], [1]], dtype=np.int8)),
        ((0, 1), pd.Series([0, 1, 0], index=[5, 5, 5])),
        ((1, 0), pd.array([1, 0, 1], dtype="Int64")),
        ((-1, 1), (-1, 1, -1)),
    ],
)
def test_labels_of_any_type(labels: tuple[object, object], y: object) -> None:
    schema = Schema([Feature("a", "integer")], "t", *labels)
    out = schema.labels(y)
    assert out.dtype == np.int64
    assert out.tolist() == [1, 0, 1]
    filled = Schema([Feature("a", "integer")]).with_labels(y, favourable=labels[0])
    assert filled.labels(y).tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (["yes", None, "no", None], "2 missing of 4"),
        ([np.nan, 1.0], "1 missing of 2"),
        (["yes", "yes"], "one class only: 'yes'"),
        (["yes", "no", "maybe"], "3 classes"),
        (["yes", "No"], "'No' (position 1)"),
        ([1, 0], "1 (position 0)"),
        ([], "none"),
        ("yes", "a str"),
        (7, "a int"),
        ([["yes"], ["no"]], "nested"),
        (np.zeros((2, 2)), "the shape (2, 2)"),
    ],
)
def test_bad_labels_are_refused_in_three_parts(y: object, says: str) -> None:
    schema = Schema([Feature("a", "integer")], "t", "yes", "no")
    with pytest.raises(TargetError, match=three_parts) as caught:
        schema.labels(y)
    assert says in str(caught.value)


def test_labels_need_both_names_but_not_always_both_classes() -> None:
    schema = Schema([Feature("a", "integer")], "t", "yes", "no")
    assert schema.labels(["no", "no"], require_both=False).tolist() == [0, 0]
    with pytest.raises(TargetError, match="with_labels"):
        Schema([Feature("a", "integer")]).labels(["yes", "no"])


def test_with_labels_keeps_what_the_schema_says() -> None:
    schema = Schema([Feature("a", "integer")], "t", favourable="no")
    filled = schema.with_labels(["yes", "no"])
    assert (filled.favourable, filled.unfavourable) == ("no", "yes")
    assert filled.with_labels(["no", "yes"]) == filled
    with pytest.raises(TargetError, match="'maybe'"):
        filled.with_labels(["no", "maybe"])
    with pytest.raises(TargetError, match="favourable label 'x'"):
        schema.with_labels(["yes", "no"], favourable="x")
    with pytest.raises(TargetError, match="one class"):
        schema.with_labels(["yes", "yes"])
    with pytest.raises(TargetError, match="text, numbers or booleans"):
        schema.with_labels(pd.to_datetime(["2020-01-01", "2021-01-01"]))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("age", "age"),
        ("applicantAge", "age"),
        ("Alter", "age"),
        ("age_of_car", None),
        ("mortgage", None),
        ("AverageMInFile", None),
        ("personal_status", "marital status"),
        ("foreign_worker", "nationality"),
        ("État civil", "marital status"),
        ("Geschlecht", "sex or gender"),
        ("DOB", "date of birth"),
        ("disability", "disability"),
        ("savings", None),
    ],
)
def test_names_that_look_like_a_protected_characteristic(name: str, kind: str | None) -> None:
    assert characteristic(name) == kind
    frame = pd.DataFrame({name: [1.5, 2.5], "y": [0, 1]})
    (feature,) = Schema.infer(frame, "y").features
    assert feature.action == ("free" if kind is None else "immutable")
    assert ("protected characteristic" in feature.note) == (kind is not None)
    (feature,) = Schema.infer(frame, "y", free=[name]).features
    assert feature.action == "free"


@pytest.mark.parametrize(
    ("feature", "said"),
    [
        (
            {"kind": "binary", "categories": ["a", "b"], "limit": 0.3},
            "expected limit as a share of a numeric value",
        ),
        ({"kind": "continuous", "limit": -1.0}, "expected limit as a share of a numeric value"),
        ({"kind": "integer", "display_step": 5.0}, "a display_step only for a continuous feature"),
        ({"kind": "continuous", "display_step": -1.0}, "expected a positive display_step"),
    ],
)
def test_a_feature_that_makes_no_sense_is_refused(feature: dict[str, object], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        Feature("a", **{"lower": 0, "upper": 9, **feature} if feature["kind"] != "binary" else feature)


def test_labels_are_values() -> None:
    features = [Feature("a", "continuous", lower=0, upper=1)]
    with pytest.raises(SchemaError, match="expected finite labels, got nan and 1"):
        Schema(features, "y", float("nan"), 1.0)
    assert str(Schema(features)).startswith("1 feature; target None")
    assert "is favourable" not in str(Schema(features, "y"))
    assert "'yes' is favourable, 'no' is not" in str(Schema(features, "y", "yes", "no"))


@pytest.mark.parametrize("package", ["pyarrow", "pandera"])
def test_installs_without_a_package_say_so(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    schema = Schema([Feature("a", "continuous", lower=0, upper=1)])
    extra = {"pyarrow": "arrow", "pandera": "pandera"}[package]
    with pytest.raises((DataError, SchemaError), match=rf"the package {package}.*veritracer\[{extra}\]"):
        schema.to_pandera() if package == "pandera" else arrow_table({"a": [1.0]})


def test_what_can_not_move_by_itself_is_refused() -> None:
    for wrong in ((1, 2), (0, float("inf"))):
        with pytest.raises(SchemaError, match="yearly from at most 0"):
            Feature("age", "integer", yearly=wrong)
    with pytest.raises(SchemaError, match="yearly from at most 0"):
        Feature("job", "categorical", categories=["a", "b"], yearly=(0, 1))
    frame = pd.DataFrame({"age": [30, 40, 50], "ok": ["no", "yes", "no"]})
    assert Schema.infer(frame, "ok", yearly={"age": (0, 1)})["age"].yearly == (0.0, 1.0)
    with pytest.raises(SchemaError, match="a feature column in yearly"):
        Schema.infer(frame, "ok", yearly={"aeg": (0, 1)})


@pytest.mark.parametrize(
    ("name", "largest", "yearly"),
    [
        *(
            ("age", 90, (0, 1)),
            ("Age (years)", 90, (0, 1)),
            ("ageInMonths", 900, (0, 12)),
            ("Alter", 80, (0, 1)),
        ),
        *(("account_age", 30, (0, 1)), ("vehicle_age_days", 9000, (0, 365))),
        *(("tenure", 10, (0, 1)), ("tenure", 72, (0, 12)), ("seniority_years", 40, (0, 1))),
        *(
            ("months_employed", 400, (0, 12)),
            ("years_at_company", 40, (0, 1)),
            ("yearsSincePromotion", 9, (0, 1)),
        ),
        *(("MSinceOldestTradeOpen", 800, (0, 12)), ("history_years", 30, (0, 1))),
        *(("credit_history_length", 30, (0, 1)), ("years_employed", 30, (0, 1))),
        *(("income", 9e4, None), ("months_until_due", 12, None), ("loan_term_months", 84, None)),
        *(("mortgage", 9e5, None), ("duration_in_months", 72, None), ("savings", 100, None)),
        *(("history", 5, None), ("job", 5, None), ("percentage", 100, None)),
    ],
)
def test_names_that_grow_by_themselves(name: str, largest: float, yearly: tuple[float, float] | None) -> None:
    assert yearly_growth(name, largest) == yearly


def test_growth_is_proposed_said_and_removable() -> None:
    frame = pd.DataFrame({"tenure": [3, 40, 72], "age": ["18-30", "30-50", "50+"], "ok": ["no", "yes", "no"]})
    found = Schema.infer(frame, "ok")
    assert found["tenure"].yearly == (0, 12)
    assert "grows by itself, by up to 12 a year" in found["tenure"].note
    assert found["age"].yearly is None  # categories have no amounts
    still = Schema.infer(frame, "ok", yearly={"tenure": None})
    assert still["tenure"].yearly is None
    assert "grows" not in still["tenure"].note
    assert Schema.infer(frame, "ok", yearly={"tenure": (0, 1)})["tenure"].yearly == (0, 1)


def test_the_schema_of_the_paper_moves_nothing() -> None:
    found = Schema(
        [
            Feature("age", "integer", yearly=(0, 1)),
            Feature("level", "ordinal", categories=[1, 2], yearly=(0, 1)),
        ]
    )
    assert all(feature.yearly is None for feature in found.unconstrained().features)
