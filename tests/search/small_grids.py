"""People under a schema so small that every legal row can be looked at."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from veritracer.encoding import Encoding
from veritracer.models.param_sets import ParamSet
from veritracer.schema import Feature, Schema
from veritracer.search.problem import CoveredRegion, SearchProblem

SCHEMA = Schema(
    [
        Feature("a", "integer", lower=0, upper=8),
        Feature("b", "integer", lower=0, upper=6, action="increase_only"),
        Feature("c", "categorical", categories=["u", "v", "w"]),
        Feature("d", "integer", lower=0, upper=4, action="immutable"),
    ]
)


def everybody() -> pd.DataFrame:
    """Every row that the schema allows."""
    rows = itertools.product(range(9), range(7), "uvw", range(5))
    return pd.DataFrame(list(rows), columns=["a", "b", "c", "d"])


def posed(seed: int, kappa: float = 0.05) -> tuple[SearchProblem, Tensor]:
    """Twelve people before a random network, and every encoded row there is."""
    torch.manual_seed(seed)
    frame = everybody()
    encoding = Encoding.fit(SCHEMA, frame)
    layers = [nn.Linear(encoding.dim, 10), nn.ReLU(), nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 1)]
    module = nn.Sequential(*layers).double()
    models = ParamSet.around(module, kappa)
    every = encoding.encode(frame)
    middle = float(models.network.logit(models.center, every).median())
    with torch.no_grad():
        models.center[-1].sub_(middle)
    x = every[torch.randperm(len(every))[:12]]
    sign = torch.where(models.network.logit(models.center, x) > 0, 1.0, -1.0).double()
    still = torch.zeros(encoding.dim, dtype=torch.float64)
    price = torch.ones(encoding.dim, dtype=torch.float64)
    return SearchProblem.of(encoding, models, x, sign, price, CoveredRegion(still, still, still)), every


def best_of_all(problem: SearchProblem, every: Tensor, methods: Sequence[str] = ("ibp",)) -> Tensor:
    """The lowest objective of any legal row with a proof, for each person; infinite where none is."""
    lowest = []
    for i in range(len(problem)):
        part = problem.select(torch.full((len(every),), i))
        legal = (problem.encoding.project(every, part.x) == every).all(-1)
        proved = (part.worst_logit(every, methods) < 0) & legal
        lowest.append(torch.where(proved, part.objective(every), torch.inf).min())
    return torch.stack(lowest)
