"""A second implementation of IBP and CROWN-IBP over weight boxes, entry by entry, beside the library's.

It shares no code with ``veritracer.bounds``: one row at a time, explicit interval products, and planes whose
slopes on weights are written out as whole matrices.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from numpy.typing import NDArray

from networks import Case, cases
from veritracer.bounds.ibp import Box, at_box, trace
from veritracer.bounds.methods import BoundProblem
from veritracer.models.network import Network
from veritracer.models.param_sets import ParamSet

Array = NDArray[np.float64]
Interval = tuple[Array, Array]
TOLERANCE = 1e-9
"""Relative; sums are taken in another order than the library's."""


def interval_product(weight: Array, radius: float, bias: Array, reach: float, h: Interval) -> Interval:
    """Return the exact range of W h + b, from the four corners of every product."""
    corners = np.stack([w * end for w in (weight - radius, weight + radius) for end in h])
    return corners.min(0).sum(-1) + bias - reach, corners.max(0).sum(-1) + bias + reach


def leaky(z: Array, slope: float) -> Array:
    return np.where(z > 0, z, slope * z)


def exact_ranges(case: Case, x: Array) -> tuple[list[Interval], list[Interval]]:
    """Return the inputs of all layers and the outputs of the hidden ones."""
    inputs, outputs = [(x, x)], []
    for k, slope in enumerate(case.param_set.network.slopes):
        weight, bias = (t.numpy() for t in case.param_set.center[2 * k : 2 * k + 2])
        radii = [float(r) for r in case.param_set.radii[2 * k : 2 * k + 2]]
        low, high = interval_product(weight, radii[0], bias, radii[1], inputs[-1])
        outputs.append((low, high))
        inputs.append((leaky(low, slope), leaky(high, slope)))
    return inputs, outputs


def plane_maximum(case: Case, inputs: list[Interval], outputs: list[Interval], sign: float) -> float:
    """Return the highest value over the box of an upper plane of sign * logit, by a backward pass.

    For coefficients A on the outputs of a layer, A_i w h is replaced by A_i (w h_l + w' (h - h_l)), where h_l
    is the lower end of h and w' the end of w that is worse for A_i.
    """
    network = case.param_set.network
    row = sign * np.array(network.readout)
    constant, rise = 0.0, 0.0
    for k in reversed(range(network.depth)):
        weight, bias = (t.numpy() for t in case.param_set.center[2 * k : 2 * k + 2])
        radius, reach = (float(r) for r in case.param_set.radii[2 * k : 2 * k + 2])
        low = inputs[k][0]
        slope_on_weight = row[:, None] * low[None, :]
        constant += float((slope_on_weight * weight).sum() + row @ bias)
        rise += radius * np.abs(slope_on_weight).sum() + reach * np.abs(row).sum()
        worse = weight + radius * np.sign(row)[:, None]
        back = row @ worse
        if k == 0:
            break  # the input is a point: h - h_l is zero
        constant -= float(back @ low)
        z_low, z_high = outputs[k - 1]
        slope = network.slopes[k - 1]
        new = np.zeros_like(back)
        for j, (a, low_j, high_j) in enumerate(zip(back, z_low, z_high, strict=True)):
            if low_j >= 0:
                new[j] = a
            elif high_j <= 0:
                new[j] = a * slope
            elif a >= 0:  # the chord
                chord = (high_j - slope * low_j) / (high_j - low_j)
                new[j], constant = a * chord, constant + a * (high_j - chord * high_j)
            else:
                new[j] = a * (1.0 if high_j >= -low_j else slope)
        row = new
    return constant + rise


@given(cases(norm="linf"))
def test_crown_ibp_is_the_plane_written_out(case: Case) -> None:
    problem = BoundProblem(case.param_set, case.x, case.x_cf, case.sign)
    found = problem.plane.upper(case.param_set.row_radii, "linf")
    for i in range(len(case.x)):
        inputs = [(h.lower[i].numpy(), h.upper[i].numpy()) for h in problem.ranges.inputs]
        outputs = [(z.lower[i].numpy(), z.upper[i].numpy()) for z in problem.ranges.outputs]
        expected = plane_maximum(case, inputs, outputs, float(case.sign[i]))
        assert found[i].item() == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE)


