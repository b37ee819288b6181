"""Members of a panel as tensors: stacked networks and boosted trees, evaluated on many rows at once.

Both return logits (members, n) of the favourable label. Networks are differentiable in the rows, trees are
not. Once fitted, neither needs scikit-learn, so a saved panel holds numbers and no code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from veritracer.models.network import Network, Theta

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingClassifier

BEYOND = 2.0
"""Threshold that no encoded value exceeds."""

QUANTILES = 128
"""Quantiles of each column between which a rank is interpolated."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """The rank of a value among the values of its column, from 0 to 1, which spreads skewed counts evenly.

    ``quantiles`` is (d, q), sorted; equal ones are repeated values, which get the middle of their ranks.
    """

    quantiles: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Ranks:
        """Build the ranks from the columns of ``x`` (n, d)."""
        levels = torch.linspace(0.0, 1.0, QUANTILES, dtype=x.dtype, device=x.device)
        return cls(torch.quantile(x, levels, dim=0).T.contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        """Return the ranks of rows (n, d), differentiable where a column has no repeated values."""
        values, last = x.T.contiguous(), self.quantiles.shape[1] - 1
        first = torch.searchsorted(self.quantiles, values.detach())
        past = torch.searchsorted(self.quantiles, values.detach(), right=True)
        above = past.clamp(1, last)
        low, high = self.quantiles.gather(1, above - 1), self.quantiles.gather(1, above)
        width = (high - low).clamp(min=torch.finfo(x.dtype).tiny)
        between = (above - 1 + ((values - low) / width).clamp(0.0, 1.0)) / last
        middle = ((first + past - 1) / 2.0).clamp(0, last).to(x.dtype) / last
        return torch.where(past - first > 1, middle, between).T


@dataclass(frozen=True, eq=False)
class Networks:
    """Stacked networks of one shape; those in ``ranked`` see the ranks of the columns instead of values."""

    network: Network
    theta: Theta
    ranked: Tensor
    ranks: Ranks

    def __len__(self) -> int:
        return len(self.ranked)

    def inputs(self, x: Tensor) -> Tensor:
        """Return the input of each member for rows (n, d): (members, n, d)."""
        return torch.where(self.ranked.view(-1, 1, 1), self.ranks(x), x)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logit of each member on rows (n, d): (members, n)."""
        return self.network.logit(self.theta, self.inputs(x.to(self.theta[0])))

    def select(self, members: Sequence[int]) -> Networks:
        """Return some of the members."""
        at = torch.as_tensor(members, dtype=torch.long, device=self.ranked.device)
        return Networks(self.network, tuple(t[at] for t in self.theta), self.ranked[at], self.ranks)

    def to(self, device: str | torch.device) -> Networks:
        """Return the same members on another device."""
        theta = tuple(t.to(device) for t in self.theta)
        return Networks(self.network, theta, self.ranked.to(device), Ranks(self.ranks.quantiles.to(device)))

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that ``from_tensors`` needs."""
        named = {f"theta.{i}": t for i, t in enumerate(self.theta)}
        return named | {"ranked": self.ranked.to(torch.uint8), "quantiles": self.ranks.quantiles}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], dim: int) -> Networks:
        """Restore the members from ``tensors``; ``ValueError`` unless they are networks of ``dim`` inputs."""
        count = sum(name.startswith("theta.") for name in tensors)
        theta = tuple(tensors[f"theta.{i}"] for i in range(count))
        ranked, quantiles = tensors["ranked"], tensors["quantiles"]
        width = dim
        for weight, bias in zip(theta[::2], theta[1::2], strict=True):
            shaped = weight.dim() == 3 and weight.shape == (len(ranked), *bias.shape[1:], width)
            _check(shaped and bias.shape == weight.shape[:2], "layers that follow each other")
            width = bias.shape[-1]
        _check(count > 0 and width == 1, "layers that end with one logit")
        _check(all(t.dtype == torch.float32 and bool(t.isfinite().all()) for t in theta), "finite weights")
        _check(ranked.dtype == torch.uint8 and ranked.dim() == 1, "a flag for each network")
        _check(quantiles.dim() == 2 and len(quantiles) == dim, "quantiles of each column")
        _check(quantiles.is_floating_point() and bool(quantiles.isfinite().all()), "finite quantiles")
        return cls(Network((0.0,) * (count // 2 - 1)), theta, ranked.bool(), Ranks(quantiles))


@dataclass(frozen=True, eq=False)
class BoostedTrees:
    """Ensembles of boosted trees, each tree complete to the same depth.

    ``feature`` and ``threshold`` are (trees, 2^depth - 1), nodes in breadth-first order: from node k a row
    goes to 2k + 1 up to the threshold, else to 2k + 2. ``value`` is (trees, 2^depth); ``member`` (trees,) is
    the ensemble of each tree, ``start`` (members,) the initial logit of each ensemble.
    """

    feature: Tensor
    threshold: Tensor
    value: Tensor
    member: Tensor
    start: Tensor

    def __len__(self) -> int:
        return len(self.start)

    @property
    def depth(self) -> int:
        """Return the depth of every tree."""
        return int(self.value.shape[1]).bit_length() - 1

    @classmethod
    def of(cls, models: Sequence[HistGradientBoostingClassifier]) -> BoostedTrees:
        """Read the trees of fitted scikit-learn models, one member each.

        NOTE: the nodes are in ``_predictors``, which scikit-learn does not promise to keep; a test compares
        the result with the predictions of the models themselves.
        """
        stages = [(k, stage[0].nodes) for k, model in enumerate(models) for stage in model._predictors]
        depth = max(1, *(int(nodes["depth"].max()) for _, nodes in stages))
        complete = [_complete(nodes, depth) for _, nodes in stages]
        feature, threshold, value = (np.stack(part) for part in zip(*complete, strict=True))
        start = [float(np.ravel(model._baseline_prediction)[0]) for model in models]
        return cls(
            torch.from_numpy(feature),
            torch.from_numpy(threshold),
            torch.from_numpy(value),
            torch.tensor([k for k, _ in stages]),
            torch.tensor(start, dtype=torch.float64),
        )

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logit of each member on rows (n, d): (members, n), in the precision of ``x``."""
        columns, n = x.detach().T.contiguous(), len(x)
        threshold, value, share = self._in(x.dtype)
        first, row = self.feature * n, torch.arange(n, device=x.device)  # first: start of its column
        # Level by level, and only the nodes on a row's path: it never reaches most nodes of a tree.
        node = 1 + (columns[self.feature[:, 0]] > threshold[:, :1]).long()
        for _ in range(self.depth - 1):
            cell = columns.take(first.gather(1, node) + row)
            node = 2 * node + 1 + (cell > threshold.gather(1, node))
        leaf = value.gather(1, node - self.feature.shape[1])
        return share @ leaf + self.start.to(x.dtype).unsqueeze(-1)

    def select(self, members: Sequence[int]) -> BoostedTrees:
        """Return some of the members."""
        renumbered = torch.full_like(self.start, -1, dtype=torch.long)
        renumbered[list(members)] = torch.arange(len(members), device=self.start.device)
        kept = renumbered[self.member] >= 0
        nodes = (self.feature[kept], self.threshold[kept], self.value[kept])
        return BoostedTrees(*nodes, renumbered[self.member[kept]], self.start[list(members)])

    def to(self, device: str | torch.device) -> BoostedTrees:
        """Return the same members on another device."""
        return BoostedTrees(**{name: t.to(device) for name, t in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that the constructor needs."""
        names = ("feature", "threshold", "value", "member", "start")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], dim: int) -> BoostedTrees:
        """Restore the members from ``tensors``; ``ValueError`` unless they are trees over ``dim`` columns."""
        trees = cls(**tensors)
        count, inner = trees.feature.shape
        shapes = {"threshold": (count, inner), "value": (count, inner + 1), "member": (count,)}
        _check(inner + 1 == 2**trees.depth, "complete trees")
        _check(all(getattr(trees, k).shape == shape for k, shape in shapes.items()), "trees of one depth")
        _check(trees.start.dim() == 1, "a first guess for each member")
        for whole, below in ((trees.feature, dim), (trees.member, len(trees))):
            _check(whole.dtype == torch.int64 and bool(((whole >= 0) & (whole < below)).all()), "positions")
        for part in (trees.threshold, trees.value, trees.start):
            _check(part.dtype == torch.float64 and bool(part.isfinite().all()), "finite numbers")
        return trees

    def _in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return thresholds, leaves, and the matrix of trees by member (members, trees), in one precision."""
        if dtype not in self._converted:
            whose = torch.arange(len(self), device=self.member.device).unsqueeze(-1) == self.member
            self._converted[dtype] = (self.threshold.to(dtype), self.value.to(dtype), whose.to(dtype))
        return self._converted[dtype]

    @cached_property
    def _converted(self) -> dict[torch.dtype, tuple[Tensor, Tensor, Tensor]]:
        return {}


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"members without {what}")


def _complete(nodes: Any, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one tree filled up to the depth: below an early leaf all rows go left, to the leaf itself."""
    inner = 2**depth - 1
    feature, threshold = np.zeros(inner, dtype=np.int64), np.full(inner, BEYOND)
    value = np.zeros(inner + 1)
    at = np.zeros(1, dtype=np.int64)
    for level in range(depth):
        here = nodes[at]
        leaf = here["is_leaf"].astype(bool)
        place = slice(2**level - 1, 2 ** (level + 1) - 1)
        feature[place] = np.where(leaf, 0, here["feature_idx"])
        threshold[place] = np.where(leaf, BEYOND, here["num_threshold"])
        left, right = (np.where(leaf, at, here[side]) for side in ("left", "right"))
        at = np.stack([left, right], -1).reshape(-1)
    value[:] = nodes[at]["value"]
    return feature, threshold, value
