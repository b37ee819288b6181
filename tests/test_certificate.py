"""Certificates: the cascade, the radius, the slack, and what they say."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import nn

import veritracer as vt
from networks import NORMS, Case, cases, make_case, make_valid
from veritracer.bounds import BOUNDS, Box
from veritracer.bounds.attack import attack
from veritracer.bounds.ibp import trace
from veritracer.bounds.rounding import Precision, logit_error
from veritracer.errors import DataError, NotSupportedError, ParamSetError
from veritracer.models.network import to_module


def trained(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[nn.Sequential, torch.Tensor]:
    """A classifier with margins, and rows of both classes."""
    torch.manual_seed(seed)
    x = torch.rand(200, 5)
    y = (x[:, 0] + x[:, 1] > 1).float()
    module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1))
    optimiser = torch.optim.Adam(module.parameters(), 0.05)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(module(x)[:, 0], y).backward()
        optimiser.step()
    return module.to(dtype), x.to(torch.float64)


def far_pairs(module: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with counterfactuals deep in the other class."""
    side = x.clone()
    favourable = module(x.to(next(module.parameters()).dtype))[:, 0] > 0
    side[:, :2] = torch.where(favourable[:, None], 0.0, 1.0)
    return x, side


@pytest.mark.parametrize("norm", NORMS)
def test_certified_rows_survive_the_attack(norm: str) -> None:
    module, x = trained()
    x, x_cf = far_pairs(module, x)
    param_set = vt.ParamSet.around(module, 0.1, norm)
    certs = vt.certify(module, x, x_cf, param_set)
    assert certs.certified.mean() > 0.1
    sign = torch.where(param_set.network.logit(param_set.center, x) > 0, 1.0, -1.0).double()
    broken = attack(param_set, x, x_cf, sign).worst_logit >= 0
    assert not (torch.as_tensor(certs.certified) & broken).any()


def test_the_cascade_names_the_cheapest_method_that_decides() -> None:
    module, x = trained()
    x, x_cf = far_pairs(module, x)
    param_set = vt.ParamSet.around(module, 0.12)
    full = vt.certify(module, x, x_cf, param_set, radius=False)
    only = {m: vt.certify(module, x, x_cf, param_set, methods=[m], radius=False).certified for m in BOUNDS}
    assert (full.certified == only["simul-crown"]).all()
    assert ((full.method == "ibp") == only["ibp"])[full.certified].all()
    crown = only["crown-ibp"] & ~only["ibp"]
    assert (full.method[crown] == "crown-ibp").all()
    assert not full.conditional[only["crown-ibp"]].any()
    assert set(full.method[full.certified & ~only["crown-ibp"]]) <= {"simul-crown"}


def test_radius_is_proved_and_no_grid_step_above_it_is_found() -> None:
    module, x = trained()
    x, x_cf = far_pairs(module, x)
    param_set = vt.ParamSet.around(module, 0.1)
    certs = vt.certify(module, x, x_cf, param_set)
    assert certs.radius is not None
    assert (certs.radius[certs.certified] >= 0.1).all()
    assert (certs.radius[~certs.certified] < 0.1).all()
    assert (certs.radius[certs.valid] > 0).any()
    for row in range(0, 200, 23):
        reach = certs.radius[row]
        if reach > 0:
            assert vt.certify(module, x[row], x_cf[row], param_set.at(reach)).certified.all()
            above = vt.certify(module, x[row], x_cf[row], param_set.at(reach * 2 ** (1 / 32)), radius=False)
            assert not above.certified.any()


def test_radius_of_a_row_does_not_depend_on_its_neighbours() -> None:
    module, x = trained()
    x, x_cf = far_pairs(module, x)
    param_set = vt.ParamSet.around(module, 0.1)
    together = vt.certified_radius(module, x[:40], x_cf[:40], param_set)
    alone = np.concatenate([vt.certified_radius(module, x[i], x_cf[i], param_set) for i in range(40)])
    assert together == pytest.approx(alone)


