"""Simple reference methods: the nearest training row, and plain gradient search.

The first is the nearest training row with the model's other decision; the second the counterfactual
explanations of Wachter, Mittelstadt and Russell (2017).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from veritracer_bench.baselines.explainer import Baseline, C, Options, closest


class NearestRow(Baseline[C]):
    """The nearest training row, by L1 distance, among candidates that the classifier decides differently."""

    def prepare(self) -> None:
        """Index the candidates of each decision."""
        self.pools = {goal: self.candidates(goal) for goal in (1.0, -1.0)}
        self.indices = {
            goal: NearestNeighbors(n_neighbors=1, metric="manhattan").fit(pool.numpy())
            for goal, pool in self.pools.items()
            if len(pool)
        }

    @abstractmethod
    def candidates(self, goal: float) -> Tensor:
        """Return training rows (k, d) of the decision ``goal``."""

    def search(self, x: Tensor) -> Tensor:
        """Look up the nearest row in the index of each decision; return the row itself if there is none."""
        goal, found = self.goal(x), x.clone()
        for wanted, index in self.indices.items():
            rows = goal == wanted
            if bool(rows.any()):
                position = index.kneighbors(x[rows].numpy(), return_distance=False)[:, 0]
                found[rows] = self.pools[wanted][torch.from_numpy(position)]
        return found


@dataclass(frozen=True)
class NeighbourOptions(Options):
    """Hyperparameters of the nearest neighbour.

    Attributes
    ----------
    k
        Number of a candidate's own nearest training rows on which the classifier must decide as it does.
    """

    k: int = 0


class Neighbour(NearestRow[NeighbourOptions]):
    """The nearest training row on which the classifier decides differently, and on its ``k`` neighbours too.

    Legal and plausible by construction, valid whenever such a row exists, and far away.
    """

    name = "neighbour"
    options = NeighbourOptions

    def candidates(self, goal: float) -> Tensor:
        """Return the training rows of this decision whose neighbours have it too."""
        decided = self.logit(self.x_train) * goal > 0
        pool, k = self.x_train[decided], self.config.k
        if k == 0 or not len(pool):
            return pool
        index = NearestNeighbors(n_neighbors=k + 1, metric="manhattan").fit(self.x_train.numpy())
        around = index.kneighbors(pool.numpy(), return_distance=False)
        return pool[decided[torch.from_numpy(around)].all(-1)]


# ---------------------------------------------------------------- plain gradient search


@dataclass(frozen=True)
class WachterOptions(Options):
    """Hyperparameters of the gradient search.

    Attributes
    ----------
    target
        Target probability of the other decision.
    weight, growth, rounds
        λ of the first round, its growth factor, and the number of rounds: a larger λ counts distance less.
    steps, learning_rate
        Of Adam, in each round.
    """

    target: float = 0.6
    weight: float = 0.1
    growth: float = 3.0
    rounds: int = 20
    steps: int = 100
    learning_rate: float = 0.01


class Wachter(Baseline[WachterOptions]):
    """Minimise λ·(p(x′) − target)² + ‖x′ − x‖₁, with λ growing until the decision has changed.

    The closest valid iterate of the first successful round is kept. NOTE[paper]: the paper divides each
    feature's distance by its median absolute deviation, which is 0 for most one-hot columns; here columns
    count alike, because they are scaled to [0, 1].
    """

    name = "wachter"
    options = WachterOptions

    def search(self, x: Tensor) -> Tensor:
        """Optimise the whole batch once for each λ; a row with an answer keeps it."""
        goal, best = self.goal(x), x.clone()
        done = torch.zeros(len(x), dtype=torch.bool)
        weight = self.config.weight
        for _ in range(self.config.rounds):
            if bool(done.all()):
                break
            found, cost = self._round(x[~done], goal[~done], weight)
            best[~done] = found
            done[~done] = torch.isfinite(cost)
            weight *= self.config.growth
        return best

    def _round(self, x: Tensor, goal: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Return the closest valid iterate of each row, and its distance: infinite if there was none."""
        x_cf = x.clone().requires_grad_()
        best, best_cost = x.clone(), torch.full_like(goal, torch.inf)
        optimiser = torch.optim.Adam([x_cf], lr=self.config.learning_rate)
        for _ in range(self.config.steps):
            distance = (x_cf - x).abs().sum(-1)
            logit = self.logit(x_cf) * goal
            loss = weight * (torch.sigmoid(logit) - self.config.target).square() + distance
            best, best_cost = closest(best, best_cost, x_cf.detach(), distance.detach(), logit.detach() > 0)
            (x_cf.grad,) = torch.autograd.grad(loss.sum(), [x_cf])
            optimiser.step()
            with torch.no_grad():
                x_cf.clamp_(0.0, 1.0)
        return best, best_cost
