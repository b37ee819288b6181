"""The objective of one training run: the losses that its configuration chooses, and the bound in them.

Everything here is a pure function of tensors with leading dimensions for models that are trained side by
side, (..., n) -> (...).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from veritracer.bounds import dual
from veritracer.bounds.affine import Affine, keeps_decision
from veritracer.bounds.methods import BOUNDS, BoundProblem
from veritracer.models.network import affine
from veritracer.models.param_sets import ParamSet
from veritracer.training.config import TrainingConfig
from veritracer.training.losses import (
    accuracy_loss,
    output_accuracy_loss,
    proximity_loss,
    robust_loss,
    squared_accuracy_loss,
    squared_proximity_loss,
    validity_loss,
    weighted_mean,
)

MASKED = {"cross-entropy": 1.0, "mse": 1.0, "output-cross-entropy": 100.0}
"""Robust loss of a masked row: the largest that a row can have in the paper's code."""


@dataclass(frozen=True)
class Objective:
    """The losses and the bound of a configuration."""

    config: TrainingConfig

    def accuracy(self, outputs: Tensor, logit: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted accuracy loss; the decision is the sign of ``logit``, read from ``outputs``."""
        config, offset = self.config, self.config.threshold_logit
        if config.accuracy_loss == "output-cross-entropy":
            shifted = outputs + outputs.new_tensor([-offset / 2, offset / 2])
            return config.weight_accuracy * output_accuracy_loss(shifted, y, weight, config.output_weights)
        loss = accuracy_loss if config.accuracy_loss == "cross-entropy" else squared_accuracy_loss
        return config.weight_accuracy * loss(logit + offset, y, weight)

    def goal(self, logit: Tensor, sign: Tensor) -> Tensor | None:
        """Return the probability of the old decision that counterfactuals should have; None is 0.

        It is one minus the row's own probability of that decision, without gradient.
        """
        return None if self.config.target == "decision" else torch.sigmoid(-sign * logit.detach())

    def robust(
        self,
        worst_logit: Tensor,
        goal: Tensor | None,
        weight: Tensor,
        ramp: float = 1.0,
        counted: Tensor | None = None,
    ) -> Tensor:
        """Return the weighted robust loss at a point of the ramp; rows not ``counted`` add a constant."""
        config = self.config
        scale = ramp * config.weight_robust
        if config.accuracy_loss != "output-cross-entropy" and counted is None:
            return scale * robust_loss(worst_logit, weight, goal)
        aim = torch.zeros_like(worst_logit) if goal is None else goal
        if config.accuracy_loss == "output-cross-entropy":
            # Weights of the two outputs add up: the loss of one of them, for either side of the bound.
            each = torch.nn.functional.binary_cross_entropy_with_logits(worst_logit, aim, reduction="none")
            each = each * (sum(config.output_weights) / 2)
        else:
            each = (torch.sigmoid(worst_logit) - aim).square()
        if counted is not None:
            each = torch.where(counted, each, MASKED[config.accuracy_loss])
        return scale * weighted_mean(each, weight)

    def validity(self, cf_logit: Tensor, sign: Tensor, goal: Tensor | None, weight: Tensor) -> Tensor:
        """Return the weighted validity loss of the counterfactuals' logits."""
        return self.config.weight_validity * validity_loss(cf_logit, sign, weight, goal)

    def proximity(self, x_cf: Tensor, relaxed: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """Return the weighted proximity loss: absolute of the relaxed row, squared of the one shown."""
        if self.config.proximity_loss == "squared":
            return self.config.weight_proximity * squared_proximity_loss(x_cf, x, weight)
        return self.config.weight_proximity * proximity_loss(relaxed, x, weight)

    def worst_logit(self, param_set: ParamSet, x: Tensor, x_cf: Tensor, sign: Tensor) -> Tensor:
        """Return the upper bound of ``sign * logit(x_cf)`` over the set, by the bound of training."""
        if self.config.detach_slopes and self.config.bound == "simul-crown":
            return worst_with_fixed_slopes(param_set, x, x_cf, sign)
        return BOUNDS[self.config.bound](param_set, x, x_cf, sign).worst_logit


def worst_with_fixed_slopes(param_set: ParamSet, x: Tensor, x_cf: Tensor, sign: Tensor) -> Tensor:
    """Return Simul-CROWN's bound as the paper's code differentiates it: the values are the same.

    The slopes and offsets of both planes are constants, so that the gradient of the constrained maximum
    reaches the parameters through the centre of the set only, and never ``x_cf``. CROWN-IBP's value, with its
    full gradient, replaces it where it is smaller. Where the constraint does not bind the two are equal, and
    each contributes half of the gradient.

    NOTE[paper]: there rounding errors decide between the two equal numbers, for each row; half of each is the
    expectation.
    """
    problem = BoundProblem(param_set, x, x_cf, sign)
    crown = BOUNDS["crown-ibp"].function(problem).worst_logit
    with torch.no_grad():
        plane = problem.plane.detach()
        radii, norm = param_set.row_radii, param_set.norm
        value, multiplier = plane.upper(radii, norm), None
        constraint = plane
        if not bool(keeps_decision(param_set, plane, x, sign).all()):
            constraint = problem.constraint().detach()
            value, multiplier = dual.maximum(plane, constraint, radii, norm)
    moved = _at_center(param_set, plane)
    if multiplier is not None:
        moved = moved + multiplier * _at_center(param_set, constraint)
    return torch.minimum(value + (moved - moved.detach()), crown)


def _at_center(param_set: ParamSet, plane: Affine) -> Tensor:
    """Return the linear part of a plane at the centre of the set, (..., n), which carries the gradient."""
    parts = zip(plane.rows, plane.cols, param_set.layers, strict=True)
    return torch.stack([(row * affine(col, at.weight, at.bias)).sum(-1) for row, col, at in parts]).sum(0)
