"""Losses that keep a classifier close to its panel, and the rows where they apply.

On real rows a classifier learns the panel's expectation (each row by members that did not see it). Beyond
them it learns the panel's vote at rows that people may move to: the generator's counterfactuals, rows with
some features of other people, and the results of a sparse attack on the classifier itself. At moved rows the
vote counts less, the further the row is from all rows with a favourable label, so that outliers are not
accepted. Real rows are not weighted in this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.models.network import Network
from veritracer.training.data import LabelledRows
from veritracer.training.panel import Panel
from veritracer.training.panel_members import Ranks

ROWS_AT_ONCE = 128
"""Rows in each evaluation of the penalty of an update."""

POOL = 2000
"""Maximum number of favourable rows to which a moved row is compared."""

USUAL, REACH, SOFTNESS = 0.99, 1.3, 0.1
"""A moved row counts half at 1.3 times the distance within which 99 % of favourable rows have a neighbour;
the weight fades over a tenth of that distance."""


@dataclass(frozen=True)
class Distillation:
    """Weights of the panel's losses, beside the losses of Algorithm 1.

    Attributes
    ----------
    soft_labels
        Share of a row's own label that the panel's vote replaces.
    at_counterfactuals, at_swapped, at_attacks
        Cross-entropy against the panel at the generator's counterfactuals, at rows with features of others,
        and at sparse attacks on the classifier.
    at_sure_rows
        Robust loss of real rows of which the panel is sure: wherever people are, some row nearby is decided
        alike by every model of the set, so that certified recourse exists.
    for_generator
        The panel's validity loss of the generator's proposals.
    swapped, moves, furthest
        Share of swapped features; number of columns that an attack changes, and the largest logit it aims at.
    sure, proved
        Rows are sure from this quantile of the panel's confidence on; they are pushed until their bound is
        this far below zero.
    """

    soft_labels: float = 0.8
    at_counterfactuals: float = 10.0
    at_swapped: float = 5.0
    at_attacks: float = 5.0
    at_sure_rows: float = 3.0
    for_generator: float = 4.0
    swapped: float = 0.3
    moves: int = 3
    furthest: float = 4.0
    sure: float = 0.5
    proved: float = 0.5

    def times(self, strength: float) -> Distillation:
        """Return the same weights multiplied by ``strength``; at most the whole label is replaced."""
        weights = ("at_counterfactuals", "at_swapped", "at_attacks", "at_sure_rows", "for_generator")
        scaled = {name: strength * getattr(self, name) for name in weights}
        return replace(self, soft_labels=min(1.0, strength * self.soft_labels), **scaled)


class _Likeness(NamedTuple):
    """Distance of rows from favourable ones, in ranks, and the usual distance among those."""

    ranks: Ranks
    pool: Tensor
    usual: float

    @classmethod
    def of(cls, ranks: Ranks, rows: LabelledRows, seed: int) -> _Likeness:
        favourable = torch.unique(rows.x[(rows.y > 0.5) & (rows.weight > 0)], dim=0)
        order = torch.randperm(len(favourable), generator=torch.Generator().manual_seed(seed))
        favourable = ranks(favourable[order])
        pool, others = favourable[:POOL], favourable[POOL : 2 * POOL]
        if len(pool) == 0:  # every favourable row weighs nothing
            distance = pool.new_empty(0)
        elif len(others) < POOL // 4:  # each row of the pool against the rest
            distance = torch.cdist(pool, pool).fill_diagonal_(torch.inf).amin(-1)
        else:
            distance = torch.cdist(others, pool).amin(-1)
        known = distance[torch.isfinite(distance)]
        return cls(ranks, pool, float(torch.quantile(known, USUAL)) if len(known) else torch.inf)

    def __call__(self, x: Tensor) -> Tensor:
        """Return a weight from 1 (like favourable rows) to 0 for rows (n, d)."""
        if not 0 < self.usual < torch.inf:
            return torch.ones_like(x[:, 0])
        distance = torch.cdist(self.ranks(x), self.pool).amin(-1)
        return torch.sigmoid((REACH * self.usual - distance) / (SOFTNESS * self.usual))


class Opinions:
    """Votes of panels at any rows: one panel for each of several models, or one for all of them."""

    def __init__(self, panels: Sequence[Panel], rows: Sequence[LabelledRows]) -> None:
        device = rows[0].x.device
        self.shared = len(panels) == 1
        self.ensembles = [panel.teachers_.to(device) for panel in panels]
        ranks = [ensemble.networks.ranks for ensemble in self.ensembles]
        self.likeness = [
            _Likeness.of(r, labelled, seed)
            for seed, (r, labelled) in enumerate(zip(ranks, rows, strict=True))
        ]

    def targets(self, x: Tensor, *, moved: Sequence[bool]) -> Tensor:
        """Return the panel's probability (models, n) at rows (models, n, d).

        ``moved`` has one flag for each of the equal parts of the rows: whether likeness counts there.
        """
        return torch.cat([self._target(*part) for part in self._by_panel(x, moved)]).view(x.shape[:-1])

    def network_logits(self, x: Tensor) -> Tensor:
        """Return the teaching networks' mean logit (models, n) at rows (models, n, d), with gradients."""
        parts = [x.flatten(0, 1)] if self.shared else list(x)
        logits = [e.networks.logits(part).mean(0) for e, part in zip(self.ensembles, parts, strict=True)]
        return torch.cat(logits).view(x.shape[:-1]).to(x.dtype)

    def _by_panel(self, x: Tensor, moved: Sequence[bool]) -> list[tuple[int, Tensor, Tensor]]:
        """Return the rows (n, d) for each panel, and where their likeness counts (n,)."""
        each = torch.tensor(moved, device=x.device).repeat_interleave(x.shape[1] // len(moved))
        if self.shared:
            return [(0, x.flatten(0, 1), each.repeat(len(x)))]
        return [(k, x[k], each) for k in range(len(x))]

    @torch.no_grad()
    def _target(self, panel: int, x: Tensor, moved: Tensor) -> Tensor:
        vote = self.ensembles[panel].vote(x)
        vote[moved] *= self.likeness[panel](x[moved])
        return vote


class Teacher(Opinions):
    """The panels of models that are trained side by side, and their votes on the training rows.

    ``soft_labels`` is (models, n) for the given rows; ``sure`` (models, n) marks those of which the panel is
    sure, and ``side`` is its decision, +1 or -1.
    """

    def __init__(
        self,
        panels: Sequence[Panel],
        rows: Sequence[LabelledRows],
        options: Distillation,
        threshold_logit: float = 0.0,
    ) -> None:
        super().__init__(panels, rows)
        self.options = options
        self.soft_labels = torch.stack([panel.soft_labels_ for panel in panels]).to(rows[0].x)
        margin = torch.logit(self.soft_labels, eps=1e-6) - threshold_logit
        self.side = torch.where(margin > 0, 1.0, -1.0).to(rows[0].x)
        self.sure = torch.stack([_sure(each, options.sure) for each in margin])

    def of_rows(self, values: Tensor, index: Tensor) -> Tensor:
        """Return the entries of ``values`` (panels, n) at the rows ``index`` (models, batch)."""
        return values.expand(len(index), -1).gather(1, index)


class PanelPenalty:
    """Penalty on the parameters of an updated classifier for leaving its panel's vote.

    It applies at rows with features of others and at sparse attacks, as in training, in proportion to the
    weight that accuracy has there.
    """

    def __init__(
        self,
        panel: Panel,
        encoding: Encoding,
        network: Network,
        rows: LabelledRows,
        *,
        threshold_logit: float,
        accuracy: float,
        random_state: int,
    ) -> None:
        self.opinions, self.encoding, self.network = Opinions([panel], [rows]), encoding, network
        self.x, self.offset = rows.x, threshold_logit
        self.options = Distillation().times(panel.strength / accuracy)
        self.stream = torch.Generator().manual_seed(random_state)

    def __call__(self, theta: Sequence[Tensor]) -> Tensor:
        """Return the penalty at these parameters, on a random part of the rows."""
        options = self.options
        some = torch.randint(len(self.x), (min(ROWS_AT_ONCE, len(self.x)),), generator=self.stream)
        x, one = self.x[some].unsqueeze(0).to(theta[0]), [t.unsqueeze(0) for t in theta]
        with torch.no_grad():
            sign = torch.where(self.network.logit(one, x) > 0, 1.0, -1.0).to(x)
        goal = torch.rand(x.shape[:2], generator=self.stream).to(x) * options.furthest
        attacked = sparse_attack(self.encoding, self.network, one, x, sign, goal, options.moves)
        moved = torch.cat([attacked, swapped_rows(self.encoding, x, options.swapped, [self.stream])], 1)
        target = self.opinions.targets(moved.float(), moved=(True, False)).to(x)
        logit = self.network.logit(one, moved) + self.offset
        each = torch.nn.functional.binary_cross_entropy_with_logits(logit, target, reduction="none")
        at_attacks, at_swapped = each.chunk(2, 1)
        return options.at_attacks * at_attacks.mean() + options.at_swapped * at_swapped.mean()


def _sure(margin: Tensor, quantile: float) -> Tensor:
    """Return 1 for the rows of each side whose confidence exceeds that quantile of the side, else 0."""
    sure = torch.zeros_like(margin)
    for side in (margin > 0, margin <= 0):
        if bool(side.any()):
            size = margin[side].abs()
            sure[side] = (size >= size.kthvalue(max(1, round(quantile * len(size)))).values).to(margin.dtype)
    return sure


def swapped_rows(encoding: Encoding, x: Tensor, share: float, streams: Sequence[torch.Generator]) -> Tensor:
    """Return the rows (models, n, d) with some features of another row of the same batch."""
    features = int(encoding.owner[-1]) + 1
    owner = encoding.owner.to(x.device)
    swapped = []
    for rows, stream in zip(x, streams, strict=True):
        taken = (torch.rand(len(rows), features, generator=stream) < share).to(x.device)
        others = torch.randperm(len(rows), generator=stream).to(x.device)
        swapped.append(torch.where(taken[:, owner], rows[others], rows))
    return torch.stack(swapped)


def sparse_attack(
    encoding: Encoding,
    network: Network,
    theta: Sequence[Tensor],
    x: Tensor,
    sign: Tensor,
    goal: Tensor,
    moves: int,
) -> Tensor:
    """Return legal rows (models, n, d) where few changes give the classifier's other decision.

    Each move changes the column with the steepest logit as far as the logit needs to reach ``goal`` (models,
    n) on the other side, or to the end of its range; or it changes one category. A search for close
    counterfactuals goes to such rows, so the classifier must be right there.
    """
    lower, upper = encoding.limits(x)
    owner, single = encoding.owner.to(x.device), encoding.numeric.to(x.device)
    fixed, point = [t.detach() for t in theta], x
    for _ in range(moves):
        at = point.detach().requires_grad_()
        logit = -sign * network.logit(fixed, at)
        (slope,) = torch.autograd.grad(logit.sum(), at)
        need = (goal - logit.detach()).clamp(min=0.0).unsqueeze(-1)
        room = torch.where(slope > 0, upper - point, point - lower)
        present = encoding.by_feature((slope * point).double())[..., owner].to(x.dtype)
        switch = (slope - present) / 2 * ((upper >= 0.5) & (point < 0.5))
        gain = torch.where(single, slope.abs() * (room > 1e-3), switch)
        best = gain.argmax(-1, keepdim=True)
        step = torch.minimum(need / gain.gather(-1, best).clamp(min=1e-6), room.gather(-1, best))
        moved = point.scatter_add(-1, best, step * torch.sign(slope.gather(-1, best)))
        group = (owner == owner[best]) & ~single
        moved = torch.where(group, torch.zeros_like(point).scatter(-1, best, 1.0), moved)
        useful = (need > 0) & (gain.gather(-1, best) > 0)
        point = torch.where(useful, moved, point)
    return encoding.project(point, x)
