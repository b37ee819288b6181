"""Search the set for a model that breaks the counterfactual.

Certified and attacked rates bracket the truth. A certificate that an attack breaks is a bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import trace
from veritracer.errors import NotSupportedError, message
from veritracer.models import balls
from veritracer.models.network import Network, Theta, to_module
from veritracer.models.param_sets import ParamSet


class Attack(NamedTuple):
    """The worst models found, one for each row.

    ``worst_logit`` (n,) is the largest ``sign * logit(x_cf)`` among the models tried that decide ``x`` as
    today; at 0 or above the counterfactual is broken, and ``theta``, with a first dimension of n, holds the
    model that breaks it.
    """

    worst_logit: Tensor
    theta: Theta


@dataclass(frozen=True, eq=False)
class Counterexample:
    """A model of the set that keeps today's decision on a row and gives its counterfactual the same one.

    Both decisions were found by evaluating the model, and no rounding could change them.

    Attributes
    ----------
    network, theta
        The model, in float64.
    x_cf
        The encoded row (d,) that it decides: the counterfactual itself, or a row of the region.
    """

    network: Network
    theta: Theta
    x_cf: Tensor

    @property
    def module(self) -> nn.Sequential:
        """Return the model as a torch module in float64."""
        return to_module(self.network, self.theta)


class _Best(NamedTuple):
    worst: Tensor
    theta: Theta


@singledispatch
def attack(
    model_set: Any,
    x: Tensor,
    x_cf: Tensor,
    sign: Tensor,
    *,
    steps: int = 25,
    restarts: int = 2,
    generator: torch.Generator | None = None,
) -> Attack:
    """Return the largest sign * logit(x_cf) found in the set among models with sign * logit(x) >= 0.

    It errs downwards: a search can only miss. Each family of models registers its implementation for its type
    of set.

    Raises
    ------
    NotSupportedError
        If no implementation is registered for the type of ``model_set``.
    """
    received = type(model_set).__name__
    raise NotSupportedError(message("a set of models of a registered family", received, "pass a ParamSet"))


@attack.register(ParamSet)
def _attack_mlp(
    param_set: ParamSet,
    x: Tensor,
    x_cf: Tensor,
    sign: Tensor,
    *,
    steps: int = 25,
    restarts: int = 2,
    generator: torch.Generator | None = None,
) -> Attack:
    """Search a set of MLPs by conditional gradient, for each row.

    It starts from today's model, from the worst model of the CROWN plane and from random corners. Each step
    moves towards the model of the set that is furthest along the gradient, so no iterate leaves the set, in
    any norm. A multiplier for each row grows while x has lost its decision and shrinks while it has kept it.
    """
    generator = generator or torch.Generator().manual_seed(0)
    n = len(x)
    center = tuple(t.detach().expand(n, *t.shape) for t in param_set.center)
    best = _Best(param_set.network.logit(param_set.center, x_cf).detach() * sign, center)
    starts = [center, _plane_start(param_set, x_cf, sign)]
    starts += [param_set.sample(n, generator, corners=True) for _ in range(restarts)]
    for start in starts:
        best = _climb(param_set, x, x_cf, sign, start, best, steps)
    return Attack(*best)


def _plane_start(param_set: ParamSet, x_cf: Tensor, sign: Tensor) -> Theta:
    """Return the model of the set at which the CROWN plane of each row is highest."""
    with torch.no_grad():
        plane = upper_plane(param_set, trace(param_set, x_cf), sign)
    gradient: list[Tensor] = []
    for row, col in zip(plane.rows, plane.cols, strict=True):
        gradient += [row.unsqueeze(-1) * col.unsqueeze(-2), row]
    return _support_point(param_set, tuple(gradient))


def _climb(
    param_set: ParamSet, x: Tensor, x_cf: Tensor, sign: Tensor, theta: Theta, best: _Best, steps: int
) -> _Best:
    """Return the better of ``best`` and the models found in some steps from ``theta``."""
    multiplier = torch.zeros_like(sign)
    for step in range(steps):
        theta = tuple(t.detach().requires_grad_() for t in theta)
        with torch.enable_grad():  # callers may have turned gradients off
            logits = param_set.network.logit(theta, torch.stack([x_cf, x], 1)) * sign.unsqueeze(-1)  # (n, 2)
            gradient = torch.autograd.grad((logits[:, 0] + multiplier * logits[:, 1]).sum(), theta)
        keeps = logits[:, 1].detach() >= 0
        best = _keep_better(best, logits[:, 0].detach(), theta, keeps)
        multiplier = torch.where(keeps, multiplier * 0.7, (multiplier * 2).clamp(min=0.25))
        share = 2.0 / (step + 2.0)
        goal = _support_point(param_set, gradient)
        theta = tuple(torch.lerp(t.detach(), g, share) for t, g in zip(theta, goal, strict=True))
    return _retreat(param_set, x, x_cf, sign, theta, best)


def _retreat(param_set: ParamSet, x: Tensor, x_cf: Tensor, sign: Tensor, theta: Theta, best: _Best) -> _Best:
    """Also try models between the last iterate and today's model, which keeps the decision on x."""
    with torch.no_grad():
        for share in (0.0, 0.1, 0.25, 0.5, 0.75):
            there = tuple(
                torch.lerp(t.detach(), c.detach(), share)
                for t, c in zip(theta, param_set.center, strict=True)
            )
            logits = param_set.network.logit(there, torch.stack([x_cf, x], 1)) * sign.unsqueeze(-1)
            best = _keep_better(best, logits[:, 0], there, logits[:, 1] >= 0)
    return best


def _keep_better(best: _Best, worst: Tensor, theta: Theta, allowed: Tensor) -> _Best:
    better = allowed & (worst > best.worst)
    kept = tuple(
        torch.where(better.view(-1, *(1,) * (t.dim() - 1)), t.detach(), b)
        for t, b in zip(theta, best.theta, strict=True)
    )
    return _Best(torch.where(better, worst, best.worst), kept)


def _support_point(param_set: ParamSet, gradient: Theta) -> Theta:
    """Return the model of the set that is furthest along the gradient (n, ...), for each row."""
    return tuple(
        center.detach() + radius * balls.support_point(g, param_set.norm)
        for g, center, radius in zip(gradient, param_set.center, param_set.radii, strict=True)
    )
