"""The evaluation of a model on held-out rows, beside simple baselines."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import veritracer as vt
from veritracer.errors import TrainingError
from veritracer.evaluation import (
    BASE,
    BOOSTED,
    LINEAR,
    THIS,
    Evaluation,
    evaluate,
    fit_evaluated,
    held_out,
)
from veritracer.models.network import rate_threshold

ROWS = 240


def people(noise: float, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Rows whose label depends on two of three columns, more or less."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.uniform(0, 1, (ROWS, 3)).round(3), columns=["income", "debt", "other"])
    score = X["income"] - X["debt"] + rng.normal(scale=noise, size=ROWS)
    return X, pd.Series(np.where(score > 0, "yes", "no"))


def model(**params: object) -> vt.VeriTraCER:
    """The smallest thing that learns."""
    small = {"epochs": 20, "hidden": (8,), "learning_rate": 0.03, "batch_size": 32, "keep_rows": ROWS}
    return vt.VeriTraCER(favourable="yes", method="standard", panel=None, **{**small, **params})


@pytest.fixture(scope="module")
def learned() -> tuple[vt.VeriTraCER, Evaluation]:
    kept, found = fit_evaluated(model(), *people(0.05))
    assert found is not None
    return kept, found


def test_it_is_judged_on_rows_that_it_has_not_seen(learned: tuple[vt.VeriTraCER, Evaluation]) -> None:
    kept, found = learned
    assert (found.rows, found.trained) == (48, 192)
    assert list(found.scores) == [THIS, BASE, LINEAR, BOOSTED]
    own, base = found.scores[THIS], found.scores[BASE]
    assert own.auc is not None
    assert base.auc is None
    for each in (own.accuracy, own.auc, own.log_loss, own.brier):
        assert each.low <= each.value <= each.high
    assert own.auc.value > 0.9
    assert own.log_loss.value < base.log_loss.value
    assert found.explained > 0
    assert len(kept.neighbours_) > found.trained  # the model that is kept has seen more
    assert found.to_plain()["format"] == "veritracer-evaluation"


def test_a_model_that_learned_nothing_is_called_that() -> None:
    _, found = fit_evaluated(model(epochs=1, learning_rate=1e-6), *people(0.05))
    assert found is not None
    said = " ".join(found.warnings)
    assert "one decision for everybody" in said
    assert "worse than logistic regression" in said


def test_overfitting_is_called_that() -> None:
    X, y = people(noise=2.0)
    _, found = fit_evaluated(model(hidden=(64, 64), epochs=60, validation_fraction=0.0), X, y)
    assert found is not None
    assert any(sentence.startswith("The model overfits") for sentence in found.warnings), found


def test_nobody_can_change_anything() -> None:
    X, y = people(0.05)
    schema = vt.Schema.infer(X, immutable=list(X.columns))
    _, found = fit_evaluated(model(schema=schema), X, y)
    assert found is not None
    assert found.valid == 0
    assert any("have a valid counterfactual" in sentence for sentence in found.warnings)


def test_small_tables_hold_nothing_out() -> None:
    X, y = people(0.05)
    kept, found = fit_evaluated(model(epochs=1), X.head(30), y.head(30))
    assert found is None
    assert kept.predict(X.head(3)).shape == (3,)
    labels = np.arange(200) % 2
    held = held_out(labels, 0.2, 0)
    assert (len(held), labels[held].mean()) == (40, 0.5)
    assert len(held_out(np.arange(200) < 3, 0.2, 0)) == 0


def test_an_approval_rate_is_met_and_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    X, y = people(0.3)
    fitted = model(approval_rate=0.25, class_weight="balanced").fit(X, y)
    assert (fitted.predict(X) == "yes").mean() == pytest.approx(0.25, abs=1 / ROWS)
    fitted.save(tmp_path / "m")
    again = vt.load(tmp_path / "m")
    assert again.threshold_ == fitted.threshold_ != 0.5
    assert (again.predict_proba(X) == fitted.predict_proba(X)).all()
    assert ((again.predict_proba(X)[:, 1] > again.threshold_) == (again.predict(X) == "yes")).all()
    recourse = again.explain(X.head(20))
    assert (recourse.decision == again.predict(X.head(20))).all()
    assert recourse.probability == pytest.approx(again.predict_proba(X.head(20))[:, 1])
    labels = fitted.schema_.labels(y)
    found = evaluate(fitted, X, labels, np.arange(0, ROWS, 2))
    assert abs(found.scores[LINEAR].accepted - 0.25) < 0.02


@pytest.mark.parametrize("rate", [0.0, 1.0, -1.0, 30.0])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(TrainingError, match="between 0 and 1"):
        rate_threshold(torch.zeros(4), rate)
