"""Updates that keep what was promised: inside of every set, by proof, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from promise_cases import changed, issued, moved, with_bias
from torch import nn

import veritracer as vt
from memory_ledger import InMemory, in_memory
from recourse_tables import applicants
from veritracer.app.cli.update import print_update
from veritracer.errors import PromiseError, TrainingError
from veritracer.ledger.auditing import audit
from veritracer.ledger.constraints import SetConstraints, split, train_inside
from veritracer.ledger.promises import is_wide
from veritracer.ledger.update import (
    UpdateReport,
    UpdateSettings,
    UpdateVariant,
    Variant,
    _at_border,
    constrained_update,
)
from veritracer.ledger.verdicts import AuditedModel
from veritracer.models.intersection import Intersection

FAST = {"epochs": 30, "learning_rate": 1e-2, "compare": False}


def turned(n: int = 500) -> tuple[pd.DataFrame, np.ndarray]:
    """New rows whose labels say the opposite of what the model learned: the strongest drift there is."""
    frame, y = applicants(n, seed=5)
    return frame, np.where(y == "yes", "no", "yes")


def unconditional(promises: InMemory) -> InMemory:
    return changed(promises, conditional=False)


def test_a_free_update_breaks_promises_and_a_kept_one_keeps_all_by_proof() -> None:
    model, promises, _ = issued()
    promises = unconditional(promises)
    before = {name: t.clone() for name, t in model.classifier_.state_dict().items()}
    kept = model.update(*turned(), keep=promises, **FAST)
    free = model.update(*turned(), **FAST)
    assert all(torch.equal(before[k], t) for k, t in model.classifier_.state_dict().items())
    told, lost = audit(promises, kept), audit(promises, free, recourse=0)
    assert told.counts["kept by proof"] == told.live > 20
    assert lost.counts["broken"] > 0
    assert kept.update_.ok
    assert kept.update_.ways["kept"].counts == told.counts
    assert kept.update_.ways["free"].counts == lost.counts
    assert kept.update_.ways["free"].accuracy == free.update_.ways["free"].accuracy
    assert kept.update_.cost > 0
    assert kept.encoding_ is model.encoding_
    assert not hasattr(model, "update_")


def test_the_updated_model_is_a_model_like_any_other(tmp_path: Path) -> None:
    model, promises, _ = issued()
    frame, y = applicants(300, seed=6)
    kept = model.update(frame, y, keep=unconditional(promises), **FAST)
    kept.save(tmp_path / "kept")
    again = vt.load(tmp_path / "kept")
    assert np.array_equal(again.predict(frame), kept.predict(frame))
    assert kept.explain(frame[:5]).model_digest != model.explain(frame[:5]).model_digest
    assert kept.update_.ways["kept"].accuracy >= kept.update_.ways["today"].accuracy - 0.02
    assert json.loads(kept.update_.to_json())["ok"] is True


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
def test_any_torch_model_in_any_norm(norm: str, precision: torch.dtype) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.01), nn.Linear(8, 1)).to(precision)
    x = torch.rand(200, 4, dtype=torch.float64)
    y = (x.sum(-1) < 2).double()
    first = vt.ParamSet.around(module, 0.2, norm, "norm" if norm != "linf" else "mean-abs")
    second = vt.ParamSet.around(moved(module, 0.05), 0.2, norm, "norm" if norm != "linf" else "mean-abs")
    common = Intersection.of([first, second], first.center)
    tuned = train_inside(module, x, y, common, epochs=5, learning_rate=0.05)
    assert tuned[0].weight.dtype == precision
    assert first.contains(tuned)
    assert second.contains(tuned)
    assert max(d / float(r) for d, r in zip(first.distances(tuned), first.radii, strict=True)) > 0.5
    assert not first.contains(train_inside(module, x, y, epochs=5, learning_rate=0.05))


def test_promises_of_successive_models_are_all_kept() -> None:
    model, first, _ = issued()
    first = unconditional(first)
    frame, y = applicants(300, seed=8)
    second = model.update(frame, y, keep=first, **FAST)
    found = second.explain(applicants(60, seed=9)[0])
    both = first + unconditional(in_memory(found, second.classifier_, first=1000))
    third = second.update(*turned(), keep=both, **FAST)
    told = audit(both, third)
    assert len(told.groups) >= 2
    assert told.counts["kept by proof"] == told.live
    assert {limit.requirement.model for limit in third.update_.constraints} == set(both.models())
    assert all(0 < limit.used <= 1 for limit in third.update_.constraints)


def test_a_model_that_left_the_sets_is_brought_back() -> None:
    model, promises, _ = issued()
    promises = unconditional(promises)
    away = AuditedModel.of(moved(model.classifier_, 0.5), model.encoding_)
    assert audit(promises, away).counts["kept by proof"] == 0
    x = model.encoding_.encode(applicants(200, seed=3)[0])
    y = torch.from_numpy((applicants(200, seed=3)[1] == "yes").astype(float))
    module, report = constrained_update(away, x, y, promises, UpdateSettings(epochs=2, compare=False))
    assert report.ways["today"].counts["kept by proof"] == 0
    assert (
        audit(promises, AuditedModel.of(module, away.encoding)).counts["kept by proof"]
        == promises.counts().live
    )


def test_promises_that_exclude_each_other_are_named() -> None:
    model, first, found = issued()
    away = with_bias(model.classifier_, 5.0)  # far beyond kappa of the last bias
    both = first + in_memory(found, away, first=1000)
    digests = [issuing.digest[:12] for issuing in both.issuing]
    with pytest.raises(PromiseError, match="exclude each other") as caught:
        model.update(*turned(), keep=both, **FAST)
    assert all(digest in str(caught.value) for digest in digests)
    most = max(limit.count for limit in first.requirements())
    assert f"{most:,} promises of {digests[0]} at kappa = " in str(caught.value)


@pytest.mark.long
def test_a_limit_that_binds_is_reported_with_what_its_release_would_gain() -> None:
    model, promises, _ = issued()
    kept = model.update(*turned(), keep=unconditional(promises), **{**FAST, "compare": True})
    report = kept.update_
    (limit,) = report.constraints
    assert limit.used == pytest.approx(1, abs=1e-4)
    assert limit.at_border > 0.1
    assert limit.gain == pytest.approx(limit.released.accuracy - report.ways["kept"].accuracy)
    assert limit.gain > 0
    assert limit.released.counts["broken"] > 0
    assert set(report.ways) == {"today", "kept", "free", "from scratch"}
    assert report.ways["from scratch"].accuracy > 0.7
    said = str(report)
    for words in (
        "from scratch: accuracy",
        "releasing them gains +",
        f"{limit.requirement.count} promises of",
    ):
        assert words in said


def test_a_classifier_alone_is_compared_with_its_own_layers_from_scratch() -> None:
    """Whoever has no training at hand: the same layers at random weights, at five times the rate."""
    model, _, _ = issued()
    frame, y = turned(300)
    labels = torch.from_numpy((y == "yes").astype(float))
    settings = UpdateSettings(epochs=30, learning_rate=1e-2)
    _, report = constrained_update(
        AuditedModel.of(model), model.encoding_.encode(frame), labels, None, settings
    )
    assert set(report.ways) == {"today", "free", "from scratch"}
    assert report.ways["today"].accuracy < 0.3  # all labels were turned
    assert report.ways["from scratch"].accuracy > 0.7
    assert all(way.counts is None and way.kept is None for way in report.ways.values())


@pytest.mark.parametrize(("norm", "share"), [("linf", 1 / 12), ("l2", 12 / 12)])
def test_weights_are_held_back_one_by_one_in_a_box_and_together_in_a_ball(norm: str, share: float) -> None:
    """One of 12 weights goes to the border; biases cannot move at all, and do not count."""
    center = nn.Sequential(nn.Linear(12, 1)).double()
    param_set = vt.ParamSet.around(center, radius=[0.5, 0.0], norm=norm)
    module = nn.Sequential(nn.Linear(12, 1)).double()
    module.load_state_dict(center.state_dict())
    assert _at_border(param_set, module) == 0
    with torch.no_grad():
        module[0].weight[0, 3] += 0.5
    assert _at_border(param_set, module) == pytest.approx(share)


def test_where_no_acceptable_model_is_inside_it_says_so_with_numbers() -> None:
    model, promises, _ = issued()
    with pytest.raises(PromiseError, match="costs at most 0") as caught:
        model.update(*turned(), keep=unconditional(promises), max_loss=0.01, **FAST)
    report = caught.value.report
    assert not report.ok
    assert report.cost > 0.01
    assert f"{report.cost:.4f}" in str(caught.value)


def test_promises_without_a_proof_are_penalised_or_the_update_is_refused() -> None:
    model, promises, _ = issued()
    for_a_day = changed(promises, kappa=0.0, radius=0.0, conditional=False)
    with pytest.raises(PromiseError, match="newly broken") as caught:
        model.update(*turned(), keep=for_a_day, penalty=0.0, **FAST)
    assert caught.value.report.unproved == {"valid on its day, nothing proved": for_a_day.counts().live}
    allowed = model.update(*turned(), keep=for_a_day, penalty=0.0, allow_broken=1000, **FAST)
    assert len(allowed.update_.newly_broken) > 0
    assert not allowed.update_.ok
    pushed = model.update(*turned(), keep=for_a_day, penalty=10.0, **FAST)
    assert pushed.update_.ways["kept"].counts["broken"] == 0
    assert pushed.update_.constraints == ()


def test_a_small_kappa_can_be_left_to_the_penalty() -> None:
    model, promises, _ = issued()
    piece = promises.pieces[0]
    tight = piece.kappa.copy()
    tight[:3] = 1e-4
    mixed = changed(promises, kappa=tight, radius=np.maximum(piece.radius, tight), conditional=False)
    candidate = AuditedModel.of(model)
    assert SetConstraints.of(mixed, candidate).tightest[0].requirement.kappa == 1e-4
    wider = SetConstraints.of(mixed, candidate, least_kappa=0.01)
    assert wider.tightest[0].requirement.kappa > 0.01
    assert wider.unproved() == {"proved below kappa = 0.01 only": 3}
    frame, y = applicants(300, seed=6)
    strict, loose = (model.update(frame, y, keep=mixed, least_kappa=least, **FAST) for least in (0.0, 0.01))
    assert strict.update_.ways["kept"].counts["kept by proof"] == mixed.counts().live
    assert strict.update_.constraints[0].requirement.count == 3
    assert loose.update_.ok
    assert loose.update_.ways["kept"].counts["kept by proof"] >= mixed.counts().live - 3


def test_promises_of_another_encoding_or_threshold_are_said_to_have_no_proof() -> None:
    model, promises, found = issued()
    others = in_memory(found, model.classifier_, threshold=0.6, first=1000)
    demands = SetConstraints.of(promises + others, AuditedModel.of(model))
    assert demands.unproved() == {"threshold 0.5 instead of 0.6": others.counts().live}
    assert len(demands.tightest) == 1


def test_a_region_is_penalised_as_a_whole() -> None:
    model, promises, _ = issued(overshoot=0.05)
    for_a_day = changed(promises, kappa=0.0, radius=0.0, conditional=False)
    assert is_wide(for_a_day.pieces[0].region).any()
    kept = model.update(*turned(300), keep=for_a_day, penalty=10.0, **FAST)
    assert kept.update_.ways["kept"].counts["broken"] == 0


def test_expired_promises_do_not_bind() -> None:
    model, promises, _ = issued()
    past = changed(promises, expires=100.0)
    free = model.update(*turned(), keep=past, **FAST)
    assert free.update_.constraints == ()
    assert free.update_.ways["kept"].accuracy == free.update_.ways["free"].accuracy
    bound = model.update(*turned(), keep=unconditional(past), at=99.0, **FAST)
    assert bound.update_.ways["kept"].counts["kept by proof"] == promises.counts().live


def test_updates_repeat_themselves() -> None:
    model, promises, _ = issued()
    one, two = (model.update(*turned(), keep=unconditional(promises), **FAST) for _ in range(2))
    assert one.update_ == two.update_
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.classifier_.parameters(), two.classifier_.parameters(), strict=True)
    )


@pytest.mark.long
def test_every_training_method_can_be_updated() -> None:
    for method in ("counternet", "standard"):
        model, promises, _ = issued(method)
        kept = model.update(*turned(300), keep=unconditional(promises), **FAST)
        assert kept.update_.ways["kept"].counts["kept by proof"] == promises.counts().live > 0


def test_the_rows_kept_aside_have_both_labels() -> None:
    y = torch.tensor([0.0] * 90 + [1.0] * 10)
    train, held = split(y, 0.2, 0)
    assert (len(train), len(held), float(y[held].sum())) == (80, 20, 2.0)
    assert not set(train.tolist()) & set(held.tolist())
    with pytest.raises(TrainingError, match="new rows"):
        split(torch.tensor([0.0, 1.0]), 0.2, 0)


@pytest.mark.parametrize("wrong", [{"held_out": 1.0}, {"penalty": -1.0}, {"max_loss": -0.1}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(TrainingError, match="expected"):
        replace(UpdateSettings(), **wrong)


# ---------------------------------------------------------------- what keeping promises costs


@pytest.mark.parametrize(
    ("free", "scratch", "cost"), [(0.80, 0.90, 0.15), (0.85, None, 0.10), (0.80, 0.70, 0.05)]
)
def test_the_better_of_both_counts(free: float, scratch: float | None, cost: float) -> None:
    ways = {Variant.KEPT: UpdateVariant(0.75, 0.5), Variant.FREE: UpdateVariant(free, 0.5)}
    if scratch is not None:
        ways[Variant.SCRATCH] = UpdateVariant(scratch, 0.5)
    report = UpdateReport({str(name): way for name, way in ways.items()}, max_loss=0.12)
    assert report.cost == pytest.approx(cost)
    assert report.acceptable == (cost <= 0.12)
    assert set(report.costs) == {"free"} | ({"from scratch"} if scratch is not None else set())
    assert report.to_plain()["costs"] == report.costs


def test_nothing_is_kept_without_promises() -> None:
    report = UpdateReport({Variant.FREE: UpdateVariant(0.8, 0.5)}, max_loss=0.0)
    assert (report.cost, report.costs, report.acceptable) == (None, {}, True)


def test_what_no_set_protects_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    ways = {str(Variant.TODAY): UpdateVariant(0.75, 0.5), str(Variant.FREE): UpdateVariant(0.8, 0.4)}
    unproved = {"valid on its day, nothing proved": 1200}
    print_update(UpdateReport(ways, trained=80, held_out=20, unproved=unproved, newly_broken=(4, 9)))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines() if line]
    assert lines == [
        "80 new rows learned from, judged on 20 others",
        "model accuracy promises kept by proof broken not checkable",
        "today 0.7500 – – – –",
        "free 0.8000 – – – –",
        "1,200 promises have no proof to keep: valid on its day, nothing proved.",
        "2 promises are newly broken.",
    ]
