"""Decide a counterfactual exactly over a box of weights, by branching on the signs of its unstable units.

The problem is that of every bound without the condition on x: maximise sign * logit(x_cf) over the set. Where
the sign of every unit is fixed it is a linear program (``bounds.relaxation``); where some are free, that
program is a relaxation. So the search splits the set of models by the sign of one unit at a time, always in
the part with the highest bound, until

* every part has a bound below 0: certified, for every model of the set whatever it decides for x;
* a model is found that gives x_cf the decision that today's model gives x, and x too: broken. The model is
  built from the program's solution, or found by ``bounds.attack``, and evaluated;
* neither is possible, or the time is over: unknown. That includes sets in which x_cf keeps its decision only
  together with x, since the condition on x is used for models, not for bounds.

A bound errs upwards, since each is the relaxation's own dual value with rounding outwards plus the slack of
the model's arithmetic. A model errs on no side: it is in the set, and its decisions on x and on x_cf are
further from 0 than rounding in the model's precision could move them.

NOTE[paper]: not in the paper, which bounds the worst case and never decides it.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from veritracer.bounds.attack import Counterexample, attack
from veritracer.bounds.ibp import Box, trace
from veritracer.bounds.methods import BoundProblem, check_exact
from veritracer.bounds.relaxation import Array, Program, Range, Relaxation
from veritracer.bounds.rounding import Precision, logit_error, round_up
from veritracer.models.network import Theta
from veritracer.models.param_sets import ParamSet

INSIDE = 1.0 - 2.0**-40
"""Share of each radius that a model uses, so that rounding cannot carry it outside the set."""

TOGETHER = 256
"""Rows that are attacked at once."""

PENALTY = 1e3
"""Price of one unit by which a program may break its constraints where it has no solution otherwise."""

TOLERANCE = 1e-7
"""Share of its range from which a unit counts as having both signs in a program's solution."""


class Decided(NamedTuple):
    """The outcome of one row: a proof where ``worst_logit`` is below 0, or a counterexample, or neither.

    ``worst_logit`` is an upper bound of sign * logit(x_cf) over the set, slack included, rounded up;
    ``programs`` counts the linear programs.
    """

    worst_logit: float
    counterexample: Counterexample | None
    programs: int


class _Part(NamedTuple):
    """The models under which some units have the signs given: ranges, the best bound and its multipliers."""

    signs: tuple[Array, ...]
    ranges: list[Range]
    bound: float
    multipliers: list[Array] | None


def decide_rows(problem: BoundProblem, time_budget: float | None = None) -> list[Decided]:
    """Decide each row of a flat batch, within about ``time_budget`` seconds altogether; None is no limit.

    When a row's turn comes, it gets an equal share of the time that is left. Rows whose turn does not come
    are unknown, with an infinite bound.

    Raises
    ------
    NotSupportedError
        If the set is not a box.
    """
    check_exact(problem.param_set)
    deadline = np.inf if time_budget is None else time.monotonic() + time_budget
    found: list[Decided] = []
    every = torch.arange(len(problem.sign), device=problem.sign.device)
    for at in range(0, len(every), TOGETHER):
        if time.monotonic() >= deadline:
            break
        part = problem.select(every[at : at + TOGETHER])
        for row, counterexample in enumerate(_attacked(part)):
            now = time.monotonic()
            share = (deadline - now) / (len(every) - len(found))
            found.append(BranchAndBound(part, row, now + share).run(counterexample))
    return [*found, *[Decided(np.inf, None, 0)] * (len(every) - len(found))]


def _attacked(problem: BoundProblem) -> list[Counterexample | None]:
    """Return the counterexamples that a short attack finds; on a region, at its middle."""
    middle = problem.x_cf.center if isinstance(problem.x_cf, Box) else problem.x_cf
    best = attack(problem.param_set, problem.x, middle, problem.sign)
    found: list[Counterexample | None] = []
    for row in range(len(middle)):
        example = None
        if float(best.worst_logit[row]) >= 0:
            theta = _inside(problem.param_set, tuple(t[row] for t in best.theta))
            example = _verified(problem, row, theta, middle[row])
        found.append(example)
    return found


