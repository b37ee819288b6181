"""Networks and pairs of rows to measure on, made from a fixed seed.

The shape is the paper's predictor, 23-100-10-10-1. *standard* is trained for accuracy alone;
*verified* also on the robust loss of fixed pairs (the paper's variant with a fixed generator).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

import veritracer as vt
from veritracer.bounds import crown_ibp
from veritracer.models.network import from_module
from veritracer.models.param_sets import ParamSet

SHAPE = (23, 100, 10, 10, 1)


class Workload(NamedTuple):
    """A set of models with rows, counterfactuals and today's decisions, in float64."""

    name: str
    module: nn.Sequential
    param_set: ParamSet
    x: Tensor
    x_cf: Tensor
    sign: Tensor


def mlp(shape: tuple[int, ...], slope: float = 0.0) -> nn.Sequential:
    """An MLP of that shape."""
    layers: list[nn.Module] = []
    for into, out in pairwise(shape):
        layers += [nn.Linear(into, out), nn.LeakyReLU(slope) if slope else nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def table(n: int, width: int, generator: torch.Generator, *, signed: bool = False) -> tuple[Tensor, Tensor]:
    """Rows in [0, 1] (or standard normal), and labels of a noisy score that is not linear."""
    draw = torch.randn if signed else torch.rand
    x = draw(n, width, generator=generator)
    weight = torch.randn(width, generator=generator)
    centred = x if signed else 2 * x - 1
    score = centred @ weight + torch.sin(3 * centred[:, 0]) + 0.5 * torch.randn(n, generator=generator)
    return x, (score > 0).float()


def pairs(x: Tensor, score: Tensor, generator: torch.Generator) -> Tensor:
    """A counterfactual for each row: among 30 rows that are clearly on the other side, the nearest."""
    high, low = (x[score.argsort(descending=d)[: len(x) // 4]] for d in (True, False))
    pools = torch.where((score > 0)[:, None, None], *(_draws(p, len(x), generator) for p in (low, high)))
    nearest = (pools - x[:, None]).abs().sum(-1).argmin(1)
    return pools[torch.arange(len(x)), nearest]


def recourse(features: int, width: int, rows: int = 500, seed: int = 0) -> tuple[vt.Recourse, pd.DataFrame]:
    """Recourse for a verified-trained network of that many inputs and hidden units, with fresh rows."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x, y = table(2000 + rows, features, generator)
    shape = (features, width, 10, 10, 1)
    module = train(mlp(shape), x[:2000], y[:2000], kappa=0.1, epochs=15, generator=generator)
    frame = pd.DataFrame(x.double().numpy(), columns=[f"x{i}" for i in range(features)])
    schema = vt.Schema([vt.Feature(name, "continuous", lower=0.0, upper=1.0) for name in frame.columns])
    encoding = vt.Encoding.fit(schema, frame)
    return vt.Recourse(module, schema, encoding, rows=frame[:2000], kappa=0.05), frame[2000:]


def _draws(pool: Tensor, n: int, generator: torch.Generator) -> Tensor:
    return pool[torch.randint(0, len(pool), (n, 30), generator=generator)]


def train(
    module: nn.Sequential, x: Tensor, y: Tensor, *, kappa: float, epochs: int, generator: torch.Generator
) -> nn.Sequential:
    """The module after training: for accuracy, and, with ``kappa`` above 0, against its whole set.

    The second half of the epochs has the robust loss, with kappa ramped up.
    """
    optimiser = torch.optim.Adam(module.parameters(), 3e-3)
    network, theta = from_module(module)
    for epoch in range(epochs):
        now = kappa * min(1.0, max(0.0, (epoch - epochs / 3) / (epochs / 3)))
        with torch.no_grad():
            x_cf = pairs(x, network.logit(theta, x), generator) if now else x
        for rows in torch.randperm(len(x), generator=generator).split(128):
            logit = network.logit(theta, x[rows])
            loss = nn.functional.binary_cross_entropy_with_logits(logit, y[rows])
            if now:
                sign = torch.where(logit.detach() > 0, 1.0, -1.0)
                bound = crown_ibp(ParamSet.of(network, theta, now), x[rows], x_cf[rows], sign).worst_logit
                loss = loss + torch.sigmoid(bound).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return module


def learned(name: str, *, kappa: float, verified: bool, rows: int = 2000, seed: int = 0) -> Workload:
    """A standard- or verified-trained network with rows that it was not trained on."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x, y = table(4000 + rows, SHAPE[0], generator)
    module = train(
        mlp(SHAPE), x[:4000], y[:4000], kappa=0.2 if verified else 0.0, epochs=24, generator=generator
    )
    param_set = ParamSet.around(module, kappa)
    fresh = x[4000:].double()
    logit = param_set.network.logit(param_set.center, fresh)
    sign = torch.where(logit > 0, 1.0, -1.0).to(torch.float64)
    return Workload(name, module, param_set, fresh, pairs(fresh, logit, generator), sign)


def binding(rows: int = 2000, seed: int = 0) -> Workload:
    """Rows near the decision border with opposite counterfactuals, where only the first layer may move.

    Features of both signs and a LeakyReLU of slope 0.1 make the planes at x and at x_cf pull against each
    other, so that "x keeps its decision" rules out the worst model.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    x, y = table(20 * rows, SHAPE[0], generator, signed=True)
    module = train(mlp(SHAPE, slope=0.1), x[:4000], y[:4000], kappa=0.0, epochs=8, generator=generator)
    radii = ParamSet.around(module, 0.05).radii
    param_set = ParamSet.around(module, radius=[float(radii[0]), float(radii[1]), 0, 0, 0, 0, 0, 0])
    logit = param_set.network.logit(param_set.center, x.double())
    near = x[logit.abs().argsort()[:rows]].double()
    sign = torch.where(param_set.network.logit(param_set.center, near) > 0, 1.0, -1.0).to(torch.float64)
    return Workload("constraint binds", module, param_set, near, -3 * near, sign)
