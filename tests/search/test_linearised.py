"""The linearised problem against a linear-programming solver and against enumeration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import nn

from veritracer.encoding import Encoding
from veritracer.models.param_sets import ParamSet
from veritracer.schema import Feature, Schema
from veritracer.search.linearised import cheapest
from veritracer.search.problem import CoveredRegion, SearchProblem, Slopes


def numbers_only(
    d: int, generator: torch.Generator, weight: float
) -> tuple[SearchProblem, torch.Tensor, Slopes]:
    """A random problem of d numbers and three rows, a point of it, and a tangent there."""

    frame = pd.DataFrame({f"x{i}": [0.0, 1.0] for i in range(d)})
    encoding = Encoding.fit(
        Schema([Feature(f"x{i}", "continuous", display_step="exact") for i in range(d)]), frame
    )
    x, p, anchor = (torch.rand(3, d, generator=generator, dtype=torch.float64) for _ in range(3))
    models = ParamSet.around(nn.Linear(d, 1).double(), 0.1)
    still = torch.zeros(d, dtype=torch.float64)
    cost = 0.5 + torch.rand(d, generator=generator, dtype=torch.float64)
    problem = SearchProblem.of(
        encoding, models, x, torch.ones(3).double(), cost, CoveredRegion(still, still, still)
    )
    slope = torch.randn(3, d, generator=generator, dtype=torch.float64)
    value = 2 * torch.rand(3, generator=generator, dtype=torch.float64)
    return problem.with_anchor(anchor, weight), p, Slopes(value, slope)


def price_of(problem: SearchProblem, row: int, y: np.ndarray) -> float:
    """Price of all moves, plus that of the distance to the anchor."""
    cost = problem.cost_weights.numpy()
    far = np.abs(y - problem.x[row].numpy()) @ cost
    return far + float(problem.prototype_weight[row]) * (np.abs(y - problem.anchor[row].numpy()) @ cost)


@given(st.integers(2, 6), st.integers(0, 2**31), st.sampled_from([0.0, 0.4, 1.0, 1.7]))
def test_numbers_are_bought_as_a_linear_program_would(d: int, seed: int, weight: float) -> None:
    problem, p, at = numbers_only(d, torch.Generator().manual_seed(seed), weight)
    y = cheapest(problem, p, at, problem.lower, problem.upper, -0.1)
    assert bool(((y >= -1e-12) & (y <= 1 + 1e-12)).all())
    for row in range(3):
        g, x, z = at.slope[row].numpy(), problem.x[row].numpy(), problem.anchor[row].numpy()
        cost = problem.cost_weights.numpy()
        # Variables y, |y - x|, |y - z|.
        eye, zero = np.eye(d), np.zeros((d, d))
        rows = np.vstack(
            [
                np.hstack([g[None], np.zeros((1, 2 * d))]),
                np.hstack([eye, -eye, zero]),
                np.hstack([-eye, -eye, zero]),
                np.hstack([eye, zero, -eye]),
                np.hstack([-eye, zero, -eye]),
            ]
        )
        need = -0.1 - float(at.value[row]) + g @ p[row].numpy()
        limits = np.concatenate([[need], x, -x, z, -z])
        cost = np.concatenate([np.zeros(d), cost, weight * cost])
        solved = linprog(cost, rows, limits, bounds=[(0, 1)] * d + [(0, None)] * (2 * d))
        reached = float(at.value[row] + at.slope[row] @ (y[row] - p[row]))
        if solved.status == 2:
            lowest = float(at.value[row]) + np.minimum(-g * p[row].numpy(), g * (1 - p[row].numpy())).sum()
            assert lowest > -0.1
            assert reached == pytest.approx(lowest, abs=1e-9)
        else:
            assert reached <= -0.1 + 1e-9
            assert price_of(problem, row, y[row].numpy()) == pytest.approx(solved.fun, abs=1e-8)


def test_a_category_is_switched_where_that_is_the_better_buy() -> None:

    frame = pd.DataFrame({"x": [0.0, 1.0, 0.5], "c": ["a", "b", "c"]})
    schema = Schema([Feature("x", "continuous"), Feature("c", "categorical", categories=["a", "b", "c"])])
    encoding = Encoding.fit(schema, frame)
    x = torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    still, one = torch.zeros(4, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    models = ParamSet.around(nn.Linear(4, 1).double(), 0.1)
    problem = SearchProblem.of(
        encoding, models, x, one, torch.ones(4).double(), CoveredRegion(still, still, still)
    )
    slope = torch.tensor([[-1.0, 1.0, -4.0, 0.0]], dtype=torch.float64)
    y = cheapest(problem, x, Slopes(one, slope), problem.lower, problem.upper, -0.5)
    assert y.tolist() == [[0.0, 0.0, 1.0, 0.0]]  # 5 for 2 is better than 1 for 1
    dear = replace(problem, cost_weights=torch.tensor([1.0, 9.0, 9.0, 9.0], dtype=torch.float64))
    y = cheapest(dear, x, Slopes(0.2 * one, slope), problem.lower, problem.upper, -0.5)
    torch.testing.assert_close(y, torch.tensor([[0.7, 1.0, 0.0, 0.0]], dtype=torch.float64))
