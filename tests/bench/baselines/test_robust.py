"""RNCE and PROPLACE: what they return is robust over the box, and as near as it can be."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from veritracer.bounds.attack import attack
from veritracer.certificate import certify
from veritracer.encoding import Encoding
from veritracer.errors import NotSupportedError
from veritracer.models.param_sets import ParamSet
from veritracer.schema import Schema
from veritracer_bench.baselines import (
    Neighbour,
    NeighbourOptions,
    Proplace,
    ProplaceOptions,
    Rnce,
    RobustOptions,
)
from veritracer_bench.baselines.robust import closest_in_hull, worst_model

KAPPA = 0.05


@pytest.fixture(scope="module")
def square() -> tuple[Encoding, Tensor, Tensor]:
    """Two numbers in [0, 1], sixty rows."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.random((60, 2)), columns=["a", "b"])
    table.iloc[0], table.iloc[1] = 0.0, 1.0
    encoding = Encoding.fit(Schema.infer(table), table)
    x = encoding.encode(table)
    return encoding, x, (x[:, 0] > 0.5).double()


@pytest.fixture(scope="module")
def module(square: tuple[Encoding, Tensor, Tensor]) -> nn.Sequential:
    """A network with two hidden layers that has learned the labels."""
    _, x, y = square
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(300):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(net(x)[:, 0], y).backward()
        optimiser.step()
    return net


def test_rnce_is_the_nearest_row_that_is_certified(square, module: nn.Sequential) -> None:
    encoding, x, y = square
    found = Rnce(module, encoding, x, y, RobustOptions(kappa=KAPPA)).explain(x)
    param_set = ParamSet.around(module, KAPPA)
    logit = module(x)[:, 0].detach()
    for row, own, answer in zip(x, logit, found, strict=True):
        others = x[torch.sign(logit) == -torch.sign(own)]
        rows = row.expand(len(others), -1)
        proofs = certify(module, rows, others, param_set, methods=("ibp", "crown-ibp"), radius=False)
        robust = others[torch.from_numpy(proofs.certified)]
        assert len(robust) < len(others)
        assert torch.equal(answer, robust[(robust - row).abs().sum(-1).argmin()])


def test_rnce_gives_the_row_itself_where_nothing_is_certified(square, module: nn.Sequential) -> None:
    encoding, x, y = square
    assert torch.equal(Rnce(module, encoding, x, y, RobustOptions(kappa=50.0)).explain(x), x)


def test_proplace_is_robust_and_nearer_than_the_nearest_robust_row(square, module: nn.Sequential) -> None:
    encoding, x, y = square
    x_cf = Proplace(module, encoding, x, y, ProplaceOptions(kappa=KAPPA)).explain(x[:12])
    nearest = Rnce(module, encoding, x, y, RobustOptions(kappa=KAPPA)).explain(x[:12])
    distance, other = ((each - x[:12]).abs().sum(-1) for each in (x_cf, nearest))
    assert (distance <= other + 1e-6).all()
    assert (distance < other - 0.01).any()
    param_set = ParamSet.around(module, KAPPA)
    sign = torch.sign(module(x[:12])[:, 0].detach())
    assert (attack(param_set, x[:12], x_cf, sign).worst_logit < 1e-6).all()


def test_the_worst_model_is_that_of_all_corners() -> None:
    """One hidden layer with two units: 2^9 corners of the box, one of which is the worst model."""
    rng = np.random.default_rng(1)
    theta = [rng.normal(size=shape) for shape in ((2, 2), (2,), (1, 2), (1,))]
    box = [(t - 0.3, t + 0.3) for t in theta]
    point = rng.random(2)
    found = worst_model(point, box, 1.0, 10.0)
    assert found is not None

    def logit(parts: list[np.ndarray]) -> float:
        hidden = np.maximum(parts[0] @ point + parts[1], 0.0)
        return float((parts[2] @ hidden + parts[3])[0])

    lowest = np.inf
    for signs in itertools.product((-1, 1), repeat=9):
        flat, parts = np.array(signs) * 0.3, []
        for t in theta:
            parts.append(t + flat[: t.size].reshape(t.shape))
            flat = flat[t.size :]
        lowest = min(lowest, logit(parts))
    assert found.logit == pytest.approx(lowest, abs=1e-6)
    assert logit(found.theta) == pytest.approx(lowest, abs=1e-6)


def test_the_closest_point_of_the_hull_is_the_linear_programs() -> None:
    """A linear model x1 + x2 >= 1 and the hull of (0, 0) and (1, 1), (1, 0): half way to a corner."""
    theta = [np.array([[1.0, 1.0]]), np.array([-1.0])]
    corners = np.array([[1.0, 1.0], [1.0, 0.0]])
    found = closest_in_hull(np.zeros(2), corners, [theta], 1.0, 10.0)
    assert found is not None
    assert found.sum() == pytest.approx(1.0, abs=1e-5)
    assert closest_in_hull(np.zeros(2), corners * 0.3, [theta], 1.0, 10.0) is None


def test_proplace_refuses_leaky_relu(square) -> None:
    encoding, x, y = square
    leaky = nn.Sequential(nn.Linear(2, 3), nn.LeakyReLU(0.01), nn.Linear(3, 1)).double()
    with pytest.raises(NotSupportedError, match="expected a network with ReLU, got LeakyReLU"):
        Proplace(leaky, encoding, x, y)


def test_more_agreeing_neighbours_are_farther_away(square, module: nn.Sequential) -> None:
    encoding, x, y = square
    near, far = (Neighbour(module, encoding, x, y, NeighbourOptions(k=k)).explain(x) for k in (0, 8))
    distances = [(found - x).abs().sum(-1) for found in (near, far)]
    assert (distances[1] >= distances[0]).all()
    assert (distances[1] > distances[0]).any()