def test_an_invalid_counterfactual_has_radius_zero() -> None:
    module, x = trained()
    certs = vt.certify(module, x, x, vt.ParamSet.around(module, 0.1))
    assert not certs.valid.any()
    assert not certs.certified.any()
    assert (certs.radius == 0).all()


@given(cases(slope=0.0))
def test_slack_covers_float32(case: Case) -> None:
    """The logit computed in float32 from rounded inputs, against float64, for models all over the set."""
    params = case.param_set
    theta = params.sample(8, torch.Generator().manual_seed(0), corners=True)
    single = tuple(t.float() for t in theta)
    double = tuple(t.double() for t in single)  # the model is its float32 parameters
    computed = params.network.logit(single, case.x_cf.float().expand(8, -1, -1)).double()
    exact = params.network.logit(double, case.x_cf.expand(8, -1, -1))
    # Rounding the parameters may carry them 2**-24 outside of the set; widen it by as much.
    wider = params.at(params.kappa * (1 + 1e-5) + 1e-6)
    allowed = logit_error(wider, trace(wider, case.x_cf), Precision.of(torch.float32))
    assert ((computed - exact).abs() <= allowed + 1e-15).all()


def test_slack_is_small_enough_to_be_useful() -> None:
    module, x = trained()
    certs = vt.certify(module, *far_pairs(module, x), vt.ParamSet.around(module, 0.1), radius=False)
    assert certs.slack.max() < 1e-3


def test_a_tie_is_not_certified() -> None:
    module = nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.fill_(-1.0)
    certs = vt.certify(module, [[2.0]], [[0.0]], vt.ParamSet.around(module, radius=1.0))
    assert certs.worst_logit[0] == pytest.approx(0.0, abs=1e-5)
    assert not certs.certified[0]


def test_a_box_is_certified_only_if_all_of_it_is() -> None:
    module, x = trained()
    x, x_cf = far_pairs(module, x)
    param_set = vt.ParamSet.around(module, 0.05)
    point = vt.certify(module, x, x_cf, param_set, radius=False).certified
    small = vt.certify(module, x, Box(x_cf - 0.01, x_cf + 0.01), param_set, radius=False).certified
    large = vt.certify(module, x, Box(x_cf * 0, x_cf * 0 + 1), param_set, radius=False).certified
    assert small.sum() > 0
    assert (point | ~small).all()
    assert not large.any()


def test_what_a_certificate_says() -> None:
    module, x = trained()
    certs = vt.certify(module, *far_pairs(module, x), vt.ParamSet.around(module, 0.05))
    assert str(certs).endswith("at kappa = 0.05 (linf, mean-abs)")
    assert len(list(certs)) == len(certs) == 200
    row = int(certs.certified.argmax())
    assert str(certs[row]).startswith("certified by ibp at kappa = 0.05")
    assert certs[row].model_digest == certs.model_digest
    unproved = vt.certify(module, x, x, vt.ParamSet.around(module))[0]
    assert str(unproved) == "unknown: no proof found at kappa = 0.2 (linf, mean-abs)"


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", ["mean-abs", "norm", 0.01, [0.01, 0.02, 0.03, 0.04, 0.05, 0.0]])
def test_a_certificate_identifies_its_set(norm: str, radius: object) -> None:
    module, x = trained()
    models = vt.ParamSet.around(module, 0.03, norm, radius)
    certs = vt.certify(module, x, far_pairs(module, x)[1], models, radius=False)
    assert certs.center_digest == certs.model_digest == models.center_digest
    assert certs.norm == norm
    assert certs.rule == (radius if isinstance(radius, str) else "absolute")
    assert list(certs.radii) == ["W1", "b1", "W2", "b2", "W3", "b3"]
    assert list(certs.radii.values()) == [float(r) for r in models.radii]
    for text in (str(certs), str(certs[0])):
        assert f"({norm}, {certs.rule})" in text
        assert ("kappa" in text) == isinstance(radius, str)
    if radius == 0.01:
        assert f"at radius 0.01 ({norm}, absolute)" in str(certs)
    one = certs[0]
    assert (one.center_digest, one.rule, one.radii) == (certs.center_digest, certs.rule, certs.radii)


