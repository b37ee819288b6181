"""Names, signatures and attributes that users and external checks rely on.

Parameters may be added; removing or renaming one, or changing a default that the contract states, fails here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from torch import nn

import veritracer as vt

ANY = object()
"""A parameter whose default the contract does not state."""


def check_parameters(function: Callable[..., Any], stated: dict[str, Any]) -> None:
    """Check that the parameters exist, can be passed by name, and have the stated defaults."""
    found = inspect.signature(function).parameters
    missing = [name for name in stated if name not in found]
    assert not missing, f"{function.__qualname__} has no {', '.join(missing)}"
    for name, default in stated.items():
        parameter = found[name]
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY), name
        if default is not ANY:
            assert parameter.default == default, f"{name}={parameter.default!r}, stated {default!r}"


def positional(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that can be passed by position."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"]


# ---------------------------------------------------------------- the package

PUBLIC = (
    "Calibration",
    "Certificate",
    "Certificates",
    "Client",
    "Counterfactuals",
    "Encoding",
    "Feature",
    "Ledger",
    "Membership",
    "Panel",
    "ParamSet",
    "ReasonCodes",
    "Recourse",
    "Schema",
    "VeriTraCER",
    "__version__",
    "audit",
    "calibrate",
    "certified_radius",
    "certify",
    "datasets",
    "errors",
    "load",
)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_package_exports(name: str) -> None:
    assert name in vt.__all__
    assert getattr(vt, name) is not None


def test_the_mlflow_flavour_stays_where_it_is() -> None:
    mlflow = pytest.importorskip("veritracer.mlflow", reason="needs the extra 'mlflow'", exc_type=ImportError)
    assert positional(mlflow.log_model)[0] == "model"
    assert positional(mlflow.load_model) == ["uri"]


# ---------------------------------------------------------------- signatures

SCHEMA_OPTIONS = (
    "immutable",
    "increase_only",
    "decrease_only",
    "free",
    "integer",
    "continuous",
    "categorical",
    "binary",
    "ordinal",
    "ranges",
    "steps",
    "missing",
    "missing_codes",
    "number_formats",
    "ignore",
    "yearly",
)
EXPLAIN_OPTIONS: dict[str, Any] = {
    "kappa": None,
    "max_changes": None,
    "cost": None,
    "only_unfavourable": True,
    "plausibility": None,
    "agreement": None,
    "plausible": False,
    "limits": None,
    "extremes": False,
    "n": 1,
    "time_budget": None,
    "overshoot": 0.0,
    "drift": None,
    "refine": True,
    "search_radius": True,
}
CONSTRUCTOR: dict[str, Any] = {
    "schema": None,
    "recipe": None,
    "method": "veritracer",
    "bound": "simul-crown",
    "kappa": None,
    "norm": "linf",
    "radius": None,
    "panel": "default",
    "threshold": 0.5,
    "approval_rate": None,
    "random_state": ANY,
    "verbose": 0,
    **dict.fromkeys(
        (
            "generator",
            "hidden",
            "generator_hidden",
            "slope",
            "weight_accuracy",
            "weight_robust",
            "weight_proximity",
            "weight_validity",
            "initialisation",
            "class_weight",
            "learning_rate",
            "batch_size",
            "epochs",
            "warmup",
            "ramp",
            "validation_fraction",
            "patience",
            "clip_norm",
            "keep_rows",
            "device",
        ),
        ANY,
    ),
}
RECOURSE: dict[str, Any] = {
    "rows": None,
    "labels": None,
    "panel": None,
    "kappa": 0.2,
    "norm": "linf",
    "radius": "mean-abs",
    "propose": None,
    "favourable": None,
}
SIGNATURES: list[tuple[Callable[..., Any], list[str], dict[str, Any]]] = [
    (vt.VeriTraCER, ["schema"], CONSTRUCTOR),
    (vt.VeriTraCER.fit, ["X", "y"], {"sample_weight": None}),
    (vt.VeriTraCER.fit_many, ["X", "y", "seeds"], {}),
    (vt.VeriTraCER.predict, ["X"], {}),
    (vt.VeriTraCER.predict_proba, ["X"], {}),
    (vt.VeriTraCER.score, ["X", "y"], {}),
    (vt.VeriTraCER.propose, ["X"], {}),
    (vt.VeriTraCER.explain, ["X"], EXPLAIN_OPTIONS),
    (vt.VeriTraCER.certify, ["X", "X_cf"], {"kappa": None}),
    (vt.VeriTraCER.save, ["folder"], {}),
    (vt.VeriTraCER.issue, ["X"], {"ids": ANY, "ledger": ANY, "expires": ANY}),
    (vt.VeriTraCER.update, ["X", "y"], {"keep": None}),
    (vt.Recourse, ["module", "schema", "encoding"], RECOURSE),
    (vt.Recourse.explain, ["X"], EXPLAIN_OPTIONS),
    (
        vt.Schema.infer,
        ["frame", "target", "favourable"],
        {"target": None, "favourable": None, **dict.fromkeys(SCHEMA_OPTIONS, ANY)},
    ),
    (vt.Schema.unconstrained, [], {}),
    (
        vt.Feature,
        ["name", "kind"],
        {"lower": None, "upper": None, "step": None, "categories": ANY, "missing": ANY, "action": "free"},
    ),
    (vt.Encoding.fit, ["schema", "frame"], {}),
    (vt.Encoding.encode, ["frame"], {}),
    (vt.Encoding.decode, ["encoded"], {}),
    (vt.Encoding.project, ["x_cf", "x"], {}),
    (
        vt.ParamSet.around,
        ["module", "kappa", "norm", "radius"],
        {"kappa": 0.2, "norm": "linf", "radius": "mean-abs"},
    ),
    (vt.ParamSet.contains, ["model"], {}),
    (vt.certify, ["module", "x", "x_cf", "param_set"], {}),
    (vt.certified_radius, ["module", "x", "x_cf", "param_set"], {}),
    (vt.load, ["folder"], {}),
    (vt.datasets.load, ["name"], {"data_dir": None, "variant": "default"}),
    (
        vt.datasets.loans,
        ["rows"],
        {"year": 1, "drift": 1.0, "random_state": 0, "outcome": "approved", "do": None},
    ),
    (
        vt.datasets.loans_truth,
        ["frame", "origin", "outcome", "year", "drift"],
        {"origin": None, "outcome": "approved", "year": 1, "drift": 1.0},
    ),
    (vt.Client, ["url", "key"], {"key": None}),
    (vt.Client.explain, ["X"], {}),
    (vt.Client.issue, ["X"], {"ids": ANY}),
    (vt.audit, ["source", "model"], {"encoding": None, "threshold": None}),
    (vt.Ledger, ["place"], {"key": None}),
]


@pytest.mark.parametrize(
    ("function", "by_position", "by_name"),
    SIGNATURES,
    ids=[f"{f.__module__.removeprefix('veritracer.')}.{f.__qualname__}" for f, _, _ in SIGNATURES],
)
def test_signatures(function: Callable[..., Any], by_position: list[str], by_name: dict[str, Any]) -> None:
    assert positional(function)[: len(by_position)] == by_position
    check_parameters(function, by_name)


@pytest.mark.parametrize("parameter", ["schema", "kappa", "method", "bound", "panel", "threshold"])
def test_the_constructor_only_stores(parameter: str) -> None:
    value = object()
    model = vt.VeriTraCER(**{parameter: value})
    assert getattr(model, parameter) is value
    assert model.get_params(deep=False)[parameter] is value
    assert model.set_params(**{parameter: None}).get_params(deep=False)[parameter] is None


# ---------------------------------------------------------------- values


@pytest.fixture(scope="module")
def table() -> tuple[pd.DataFrame, pd.Series[Any], vt.Schema]:
    X = vt.datasets.loans(rows=300).X[["age", "savings", "card_use", "education"]]
    y = pd.Series(np.where(X["card_use"] < X["card_use"].median(), "yes", "no"), name="approved")
    frame = X.assign(approved=y)
    schema = vt.Schema.infer(
        frame,
        target="approved",
        favourable="yes",
        immutable=["age"],
        ordinal={"education": ["basic", "secondary", "vocational", "bachelor", "master"]},
        increase_only=["education"],
        integer=["card_use"],
        missing={"savings": "impute"},
    )
    return X, y, schema


@pytest.fixture(scope="module")
def model(table: tuple[pd.DataFrame, pd.Series[Any], vt.Schema]) -> vt.VeriTraCER:
    X, y, schema = table
    panel = vt.Panel(networks=1, boosted=1, held_out=1)
    quick = vt.VeriTraCER(schema=schema, hidden=(8,), panel=panel, kappa=0.05, epochs=30, random_state=0)
    return quick.fit(X, y)


def test_schema(table: tuple[pd.DataFrame, pd.Series[Any], vt.Schema]) -> None:
    schema = table[2]
    assert (schema.target, schema.favourable, schema.unfavourable) == ("approved", "yes", "no")
    assert schema["age"].action == "immutable"
    assert schema["education"].action == "increase_only"
    assert [feature.action for feature in schema.unconstrained().features] == ["free"] * 4
    assert list(schema.names) == ["age", "savings", "card_use", "education"]


def test_fitted_attributes(model: vt.VeriTraCER, table: tuple[pd.DataFrame, Any, vt.Schema]) -> None:
    X, y, _ = table
    layers = list(model.classifier_)
    assert type(model.classifier_) is nn.Sequential
    assert {type(layer) for layer in layers} <= {nn.Linear, nn.ReLU, nn.LeakyReLU}
    x = model.encoding_.encode(X)
    assert x.shape == (len(X), layers[0].in_features)
    assert layers[-1].out_features == 1
    favourable = model.classifier_(x)[:, 0].detach().numpy() > 0
    assert (model.predict(X) == np.where(favourable, "yes", "no")).all()
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.predict_proba(X).shape == (len(X), 2)
    assert 0 <= model.score(X, y) <= 1
    assert isinstance(model.panel_, vt.Panel)
    assert isinstance(model.schema_, vt.Schema)
    pd.testing.assert_frame_equal(model.encoding_.decode(x, original=X), X)
    assert torch.equal(model.encoding_.project(x, x), x)
    assert clone(model).get_params(deep=False).keys() == model.get_params(deep=False).keys()


def test_counterfactuals(model: vt.VeriTraCER, table: tuple[pd.DataFrame, Any, vt.Schema]) -> None:
    X = table[0]
    found = model.explain(X)
    assert isinstance(found, vt.Counterfactuals)
    assert list(found.frame.columns) == list(X.columns)
    assert found.frame.index.equals(X.index)
    assert (found.frame.dtypes == X.dtypes).all()
    assert set(found.status) <= {"certified", "valid", "none"}
    assert ((found.status == "certified") == found.certified).all()
    assert ((found.status == "none") == ~found.valid).all()
    assert found.valid.dtype == found.certified.dtype == bool
    assert found.radius.shape == found.agreement.shape == (len(X),)
    accepted = model.predict(X) == "yes"
    none = found.status == "none"
    assert none[accepted].all()
    assert {str(reason) for reason in found.reason[accepted]} == {"already favourable"}
    pd.testing.assert_frame_equal(found.frame[none], X[none])
    assert not found.valid[none].any()
    assert (found.radius[none] == 0).all()
    assert all(str(reason) for reason in found.reason[none])
    assert list(found.changes().columns) == ["row", "feature", "from", "to"]
    assert len(found.plausibility()) == len(X)
    certificates = model.certify(X, found.frame)
    assert isinstance(certificates, vt.Certificates)
    assert (certificates.certified[found.certified]).all()
    assert {"certified", "radius", "conditional", "method", "worst_logit", "kappa", "norm"} <= set(
        dir(certificates)
    )


def test_options_of_explain(model: vt.VeriTraCER, table: tuple[pd.DataFrame, Any, vt.Schema]) -> None:
    X = table[0]
    several = model.explain(X.head(40), n=2)
    assert several.frame.index.nlevels == 2
    both = model.explain(X.head(40), only_unfavourable=False)
    assert "already favourable" not in set(map(str, both.reason))
    assert len(model.explain(X.head(40), refine=False)) == 40
    demanding = model.explain(X.head(40), agreement=0.5, plausible=True)
    assert (demanding.agreement[demanding.valid] >= 0.5).all()


def test_arrays_are_tables_too() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = np.where(X.sum(1) > 0, "approved", "denied")
    schema = vt.Schema.infer(X).with_labels(y, favourable="approved")
    model = vt.VeriTraCER(schema=schema, method="standard", hidden=(4,), epochs=5).fit(X, y)
    assert model.predict(X).shape == (200,)
    assert len(model.explain(X[:5])) == 5


def test_certificates_of_any_module() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    for radius in ("mean-abs", "norm", 0.01):
        for norm in ("linf", "l2", "l1"):
            models = vt.ParamSet.around(module, kappa=0.2, norm=norm, radius=radius)
            assert models.contains(module)
            found = vt.certify(module, torch.zeros(1, 2), torch.ones(1, 2), models)
            assert len(found) == 1
            assert isinstance(found[0], vt.Certificate)


def test_datasets() -> None:
    data = vt.datasets.load("breast_cancer")
    assert {"X", "y", "schema", "split"} <= set(dir(data))
    assert len(data.split()) == 4
    loans = vt.datasets.loans(rows=20, outcome="repaid")
    truth = vt.datasets.loans_truth(loans.X, loans.X, outcome="repaid", year=1, drift=1.0)
    assert truth.shape == (20,)
    assert ((truth > 0) & (truth < 1)).all()
