"""What the bounds owe each other, and what must not change them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given

from networks import NORMS, Case, cases, make_case
from veritracer.bounds import BOUNDS, Box, crown_ibp, ibp, simul_crown
from veritracer.bounds.affine import logit_at_worst
from veritracer.bounds.attack import attack
from veritracer.bounds.crown_ibp import leaky_relu_lines, upper_plane
from veritracer.bounds.ibp import Box as IntervalBox
from veritracer.bounds.ibp import trace
from veritracer.models import balls
from veritracer.models.network import activate


@given(cases())
def test_each_method_is_at_least_as_tight_as_the_one_before(case: Case) -> None:
    values = [bound(case.param_set, case.x, case.x_cf, case.sign).worst_logit for bound in BOUNDS.values()]
    for looser, tighter in itertools.pairwise(values):
        assert (tighter <= looser + 1e-9).all()


@given(cases(kappa=0.1))
def test_ibp_widens_with_the_radius(case: Case) -> None:
    values = [
        ibp(case.param_set.at(k), case.x, case.x_cf, case.sign).worst_logit for k in (0.0, 0.05, 0.1, 0.4)
    ]
    for smaller, larger in itertools.pairwise(values):
        assert (smaller <= larger + 1e-9).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", BOUNDS)
def test_permuting_hidden_units_changes_nothing(norm: str, name: str) -> None:
    case = make_case(seed=7, norm=norm, slope=0.01)
    order = torch.tensor([3, 1, 4, 0, 2])
    w1, b1, w2, *rest = case.param_set.center
    shuffled = replace(case.param_set, center=(w1[order], b1[order], w2[:, order], *rest))
    found = [BOUNDS[name](s, case.x, case.x_cf, case.sign).worst_logit for s in (case.param_set, shuffled)]
    torch.testing.assert_close(*found, atol=1e-12, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", BOUNDS)
def test_a_box_of_one_point_is_the_point(norm: str, name: str) -> None:
    case = make_case(seed=8, norm=norm, depth=1)
    point = BOUNDS[name](case.param_set, case.x, case.x_cf, case.sign).worst_logit
    box = BOUNDS[name](case.param_set, case.x, Box(case.x_cf, case.x_cf.clone()), case.sign).worst_logit
    torch.testing.assert_close(point, box, atol=1e-12, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", BOUNDS)
def test_stacked_models_equal_models_one_by_one(norm: str, name: str) -> None:
    several = [make_case(seed=s, norm=norm, slope=0.3) for s in range(3)]
    stack = [torch.stack(ts) for ts in zip(*(c.param_set.center for c in several), strict=True)]
    units = [torch.stack(ts) for ts in zip(*(c.param_set.units for c in several), strict=True)]
    together = replace(several[0].param_set, center=tuple(stack), units=tuple(units))
    x, x_cf, sign = (torch.stack(ts) for ts in zip(*((c.x, -2 * c.x, c.sign) for c in several), strict=True))
    found = BOUNDS[name](together, x, x_cf, sign).worst_logit
    alone = torch.stack([BOUNDS[name](c.param_set, c.x, -2 * c.x, c.sign).worst_logit for c in several])
    torch.testing.assert_close(found, alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_bounds_run_under_vmap(norm: str) -> None:
    case = make_case(seed=2, norm=norm, slope=0.3)
    theta = tuple(torch.stack([t, 1.1 * t]) for t in case.param_set.center)

    def worst(*center: torch.Tensor) -> torch.Tensor:
        moved = replace(case.param_set, center=center)
        return simul_crown(moved, case.x, -2 * case.x, case.sign, steps=30).worst_logit

    mapped = torch.func.vmap(worst)(*theta)
    alone = torch.stack([worst(*(t[i] for t in theta)) for i in range(2)])
    torch.testing.assert_close(mapped, alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_two_equal_logits_cost_what_the_norm_says(norm: str) -> None:
    """z1 - z0 for rows w and -w, against one row 2w: the set of the two rows is the larger one."""
    case = make_case(seed=3, depth=1, outputs=2, norm=norm)
    w, b = case.param_set.center
    units = (torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))
    two = replace(case.param_set, center=(w, b), units=units)
    difference = (w[1] - w[0]) @ case.x_cf[0] + b[1] - b[0]
    factor = {"linf": 2.0, "l2": 2.0**0.5, "l1": 1.0}[norm]
    dual_norm = {"linf": case.x_cf[0].abs().sum(), "l2": case.x_cf[0].norm(), "l1": case.x_cf[0].abs().max()}[
        norm
    ]
    expected = difference + factor * two.kappa * dual_norm
    for bound in (ibp, crown_ibp):
        found = bound(two, case.x, case.x_cf, torch.ones_like(case.sign)).worst_logit[0]
        assert found.item() == pytest.approx(expected.item(), abs=1e-12)


def test_crown_is_not_always_tighter_than_ibp() -> None:
    """The paper's Theorem 4.1 fails: hence the minimum in ``crown_ibp``."""
    looser = 0
    for seed in range(30):
        case = make_case(seed=seed, depth=4, kappa=0.5)
        plane = upper_plane(case.param_set, trace(case.param_set, case.x_cf), case.sign)
        crown = plane.upper(case.param_set.row_radii, "linf")
        looser += int((crown > ibp(case.param_set, case.x, case.x_cf, case.sign).worst_logit + 1e-9).sum())
    assert looser > 0


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3, 1.0])
def test_lines_bound_the_activation(slope: float) -> None:
    ends = torch.tensor(
        [
            [-2.0, -1.0],
            [-2.0, 0.0],
            [-1.0, 3.0],
            [-3.0, 1.0],
            [0.0, 0.0],
            [0.0, 2.0],
            [1.0, 2.0],
            [-1e-300, 1.0],
        ]
    )
    z = IntervalBox(ends[:, 0].double(), ends[:, 1].double())
    low_slope, high_slope, offset = leaky_relu_lines(z, slope)
    for share in torch.linspace(0, 1, 21, dtype=torch.float64):
        point = torch.lerp(z.lower, z.upper, share)
        value = activate(point, slope)
        assert (low_slope * point <= value + 1e-12).all()
        assert (value <= high_slope * point + offset + 1e-12).all()


