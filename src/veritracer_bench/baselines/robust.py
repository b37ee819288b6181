"""Baselines with a proof over a box of parameters: RNCE and PROPLACE.

RNCE (Jiang, Leofante, Rago, Toni 2024, "Interval abstractions for robust counterfactual explanations")
returns the nearest training row whose decision no model of the box changes. PROPLACE (Jiang, Lan, Leofante,
Rago, Toni 2023, "Provably robust and plausible counterfactual explanations via robust optimisation") finds
the closest such point in the convex hull of the row and its nearest robust neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array
from torch import Tensor

from veritracer.certificate import certify
from veritracer.errors import NotSupportedError, message
from veritracer.models.network import to_module
from veritracer.models.param_sets import ParamSet
from veritracer_bench.baselines.explainer import C, Options
from veritracer_bench.baselines.floors import NearestRow

Floats = NDArray[np.float64]

UNCONDITIONAL = ("ibp", "crown-ibp")
"""Proofs that do not use the row that is explained, so that a training row is proved once."""

MARGIN = 1e-6
"""Logit beyond the boundary: the tolerance of the solver's constraints."""


@dataclass(frozen=True)
class RobustOptions(Options):
    """Hyperparameters of a method with a proof.

    Attributes
    ----------
    kappa
        Size of the box around the classifier's parameters: an ℓ∞ radius of kappa times a tensor's mean
        absolute value.
    """

    kappa: float = 0.02


class _Robust(NearestRow[C]):
    """A method whose candidates are training rows that no model of the box decides differently."""

    def candidates(self, goal: float) -> Tensor:
        """Return the certified training rows of this decision."""
        decided = torch.sign(self.logit(self.x_train))
        pool, others = self.x_train[decided == goal], self.x_train[decided == -goal]
        if not len(pool) or not len(others):
            return pool[:0]
        # Only the decision of the explained row matters to these proofs, so that any row stands for all.
        rows = others[:1].expand(len(pool), -1)
        module = to_module(self.network, self.theta)
        found = certify(module, rows, pool, self.param_set(), methods=UNCONDITIONAL, radius=False)
        return pool[torch.from_numpy(found.certified)]

    def param_set(self) -> ParamSet:
        """Return the box around the classifier."""
        assert isinstance(self.config, RobustOptions)
        return ParamSet.around(to_module(self.network, self.theta), self.config.kappa)


class Rnce(_Robust[RobustOptions]):
    """The nearest training row, by L1 distance, that is certified over the box."""

    name = "rnce"
    options = RobustOptions


# ---------------------------------------------------------------- PROPLACE


@dataclass(frozen=True)
class ProplaceOptions(RobustOptions):
    """Hyperparameters of PROPLACE.

    Attributes
    ----------
    neighbours
        Robust neighbours that span the hull, beside the row itself.
    rounds
        Models that are added at most, one in each round.
    seconds
        Time for each program; a solver that runs out of it gives its best point so far.
    """

    neighbours: int = 10
    rounds: int = 10
    seconds: float = 30.0


class Proplace(_Robust[ProplaceOptions]):
    """Minimise ‖x′ − x‖₁ over the hull of x and its robust neighbours, for the worst model of the box.

    A sequence of mixed-integer programs: the closest point for all models found so far, then the worst model
    for that point, until no model of the box changes its decision. A row whose programs find nothing in
    ``rounds`` gets its nearest robust neighbour. HiGHS solves them; the authors use Gurobi.

    For one point each weight is used once and activations are not negative, so that the worst model is exact:
    the input of a unit is any value between two linear functions of the activations before it.
    """

    name = "proplace"
    options = ProplaceOptions

    def prepare(self) -> None:
        """Find the robust rows, and refuse activations that the programs do not state."""
        if any(slope != 0.0 for slope in self.network.slopes):
            raise NotSupportedError(message("a network with ReLU", "LeakyReLU", "PROPLACE needs h >= 0"))
        super().prepare()
        self.box = [
            (w - r, w + r)
            for w, r in zip(
                (t.numpy() for t in self.theta), (float(r) for r in self.param_set().radii), strict=True
            )
        ]

    def search(self, x: Tensor) -> Tensor:
        """Solve the programs of each row."""
        goal, nearest = self.goal(x), super().search(x)
        found = [self._one(x[i].numpy(), float(goal[i]), nearest[i].numpy()) for i in range(len(x))]
        return torch.from_numpy(np.stack(found))

    def _one(self, x: Floats, goal: float, nearest: Floats) -> Floats:
        """Return the counterfactual of one row; ``nearest`` is its nearest robust neighbour."""
        index = self.indices.get(goal)
        if index is None:
            return nearest
        count = min(self.config.neighbours, len(self.pools[goal]))
        corners = self.pools[goal].numpy()[index.kneighbors(x[None], count, return_distance=False)[0]]
        models = [[t.numpy() for t in self.theta]]
        for _ in range(self.config.rounds):
            point = closest_in_hull(x, corners, models, goal, self.config.seconds)
            if point is None:
                return nearest
            worst = worst_model(point, self.box, goal, self.config.seconds)
            if worst is None:
                return nearest
            if worst.logit * goal > 0:
                return point
            models.append(worst.theta)
        return nearest


