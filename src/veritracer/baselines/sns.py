"""SNS: stable neighbour search, "Consistent Counterfactuals for Deep Models" (Black et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from veritracer.baselines.elastic import Elastic, ElasticOptions
from veritracer.baselines.explainer import Baseline, Options
from veritracer.network import to_module


@dataclass(frozen=True)
class SnsOptions(Options):
    """Hyperparameters of the stable neighbour search.

    Attributes
    ----------
    base
        Of the search for the counterfactual that it starts from.
    radius
        ε: how far it may go from there, in the l2 norm.
    steps, step
        Number and length of the steps.
    points
        Points on the line from the origin that the integral is taken over.
    noise
        Deviation of the random offset that it starts with.
    """

    base: ElasticOptions = field(default_factory=ElasticOptions)
    radius: float = 0.1
    steps: int = 100
    step: float = 1e-3
    points: int = 20
    noise: float = 1e-3


class Sns(Baseline[SnsOptions]):
    """Maximises ∫₀¹ p(t·x′) dt over the l2 ball of ``radius`` around a closest counterfactual.

    p is the probability of the decision wanted. Where it is high on the whole line it is also flat: by the
    paper's argument a point with a small local Lipschitz constant. One-hot groups are moved like numbers,
    and so broken.
    """

    name = "sns"
    options = SnsOptions

    def prepare(self) -> None:
        """Build the base search, and draw its offset."""
        module = to_module(self.network, self.theta)
        self.base = Elastic(
            module, self.encoding, self.x_train, self.y_train, self.config.base, self.random_state
        )
        # The same offset for every row, so that no row's answer depends on where in a batch it stands.
        self.offset = torch.randn(self.encoding.dim, generator=self.stream(), dtype=torch.float64)

    def search(self, x: Tensor) -> Tensor:
        """The last point of the ascent that has the decision wanted; the start where none has."""
        goal, start = self.goal(x), self.base.search(x)
        here, kept = start + self.config.noise * self.offset, start
        for _ in range(self.config.steps):
            uphill = self._gradient(here, goal)
            length = uphill.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(uphill.dtype).tiny)
            here = self._inside(here + self.config.step * uphill / length, start)
            kept = torch.where(self.reached(here, goal).unsqueeze(-1), here, kept)
        return kept

    def _gradient(self, x_cf: Tensor, goal: Tensor) -> Tensor:
        """Of the mean probability on the line from the origin to each row."""
        point = x_cf.detach().requires_grad_()
        share = torch.arange(1, self.config.points + 1, dtype=x_cf.dtype) / self.config.points
        line = share[:, None, None] * point  # (points, n, d)
        mean = torch.sigmoid(goal * self.logit(line)).mean(0)
        (gradient,) = torch.autograd.grad(mean.sum(), [point])
        return gradient

    def _inside(self, x_cf: Tensor, start: Tensor) -> Tensor:
        """The nearest point of the ball around ``start``, then of [0, 1]."""
        move = x_cf - start
        length = move.norm(dim=-1, keepdim=True)
        inside: Tensor = start + move * (self.config.radius / length).clamp(max=1.0)
        return inside.clamp(0.0, 1.0)
