"""Reading torch modules, and saying no to those that we can not reason about."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from veritracer.errors import NotSupportedError
from veritracer.models.network import from_module, to_module


def mlp(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), *layers)


@pytest.mark.parametrize(
    ("module", "slopes"),
    [
        (nn.Linear(3, 1), ()),
        (mlp(nn.ReLU(), nn.Linear(4, 1)), (0.0,)),
        (mlp(nn.LeakyReLU(0.01), nn.Linear(4, 2)), (0.01,)),
        (mlp(nn.Linear(4, 1)), (1.0,)),
        (mlp(nn.Sequential(nn.ReLU(), nn.Identity()), nn.Sequential(nn.Linear(4, 1))), (0.0,)),
        (mlp(nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1)).eval(), (0.0,)),
        (mlp(nn.Dropout(0.0), nn.ReLU(), nn.Linear(4, 1, bias=False)), (0.0,)),
    ],
)
def test_logit_is_that_of_the_module(module: nn.Module, slopes: tuple[float, ...]) -> None:
    network, theta = from_module(module)
    assert network.slopes == pytest.approx(slopes)
    x = torch.randn(7, 3)
    out = module(x)
    expected = out[:, 0] if out.shape[1] == 1 else out[:, 1] - out[:, 0]
    torch.testing.assert_close(network.logit(theta, x), expected)
    before = torch.get_rng_state()
    rebuilt, again = from_module(to_module(network, theta))
    assert torch.equal(torch.get_rng_state(), before)
    assert rebuilt.slopes == pytest.approx(network.slopes)
    torch.testing.assert_close(rebuilt.logit(again, x), expected)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (mlp(nn.Tanh(), nn.Linear(4, 1)), ["layer '1'", "Tanh", "ReLU", "rebuild"]),
        (mlp(nn.ReLU(), nn.Linear(4, 1), nn.Sigmoid()), ["layer '3'", "Sigmoid", "remove it"]),
        (mlp(nn.ReLU(), nn.Linear(4, 1), nn.ReLU()), ["Linear layer last", "remove it"]),
        (mlp(nn.ReLU(), nn.Linear(4, 3)), ["3 outputs", "binary"]),
        (mlp(nn.Dropout(0.5), nn.Linear(4, 1)).train(), ["eval mode", "layer '1'", "module.eval()"]),
        (mlp(nn.LeakyReLU(-0.5), nn.Linear(4, 1)), ["slope in [0, 1]", "-0.5"]),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 1)), ["Linear layer before"]),
        (mlp(nn.LeakyReLU(0.1), nn.LeakyReLU(0.1), nn.Linear(4, 1)), ["layer '2'", "one activation between"]),
        (nn.Linear(3, 1, dtype=torch.float16), ["float32 or in float64", "float16"]),
        (nn.Sequential(), ["no Linear layer"]),
        (nn.Conv1d(1, 1, 1), ["Conv1d", "Linear"]),
        (nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.GELU()), nn.Linear(4, 1)), ["layer '0.1'", "GELU"]),
    ],
)
def test_what_is_refused_is_named(module: nn.Module, words: list[str]) -> None:
    with pytest.raises(NotSupportedError) as caught:
        from_module(module)
    for word in words:
        assert word in str(caught.value)


def test_parameters_are_the_modules_own() -> None:
    module = nn.Linear(3, 1)
    network, theta = from_module(module)
    network.logit(theta, torch.ones(1, 3)).sum().backward()
    assert module.weight.grad is not None


def test_digest_tells_models_apart() -> None:
    module = mlp(nn.ReLU(), nn.Linear(4, 1))
    network, theta = from_module(module)
    before = network.digest(theta)
    assert before == network.digest(theta)
    with torch.no_grad():
        module[0].weight[0, 0] += 1e-6
    assert network.digest(theta) != before
    leaky, same = from_module(mlp(nn.LeakyReLU(), nn.Linear(4, 1)))
    assert leaky.digest(theta) != network.digest(theta)
    del same
