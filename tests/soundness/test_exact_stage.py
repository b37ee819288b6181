"""What users get from ``effort="exact"``: no model breaks what it certifies, and each counterexample is one.

Sampled models, corners and the attack against certified rows; the broken rows' models are evaluated as torch
modules. The bound itself is held against its oracles in ``tests/bounds/test_branching.py``.

With --long 4,200 examples for each of the 16 cells, 67,200 in all.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import veritracer as vt
from networks import Case, cases, drawn_models, module_of, worst_seen
from veritracer.bounds import Box
from veritracer.bounds.attack import attack

TOLERANCE = 1e-9


def check(case: Case, x_cf: Tensor | Box, points: list[Tensor], seed: int) -> None:
    """Hold the results for ``x_cf`` against models of the set at ``points``, which are rows of it."""
    found = vt.certify(module_of(case), case.x, x_cf, case.param_set, effort="exact", time_budget=1.0)
    assert found.counterexample is not None
    assert found.radius is not None
    theta = drawn_models(case, seed)
    for at in points:
        seen = worst_seen(case, theta, at, conditional=False)
        attacked = attack(case.param_set, case.x, at, case.sign, steps=4, restarts=1).worst_logit
        worst = torch.maximum(seen, attacked)
        for row in np.flatnonzero(found.method == "exact"):  # unconditional, whether it is a proof or not
            assert worst[row] <= found.worst_logit[row] + TOLERANCE
        for row in np.flatnonzero(found.certified):
            assert attacked[row] < 0
    assert (found.radius[found.certified] >= case.param_set.kappa).all()
    for row in np.flatnonzero(found.broken):
        assert not found.certified[row]
        broken = found.counterexample[row]
        assert found.covers(broken.module)
        if isinstance(x_cf, Box):
            assert ((x_cf.lower[row] <= broken.x_cf) & (broken.x_cf <= x_cf.upper[row])).all()
        else:
            assert torch.equal(broken.x_cf, x_cf[row])
        outputs = broken.module(torch.stack([case.x[row], broken.x_cf]))
        logits = outputs[:, 0] if outputs.shape[1] == 1 else outputs[:, 1] - outputs[:, 0]
        assert (logits * case.sign[row] > 0).all()


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_exact_results_hold(slope: float, depth: int, request: pytest.FixtureRequest) -> None:
    examples = 4200 if request.config.getoption("--long") else 8

    @settings(max_examples=examples)
    @given(cases(norm="linf", slope=slope, depth=depth))
    def run(case: Case) -> None:
        check(case, case.x_cf, [case.x_cf], seed=depth)

    run()


def test_exact_results_hold_over_a_region(request: pytest.FixtureRequest) -> None:
    @settings(max_examples=4200 if request.config.getoption("--long") else 15)
    @given(cases(norm="linf"))
    def run(case: Case) -> None:
        g = torch.Generator().manual_seed(3)
        reach = 0.3 * torch.rand(case.x_cf.shape, generator=g, dtype=torch.float64)
        box = Box(case.x_cf - reach, case.x_cf + reach)
        points = [
            torch.lerp(
                box.lower, box.upper, torch.rand(reach.shape, generator=g, dtype=torch.float64).round()
            )
            for _ in range(3)
        ]
        check(case, box, [*points, case.x_cf], seed=1)

    run()
