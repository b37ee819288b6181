"""The losses of joint training, and Adam for many models at once.

The losses are the paper's Equations 1 and 2, each a pure function of tensors, (..., n) -> (...): a weighted
mean over the rows. Leading dimensions are models that are trained side by side.

NOTE[paper]: the losses write y for the label that a counterfactual must leave; what is meant, and used here,
is today's decision, as ``sign``.

Torch's own optimisers import its compiler, which takes longer than a small fit; ``Adam`` is the same
arithmetic (Kingma and Ba, 2015), elementwise, so that models side by side do not interact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def accuracy_loss(logit: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return L_A: cross-entropy of the classifier; ``y`` is 1 for favourable and 0 for unfavourable."""
    each = torch.nn.functional.binary_cross_entropy_with_logits(logit, y, reduction="none")
    return weighted_mean(each, weight)


def squared_accuracy_loss(logit: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Return the mean squared difference between the probability of the favourable class and the label."""
    return weighted_mean((torch.sigmoid(logit) - y).square(), weight)


def output_accuracy_loss(
    outputs: Tensor, y: Tensor, weight: Tensor, output_weights: tuple[float, float]
) -> Tensor:
    """Return the weighted mean cross-entropy of each of two outputs, (..., n, 2), by itself.

    The first output predicts the unfavourable label and the second the favourable one. The weights belong to
    outputs, not to classes: each output sees the rows of both.
    """
    each = torch.nn.functional.binary_cross_entropy_with_logits(
        outputs, torch.stack([1 - y, y], -1), reduction="none"
    )
    return weighted_mean((each * outputs.new_tensor(output_weights)).mean(-1), weight)


def validity_loss(cf_logit: Tensor, sign: Tensor, weight: Tensor, goal: Tensor | None = None) -> Tensor:
    """Return L_V: the squared probability that the counterfactual keeps the decision it should leave.

    With a ``goal`` (..., n) it is the squared difference to that probability.
    """
    return weighted_mean(_from_goal(cf_logit * sign, goal).square(), weight)


def robust_loss(worst_logit: Tensor, weight: Tensor, goal: Tensor | None = None) -> Tensor:
    """Return L_R: the validity loss of the worst model, from an upper bound of ``sign * logit``."""
    return weighted_mean(_from_goal(worst_logit, goal).square(), weight)


def _from_goal(kept_logit: Tensor, goal: Tensor | None) -> Tensor:
    """Return how far the probability of the old decision is from the goal; from 0 without one."""
    kept = torch.sigmoid(kept_logit)
    return kept if goal is None else kept - goal


def proximity_loss(x_cf: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return L_Q: the mean absolute change over the encoded columns.

    NOTE[paper]: the paper allows any quality loss; its code uses the squared distance. The absolute distance
    leaves unneeded features unchanged, instead of changing all of them a little.
    """
    return weighted_mean((x_cf - x).abs().mean(-1), weight)


def squared_proximity_loss(x_cf: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the mean squared change over the encoded columns, the quality loss of the paper's code."""
    return weighted_mean((x_cf - x).square().mean(-1), weight)


def weighted_mean(each: Tensor, weight: Tensor) -> Tensor:
    """Return Σ weight·each / Σ weight over the last dimension; 0 where all weights are 0."""
    return (each * weight).sum(-1) / weight.sum(-1).clamp(min=torch.finfo(each.dtype).tiny)


class Adam:
    """Adam's moments of the gradients of ``parameters``, which ``step`` changes in place.

    With ``weight_decay`` it is AdamW (Loshchilov and Hutter, 2019).
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = [p.detach() for p in parameters]  # the same memory, without its history
        self.betas, self.epsilon, self.steps = betas, epsilon, 0
        self.weight_decay = weight_decay
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def decay(self, rate: float) -> None:
        """Shrink every parameter by the weight decay alone."""
        torch._foreach_mul_(self.parameters, 1 - rate * self.weight_decay)

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Move every parameter against its gradient."""
        self.steps += 1
        if self.weight_decay:
            self.decay(rate)
        (fast, slow), given = self.betas, list(gradients)
        torch._foreach_lerp_(self.first, given, 1 - fast)
        torch._foreach_mul_(self.second, slow)
        torch._foreach_addcmul_(self.second, given, given, 1 - slow)
        scale = torch._foreach_sqrt(self.second)
        torch._foreach_div_(scale, (1 - slow**self.steps) ** 0.5)
        torch._foreach_add_(scale, self.epsilon)
        torch._foreach_addcdiv_(self.parameters, self.first, scale, -rate / (1 - fast**self.steps))
