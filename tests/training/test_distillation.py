"""What a panel teaches, in small: likeness to favourable rows, and which rows it is sure of."""

from __future__ import annotations

import pytest
import torch

from veritracer.training import distillation
from veritracer.training.data import LabelledRows
from veritracer.training.distillation import Distillation, _Likeness, _sure
from veritracer.training.panel_members import Ranks


def labelled(x: torch.Tensor, favourable: torch.Tensor) -> LabelledRows:
    return LabelledRows(x, favourable.to(x), torch.ones(len(x)))


@pytest.mark.parametrize("pool", [2000, 40])
def test_likeness_fades_with_the_distance_from_favourable_rows(
    pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Favourable rows are in the upper half; with a small pool others of them say what is usual."""
    monkeypatch.setattr(distillation, "POOL", pool)
    x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    likeness = _Likeness.of(Ranks.of(x), labelled(x, x[:, 0] > 0.5), 0)
    assert len(likeness.pool) == min(pool, int((x[:, 0] > 0.5).sum()))
    assert 0 < likeness.usual < 0.5
    near, far = likeness(torch.tensor([[0.8, 0.5], [0.0, 0.5]]))
    assert near > 0.99
    assert far < 0.5
    assert far < near


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_to_be_like_makes_nobody_unlike(count: int) -> None:
    """One favourable row has no neighbour: no distance is usual, so none counts against anybody.

    There is none at all where all of them weigh nothing.
    """
    x = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    likeness = _Likeness.of(Ranks.of(x), labelled(x, torch.arange(20) < count), 0)
    assert likeness.usual == float("inf")
    assert likeness(x).tolist() == [1.0] * 20


def test_the_surer_half_of_each_side_is_sure() -> None:
    assert _sure(torch.tensor([0.1, 3.0, -0.2, -5.0, 1.0]), 0.5).tolist() == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert _sure(torch.tensor([1.0, 2.0, 3.0, 4.0]), 0.75).tolist() == [
        0.0,
        0.0,
        1.0,
        1.0,
    ]  # of one side only


def test_strength_scales_weights_and_replaces_labels_at_most() -> None:
    stronger = Distillation().times(2.0)
    assert (stronger.at_swapped, stronger.for_generator, stronger.soft_labels) == (10.0, 8.0, 1.0)
    assert (stronger.swapped, stronger.moves) == (Distillation().swapped, Distillation().moves)
