"""No model of the set may exceed a bound: the property that everything else rests on.

Draws a network, a set, rows and counterfactuals; tries today's model, uniform draws, extreme points and
the attack; keeps the models that still give each row its decision. None may exceed the bound, at a
tolerance of 1e-9 in float64. The plain bounds, the cascade (``prove``) and what users call (``vt.certify``)
are held to it alike. All methods, norms, activations and depths 1 to 4 go through one table.

In CI 50 examples for each of the 48 cells (2,400 in all, each with some 150 models for every row); with
--long 4,200 for each, above 200,000 in all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import veritracer as vt
from networks import NORMS, Case, cases, drawn_models, module_of, worst_seen
from veritracer.bounds import BOUNDS, Bound, Box
from veritracer.bounds.attack import attack
from veritracer.proving import CASCADE, ProofBatch, prove

TOLERANCE = 1e-9
CELLS = [
    pytest.param(norm, slope, depth, id=f"{norm}-{slope}-{depth}")
    for norm in NORMS
    for slope in (0.0, 0.01, 0.3, 1.0)
    for depth in (1, 2, 3, 4)
]


def found_by(case: Case, x_cf: Tensor | Box) -> Iterator[tuple[str, Bound]]:
    """Every way to a bound: the functions themselves, the cascade, and what users call.

    What the last two add for rounding is taken off again, so that nothing can hide behind it (``certify``
    also rounds up to ten digits).
    """
    for name, bound in BOUNDS.items():
        yield name, bound(case.param_set, case.x, x_cf, case.sign)
    batch, module = ProofBatch(case.x, x_cf, case.sign), module_of(case)
    for names in (CASCADE, CASCADE[::-1]):
        proofs = prove(case.param_set, batch, names, sign_only=True)
        yield f"prove, {names}", Bound(proofs.worst_logit - proofs.slack, proofs.multiplier)
    for names in (*((name,) for name in BOUNDS), CASCADE):
        certs = vt.certify(module, case.x, x_cf, case.param_set, methods=names, radius=False)
        assert set(certs.method) <= set(names)
        assert ((certs.favourable > 0) == (case.sign > 0).numpy()).all()
        worst = torch.from_numpy(certs.worst_logit - certs.slack)
        yield f"certify, {names}", Bound(worst, torch.from_numpy(certs.conditional).double())


def check(case: Case, seed: int) -> None:
    theta = drawn_models(case, seed)
    attacked = attack(case.param_set, case.x, case.x_cf, case.sign, steps=4, restarts=1)
    today = case.param_set.network.logit(case.param_set.center, case.x_cf) * case.sign
    # A proof with multiplier 0 must hold for every model; others where x keeps its decision.
    seen = {c: worst_seen(case, theta, case.x_cf, conditional=c) for c in (False, True)}
    seen = {c: torch.maximum(torch.maximum(s, attacked.worst_logit), today) for c, s in seen.items()}
    for name, found in found_by(case, case.x_cf):
        for conditional, worst in seen.items():
            applies = torch.ones_like(worst, dtype=torch.bool) if conditional else found.multiplier == 0
            excess = torch.where(applies, worst - found.worst_logit, -torch.inf).max()
            assert excess <= TOLERANCE, f"{name}: a model exceeds the bound by {excess:g}"


@pytest.mark.parametrize(("norm", "slope", "depth"), CELLS)
def test_no_model_exceeds_a_bound(
    norm: str, slope: float, depth: int, request: pytest.FixtureRequest
) -> None:
    examples = 4200 if request.config.getoption("--long") else 30

    @settings(max_examples=examples)
    @given(cases(norm=norm, slope=slope, depth=depth))
    def run(case: Case) -> None:
        check(case, seed=depth)

    run()


@pytest.mark.parametrize("norm", NORMS)
def test_no_model_exceeds_a_bound_over_a_box_of_inputs(norm: str) -> None:
    @given(cases(norm=norm))
    def run(case: Case) -> None:
        theta = drawn_models(case, seed=1)
        reach = 0.3 * torch.rand(
            case.x_cf.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64
        )
        box = Box(case.x_cf - reach, case.x_cf + reach)
        bounds = list(found_by(case, box))
        for seed in range(6):
            g = torch.Generator().manual_seed(seed)
            share = torch.rand(case.x_cf.shape, generator=g, dtype=torch.float64)
            inside = torch.lerp(box.lower, box.upper, share.round() if seed % 2 else share)
            seen = worst_seen(case, theta, inside, conditional=True)
            for name, found in bounds:
                assert (seen - found.worst_logit).max() <= TOLERANCE, name

    run()
