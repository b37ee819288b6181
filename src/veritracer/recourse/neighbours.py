"""Training rows to start from, to follow and to stay near to, found by an index."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds import UNCONDITIONAL
from veritracer.certificate import CHUNK
from veritracer.param_sets import ParamSet
from veritracer.proving import Question, prove

if TYPE_CHECKING:
    from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

LOF_NEIGHBOURS = 20
"""Neighbours of the local outlier factor: scikit-learn's default, and the paper's."""

LOF_LABELLED = 10
"""Neighbours of the local outlier factor among rows of one label."""

ROLE_MODELS = 3000
"""Rows that a person's way may lead to, at most: more of them are closer, but take longer to compare."""

Believed = Callable[[Tensor, Tensor], Tensor]
"""Which of the encoded rows (n, d) are believed to be favourable where the second (n,) holds, else not."""


class Neighbours:
    """Encoded training rows (N, d) with an index over them in the L1 distance; there may be none.

    ``favourable`` (N,) are their labels, where they are known. What was indexed is kept: the rows that a set
    of models decides one way by proof, those of one label, and all of them.
    """

    def __init__(self, rows: Tensor, favourable: Tensor | None = None) -> None:
        self.rows = rows.detach().cpu().double()
        self.favourable = None if favourable is None else favourable.detach().cpu().bool()
        self._factors: dict[tuple[int, bool | None], LocalOutlierFactor] = {}
        self._proved: dict[tuple[Any, ...], tuple[Tensor, NearestNeighbors]] = {}
        self._models: dict[tuple[Any, ...], Tensor] = {}

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

    def outlier_factor(
        self, x: Tensor, k: int = LOF_NEIGHBOURS, *, favourable: bool | None = None
    ) -> NDArray[np.float64]:
        """The local outlier factor of each row among the training rows: about 1 inside, larger outside.

        With ``favourable``: among the rows of that label. Repeated training rows count once: twenty copies of
        a row would have no distance to compare with.
        """
        factor: NDArray[np.float64] = -self._outliers(k, favourable).score_samples(x.detach().cpu().numpy())
        return factor

    def labelled(self, favourable: bool) -> Tensor:
        """The rows of one label, each once; none where labels are not known."""
        if self.favourable is None:
            return self.rows[:0]
        found: Tensor = torch.unique(self.rows[self.favourable == favourable], dim=0)
        return found

    def role_models(self, param_set: ParamSet, favourable: bool, believed: Believed, key: Hashable) -> Tensor:
        """Training rows of one label that the whole set and the panel decide so: somebody to follow, (m, d).

        ``key`` is who believes, for what is kept. Those that only the set decides so where nobody is left.
        """
        about = (*self._key(param_set), favourable, key)
        if about not in self._models:
            pool = self.labelled(favourable)
            proved = pool[_decided(pool, param_set, 1.0 if favourable else -1.0)]
            wanted = torch.full((len(proved),), favourable)
            sure = proved[believed(proved, wanted)] if len(proved) else proved
            chosen = sure if len(sure) else proved
            order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))
            self._models[about] = chosen[order[:ROLE_MODELS]]
        return self._models[about]

    @cached_property
    def _everybody(self) -> NearestNeighbors:
        return _by_l1().fit(self.rows.numpy())

    def _outliers(self, k: int, favourable: bool | None) -> LocalOutlierFactor:
        if (k, favourable) not in self._factors:
            from sklearn.neighbors import LocalOutlierFactor

            rows = np.unique(self.rows.numpy(), axis=0) if favourable is None else self.labelled(favourable)
            fewer = min(k, max(len(rows) - 1, 1))
            factor = LocalOutlierFactor(fewer, metric="manhattan", novelty=True).fit(np.asarray(rows))
            self._factors[k, favourable] = factor
        return self._factors[k, favourable]

    def _index(self, param_set: ParamSet, sign: float) -> tuple[Tensor, NearestNeighbors]:
        key = (*self._key(param_set), sign)
        if key not in self._proved:
            pool = self.rows[_decided(self.rows, param_set, sign)]
            index = _by_l1()
            self._proved[key] = pool, index.fit(pool.numpy()) if len(pool) else index
        return self._proved[key]

    @staticmethod
    def _key(param_set: ParamSet) -> tuple[Any, ...]:
        model = param_set.network.digest(param_set.center)
        return model, param_set.norm, tuple(map(float, param_set.radii))


def _by_l1() -> NearestNeighbors:
    """An index in the L1 distance, to be fitted."""
    from sklearn.neighbors import NearestNeighbors  # here: a loaded model may never be asked for one

    return NearestNeighbors(metric="manhattan")


@torch.no_grad()
def _decided(rows: Tensor, param_set: ParamSet, sign: float) -> Tensor:
    """Which rows every model of the set decides as ``sign``, by a proof that needs no x."""
    parts = []
    for some in torch.split(rows, CHUNK):
        against = torch.full((len(some),), -sign, dtype=torch.float64)
        question = Question(some, some, against)
        proofs = prove(param_set, question, UNCONDITIONAL, decide=True)
        parts.append(proofs.worst_logit < 0)
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)


def nearest_of(pool: Tensor, x: Tensor, count: int) -> Tensor:
    """The nearest rows of ``pool`` (m, d) to each row of ``x`` (n, d) in L1: (n, at most count, d)."""
    found = []
    for some in torch.split(x, CHUNK):
        distance = torch.cdist(some.float(), pool.to(some.device).float(), p=1.0)
        found.append(distance.topk(min(count, len(pool)), largest=False).indices.cpu())
    return pool[torch.cat(found)].to(x) if found else x.new_empty(0, 0, x.shape[1])


def thinned(rows: Tensor, most: int) -> Tensor:
    """At most so many of the rows, evenly spread over the table."""
    if most >= len(rows):
        return rows
    return rows[torch.linspace(0, len(rows) - 1, max(most, 0), dtype=torch.float64).round().long()]
