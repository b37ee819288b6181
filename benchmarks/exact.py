"""The exact stage on other people's networks: rows that stay open, and agreement with HiGHS.

``VERITRACER_REFERENCE=FOLDER python -m benchmarks.exact [--rows 200] [--seconds 1]``

The networks and pairs are those of ``lirpa.npz`` in that folder: a standard-trained HELOC network
(23-100-10-10-1, ReLU) with counterfactuals drawn from the rows of the other class, and a network of the
paper's authors with two logits and LeakyReLU(0.01), with its own counterfactuals. Rows that the bounds
certify count as certified; ``bounds.branching`` takes the others. HiGHS then solves a mixed-integer program
for each of the others: the largest sign * logit(x_cf) over the set, without the condition on x. A row agrees
if the stage and the program decide alike. Where the program's maximum is within 1e-4 of 0, HiGHS's own
tolerance decides, and the row counts as near 0. Each row is decided by itself, within the time, its attack
included. A second table, without HiGHS, takes the region of ``REACH`` around each counterfactual in every
encoded column.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from benchmarks.record import save, show
from veritracer.bounds.branching import Decided, decide_rows
from veritracer.bounds.ibp import Box
from veritracer.bounds.methods import BOUNDS, BoundProblem
from veritracer.models.network import Network
from veritracer.models.param_sets import ParamSet
from veritracer.proving import PRECISION

CLOSE = 1e-4
"""Distance of the program's maximum from 0 below which HiGHS's own tolerance decides the sign."""

REACH = 0.02
"""Distance from a counterfactual to the ends of its region, as a share of each column's range."""

Array = NDArray[np.float64]


class Kind(NamedTuple):
    """A network of the reference file: its activations and readout, the first row to use, and the sets."""

    title: str
    slope: float
    readout: tuple[float, ...]
    first: int
    kappas: tuple[float, ...]


KINDS = {
    "standard": Kind("HELOC, standard training, one logit, ReLU", 0.0, (1.0,), 200, (0.02, 0.05, 0.1)),
    "two_logits": Kind(
        "HELOC, the authors' CROWN-IBP training, two logits, LeakyReLU",
        0.01,
        (-1.0, 1.0),
        0,
        (0.02, 0.05, 0.1, 0.2),
    ),
}


def problem_of(stored: np.lib.npyio.NpzFile, name: str, kappa: float, rows: int) -> BoundProblem:
    """Return the pairs with a valid counterfactual, among ``rows`` of them, and the set."""
    kind = KINDS[name]
    theta = tuple(torch.tensor(stored[f"{name}/{t}{i}"], dtype=torch.float64) for i in range(4) for t in "wb")
    part = slice(kind.first, kind.first + rows)
    x, x_cf = (torch.tensor(stored[f"{name}/{key}"][part], dtype=torch.float64) for key in ("x", "x_cf"))
    param_set = ParamSet.of(Network((kind.slope,) * 3, kind.readout), theta, kappa)
    logits = [param_set.network.logit(theta, each) for each in (x, x_cf)]
    signs = [torch.where(logit > 0, 1.0, -1.0).double() for logit in logits]
    valid = signs[0] != signs[1]
    return BoundProblem(param_set, x[valid], x_cf[valid], signs[0][valid], precision=PRECISION)


def widened(problem: BoundProblem) -> BoundProblem:
    """Return the problem of the regions around the counterfactuals."""
    box = Box(problem.x_cf - REACH, problem.x_cf + REACH)
    return BoundProblem(problem.param_set, problem.x, box, problem.sign, precision=PRECISION)


def certified_by_bounds(problem: BoundProblem) -> Tensor:
    """Return a mask of the rows that the library's bounds certify."""
    found = torch.zeros(len(problem.sign), dtype=torch.bool)
    with torch.no_grad():
        for bound in BOUNDS.values():
            worst = bound(problem.param_set, problem.x, problem.x_cf, problem.sign).worst_logit
            found |= worst + problem.slack < 0
    return found


