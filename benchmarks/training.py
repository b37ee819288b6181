"""Seconds per epoch: standard, CounterNet and VeriTraCER with each bound; and ten seeds at once against one.

``python -m benchmarks.training [--device cuda]``

Tables of HELOC's and OULA's shape, filled at random, batches of 128. A single model trains on one thread of
a CPU, ten at once on all of them, as ``fit`` and ``fit_many`` do. The methods take turns in one run; the
robust loss is on from the first batch.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from benchmarks.record import save, show
from veritracer.encoding import Encoding
from veritracer.errors import DataWarning
from veritracer.schema import Schema
from veritracer.training.algorithm import train
from veritracer.training.config import TrainingConfig
from veritracer.training.data import LabelledRows

METHODS = {
    "standard": {"method": "standard"},
    "counternet": {"method": "counternet"},
    "veritracer, ibp": {"bound": "ibp"},
    "veritracer, crown-ibp": {"bound": "crown-ibp"},
    "veritracer, simul-crown": {"bound": "simul-crown"},
}


class Shape(NamedTuple):
    """Rows, numeric columns, and the number of categories of each categorical column."""

    rows: int
    numbers: int
    categories: tuple[int, ...]


SHAPES = {"HELOC": Shape(7896, 23, ()), "OULA": Shape(26074, 23, (7, 2, 13, 5, 10, 3, 5, 2))}


def table(shape: Shape, device: str) -> tuple[Encoding, LabelledRows, LabelledRows]:
    """A random table of that shape with a label that can be learned, and 200 rows to validate on."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"n{i}": rng.random(shape.rows) for i in range(shape.numbers)})
    for i, size in enumerate(shape.categories):
        frame[f"c{i}"] = rng.integers(0, size, shape.rows).astype(str)
    schema = Schema.infer(frame, categorical=[f"c{i}" for i in range(len(shape.categories))])
    encoding = Encoding.fit(schema, frame)
    x = encoding.encode(frame, dtype=torch.float32).to(device)
    score = x[:, : shape.numbers] @ torch.linspace(-1, 1, shape.numbers, device=device)
    y = (score > score.median()).float()
    return (
        encoding,
        LabelledRows(x, y, torch.ones(1, len(x), device=device)),
        LabelledRows(x[:200], y[:200], torch.ones(1, 200, device=device)),
    )


def epoch_seconds(
    encoding: Encoding, rows: LabelledRows, few: LabelledRows, seeds: int, **choices: object
) -> float:
    """The faster of two epochs, the first of which also warms up."""
    config = TrainingConfig(epochs=2, warmup=0.0, ramp=0.0, **choices)
    rows, few = (r._replace(weight=r.weight.expand(seeds, -1)) for r in (rows, few))
    found = train(config, encoding, rows, few, range(seeds))
    return min(record["seconds"] for record in found.history[0])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    device = parser.parse_args().device
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore", DataWarning)
    results: dict[str, object] = {}
    tables = []
    for name, shape in SHAPES.items():
        prepared = table(shape, device)
        taken: dict[str, list[float]] = {method: [] for method in (*METHODS, "ten seeds, simul-crown")}
        for _ in range(rounds):
            for method, choices in METHODS.items():
                taken[method].append(epoch_seconds(*prepared, 1, **choices))
            taken["ten seeds, simul-crown"].append(epoch_seconds(*prepared, 10, bound="simul-crown"))
        medians = {method: statistics.median(values) for method, values in taken.items()}
        lines = [
            [
                m,
                f"{s:.3f}",
                f"{s / medians['counternet']:.2f}",
                f"{s / medians['veritracer, simul-crown']:.2f}",
            ]
            for m, s in medians.items()
        ]
        header = ["method", "s/epoch", "× CounterNet", "× one seed, simul-crown"]
        tables.append(show(f"{name}'s shape on {device}, batches of 128", header, lines))
        results[name] = {"device": device, "seconds": taken, "medians": medians}
    save("training" if device == "cpu" else f"training_{device}", {"results": results}, tables)


if __name__ == "__main__":
    main()