def test_a_set_around_another_model_is_said_to_be() -> None:
    center, x = trained()
    module = moved(center, 0.001)
    certs = vt.certify(module, *far_pairs(center, x), vt.ParamSet.around(center, 0.05), radius=False)
    assert certs.center_digest == vt.certify(center, x, x, vt.ParamSet.around(center)).model_digest
    assert certs.model_digest != certs.center_digest
    assert f"around another model ({certs.center_digest[:12]})" in str(certs)
    assert f"around another model ({certs.center_digest[:12]})" in str(certs[0])


def moved(module: nn.Module, by: float, tensor: int = 0) -> nn.Module:
    """The same model with one entry of one tensor moved."""
    other = copy.deepcopy(module).double()
    with torch.no_grad():
        list(other.parameters())[tensor].view(-1)[0] += by
    return other


@pytest.mark.parametrize("norm", NORMS)
def test_covers_says_whether_a_model_is_in_the_set_and_why_not(norm: str) -> None:
    module, x = trained(dtype=torch.float64)
    certs = vt.certify(module, x, x, vt.ParamSet.around(module, norm=norm, radius=0.01), radius=False)
    assert certs.covers(module)
    assert certs.covers(module).outside is None
    inside, outside = certs.covers(moved(module, 0.0099)), certs.covers(moved(module, -0.0101, tensor=3))
    assert inside
    assert inside.shares[0] == pytest.approx(0.99)
    assert not outside
    assert outside.outside == "weights"
    assert "b2" in outside.reason
    assert "0.0101" in outside.reason
    assert certs.covers(moved(module, float("nan"))).outside == "weights"
    wider = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 4), nn.ReLU(), nn.Linear(4, 1))
    assert certs.covers(wider).outside == "architecture"
    assert "encoding and threshold cannot be compared" in inside.reason
    with pytest.raises(NotSupportedError, match="fitted VeriTraCER"):
        certs.covers(vt.VeriTraCER())


def test_what_covers_says_is_what_contains_says_to_the_last_bit() -> None:
    module, x = trained(dtype=torch.float64)
    models = vt.ParamSet.around(module, radius=0.1)
    certs = vt.certify(module, x, x, models, radius=False)
    for by in (0.1, np.nextafter(0.1, 1), np.nextafter(0.1, 0)):
        assert bool(certs.covers(moved(module, by))) == models.contains(moved(module, by))


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("norm", NORMS)
def test_modules_of_one_and_two_logits(outputs: int, norm: str) -> None:
    case = make_case(seed=0, outputs=outputs, norm=norm, kappa=0.01, rows=50, spread=3.0)
    module = to_module(case.param_set.network, case.param_set.center)
    certs = vt.certify(module, case.x, case.x_cf, vt.ParamSet.around(module, 0.01, norm), radius=False)
    assert (certs.valid | ~certs.certified).all()
    assert certs.certified.any()


@pytest.mark.parametrize(
    ("x", "x_cf", "error", "words"),
    [
        (torch.rand(3, 4), torch.rand(3, 5), DataError, r"x of shape \(rows, 5\)"),
        (torch.rand(3, 5), torch.rand(2, 5), DataError, "as many counterfactuals"),
        (torch.full((1, 5), float("nan")), torch.rand(1, 5), DataError, "finite numbers in x"),
        (torch.rand(1, 5), torch.full((1, 5), float("inf")), DataError, "finite numbers in x_cf"),
        (torch.rand(1, 5), Box(torch.ones(1, 5), torch.zeros(1, 5)), DataError, "lower"),
        (torch.rand(1, 2, 5), torch.rand(1, 5), DataError, "shape"),
        (torch.rand(1, 5), Box([[1.0] * 5], [[0.0] * 5]), DataError, "lower"),
    ],
)
def test_bad_rows_are_explained(
    x: torch.Tensor, x_cf: torch.Tensor, error: type[Exception], words: str
) -> None:
    module, _ = trained()
    with pytest.raises(error, match=words):
        vt.certify(module, x, x_cf, vt.ParamSet.around(module))


