"""Calibration: moves as the sets measure them, shares as far as they are known, and nothing unmeasured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import nn

import veritracer as vt
from recourse_tables import SCHEMA, applicants, fitted
from training_cases import parameters
from veritracer.errors import DataError, ModelFileError, VeriTracerWarning
from veritracer.ledger import measure
from veritracer.ledger.calibration import (
    FROM_SCRATCH,
    Cost,
    Coverage,
    coverage,
    recommend,
    rounded_up,
)
from veritracer.ledger.displacement import Table, Updates, displacements_of, simulated
from veritracer.schema import Schema

QUICK = {"method": "standard", "epochs": 30, "hidden": (8, 4), "batch_size": 64, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def data() -> tuple[pd.DataFrame, np.ndarray]:
    return applicants(400)


@pytest.fixture(scope="module")
def quick(data) -> vt.VeriTraCER:
    return vt.VeriTraCER(schema=SCHEMA, **QUICK).fit(*data)


def needed(moves) -> list[float]:
    return [move.needed for move in moves]


# How far one update went


@given(
    st.integers(0, 10_000), st.sampled_from(["linf", "l2", "l1"]), st.sampled_from(["mean-abs", "norm", 0.3])
)
def test_the_needed_kappa_is_the_smallest_whose_set_has_the_model(seed, norm, radius) -> None:
    torch.manual_seed(seed)
    old, new = (nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)) for _ in range(2))
    param_set = vt.ParamSet.around(old, 1.0, norm, radius)
    move = measure("an update", param_set, [new])
    assert param_set.at(move.needed).contains(new)
    assert not param_set.at(move.needed * (1 - 1e-12)).contains(new)
    assert move.needed == pytest.approx(max(move.tensors), rel=1e-12)  # a rounded quotient, lifted by digits
    assert measure("none", param_set, [old]).needed == 0.0


def test_a_promise_has_to_outlive_the_farthest_of_several_updates(quick) -> None:
    network = quick.classifier_
    near, far = (nn.Sequential(*(network[:-1]), nn.Linear(4, 1).double()) for _ in range(2))
    for module, by in ((near, 0.1), (far, 0.2)):
        module[-1].load_state_dict({k: v + by for k, v in network[-1].state_dict().items()})
    param_set = quick.param_set(1.0)
    both = measure("both", param_set, [far, near])
    assert both.tensors == measure("far", param_set, [far]).tensors
    assert both.tensors[:-2] == (0.0,) * 4


def test_a_tensor_without_a_radius_can_not_be_covered() -> None:
    old, new = nn.Linear(2, 1), nn.Linear(2, 1)
    nn.init.zeros_(old.bias)
    with pytest.warns(VeriTracerWarning, match="zeros in b1"):
        param_set = vt.ParamSet.around(old, 1.0)
    assert measure("an update", param_set, [new]).needed == math.inf


# Which share a kappa covers


@given(
    st.lists(st.floats(0.01, 9.0), min_size=1, max_size=60),
    st.floats(0.05, 0.95),
    st.sampled_from([0.8, 0.95, 0.99]),
)
def test_an_order_statistic_covers_with_the_stated_confidence(values, share, confidence) -> None:
    """P(k_(r) >= quantile) is P(Binomial(n, share) <= r - 1): scipy is the oracle for rank and unknown."""
    n = len(values)
    found = coverage(values, share, confidence)
    known = binom.cdf(np.arange(n), n, share)
    ranks = np.flatnonzero(known >= confidence)
    close = np.abs(known - confidence).min() < 1e-9  # the two sums may round to different sides
    if not close:
        assert (found.kappa is None) == (len(ranks) == 0)
        assert (n >= found.updates_needed) == (found.kappa is not None)
        if found.kappa is not None:
            assert found.kappa == sorted(values)[ranks[0]]
    assert np.mean(np.array(values) <= found.measured) >= share - 1e-9


def test_the_confidence_is_kept_in_trials() -> None:
    """Uniform updates: the kappa for 90 % is below 0.9 in at most 5 % of 2,000 trials, and 3 sigma more."""
    rng = np.random.default_rng(0)
    missed = np.mean([coverage(rng.random(30).tolist(), 0.9, 0.95).kappa < 0.9 for _ in range(2000)])
    assert missed <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)


def test_few_updates_say_nothing_about_a_large_share() -> None:
    assert coverage([0.1] * 28, 0.9, 0.95).kappa is None
    assert coverage([0.1] * 29, 0.9, 0.95).kappa == 0.1
    assert coverage([0.1] * 30, 0.99, 0.95).updates_needed == 299


def test_many_updates_can_be_counted() -> None:
    """The binomial sum has terms that no float holds from some thousand updates on."""
    found = coverage(np.arange(1100).tolist(), 0.9, 0.95)
    assert found.measured == 989
    assert found.kappa is not None
    rank = int(found.kappa) + 1
    assert binom.cdf(rank - 1, 1100, 0.9) >= 0.95 > binom.cdf(rank - 2, 1100, 0.9)
    assert coverage(np.arange(200_000).tolist(), 0.99, 0.95).kappa < 198_200


@given(st.floats(1e-6, 1e6))
def test_a_rounded_kappa_is_never_smaller_and_hardly_larger(kappa: float) -> None:
    assert kappa <= rounded_up(kappa) <= kappa * 1.0101


@pytest.mark.parametrize(("share", "confidence"), [(1.0, 0.95), (0.0, 0.95), (0.9, 1.0)])
def test_nobody_knows_about_all_of_them(share: float, confidence: float) -> None:
    with pytest.raises(DataError, match="between 0 and 1"):
        coverage([0.1], share, confidence)


# Updates that happened


def test_a_history_is_measured_step_by_step_from_the_earlier_model(quick, data, tmp_path: Path) -> None:
    older, old = (vt.VeriTraCER(schema=SCHEMA, random_state=k, **QUICK).fit(*data) for k in (1, 2))
    older.save(tmp_path / "older")
    found = vt.calibrate(quick, history=[tmp_path / "older", old])
    assert found.source == "history"
    pairs = [(older, old), (old, quick)]
    for move, (before, after) in zip(found.moves, pairs, strict=True):
        assert before.param_set(move.needed).contains(after.classifier_)
        assert not before.param_set(move.needed * (1 - 1e-12)).contains(after.classifier_)
    assert found.moves[0].name == f"{tmp_path / 'older'} to model 2"
    assert found.recommendation.kappa is None
    assert "at least 29" in found.recommendation.sentence
    both = vt.calibrate(quick, history=[tmp_path / "older", old], horizon=2)
    assert len(both.moves) == 1
    assert both.moves[0].needed >= found.moves[0].needed


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("encoding", {"schema": Schema.from_json(SCHEMA.to_json().replace("50000.0", "60000.0"))}),
        ("architecture", {"hidden": (8, 5)}),
        ("threshold", {"threshold": 0.6}),
    ],
)
def test_a_model_that_no_set_can_have_is_refused_by_name(quick, data, what, change) -> None:
    other = vt.VeriTraCER(**{"schema": SCHEMA, **QUICK, **change}).fit(*data)
    with pytest.raises(ModelFileError, match=f"today's {what}.*'model 2'") as refused:
        vt.calibrate(quick, history=[quick, other])
    assert "model 1" not in str(refused.value)


# Updates that are simulated


def test_simulated_updates_repeat_themselves_and_leave_the_model_alone(quick, data) -> None:
    before = parameters(quick.classifier_).clone()
    first, again, other = (
        simulated(quick, Table(*data), Updates("fine-tune", runs=2, epochs=1, random_state=seed))
        for seed in (0, 0, 1)
    )
    assert first == again
    assert needed(first) != needed(other)
    assert first[0].needed != first[1].needed
    assert torch.equal(parameters(quick.classifier_), before)


def test_longer_faster_and_more_updates_move_further(quick, data) -> None:
    table = Table(*data)
    usual = Updates("fine-tune", runs=3, epochs=2)
    least = min(needed(simulated(quick, table, usual)))
    for change in ({"epochs": 20}, {"learning_rate": 0.05}, {"horizon": 8}):
        more = Updates(**{**vars(usual), **change})
        assert min(needed(simulated(quick, table, more))) > least, change


@pytest.mark.parametrize("kind", ["seeds", "bootstrap"])
def test_training_from_scratch_moves_further_than_training_on(quick, data, kind) -> None:
    table = Table(*data)
    on = simulated(quick, table, Updates("fine-tune", runs=3, epochs=2))
    scratch = simulated(quick, table, Updates(kind, runs=3))
    assert len(set(needed(scratch))) == 3
    assert min(needed(scratch)) > 10 * max(needed(on))


def test_a_bootstrap_that_draws_every_row_once_gives_todays_model(quick, data) -> None:
    """Today's rows, seed and encoding: what is left is the batched run's own rounding."""
    from veritracer.ledger.displacement import from_scratch

    (again,) = from_scratch(quick, Table(*data), [0], times=np.ones((1, len(data[0]))))
    assert measure("same", quick.param_set(1.0), [again]).needed == 0.0


def test_the_next_period_is_learned_from(quick, data) -> None:
    X, y = data
    flipped = np.where(y == "yes", "no", "yes")
    options = {"simulate": "next", "runs": 2, "epochs": 20}
    same, other = (vt.calibrate(quick, X_new=X, y_new=labels, **options) for labels in (y, flipped))
    assert min(needed(other.moves)) > max(needed(same.moves))
    assert same.costs == ()
    assert "too few" in same.recommendation.sentence


# What is recommended


def covered(*kappas: float | None) -> list[Coverage]:
    return [Coverage(share, k or 9.0, k, 1) for share, k in zip((0.5, 0.9, 0.99), kappas, strict=True)]


def price(kappa: float, certified: float, *, accuracy: float = 0.8, own: float | None = None) -> Cost:
    refitted = own is not None
    shares = dict.fromkeys((0.5, 0.9, 0.99), own) if refitted else {}
    return Cost(kappa, kappa, refitted, 100, certified, 1.0, 0.1, accuracy, shares)


@pytest.mark.parametrize(
    ("known", "costs", "kappa", "share", "train"),
    [
        ((0.1, 0.2, None), [price(0.1, 1.0), price(0.2, 1.0)], 0.2, 0.9, False),  # 99 % is not known
        ((0.1, 0.2, 0.3), [price(0.1, 1.0), price(0.2, 1.0), price(0.3, 0.5)], 0.2, 0.9, False),  # too dear
        ((0.1, 0.2, None), [price(0.1, 1.0), price(0.2, 0.5), price(0.2, 1.0, own=0.19)], 0.2, 0.9, True),
        ((0.1, 0.2, None), [price(0.1, 1.0), price(0.2, 0.5), price(0.2, 1.0, own=0.21)], None, None, False),
        (
            (0.1, 0.2, None),
            [price(0.2, 1.0, own=0.1, accuracy=0.7), price(0.1, 0.2, own=0.1, accuracy=0.8)],
            None,
            None,
            False,
        ),  # trained for 0.2 it loses too much accuracy
        ((0.1, 0.2, None), [price(0.1, 0.1), price(0.2, 0.0)], None, None, False),
        ((None, None, None), [price(0.1, 1.0)], None, None, False),
        ((0.1, None, None), [price(0.1, 1.0)], None, None, False),  # half of the updates is too few
    ],
)
def test_only_what_is_known_and_affordable_is_recommended(known, costs, kappa, share, train) -> None:
    found = recommend(covered(*known), costs, from_scratch=False)
    assert (found.kappa, found.covers, found.train_for_it) == (kappa, share, train)
    assert found.sentence.startswith("None: " if kappa is None else f"kappa = {kappa}")


def test_from_scratch_is_called_what_it_is() -> None:
    found = recommend(covered(12.0, 13.0, None), [price(12.0, 0.0)], from_scratch=True)
    assert found.kappa is None
    assert FROM_SCRATCH in found.sentence
    assert "keep=ledger" in found.sentence


@pytest.mark.long
def test_a_recommended_kappa_covers_updates_that_nobody_has_seen() -> None:
    """Gentle fine-tuning of a verified model: 60 fresh updates, of which 90 % should be covered."""
    model, _ = fitted()
    X, y = applicants()
    seen: list[tuple[str, float]] = []
    found = vt.calibrate(
        model,
        X,
        y,
        simulate="fine-tune",
        epochs=1,
        rows=20,
        refit=False,
        watch=lambda text, share: seen.append((text, share)),
    )
    advice = found.recommendation
    assert advice.covers == 0.9
    assert advice.kappa in [c.kappa for c in found.costs]
    fresh = simulated(model, Table(X, y), Updates("fine-tune", runs=60, epochs=1, random_state=99))
    assert np.mean(np.array(needed(fresh)) <= advice.kappa) >= 0.9
    assert {text.partition(" at ")[0] for text, _ in seen} == {"simulating updates", "costs"}
    assert all(0 <= share <= 1 for _, share in seen)
    cheap, dear = (next(c for c in found.costs if c.kappa == k) for k in (min(advice.kappa, 0.2), 0.2))
    assert cheap.certified >= dear.certified
    assert cheap.distance <= dear.distance


def test_the_result_as_tables_text_and_json(quick, data, tmp_path: Path) -> None:
    found = vt.calibrate(quick, *data, simulate="fine-tune", runs=5, epochs=1, rows=5)
    assert found.table.columns.tolist() == ["W1", "b1", "W2", "b2", "W3", "b3", "needed"]
    assert found.layers["decided"].sum() == 5
    assert len(found.price) == len(found.costs)
    assert any(c.refitted and c.needed for c in found.costs)
    text = str(found)
    assert text.startswith("5 simulated (fine-tune) updates")
    assert "not known: 299 updates are needed" in text
    assert text.endswith(found.recommendation.sentence)
    path = tmp_path / "calibration.json"
    content = json.loads(found.to_json(path))
    assert content == json.loads(path.read_text())
    assert (content["format"], content["version"]) == ("veritracer-calibration", 1)
    assert [m["needed"] for m in content["moves"]] == needed(found.moves)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "neither"),
        ({"history": [1], "simulate": "seeds"}, "both"),
        ({"simulate": "next"}, "X_new and y_new"),
        ({"simulate": "fine-tune"}, "give X and y"),
        ({"simulate": "magic"}, "'fine-tune'"),
        ({"simulate": "seeds", "runs": 0}, "runs of at least 1"),
        ({"simulate": "seeds", "learning_rate": -1.0}, "above 0"),
        ({"X": [[1]], "simulate": "seeds"}, "no y"),
    ],
)
def test_bad_questions_are_refused(quick, options, said) -> None:
    with pytest.raises(DataError, match=said):
        vt.calibrate(quick, **options)


def test_a_kappa_that_covers_less_than_nine_in_ten_is_not_recommended() -> None:
    some = [Coverage(0.5, 0.1, 0.1, 5), Coverage(0.9, 0.2, None, 29), Coverage(0.99, 0.2, None, 299)]
    assert "too few to tell about 90 %; at least 29 are needed" in sentence_of(some)
    assert "recommended only if it covers 90 % of updates." in sentence_of(some[:1])


def sentence_of(some: list[Coverage]) -> str:
    found = recommend(some, [price(0.1, 1.0)], from_scratch=False)
    assert (found.kappa, found.covers) == (None, None)
    return found.sentence


def test_what_was_not_measured_is_not_claimed() -> None:
    found = recommend(covered(0.1, 0.2, None), [], from_scratch=False)
    assert (found.kappa, found.covers, found.train_for_it) == (0.2, 0.9, False)
    assert "what it costs was not measured" in found.sentence
    dear = recommend(covered(0.1, 0.2, None), [price(0.2, 0.0)], from_scratch=False)
    assert dear.kappa is None
    assert "already 90 % of updates need kappa = 0.2" in dear.sentence
    assert (rounded_up(0.0), rounded_up(math.inf)) == (0.0, math.inf)


def test_a_history_is_as_long_as_a_promise(quick) -> None:
    with pytest.raises(ModelFileError, match="expected a history of models, got 1 before today's"):
        displacements_of([quick], quick, horizon=2)


def test_whoever_watches_is_told_of_each_run(quick, data) -> None:
    told: list[tuple[str, float]] = []
    updates = Updates("fine-tune", runs=2, epochs=1)
    found = simulated(quick, Table(*data), updates, watch=lambda stage, share: told.append((stage, share)))
    assert len(found) == 2
    assert told == [("simulating updates", 0.5), ("simulating updates", 1.0)]
