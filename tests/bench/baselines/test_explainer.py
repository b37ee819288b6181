"""One contract for every method: what goes in, what comes out, and that rows do not see each other."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor, nn

import veritracer as vt
from training_cases import people
from veritracer import metrics
from veritracer.errors import DataError, NotSupportedError
from veritracer_bench.baselines import BASELINES, Baseline, CounterNet, GeneratorOptions, RoarOptions

NEEDS = {"dice": "dice_ml", "ellice": "ellice"}
METHODS = [
    pytest.param(
        name,
        marks=[pytest.mark.skipif(find_spec(NEEDS[name]) is None, reason=f"needs {NEEDS[name]}")]
        if name in NEEDS
        else [],
    )
    for name in BASELINES
]
MANY = 40


@pytest.fixture(scope="module")
def model() -> vt.VeriTraCER:
    """A small lender's model with a generator; its classifier is what every method explains."""
    frame, y = people()
    schema = vt.Schema.infer(frame).with_labels(y, favourable="yes")
    # Distance is cheap here: the contract asks for valid answers, whatever the defaults of training are.
    cheap = {"weight_accuracy": 15.0, "weight_proximity": 1.0, "weight_validity": 1.0}
    sizes = {"hidden": (12, 8), "epochs": 80, "batch_size": 64, "learning_rate": 0.005}
    return vt.VeriTraCER(schema, method="counternet", **sizes, **cheap).fit(frame, y)


@pytest.fixture(scope="module")
def rows(model: vt.VeriTraCER) -> tuple[Tensor, Tensor]:
    frame, y = people()
    return model.encoding_.encode(frame), torch.as_tensor(model.schema_.labels(y)).double()


def build(name: str, model: vt.VeriTraCER, rows: tuple[Tensor, Tensor], **changes: object) -> Baseline:
    method = BASELINES[name]
    options = method.options(model=model) if name == "counternet" else method.options()
    config = dataclasses.replace(options, **changes)
    return method(model.classifier_, model.encoding_, *rows, config, random_state=3)


@pytest.fixture(params=METHODS)
def explainer(request, model: vt.VeriTraCER, rows: tuple[Tensor, Tensor]) -> Baseline:
    return build(request.param, model, rows)


def test_shape_dtype_and_range(explainer: Baseline, rows: tuple[Tensor, Tensor]) -> None:
    x = rows[0][:MANY]
    x_cf = explainer.explain(x)
    assert x_cf.shape == x.shape
    assert x_cf.dtype == torch.float64
    assert not x_cf.requires_grad
    assert ((x_cf >= 0) & (x_cf <= 1)).all()


def test_valid_for_most_rows_of_both_decisions(
    explainer: Baseline, model: vt.VeriTraCER, rows: tuple[Tensor, Tensor]
) -> None:
    x = rows[0][:MANY]
    favourable = metrics.favourable(model.classifier_, x)
    valid = metrics.valid_rows(model.classifier_, x, explainer.explain(x))
    assert 5 < favourable.sum() < MANY - 5
    assert valid[favourable].double().mean() >= 0.8
    assert valid[~favourable].double().mean() >= 0.8


def test_the_same_seed_gives_the_same_answer(
    explainer: Baseline, model: vt.VeriTraCER, rows: tuple[Tensor, Tensor]
) -> None:
    x = rows[0][:8]
    again = build(explainer.name, model, rows)
    torch.manual_seed(11)
    assert torch.equal(explainer.explain(x), again.explain(x))
    assert torch.equal(explainer.explain(x), again.explain(x))


def test_the_global_random_stream_is_left_alone(explainer: Baseline, rows: tuple[Tensor, Tensor]) -> None:
    state = torch.get_rng_state()
    explainer.explain(rows[0][:4])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.long
def test_a_row_does_not_depend_on_the_others(explainer: Baseline, rows: tuple[Tensor, Tensor]) -> None:
    """1e-9: a product of another number of rows is summed in another order, and the steps add that up."""
    x = rows[0][:12]
    together = explainer.explain(x)
    alone = torch.cat([explainer.explain(x[i : i + 1]) for i in range(4)])
    backwards = explainer.explain(x.flip(0)).flip(0)
    torch.testing.assert_close(alone, together[:4], rtol=0, atol=1e-9)
    torch.testing.assert_close(backwards, together, rtol=0, atol=1e-9)


def test_batches_join_without_a_seam(explainer: Baseline, rows: tuple[Tensor, Tensor], monkeypatch) -> None:
    x = rows[0][:7]
    together = explainer.explain(x)
    monkeypatch.setattr("veritracer_bench.baselines.explainer.SEARCH_BATCH", 3)
    torch.testing.assert_close(explainer.explain(x), together, rtol=0, atol=1e-9)


def test_nothing_that_is_given_is_changed(
    explainer: Baseline, model: vt.VeriTraCER, rows: tuple[Tensor, Tensor]
) -> None:
    x = rows[0][:6].clone()
    before = [x.clone(), *(t.clone() for t in rows), *(t.clone() for t in model.classifier_.parameters())]
    x_cf = explainer.explain(x)
    x_cf.fill_(0.5)
    after = [x, *rows, *model.classifier_.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(p.grad is None for p in model.classifier_.parameters())


def test_no_rows_and_one_row(explainer: Baseline, rows: tuple[Tensor, Tensor]) -> None:
    assert explainer.explain(rows[0][:0]).shape == (0, rows[0].shape[1])
    assert explainer.explain(rows[0][:1]).shape == (1, rows[0].shape[1])


def test_float32_rows_are_accepted(explainer: Baseline, rows: tuple[Tensor, Tensor]) -> None:
    assert explainer.explain(rows[0][:2].float()).dtype == torch.float64


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(2, 99), torch.full((1, 9), torch.nan)])
def test_rows_of_another_shape_are_refused(explainer: Baseline, bad: Tensor) -> None:
    with pytest.raises(DataError, match="expected"):
        explainer.explain(bad)


@pytest.mark.parametrize("name", METHODS)
def test_projected_answers_are_rows_that_a_person_could_have(
    name: str, model: vt.VeriTraCER, rows: tuple[Tensor, Tensor]
) -> None:
    x = rows[0][:10]
    x_cf = build(name, model, rows, project=True).explain(x)
    assert metrics.broken_groups(model.encoding_, x_cf) == 0.0
    assert torch.equal(model.encoding_.project(x_cf, x), x_cf)


def test_options_of_another_method_are_refused(model: vt.VeriTraCER, rows: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(NotSupportedError, match="WachterOptions for 'wachter'"):
        BASELINES["wachter"](model.classifier_, model.encoding_, *rows, RoarOptions())


def test_a_generator_explains_its_own_classifier_only(
    model: vt.VeriTraCER, rows: tuple[Tensor, Tensor]
) -> None:
    other = nn.Sequential(nn.Linear(model.encoding_.dim, 1)).double()
    with pytest.raises(NotSupportedError, match="own classifier"):
        CounterNet(other, model.encoding_, *rows, GeneratorOptions(model=model))
    with pytest.raises(NotSupportedError, match="model with a generator"):
        CounterNet(model.classifier_, model.encoding_, *rows)
    x = rows[0][:5]
    assert torch.equal(CounterNet.of(model).explain(x), model.propose_encoded(x))


@pytest.mark.skipif(find_spec("dice_ml") is not None, reason="the extra is installed")
def test_a_missing_extra_is_named(model: vt.VeriTraCER, rows: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(NotSupportedError, match=r"veritracer\[dice\]"):
        build("dice", model, rows)