def test_another_models_set_is_refused() -> None:
    first, x = trained(0)
    second, _ = trained(1)
    with pytest.raises(ParamSetError, match="contains this model"):
        vt.certify(first, x, x, vt.ParamSet.around(second))
    with pytest.raises(NotSupportedError, match="methods among"):
        vt.certify(first, x, x, vt.ParamSet.around(first), methods=["milp"])


def test_no_rows_are_no_certificates() -> None:
    module, _ = trained()
    certs = vt.certify(module, torch.empty(0, 5), torch.empty(0, 5), vt.ParamSet.around(module))
    assert len(certs) == 0
    assert str(certs).startswith("0 of 0 certified")


# What an adversarial review broke before the first release; each of these was certified, wrongly.


def layer(
    weight: list[list[float]], bias: list[float] | None = None, dtype: torch.dtype = torch.float64
) -> nn.Linear:
    """A Linear with these parameters."""
    made = nn.Linear(len(weight[0]), len(weight), bias=bias is not None, dtype=dtype)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(weight, dtype=torch.float64))
        if bias is not None:
            made.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    return made


def test_a_layer_object_that_stands_in_two_places_counts_twice() -> None:
    act = nn.ReLU()
    module = nn.Sequential(layer([[1.0]], [0.0]), act, layer([[-1.0]], [0.0]), act, layer([[1.0]], [0.5]))
    certs = vt.certify(module, [[0.0]], [[5.0]], vt.ParamSet.around(module, radius=0.0))
    assert not certs.valid[0]
    assert not certs.certified[0]


