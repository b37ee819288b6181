"""The dual against three oracles: Algorithm 2, an LP solver, and a convex solver for l1 and l2."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize
from torch import Tensor

from networks import NORMS, make_case
from veritracer.bounds import dual, simul_crown
from veritracer.bounds.affine import Affine
from veritracer.models import balls
from veritracer.models.balls import DUAL


def planes(seed: int) -> tuple[Affine, Affine, tuple[Tensor, ...], Tensor, Tensor]:
    """Random planes of one layer with ties, zero slopes and widths, and a constraint that often binds."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        # Rounded, so that zeros and ties are common.
        return (torch.randn(*shape, generator=g, dtype=torch.float64) * 2).round() / 2

    out, into, n = 3, 4, 6
    objective = Affine(draw(n), (draw(n, out),), (draw(n, into),))
    constraint = Affine(draw(n).abs() * 0.5, (draw(n, out),), (draw(n, into),))
    radii = (draw(1).abs()[0], draw(1).abs()[0])
    flat = torch.cat([radii[0].expand(out * into), radii[1].expand(out)])
    return objective, constraint, radii, flat, torch.zeros_like(flat)


@given(st.integers(0, 10**6))
def test_dual_equals_algorithm_2_on_boxes(seed: int) -> None:
    objective, constraint, radii, radius, center = planes(seed)
    found = dual.maximum(objective, constraint, radii, "linf").value
    exact = dual.greedy_maximum(
        objective.dense(), objective.center, constraint.dense(), constraint.center, center, radius
    )
    torch.testing.assert_close(found, exact, atol=1e-8, rtol=0)


@given(st.integers(0, 10**6))
def test_algorithm_2_equals_linprog(seed: int) -> None:
    objective, constraint, _, radius, center = planes(seed)
    mu, alpha = objective.dense(), constraint.dense()
    exact = dual.greedy_maximum(mu, objective.center, alpha, constraint.center, center, radius)
    for row in range(2):
        bounds = [(-r, r) for r in radius.tolist()]
        solved = linprog(
            -mu[row].numpy(), -alpha[row : row + 1].numpy(), [constraint.center[row].item()], bounds=bounds
        )
        assert solved.status == 0
        assert exact[row].item() == pytest.approx(objective.center[row].item() - solved.fun, abs=1e-8)


def test_algorithm_2_says_that_no_model_satisfies_the_constraint() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    found = dual.greedy_maximum(one, one[0], one, -3 * one[0], torch.zeros(1, dtype=torch.float64), one[0])
    assert found.item() == -torch.inf


