"""The set of models: radii, membership, projection, samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import veritracer as vt
from networks import NORMS
from veritracer.errors import NotSupportedError, ParamSetError, VeriTracerWarning
from veritracer.models import balls
from veritracer.models.network import from_module


def model(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


@pytest.mark.parametrize("norm", NORMS)
def test_radii_follow_their_rule(norm: str) -> None:
    module = model()
    weight = module[0].weight.detach().double()
    assert float(vt.ParamSet.around(module, 0.3, norm).radii[0]) == pytest.approx(
        0.3 * float(weight.abs().mean())
    )
    expected = {"linf": weight.abs().max(), "l2": weight.norm(), "l1": weight.abs().sum()}[norm]
    assert float(vt.ParamSet.around(module, 0.3, norm, "norm").radii[0]) == pytest.approx(
        0.3 * float(expected)
    )
    assert [float(r) for r in vt.ParamSet.around(module, norm=norm, radius=0.7).radii] == [0.7] * 4
    assert [float(r) for r in vt.ParamSet.around(module, norm=norm, radius=[1, 2, 3, 4]).radii] == [
        1,
        2,
        3,
        4,
    ]


def test_radii_are_detached_from_a_center_with_gradients() -> None:
    network, theta = from_module(model())
    param_set = vt.ParamSet.of(network, theta)
    assert param_set.center[0].requires_grad
    assert not any(r.requires_grad for r in param_set.radii)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("corners", [False, True])
def test_samples_are_inside_and_corners_on_the_border(norm: str, corners: bool) -> None:
    param_set = vt.ParamSet.around(model(), 0.3, norm)
    drawn = param_set.sample(200, torch.Generator().manual_seed(0), corners=corners)
    for stack, center, radius in zip(drawn, param_set.center, param_set.radii, strict=True):
        length = balls.norm(stack - center, norm, center.dim()) / radius
        assert (length <= 1 + 1e-9).all()
        assert length.min() > 1 - 1e-9 if corners else length.min() < 0.999


@pytest.mark.parametrize("norm", NORMS)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([0.1, 1.0, 30.0, 1e4]))
def test_projection_lands_inside_even_in_float32(norm: str, seed: int, scale: float) -> None:
    module = model(seed)
    with torch.no_grad():
        module[0].weight[0, 0] *= 50  # one weight that is much larger than its tensor's radius
    param_set = vt.ParamSet.around(module, 0.2, norm)
    g = torch.Generator().manual_seed(seed)
    far = tuple((t + scale * torch.randn(t.shape, generator=g)).float() for t in param_set.center)
    assert param_set.contains(param_set.project(far))


@pytest.mark.parametrize("norm", NORMS)
@given(seed=st.integers(0, 1000), radius=st.floats(0.01, 5.0))
def test_projection_onto_a_ball_is_the_nearest_point(norm: str, seed: int, radius: float) -> None:
    """No point of the ball is nearer: (y - p)·(q - p) <= 0 for every q in it, which characterises p."""
    g = torch.Generator().manual_seed(seed)
    point = torch.randn(2, 3, generator=g, dtype=torch.float64) * 2
    near = balls.project(point, torch.tensor(radius, dtype=torch.float64), norm)
    assert balls.norm(near, norm, 2) <= radius * (1 + 1e-9)
    others = torch.cat([balls.sample(50, point, norm, g), balls.sample_corner(50, point, norm, g)]) * radius
    assert (((point - near) * (others - near)).sum((1, 2)) <= 1e-9).all()


def test_contains_is_exact_in_float64() -> None:
    module = nn.Linear(2, 1, dtype=torch.float64)
    param_set = vt.ParamSet.around(module, radius=1.0)
    moved = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        moved.weight.copy_(module.weight + torch.tensor([[0.0, 0.5]]))
        moved.bias.copy_(module.bias)
    assert param_set.contains(moved)
    with torch.no_grad():
        moved.weight[0, 0] = module.weight[0, 0] + 1.0000001
    assert not param_set.contains(moved)


def test_sets_are_nested() -> None:
    param_set = vt.ParamSet.around(model(), 0.2)
    corner = param_set.sample(1, torch.Generator().manual_seed(0), corners=True)
    theta = tuple(t[0] for t in corner)
    assert param_set.at(0.2000001).contains(theta)
    assert not param_set.at(0.1999).contains(theta)


def test_a_missing_bias_can_not_move() -> None:
    module = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 1))
    assert float(vt.ParamSet.around(module, radius=1.0).radii[1]) == 0.0


def test_all_zero_parameters_are_warned_of() -> None:
    module = model()
    nn.init.zeros_(module[2].bias)
    with pytest.warns(VeriTracerWarning, match="b2"):
        assert float(vt.ParamSet.around(module).radii[3]) == 0.0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"norm": "l3"}, NotSupportedError, "'l1', 'l2' or 'linf'"),
        ({"radius": "mean"}, ParamSetError, "'mean-abs'"),
        ({"kappa": -0.1}, ParamSetError, "at least 0"),
        ({"kappa": float("nan")}, ParamSetError, "finite"),
        ({"radius": [1.0, 2.0]}, ParamSetError, "4"),
        ({"radius": -1.0}, ParamSetError, "at least 0"),
    ],
)
def test_bad_requests_are_explained(options: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        vt.ParamSet.around(model(), **options)


def test_another_architecture_is_refused() -> None:
    other = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 1))
    with pytest.raises(ParamSetError, match="architecture"):
        vt.ParamSet.around(model()).contains(other)
    wider = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1))
    with pytest.raises(ParamSetError, match="shapes"):
        vt.ParamSet.around(model()).contains(wider)


def test_training_on_does_not_move_the_set_along() -> None:
    module = nn.Linear(2, 1, dtype=torch.float64)
    param_set = vt.ParamSet.around(module, radius=1.0)
    with torch.no_grad():
        module.weight.add_(100.0)
    assert not param_set.contains(module)


@pytest.mark.parametrize("norm", NORMS)
def test_projection_is_inside_however_far_it_came_from(norm: str) -> None:
    param_set = vt.ParamSet.around(nn.Linear(40, 1, dtype=torch.float64), norm=norm, radius=1e-5)
    far = tuple(t + 1e10 for t in param_set.center)
    assert param_set.contains(param_set.project(far))


def test_a_set_that_float32_can_not_enter_is_said() -> None:
    param_set = vt.ParamSet.around(nn.Linear(3, 1, dtype=torch.float64), radius=1e-12)
    with pytest.raises(ParamSetError, match="project in float64"):
        param_set.project(tuple(t.float() for t in param_set.center))


@pytest.mark.parametrize("norm", NORMS)
def test_displacements_are_distances_in_radii_and_agree_with_contains(norm: str) -> None:
    around = vt.ParamSet.around(model(), 0.2, norm)
    assert around.displacements(around.center) == (0.0,) * 4
    assert around.at(0.0).displacements(around.center) == (0.0,) * 4  # nothing moved, and nothing may
    moved = tuple(c + 1e-3 for c in around.center)
    assert around.at(0.0).displacements(moved) == (float("inf"),) * 4
    reached = around.displacements(moved)
    expected = [d / float(r) for d, r in zip(around.distances(moved), around.radii, strict=True)]
    assert reached == pytest.approx(expected)
    assert (max(reached) <= 1) == around.contains(moved)
    broken = (moved[0] * float("nan"), *moved[1:])
    assert around.displacements(broken)[0] == float("inf")