@given(cases(norm="linf"))
def test_ibp_ranges_contain_the_exact_ones_and_are_exact_for_relu(case: Case) -> None:
    found = trace(case.param_set, case.x_cf)
    relu = all(slope in (0.0, 1.0) for slope in case.param_set.network.slopes)
    for i in range(len(case.x)):
        _, outputs = exact_ranges(case, case.x_cf[i].numpy())
        for mine, (low, high) in zip(found.outputs, outputs, strict=True):
            room = TOLERANCE * (1 + np.abs(low).max() + np.abs(high).max())
            assert (mine.lower[i].numpy() <= low + room).all()
            assert (mine.upper[i].numpy() >= high - room).all()
            if relu and 1.0 not in case.param_set.network.slopes:
                np.testing.assert_allclose(mine.lower[i].numpy(), low, atol=room, rtol=0)
                np.testing.assert_allclose(mine.upper[i].numpy(), high, atol=room, rtol=0)


def test_overlapping_products_are_nearly_exact() -> None:
    """Weights and inputs of both signs: the chords take off at least half of what is counted twice."""
    weight = torch.tensor([[0.05, -0.02, 0.08]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    network = Network((), (1.0,))
    param_set = ParamSet.of(network, (weight, zero), 1.0, "linf", [0.1, 0.0])
    layer = param_set.layers[0]
    for ratio in (0.5, 1.0, 2.0, 3.0, 5.0, 30.0, 70.0, 100.0, 500.0):
        up = torch.full((1, 3), ratio, dtype=torch.float64)
        h = Box(torch.full((1, 3), -1.0, dtype=torch.float64), up)
        found = at_box(layer, h, nonnegative=False)
        low, high = interval_product(
            weight.numpy(), 0.1, np.zeros(1), 0.0, (h.lower[0].numpy(), h.upper[0].numpy())
        )
        split = float((up * (weight + 0.1)).sum() + (0.1 - weight).sum())
        assert high[0] - 1e-12 <= found.upper.item() <= high[0] + 0.5 * (split - high[0]) + 1e-12
        assert found.lower.item() <= low[0] + 1e-12


LIRPA = Path(os.environ.get("VERITRACER_REFERENCE", "")) / "lirpa.npz"


@pytest.mark.skipif(not LIRPA.is_file(), reason="VERITRACER_REFERENCE names no folder with lirpa.npz")
@pytest.mark.parametrize(
    ("name", "slope", "readout"), [("standard", 0.0, (1.0,)), ("two_logits", 0.01, (-1.0, 1.0))]
)
def test_no_bound_is_looser_than_auto_lirpa_s(name: str, slope: float, readout: tuple[float, ...]) -> None:
    """The smaller of IBP and CROWN-IBP, both signs, every kappa; auto_LiRPA computed in float32."""
    stored = np.load(LIRPA)
    theta = tuple(torch.tensor(stored[f"{name}/{t}{i}"], dtype=torch.float64) for i in range(4) for t in "wb")
    x, x_cf = (torch.tensor(stored[f"{name}/{rows}"], dtype=torch.float64) for rows in ("x", "x_cf"))
    kappas = sorted(key.rpartition("/")[2] for key in stored if key.startswith(f"{name}/crown_upper/"))
    assert kappas
    for kappa in kappas:
        param_set = ParamSet.of(Network((slope,) * 3, readout), theta, float(kappa), "linf", "mean-abs")
        for sign, end in ((1.0, "upper"), (-1.0, "lower")):
            signs = torch.full((len(x),), sign, dtype=torch.float64)
            problem = BoundProblem(param_set, x, x_cf, signs)
            plane = problem.plane.upper(param_set.row_radii, "linf")
            ours = torch.minimum(plane, problem.interval).numpy()
            theirs = np.minimum(
                *(sign * stored[f"{name}/{m}_{end}/{kappa}"].ravel() for m in ("ibp", "crown"))
            )
            looser = (ours - theirs) / np.maximum(1.0, np.abs(theirs))
            assert looser.max() <= 1e-4, (kappa, end)
