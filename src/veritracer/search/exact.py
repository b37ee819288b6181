r"""Exact answers: enumeration of small problems, and a mixed-integer linear program for linear models.

The search over large grids is local. Where all rows that a person could have can be counted, nothing needs to
be searched: the first proved row in the order of the objective is the best one; without one there is none.

For one layer and a box of models the worst case is linear in a row of nonnegative numbers,
:math:`s(w·p + b) + δ_w Σ p_j + δ_b`, so that the closest certified row is a mixed-integer linear program:
whole steps of grids, whole categories, a cost for each change. HiGHS solves it to the end, or proves that
there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array
from torch import Tensor

from veritracer.bounds.ibp import Box, trace
from veritracer.bounds.rounding import logit_error
from veritracer.proving import CASCADE, PRECISION, ProofBatch, prove
from veritracer.search.linearised import Solutions, assess
from veritracer.search.problem import COST_OF_A_CHANGE, SearchProblem

MOST_ROWS = 4096
"""Largest number of legal rows of one person that is enumerated."""

ROWS_AT_ONCE = 512
"""Rows that are proved at once; cheaper rows come first."""

MARGIN = 1e-9
"""Distance of the bound below zero: certified means strictly below, and the solver has a tolerance."""

FINE = 1e-7
"""Steps of a grid below this size are treated as a continuous length."""


# ---------------------------------------------------------------- enumeration


def countable(problem: SearchProblem) -> Tensor:
    """Return a mask (n,) of the people whose legal rows are few enough to enumerate."""
    return _counts(problem).log().sum(-1) <= torch.log(torch.tensor(float(MOST_ROWS)))


def exhaustive(
    problem: SearchProblem, most: int | None, *, expired: Callable[[], bool] = lambda: False
) -> Solutions:
    """Return the best proved row of each countable person with at most ``most`` changes, else the row."""
    solutions = assess(problem, problem.x)
    for i in range(len(problem)):
        if expired():
            break
        one = torch.tensor([i], device=problem.x.device)
        solutions = solutions.merge(one, _best(problem.select(one), most))
    return solutions


def _best(problem: SearchProblem, most: int | None) -> Solutions:
    rows = _rows(problem)
    whole = problem.select(torch.zeros(len(rows), dtype=torch.long, device=rows.device))
    rows = torch.unique(whole.legal(rows), dim=0)
    changes = problem.encoding.changed(rows, problem.x.expand_as(rows)).sum(-1)
    rows = rows[(changes > 0) & (changes <= (len(problem.encoding.blocks) if most is None else most))]
    whole = problem.select(torch.zeros(len(rows), dtype=torch.long, device=rows.device))
    order = whole.objective(rows).argsort(stable=True)
    for some in torch.split(order, ROWS_AT_ONCE):
        part = whole.select(some)
        batch = ProofBatch(part.x, part.covered(rows[some]), part.sign)
        with torch.no_grad():
            worst = prove(problem.model_set, batch, CASCADE, sign_only=True).worst_logit
        proved = (worst < 0).nonzero().squeeze(-1)
        if len(proved) > 0:
            first = proved[:1]
            return assess(part.select(first), rows[some][first], worst[first])
    return assess(problem, problem.x)


def _counts(problem: SearchProblem) -> Tensor:
    """Return an upper bound of the number of values of each feature, (n, n_features)."""
    _, step = problem.encoding.display_grid(problem.x.device)
    span = torch.floor((problem.upper - problem.lower) / step + 1e-6)
    missing = problem.encoding.missing(problem.x).to(span)
    counts = []
    for block in problem.encoding.blocks:
        if block.group is None:
            moves = span[:, block.start]
            counts.append(torch.where(moves > 0, moves + 2 + missing[:, block.start], torch.ones_like(moves)))
        else:
            open_ = (problem.upper[:, block.group] > 0.5).sum(-1).clamp(min=1)
            counts.append(open_ + missing[:, block.start])
    return torch.stack(counts, -1)


def _rows(problem: SearchProblem) -> Tensor:
    """Return all combinations (m, d) of the values of one person's features; some may repeat."""
    first, step = problem.encoding.display_grid(problem.x.device)
    rows, person = problem.x.clone(), problem.x[0]
    for block in problem.encoding.blocks:
        choices = person[block.start : block.stop].unsqueeze(0)
        low, high = problem.lower[0, block.start], problem.upper[0, block.start]
        if block.group is None and bool(high > low):
            begin = torch.ceil((low - first[block.start]) / step[block.start] - 1e-6)
            end = torch.floor((high - first[block.start]) / step[block.start] + 1e-6)
            k = torch.arange(int(begin), int(end) + 1, device=person.device, dtype=person.dtype)
            values = first[block.start] + k * step[block.start]
            values = torch.cat([values, low.view(1), high.view(1)])
            moved = choices.new_zeros(len(values), choices.shape[1])  # with a value, no cell is missing
            moved[:, 0] = values
            choices = torch.cat([choices, moved])
        elif block.group is not None:
            open_ = (problem.upper[0, block.group] > 0.5).nonzero().squeeze(-1)
            width = block.group.stop - block.group.start
            moved = choices.new_zeros(len(open_), choices.shape[1])
            at = slice(block.group.start - block.start, block.group.stop - block.start)
            moved[:, at] = torch.eye(width, dtype=person.dtype, device=person.device)[open_]
            choices = torch.cat([choices, moved])
        here = rows.repeat_interleave(len(choices), 0)
        here[:, block.start : block.stop] = choices.repeat(len(rows), 1)
        rows = here
    return rows


