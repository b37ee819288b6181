"""Reasons for rows without a counterfactual: a feature is named only if its constraint stands in the way."""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from veritracer.encoding import Encoding
from veritracer.models.param_sets import ParamSet
from veritracer.schema import Feature, Schema
from veritracer.search.outcomes import sufficient_relaxations
from veritracer.search.problem import CoveredRegion, SearchProblem


def test_only_a_feature_whose_constraint_rules_the_value_out_is_named() -> None:
    """Both features would help at 1; ``up`` may go there as it is, ``down`` and ``fixed`` may not."""
    actions = {"up": "increase_only", "down": "decrease_only", "fixed": "immutable"}
    features = [
        Feature(name, "continuous", action=action, display_step="exact") for name, action in actions.items()
    ]
    encoding = Encoding.fit(Schema(features), pd.DataFrame({name: [0.0, 1.0] for name in actions}))
    layer = nn.Linear(3, 1).double()
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(-1.0)
    x = torch.full((1, 3), 0.3, dtype=torch.float64)
    still = torch.zeros(3, dtype=torch.float64)
    problem = SearchProblem.of(
        encoding,
        ParamSet.around(layer, 0.01),
        x,
        -torch.ones(1).double(),
        still + 1,
        CoveredRegion(still, still, still),
    )
    assert sufficient_relaxations(problem, x, None) == [["down", "fixed"]]
