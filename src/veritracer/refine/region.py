"""How far people may end up from what they were told: the region that one certificate covers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.bounds import Box
from veritracer.schema.values import tidy

OUTWARDS = 1e-12
"""A region is wider by this much than what it stands for: a row on its edge is inside once it is encoded."""


class Drift(NamedTuple):
    """How far a value may move by itself, in its own units (or levels), wherever its owner brings it.

    From ``least``, which is not above 0, to ``most``, which is not below. What a person may be *asked* to
    change plays no part: savings that one is asked to raise only may fall all the same.
    """

    least: float
    most: float

    @classmethod
    def of(cls, asked: float | Sequence[float]) -> Drift:
        """What was asked for: one number goes both ways, a pair from its first to its second."""
        if isinstance(asked, Sequence):
            least, most = asked
        else:
            least, most = -asked, asked
        return cls(tidy(least) + 0.0, tidy(most) + 0.0)

    @property
    def asked(self) -> float | Sequence[float]:
        """What to ask for to get it: a number where both ways are equal, else the two ends."""
        return self.most if self.most == -self.least else self


class CoveredRegion(NamedTuple):
    """What a person may do beyond the shown values, in units of each column, (d,) each.

    ``overshoot`` is how far a changed number may be carried on in the direction of its change; ``down``
    and ``up`` are how far a column may drift by itself, whether it was changed or not.
    """

    overshoot: Tensor
    down: Tensor
    up: Tensor

    @property
    def is_point(self) -> bool:
        """Whether the shown row alone is spoken for."""
        return not any(bool(part.any()) for part in self)

    def region(self, x_cf: Tensor, x: Tensor) -> Tensor | Box:
        """Every row that is spoken for: the shown one, or the box around all that may become of it.

        The box also covers rows between the points of a grid, and so errs towards more rows. Values beyond
        the encoding's range are clipped to it whenever a row is encoded, hence the clamp.
        """
        if self.is_point:
            return x_cf
        below, above = map(_outwards, self.widths(x_cf, x))
        return Box((x_cf - below).clamp(0.0, 1.0), (x_cf + above).clamp(0.0, 1.0))

    def widths(self, x_cf: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """How far below and how far above the shown row is spoken for, (n, d) each, beyond any range too."""
        still = torch.zeros_like(x_cf)
        below = torch.where(x_cf < x, self.overshoot, still) + self.down
        above = torch.where(x_cf > x, self.overshoot, still) + self.up
        return below, above


def _outwards(width: Tensor) -> Tensor:
    return width + OUTWARDS * (width > 0)
