"""A model trained on inside of what was promised: for any torch MLP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from veritracer.bounds import Box
from veritracer.bounds.ibp import ibp_upper, trace
from veritracer.errors import TrainingError, message
from veritracer.fine_tuning import FineTuning, fine_tune
from veritracer.ledger.intersection import Intersection
from veritracer.ledger.keeping import Exposed
from veritracer.network import Network, Theta, from_module, to_module
from veritracer.param_sets import ParamSet

MARGIN = 0.1
"""A promise without a proof should be kept by so much (logit) before the penalty leaves it alone."""

AT_ONCE = 512
"""Promises that the penalty looks at in one step."""


def update(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    common: Intersection | None = None,
    *,
    exposed: Exposed | None = None,
    penalty: float = 1.0,
    held: Callable[[Theta], Tensor] | None = None,
    **options: Unpack[FineTuning],
) -> nn.Sequential:
    """The module after some epochs on encoded rows and 0/1 labels, in every set of ``common``.

    It starts from the module itself, or from the model next to it that is in all sets, and is projected back
    after each step; ``common.contains`` is true of the result. Promises that no set protects, ``exposed``,
    are pushed to their side by a hinge of weight ``penalty``; ``held`` is added to the loss as it is.
    """
    network, theta = from_module(module)
    project: Callable[[Theta], Theta] | None = None
    if common is not None:
        project = common.project
        module = to_module(network, project(tuple(t.detach() for t in theta)))
    penalties = [] if held is None else [held]
    if exposed is not None and len(exposed) and penalty > 0:
        penalties.append(_Hinge(network, exposed, penalty, options.get("random_state", 0)))
    tuned = fine_tune(
        module,
        x,
        y,
        project=project,
        penalty=_sum_of(penalties) if penalties else None,
        **options,
    )
    if not all(bool(t.isfinite().all()) for t in tuned.parameters()):
        remedy = "give a smaller learning_rate"
        raise TrainingError(message("finite weights", "nan or infinity after the update", remedy))
    assert common is None or common.contains(tuned), "a projection left the set"
    return tuned


def _sum_of(penalties: Sequence[Callable[[Theta], Tensor]]) -> Callable[[Theta], Tensor]:
    return lambda theta: torch.stack([penalty(theta) for penalty in penalties]).sum()


class _Hinge:
    """How far promises are on the wrong side of their margin, on average over those that are."""

    def __init__(self, network: Network, exposed: Exposed, weight: float, random_state: int) -> None:
        self.network, self.exposed, self.weight = network, exposed, weight
        self.random = torch.Generator().manual_seed(random_state)
        self.points = bool((exposed.lower == exposed.upper).all())

    def __call__(self, theta: Theta) -> Tensor:
        """The penalty at these parameters, on a random part of the promises."""
        some = torch.randperm(len(self.exposed), generator=self.random)[:AT_ONCE]
        lower, upper, sign = (
            getattr(self.exposed, name)[some].to(theta[0]) for name in ("lower", "upper", "sign")
        )
        if self.points:
            wrong = sign * self.network.logit(theta, lower)
        else:
            alone = ParamSet.of(self.network, theta, kappa=0.0)
            wrong = ibp_upper(alone, trace(alone, Box(lower, upper)), sign)
        excess = torch.relu(wrong + MARGIN)
        return self.weight * excess.sum() / (excess.detach() > 0).sum().clamp(min=1)
