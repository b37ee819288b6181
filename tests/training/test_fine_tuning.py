"""Fine-tuning: it learns, repeats itself, and stays where a projection puts it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import veritracer as vt
from training_cases import parameters
from veritracer import metrics
from veritracer.errors import TrainingError
from veritracer.models.network import from_module
from veritracer.models.param_sets import ParamSet
from veritracer.training.fine_tuning import fine_tune


def network(seed: int = 0, **options: bool) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6, **options), nn.LeakyReLU(0.01), nn.Linear(6, 1)).double()


def problem(n: int = 200) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, (x.sum(-1) > 1.5).double()


def test_fine_tuning_learns_repeats_itself_and_leaves_the_module_alone() -> None:
    module, (x, y) = network(), problem()
    before = parameters(module).clone()
    tuned, again = (fine_tune(module, x, y, epochs=60, learning_rate=0.02) for _ in range(2))
    assert torch.equal(parameters(module), before)
    assert torch.equal(parameters(tuned), parameters(again))
    assert metrics.accuracy(tuned, x, y) > 0.95
    assert from_module(tuned)[0] == from_module(module)[0]
    other = fine_tune(module, x, y, epochs=60, learning_rate=0.02, random_state=1)
    assert not torch.equal(parameters(tuned), parameters(other))


def test_a_layer_without_bias_stays_without() -> None:
    tuned = fine_tune(network(bias=False), *problem(), epochs=2)
    assert tuned[0].bias is None


def test_float32_stays_float32() -> None:
    tuned = fine_tune(network().float(), *problem(), epochs=1)
    assert tuned[0].weight.dtype == torch.float32


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_a_projection_keeps_the_model_in_its_set(norm: str) -> None:
    module, (x, y) = network(), problem()
    param_set = ParamSet.around(module, kappa=0.05, norm=norm)
    settings = {"epochs": 10, "learning_rate": 0.02}
    assert not param_set.contains(fine_tune(module, x, y, **settings))
    assert param_set.contains(fine_tune(module, x, y, project=param_set.project, **settings))


def test_the_threshold_is_part_of_the_logit() -> None:
    """Labels are pure noise, 70 % favourable: at threshold 0.9 nothing is favourable, at 0.5 everything."""
    x = torch.rand(400, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = (torch.arange(400) % 10 < 7).double()
    settings = {"epochs": 40, "learning_rate": 0.02}
    assert metrics.favourable(fine_tune(network(), x, y, **settings), x).all()
    assert not metrics.favourable(fine_tune(network(), x, y, threshold=0.9, **settings), x).any()


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
        fine_tune(network(), x, y)


def test_a_model_has_its_own_options_of_fine_tuning() -> None:
    model = vt.VeriTraCER(learning_rate=0.01, batch_size=32, threshold=0.7)
    own = {"learning_rate": 0.002, "batch_size": 32, "threshold": 0.7}
    assert model.fine_tuning() == pytest.approx(own)
    assert model.fine_tuning(random_state=3, epochs=2) == pytest.approx(
        {**own, "random_state": 3, "epochs": 2}
    )
    with pytest.raises(TypeError, match="epoch"):
        fine_tune(network(), *problem(), epoch=2)
