r"""Exact answers: enumeration of small problems, and a mixed-integer linear program for linear models.

The search over large grids is local. Where all rows that a person could have can be counted, nothing needs to
be searched: the first proved row in the order of the objective is the best one; without one there is none.

For one layer and a box of models the worst case is linear in a row of nonnegative numbers,
:math:`s(w·p + b) + δ_w Σ p_j + δ_b`, so that the closest certified row is a mixed-integer linear program:
whole steps of grids, whole categories, a price for each change. HiGHS solves it to the end, or proves that
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
from veritracer.search.linearised import Found, assess
from veritracer.search.problem import PRICE_OF_A_CHANGE, Problem

MOST_ROWS = 4096
"""Rows that a person could have, at most, for all of them to be looked at."""

ROWS_AT_ONCE = 512

MARGIN = 1e-9
"""How far below zero the bound must be: certified means strictly below, and the solver has a tolerance."""

FINE = 1e-7
"""A grid whose steps are smaller than this is not counted step by step."""


# ---------------------------------------------------------------- enumeration


def countable(problem: Problem) -> Tensor:
    """Whose rows (n,) are few enough."""
    return _counts(problem).log().sum(-1) <= torch.log(torch.tensor(float(MOST_ROWS)))


def exhaustive(problem: Problem, most: int | None, *, expired: Callable[[], bool] = lambda: False) -> Found:
    """The best proved row of each countable person, with at most so many changes; else the row itself."""
    found = assess(problem, problem.x)
    for i in range(len(problem)):
        if expired():
            break
        one = torch.tensor([i], device=problem.x.device)
        found = found.merge(one, _best(problem.select(one), most))
    return found


def _best(problem: Problem, most: int | None) -> Found:
    rows = _rows(problem)
    whole = problem.select(torch.zeros(len(rows), dtype=torch.long, device=rows.device))
    rows = torch.unique(whole.legal(rows), dim=0)
    changes = problem.encoding.changed(rows, problem.x.expand_as(rows)).sum(-1)
    rows = rows[(changes > 0) & (changes <= (len(problem.encoding.blocks) if most is None else most))]
    whole = problem.select(torch.zeros(len(rows), dtype=torch.long, device=rows.device))
    order = whole.objective(rows).argsort(stable=True)
    for some in torch.split(order, ROWS_AT_ONCE):
        part = whole.select(some)
        batch = ProofBatch(part.x, part.region(rows[some]), part.sign)
        with torch.no_grad():
            worst = prove(problem.param_set, batch, CASCADE, sign_only=True).worst_logit
        proved = (worst < 0).nonzero().squeeze(-1)
        if len(proved) > 0:
            first = proved[:1]
            return assess(part.select(first), rows[some][first], worst[first])
    return assess(problem, problem.x)


def _counts(problem: Problem) -> Tensor:
    """How many values each feature may have, (n, n_features), as numbers that may be too many."""
    _, step = problem.encoding.display_grid(problem.x.device)
    span = torch.floor((problem.upper - problem.lower) / step + 1e-6)
    missing = problem.encoding.missing(problem.x).to(span)
    found = []
    for block in problem.encoding.blocks:
        if block.group is None:
            moves = span[:, block.start]
            found.append(torch.where(moves > 0, moves + 2 + missing[:, block.start], torch.ones_like(moves)))
        else:
            open_ = (problem.upper[:, block.group] > 0.5).sum(-1).clamp(min=1)
            found.append(open_ + missing[:, block.start])
    return torch.stack(found, -1)


def _rows(problem: Problem) -> Tensor:
    """All combinations (m, d) of what each feature of one person may be; not all of them are different."""
    first, step = problem.encoding.display_grid(problem.x.device)
    rows, own = problem.x.clone(), problem.x[0]
    for block in problem.encoding.blocks:
        choices = own[block.start : block.stop].unsqueeze(0)
        low, high = problem.lower[0, block.start], problem.upper[0, block.start]
        if block.group is None and bool(high > low):
            begin = torch.ceil((low - first[block.start]) / step[block.start] - 1e-6)
            end = torch.floor((high - first[block.start]) / step[block.start] + 1e-6)
            k = torch.arange(int(begin), int(end) + 1, device=own.device, dtype=own.dtype)
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
            moved[:, at] = torch.eye(width, dtype=own.dtype, device=own.device)[open_]
            choices = torch.cat([choices, moved])
        here = rows.repeat_interleave(len(choices), 0)
        here[:, block.start : block.stop] = choices.repeat(len(rows), 1)
        rows = here
    return rows


# ---------------------------------------------------------------- linear models


def is_linear(problem: Problem) -> bool:
    """Whether the exact method applies: one layer, a box of models, a point for each row, no anchors."""
    one_layer, free = problem.param_set.network.depth == 1, not bool(problem.pull.any())
    return one_layer and free and problem.param_set.norm == "linf" and problem.reach.is_point


def exact(problem: Problem, *, expired: Callable[[], bool] = lambda: False) -> Found:
    """The cheapest certified row of each person among those that leave missing cells as they are.

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


