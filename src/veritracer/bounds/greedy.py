"""The paper's Algorithm 2: the exact solution of Equation 3 on a box, by sorting.

It is kept as the oracle that the dual is tested and timed against.
"""

from __future__ import annotations

import torch
from torch import Tensor


def maximum(mu: Tensor, nu: Tensor, alpha: Tensor, beta: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """The maximum of μ·θ + ν subject to α·θ + β >= 0 over |θ - center| <= radius; -inf where there is none.

    ``mu`` and ``alpha`` have shape (n, P), ``nu`` and ``beta`` (n,), ``center`` and ``radius`` (P,).

    It starts from the point that satisfies the constraint best and, where the objective pulls the other
    way, gives up constraint for objective in the order of the exchange rate |μ_i| / |α_i|, until
    nothing of the constraint is left. A coordinate with α_i = 0 costs nothing and is at its best from
    the start.
    """
    direction = torch.where(alpha != 0, alpha.sign(), mu.sign())
    theta = center + radius * direction
    margin = (alpha * theta).sum(-1) + beta
    value = (mu * theta).sum(-1) + nu
    opposed = mu * alpha < 0
    rate = torch.where(opposed, mu.abs() / torch.where(opposed, alpha.abs(), 1.0), -1.0)
    order = rate.argsort(dim=-1, descending=True)
    spend = torch.where(opposed, 2 * radius * alpha.abs(), 0.0).gather(-1, order)
    gain = torch.where(opposed, 2 * radius * mu.abs(), 0.0).gather(-1, order)
    before = spend.cumsum(-1) - spend
    share = ((margin.unsqueeze(-1) - before) / torch.where(spend > 0, spend, 1.0)).clamp(0.0, 1.0)
    value = value + (gain * share).sum(-1)
    return torch.where(margin >= 0, value, -torch.inf)