class Worst(NamedTuple):
    """The model of a box with the least logit in the wanted direction, at one point."""

    logit: float
    theta: list[Floats]


class Program:
    """A mixed-integer program that is built variable by variable; all rows are ``low <= a·v <= high``."""

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def variables(self, low: Floats, high: Floats, *, whole: bool = False) -> list[int]:
        """Add variables within limits, and return their positions."""
        start = len(self.low)
        self.low += low.tolist()
        self.high += high.tolist()
        self.whole += [whole] * len(low)
        return list(range(start, len(self.low)))

    def tighten(self, found: Sequence[int], low: Floats, high: Floats) -> None:
        """Set closer limits of variables."""
        for position, least, most in zip(found, low.tolist(), high.tolist(), strict=True):
            self.low[position], self.high[position] = least, most

    def row(self, terms: dict[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        """Add a constraint."""
        self.rows.append((terms, low, high))

    def layer(
        self, inputs: Sequence[int], least: tuple[Floats, Floats], most: tuple[Floats, Floats]
    ) -> list[int]:
        """Add units whose values lie between two affine functions of inputs that are not negative."""
        low_in, high_in = (np.array([side[i] for i in inputs]) for side in (self.low, self.high))
        low = _lowest(*least, low_in, high_in)
        high = -_lowest(-most[0], -most[1], low_in, high_in)
        found = self.variables(low, high)
        for unit, position in enumerate(found):
            for (weight, bias), at_least in ((least, True), (most, False)):
                terms = dict(zip(inputs, (-weight[unit]).tolist(), strict=True))
                limit = float(bias[unit])
                self.row({position: 1.0, **terms}, *((limit, np.inf) if at_least else (-np.inf, limit)))
        return found

    def relu(self, inputs: Sequence[int]) -> list[int]:
        """Add the positive parts of variables, with a binary for each whose sign is open."""
        low, high = (np.array([side[i] for i in inputs]) for side in (self.low, self.high))
        found = self.variables(np.zeros(len(inputs)), np.maximum(high, 0.0))
        for unit, (z, h) in enumerate(zip(inputs, found, strict=True)):
            if low[unit] >= 0:
                self.row({h: 1.0, z: -1.0}, 0.0, 0.0)
            elif high[unit] > 0:
                (on,) = self.variables(np.zeros(1), np.ones(1), whole=True)
                self.row({h: 1.0, z: -1.0}, low=0.0)
                self.row({h: 1.0, z: -1.0, on: -low[unit]}, high=-low[unit])
                self.row({h: 1.0, on: -high[unit]}, high=0.0)
        return found

    def solve(self, cost: dict[int, float], seconds: float) -> Floats | None:
        """Return the best point that HiGHS finds in time; None if there is none."""
        size = len(self.low)
        price = np.zeros(size)
        price[list(cost)] = list(cost.values())
        entries = [(r, v, c) for r, (terms, _, _) in enumerate(self.rows) for v, c in terms.items()]
        rows, columns, values = (np.array(each) for each in zip(*entries, strict=True))
        matrix = csr_array((values, (rows.astype(int), columns.astype(int))), shape=(len(self.rows), size))
        limits = [np.array(each) for each in zip(*((low, high) for _, low, high in self.rows), strict=True)]
        found = milp(
            price,
            constraints=LinearConstraint(matrix, *limits),
            integrality=np.array(self.whole, dtype=float),
            bounds=Bounds(np.array(self.low), np.array(self.high)),
            options={"time_limit": seconds},
        )
        return None if found.x is None else np.asarray(found.x, dtype=np.float64)


def _lowest(weight: Floats, bias: Floats, low: Floats, high: Floats) -> Floats:
    """Return the least value of an affine function over a box of inputs."""
    found: Floats = np.maximum(weight, 0) @ low + np.minimum(weight, 0) @ high + bias
    return found


def closest_in_hull(
    x: Floats, corners: Floats, models: Sequence[Sequence[Floats]], goal: float, seconds: float
) -> Floats | None:
    """Return the closest point in the hull of ``x`` (d,) and ``corners`` (k, d) that all models accept.

    Minimises ‖x′ − x‖₁ with x′ = x + Σ λ_i (corner_i − x), λ ≥ 0, Σ λ ≤ 1 and s·f_m(x′) ≥ margin for each m.
    """
    program, count = Program(), len(corners)
    shares = program.variables(np.zeros(count), np.ones(count))
    program.row(dict.fromkeys(shares, 1.0), high=1.0)
    everybody = np.vstack([x[None], corners])
    point = program.variables(everybody.min(0), everybody.max(0))
    moved = program.variables(np.zeros(len(x)), np.full(len(x), np.inf))
    for j, (value, distance) in enumerate(zip(point, moved, strict=True)):
        terms = dict(zip(shares, (x[j] - corners[:, j]).tolist(), strict=True))
        program.row({value: 1.0, **terms}, x[j], x[j])
        program.row({distance: 1.0, value: -1.0}, low=-x[j])
        program.row({distance: 1.0, value: 1.0}, low=x[j])
    for theta in models:
        layers = [(theta[i], theta[i + 1]) for i in range(0, len(theta), 2)]
        units = point
        for depth, layer in enumerate(layers[:-1]):
            inputs = program.layer(units, layer, layer)
            if depth == 0:  # over a hull, an affine function has its limits at corners
                at_corners = everybody @ layer[0].T + layer[1]
                program.tighten(inputs, at_corners.min(0), at_corners.max(0))
            units = program.relu(inputs)
        weight, bias = layers[-1]
        terms = dict(zip(units, (goal * weight[0]).tolist(), strict=True))
        program.row(terms, low=MARGIN - goal * float(bias[0]))
    found = program.solve(dict.fromkeys(moved, 1.0), seconds)
    return None if found is None else np.clip(found[point], 0.0, 1.0)


def worst_model(
    point: Floats, box: Sequence[tuple[Floats, Floats]], goal: float, seconds: float
) -> Worst | None:
    """Return the model of the box with the least s·f(x′) at a point (d,) of [0, 1]; None if time runs out.

    NOTE: a solver's bound is not rounded outward; the measured certificates are our own.
    """
    program = Program()
    units, before = program.variables(point, point), []
    after = []
    for i in range(0, len(box), 2):
        (low, high), (low_bias, high_bias) = box[i], box[i + 1]
        before.append(units)
        after.append(program.layer(units, (low, low_bias), (high, high_bias)))
        units = program.relu(after[-1]) if i + 2 < len(box) else after[-1]
    found = program.solve({units[0]: goal}, seconds)
    if found is None:
        return None
    theta: list[Floats] = []
    for k, (inputs, outputs) in enumerate(zip(before, after, strict=True)):
        (low, high), (low_bias, high_bias) = box[2 * k], box[2 * k + 1]
        h = found[inputs]
        least, most = low @ h + low_bias, high @ h + high_bias
        width = np.maximum(most - least, np.finfo(np.float64).tiny)
        share = np.clip((found[outputs] - least) / width, 0.0, 1.0)
        theta += [low + share[:, None] * (high - low), low_bias + share * (high_bias - low_bias)]
    return Worst(float(found[units[0]]), theta)
