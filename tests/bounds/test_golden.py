"""The paper's worked examples, with the misprints of its Example 4.1 corrected."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import veritracer as vt
from networks import make_case
from veritracer.bounds import BOUNDS, crown_ibp, ibp, simul_crown
from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import trace

X, X_CF = torch.tensor([[4.0, 1.0]], dtype=torch.float64), torch.tensor([[-4.0, -1.0]], dtype=torch.float64)
ONE = torch.ones(1, dtype=torch.float64)


def linear(bias: float) -> nn.Linear:
    model = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -1.0]]))
        model.bias.fill_(bias)
    return model


def test_crown_example() -> None:
    """W in ([-1, 3], [-3, 1]), b in [-4, 0], x = (-4, -1): slopes (-4, -1, 1), interval [-17, 7]."""
    param_set = vt.ParamSet.around(linear(-2.0), radius=2.0)
    plane = upper_plane(param_set, trace(param_set, X_CF), ONE)
    assert plane.dense().tolist() == [[-4.0, -1.0, 1.0]]
    for bound in (ibp, crown_ibp):
        assert bound(param_set, X, X_CF, ONE).worst_logit.item() == pytest.approx(7.0)
        assert -bound(param_set, X, X_CF, -ONE).worst_logit.item() == pytest.approx(-17.0)


def test_simul_crown_example_is_zero() -> None:
    param_set = vt.ParamSet.around(linear(-2.0), radius=2.0)
    found = simul_crown(param_set, X, X_CF, ONE)
    assert found.worst_logit.item() == pytest.approx(0.0, abs=1e-12)
    assert found.multiplier.item() == pytest.approx(1.0)


@pytest.mark.parametrize(("bias", "x_cf"), [(-2.0, (0.0, 0.0)), (-2.5, (0.0, 0.5))])
def test_figure_1_optimal_counterfactuals(bias: float, x_cf: tuple[float, float]) -> None:
    """At delta = 2 the bound is the tie 0, which we do not certify; at 1.9 both are certified."""
    model, counterfactual = linear(bias), torch.tensor([x_cf], dtype=torch.float64)
    tie = vt.ParamSet.around(model, radius=2.0)
    assert simul_crown(tie, X, counterfactual, ONE).worst_logit.item() == pytest.approx(0.0, abs=1e-12)
    assert not vt.certify(model, X, counterfactual, tie).certified.any()
    assert vt.certify(model, X, counterfactual, vt.ParamSet.around(model, radius=1.9)).certified.all()


def test_figure_1_second_model_has_no_robust_counterfactual() -> None:
    """f1 = x1 - x2 - 1.5 at delta = 2: the bias may turn positive, and no point of the plane is certified."""
    model = linear(-1.5)
    grid = torch.cartesian_prod(*[torch.linspace(-6, 6, 61, dtype=torch.float64)] * 2)
    found = vt.certify(
        model, X.expand(len(grid), 2), grid, vt.ParamSet.around(model, radius=2.0), radius=False
    )
    assert not found.certified[found.valid].any()


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("seed", range(6))
def test_ibp_is_exact_for_one_hidden_layer(slope: float, seed: int) -> None:
    """Brute force over every corner of the box of parameters of a 2-2-1 network."""
    case = make_case(
        seed=seed, depth=2, width=2, inputs=2, slope=slope, kappa=0.4, rows=1, signed=seed % 2 == 0
    )
    params, network = case.param_set, case.param_set.network
    flat_sizes = [t.numel() for t in params.center]
    corners = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=sum(flat_sizes))), dtype=torch.float64)
    theta = tuple(
        c + r * part.view(-1, *c.shape)
        for c, r, part in zip(params.center, params.radii, corners.split(flat_sizes, dim=1), strict=True)
    )
    exact = (network.logit(theta, case.x_cf) * case.sign).amax()
    found = ibp(params, case.x, case.x_cf, case.sign).worst_logit
    assert found.item() == pytest.approx(exact.item(), abs=1e-9)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_radius_zero_is_the_forward_pass(name: str, norm: str) -> None:
    case = make_case(seed=4, norm=norm, kappa=0.0, slope=0.01)
    found = BOUNDS[name](case.param_set, case.x, case.x_cf, case.sign).worst_logit
    today = case.param_set.network.logit(case.param_set.center, case.x_cf) * case.sign
    torch.testing.assert_close(found, today, atol=1e-12, rtol=0)