def _inside(param_set: ParamSet, theta: Theta) -> Theta:
    """Return the model moved inside the set where rounding left it outside."""
    if param_set.contains(theta):
        return theta
    return tuple(c + INSIDE * (t - c) for t, c in zip(theta, param_set.center, strict=True))


def _verified(problem: BoundProblem, row: int, theta: Theta, x_cf: Tensor) -> Counterexample | None:
    """Return the model as a counterexample if it is inside and both decisions are clear of rounding."""
    network, sign = problem.param_set.network, problem.sign[row]
    if not problem.param_set.contains(theta):
        return None
    alone = ParamSet.of(network, theta, kappa=0.0)
    rows = torch.stack([problem.x[row], x_cf])
    logit = network.logit(theta, rows) * sign
    precision = problem.precision or Precision.of(torch.float64)
    error = logit_error(alone, trace(alone, rows), precision)
    return Counterexample(network, theta, x_cf) if bool((logit > error).all()) else None


class BranchAndBound:
    """Branch and bound for one row."""

    def __init__(self, problem: BoundProblem, row: int, deadline: float) -> None:
        self.problem, self.row, self.deadline = problem, row, deadline
        self.sign, self.slack = float(problem.sign[row]), problem.slack[row]
        x_cf = problem.x_cf
        if isinstance(x_cf, Box):
            self.x_cf = Range(x_cf.lower[row].cpu().numpy(), x_cf.upper[row].cpu().numpy())
        else:
            self.x_cf = Range(x_cf[row].cpu().numpy(), x_cf[row].cpu().numpy())
        self.relaxation = Relaxation.of(problem.param_set, self.x_cf, self.sign)
        self.programs = 0

    def run(self, counterexample: Counterexample | None) -> Decided:
        """Return how the row ends, with a counterexample that is known already if there is one."""
        signs = tuple(np.zeros(link.low.shape[1]) for link in self.relaxation.links)
        root = self._part(signs, np.inf, None)
        if root is None:  # no model at all: cannot happen, since today's is one
            return Decided(np.inf, counterexample, 0)
        if counterexample is not None:
            return Decided(self._rounded(root.bound), counterexample, 0)
        order, highest = itertools.count(), -np.inf
        open_ = [(-root.bound, next(order), root)]
        while open_ and not self._proved(-open_[0][0]):
            if self._left() <= 0:
                break
            part = heapq.heappop(open_)[2]
            part, program, example = self._bounded(part)
            if example is not None:
                worst = max(highest, part.bound, *(-entry[0] for entry in open_[:1]))
                return Decided(self._rounded(worst), example, self.programs)
            unit = None if self._proved(part.bound) else self._unit(part, program)
            if unit is None:  # proved, or a bound that is reached
                highest = max(highest, part.bound)
                continue
            for child in self._children(part, unit):
                heapq.heappush(open_, (-child.bound, next(order), child))
        worst = max(highest, -open_[0][0] if open_ else -np.inf)
        return Decided(self._rounded(worst), None, self.programs)

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _rounded(self, bound: float) -> float:
        return float(round_up(self.slack.new_tensor(bound) + self.slack, self.slack))

    def _proved(self, bound: float) -> bool:
        return bound < 0 and self._rounded(bound) < 0

    def _part(self, signs: tuple[Array, ...], bound: float, multipliers: list[Array] | None) -> _Part | None:
        """Return the part with these signs, bounded without a program; None if no model is in it."""
        ranges = self.relaxation.propagate(signs)
        if ranges is None:
            return None
        bound = min(bound, self.relaxation.logit(ranges))
        if multipliers is not None:
            bound = min(bound, self.relaxation.logit(ranges, multipliers))
        return _Part(signs, ranges, bound, multipliers)

    def _bounded(self, part: _Part) -> tuple[_Part, Program | None, Counterexample | None]:
        """Return the part with the bound of its program, the solution, and a model built from it."""
        self.programs += 1
        program = self.relaxation.solve(part.ranges, seconds=self._left())
        reachable = program is not None
        if program is None:
            program = self.relaxation.solve(part.ranges, penalty=PENALTY, seconds=self._left())
        if program is None:
            return part, None, None
        bound = min(part.bound, self.relaxation.logit(part.ranges, program.multipliers))
        part = part._replace(bound=bound, multipliers=program.multipliers)
        example = self._counterexample(program) if reachable and not self._proved(bound) else None
        return part, program, example

    def _unit(self, part: _Part, program: Program | None) -> tuple[int, int] | None:
        """Return the layer and the unit to branch on: the one on which the bound depends most.

        In a solution, a unit that is part p and part q counts with the smaller of its two shares, times the
        height that the dual gives to either of its ends. Without a solution, the widest unit.
        """
        best, where = 0.0, None
        heights = None if program is None else self.relaxation.heights(part.ranges, program.multipliers)
        for at, near in enumerate(part.ranges):
            unstable = (near.low < 0) & (near.high > 0)
            if not unstable.any() or (at == 0 and self.relaxation.links[0].slope == 0.0):
                continue
            up, down = np.where(unstable, near.high, 1.0), np.where(unstable, -near.low, 1.0)
            score = np.minimum(up, down)
            if program is not None and heights is not None:
                share = np.minimum(program.positive[at] / up, program.negative[at] / down)
                score = np.where(share > TOLERANCE, share * (heights[at] + TOLERANCE), 0.0)
            score = np.where(unstable, score, 0.0)
            unit = int(score.argmax())
            if score[unit] > best:
                best, where = float(score[unit]), (at, unit)
        return where

    def _children(self, part: _Part, unit: tuple[int, int]) -> Iterator[_Part]:
        """Yield the two parts in which the unit has one sign, without those that hold no model."""
        at, i = unit
        for sign in (1.0, -1.0):
            layer = part.signs[at].copy()
            layer[i] = sign
            signs = (*part.signs[:at], layer, *part.signs[at + 1 :])
            child = self._part(signs, part.bound, part.multipliers)
            if child is not None:
                yield child

    def _counterexample(self, program: Program) -> Counterexample | None:
        """Return the model that the solution describes if it breaks the counterfactual and keeps x."""
        param_set, values = self.problem.param_set, program.values
        x_cf = self.x_cf.low
        if self.relaxation.depth == len(param_set.layers):  # the bottom is the inputs
            x_cf, values = np.clip(values[0], *self.x_cf), values[1:]
        theta = model_of(param_set, x_cf, values, self.sign)
        there = torch.from_numpy(x_cf).to(self.problem.x)
        return _verified(self.problem, self.row, theta, there)


