"""Each metric against a value that was computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from veritracer import metrics
from veritracer.certificate import certify
from veritracer.encoding import Encoding
from veritracer.models.param_sets import ParamSet
from veritracer.schema import Schema


def rows(*values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def linear(*weights: float, bias: float) -> nn.Sequential:
    layer = nn.Linear(len(weights), 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(rows(weights))
        layer.bias.fill_(bias)
    return nn.Sequential(layer)


TODAY = linear(1.0, 0.0, bias=-0.5)  # favourable where the first column is above 0.5
X = rows((0.2, 0.4), (0.3, 0.4), (0.8, 0.4), (0.9, 0.4))
X_CF = rows((0.6, 0.4), (0.4, 0.4), (0.4, 0.2), (0.1, 0.0))  # the second one does not reach 0.5


def test_validity_is_the_share_that_changes_its_decision() -> None:
    assert metrics.valid_rows(TODAY, X, X_CF).tolist() == [True, False, True, True]
    assert metrics.validity(TODAY, X, X_CF) == 0.75


def test_a_logit_of_zero_is_not_favourable() -> None:
    assert metrics.favourable(TODAY, rows((0.5, 0.0), (0.75, 0.0))).tolist() == [False, True]


def test_two_outputs_are_read_as_one_logit() -> None:
    pair = nn.Sequential(nn.Linear(2, 2, dtype=torch.float64))
    with torch.no_grad():
        pair[0].weight.copy_(rows((0.0, 1.0), (1.0, 0.0)))
        pair[0].bias.zero_()
    assert metrics.favourable(pair, rows((0.6, 0.4), (0.4, 0.6))).tolist() == [True, False]


def test_certified_rate_over_all_rows_and_over_valid_ones() -> None:
    certified, valid = [True, False, True, False], [True, False, True, True]
    assert metrics.certified_rate(certified) == 0.5
    assert metrics.certified_rate_of_valid(certified, valid) == pytest.approx(2 / 3)


def test_unbroken_rate_is_between_the_certified_rate_and_validity() -> None:
    """At radius 0.1 the logit 0.6 - 0.5 can lose 0.1 * (0.6 + 0.4 + 1) = 0.2, and 0.4 - 0.5 gain 0.16."""
    param_set = ParamSet.around(TODAY, radius=0.1)
    found = metrics.unbroken_rate(param_set, X, X_CF)
    assert found == 0.25  # only the last one, whose logit of -0.4 gains at most 0.11
    assert metrics.certified_rate(certify(TODAY, X, X_CF, param_set).certified) == found


def test_cross_model_validity_in_both_definitions() -> None:
    """Another model with its border at 0.25, so that it takes the row (0.3, 0.4) for favourable.

    The valid counterfactuals are 0.2 -> 0.6, 0.8 -> 0.4, 0.9 -> 0.1. The other model decides them
    favourable, favourable, unfavourable: the first and the last keep their decision and differ from x.
    """
    other = linear(1.0, 0.0, bias=-0.25)
    found = metrics.cross_model_validity(TODAY, [other, TODAY], X, X_CF)
    assert found.keeps.tolist() == pytest.approx([2 / 3, 1.0])
    assert found.differs.tolist() == pytest.approx([2 / 3, 1.0])
    assert found.agreement.tolist() == [1.0, 1.0]
    every = metrics.cross_model_validity(TODAY, [other], X, X_CF, valid_only=False)
    assert (every.keeps.tolist(), every.differs.tolist()) == ([0.5], [0.5])
    assert every.agreement.tolist() == [0.75]


def test_the_two_definitions_differ_where_the_models_disagree_on_x() -> None:
    """The other model's border is at 0.1: it decides 0.2 and 0.6 alike, and so agrees with neither side."""
    other = linear(1.0, 0.0, bias=-0.1)
    found = metrics.cross_model_validity(TODAY, [other], X[:1], X_CF[:1])
    assert (found.keeps.item(), found.differs.item(), found.agreement.item()) == (1.0, 0.0, 0.0)


