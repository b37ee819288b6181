"""A panel: what it is made of, whom it listens to, and that its members say what they were fitted to say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

import veritracer as vt
from veritracer.training import Panel
from veritracer.training.data import LabelledRows
from veritracer.training.panel import Ensemble
from veritracer.training.panel_members import BoostedTrees, Ranks


def table(n: int = 400, seed: int = 0) -> tuple[vt.Schema, pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"a": rng.random(n), "b": rng.random(n), "c": rng.exponential(0.1, n).clip(max=1)})
    y = np.where(X.a + X.b + rng.normal(0, 0.1, n) > 1, "yes", "no")
    schema = vt.Schema([vt.Feature(name, "continuous", lower=0, upper=1) for name in X], "y", "yes", "no")
    return schema, X, y


@pytest.fixture(scope="module")
def fitted() -> tuple[Panel, pd.DataFrame, np.ndarray]:
    schema, X, y = table()
    return Panel(schema, networks=4, boosted=2, held_out=2).fit(X, y), X, y


def test_it_says_what_it_is_made_of(fitted) -> None:
    panel, X, _ = fitted
    roles = [(m.kind, m.role) for m in panel.members]
    assert roles.count(("network", "teacher")) == 4
    assert roles.count(("boosted trees", "teacher")) == 2
    assert roles.count(("network", "held out")) == roles.count(("boosted trees", "held out")) == 2
    assert all(0 < m.rows < len(X) and 0 < m.log_loss < 1 for m in panel.members)


def test_its_vote_is_accurate_and_in_the_order_of_the_labels(fitted) -> None:
    panel = fitted[0]
    _, fresh, truth = table(seed=1)
    probability = panel.predict_proba(fresh)
    assert probability.shape == (len(fresh), 2)
    assert np.allclose(probability.sum(1), 1)
    assert list(panel.classes_) == ["no", "yes"]
    assert roc_auc_score(truth == "yes", probability[:, 1]) > 0.93
    assert (panel.predict(fresh) == truth).mean() > 0.85


def test_both_kinds_have_half_of_the_vote(fitted) -> None:
    panel, X, _ = fitted
    x = panel.encoding_.encode(X)
    networks, trees = panel.opinions(x)
    assert torch.allclose(panel.vote(x), (networks + trees).detach() / 2)


def test_trees_say_what_scikit_learn_says() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((500, 5)), rng.random(500) > 0.5
    models = [
        HistGradientBoostingClassifier(max_iter=7, max_depth=3, random_state=s).fit(x, y) for s in (0, 1)
    ]
    rows = rng.random((50, 5))
    found = BoostedTrees.of(models).logits(torch.from_numpy(rows))
    assert np.allclose(found.numpy(), [m.decision_function(rows) for m in models])


def test_ranks_spread_a_skewed_column() -> None:
    x = torch.rand(1000, 1, generator=torch.Generator().manual_seed(0)).double() ** 6
    ranks = Ranks.of(x)(x)
    assert abs(float(ranks.median()) - 0.5) < 0.02
    assert bool((ranks[x.squeeze().argsort()].diff(dim=0) >= 0).all())


def test_rows_of_weight_zero_are_seen_by_nobody() -> None:
    schema, X, y = table(300)
    encoding = vt.Encoding.fit(schema, X)
    x, labels = encoding.encode(X).float(), torch.as_tensor(schema.labels(y), dtype=torch.float32)
    weight = torch.ones(300)
    weight[:100] = 0
    wrong = labels.clone()
    wrong[:100] = 1 - wrong[:100]
    panels = [
        Panel(networks=2, boosted=2, held_out=0).fit_encoded(encoding, LabelledRows(x, t, weight), seed=3)
        for t in (labels, wrong)
    ]
    assert torch.equal(panels[0].vote(x), panels[1].vote(x))
    assert all(m.rows <= 200 for m in panels[0].members)


def test_a_rows_own_members_have_no_say_in_its_soft_label() -> None:
    schema, X, _ = table(300)
    encoding = vt.Encoding.fit(schema, X)
    noise = torch.from_numpy(np.random.default_rng(99).random(300) > 0.5).float()
    rows = LabelledRows(encoding.encode(X).float(), noise, torch.ones(300))
    panel = Panel(networks=4, boosted=3, held_out=0).fit_encoded(encoding, rows, seed=0)
    seen = roc_auc_score(noise, panel.vote(rows.x))
    assert roc_auc_score(noise, panel.soft_labels_) < 0.62 < seen


def test_the_same_seed_gives_the_same_panel() -> None:
    schema, X, y = table(100)
    first, second, other = (
        Panel(schema, networks=2, boosted=2, held_out=1, random_state=s).fit(X, y) for s in (5, 5, 6)
    )
    assert np.array_equal(first.predict_proba(X), second.predict_proba(X))
    assert not np.array_equal(first.predict_proba(X), other.predict_proba(X))


def test_agreement_is_the_share_of_held_out_members(fitted) -> None:
    panel, X, _ = fitted
    x = panel.encoding_.encode(X)
    wanted = torch.ones(len(x), dtype=torch.bool)
    votes = torch.cat(panel.held_out_.logits(x)) > 0
    assert torch.allclose(panel.agreement(x, wanted), votes.double().mean(0))
    assert torch.allclose(panel.agreement(x, ~wanted), 1 - votes.double().mean(0))


def test_nobody_held_out_is_no_agreement() -> None:
    schema, X, y = table(200)
    panel = Panel(schema, networks=2, boosted=2, held_out=0).fit(X, y)
    x = panel.encoding_.encode(X)
    assert bool(panel.agreement(x, torch.ones(len(x), dtype=torch.bool)).isnan().all())


def test_it_is_an_estimator() -> None:
    asked = Panel(networks=5, strength=0.5)
    assert clone(asked).get_params() == asked.get_params()


@pytest.mark.parametrize(
    ("name", "value"), [("networks", 0), ("boosted", 1.5), ("held_out", -1), ("strength", -1)]
)
def test_what_makes_no_sense_is_refused(name: str, value: float) -> None:
    schema, X, y = table(100)
    with pytest.raises(vt.errors.TrainingError, match=name):
        Panel(schema, **{name: value}).fit(X, y)


def test_tensors_and_content_are_the_whole_panel(fitted) -> None:
    panel, X, _ = fitted
    again = Panel.restored(panel.params, panel.members, panel.tensors(), panel.encoding_)
    assert np.array_equal(again.predict_proba(X), panel.predict_proba(X))
    assert again.members == panel.members


@pytest.mark.parametrize(
    "name", ["teachers.networks.theta.0", "teachers.trees.feature", "held_out.trees.value"]
)
def test_tensors_that_do_not_fit_are_refused(fitted, name: str) -> None:
    panel, _, _ = fitted
    tensors = panel.tensors()
    tensors[name] = tensors[name] + 1000 if name.endswith("feature") else tensors[name][:, :-1]
    with pytest.raises(ValueError, match="members"):
        Ensemble.restored(name.partition(".")[0], tensors, panel.encoding_.dim)