def primal_optimum(
    objective: Affine, constraint: Affine, radii: tuple[Tensor, ...], norm: str, row: int, split: int
) -> float:
    """max over the balls by a solver that knows nothing of our dual.

    l2: SLSQP on the parameters. l1: the LP over the positive and negative parts.
    """
    mu, alpha = objective.dense()[row].numpy(), constraint.dense()[row].numpy()
    weight, bias = (float(r) for r in radii)
    size = len(mu)
    if norm == "l1":
        ball = np.zeros((2, 2 * size))
        ball[0, :split] = ball[0, size : size + split] = 1
        ball[1, split:size] = ball[1, size + split :] = 1
        lhs = np.vstack([ball, np.concatenate([-alpha, alpha])])
        solved = linprog(np.concatenate([-mu, mu]), lhs, [weight, bias, constraint.center[row].item()])
        assert solved.status == 0
        return objective.center[row].item() - solved.fun
    limits = [
        {
            "type": "ineq",
            "fun": lambda v: weight**2 - v[:split] @ v[:split],
            "jac": lambda v: np.r_[-2 * v[:split], 0 * v[split:]],
        },
        {
            "type": "ineq",
            "fun": lambda v: bias**2 - v[split:] @ v[split:],
            "jac": lambda v: np.r_[0 * v[:split], -2 * v[split:]],
        },
        {"type": "ineq", "fun": lambda v: alpha @ v + constraint.center[row].item(), "jac": lambda v: alpha},
    ]
    solved = minimize(
        lambda v: -mu @ v,
        np.zeros(size),
        jac=lambda v: -mu,
        constraints=limits,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return objective.center[row].item() - solved.fun


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("seed", range(25))
def test_dual_equals_a_convex_solver_on_other_balls(norm: str, seed: int) -> None:
    objective, constraint, radii, _, _ = planes(seed)
    radii = tuple(r + 0.5 for r in radii)
    constraint = constraint.shift(torch.tensor(0.1, dtype=torch.float64))
    found = dual.maximum(objective, constraint, radii, norm)
    row = int(found.multiplier.argmax())
    expected = primal_optimum(objective, constraint, radii, norm, row, split=12)
    # SLSQP reaches some 1e-7 where a ball and the constraint meet at a sharp angle; the LP is exact.
    assert found.value[row].item() == pytest.approx(expected, abs=1e-8 if norm == "l1" else 2e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_some_rows_bind_and_some_do_not(norm: str) -> None:
    rows = [dual.maximum(*planes(seed)[:3], norm).multiplier > 0 for seed in range(20)]
    assert 0.05 < torch.cat(rows).double().mean() < 0.95


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("multiplier", [0.0, 0.1, 1.0, 30.0])
def test_every_multiplier_is_sound(norm: str, multiplier: float) -> None:
    """The dual function at any multiplier lies above the optimum."""
    objective, constraint, radii, _, _ = planes(3)
    mixed = Affine(
        objective.center + multiplier * constraint.center,
        (objective.rows[0],),
        (objective.cols[0],),
    )
    slope = objective.dense() + multiplier * constraint.dense()
    parts = slope.split([12, 3], dim=1)
    value = mixed.center + sum(r * balls.norm(p, DUAL[norm]) for r, p in zip(radii, parts, strict=True))
    assert (value >= dual.maximum(objective, constraint, radii, norm).value - 1e-9).all()


@pytest.mark.parametrize("norm", NORMS)
def test_masked_search_equals_the_compact_one(norm: str) -> None:
    objective, constraint, radii, _, _ = planes(5)
    compact = dual.maximum(objective, constraint, radii, norm)
    masked = dual.maximum(objective, constraint, radii, norm, steps=60)
    torch.testing.assert_close(compact.value, masked.value, atol=1e-10, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@given(seed=st.integers(0, 10**6))
def test_deciding_early_never_changes_the_decision(norm: str, seed: int) -> None:
    objective, constraint, radii, _, _ = planes(seed)
    full = dual.maximum(objective, constraint, radii, norm).value
    quick = dual.maximum(objective, constraint, radii, norm, sign_only=True).value
    assert (quick >= full - 1e-9).all()
    clear = full.abs() > 1e-9
    assert ((quick < 0) == (full < 0))[clear].all()


def binding_case(norm: str, *, binds: bool) -> tuple[object, Tensor, Tensor, Tensor]:
    """A two-layer case in which the constraint binds on every row, or on none."""
    for seed in range(400):
        # With identity-like activations and opposite inputs the two planes pull against each other.
        case = make_case(seed=seed, depth=2, width=3, inputs=3, slope=0.5, norm=norm, kappa=0.3, rows=2)
        # (Not exactly opposite: then all features of a unit tie at one kink, where no gradient exists.)
        x_cf = -3 * case.x + 0.2 * case.x_cf if binds else case.x_cf
        found = simul_crown(case.param_set, case.x, x_cf, case.sign)
        if bool(((found.multiplier > 1e-3) == binds).all()):
            return case.param_set, case.x, x_cf, case.sign
    raise AssertionError("no such case found")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("binds", [True, False])
def test_gradients_are_those_of_the_bound(norm: str, binds: bool) -> None:
    """``gradcheck`` through the whole of Simul-CROWN, to parameters and counterfactuals."""
    param_set, x, x_cf, sign = binding_case(norm, binds=binds)
    center = tuple(t.clone().requires_grad_() for t in param_set.center)

    def bound(x_cf: Tensor, *theta: Tensor) -> Tensor:
        moved = type(param_set)(param_set.network, theta, param_set.units, norm, param_set.kappa)
        return simul_crown(moved, x, x_cf, sign).worst_logit

    assert torch.autograd.gradcheck(
        bound, (x_cf.clone().requires_grad_(), *center), eps=1e-7, atol=1e-5, rtol=1e-4
    )


@pytest.mark.parametrize("norm", NORMS)
def test_gradients_of_the_optimum_in_its_four_arguments(norm: str) -> None:
    """Where the constraint binds, against finite differences in the planes themselves."""
    seed = next(
        s for s in range(200)
        if (dual.maximum(*_smooth_planes(s)[:3], norm).multiplier > 0.05).all()
    )  # fmt: skip
    objective, constraint, radii = _smooth_planes(seed)
    leaves = [
        objective.center,
        objective.rows[0],
        objective.cols[0],
        constraint.center,
        constraint.rows[0],
        constraint.cols[0],
    ]

    def value(o: Tensor, o_row: Tensor, o_col: Tensor, c: Tensor, c_row: Tensor, c_col: Tensor) -> Tensor:
        return dual.maximum(Affine(o, (o_row,), (o_col,)), Affine(c, (c_row,), (c_col,)), radii, norm).value

    assert torch.autograd.gradcheck(
        value, [leaf.requires_grad_() for leaf in leaves], eps=1e-7, atol=1e-5, rtol=1e-4
    )


def _smooth_planes(seed: int) -> tuple[Affine, Affine, tuple[Tensor, ...]]:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    objective = Affine(draw(2), (draw(2, 3),), (draw(2, 4),))
    constraint = Affine(draw(2).abs() * 0.2, (draw(2, 3),), (draw(2, 4),))
    return (
        objective,
        constraint,
        (torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)),
    )
