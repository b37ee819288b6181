"""Formulas for norms: one for each, and none that takes an unknown one for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from networks import make_case
from veritracer.bounds import BOUNDS
from veritracer.errors import NotSupportedError
from veritracer.models import balls

POINT = torch.tensor([[3.0, -4.0]], dtype=torch.float64)
CALLS: dict[str, Callable[[Any], object]] = {
    "norm": lambda kind: balls.norm(POINT, kind),
    "support_point": lambda kind: balls.support_point(POINT, kind),
    "project": lambda kind: balls.project(POINT[0], torch.tensor(1.0), kind),
    "sample": lambda kind: balls.sample(2, POINT, kind, torch.Generator()),
    "sample_corner": lambda kind: balls.sample_corner(2, POINT, kind, torch.Generator()),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_unknown_norm_is_refused(name: str) -> None:
    for kind in ("l1", "l2", "linf"):
        CALLS[name](kind)
    with pytest.raises(NotSupportedError, match=r"a norm, got 'l3'"):
        CALLS[name]("l3")


@pytest.mark.parametrize("name", BOUNDS)
def test_no_bound_has_a_default_for_an_unknown_norm(name: str) -> None:
    case = make_case(seed=1)
    object.__setattr__(case.param_set, "norm", "l3")
    with pytest.raises((NotSupportedError, KeyError)):
        BOUNDS[name](case.param_set, case.x, case.x_cf, case.sign)
