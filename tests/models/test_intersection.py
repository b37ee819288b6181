"""The common models of several sets: projections land inside, and what can not be kept together is said."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from networks import NORMS, make_case
from veritracer.errors import EmptyIntersectionError, ParamSetError
from veritracer.models.intersection import Intersection
from veritracer.models.network import to_module
from veritracer.models.param_sets import ParamSet


def shifted(param_set: ParamSet, by: float, seed: int, norm: str, kappa: float) -> ParamSet:
    """A set of the same architecture around a model that moved by up to ``by`` radii of the first one."""
    g = torch.Generator().manual_seed(seed)
    moved = tuple(t[0] for t in param_set.at(param_set.kappa * by).sample(1, g))
    return ParamSet.of(param_set.network, moved, kappa, norm)


def around(param_set: ParamSet, by: float, seed: int, norm: str) -> ParamSet:
    """A set around a model that moved, just large enough to hold the first one with 10 % to spare."""
    moved = shifted(param_set, by, seed, norm, 0.0)
    return ParamSet.of(
        moved.network, moved.center, norm=norm, radius=[1.1 * d for d in moved.distances(param_set.center)]
    )


@given(
    seed=st.integers(0, 2**31 - 1),
    norms=st.lists(st.sampled_from(NORMS), min_size=1, max_size=3),
    by=st.sampled_from([0.01, 0.3, 3.0]),
    far=st.sampled_from([0.5, 3.0, 100.0]),
    known=st.booleans(),
    single=st.booleans(),
)
def test_projection_is_in_every_set(
    seed: int, norms: list[str], by: float, far: float, known: bool, single: bool
) -> None:
    first = make_case(seed=seed, norm=norms[0]).param_set
    sets = [first, *(around(first, by, seed + i, n) for i, n in enumerate(norms[1:], 1))]
    common = Intersection.of(sets, first.center if known else None)
    g = torch.Generator().manual_seed(seed)
    theta = tuple(
        c + far * r * torch.randn(c.shape, generator=g, dtype=c.dtype)
        for c, r in zip(first.center, first.radii, strict=True)
    )
    theta = tuple(t.float() for t in theta) if single else theta
    landed = common.project(theta)
    assert all(t.dtype == s.dtype for t, s in zip(theta, landed, strict=True))
    assert common.contains(landed)
    assert all(s.contains(to_module(first.network, landed)) for s in sets)


def test_a_model_inside_stays_where_it_is() -> None:
    for norm in NORMS:
        first = make_case(seed=3, norm=norm).param_set
        common = Intersection.of([first, around(first, 0.3, 4, norm)], first.center)
        for before, after in zip(first.center, common.project(first.center), strict=True):
            assert torch.allclose(before, after, rtol=0, atol=1e-15)


def test_boxes_project_to_the_nearest_model() -> None:
    """Against the clamp written out by hand; the margin is 2e-6 of the radius and rounding to float32."""
    first = make_case(seed=5).param_set
    second = shifted(first, 0.5, 6, "linf", 0.2)
    common = Intersection.of([first, second])
    theta = tuple(c + 3 * r for c, r in zip(first.center, first.radii, strict=True))
    for i, landed in enumerate(common.project(theta)):
        low = torch.maximum(first.center[i] - first.radii[i], second.center[i] - second.radii[i])
        high = torch.minimum(first.center[i] + first.radii[i], second.center[i] + second.radii[i])
        assert torch.allclose(landed, torch.clamp(theta[i], low, high), rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_dykstra_finds_the_nearest_model(norm: str) -> None:
    """No common model that random search finds is closer by more than the margin."""
    first = make_case(seed=7, norm=norm, depth=2, width=2, inputs=2).param_set
    second = shifted(first, 0.6, 8, norm, 0.25)
    common = Intersection.of([first, second])
    g = torch.Generator().manual_seed(0)
    theta = tuple(
        c + 2 * r * torch.randn(c.shape, generator=g, dtype=c.dtype)
        for c, r in zip(first.center, first.radii, strict=True)
    )
    landed = common.project(theta)
    samples = first.sample(20_000, g)
    for i, tensor in enumerate(samples):
        dims = list(range(1, tensor.dim()))
        apart = (tensor - second.center[i]).flatten(1)
        inside = (apart.norm(dim=1) if norm == "l2" else apart.abs().sum(1)) <= second.radii[i]
        best = (tensor - theta[i]).pow(2).sum(dims).sqrt()[inside].min()
        assert (landed[i] - theta[i]).norm() <= best + 1e-5


@pytest.mark.parametrize("norm", NORMS)
def test_sets_that_are_apart_are_named(norm: str) -> None:
    first = make_case(seed=9, norm=norm, kappa=0.05).param_set
    near = shifted(first, 0.5, 10, norm, 0.05)
    away = ParamSet.of(first.network, tuple(t + 1.0 for t in first.center), 0.05, norm)
    with pytest.raises(EmptyIntersectionError, match="expected sets with a common model") as caught:
        Intersection.of([first, near, away], first.center)
    assert caught.value.pairs == [(0, 2), (1, 2)]


def test_three_spheres_that_meet_only_in_pairs() -> None:
    """No pair is to blame: the failed search says so, and names the layer."""
    base = make_case(seed=11, norm="l2", depth=1, inputs=2).param_set
    corners = [(0.0, 0.0), (2.0, 0.0), (1.0, 3**0.5)]  # a triangle of side 2; its middle is 1.155 away
    sets = [
        ParamSet.of(base.network, (torch.tensor([c], dtype=torch.float64), base.center[1]), 1.0, "l2", 1.1)
        for c in corners
    ]
    with pytest.raises(EmptyIntersectionError, match="none for W1") as caught:
        Intersection.of(sets)
    assert caught.value.pairs == []
    larger = [ParamSet.of(s.network, s.center, 1.0, "l2", 1.2) for s in sets]
    assert Intersection.of(larger).contains(Intersection.of(larger).project(base.center))


def test_a_set_of_one_model_leaves_that_model() -> None:
    first = make_case(seed=12).param_set
    common = Intersection.of([first, first.at(0.0)])
    far = tuple(t + 1 for t in first.center)
    assert all(torch.equal(a, b) for a, b in zip(common.project(far), first.center, strict=True))


def test_architectures_must_agree() -> None:
    one, other = make_case(seed=0, depth=2).param_set, make_case(seed=0, depth=3).param_set
    with pytest.raises(ParamSetError, match="one architecture"):
        Intersection.of([one, other])
    wide = make_case(seed=0, depth=2, width=6).param_set
    with pytest.raises(ParamSetError, match="shapes"):
        Intersection.of([one, wide])
    with pytest.raises(ParamSetError, match="at least one"):
        Intersection.of([])
