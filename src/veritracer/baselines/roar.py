"""ROAR: recourse against the worst shift of a linear model's weights (Upadhyay, Joshi, Lakkaraju 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from veritracer.baselines import surrogate
from veritracer.baselines.explainer import Baseline, Options
from veritracer.baselines.surrogate import Linear

LAMBDAS = (0.0005, 0.001, 0.005, *(0.01 + 0.05 * i for i in range(22)))
"""The costs that are tried for each row, as in the authors' code."""

MOMENTUM, SQUARES = 0.9, 0.999
"""Adam's decay of the mean gradient and of its square."""


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


class Problem(NamedTuple):
    """p problems side by side: rows (p, d), decisions wanted, linear models, and the price of distance."""

    start: Tensor
    goal: Tensor
    slope: Tensor
    offset: Tensor
    cost: Tensor

    def select(self, keep: Tensor | slice) -> Problem:
        """Some of the problems."""
        return Problem(*(part[keep] for part in self))

    def objective(self, point: Tensor, delta_max: float) -> tuple[Tensor, Tensor]:
        """The cross-entropy of the worst model within reach plus the cost, (p,), and the gradient (p, d)."""
        margin = self.goal * ((point * self.slope).sum(-1) + self.offset)
        short = delta_max * (point.abs().sum(-1) + 1.0) - margin
        move = point - self.start
        loss = softplus(short) + self.cost * move.abs().sum(-1)
        uphill = delta_max * point.sign() - self.goal.unsqueeze(-1) * self.slope
        gradient = torch.sigmoid(short).unsqueeze(-1) * uphill + self.cost.unsqueeze(-1) * move.sign()
        return loss, gradient


class Roar(Baseline[RoarOptions]):
    """Minimises over x′ the worst loss(w + δ, x′) over ‖δ‖∞ ≤ delta_max, plus λ·‖x′ − x‖₁.

    w is a linear model of the network's logit near x (LIME); a linear network is its own. With s = ±1 the
    decision wanted, the worst case is exact: s·(w + δ)(x′, 1) is least at s·w(x′, 1) − delta_max·(‖x′‖₁ + 1),
    so that no linear program is solved. Categories are left alone, as the paper reproduced here did it.
    """

    name = "roar"
    options = RoarOptions

    def prepare(self) -> None:
        """Draw the sample that local models are fitted to."""
        self.fixed = surrogate.category_columns(self.encoding)
        size = self.config.samples
        self.sample = surrogate.draw(self.logit, self.x_train, self.fixed, size, self.stream())

    def search(self, x: Tensor) -> Tensor:
        """All λ and all rows in one optimisation, then the λ of each row."""
        goal, local = self.goal(x), self._local(x)
        costs = x.new_tensor(LAMBDAS if self.config.cost is None else [self.config.cost])
        every = (len(costs), len(x))
        problem = Problem(
            x.expand(*every, -1).reshape(-1, x.shape[1]),
            goal.expand(every).flatten(),
            local.slope.expand(*every, -1).reshape(-1, x.shape[1]),
            local.offset.expand(every).flatten(),
            costs.unsqueeze(-1).expand(every).flatten(),
        )
        found = self._optimise(problem).view(*every, -1)
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

    def _optimise(self, problem: Problem) -> Tensor:
        """Where Adam comes to rest in each problem, (p, d); what has come to rest leaves the batch.

        Written out: an optimiser of torch can not let rows go, and most are at rest long before the last.
        """
        config = self.config
        rest, active = problem.start.clone(), torch.arange(len(problem.start))
        point, before = problem.start.clone(), torch.ones_like(problem.goal)
        mean, square = torch.zeros_like(point), torch.zeros_like(point)
        for step in range(1, config.steps + 1):
            loss, gradient = problem.objective(point, config.delta_max)
            gradient = torch.where(self.fixed, 0.0, gradient)
            mean = torch.lerp(mean, gradient, 1 - MOMENTUM)
            square = torch.lerp(square, gradient.square(), 1 - SQUARES)
            scale = (square / (1 - SQUARES**step)).sqrt() + 1e-8
            point = point - config.learning_rate / (1 - MOMENTUM**step) * mean / scale
            point = point.clamp(0.0, 1.0) if config.clip else point
            rest[active] = point
            moving = (loss - before).abs() > config.tolerance
            if not bool(moving.any()):
                break
            keep = moving.nonzero()[:, 0] if not bool(moving.all()) else slice(None)
            problem, active, before = problem.select(keep), active[keep], loss[keep]
            point, mean, square = point[keep], mean[keep], square[keep]
        return rest


def _last_before_failure(reached: Tensor) -> Tensor:
    """For each row the last λ before the first that fails after a success; the last one if none does."""
    ever = reached.cumsum(0) > 0
    failed = ever & ~reached
    last = len(reached) - 1
    return torch.where(failed.any(0), failed.int().argmax(0) - 1, last)
