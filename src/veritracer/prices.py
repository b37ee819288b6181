"""What a change of each column costs in training: cheap where the column tells of the label.

A classifier and a generator that are trained together agree on few levers: columns in which a small step
changes the decision. Where several would do, chance chooses among them, and a model of another seed chooses
others and does not honour a counterfactual that pulls this one's. With prices from the rows, which all
seeds see, the choice is the data's: docs/architecture.md has the numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veritracer.encoding import Encoding


def prices(encoding: Encoding, x: Tensor, y: Tensor, weight: Tensor, *, most: float) -> Tensor:
    """The price of each column for each model, (models, d): from 1 for the one that tells most, to ``most``.

    What a column tells is its absolute correlation with the label among the weighted rows; the price is
    inverse to it. Columns that may not change have no part in the comparison.
    """
    told = _correlation(x.double(), y.double(), weight.double()).abs()
    changes = torch.tensor([f.action != "immutable" for f in encoding.schema.features])[encoding.owner]
    best = torch.where(changes.to(told.device), told, 0.0).amax(-1, keepdim=True)
    share = torch.where(best > 0, told / best.clamp(min=torch.finfo(told.dtype).tiny), 1.0)
    return (1.0 / share.clamp(min=1.0 / most, max=1.0)).to(x.dtype)


def _correlation(x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Of each column of ``x`` (n, d) with ``y`` (n,), by each model's weights (models, n); 0 if constant."""
    share = weight / weight.sum(-1, keepdim=True)
    mean_x, mean_y = share @ x, share @ y
    covariance = (share * y) @ x - mean_x * mean_y.unsqueeze(-1)
    spread = (share @ x.square() - mean_x.square()).clamp(min=0.0).sqrt()
    constant = spread <= 1e-9  # of columns that lie in [0, 1]
    return torch.where(constant, 0.0, covariance / spread.clamp(min=1e-9))
