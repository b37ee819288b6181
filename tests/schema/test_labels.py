"""Which label people want: stated by somebody, or a well-known pair; never guessed."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from torch import nn

import veritracer as vt
from training_cases import people
from veritracer.errors import SchemaError, TargetError
from veritracer.evaluation import fit_evaluated
from veritracer.schema import labels as schema_labels
from veritracer.schema.labels import label_doubt

QUICK = {"panel": None, "epochs": 2, "hidden": (8, 6), "generator_hidden": (8,), "batch_size": 64}

WELL_KNOWN = [
    ("approved", "denied"),
    ("approved", "declined"),
    ("accepted", "rejected"),
    ("granted", "refused"),
    ("good", "bad"),
    ("repaid", "defaulted"),
    ("fully paid", "charged off"),
    ("pass", "fail"),
]

OPEN = [
    ["no", "yes"],
    ["No", "Yes"],
    [0, 1],
    [1, 2],
    [0.0, 1.0],
    [False, True],
    ["0", "1"],
    ["true", "false"],
    ["y", "n"],
    [-1, 1],
    ["a", "b"],
    ["approved", "no"],
    ["approved", "rejected"],  # a half of two pairs is no pair
    ["good", "good enough"],
    ["bad", "not good"],
    ["passenger", "fail"],
    ["unpaid", "repaid"],
]


def table(labels: list[object], target: str = "y") -> pd.DataFrame:
    return pd.DataFrame({"x": [1, 2], target: labels})


@pytest.mark.parametrize("labels", OPEN, ids=str)
@pytest.mark.parametrize("target", ["approved", "deny", "default"])
def test_a_schema_leaves_open_what_nobody_stated(labels: list[object], target: str) -> None:
    schema = vt.Schema.infer(table(labels, target), target=target)
    assert (schema.favourable, schema.unfavourable) == (None, None)
    assert "not stated" in str(schema).splitlines()[0]
    assert vt.Schema.from_json(schema.to_json()) == schema
    with pytest.raises(TargetError) as caught:
        schema.with_labels(labels)
    for label in labels:  # the remedy shows both, and prefers none
        assert f"favourable={label!r}" in str(caught.value)


@pytest.mark.parametrize(("good", "bad"), WELL_KNOWN)
@pytest.mark.parametrize("write", [str, str.upper, str.title, lambda word: f" {word}\t"])
def test_well_known_pairs_in_both_orders_and_any_case(good: str, bad: str, write) -> None:
    for labels in ([write(good), write(bad)], [write(bad), write(good)]):
        schema = vt.Schema.infer(table(labels), target="y")
        assert (schema.favourable, schema.unfavourable) == (write(good), write(bad))
        assert "well-known pair" in schema.note


def test_no_other_pair_is_well_known() -> None:
    assert set(WELL_KNOWN) == schema_labels.WELL_KNOWN


def test_what_is_stated_counts_more_than_a_well_known_pair() -> None:
    schema = vt.Schema.infer(table(["denied", "approved"]), target="y", favourable="denied")
    assert (schema.favourable, schema.unfavourable) == ("denied", "approved")
    assert schema.note == ""


def mortgages(rows: int = 240) -> tuple[pd.DataFrame, np.ndarray]:
    """A table like HMDA's: whether an application was denied."""
    frame, y = people(rows)
    return frame, np.where(y == "yes", "no", "yes")


LEARNERS = {
    "fit": lambda X, y: vt.VeriTraCER(**QUICK).fit(X, y),
    "fit_many": lambda X, y: vt.VeriTraCER(**QUICK).fit_many(X, y, [0, 1]),
    "fit with a schema": lambda X, y: vt.VeriTraCER(vt.Schema.infer(X), **QUICK).fit(X, y),
    "fit with a target": lambda X, y: vt.VeriTraCER(
        vt.Schema.infer(X.assign(deny=y), target="deny"), **QUICK
    ).fit(X, y),
    "fit_evaluated": lambda X, y: fit_evaluated(vt.VeriTraCER(**QUICK), X, y),
    "panel": lambda X, y: vt.Panel(networks=1, boosted=1, held_out=0).fit(X, y),
    "panel with a schema": lambda X, y: vt.Panel(vt.Schema.infer(X), networks=1).fit(X, y),
}


