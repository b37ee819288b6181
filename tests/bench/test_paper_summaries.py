"""``benchmarks.paper``: models in a folder beside stored numbers whose files are gone."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from benchmarks.paper import merge
from safetensors.torch import save_file

from veritracer_bench import agreement
from veritracer_bench.results import write_json


def finish(folder: Path, experiment: str, dataset: str, method: str, models: int, accuracy: float) -> None:
    """Write the files of finished jobs: networks with one hidden layer and random rows."""
    folder.mkdir(exist_ok=True)
    shapes = {"classifier.0": (3, 2), "classifier.1": (3,), "classifier.2": (2, 3), "classifier.3": (2,)}
    for seed in range(models):
        draw = torch.Generator().manual_seed(seed)
        tensors = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
        tensors |= {name: torch.rand(5, 2, generator=draw) for name in ("x", "x_cf")}
        name = f"{experiment}.{dataset}.{method}.{seed}"
        save_file(tensors, folder / f"{name}.safetensors")
        key = {"experiment": experiment, "dataset": dataset, "method": method, "seed": seed}
        document = {**key, "commit": "abc", "numbers": {"accuracy": accuracy, "conditional": 0.0}}
        write_json(folder / f"{name}.json", document)


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A stored summary of two groups, of which a later run repeats one."""
    stored = tmp_path / "stored"
    stored.mkdir()
    finish(tmp_path / "first", "ri", "who", "veritracer", 3, 0.8)
    finish(tmp_path / "first", "ri", "heloc", "veritracer", 3, 0.7)
    merge(tmp_path / "first", stored)
    finish(tmp_path / "second", "ri", "heloc", "veritracer", 2, 0.75)
    finish(tmp_path / "second", "loo", "heloc", "counternet", 2, 0.6)
    merge(tmp_path / "second", stored)
    return stored


def test_groups_in_the_folder_replace_their_lines_and_all_others_stay(stored: Path) -> None:
    found = {each[:3]: each for each in agreement.read_summaries(stored / "ours.csv")}
    assert {key: (s.models, s.numbers["accuracy"][0]) for key, s in found.items()} == {
        ("loo", "heloc", "counternet"): (2, 0.6),
        ("ri", "heloc", "veritracer"): (2, 0.75),
        ("ri", "who", "veritracer"): (3, 0.8),
    }
    models = [(m["experiment"], m["dataset"], m["seed"]) for m in lines(stored / "models.csv")]
    assert models == [
        *(("loo", "heloc", str(seed)) for seed in range(2)),
        *(("ri", "heloc", str(seed)) for seed in range(2)),
        *(("ri", "who", str(seed)) for seed in range(3)),
    ]


def test_every_group_says_what_it_was_trained_and_summarised_with(stored: Path) -> None:
    conditions = json.loads((stored / "ours.conditions.json").read_text(encoding="utf-8"))
    assert list(conditions) == ["loo.heloc.counternet", "ri.heloc.veritracer", "ri.who.veritracer"]
    assert {each["trained"] for each in conditions.values()} == {"abc"}
    assert all("torch" in each["summarised"] for each in conditions.values())


def test_merging_twice_changes_nothing(stored: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in stored.iterdir()}
    merge(tmp_path / "second", stored)
    assert {path.name: path.read_bytes() for path in stored.iterdir()} == before