def model_of(param_set: ParamSet, x_cf: Array, values: list[Array], sign: float) -> Theta:
    """Return the model of the set whose units come as near to ``values`` at ``x_cf`` as they can.

    Layer by layer: each unit's weights move together, by the same share of the radius, away from or towards
    the signs of its inputs. The last layer moves as far as it can.
    """
    h = torch.from_numpy(x_cf).to(param_set.center[0])
    theta: list[Tensor] = []
    network = param_set.network
    for k, layer in enumerate(param_set.layers):
        middle = layer.weight @ h + layer.bias
        reach = layer.weight_radius * h.abs().sum() + layer.bias_radius
        if k < len(values):
            wanted = torch.from_numpy(values[k]).to(h)
            share = ((wanted - middle) / torch.where(reach > 0, reach, 1.0)).clamp(-1.0, 1.0)
        else:
            share = (sign * h.new_tensor(network.readout)).sign()
        share = INSIDE * share
        weight = layer.weight + layer.weight_radius * share[:, None] * torch.where(h < 0, -1.0, 1.0)
        bias = layer.bias + layer.bias_radius * share
        theta += [weight, bias]
        h = weight @ h + bias
        if k < len(network.slopes):
            h = torch.where(h > 0, h, network.slopes[k] * h)
    return tuple(theta)
