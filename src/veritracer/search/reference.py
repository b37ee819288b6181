"""Reference data beside the model: training rows, their labels, a panel, and quantile bounds.

A certificate covers one set of models. Reference data tell whether independent models accept a
counterfactual, and whether it resembles people with the wanted label.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds.methods import UNCONDITIONAL
from veritracer.certificate import CHUNK
from veritracer.encoding import Encoding
from veritracer.models.param_sets import ParamSet
from veritracer.proving import ProofBatch, prove
from veritracer.training import Panel

if TYPE_CHECKING:
    from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

    from veritracer.search.problem import SearchProblem

MARGIN = float(np.log(0.65 / 0.35))
"""Margin at which half of a panel accepts a row, in logits: 65 % of its vote."""

HARM = 0.01
"""Change of the panel's vote above which a change of a person does harm, or is needed."""

INLIER = 1.5
"""Largest local outlier factor, among rows of the wanted label, of a plausible row."""

QUANTILE, LEAST_SHARE = 0.05, 0.005
"""Quantile at which numbers are bounded, and least share of the rows of a label that have a category."""

LOF_NEIGHBOURS = 20
"""Neighbours of the local outlier factor: scikit-learn's default, and the paper's."""

LOF_LABELLED = 10
"""Neighbours of the local outlier factor among rows of one label."""

MOST_PROTOTYPES = 3000
"""Largest number of prototypes: more of them are closer, but take longer to compare."""

PanelTest = Callable[[Tensor, Tensor], Tensor]
"""Return a mask of the rows (n, d) that a panel decides with a margin as the second argument (n,) says."""