def test_differs_equals_agreement_where_every_counterfactual_keeps_its_decision() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(50, 2, generator=rng, dtype=torch.float64)
    x_cf = torch.where(x[:, :1] > 0.5, 0.0, 1.0).double().expand(-1, 2)
    found = metrics.cross_model_validity(TODAY, [linear(1.0, 0.3, bias=-0.6)], x, x_cf)
    assert found.keeps.item() == 1.0
    assert found.differs.item() == found.agreement.item() < 1.0


def test_proximity_is_the_l1_distance_by_columns_over_valid_rows() -> None:
    """(0.4 + 0) / 2, (0.4 + 0.2) / 2 and (0.8 + 0.4) / 2."""
    valid = metrics.valid_rows(TODAY, X, X_CF)
    assert metrics.proximity(X, X_CF, valid) == pytest.approx((0.2 + 0.3 + 0.6) / 3)
    assert metrics.proximity(X, X_CF) == pytest.approx((0.2 + 0.05 + 0.3 + 0.6) / 4)


@pytest.fixture(scope="module")
def jobs() -> Encoding:
    table = pd.DataFrame({"savings": [0.0, 1.0, 0.5], "job": ["cook", "clerk", "smith"]})
    return Encoding.fit(Schema.infer(table), table)


def test_sparsity_counts_a_one_hot_group_once(jobs: Encoding) -> None:
    """Of two features: both move; only the number does; it moves by 0.005, which does not count."""
    x = rows((0.5, 1, 0, 0), (0.5, 1, 0, 0), (0.5, 1, 0, 0))
    x_cf = rows((0.7, 0, 1, 0), (0.7, 1, 0, 0), (0.505, 1, 0, 0))
    assert metrics.sparsity(jobs, x, x_cf) == pytest.approx((1.0 + 0.5 + 0.0) / 3)
    assert metrics.sparsity(jobs, x, x_cf, [False, True, True]) == pytest.approx(0.25)
    assert metrics.sparsity(jobs, x, x_cf, tolerance=0.001) == pytest.approx((1.0 + 0.5 + 0.5) / 3)


def test_broken_groups(jobs: Encoding) -> None:
    """Legal; two jobs; none; a thousandth of one."""
    x_cf = rows((0.1, 0, 1, 0), (0.1, 1, 1, 0), (0.1, 0, 0, 0), (0.1, 0.999, 0.001, 0))
    assert metrics.broken_groups(jobs, x_cf) == 0.75


def test_manifold_distance_is_that_to_the_nearest_training_row() -> None:
    """(0.1 + 0.1) / 2 to the first row, (0.0 + 0.3) / 2 to the second."""
    train = rows((0.0, 0.0), (1.0, 1.0))
    x_cf = rows((0.1, 0.1), (1.0, 0.7))
    assert metrics.manifold_distance(x_cf, train) == pytest.approx(0.125)
    assert metrics.manifold_distance(x_cf, train, [False, True]) == pytest.approx(0.15)


def test_accuracy() -> None:
    assert metrics.accuracy(TODAY, X, [0, 1, 1, 1]) == 0.75
    assert metrics.accuracy(TODAY, X, torch.tensor([0, 0, 1, 1])) == 1.0


def test_a_mean_over_no_rows_is_nan() -> None:
    nobody = torch.zeros(4, dtype=torch.bool)
    empty = torch.zeros(0, 2, dtype=torch.float64)
    found = [
        metrics.proximity(X, X_CF, nobody),
        metrics.manifold_distance(X_CF, X, nobody),
        metrics.certified_rate_of_valid([True] * 4, nobody),
        metrics.validity(TODAY, empty, empty),
        metrics.unbroken_rate(ParamSet.around(TODAY), empty, empty),
    ]
    assert all(math.isnan(value) for value in found)
    assert np.isnan(metrics.cross_model_validity(TODAY, [TODAY], empty, empty).keeps).all()
