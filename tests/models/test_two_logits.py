"""A model with two outputs, as the paper's recipe trains it, wherever the package takes a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import veritracer as vt
from training_cases import people
from veritracer.bounds.attack import attack
from veritracer.ledger import Ledger
from veritracer.ledger.verdicts import Verdict
from veritracer.models.network import sign_of

QUICK = {"kappa": 0.05, "hidden": (12, 6), "epochs": 25, "batch_size": 64, "generator_hidden": (12,)}


@pytest.fixture(scope="module")
def table() -> tuple[pd.DataFrame, np.ndarray]:
    return people(500)


@pytest.fixture(scope="module")
def model(table: tuple[pd.DataFrame, np.ndarray]) -> vt.VeriTraCER:
    return vt.VeriTraCER(favourable="yes", recipe="paper", **QUICK).fit(*table)


def test_the_decision_is_the_larger_output(model: vt.VeriTraCER, table) -> None:
    X, y = table
    assert [type(layer) for layer in model.classifier_] == [nn.Linear, nn.LeakyReLU] * 2 + [nn.Linear]
    outputs = model.classifier_(model.encoding_.encode(X)).detach()
    assert outputs.shape == (len(X), 2)
    assert (model.predict(X) == np.where(outputs.argmax(-1) == 1, "yes", "no")).all()
    np.testing.assert_allclose(model.decision_function(X), (outputs[:, 1] - outputs[:, 0]).numpy())
    assert model.predict_proba(X)[:, 1] == pytest.approx(torch.softmax(outputs, -1)[:, 1].numpy())
    assert model.score(X, y) > 0.8
    assert model.panel_ is None


def test_the_generator_draws_with_a_seed_and_answers_alike_without(model: vt.VeriTraCER, table) -> None:
    x = model.encoding_.encode(table[0])
    assert torch.equal(model.propose_encoded(x), model.propose_encoded(x))
    drawn = [model.propose_encoded(x, random_state=seed) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_no_attack_breaks_a_certificate(model: vt.VeriTraCER, table) -> None:
    X = table[0]
    x = model.encoding_.encode(X)
    x_cf = model.propose_encoded(x)
    certs = model.certify(X, model.encoding_.decode(x_cf, original=X))
    assert certs.certified.any()
    rows = torch.from_numpy(certs.certified)
    found = attack(model.param_set(), x[rows], x_cf[rows], sign_of(model.logits(x[rows])))
    assert (found.worst_logit < 0).all()


def test_both_rows_of_the_last_layer_move(model: vt.VeriTraCER, table) -> None:
    """The certificate covers a model whose two rows moved apart, each by the whole radius."""
    X = table[0]
    x = model.encoding_.encode(X)
    param_set = model.param_set()
    x_cf = model.propose_encoded(x)
    certs = model.certify(X, model.encoding_.decode(x_cf, original=X))
    inside = sign_of(model.logits(x))
    for direction in (1.0, -1.0):
        theta = list(param_set.center)
        shift = torch.tensor([[-1.0], [1.0]]).double() * direction
        theta[-2] = theta[-2] + shift * param_set.radii[-2]
        theta[-1] = theta[-1] + shift[:, 0] * param_set.radii[-1]
        assert param_set.contains(
            [t - 1e-9 * (t - c).sign() for t, c in zip(theta, param_set.center, strict=True)]
        )
        moved = param_set.network.logit(theta, x_cf) * inside
        keeps = param_set.network.logit(theta, x) * inside >= 0
        assert (moved[torch.from_numpy(certs.certified) & keeps] < 0).all()


def test_explain_save_issue_update_and_audit(model: vt.VeriTraCER, table, tmp_path: Path) -> None:
    X, y = table
    declined = X[model.predict(X) == "no"].head(12)
    found = model.explain(declined)
    assert found.certified.all()
    model.save(tmp_path / "model")
    back = vt.load(tmp_path / "model")
    pd.testing.assert_frame_equal(back.explain(declined).frame, found.frame)
    assert back.settings_ == model.settings_
    assert (back.recipe, back.kappa, back.hidden) == ("paper", 0.05, [12, 6])
    model.issue(declined, ids=[str(i) for i in declined.index], ledger=tmp_path / "promises.db")
    updated = model.update(X, y, keep=tmp_path / "promises.db", epochs=2, max_loss=None, compare=False)
    assert updated.classifier_[-1].out_features == 2
    with Ledger(tmp_path / "promises.db") as ledger:
        audit = vt.audit(ledger, updated)
    assert audit.groups[0].counts[Verdict.PROVED] == len(declined)


def test_training_goes_on_with_its_own_losses(model: vt.VeriTraCER, table) -> None:
    X, y = table
    stricter = np.where(X["lines"] >= 3, "no", y)
    later = model.continue_fit(X, stricter)
    assert len(later.history_) == 20
    assert later.score(X, stricter) > model.score(X, stricter)
    assert later.encoding_.digest == model.encoding_.digest


def test_an_approval_rate_moves_both_outputs(table) -> None:
    X, y = table
    quick = {**QUICK, "epochs": 3}
    model = vt.VeriTraCER(favourable="yes", recipe="paper", approval_rate=0.3, **quick).fit(X, y)
    assert (model.predict(X) == "yes").mean() == pytest.approx(0.3, abs=0.01)


def test_a_recipe_s_mapping_is_saved(table, tmp_path: Path) -> None:
    recipe = {"recipe": "paper", "regenerate": 1, "hidden": [6, 4]}
    quick = {"epochs": 2, "batch_size": 64}
    model = vt.VeriTraCER(favourable="yes", recipe=recipe, **quick).fit(*table)
    model.save(tmp_path / "model")
    assert vt.load(tmp_path / "model").settings_ == model.settings_
