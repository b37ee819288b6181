"""SNS: stable neighbour search, "Consistent Counterfactuals for Deep Models" (Black et al. 2022).

It starts from the closest counterfactual by iterated shrinkage: the elastic-net attack of Chen et al. (2018),
which Black et al. call "Min. ℓ1".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from veritracer.models.network import to_module
from veritracer_bench.baselines.explainer import Baseline, Options, closest


@dataclass(frozen=True)
class ElasticOptions(Options):
    """Hyperparameters of the elastic-net attack.

    Attributes
    ----------
    shrink
        β: the amount by which every column's change is shortened in each step; smaller changes are undone.
    margin
        Target logit beyond the boundary.
    weight, rounds
        The first c, the weight of an unchanged decision, and how often it is adapted: tenfold until a row
        succeeds, then by bisection.
    steps, learning_rate
        Of each round; the rate falls to 0 with the square root of the remaining share.
    recipe
        ``"paper"`` computes what the code of the paper reproduced here does: the margin is one of
        probabilities, and where it holds the whole gradient is 0, that of the distance included.
    """

    shrink: float = 1.0
    margin: float = 0.5
    weight: float = 1e-3
    rounds: int = 9
    steps: int = 40
    learning_rate: float = 1e-3
    recipe: Literal["paper"] | None = None


class _Weights(NamedTuple):
    """c of each row (n,) with the largest that failed and the smallest that did not."""

    now: Tensor
    low: Tensor
    high: Tensor

    def adapted(self, success: Tensor) -> _Weights:
        low = torch.where(success, self.low, torch.maximum(self.low, self.now))
        high = torch.where(success, torch.minimum(self.high, self.now), self.high)
        now = torch.where(torch.isfinite(high), (low + high) / 2, self.now * 10)
        return _Weights(now, low, high)


class Elastic(Baseline[ElasticOptions]):
    """Minimise c·max(margin − s·logit(x′), 0) + ‖x′ − x‖₂² + β·‖x′ − x‖₁ by accelerated shrinkage.

    Of all valid iterates the one with the least L1 distance is kept; s = ±1 is the wanted decision.
    """

    name = "elastic"
    options = ElasticOptions

    def search(self, x: Tensor) -> Tensor:
        """Return the best of all rounds, all rows at once, each with its own c."""
        goal = self.goal(x)
        best, cost = x.clone(), torch.full_like(goal, torch.inf)
        start = torch.full_like(goal, self.config.weight)
        weights = _Weights(start, torch.zeros_like(start), torch.full_like(start, torch.inf))
        for _ in range(self.config.rounds):
            found, found_cost = self._round(x, goal, weights.now)
            best, cost = closest(best, cost, found, found_cost, torch.isfinite(found_cost))
            weights = weights.adapted(torch.isfinite(found_cost))
        return best

    def _round(self, x: Tensor, goal: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the closest valid iterate of each row, and its distance: infinite if there was none."""
        config = self.config
        here = ahead = x
        best, cost = x.clone(), torch.full_like(goal, torch.inf)
        for step in range(config.steps):
            rate = config.learning_rate * (1.0 - step / config.steps) ** 0.5
            point = ahead.detach().requires_grad_()
            lead = goal * self.logit(point)
            if config.recipe == "paper":
                lead = torch.tanh(lead / 2)  # the difference of the two probabilities
            short = torch.relu(config.margin - lead)
            smooth = weight * short + (point - x).square().sum(-1)
            (gradient,) = torch.autograd.grad(smooth.sum(), [point])
            if config.recipe == "paper":
                gradient = torch.where((short > 0).unsqueeze(-1), gradient, 0.0)
            there = shrunk(ahead - rate * gradient, x, config.shrink)
            ahead = there + step / (step + 3.0) * (there - here)
            here = there
            best, cost = closest(best, cost, here, (here - x).abs().sum(-1), self.reached(here, goal))
        return best, cost


def shrunk(point: Tensor, x: Tensor, by: float) -> Tensor:
    """Move every column of ``point`` towards ``x`` by ``by``, at most as far as ``x``, inside [0, 1]."""
    move = point - x
    return (x + move.sign() * torch.relu(move.abs() - by)).clamp(0.0, 1.0)


# ---------------------------------------------------------------- stable neighbour search


@dataclass(frozen=True)
class SnsOptions(Options):
    """Hyperparameters of the stable neighbour search.

    Attributes
    ----------
    base
        Options of the search for the initial counterfactual.
    radius
        ε: maximum distance from there, in the l2 norm.
    steps, step
        Number and length of the steps.
    points
        Points on the line from the origin over which the integral is taken.
    noise
        Standard deviation of the random initial offset.
    recipe
        ``"paper"`` starts from the base search of that recipe, and draws an offset for each row: a row's
        answer then depends on its place in the batch.
    """

    base: ElasticOptions = field(default_factory=ElasticOptions)
    radius: float = 0.1
    steps: int = 100
    step: float = 1e-3
    points: int = 20
    noise: float = 1e-3
    recipe: Literal["paper"] | None = None


class Sns(Baseline[SnsOptions]):
    """Maximise ∫₀¹ p(t·x′) dt over the l2 ball of ``radius`` around a closest counterfactual.

    p is the probability of the wanted decision. Where it is high on the whole line it is also flat: by the
    paper's argument a point with a small local Lipschitz constant. One-hot groups are moved like numbers, and
    so broken.
    """

    name = "sns"
    options = SnsOptions

    def prepare(self) -> None:
        """Build the base search, and draw its offset."""
        module = to_module(self.network, self.theta)
        options = replace(self.config.base, recipe=self.config.recipe or self.config.base.recipe)
        self.base = Elastic(module, self.encoding, self.x_train, self.y_train, options, self.random_state)
        # The same offset for every row, so that a row's answer does not depend on its place in a batch.
        self.offset = torch.randn(self.encoding.dim, generator=self.stream(), dtype=torch.float64)

    def search(self, x: Tensor) -> Tensor:
        """Return the last point of the ascent with the wanted decision; the start if there is none."""
        goal, start = self.goal(x), self.base.search(x)
        offset = self.offset
        if self.config.recipe == "paper":
            offset = torch.randn(x.shape, generator=self.stream(), dtype=torch.float64)
        here, kept = start + self.config.noise * offset, start
        for _ in range(self.config.steps):
            uphill = self._gradient(here, goal)
            length = uphill.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(uphill.dtype).tiny)
            here = self._inside(here + self.config.step * uphill / length, start)
            kept = torch.where(self.reached(here, goal).unsqueeze(-1), here, kept)
        return kept

    def _gradient(self, x_cf: Tensor, goal: Tensor) -> Tensor:
        """Return the gradient of the mean probability on the line from the origin to each row."""
        point = x_cf.detach().requires_grad_()
        share = torch.arange(1, self.config.points + 1, dtype=x_cf.dtype) / self.config.points
        line = share[:, None, None] * point  # (points, n, d)
        mean = torch.sigmoid(goal * self.logit(line)).mean(0)
        (gradient,) = torch.autograd.grad(mean.sum(), [point])
        return gradient

    def _inside(self, x_cf: Tensor, start: Tensor) -> Tensor:
        """Return the nearest point of the ball around ``start``, clamped to [0, 1]."""
        move = x_cf - start
        length = move.norm(dim=-1, keepdim=True)
        inside: Tensor = start + move * (self.config.radius / length).clamp(max=1.0)
        return inside.clamp(0.0, 1.0)
