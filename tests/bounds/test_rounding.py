"""What floating point can cost: exact rational arithmetic against float32, gradual underflow or none.

The slack has to cover every order of summation, weights, inputs and activations that float32 can not hold,
and processors that take every subnormal number for zero (``torch.set_flush_denormal``). The exact logit is
computed in ``fractions.Fraction``, so nothing here is compared with another rounding.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import veritracer as vt
from veritracer.bounds.ibp import trace
from veritracer.bounds.rounding import Precision, logit_error
from veritracer.models.network import Network, from_module, to_module
from veritracer.models.param_sets import ParamSet
from veritracer.proving import PRECISION

SIZES = [*range(-46, -35), -30, -20, -10, -3, -1, 0, 0, 0, 1, 5, 15, 25, 30]
"""Decimal exponents of weights and inputs: lost in float32, subnormal, ordinary, huge."""


def in_float32(network: Network, theta: list[Tensor], x: Tensor, *, flush: bool) -> float:
    """The logit of one row as a module in float32 computes it, subnormal numbers flushed to zero or not."""
    module = to_module(network, theta)
    if flush and not torch.set_flush_denormal(True):
        pytest.skip("this processor can not flush subnormal numbers")
    try:
        with torch.no_grad():
            return network.read(module.float()(x.float()))[0].item()
    finally:
        torch.set_flush_denormal(False)


def exact_logit(network: Network, theta: list[Tensor], x: list[float]) -> Fraction:
    """The logit as a rational number."""
    h = [Fraction(value) for value in x]
    for k, (weight, bias) in enumerate(network.layers(theta)):
        rows = zip(weight.tolist(), bias.tolist(), strict=True)
        z = [Fraction(b) + sum(Fraction(w) * a for w, a in zip(row, h, strict=True)) for row, b in rows]
        slope = Fraction(network.slopes[k]) if k < len(network.slopes) else Fraction(1)
        h = [value if value > 0 else slope * value for value in z]
    return sum((Fraction(r) * value for r, value in zip(network.readout, h, strict=True)), Fraction(0))


@st.composite
def numbers(draw: st.DrawFn) -> float:
    """A number of any size that a model may hold, of either sign, or zero."""
    if draw(st.integers(0, 9)) == 0:
        return 0.0
    mantissa = draw(st.floats(1.0, 9.999, allow_nan=False))
    return math.copysign(mantissa, draw(st.sampled_from([1.0, -1.0]))) * 10.0 ** draw(st.sampled_from(SIZES))


@st.composite
def extremes(draw: st.DrawFn) -> tuple[Network, list[Tensor], list[float]]:
    """A small network whose weights have every size, and a row."""
    depth = draw(st.integers(1, 3))
    outputs = draw(st.sampled_from([1, 1, 2]))
    widths = [draw(st.integers(1, 3)) for _ in range(depth)] + [outputs]
    theta = []
    for into, out in pairwise(widths):
        theta.append([[draw(numbers()) for _ in range(into)] for _ in range(out)])
        theta.append([draw(st.one_of(st.just(0.0), numbers())) for _ in range(out)])
    slope = draw(st.sampled_from([0.0, 0.01, 0.3, 0.95, 1.0, 1e-46]))
    readout = (1.0,) if outputs == 1 else (-1.0, 1.0)
    network = Network((slope,) * (depth - 1), readout)
    row = [draw(numbers()) for _ in range(widths[0])]
    return network, [torch.tensor(t, dtype=torch.float64) for t in theta], row


def one_layer(weight: float, x: float) -> tuple[Network, list[Tensor], list[float]]:
    tensors = [torch.tensor([[weight]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    return Network(()), tensors, [x]


@settings(max_examples=150)
@given(case=extremes())
@example(one_layer(1e-46, 1e30))
@example(one_layer(1e-39, 1e30))
@example(one_layer(1e39, 0.0))
@pytest.mark.parametrize("flush", [False, True])
def test_the_slack_covers_float32_to_the_last_digit(flush: bool, case: tuple) -> None:
    network, theta, row = case
    param_set = ParamSet.of(network, tuple(theta), kappa=0.0)
    x = torch.tensor([row], dtype=torch.float64)
    allowed = logit_error(param_set, trace(param_set, x), Precision.of(torch.float32))[0].item()
    computed = in_float32(network, theta, x, flush=flush)
    if math.isfinite(allowed):
        assert math.isfinite(computed)
        assert abs(Fraction(computed) - exact_logit(network, theta, row)) <= Fraction(allowed)


@settings(max_examples=100)
@given(case=extremes(), radius=numbers(), seed=st.integers(0, 999))
@pytest.mark.parametrize("flush", [False, True])
def test_the_slack_covers_every_model_of_the_set(flush: bool, case: tuple, radius: float, seed: int) -> None:
    network, theta, row = case
    param_set = ParamSet.of(network, tuple(theta), radius=abs(radius))
    drawn = param_set.sample(1, torch.Generator().manual_seed(seed), corners=True)
    model = [t[0] for t in drawn]
    x = torch.tensor([row], dtype=torch.float64)
    allowed = logit_error(param_set, trace(param_set, x), PRECISION)[0].item()
    computed = in_float32(network, model, x, flush=flush)
    if math.isfinite(allowed):
        assert math.isfinite(computed)
        assert abs(Fraction(computed) - exact_logit(network, model, row)) <= Fraction(allowed)


@pytest.mark.parametrize(
    ("layers", "x", "x_cf"),
    [
        ([[[1e-46]]], [[-1e30]], [[1e30]]),
        ([[[1e-39]]], [[-1e30]], [[1e30]]),  # lost only where subnormal numbers are flushed
        ([[[1e30], [-1e30]], [[1e-46, -1e-46]]], [[-1.0]], [[1.0]]),
        ([[[4e38, 9.0]]], [[0.0, -1.0]], [[0.0, 1.0]]),  # infinite in float32, and times 0 no number
    ],
    ids=["lost", "subnormal", "behind a hidden layer", "infinite weight"],
)
def test_what_a_lost_weight_decides_is_not_certified(layers: list, x: list, x_cf: list) -> None:
    modules: list[nn.Module] = []
    for weight in layers:
        modules += [nn.Linear(len(weight[0]), len(weight), bias=False, dtype=torch.float64), nn.ReLU()]
        modules[-2].weight.data.copy_(torch.tensor(weight, dtype=torch.float64))
    module = nn.Sequential(*modules[:-1])
    assert not vt.certify(module, x, x_cf, ParamSet.around(module, radius=0.0)).certified.any()


def test_the_slack_of_an_ordinary_network_is_what_it_was() -> None:
    """Less than a millionth part of it is for underflow."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(30, 100), nn.LeakyReLU(0.01), nn.Linear(100, 10), nn.ReLU(), nn.Linear(10, 1)
    )
    network, theta = from_module(module)
    param_set = ParamSet.of(network, tuple(t.detach().double() for t in theta), 0.2)
    ranges = trace(param_set, torch.rand(50, 30, dtype=torch.float64))
    whole = logit_error(param_set, ranges, PRECISION)
    rounding_alone = logit_error(param_set, ranges, PRECISION._replace(tiny=0.0))
    assert (whole <= rounding_alone * (1 + 1e-6)).all()
    assert whole.max() < 1e-3