@pytest.mark.parametrize("norm", NORMS)
def test_attack_returns_models_of_the_set_that_do_what_it_says(norm: str) -> None:
    case = make_case(seed=11, norm=norm, kappa=0.5, rows=20)
    found = attack(case.param_set, case.x, case.x_cf, case.sign)
    for row in range(20):
        theta = tuple(t[row] for t in found.theta)
        inside = [
            d <= float(r) * (1 + 1e-9)
            for d, r in zip(case.param_set.distances(theta), case.param_set.radii, strict=True)
        ]
        assert all(inside)
        logit = (
            case.param_set.network.logit(theta, torch.stack([case.x_cf[row], case.x[row]])) * case.sign[row]
        )
        assert logit[0].item() == pytest.approx(found.worst_logit[row].item(), abs=1e-12)
        assert logit[1] >= 0


def test_attack_finds_the_worst_model_of_a_linear_classifier() -> None:
    """For one layer and no binding constraint the bound is exact, and the attack must reach it."""
    case = make_case(seed=1, depth=1, spread=0.0, rows=30)
    found = attack(case.param_set, case.x, case.x_cf, case.sign)
    exact = simul_crown(case.param_set, case.x, case.x_cf, case.sign).worst_logit
    torch.testing.assert_close(found.worst_logit, exact, atol=1e-6, rtol=0)


@given(cases())
def test_the_worst_model_of_a_plane_is_the_dense_one(case: Case) -> None:
    """The rank-one evaluation against the model written out, which also must be in the set."""
    plane = upper_plane(case.param_set, trace(case.param_set, case.x_cf), case.sign)
    found = logit_at_worst(case.param_set, plane, case.x)
    for row in range(len(case.x)):
        theta: list[torch.Tensor] = []
        for k, (weight, bias) in enumerate(case.param_set.network.layers(case.param_set.center)):
            r, c = plane.rows[k][row], plane.cols[k][row]
            direction = (r[:, None] * c[None, :])[None]
            theta.append(
                weight + case.param_set.radii[2 * k] * balls.support_point(direction, case.param_set.norm)[0]
            )
            theta.append(
                bias + case.param_set.radii[2 * k + 1] * balls.support_point(r[None], case.param_set.norm)[0]
            )
        expected = case.param_set.network.logit(theta, case.x[row : row + 1])
        assert found[row].item() == pytest.approx(expected.item(), abs=1e-9, rel=1e-9)
