"""The closest counterfactual by iterated shrinkage: the elastic-net attack of Chen et al. (2018).

Black et al. call it "Min. ℓ1": it is what their stable neighbour search starts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.baselines.explainer import Baseline, Options, closest


@dataclass(frozen=True)
class ElasticOptions(Options):
    """Hyperparameters of the elastic-net attack.

    Attributes
    ----------
    shrink
        β: what every column's move is shortened by in each step; smaller moves are taken back.
    margin
        The logit beyond the border that is aimed at.
    weight, rounds
        The first c, the price of a decision that has not changed, and how often it is adapted: tenfold
        until a row succeeds, then by bisection.
    steps, learning_rate
        Of each round; the rate falls to 0 with the square root of what is left.
    """

    shrink: float = 1.0
    margin: float = 0.5
    weight: float = 1e-3
    rounds: int = 9
    steps: int = 40
    learning_rate: float = 1e-3


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
    """Minimises c·max(margin − s·logit(x′), 0) + ‖x′ − x‖₂² + β·‖x′ − x‖₁ by accelerated shrinkage.

    Of all valid iterates the one with the least L1 distance is kept; s = ±1 is the decision wanted.
    """

    name = "elastic"
    options = ElasticOptions

    def search(self, x: Tensor) -> Tensor:
        """The best of all rounds, all rows at once, each with a c of its own."""
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
        """The closest valid iterate of each row, and its distance: infinite where there was none."""
        config = self.config
        here = ahead = x
        best, cost = x.clone(), torch.full_like(goal, torch.inf)
        for step in range(config.steps):
            rate = config.learning_rate * (1.0 - step / config.steps) ** 0.5
            point = ahead.detach().requires_grad_()
            short = torch.relu(config.margin - goal * self.logit(point))
            smooth = weight * short + (point - x).square().sum(-1)
            (gradient,) = torch.autograd.grad(smooth.sum(), [point])
            there = shrunk(ahead - rate * gradient, x, config.shrink)
            ahead = there + step / (step + 3.0) * (there - here)
            here = there
            best, cost = closest(best, cost, here, (here - x).abs().sum(-1), self.reached(here, goal))
        return best, cost


def shrunk(point: Tensor, x: Tensor, by: float) -> Tensor:
    """``point`` with every column drawn towards ``x`` by so much, and no further, inside [0, 1]."""
    move = point - x
    return (x + move.sign() * torch.relu(move.abs() - by)).clamp(0.0, 1.0)
