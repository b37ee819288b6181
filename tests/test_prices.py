"""Prices: by hand, and what they leave alone."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

import veritracer as vt
from veritracer.errors import TrainingError
from veritracer.prices import prices

ROWS = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)


def encoding(**options: list[str]) -> vt.Encoding:
    frame = pd.DataFrame(ROWS.numpy(), columns=["a", "b", "c"]).assign(
        c=[0.0, 0.5, 0.0, 1.0], y=["no", "no", "yes", "yes"]
    )
    schema = vt.Schema.infer(frame, target="y", favourable="yes", **options)
    return vt.Encoding.fit(schema.unconstrained() if not options else schema, frame)


def test_the_column_that_tells_most_costs_one_and_a_silent_one_the_most() -> None:
    y = torch.tensor([0.0, 0.0, 1.0, 1.0])
    found = prices(encoding(), ROWS, y, torch.ones(1, 4), most=4.0)
    assert found.tolist() == [[1.0, 4.0, 4.0]]


def test_the_price_is_inverse_to_the_correlation() -> None:
    """By hand, weights 3, 1, 1, 3: the label is the first column, which agrees with the second in 3 of 4."""
    y, weight = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([[3.0, 1.0, 1.0, 3.0]])
    found = prices(encoding(), ROWS, y, weight, most=4.0)
    assert found[0].tolist() == pytest.approx([1.0, 2.0, 4.0])  # correlations 1, 1/2 and none


def test_each_model_has_the_prices_of_its_own_rows() -> None:
    y = torch.tensor([0.0, 1.0, 1.0, 1.0])
    weight = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 1.0, 1.0]])
    both = prices(encoding(), ROWS, y, weight, most=8.0)
    alone = [prices(encoding(), ROWS, y, w[None], most=8.0)[0] for w in weight]
    assert torch.allclose(both, torch.stack(alone), atol=1e-12)
    assert not torch.equal(both[0], both[1])


def test_what_may_not_change_is_not_compared_with() -> None:
    y, weight = torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([[3.0, 1.0, 1.0, 3.0]])
    assert prices(encoding(immutable=["a"]), ROWS, y, weight, most=4.0)[0, 1] == 1.0


def test_labels_that_nothing_tells_of_make_all_prices_one() -> None:
    assert prices(encoding(), ROWS, torch.ones(4), torch.ones(1, 4), most=4.0).tolist() == [[1.0] * 3]


def test_a_price_below_one_is_refused() -> None:
    with pytest.raises(TrainingError, match="max_price"):
        vt.VeriTraCER(max_price=0.5).training_config()
