"""Adam, for parameters that carry a leading dimension of models.

The first of torch's own optimisers imports torch's compiler, which takes longer than a small fit; this is the
same arithmetic (Kingma and Ba, 2015), elementwise, so that models side by side do not meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Adam:
    """Moments of the gradients of ``parameters``, which ``step`` moves in place."""

    def __init__(
        self, parameters: Sequence[Tensor], betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-8
    ) -> None:
        self.parameters = [p.detach() for p in parameters]  # the same memory, without its history
        self.betas, self.epsilon, self.steps = betas, epsilon, 0
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Move every parameter against its gradient."""
        self.steps += 1
        (fast, slow), given = self.betas, list(gradients)
        torch._foreach_lerp_(self.first, given, 1 - fast)
        torch._foreach_mul_(self.second, slow)
        torch._foreach_addcmul_(self.second, given, given, 1 - slow)
        scale = torch._foreach_sqrt(self.second)
        torch._foreach_div_(scale, (1 - slow**self.steps) ** 0.5)
        torch._foreach_add_(scale, self.epsilon)
        torch._foreach_addcdiv_(self.parameters, self.first, scale, -rate / (1 - fast**self.steps))