def _worst_case(problem: Problem) -> tuple[Tensor, Tensor]:
    """The worst case over the set as slope (n, d) and offset (n,), slack included; exact for rows >= 0."""
    param_set = problem.param_set
    weight, bias = param_set.center
    readout = weight.new_tensor(param_set.network.readout)
    size = readout.abs().sum()
    slope = problem.sign.unsqueeze(-1) * (readout @ weight) + param_set.radii[0] * size
    offset = problem.sign * (readout @ bias) + param_set.radii[1] * size
    slack = logit_error(param_set, trace(param_set, Box(problem.lower, problem.upper)), PRECISION)
    return slope, offset + slack


def _span(first: Tensor, step: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """The first point of each column's grid within its limits, and how many steps follow; -1: no point."""
    start = torch.ceil((lower - first) / step - 1e-6).clamp(min=0.0)
    stop = torch.floor((upper - first) / step + 1e-6)
    return first + step * start, torch.where(stop >= start, stop - start, -1.0)


class _Columns(NamedTuple):
    """Where the variables of the numbers begin: changed or not, steps, distance; and of the categories."""

    changed: int
    steps: int
    distance: int
    categories: int
    total: int


class _Program:
    """The mixed-integer program of one row, built from triplets."""

    def __init__(self, problem: Problem, slope: Tensor, offset: float, first: Tensor, step: Tensor) -> None:
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
        self.at = _Columns(0, m, 2 * m, 3 * m, 3 * m + k)
        self.rows: list[tuple[list[int], list[float], float, float]] = []

    def solution(self) -> Tensor | None:
        """The cheapest row, encoded; None where there is none."""
        if self.at.total == 0:
            return None
        cost, bounds, whole = self._variables()
        self._constrain(bounds)
        matrix, low, high = self._matrix()
        found = milp(cost, integrality=whole, bounds=bounds, constraints=LinearConstraint(matrix, low, high))
        return None if found.x is None else self._row(found.x)

    def _variables(self) -> tuple[NDArray[np.float64], Bounds, NDArray[np.int64]]:
        at, price = self.at, self.problem.price.cpu().numpy()
        cost = np.zeros(at.total)
        cost[at.changed : at.steps] = PRICE_OF_A_CHANGE
        cost[at.distance : at.categories] = price[self.numbers]
        upper = np.ones(at.total)
        upper[at.steps : at.distance] = self.steps
        whole = np.ones(at.total, dtype=np.int64)
        whole[at.steps : at.distance] = ~self.fine
        whole[at.distance : at.categories] = 0
        position = at.categories
        for group in self.categories:
            switched = (2.0 * price[group] + PRICE_OF_A_CHANGE) * (self.x[group] < 0.5)
            cost[position : position + len(group)] = switched
            position += len(group)
        return cost, Bounds(np.zeros(at.total), upper), whole

    def _constrain(self, bounds: Bounds) -> None:
        """Distances, steps only of what changes, one category of each group, the worst case below zero."""
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
            own = float(self.slope[group] @ self.x[group])
            total_columns += columns
            total_values += list(self.slope[group] - own)
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
