"""The three shifts: what changes, what stays, and that nothing given is touched."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import veritracer as vt
from test_training import people
from veritracer import metrics, shifts
from veritracer.errors import TrainingError
from veritracer.network import from_module
from veritracer.param_sets import ParamSet

QUICK = vt.VeriTraCER(method="standard", epochs=4, hidden=(8, 6), batch_size=64)


def parameters(module: nn.Module) -> Tensor:
    return torch.cat([t.detach().flatten() for t in from_module(module)[1]])


@pytest.fixture(scope="module")
def data() -> tuple[pd.DataFrame, np.ndarray]:
    return people()


def test_random_initialisation_gives_models_that_differ_in_their_seed(data) -> None:
    found = shifts.random_initialisation(QUICK, *data, models=3)
    assert [m.random_state for m in found] == [0, 1, 2]
    assert len({m.encoding_.digest for m in found}) == 1
    first, second, _ = (parameters(m.classifier_) for m in found)
    assert not torch.equal(first, second)
    assert not hasattr(QUICK, "classifier_")


def test_leave_out_keeps_the_seed_and_changes_the_rows(data) -> None:
    found = shifts.leave_out(QUICK, *data, models=3, share=0.1)
    assert [m.random_state for m in found] == [0, 0, 0]
    first, second, _ = (parameters(m.classifier_) for m in found)
    assert not torch.equal(first, second)
    again = shifts.leave_out(QUICK, *data, models=3, share=0.1)
    assert all(
        torch.equal(parameters(a.classifier_), parameters(b.classifier_))
        for a, b in zip(found, again, strict=True)
    )


def test_leaving_out_hardly_moves_a_model_but_another_seed_does(data) -> None:
    seeds = shifts.random_initialisation(QUICK, *data, models=2)
    rows = shifts.leave_out(QUICK, *data, models=2)
    apart = [(parameters(a.classifier_) - parameters(b.classifier_)).norm() for a, b in (seeds, rows)]
    assert apart[1] < 0.5 * apart[0]


def test_distribution_shift_keeps_the_encoding_and_learns_the_new_rows(data) -> None:
    """In the shifted rows nobody with three lines or more is approved: a rule that fine-tuning must find."""
    X, y = data
    stricter = np.where(X["lines"] >= 3, "no", y)
    model = vt.VeriTraCER(method="standard", epochs=40, hidden=(8, 6), batch_size=64, learning_rate=0.02)
    found = shifts.distribution_shift(model, (X, y), (X, stricter), trials=2)
    assert [original.random_state for original, _ in found] == [0, 1]
    for original, module in found:
        x, old, new = original.encoding_.encode(X), *(original.schema_.labels(v) for v in (y, stricter))
        assert metrics.accuracy(original.classifier_, x, old) > 0.8
        assert metrics.accuracy(module, x, new) > metrics.accuracy(original.classifier_, x, new) + 0.1


def test_values_beyond_the_original_range_are_clipped_with_a_warning(data) -> None:
    X, y = data
    richer = X.assign(savings=X["savings"] * 2)
    with pytest.warns(vt.errors.DataWarning, match="savings"):
        shifts.distribution_shift(QUICK, (X, y), (richer, y), trials=1, epochs=1)


def network(seed: int = 0, **options: bool) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6, **options), nn.LeakyReLU(0.01), nn.Linear(6, 1)).double()


def problem(n: int = 200) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, (x.sum(-1) > 1.5).double()


def test_fine_tuning_learns_repeats_itself_and_leaves_the_module_alone() -> None:
    module, (x, y) = network(), problem()
    before = parameters(module).clone()
    tuned, again = (shifts.fine_tune(module, x, y, epochs=60, learning_rate=0.02) for _ in range(2))
    assert torch.equal(parameters(module), before)
    assert torch.equal(parameters(tuned), parameters(again))
    assert metrics.accuracy(tuned, x, y) > 0.95
    assert from_module(tuned)[0] == from_module(module)[0]
    other = shifts.fine_tune(module, x, y, epochs=60, learning_rate=0.02, random_state=1)
    assert not torch.equal(parameters(tuned), parameters(other))


def test_a_layer_without_bias_stays_without() -> None:
    tuned = shifts.fine_tune(network(bias=False), *problem(), epochs=2)
    assert tuned[0].bias is None


def test_float32_stays_float32() -> None:
    tuned = shifts.fine_tune(network().float(), *problem(), epochs=1)
    assert tuned[0].weight.dtype == torch.float32


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_projection_keeps_the_model_in_its_set(norm: str) -> None:
    module, (x, y) = network(), problem()
    param_set = ParamSet.around(module, kappa=0.05, norm=norm)
    settings = {"epochs": 10, "learning_rate": 0.02}
    assert not param_set.contains(shifts.fine_tune(module, x, y, **settings))
    assert param_set.contains(shifts.fine_tune(module, x, y, project=param_set.project, **settings))


def test_the_threshold_is_part_of_the_logit() -> None:
    """Labels are pure noise, 70 % favourable: at threshold 0.9 nothing is favourable, at 0.5 everything."""
    x = torch.rand(400, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = (torch.arange(400) % 10 < 7).double()
    settings = {"epochs": 40, "learning_rate": 0.02}
    assert metrics.favourable(shifts.fine_tune(network(), x, y, **settings), x).all()
    assert not metrics.favourable(shifts.fine_tune(network(), x, y, threshold=0.9, **settings), x).any()


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.zeros(3, 3), torch.zeros(2)),
        (torch.zeros(0, 3), torch.zeros(0)),
        (torch.zeros(2, 3), torch.tensor([0.0, 2.0])),
    ],
)
def test_labels_are_checked(x: Tensor, y: Tensor) -> None:
    with pytest.raises(TrainingError, match="expected"):
        shifts.fine_tune(network(), x, y)
