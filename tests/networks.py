"""Hypothesis strategies for networks, sets of models and pairs of rows, in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from veritracer.models.network import Network, Theta
from veritracer.models.param_sets import ParamSet

NORMS = ("linf", "l2", "l1")
ROWS = 4


class Case(NamedTuple):
    """A set of models with rows, counterfactuals and the decisions that today's model takes on the rows."""

    param_set: ParamSet
    x: Tensor
    x_cf: Tensor
    sign: Tensor


def make_case(
    *,
    seed: int,
    depth: int = 3,
    width: int = 5,
    inputs: int = 4,
    slope: float = 0.0,
    outputs: int = 1,
    norm: str = "linf",
    kappa: float = 0.2,
    radius: str = "mean-abs",
    spread: float = 1.0,
    signed: bool = True,
    rows: int = ROWS,
) -> Case:
    """A random case; ``spread`` says how far counterfactuals are, ``signed`` admits inputs below 0."""
    g = torch.Generator().manual_seed(seed)
    sizes = [inputs, *[width] * (depth - 1), outputs]
    theta: list[Tensor] = []
    for into, out in pairwise(sizes):
        theta.append(torch.randn(out, into, generator=g, dtype=torch.float64) / into**0.5)
        theta.append(torch.randn(out, generator=g, dtype=torch.float64) * 0.3)
    network = Network((slope,) * (depth - 1), (1.0,) if outputs == 1 else (-1.0, 1.0))
    param_set = ParamSet.of(network, tuple(theta), kappa, norm, radius)
    draw = torch.randn if signed else torch.rand
    x = draw(rows, inputs, generator=g, dtype=torch.float64)
    other = draw(rows, inputs, generator=g, dtype=torch.float64)
    x_cf = x + spread * (other - x)
    sign = torch.where(network.logit(theta, x) > 0, 1.0, -1.0).to(torch.float64)
    return Case(param_set, x, x_cf, sign)


def make_valid(*, kappa: float, rows: int = 8, **how: object) -> Case:
    """A network that accepts half of its rows; rows of each decision are the others' counterfactuals."""
    case = make_case(kappa=kappa, rows=60, **how)  # type: ignore[arg-type]
    network, theta = case.param_set.network, case.param_set.center
    shift = network.logit(theta, case.x).median() / network.readout[-1]
    last = theta[-1].clone()
    last[-1] -= shift
    param_set = ParamSet.of(network, (*theta[:-1], last), kappa)
    sign = torch.where(network.logit(param_set.center, case.x) > 0, 1.0, -1.0).double()
    accepted, declined = case.x[sign > 0], case.x[sign < 0]
    n = rows // 2
    x, x_cf = torch.cat([accepted[:n], declined[:n]]), torch.cat([declined[-n:], accepted[-n:]])
    return Case(param_set, x, x_cf, torch.cat([torch.ones(n), -torch.ones(n)]).double())


@st.composite
def cases(draw: st.DrawFn, **fixed: object) -> Case:
    """Cases over depth, width, activation, outputs, norm, radius, spread and sign of the inputs."""
    choices: dict[str, st.SearchStrategy[object]] = {
        "seed": st.integers(0, 2**31 - 1),
        "depth": st.integers(1, 4),
        "width": st.integers(1, 8),
        "inputs": st.integers(1, 6),
        "slope": st.sampled_from([0.0, 0.01, 0.3, 1.0]),
        "outputs": st.sampled_from([1, 1, 2]),
        "norm": st.sampled_from(NORMS),
        "kappa": st.sampled_from([0.0, 1e-3, 0.02, 0.1, 0.2, 0.5, 1.5]),
        "radius": st.sampled_from(["mean-abs", "norm"]),
        "spread": st.sampled_from([0.0, 0.1, 1.0, 3.0]),
        "signed": st.booleans(),
    }
    values = {name: fixed[name] if name in fixed else draw(s) for name, s in choices.items()}
    return make_case(**values)


def drawn_models(case: Case, seed: int, n: int = 24) -> Theta:
    """Models of the set, stacked: uniform draws and extreme points of every ball."""
    g = torch.Generator().manual_seed(seed)
    uniform, corners = case.param_set.sample(n, g), case.param_set.sample(n, g, corners=True)
    return tuple(torch.cat(pair) for pair in zip(uniform, corners, strict=True))


def worst_seen(case: Case, theta: Theta, x_cf: Tensor, *, conditional: bool) -> Tensor:
    """The largest sign * logit(x_cf) over the models, for each row; -inf where none may be counted."""
    network = case.param_set.network
    logit = network.logit(theta, x_cf) * case.sign  # (models, rows)
    if conditional:
        keeps = network.logit(theta, case.x) * case.sign >= 0
        logit = torch.where(keeps, logit, -torch.inf)
    return logit.amax(0)


def module_of(case: Case) -> nn.Sequential:
    """Today's model as users have it: a torch module."""
    layers: list[nn.Module] = []
    network = case.param_set.network
    for k, (weight, bias) in enumerate(network.layers(case.param_set.center)):
        linear = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
        linear.weight.data, linear.bias.data = weight.clone(), bias.clone()
        slope = network.slopes[k] if k < len(network.slopes) else None
        layers += [linear] if slope is None else [linear, nn.ReLU() if slope == 0 else nn.LeakyReLU(slope)]
    return nn.Sequential(*layers)
