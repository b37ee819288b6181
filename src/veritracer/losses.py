"""The losses of joint training (the paper's Equations 1 and 2), each a pure function of tensors.

Every one is (..., n) -> (...), a weighted mean over the rows; dimensions in front are models that are
trained side by side.

NOTE[paper]: the losses write y for the label that a counterfactual must leave; what is meant, and used
here, is today's decision, as ``sign``.
"""

from __future__ import annotations

import torch
from torch import Tensor


def accuracy_loss(logit: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """L_A: cross-entropy of the classifier; ``y`` is 1 for favourable and 0 for not."""
    each = torch.nn.functional.binary_cross_entropy_with_logits(logit, y, reduction="none")
    return weighted_mean(each, weight)


def validity_loss(cf_logit: Tensor, sign: Tensor, weight: Tensor) -> Tensor:
    """L_V: squared probability that the counterfactual keeps the decision it should leave."""
    return weighted_mean(torch.sigmoid(cf_logit * sign).square(), weight)


def robust_loss(worst_logit: Tensor, weight: Tensor) -> Tensor:
    """L_R: the same for the worst model of the set, from an upper bound of ``sign * logit``."""
    return weighted_mean(torch.sigmoid(worst_logit).square(), weight)


def proximity_loss(x_cf: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """L_Q: mean absolute change over the encoded columns.

    NOTE[paper]: the paper takes any quality loss, its code the squared distance. The absolute one leaves
    alone what need not change, instead of changing everything a little.
    """
    return weighted_mean((x_cf - x).abs().mean(-1), weight)


def weighted_mean(each: Tensor, weight: Tensor) -> Tensor:
    """Σ weight·each / Σ weight over the last dimension; 0 where all weights are."""
    return (each * weight).sum(-1) / weight.sum(-1).clamp(min=torch.finfo(each.dtype).tiny)
