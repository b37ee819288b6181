"""What today's model decides, and whether rounding could decide otherwise."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from veritracer.bounds.ibp import trace
from veritracer.bounds.rounding import logit_error
from veritracer.errors import NotSupportedError, TrainingError, message
from veritracer.models.network import from_module, sign_of
from veritracer.models.param_sets import ParamSet
from veritracer.proving import PRECISION

ROWS_AT_ONCE = 2048
"""Rows whose rounding is bounded together: their intermediate sums stay in a core's cache."""


class Decisions(NamedTuple):
    """+1 where the model says favourable and -1 where not, (n,), and where that is beyond rounding."""

    sign: Tensor
    clear: Tensor


def decisions(module: nn.Module, x: Tensor) -> Decisions:
    """The module's own decisions on float64 rows (n, d), in its own precision.

    A decision is clear if no order of summation and no precision from float32 on could turn it. What
    the module computes is compared with what its layers say: a module that does something else is refused.
    """
    network, theta = from_module(module)
    exact_theta = tuple(t.detach().to(x.device, torch.float64) for t in theta)
    with torch.no_grad():
        computed = network.read(module(x.to(theta[0].device, theta[0].dtype))).to(x)
        alone = ParamSet.of(network, exact_theta, kappa=0.0)
        exact = network.logit(exact_theta, x)
        parts = [x[at : at + ROWS_AT_ONCE] for at in range(0, max(len(x), 1), ROWS_AT_ONCE)]
        error = torch.cat([logit_error(alone, trace(alone, part), PRECISION) for part in parts])
    check_computed(computed, exact, error)
    return Decisions(sign_of(computed), exact.abs() > error)


def threshold_logit(threshold: float) -> float:
    """The logit at which a probability is ``threshold``: what is in the last bias, with its sign turned."""
    if not 0.0 < threshold < 1.0:
        raise TrainingError(message("a threshold between 0 and 1", repr(threshold), "0.5 is the default"))
    return math.log(threshold / (1.0 - threshold))


def rate_threshold(logit: Tensor, rate: float) -> Tensor:
    """The logit above which the share ``rate`` of these (n,) lies, as nearly as ties allow.

    >>> rate_threshold(torch.tensor([0.0, 1.0, 2.0, 4.0]), 0.25)
    tensor(3., dtype=torch.float64)
    """
    if not 0.0 < rate < 1.0:
        raise TrainingError(message("an approval rate between 0 and 1", repr(rate), "0.3 accepts 30 %"))
    ordered = logit.double().sort(descending=True).values
    accepted = min(max(round(rate * len(ordered)), 1), len(ordered) - 1)
    return (ordered[accepted - 1] + ordered[accepted]) / 2


def check_computed(computed: Tensor, exact: Tensor, error: Tensor) -> None:
    """Refuse a module whose logits are farther than rounding from what its layers say."""
    if not bool(((computed - exact).abs() <= error).all()):
        received = "another logit than its layers give"
        remedy = "pass a plain nn.Sequential; hooks and overridden methods can not be reasoned about"
        raise NotSupportedError(message("a module that computes what its layers say", received, remedy))