# ---------------------------------------------------------------- linear models


def is_linear(problem: SearchProblem) -> bool:
    """Return whether the program applies: one layer, a box of models, a point for each row, no anchors."""
    one_layer, free = problem.model_set.network.depth == 1, not bool(problem.prototype_weight.any())
    return one_layer and free and problem.model_set.norm == "linf" and problem.region.is_point


def closest_linear(problem: SearchProblem, *, expired: Callable[[], bool] = lambda: False) -> Solutions:
    """Return the cheapest certified row of each person, among those that leave missing cells as they are.

    The slack for floating point is that of the person's whole range.
    """
    assert is_linear(problem)
    slope, offset = _worst_case(problem)
    first, step = problem.encoding.display_grid(problem.x.device)
    best = assess(problem, problem.x)
    for row in range(len(problem)):
        if expired():
            break
        part = problem.select(torch.tensor([row], device=problem.x.device))
        point = _Program(part, slope[row], float(offset[row]), first, step).solution()
        if point is None:
            continue
        y = part.encoding.snap(point.unsqueeze(0), part.x, slope[row : row + 1] < 0)
        best = best.merge(torch.tensor([row], device=problem.x.device), assess(part, y))
    return best


def _worst_case(problem: SearchProblem) -> tuple[Tensor, Tensor]:
    """Return the worst case over the set as slope (n, d) and offset (n,) with slack; exact for rows >= 0."""
    param_set = problem.model_set
    weight, bias = param_set.center
    readout = weight.new_tensor(param_set.network.readout)
    size = readout.abs().sum()
    slope = problem.sign.unsqueeze(-1) * (readout @ weight) + param_set.radii[0] * size
    offset = problem.sign * (readout @ bias) + param_set.radii[1] * size
    slack = logit_error(param_set, trace(param_set, Box(problem.lower, problem.upper)), PRECISION)
    return slope, offset + slack