@pytest.mark.parametrize("labels", [("yes", "no"), (1, 0), (2, 1)])
@pytest.mark.parametrize("learn", LEARNERS.values(), ids=LEARNERS)
def test_nothing_learns_without_knowing_which_label_is_favourable(learn, labels) -> None:
    X, denied = mortgages(60)
    y = np.where(denied == "yes", *labels)
    with pytest.raises(TargetError, match=r"^expected .*, got .* — ") as caught:
        learn(X, y)
    for label in labels:
        assert f"favourable={label!r}" in str(caught.value)


@pytest.mark.filterwarnings("ignore::veritracer.errors.VeriTracerWarning")
def test_advice_is_about_the_stated_label() -> None:
    X, y = mortgages()
    for favourable, other in (("no", "yes"), ("yes", "no")):
        params = {**QUICK, "epochs": 60, "method": "standard", "kappa": 0.01}
        model = vt.VeriTraCER(favourable=favourable, **params).fit(X, y)
        assert (model.schema_.favourable, model.schema_.unfavourable) == (favourable, other)
        recourse = model.explain(X.head(40), search_radius=False)
        assert set(recourse.decision[~recourse.favourable]) <= {other}
        shown = model.predict(recourse.frame[recourse.valid & ~recourse.favourable])
        assert len(shown) > 0
        assert set(shown) == {favourable}


@pytest.mark.parametrize("labels", [("no", "yes"), (0, 1), (-1.0, 1.0), (False, True)])
def test_positive_is_the_second_class(labels) -> None:
    X, y = people(60)
    y = np.where(y == "yes", labels[1], labels[0])
    model = vt.VeriTraCER(favourable=vt.POSITIVE, **QUICK).fit(X, y)
    assert model.schema_.favourable == model.classes_[1] == labels[1]
    assert model.favourable is vt.POSITIVE


def test_a_well_known_pair_needs_no_statement() -> None:
    X, denied = mortgages(60)
    y = np.where(denied == "yes", "Denied", "Approved")
    assert vt.VeriTraCER(**QUICK).fit(X, y).schema_.favourable == "Approved"
    assert vt.VeriTraCER(favourable="Denied", **QUICK).fit(X, y).schema_.favourable == "Denied"


def test_schema_and_favourable_agree_or_are_refused() -> None:
    X, y = mortgages(60)
    schema = vt.Schema.infer(X).with_labels(y, favourable="no")
    assert vt.VeriTraCER(schema, favourable="no", **QUICK).fit(X, y).schema_ == schema
    for other in ("yes", vt.POSITIVE):
        with pytest.raises(TargetError, match=r"one favourable label, got 'yes', and 'no' in the schema — "):
            vt.VeriTraCER(schema, favourable=other, **QUICK).fit(X, y)
    with pytest.raises(TargetError, match="the favourable label 'maybe' among the labels"):
        vt.VeriTraCER(favourable="maybe", **QUICK).fit(X, y)


def test_positive_survives_whatever_scikit_learn_does(tmp_path: Path) -> None:
    assert vt.POSITIVE is copy.copy(vt.POSITIVE) is copy.deepcopy(vt.POSITIVE)
    assert pickle.loads(pickle.dumps(vt.POSITIVE)) is vt.POSITIVE
    assert repr(vt.POSITIVE) == str(vt.POSITIVE) == "vt.POSITIVE"
    X, y = people(60)
    model = vt.VeriTraCER(favourable=vt.POSITIVE, **QUICK)
    assert "vt.POSITIVE" in repr(model)
    assert clone(model).get_params()["favourable"] is vt.POSITIVE
    model.fit(X, y).save(tmp_path / "model")
    assert vt.load(tmp_path / "model").favourable is vt.POSITIVE
    assert pickle.loads(pickle.dumps(model)).favourable is vt.POSITIVE


