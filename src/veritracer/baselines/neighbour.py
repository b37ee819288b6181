"""The floor of every comparison: the nearest training row that the model decides the other way."""

from __future__ import annotations

import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from veritracer.baselines.explainer import Baseline, Options


class Neighbour(Baseline[Options]):
    """The nearest training row, by L1 distance, that the classifier decides otherwise than the row.

    Legal and plausible by construction, valid whenever there is such a row at all, and far away.
    """

    name = "neighbour"
    options = Options

    def prepare(self) -> None:
        """Index the training rows of each decision."""
        favourable = self.logit(self.x_train) > 0
        self.pools = {1.0: self.x_train[favourable], -1.0: self.x_train[~favourable]}
        self.indices = {
            goal: NearestNeighbors(n_neighbors=1, metric="manhattan").fit(pool.numpy())
            for goal, pool in self.pools.items()
            if len(pool)
        }

    def search(self, x: Tensor) -> Tensor:
        """A look-up in the index of each decision; the row itself if nobody was decided otherwise."""
        goal, found = self.goal(x), x.clone()
        for wanted, index in self.indices.items():
            rows = goal == wanted
            if bool(rows.any()):
                position = index.kneighbors(x[rows].numpy(), return_distance=False)[:, 0]
                found[rows] = self.pools[wanted][torch.from_numpy(position)]
        return found