def _span(first: Tensor, step: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first point of each column's grid in its bounds, and the steps that follow; -1: no point."""
    start = torch.ceil((lower - first) / step - 1e-6).clamp(min=0.0)
    stop = torch.floor((upper - first) / step + 1e-6)
    return first + step * start, torch.where(stop >= start, stop - start, -1.0)


class _Variables(NamedTuple):
    """Positions of the first variable of each kind: changed or not, steps, distance; then categories."""

    changed: int
    steps: int
    distance: int
    categories: int
    total: int


class _Program:
    """The mixed-integer program of one row, built from triplets."""

    def __init__(
        self, problem: SearchProblem, slope: Tensor, offset: float, first: Tensor, step: Tensor
    ) -> None:
        self.problem, self.x = problem, problem.x[0].cpu().numpy()
        self.slope, self.offset = slope.cpu().numpy(), offset
        lower, upper = (t[0].cpu().numpy() for t in (problem.lower, problem.upper))
        missing = problem.encoding.missing(problem.x)[0].cpu().numpy()
        numeric = problem.encoding.numeric.numpy()
        self.numbers = np.flatnonzero(numeric & ~missing & (upper > lower))
        reachable = _span(first, step, problem.lower[0], problem.upper[0])
        self.numbers = self.numbers[reachable[1].cpu().numpy()[self.numbers] >= 0]
        self.base, self.steps = (t.cpu().numpy()[self.numbers] for t in reachable)
        self.step = step.cpu().numpy()[self.numbers]
        # Steps too fine to count, or for the solver's tolerance, are measured as a length instead.
        self.fine = self.step <= FINE
        self.steps = np.where(self.fine, self.steps * self.step, self.steps)
        self.step = np.where(self.fine, 1.0, self.step)
        self.categories = [
            np.arange(g.columns.start, g.columns.stop)[upper[g.columns] >= 0.5]
            for g in problem.encoding.category_groups
        ]
        self.categories = [group for group in self.categories if len(group) > 1]
        m, k = len(self.numbers), sum(len(group) for group in self.categories)
        self.at = _Variables(0, m, 2 * m, 3 * m, 3 * m + k)
        self.rows: list[tuple[list[int], list[float], float, float]] = []

    def solution(self) -> Tensor | None:
        """Return the cheapest row, encoded; None if there is none."""
        if self.at.total == 0:
            return None
        cost, bounds, whole = self._variables()
        self._constrain(bounds)
        matrix, low, high = self._matrix()
        result = milp(cost, integrality=whole, bounds=bounds, constraints=LinearConstraint(matrix, low, high))
        return None if result.x is None else self._row(result.x)

    def _variables(self) -> tuple[NDArray[np.float64], Bounds, NDArray[np.int64]]:
        at, weights = self.at, self.problem.cost_weights.cpu().numpy()
        cost = np.zeros(at.total)
        cost[at.changed : at.steps] = COST_OF_A_CHANGE
        cost[at.distance : at.categories] = weights[self.numbers]
        upper = np.ones(at.total)
        upper[at.steps : at.distance] = self.steps
        whole = np.ones(at.total, dtype=np.int64)
        whole[at.steps : at.distance] = ~self.fine
        whole[at.distance : at.categories] = 0
        position = at.categories
        for group in self.categories:
            switched = (2.0 * weights[group] + COST_OF_A_CHANGE) * (self.x[group] < 0.5)
            cost[position : position + len(group)] = switched
            position += len(group)
        return cost, Bounds(np.zeros(at.total), upper), whole

    def _constrain(self, bounds: Bounds) -> None:
        """Constrain distances, steps of what changes, categories (one a group), and the worst case."""
        at, base = self.at, self.base
        total_columns: list[int] = []
        total_values: list[float] = []
        constant = self.offset + float(self.slope @ self.x)
        for i, j in enumerate(self.numbers):
            # p - x = (base - x) changed + step steps
            move, span = base[i] - self.x[j], [at.changed + i, at.steps + i]
            self._add([*span, at.distance + i], [move, self.step[i], -1.0], -np.inf, 0.0)
            self._add([*span, at.distance + i], [-move, -self.step[i], -1.0], -np.inf, 0.0)
            self._add([at.steps + i, at.changed + i], [1.0, -bounds.ub[at.steps + i]], -np.inf, 0.0)
            total_columns += span
            total_values += [self.slope[j] * move, self.slope[j] * self.step[i]]
        position = at.categories
        for group in self.categories:
            columns = list(range(position, position + len(group)))
            self._add(columns, [1.0] * len(group), 1.0, 1.0)
            now = float(self.slope[group] @ self.x[group])
            total_columns += columns
            total_values += list(self.slope[group] - now)
            position += len(group)
        self._add(total_columns, total_values, -np.inf, -constant - MARGIN)

    def _add(self, columns: list[int], values: list[float], low: float, high: float) -> None:
        self.rows.append((columns, values, low, high))

    def _matrix(self) -> tuple[coo_array, NDArray[np.float64], NDArray[np.float64]]:
        columns = np.concatenate([row[0] for row in self.rows])
        values = np.concatenate([row[1] for row in self.rows])
        which = np.repeat(np.arange(len(self.rows)), [len(row[0]) for row in self.rows])
        matrix = coo_array((values, (which, columns)), shape=(len(self.rows), self.at.total))
        return matrix.tocsr(), np.array([r[2] for r in self.rows]), np.array([r[3] for r in self.rows])

    def _row(self, solved: NDArray[np.float64]) -> Tensor:
        at, y = self.at, self.x.copy()
        changed = solved[at.changed : at.steps] > 0.5
        steps = solved[at.steps : at.distance]
        steps = np.where(self.fine, steps, np.rint(steps))
        y[self.numbers] = np.where(changed, self.base + self.step * steps, self.x[self.numbers])
        position = at.categories
        for group in self.categories:
            y[group] = np.rint(solved[position : position + len(group)])
            position += len(group)
        return torch.from_numpy(y).to(self.problem.x)
