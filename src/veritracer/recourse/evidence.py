"""What is known beside the model: labelled rows, a panel of independent models, and which values are usual.

A certificate says that a set of models agrees about a row. Evidence says whether anybody else does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.panel import Panel
from veritracer.recourse.neighbours import LOF_LABELLED, Neighbours, nearest_of
from veritracer.refine import Found, Problem, assess

MARGIN = float(np.log(0.65 / 0.35))
"""How clearly both halves of a panel have to decide before a search is content, in logits: 65 % of a vote."""

INLIER = 1.5
"""Up to this local outlier factor among rows of the wanted label a row is plausible."""

USUAL, SEEN = 0.05, 0.005
"""Usual numbers lie between these quantiles of the rows of a label; usual levels are those of so many."""

CANDIDATES = 8
"""Role models of each person that are tried."""


class Usual(NamedTuple):
    """Between which encoded values most rows of a label lie: (2, d) each, unfavourable rows first."""

    lower: Tensor
    upper: Tensor

    @classmethod
    def of(cls, encoding: Encoding, x: Tensor, favourable: Tensor) -> Self:
        """The ends among rows (n, d) with these labels (n,); everything where a label has no row."""
        number = torch.tensor([encoding.blocks[i].feature.is_numeric for i in encoding.owner.tolist()])
        ends = torch.zeros(2, encoding.dim, dtype=torch.float64), torch.ones(2, encoding.dim).double()
        for side in (0, 1):
            rows = x[favourable == bool(side)].double()
            if len(rows) == 0:
                continue
            for end, from_below in zip(ends, (True, False), strict=True):
                wide, narrow = (_quantile(rows, q if from_below else 1 - q) for q in (SEEN, USUAL))
                end[side] = torch.where(number & encoding.numeric, narrow, wide)
        seen = [x[favourable == bool(side)].double().mean(0) >= SEEN for side in (0, 1)]
        ends[1][:, ~encoding.numeric] = torch.stack(seen).double()[:, ~encoding.numeric]
        return cls(*ends)

    def within(self, problem: Problem) -> Problem:
        """The problem in which changes end where most rows of the wanted label are."""
        side = (problem.sign < 0).long().cpu()
        return problem.within(self.lower[side].to(problem.x), self.upper[side].to(problem.x))


def _quantile(rows: Tensor, level: float) -> Tensor:
    """The quantile of each column: a value that occurs, on the inner side of the level."""
    position = int(np.ceil(level * (len(rows) - 1)) if level < 0.5 else np.floor(level * (len(rows) - 1)))
    found: Tensor = rows.sort(dim=0).values[position]
    return found


@dataclass(frozen=True, eq=False)
class Evidence:
    """What a counterfactual can be held to besides its certificate; any part of it may be absent.

    ``threshold_logit`` is where the model decides, and so do the panel's members.
    """

    neighbours: Neighbours
    panel: Panel | None = None
    usual: Usual | None = None
    threshold_logit: float = 0.0

    @property
    def leads(self) -> bool:
        """Whether there are role models: a panel that teaches, and rows whose labels are known."""
        return self.panel is not None and self.neighbours.favourable is not None and len(self.neighbours) > 0

    @torch.no_grad()
    def believed(self, x_cf: Tensor, favourable: Tensor) -> Tensor:
        """Where both halves of the panel's teachers decide clearly as ``favourable`` (n,) wants."""
        assert self.panel is not None
        way = torch.where(favourable, 1.0, -1.0).to(x_cf)
        halves = [torch.logit(half.to(x_cf)) for half in self.panel.opinions(x_cf)]
        return torch.stack([way * (half - self.threshold_logit) >= MARGIN for half in halves]).all(0)

    def agreement(self, x_cf: Tensor, favourable: Tensor) -> NDArray[np.float64]:
        """The share (n,) of held-out members that decide as ``favourable`` wants; NaN without a panel."""
        if self.panel is None or len(x_cf) == 0:
            return np.full(len(x_cf), np.nan)
        share = self.panel.agreement(x_cf, favourable, self.threshold_logit)
        return share.double().cpu().numpy()

    def outlier_factor(self, x_cf: Tensor, favourable: Tensor) -> NDArray[np.float64]:
        """The local outlier factor (n,) among rows of the wanted label; NaN where labels are not known."""
        found = np.full(len(x_cf), np.nan)
        for side in (False, True):
            rows = (favourable == side).cpu().numpy()
            if rows.any() and len(self.neighbours.labelled(side)) > 1:
                found[rows] = self.neighbours.outlier_factor(x_cf[rows], LOF_LABELLED, favourable=side)
        return found

    def distance(self, x_cf: Tensor, favourable: Tensor) -> NDArray[np.float64]:
        """The L1 distance (n,) to the nearest row of the wanted label over the number of columns, or NaN."""
        found = np.full(len(x_cf), np.nan)
        for side in (False, True):
            rows, pool = (favourable == side).cpu().numpy(), self.neighbours.labelled(side)
            if rows.any() and len(pool) > 0:
                nearest = nearest_of(pool, x_cf[rows], 1)[:, 0]
                found[rows] = (nearest - x_cf[rows]).abs().mean(-1).cpu().numpy()
        return found

    def role_models(self, problem: Problem) -> Tensor:
        """For each row a legal row (n, d) to be led to: that of the nearest real people who are accepted.

        Of several candidates the cheapest that is proved and believed once it is legal for this person; else
        the cheapest that is proved. The row itself where none is.
        """
        favourable = problem.sign < 0
        found = problem.x.clone()
        for side in (False, True):
            rows = (favourable == side).nonzero().squeeze(-1)
            pool = self.neighbours.role_models(problem.param_set, side, self.believed, self.panel)
            if len(rows) > 0 and len(pool) > 0:
                part = problem.select(rows)
                found[rows] = self._best(part, nearest_of(pool, part.x, CANDIDATES), favourable[rows])
        return found

    def _best(self, problem: Problem, candidates: Tensor, favourable: Tensor) -> Tensor:
        best, trusted = assess(problem, problem.x), torch.zeros_like(favourable)
        for k in range(candidates.shape[1]):
            here = assess(problem, problem.legal(candidates[:, k]))
            sure = here.proved & self.believed(here.x_cf, favourable)
            better = (sure & ~trusted) | ((sure == trusted) & (here.objective < best.objective))
            best = Found(*(_where(better, new, old) for new, old in zip(here, best, strict=True)))
            trusted = trusted | sure
        return best.x_cf


def _where(rows: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(rows.unsqueeze(-1) if new.dim() > 1 else rows, new, old)
