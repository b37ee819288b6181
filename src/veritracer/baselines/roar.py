"""ROAR: recourse against the worst shift of a linear model's weights (Upadhyay, Joshi, Lakkaraju 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from veritracer.baselines import surrogate
from veritracer.baselines.explainer import Baseline, Options
from veritracer.baselines.surrogate import Linear
from veritracer.encoding import Encoding

LAMBDAS = (0.0005, 0.001, 0.005, *(0.01 + 0.05 * i for i in range(22)))
"""The costs that are tried for each row, as in the authors' code."""


@dataclass(frozen=True)
class RoarOptions(Options):
    """Hyperparameters of ROAR.

    Attributes
    ----------
    delta_max
        How far every weight of the surrogate, and its offset, may move.
    cost
        λ, the price of distance. ``None`` tries ``LAMBDAS`` upwards and takes, for each row, the last one
        before the classifier stops to agree that the decision has changed: the authors' own heuristic.
    learning_rate, tolerance, steps
        Of Adam; a row is done when its loss moves by no more than ``tolerance``, or after ``steps``.
    samples
        Points that a local surrogate is fitted to.
    clip
        Whether a column stays in [0, 1], the range of the training rows.
        NOTE[paper]: ROAR knows no range, but outside of it no row can be decoded.
    """

    delta_max: float = 0.1
    cost: float | None = None
    learning_rate: float = 1e-3
    tolerance: float = 1e-4
    steps: int = 3000
    samples: int = 5000
    clip: bool = True


class Roar(Baseline[RoarOptions]):
    """Minimises over x′ the worst loss(w + δ, x′) over ‖δ‖∞ ≤ delta_max, plus λ·‖x′ − x‖₁.

    w is a linear model of the network's logit near x (LIME); a linear network is its own. With s = ±1 the
    decision wanted, the worst case is exact: s·(w + δ)(x′, 1) is least at s·w(x′, 1) − delta_max·(‖x′‖₁ + 1),
    so that no linear program is solved. Categories are left alone, as the paper reproduced here did it.
    """

    name = "roar"
    options = RoarOptions

    def __init__(
        self,
        classifier: nn.Module,
        encoding: Encoding,
        x_train: Tensor,
        y_train: Tensor,
        config: RoarOptions | None = None,
        random_state: int = 0,
    ) -> None:
        super().__init__(classifier, encoding, x_train, y_train, config, random_state)
        self.fixed = surrogate.category_columns(encoding)
        size = self.config.samples
        self.sample = surrogate.draw(self.logit, self.x_train, self.fixed, size, self.stream())

    def search(self, x: Tensor) -> Tensor:
        """All λ and all rows in one optimisation, then the λ of each row."""
        goal = self.goal(x)
        costs = x.new_tensor(LAMBDAS if self.config.cost is None else [self.config.cost])
        found = self._optimise(x, goal, self._local(x), costs)  # (λ, n, d)
        chosen = _last_before_failure(self.reached(found, goal))
        return found[chosen, torch.arange(len(x))]

    def _local(self, x: Tensor) -> Linear:
        """The linear model of each row; nothing can be gained from columns that must not move."""
        if self.network.depth == 1:
            origin = torch.zeros_like(x[:1])
            slope = (self.logit(torch.eye(x.shape[1], dtype=x.dtype)) - self.logit(origin)).expand_as(x)
            local = Linear(slope, self.logit(origin).expand(len(x)))
        else:
            local = surrogate.fit(self.sample, x, self.logit(x))
        here = torch.where(self.fixed, local.slope * x, torch.zeros_like(x)).sum(-1)
        return Linear(torch.where(self.fixed, 0.0, local.slope), local.offset + here)

    def _optimise(self, x: Tensor, goal: Tensor, local: Linear, costs: Tensor) -> Tensor:
        """Where Adam comes to rest for each λ and row, (λ, n, d)."""
        x_cf = x.expand(len(costs), *x.shape).clone().requires_grad_()
        rest, before = x_cf.detach().clone(), torch.ones(x_cf.shape[:2], dtype=x.dtype)
        moving = torch.ones(x_cf.shape[:2], dtype=torch.bool)
        optimiser = torch.optim.Adam([x_cf], lr=self.config.learning_rate)
        for _ in range(self.config.steps):
            loss = self._worst_loss(x_cf, goal, local) + costs.unsqueeze(-1) * (x_cf - x).abs().sum(-1)
            (gradient,) = torch.autograd.grad(loss.sum(), [x_cf])
            x_cf.grad = torch.where(self.fixed, torch.zeros_like(gradient), gradient)
            optimiser.step()
            with torch.no_grad():
                if self.config.clip:
                    x_cf.clamp_(0.0, 1.0)
                rest = torch.where(moving.unsqueeze(-1), x_cf, rest)
            moving &= (loss.detach() - before).abs() > self.config.tolerance
            before = loss.detach()
            if not bool(moving.any()):
                break
        return rest

    def _worst_loss(self, x_cf: Tensor, goal: Tensor, local: Linear) -> Tensor:
        """The cross-entropy of the worst linear model within reach, (λ, n)."""
        margin = goal * ((x_cf * local.slope).sum(-1) + local.offset)
        return softplus(self.config.delta_max * (x_cf.abs().sum(-1) + 1.0) - margin)


def _last_before_failure(reached: Tensor) -> Tensor:
    """For each row the last λ before the first that fails after a success; the last one if none does."""
    ever = reached.cumsum(0) > 0
    failed = ever & ~reached
    last = len(reached) - 1
    return torch.where(failed.any(0), failed.int().argmax(0) - 1, last)