def outcome(found: Decided) -> str:
    """Return how a row ended."""
    if found.worst_logit < 0:
        return "certified"
    return "unknown" if found.counterexample is None else "broken"


# ---------------------------------------------------------------- HiGHS


class Program:
    """A mixed-integer program over the positive and negative parts of units, with a binary for each sign."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[int] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def variable(self, low: float, high: float, *, whole: bool = False) -> int:
        """Add a variable and return its position."""
        self.low.append(low)
        self.high.append(high)
        self.whole.append(int(whole))
        return len(self.low) - 1

    def maximum(self, price: dict[int, float]) -> float:
        """Return the largest value of the price; nan where HiGHS does not finish in a minute."""
        matrix, cost = np.zeros((len(self.rows), len(self.low))), np.zeros(len(self.low))
        for i, (entries, _, _) in enumerate(self.rows):
            for column, value in entries.items():
                matrix[i, column] = value
        for column, value in price.items():
            cost[column] = -value
        least, most = ([row[side] for row in self.rows] for side in (1, 2))
        found = milp(
            cost,
            constraints=LinearConstraint(matrix, least, most) if self.rows else (),
            integrality=self.whole,
            bounds=Bounds(self.low, self.high),
            options={"mip_rel_gap": 0.0, "time_limit": 60.0},
        )
        return -float(found.fun) if found.success else float("nan")


def highest_logit(param_set: ParamSet, x_cf: Array, sign: float) -> float:
    """Return the largest sign * logit(x_cf) over a box of weights."""
    program = Program()
    units = [
        (program.variable(max(v, 0.0), max(v, 0.0)), program.variable(max(-v, 0.0), max(-v, 0.0)))
        for v in x_cf.tolist()
    ]
    slope = 1.0
    for k, layer in enumerate(param_set.layers[:-1]):
        weight, bias = layer.weight.numpy(), layer.bias.numpy()
        reach, bias_reach = float(layer.weight_radius), float(layer.bias_radius)
        ends = _ends(program, units, slope, (weight, reach), (bias, bias_reach))
        units = [
            _unit(program, units, slope, (weight[i], reach), (bias[i], bias_reach), ends[i])
            for i in range(len(bias))
        ]
        slope = param_set.network.slopes[k]
    last, readout = param_set.layers[-1], sign * np.array(param_set.network.readout)
    price: dict[int, float] = {}
    constant = float(readout @ last.bias.numpy()) + np.abs(readout).sum() * float(last.bias_radius)
    middle = readout @ last.weight.numpy()
    reach = np.abs(readout).sum() * float(last.weight_radius)
    for j, (up, down) in enumerate(units):
        price[up], price[down] = middle[j] + reach, slope * (reach - middle[j])
    return constant + program.maximum(price)


def _ends(
    program: Program,
    units: list[tuple[int, int]],
    slope: float,
    weight: tuple[Array, float],
    bias: tuple[Array, float],
) -> Array:
    """Return the range of each unit of a layer, (units, 2), by interval arithmetic."""
    low = np.array([program.low[up] - slope * program.high[down] for up, down in units])
    high = np.array([program.high[up] - slope * program.low[down] for up, down in units])
    corners = np.stack([(weight[0] + s * weight[1]) * end for s in (-1, 1) for end in (low, high)])
    return np.stack(
        [corners.min(0).sum(1) + bias[0] - bias[1], corners.max(0).sum(1) + bias[0] + bias[1]], axis=1
    )


def _unit(
    program: Program,
    units: list[tuple[int, int]],
    slope: float,
    weight: tuple[Array, float],
    bias: tuple[float, float],
    ends: Array,
) -> tuple[int, int]:
    """Add one unit, up - down, before its activation, and return the positions of its parts.

    ``slope`` is that of the activation below: an input of parts p and q is worth p - slope q, and its
    magnitude is p + slope q.
    """
    low, high = ends.tolist()
    up = program.variable(max(low, 0.0), max(high, 0.0))
    down = program.variable(max(-high, 0.0), max(-low, 0.0))
    if low < 0 < high:
        on = program.variable(0.0, 1.0, whole=True)
        program.rows.append(({up: 1.0, on: -high}, -np.inf, 0.0))
        program.rows.append(({down: 1.0, on: -low}, -np.inf, -low))
    for side in (1.0, -1.0):  # side * unit <= side * w h + reach |h| + side * b + bias reach
        row = {up: side, down: -side}
        for j, (p, q) in enumerate(units):
            row[p] = -(side * weight[0][j] + weight[1])
            row[q] = slope * (side * weight[0][j] - weight[1])
        program.rows.append((row, -np.inf, side * bias[0] + bias[1]))
    return up, down


# ---------------------------------------------------------------- the tables


def decided(problem: BoundProblem, seconds: float) -> tuple[dict[str, float], BoundProblem, list[Decided]]:
    """Return counts of how the rows end, and the rows that bounds leave open with their ends."""
    by_bounds = certified_by_bounds(problem)
    open_ = problem.select(torch.nonzero(~by_bounds)[:, 0])
    start = time.perf_counter()
    alone = (open_.select(torch.tensor([row])) for row in range(len(open_.sign)))
    found = [decide_rows(row, seconds)[0] for row in alone]
    spent = time.perf_counter() - start
    ends = [outcome(each) for each in found]
    counts = {
        "rows": len(by_bounds),
        "certified by bounds": int(by_bounds.sum()),
        **{f"{end} by branching": ends.count(end) for end in ("certified", "broken")},
        "open": ends.count("unknown"),
        "seconds a row": spent / max(len(found), 1),
    }
    return counts, open_, found


def compared(problem: BoundProblem, seconds: float) -> dict[str, float]:
    """Return the counts, and how many ends HiGHS confirms."""
    counts, open_, found = decided(problem, seconds)
    ends = [outcome(each) for each in found]
    start = time.perf_counter()
    highest = [
        highest_logit(open_.param_set, x_cf.numpy(), float(sign))
        for x_cf, sign in zip(open_.x_cf, open_.sign, strict=True)
    ]
    solved = time.perf_counter() - start
    against = Counter(
        "near 0"
        if abs(most) < CLOSE
        else "unsolved"
        if np.isnan(most)
        else "open"
        if end == "unknown"
        else "agrees"
        if (end == "certified") == (most < 0)
        else "disagrees"
        for end, most in zip(ends, highest, strict=True)
    )
    below = [each.worst_logit < most - 1e-6 for each, most in zip(found, highest, strict=True)]
    provable = [end == "unknown" and most < 0 for end, most in zip(ends, highest, strict=True)]
    return {
        **counts,
        "open, certified by HiGHS": int(sum(provable)),
        "HiGHS, seconds a row": solved / max(len(found), 1),
        **{name: against[name] for name in ("agrees", "disagrees", "near 0", "unsolved")},
        "bounds below HiGHS's maximum": int(sum(below)),
    }


def main() -> None:
    """Measure every network at every kappa, and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    given = parser.parse_args()
    torch.set_num_threads(1)
    stored = np.load(Path(os.environ["VERITRACER_REFERENCE"]) / "lirpa.npz")
    tables, results = [], {}
    for name, kind in KINDS.items():
        problems = {kappa: problem_of(stored, name, kappa, given.rows) for kappa in kind.kappas}
        found = {
            "rows": {kappa: compared(problem, given.seconds) for kappa, problem in problems.items()},
            f"regions of ±{REACH:g}": {
                kappa: decided(widened(problem), given.seconds)[0] for kappa, problem in problems.items()
            },
        }
        for what, numbers in found.items():
            header = ["kappa", *numbers[kind.kappas[0]]]
            rows = [[kappa, *counts.values()] for kappa, counts in numbers.items()]
            tables.append(show(f"{kind.title}, {what}: {given.seconds:g} s for each", header, rows))
        results[name] = found
    save("exact", {"seconds": given.seconds, "results": results}, tables)


if __name__ == "__main__":
    main()
