"""Where later models are, what survives there, and what the condition of Simul-CROWN adds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from veritracer.models.param_sets import ParamSet
from veritracer_bench.assumption import (
    Row,
    condition_of,
    later_models,
    read_rows,
    rows_of,
    table,
    write_rows,
)
from veritracer_bench.results import write_json


def linear(a: float, b: float, bias: float) -> nn.Linear:
    layer = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[a, b]], dtype=torch.float64))
        layer.bias.fill_(bias)
    return layer


def test_displacement_is_in_radii_and_survivors_are_counted_among_valid_ones() -> None:
    today = linear(1.0, 0.0, -0.5)
    near, far = linear(1.02, 0.0, -0.5), linear(1.0, 0.0, -0.8)
    x = torch.tensor([[0.2, 0.0], [0.2, 0.0], [0.2, 0.0]], dtype=torch.float64)
    x_cf = torch.tensor([[0.7, 0.0], [0.9, 0.0], [0.3, 0.0]], dtype=torch.float64)  # the last is not valid
    found = later_models(ParamSet.around(today, radius=0.1), today, [near, far], x, x_cf)
    np.testing.assert_allclose(found.displacement, [[0.2, 0.0], [0.0, 3.0]], atol=1e-9)
    assert found.inside.tolist() == [True, False]
    assert found.survives.tolist() == [1.0, 0.5]


def test_the_condition_binds_in_the_example_of_the_paper() -> None:
    model = linear(1.0, -1.0, -2.0)
    x, x_cf = (torch.tensor([row], dtype=torch.float64) for row in ((4.0, 1.0), (-4.0, -1.0)))
    found = condition_of(ParamSet.around(model, radius=1.9), model, x, x_cf)
    assert found == (1.0, 1.0)
    easy = condition_of(ParamSet.around(model, radius=0.01), model, x, x_cf)
    assert easy == (0.0, 0.0)


def job(folder: Path, seed: int, shift: float, changes: dict[str, float]) -> None:
    """A finished job: a network with one hidden layer, its rows, and a fine-tuned classifier."""
    folder.mkdir(exist_ok=True)
    draw = torch.Generator().manual_seed(seed + 1)
    shapes = (3, 2), (3,), (2, 3), (2,)
    theta = [torch.randn(shape, generator=draw) for shape in shapes]
    tensors = {f"classifier.{i}": t for i, t in enumerate(theta)}
    tensors |= {f"later.{i}": t + shift for i, t in enumerate(theta)}
    tensors |= {name: torch.rand(20, 2, generator=draw) for name in ("x", "x_cf")}
    name = f"ri.heloc.ibp.{seed}"
    save_file(tensors, folder / f"{name}.safetensors")
    key = {"experiment": "ri", "dataset": "heloc", "method": "ibp", "seed": seed}
    write_json(folder / f"{name}.json", {**key, "changes": changes, "numbers": {}})


@pytest.fixture
def rows(tmp_path: Path) -> list[Row]:
    for seed in range(3):
        job(tmp_path / "runs", seed, 0.0, {})
        job(tmp_path / "again", seed, 0.0, {"weight_decay": 0.5})
    return list(rows_of(tmp_path / "runs", [tmp_path / "again"]))


def test_every_experiment_has_its_pairs(rows: list[Row]) -> None:
    assert {(row.experiment, row.models, row.later) for row in rows} == {
        ("ri", 3, 6),
        ("ds", 3, 3),
        ("retrained, weight_decay 0.5", 3, 6),
    }
    same = next(row for row in rows if row.experiment == "ds")
    assert same.displacement == (0.0,) * 4
    assert (same.inside, same.survives) == (1.0, 1.0)
    other = next(row for row in rows if row.experiment == "ri")
    assert other.inside == 0.0
    assert other.survives == other.survives_outside


def test_stored_lines_of_other_groups_stay(rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / "assumption.csv"
    write_rows(path, [rows[0], rows[0]._replace(dataset="who", inside=0.25)])
    write_rows(path, [rows[0]._replace(inside=0.5)])
    found = {(row.experiment, row.dataset): row.inside for row in read_rows(path)}
    assert found == {(rows[0].experiment, "heloc"): 0.5, (rows[0].experiment, "who"): 0.25}
    assert len(table(read_rows(path))) == 4
