"""Models that are linear in raw values, and encodings of the same table with other ranges."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import veritracer as vt

SCHEMA = vt.Schema(
    [
        vt.Feature("age", "integer", action="immutable"),
        vt.Feature("debt", "integer", action="decrease_only"),
        vt.Feature("savings", "integer", lower=0, upper=10_000, step=100, action="increase_only"),
        vt.Feature("education", "ordinal", categories=["none", "school", "degree"], action="increase_only"),
        vt.Feature("rating", "continuous", lower=0.0, upper=1.0, missing="impute", action="immutable"),
    ],
    "approved",
    "yes",
    "no",
)

TRAINING = pd.DataFrame(
    {
        "age": [20, 40, 60],
        "debt": [0, 500, 1_000],
        "savings": [0, 5_000, 10_000],
        "education": ["none", "school", "degree"],
        "rating": [0.0, 0.5, np.nan],
    }
)

WIDE = pd.concat(
    [
        TRAINING,
        pd.DataFrame(
            {
                "age": [100, 18],
                "debt": [20_000, 0],
                "savings": [0, 100],
                "education": ["none", "none"],
                "rating": [1.0, 0.0],
            }
        ),
    ],
    ignore_index=True,
)
"""A later training table: people are older, and have more debts."""


@cache
def narrow() -> tuple[nn.Linear, vt.Encoding]:
    """An issuing model that read ages to 60 and debts to 1,000.

    Favourable are savings, and a little of everything else; debts and age are not.
    """
    encoding = vt.Encoding.fit(SCHEMA, TRAINING)
    weights = dict.fromkeys(encoding.columns, 0.0)
    weights |= {"age": -0.5, "debt": -1.0, "savings": 3.0, "education": 0.5, "rating": 0.2}
    module = nn.Linear(encoding.dim, 1).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([list(weights.values())], dtype=torch.float64))
        module.bias.fill_(-1.5)
    return module, encoding


@cache
def wider() -> vt.Encoding:
    """An encoding of the same table that reads older people, and larger debts."""
    return vt.Encoding.fit(SCHEMA, WIDE)


def linear(encoding: vt.Encoding, bias: float, **weights: float) -> nn.Linear:
    """The model whose logit is ``bias`` plus so much for one raw unit (or level) of each named feature."""
    module = nn.Linear(encoding.dim, 1).double()
    with torch.no_grad():
        module.weight.zero_()
        for block, fitted in zip(encoding.blocks, encoding.fitted, strict=True):
            unit = weights.get(block.feature.name, 0.0)
            module.weight[0, block.start] = unit * (fitted.high - fitted.low)
            bias += unit * fitted.low
        module.bias.fill_(bias)
    return module


def explained(people: pd.DataFrame, *, kappa: float = 0.02, **options: Any) -> vt.Counterfactuals:
    """Counterfactuals of the narrow model; out-of-range values are part of the story."""
    module, encoding = narrow()
    finder = vt.Recourse(module, None, encoding, rows=TRAINING, kappa=kappa)
    return finder.explain(people, only_unfavourable=False, **options)


def person(**values: Any) -> pd.DataFrame:
    """One person who is turned down."""
    plain = {"age": 30, "debt": 400, "savings": 1_000, "education": "school", "rating": 0.4}
    return pd.DataFrame([{**plain, **values}])
