"""Training rows to start from and to stay near to, found by an index."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from torch import Tensor

from veritracer.certificate import CHUNK
from veritracer.param_sets import ParamSet
from veritracer.proving import Question, prove

LOF_NEIGHBOURS = 20
"""Neighbours of the local outlier factor: scikit-learn's default, and the paper's."""


class Neighbours:
    """Encoded training rows (N, d) with an index over them in the L1 distance; there may be none.

    What was indexed is kept: the rows that a set of models decides one way by proof, and all of them.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows.detach().cpu().double()
        self._factors: dict[int, LocalOutlierFactor] = {}
        self._proved: dict[tuple[Any, ...], tuple[Tensor, NearestNeighbors]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def decided(self, param_set: ParamSet, x: Tensor, sign: float, k: int) -> Tensor:
        """The k nearest training rows (n, k, d) that every model of the set decides as ``sign``.

        Fewer where there are not so many; (n, 0, d) where there are none.
        """
        pool, index = self._index(param_set, sign)
        k = min(k, len(pool))
        if k == 0 or len(x) == 0:
            return x.new_empty(len(x), 0, x.shape[1])
        positions = index.kneighbors(x.detach().cpu().numpy(), k, return_distance=False)
        return pool[torch.from_numpy(positions)].to(x)

    def nearest(self, x: Tensor) -> tuple[Tensor, NDArray[np.float64]]:
        """The nearest training row of each row (n, d), and how far it is in L1 over the number of columns."""
        distance, position = self._everybody.kneighbors(x.detach().cpu().numpy(), 1)
        return self.rows[torch.from_numpy(position[:, 0])].to(x), distance[:, 0] / x.shape[1]

    def outlier_factor(self, x: Tensor, k: int = LOF_NEIGHBOURS) -> NDArray[np.float64]:
        """The local outlier factor of each row among the training rows: about 1 inside, larger outside.

        Repeated training rows count once: twenty copies of a row would have no distance to compare with.
        """
        factor: NDArray[np.float64] = -self._outliers(k).score_samples(x.detach().cpu().numpy())
        return factor

    @cached_property
    def _everybody(self) -> NearestNeighbors:
        return NearestNeighbors(metric="manhattan").fit(self.rows.numpy())

    def _outliers(self, k: int) -> LocalOutlierFactor:
        if k in self._factors:
            return self._factors[k]
        rows = np.unique(self.rows.numpy(), axis=0)
        fewer = min(k, max(len(rows) - 1, 1))
        self._factors[k] = LocalOutlierFactor(fewer, metric="manhattan", novelty=True).fit(rows)
        return self._factors[k]

    def _index(self, param_set: ParamSet, sign: float) -> tuple[Tensor, NearestNeighbors]:
        model = param_set.network.digest(param_set.center)
        key = (model, param_set.norm, tuple(map(float, param_set.radii)), sign)
        if key not in self._proved:
            pool = self.rows[self._decided(param_set, sign)]
            index = NearestNeighbors(metric="manhattan")
            self._proved[key] = pool, index.fit(pool.numpy()) if len(pool) else index
        return self._proved[key]

    @torch.no_grad()
    def _decided(self, param_set: ParamSet, sign: float) -> Tensor:
        """Which training rows every model of the set decides as ``sign``, by a proof that needs no x."""
        parts = []
        for rows in self.rows.split(CHUNK):  # type: ignore[no-untyped-call]
            against = torch.full((len(rows),), -sign, dtype=torch.float64)
            question = Question(rows, rows, against)
            proofs = prove(param_set, question, ("ibp", "crown-ibp"), decide=True)
            parts.append(proofs.worst_logit < 0)
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)


def thinned(rows: Tensor, most: int) -> Tensor:
    """At most so many of the rows, evenly spread over the table."""
    if most >= len(rows):
        return rows
    return rows[torch.linspace(0, len(rows) - 1, max(most, 0), dtype=torch.float64).round().long()]