def test_a_module_that_does_something_else_is_refused() -> None:
    class Negated(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return -super().forward(x)

    class OddLinear(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1.0

    hooked = nn.Linear(1, 1)
    hooked.register_forward_hook(lambda module, args, output: -output)
    for module in (Negated(nn.Linear(1, 1)), nn.Sequential(OddLinear(1, 1)), hooked):
        with pytest.raises(NotSupportedError):
            vt.certify(module, [[0.0]], [[5.0]], vt.ParamSet.around(module, radius=0.1))


def test_the_l2_dual_does_not_lose_half_of_its_digits() -> None:
    """x_cf close to a negative multiple of x: the slope at the optimum nearly cancels."""
    g = torch.Generator().manual_seed(0)
    for scale in (0.3, 1.0, 3.0):
        weight = torch.randn(1, 3, generator=g, dtype=torch.float64)
        x = torch.randn(200, 3, generator=g, dtype=torch.float64)
        x_cf = -scale * x + 1e-8 * torch.randn(200, 3, generator=g, dtype=torch.float64)
        param_set = vt.ParamSet.around(layer(weight.tolist()), norm="l2", radius=0.5)
        sign = torch.where(x @ weight[0] > 0, 1.0, -1.0).double()
        found = BOUNDS["simul-crown"](param_set, x, x_cf, sign)
        slope, other = (sign[:, None] * t for t in (x_cf, x))
        mixed = slope + found.multiplier[:, None] * other
        exact = mixed.numpy().astype(np.longdouble)
        value = exact @ weight[0].numpy().astype(np.longdouble) + 0.5 * np.sqrt((exact**2).sum(-1))
        assert (found.worst_logit.numpy() >= value - 1e-13).all()


@pytest.mark.parametrize(
    ("layers", "x", "x_cf"),
    [
        ([layer([[1.0]], dtype=torch.float32)], [[-1.0]], [[1e-50]]),
        ([layer([[1.0]], dtype=torch.float32)], [[-1.0]], [[3e39]]),
        ([layer([[1e-30]], dtype=torch.float32)], [[1e-30]], [[-5e-31]]),
        (
            [layer([[1e-8]], dtype=torch.float32), nn.ReLU()] * 5 + [layer([[1e-8]], dtype=torch.float32)],
            [[-1.0]],
            [[1.0]],
        ),
        (
            [layer([[1e8]], dtype=torch.float32), nn.ReLU()] * 5 + [layer([[1e8]], dtype=torch.float32)],
            [[-1.0]],
            [[1.0]],
        ),
        ([layer([[1.0]], [-0.5])], [[0.0]], [[0.5 + 1e-9]]),
        ([layer([[1.0]], [-0.1])], [[0.0]], [[0.1]]),
    ],
    ids=[
        "underflow",
        "overflow",
        "unclear",
        "deep underflow",
        "deep overflow",
        "another precision",
        "a list",
    ],
)
def test_what_floating_point_can_turn_is_not_certified(
    layers: list[nn.Module], x: list[list[float]], x_cf: list[list[float]]
) -> None:
    module = nn.Sequential(*layers)
    assert not vt.certify(module, x, x_cf, vt.ParamSet.around(module, radius=0.0)).certified.any()


def test_the_certificate_names_todays_decision() -> None:
    module, x = trained()
    certs = vt.certify(module, *far_pairs(module, x), vt.ParamSet.around(module, 0.05), radius=False)
    assert (certs.favourable == (module(x.float())[:, 0] > 0).numpy()).all()


@pytest.mark.parametrize("norm", NORMS)
def test_a_set_of_one_model_and_a_constraint_that_it_breaks(norm: str) -> None:
    module = layer([[1.0]], [-1.0])
    assert not vt.certify(module, [[1.0]], [[2.0]], vt.ParamSet.around(module, 0.0, norm)).certified.any()


# ---------------------------------------------------------------- the exact stage


def open_pairs(**how: float) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor, vt.ParamSet]:
    """Pairs of which the bounds prove some, the exact stage some more, and others are broken."""
    case = make_valid(**{"seed": 0, "depth": 4, "width": 8, "inputs": 5, "kappa": 0.04, "rows": 40, **how})
    return to_module(case.param_set.network, case.param_set.center), case.x, case.x_cf, case.param_set


def test_the_exact_stage_decides_what_the_bounds_leave_open() -> None:
    module, x, x_cf, param_set = open_pairs()
    fast = vt.certify(module, x, x_cf, param_set)
    exact = vt.certify(module, x, x_cf, param_set, effort="exact")
    assert {"ibp", "exact"} <= set(exact.method[exact.certified])
    assert (exact.certified & ~fast.certified).any()
    assert exact.broken.any()
    assert set(exact.status) <= {"certified", "broken", "unknown"}
    assert set(fast.status) == {"certified", "unknown"}
    assert fast.counterexample is None
    # What the bounds proved stays as it was.
    for name in ("method", "worst_logit", "radius", "conditional"):
        np.testing.assert_array_equal(
            getattr(exact, name)[fast.certified], getattr(fast, name)[fast.certified]
        )
    assert (exact.worst_logit <= fast.worst_logit).all()
    assert ((exact.worst_logit < 0) == exact.certified).all()
    assert not (exact.certified & exact.broken).any()


def test_an_exact_proof_counts_for_the_radius_and_is_unconditional() -> None:
    module, x, x_cf, param_set = open_pairs()
    found = vt.certify(module, x, x_cf, param_set, effort="exact")
    assert found.radius is not None
    exactly = found.certified & (found.method == "exact")
    assert exactly.any()
    assert (found.radius[found.certified] >= param_set.kappa).all()
    assert (found.radius[~found.certified] < param_set.kappa).all()
    assert not found.conditional[exactly].any()
    assert vt.certify(module, x, x_cf, param_set, effort="exact", radius=False).radius is None


def test_a_broken_row_has_the_model_that_breaks_it() -> None:
    module, x, x_cf, param_set = open_pairs()
    found = vt.certify(module, x, x_cf, param_set, effort="exact")
    assert found.counterexample is not None
    for row in np.flatnonzero(found.broken):
        broken = found.counterexample[row]
        assert found.covers(broken.module)
        there = broken.module(torch.stack([x[row], x_cf[row]]))[:, 0] > 0
        assert (there == bool(found.favourable[row])).all()
        assert torch.equal(broken.x_cf, x_cf[row])
        assert found[row].counterexample is broken
        assert (
            str(found[row])
            == "broken: a model at kappa = 0.04 (linf, mean-abs) gives x_cf the decision that it gives x"
        )
    assert found[int(np.flatnonzero(found.certified)[0])].counterexample is None


def test_a_counterfactual_that_is_not_valid_today_is_broken() -> None:
    module, x, _, param_set = open_pairs()
    found = vt.certify(module, x, x, param_set, effort="exact")
    assert set(found.status) <= {"broken", "unknown"}  # unknown: too close to the threshold for rounding
    assert (found.status == "broken").mean() > 0.9


def test_a_region_is_decided_with_the_row_that_breaks_it() -> None:
    module, x, x_cf, param_set = open_pairs()
    box = Box(x_cf - 0.03, x_cf + 0.03)
    fast = vt.certify(module, x, box, param_set, radius=False)
    found = vt.certify(module, x, box, param_set, effort="exact", radius=False)
    assert (found.certified & ~fast.certified).any()
    assert found.broken.any()
    assert found.counterexample is not None
    for row in np.flatnonzero(found.broken):
        there = found.counterexample[row].x_cf
        assert ((box.lower[row] <= there) & (there <= box.upper[row])).all()
        assert found.covers(found.counterexample[row].module)


def test_without_time_rows_stay_unknown() -> None:
    module, x, x_cf, param_set = open_pairs()
    fast = vt.certify(module, x, x_cf, param_set)
    found = vt.certify(module, x, x_cf, param_set, effort="exact", time_budget=0.0)
    assert not found.broken.any()
    np.testing.assert_array_equal(found.status, fast.status)
    np.testing.assert_array_equal(found.worst_logit, fast.worst_logit)


def test_a_decision_within_rounding_of_the_other_one_stays_unknown() -> None:
    module = nn.Linear(2, 1).double()
    module.weight.data.copy_(torch.tensor([[1.0, 0.0]]))
    module.bias.data.fill_(1e-9 - 1.0)
    found = vt.certify(
        module, [[1.0, 0.0]], [[-5.0, 0.0]], vt.ParamSet.around(module, radius=0.1), effort="exact"
    )
    assert found.status.tolist() == ["unknown"]
    assert found.worst_logit.tolist() == [float("inf")]


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_exact_stage_refuses_other_norms(norm: str) -> None:
    module, x, x_cf, _ = open_pairs()
    with pytest.raises(
        NotSupportedError, match=f"norm 'linf' for effort='exact', got '{norm}' — leave effort"
    ):
        vt.certify(module, x, x_cf, vt.ParamSet.around(module, 0.1, norm), effort="exact")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"effort": "exat"},
            NotSupportedError,
            "effort 'fast' or 'exact', got 'exat' — did you mean 'exact'",
        ),
        (
            {"time_budget": 1.0},
            DataError,
            "effort='exact' for a time budget, got time_budget=1.0 with effort",
        ),
        ({"effort": "exact", "time_budget": -1.0}, DataError, "time_budget of at least 0, got -1.0"),
        ({"effort": "exact", "time_budget": float("nan")}, DataError, "time_budget of at least 0, got nan"),
    ],
)
def test_efforts_that_are_refused(options: dict[str, object], error: type[Exception], said: str) -> None:
    module, x, x_cf, param_set = open_pairs()
    with pytest.raises(error, match=said):
        vt.certify(module, x, x_cf, param_set, **options)


def test_certify_works_where_gradients_are_off() -> None:
    module, x, x_cf, param_set = open_pairs()
    with torch.no_grad():
        found = vt.certify(module, x, x_cf, param_set, effort="exact", radius=False)
    assert found.broken.any()