@pytest.mark.parametrize("label", ["yes", "positive", "POSITIVE"])
def test_a_label_is_saved_as_a_label(tmp_path: Path, label: str) -> None:
    X, y = people(60)
    model = vt.VeriTraCER(favourable=label, **QUICK).fit(X, np.where(y == "yes", label, "no"))
    model.save(tmp_path / "model")
    assert vt.load(tmp_path / "model").favourable == label


def test_a_label_of_numpy_is_stored_as_it_is_and_saved(tmp_path: Path) -> None:
    X, y = people(60)
    label = np.int64(1)
    model = vt.VeriTraCER(favourable=label, **QUICK)
    assert model.favourable is label
    model.fit(X, (y == "yes").astype(int)).save(tmp_path / "model")
    assert vt.load(tmp_path / "model").favourable == 1


def test_recourse_knows_which_label_is_favourable_or_asks() -> None:
    X, y = mortgages(60)
    table = X.assign(deny=y)
    unstated = vt.Schema.infer(table, target="deny")
    encoding = vt.Encoding.fit(unstated, X)
    x = encoding.encode(X).numpy()
    module = nn.Linear(encoding.dim, 1).double()
    for model in (module, LogisticRegression().fit(x, y), LogisticRegression().fit(x, y == "yes")):
        with pytest.raises(TargetError, match=r"^expected .*favourable.*, got .* — "):
            vt.Recourse(model, unstated, encoding)
    stated = vt.Schema.infer(table, target="deny", favourable="no")
    linear = LogisticRegression().fit(x, y)
    found = vt.Recourse(linear, stated, encoding, rows=X, labels=y).explain(X)
    assert set(found.decision) <= {"yes", "no"}
    assert (found.favourable == (linear.predict(x) == "no")).all()
    with pytest.raises(TargetError, match="one favourable label"):
        vt.Recourse(linear, stated, encoding, favourable="yes")
    turned = vt.Schema.infer(table, target="deny", favourable="yes")
    with pytest.raises(TargetError, match="one favourable label, got 'yes', and 'no' in the schema"):
        vt.Recourse(module, turned, vt.Encoding.fit(stated, X))
    positive = vt.Recourse(LogisticRegression().fit(x, y == "no"), stated, encoding, favourable=vt.POSITIVE)
    assert (positive.explain(X).favourable == found.favourable).all()


def test_a_schema_without_a_target_needs_a_class_for_zero_and_one() -> None:
    X, y = mortgages(60)
    schema = vt.Schema.infer(X)
    encoding = vt.Encoding.fit(schema, X)
    linear = LogisticRegression().fit(encoding.encode(X).numpy(), (y == "yes").astype(int))
    with pytest.raises(TargetError, match="classes that name the favourable one"):
        vt.Recourse(linear, schema, encoding)
    assert len(vt.Recourse(linear, schema, encoding, favourable=0).explain(X.head(2))) == 2


@pytest.mark.parametrize("name", ["breast_cancer", "loans"])
def test_bundled_tables_state_their_favourable_label(name: str) -> None:
    schema = vt.datasets.load(name).schema
    assert schema.favourable is not None
    assert schema.note == ""


def test_a_schema_is_no_place_for_positive() -> None:
    with pytest.raises(SchemaError):
        vt.Schema.infer(table([0, 1]), target="y", favourable=vt.POSITIVE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "label", "doubtful"),
    [
        ("deny", "yes", True),
        ("loan_default", 1, True),
        ("SeriousDelinquency", "1", False),  # words are told apart by what is no letter
        ("deny", "no", False),
        ("approved", "yes", False),
        ("lateral", "yes", False),
        ("Default", True, True),
        (None, "yes", False),
    ],
)
def test_yes_of_bad_news_is_doubted(target: str | None, label: object, doubtful: bool) -> None:
    assert (label_doubt(target, label) is not None) == doubtful