class Neighbours:
    """Encoded training rows (N, d) with an index over them in the L1 distance; there may be none.

    ``favourable`` (N,) are their labels if known. Indices are kept: of the rows that a set of models decides
    one way by proof, of those of one label, and of all rows.
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
        """Return the k nearest training rows (n, k, d) that every model of the set decides as ``sign``.

        There may be fewer, and k may be 0.
        """
        pool, index = self._index(param_set, sign)
        k = min(k, len(pool))
        if k == 0 or len(x) == 0:
            return x.new_empty(len(x), 0, x.shape[1])
        positions = index.kneighbors(x.detach().cpu().numpy(), k, return_distance=False)
        return pool[torch.from_numpy(positions)].to(x)

    def nearest(self, x: Tensor) -> tuple[Tensor, NDArray[np.float64]]:
        """Return the nearest training row of each row (n, d), and its L1 distance divided by d."""
        distance, position = self._everybody.kneighbors(x.detach().cpu().numpy(), 1)
        return self.rows[torch.from_numpy(position[:, 0])].to(x), distance[:, 0] / x.shape[1]

    def outlier_factor(
        self, x: Tensor, k: int = LOF_NEIGHBOURS, *, favourable: bool | None = None
    ) -> NDArray[np.float64]:
        """Return the local outlier factor of each row among training rows: about 1 inside, larger outside.

        With ``favourable``: among the rows of that label. Repeated training rows count once: twenty copies of
        a row would have no distance to compare with.
        """
        factor: NDArray[np.float64] = -self._outliers(k, favourable).score_samples(x.detach().cpu().numpy())
        return factor

    def subsample(self, chosen: Tensor, most: int) -> Tensor:
        """Return at most so many of the ``chosen`` rows (a mask (N,)), evenly spread over the table."""
        return subsample(self.rows[chosen], most)

    def labelled(self, favourable: bool) -> Tensor:
        """Return the rows of one label, each once; none if labels are unknown."""
        if self.favourable is None:
            return self.rows[:0]
        rows: Tensor = torch.unique(self.rows[self.favourable == favourable], dim=0)
        return rows

    def prototypes(self, param_set: ParamSet, favourable: bool, accepts: PanelTest, key: Hashable) -> Tensor:
        """Return training rows of one label that the whole set and the panel decide so, (m, d).

        If the panel accepts none, they are those that the whole set decides so. ``key`` identifies the panel.
        """
        about = (*self._key(param_set), favourable, key)
        if about not in self._models:
            pool = self.labelled(favourable)
            proved = pool[_decided(pool, param_set, 1.0 if favourable else -1.0)]
            wanted = torch.full((len(proved),), favourable)
            sure = proved[accepts(proved, wanted)] if len(proved) else proved
            chosen = sure if len(sure) else proved
            order = torch.randperm(len(chosen), generator=torch.Generator().manual_seed(0))
            self._models[about] = chosen[order[:MOST_PROTOTYPES]]
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
    """Return an index in the L1 distance, to be fitted."""
    from sklearn.neighbors import NearestNeighbors  # here: a loaded model may never be asked for one

    return NearestNeighbors(metric="manhattan")


@torch.no_grad()
def _decided(rows: Tensor, param_set: ParamSet, sign: float) -> Tensor:
    """Return a mask of the rows with an unconditional proof that every model decides them as ``sign``."""
    parts = []
    for some in torch.split(rows, CHUNK):
        against = torch.full((len(some),), -sign, dtype=torch.float64)
        batch = ProofBatch(some, some, against)
        proofs = prove(param_set, batch, UNCONDITIONAL, sign_only=True)
        parts.append(proofs.worst_logit < 0)
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool)


def nearest_of(pool: Tensor, x: Tensor, count: int) -> Tensor:
    """Return the nearest rows of ``pool`` (m, d) to each row of ``x`` (n, d) in L1: (n, at most count, d)."""
    nearest = []
    for some in torch.split(x, CHUNK):
        distance = torch.cdist(some.float(), pool.to(some.device).float(), p=1.0)
        nearest.append(distance.topk(min(count, len(pool)), largest=False).indices.cpu())
    return pool[torch.cat(nearest)].to(x) if nearest else x.new_empty(0, 0, x.shape[1])


def subsample(rows: Tensor, most: int) -> Tensor:
    """Return at most so many of the rows, evenly spread over the table."""
    if most >= len(rows):
        return rows
    return rows[torch.linspace(0, len(rows) - 1, max(most, 0), dtype=torch.float64).round().long()]


class QuantileBounds(NamedTuple):
    """Ends of the encoded values of most rows of a label: (2, d) each, unfavourable rows first."""

    lower: Tensor
    upper: Tensor

    @classmethod
    def of(cls, encoding: Encoding, x: Tensor, favourable: Tensor) -> Self:
        """Return the bounds of rows (n, d) with these labels (n,); a label without rows has no bounds."""
        number = torch.tensor([encoding.blocks[i].feature.is_numeric for i in encoding.owner.tolist()])
        ends = torch.zeros(2, encoding.dim, dtype=torch.float64), torch.ones(2, encoding.dim).double()
        for side in (0, 1):
            rows = x[favourable == bool(side)].double()
            if len(rows) == 0:
                continue
            for end, from_below in zip(ends, (True, False), strict=True):
                wide, narrow = (_quantile(rows, q if from_below else 1 - q) for q in (LEAST_SHARE, QUANTILE))
                end[side] = torch.where(number & encoding.numeric, narrow, wide)
        seen = [x[favourable == bool(side)].double().mean(0) >= LEAST_SHARE for side in (0, 1)]
        ends[1][:, ~encoding.numeric] = torch.stack(seen).double()[:, ~encoding.numeric]
        return cls(*ends)

    def applied_to(self, problem: SearchProblem) -> SearchProblem:
        """Return the problem with changes inside the bounds of the wanted label."""
        side = (problem.sign < 0).long().cpu()
        return problem.with_bounds(self.lower[side].to(problem.x), self.upper[side].to(problem.x))


def _quantile(rows: Tensor, level: float) -> Tensor:
    """Return the quantile of each column: a value that occurs, on the inner side of the level."""
    position = int(np.ceil(level * (len(rows) - 1)) if level < 0.5 else np.floor(level * (len(rows) - 1)))
    values: Tensor = rows.sort(dim=0).values[position]
    return values


@dataclass(frozen=True, eq=False)
class ReferenceData:
    """Training rows, panel and quantile bounds to compare a counterfactual with; each part may be absent.

    ``threshold_logit`` is the logit at which the model and the panel's members decide.
    """

    neighbours: Neighbours
    panel: Panel | None = None
    quantile_bounds: QuantileBounds | None = None
    threshold_logit: float = 0.0

    @property
    def has_prototypes(self) -> bool:
        """Return whether there are prototypes: a panel, and rows whose labels are known."""
        return self.panel is not None and self.neighbours.favourable is not None and len(self.neighbours) > 0

    @torch.no_grad()
    def panel_margin(self, x_cf: Tensor, favourable: Tensor) -> Tensor:
        """Return the margin by which both halves of the panel's teachers decide as wanted, in logits (n,).

        The less certain half counts. At 0 and above the panel accepts: 65 % of the vote.
        """
        assert self.panel is not None
        side = torch.where(favourable, 1.0, -1.0).to(x_cf)
        halves = [torch.logit(half.to(x_cf)) for half in self.panel.opinions(x_cf)]
        return (side * (torch.stack(halves) - self.threshold_logit) - MARGIN).amin(0)

    def panel_accepts(self, x_cf: Tensor, favourable: Tensor) -> Tensor:
        """Return a mask of the rows that both halves of the panel's teachers decide as wanted."""
        return self.panel_margin(x_cf, favourable) >= 0

    @torch.no_grad()
    def doubtful(self, encoding: Encoding, x: Tensor, x_cf: Tensor, favourable: Tensor) -> Tensor:
        """Return a mask (n, n_features) of the changes that the panel's teachers expect to do harm.

        Made alone at ``x``, such a change lowers their vote for the wanted label by more than ``HARM``, and
        undoing it at ``x_cf`` does not lower it by more than that. Without a panel there is none.
        """
        changed = encoding.changed(x_cf, x)
        if self.panel is None or not bool(changed.any()):
            return torch.zeros_like(changed)
        row, feature = changed.nonzero(as_tuple=True)
        columns = encoding.owner.to(x.device) == feature.unsqueeze(-1)
        alone = torch.where(columns, x_cf[row], x[row])
        undone = torch.where(columns, x[row], x_cf[row])
        side = torch.where(favourable, 1.0, -1.0).to(x)
        before, after, with_it, without = (
            side[some] * torch.cat([self.panel.vote(part) for part in torch.split(points, CHUNK)]).to(x)
            for points, some in ((x, slice(None)), (x_cf, slice(None)), (alone, row), (undone, row))
        )
        harmful = with_it < before[row] - HARM
        needless = without >= after[row] - HARM
        return changed.index_put((row, feature), harmful & needless)

    def agreement(self, x_cf: Tensor, favourable: Tensor) -> NDArray[np.float64]:
        """Return the share (n,) of held-out members that decide as wanted; NaN without a panel."""
        if self.panel is None or len(x_cf) == 0:
            return np.full(len(x_cf), np.nan)
        share = self.panel.agreement(x_cf, favourable, self.threshold_logit)
        return share.double().cpu().numpy()

    def outlier_factor(self, x_cf: Tensor, favourable: Tensor) -> NDArray[np.float64]:
        """Return the local outlier factor (n,) among rows of the wanted label; NaN if labels are unknown."""
        factors = np.full(len(x_cf), np.nan)
        for side in (False, True):
            rows = (favourable == side).cpu().numpy()
            if rows.any() and len(self.neighbours.labelled(side)) > 1:
                factors[rows] = self.neighbours.outlier_factor(x_cf[rows], LOF_LABELLED, favourable=side)
        return factors

    def distance(self, x_cf: Tensor, favourable: Tensor) -> NDArray[np.float64]:
        """Return the L1 distance (n,) to the nearest row of the wanted label, over d; NaN without one."""
        distances = np.full(len(x_cf), np.nan)
        for side in (False, True):
            rows, pool = (favourable == side).cpu().numpy(), self.neighbours.labelled(side)
            if rows.any() and len(pool) > 0:
                nearest = nearest_of(pool, x_cf[rows], 1)[:, 0]
                distances[rows] = (nearest - x_cf[rows]).abs().mean(-1).cpu().numpy()
        return distances
