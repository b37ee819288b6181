"""The search against the optimum where rows are too many to count: a mixed-integer program, solved exactly.

``python -m benchmarks.milp [--problems 40]``. Random ReLU networks over ten integers of 21 values each (more
than 10^13 rows). At kappa = 0 a certificate is validity by more than rounding, which a program with one
binary for each unit can state: x' on the grid, the cheapest with a logit above the margin. HiGHS solves it
to the end; told is the cost of what ``explain`` finds, as a multiple of that optimum.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import nn

import veritracer as vt
from benchmarks.record import save, show
from veritracer.search.problem import COST_OF_A_CHANGE

FEATURES, STEPS, HIDDEN, PEOPLE = 10, 20, (8, 6), 5
MARGIN = 1e-6
"""Of the logit: more than what rounding costs, so that an optimum can be certified."""


class Layer(NamedTuple):
    """Weights and biases, and limits of what goes in."""

    weight: np.ndarray
    bias: np.ndarray
    low: np.ndarray
    high: np.ndarray


def layers(module: nn.Sequential) -> list[Layer]:
    """The network's layers with interval bounds of each unit before its activation."""
    low, high = np.zeros(FEATURES), np.ones(FEATURES)
    found = []
    for part in module:
        if isinstance(part, nn.Linear):
            weight, bias = part.weight.detach().double().numpy(), part.bias.detach().double().numpy()
            up, down = np.maximum(weight, 0), np.minimum(weight, 0)
            low, high = up @ low + down @ high + bias, up @ high + down @ low + bias
            found.append(Layer(weight, bias, low, high))
            low, high = np.maximum(low, 0), np.maximum(high, 0)
    return found


class Program:
    """Variables: steps (integers), distances, change flags, then units and flags of each hidden layer."""

    def __init__(self, module: nn.Sequential) -> None:
        self.layers = layers(module)
        sizes = [FEATURES] * 3 + [len(layer.bias) for layer in self.layers[:-1] for _ in range(2)]
        ends = np.cumsum([0, *sizes])
        self.parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self.size = int(ends[-1])

    def cheapest(self, x: np.ndarray) -> float:
        """The cost of the best row above the margin; infinity where there is none."""
        steps, distance, flag = self.parts[:3]
        rows: list[tuple[np.ndarray, float, float]] = []

        def add(low: float, high: float) -> np.ndarray:
            row = np.zeros(self.size)
            rows.append((row, low, high))
            return row

        for j in range(FEATURES):
            for sign in (1.0, -1.0):  # distance >= +-(steps / STEPS - x)
                row = add(-sign * x[j], np.inf)
                row[distance.start + j], row[steps.start + j] = 1.0, -sign / STEPS
            row = add(-np.inf, 0.0)
            row[distance.start + j], row[flag.start + j] = 1.0, -1.0
        before, scale = steps, 1.0 / STEPS
        for k, layer in enumerate(self.layers[:-1]):
            unit, on = self.parts[3 + 2 * k], self.parts[4 + 2 * k]
            for i in range(len(layer.bias)):
                row = add(layer.bias[i], np.inf)  # unit >= its input
                row[unit.start + i], row[before] = 1.0, -scale * layer.weight[i]
                row = add(-np.inf, layer.bias[i] - min(layer.low[i], 0.0))  # unit <= input - low (1 - on)
                row[unit.start + i], row[before] = 1.0, -scale * layer.weight[i]
                row[on.start + i] = -min(layer.low[i], 0.0)
                row = add(-np.inf, 0.0)  # unit <= high on
                row[unit.start + i], row[on.start + i] = 1.0, -max(layer.high[i], 0.0)
            before, scale = unit, 1.0
        row = add(MARGIN - self.layers[-1].bias[0], np.inf)
        row[before] = scale * self.layers[-1].weight[0]
        return self._solve(rows)

    def _solve(self, rows: list[tuple[np.ndarray, float, float]]) -> float:
        price, whole = np.zeros(self.size), np.zeros(self.size)
        low, high = np.zeros(self.size), np.full(self.size, np.inf)
        steps, distance, flag = self.parts[:3]
        price[distance], price[flag] = 1.0, COST_OF_A_CHANGE
        whole[steps], high[steps] = 1.0, STEPS
        for part in (flag, *self.parts[4::2]):
            whole[part], high[part] = 1.0, 1.0
        matrix, least, most = (np.array(column) for column in zip(*rows, strict=True))
        options = {"mip_rel_gap": 0.0}
        found = milp(
            price,
            constraints=LinearConstraint(matrix, least, most),
            integrality=whole,
            bounds=Bounds(low, high),
            options=options,
        )
        return float(found.fun) if found.success else float("inf")


def problem(seed: int) -> list[float]:
    """Cost over optimum of each person of one network; infinity where an answer is missed."""
    torch.manual_seed(seed)
    features = [vt.Feature(name=f"f{j}", kind="integer", lower=0, upper=STEPS) for j in range(FEATURES)]
    schema = vt.Schema(target="y", favourable=1, features=tuple(features))
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.integers(0, STEPS + 1, (400, FEATURES)), columns=schema.names)
    table.iloc[0], table.iloc[1] = 0, STEPS
    encoding = vt.Encoding.fit(schema, table)
    sizes = (FEATURES, *HIDDEN, 1)
    parts = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    module = nn.Sequential(*parts[:-1]).double()
    with torch.no_grad():
        out = module(encoding.encode(table))[:, 0]
        module[-1].bias -= torch.quantile(out, 0.7)
        declined = table[(module(encoding.encode(table))[:, 0] < -MARGIN).numpy()].head(PEOPLE)
    found = vt.Recourse(module, schema, encoding, rows=table, kappa=0.0).explain(
        declined, search_radius=False
    )
    program, ratios = Program(module), []
    for i, x in enumerate(encoding.encode(declined).numpy()):
        best = program.cheapest(x)
        if np.isfinite(best):
            cost = float(found.cost[i]) + COST_OF_A_CHANGE * int(found.n_changes[i])
            ratios.append(cost / best if found.certified[i] else float("inf"))
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", type=int, default=40)
    warnings.simplefilter("ignore")
    ratios = np.array([ratio for seed in range(parser.parse_args().problems) for ratio in problem(seed)])
    known = ratios[np.isfinite(ratios)]
    header = ["people with an answer", "missed", "optimal", "within 5 %", "mean ratio", "worst"]
    row = [len(ratios), int(np.isinf(ratios).sum()), f"{np.mean(known <= 1 + 1e-6):.1%}"]
    row += [f"{np.mean(known <= 1.05):.1%}", f"{known.mean():.4f}", f"{known.max():.2f}"]
    save("milp", {"ratios": ratios.tolist()}, [show("The search against a MILP's optimum", header, [row])])


if __name__ == "__main__":
    main()
