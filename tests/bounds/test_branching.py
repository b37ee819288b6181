"""The exact last stage against a mixed-integer program, all corners, exact arithmetic and sampled models."""

from __future__ import annotations

import itertools
import time
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from networks import Case, cases, make_case, make_valid
from veritracer.bounds import Box, branching
from veritracer.bounds.attack import attack
from veritracer.bounds.branching import Decided, decide_rows
from veritracer.bounds.methods import BoundProblem
from veritracer.bounds.relaxation import Range, Relaxation
from veritracer.errors import NotSupportedError
from veritracer.models.param_sets import ParamSet
from veritracer.proving import PRECISION

TOLERANCE = 1e-9


def decided(case: Case, x_cf: Tensor | Box, time_budget: float | None = None) -> list[Decided]:
    problem = BoundProblem(case.param_set, case.x, x_cf, case.sign, precision=PRECISION)
    return decide_rows(problem, time_budget)


def by_branching_alone(case: Case) -> list[Decided]:
    """The same without the attack before it."""
    problem = BoundProblem(case.param_set, case.x, case.x_cf, case.sign, precision=PRECISION)
    return [branching.BranchAndBound(problem, row, np.inf).run(None) for row in range(len(case.x))]


def outcome(found: Decided) -> str:
    if found.worst_logit < 0:
        assert found.counterexample is None
        return "certified"
    return "unknown" if found.counterexample is None else "broken"


def check_counterexample(case: Case, row: int, found: Decided) -> None:
    """A broken row's model is in the set, keeps the decision on x, and gives it to x_cf too."""
    assert found.counterexample is not None
    theta, x_cf = found.counterexample.theta, found.counterexample.x_cf
    assert case.param_set.contains(theta)
    logit = case.param_set.network.logit(theta, torch.stack([case.x[row], x_cf])) * case.sign[row]
    assert (logit > 0).all()


# ---------------------------------------------------------------- oracles


def program_maximum(case: Case, row: int) -> float:
    """The largest sign * logit(x_cf) over a box of weights, by HiGHS as a mixed-integer program.

    One variable for the value and one for the activation of every unit, and a binary for its sign; wherever
    the sign of an activation decides which end of a weight counts, a pair of variables for its two parts.
    """
    layers, network = case.param_set.layers, case.param_set.network
    sign, point = float(case.sign[row]), case.x_cf[row].numpy()
    rows: list[tuple[dict[int, float], float, float]] = []
    low, high, whole = [], [], []

    def variable(least: float, most: float, *, binary: bool = False) -> int:
        low.append(least)
        high.append(most)
        whole.append(int(binary))
        return len(low) - 1

    parts: list[tuple[int, int]] = []  # the variables of max(h, 0) and max(-h, 0) of the layer below
    for value in point:
        up, down = max(float(value), 0.0), max(-float(value), 0.0)
        parts.append((variable(up, up), variable(down, down)))
    coefficient, constant = {}, 0.0
    for k, layer in enumerate(layers):
        weight, bias = layer.weight.numpy(), layer.bias.numpy()
        reach, bias_reach = float(layer.weight_radius), float(layer.bias_radius)
        if k == len(layers) - 1:
            for out, times in enumerate(sign * np.array(network.readout)):
                constant += times * bias[out] + abs(times) * bias_reach
                for j, (up, down) in enumerate(parts):
                    middle, radius = times * weight[out, j], abs(times) * reach
                    coefficient[up] = coefficient.get(up, 0.0) + middle + radius
                    coefficient[down] = coefficient.get(down, 0.0) - middle + radius
            break
        slope, units = network.slopes[k], []
        size = sum(max(high[up], high[down]) for up, down in parts)
        for i in range(len(bias)):
            most = (abs(weight[i]).max() + reach) * size + abs(bias[i]) + bias_reach + 1.0
            up, down = variable(0.0, most), variable(0.0, most)
            on = variable(0.0, 1.0, binary=True)
            rows.append(({up: 1.0, on: -most}, -np.inf, 0.0))
            rows.append(({down: 1.0, on: most}, -np.inf, most))
            for side in (1.0, -1.0):  # side * z <= side * w h + reach |h| + ...
                row = {up: side, down: -side}
                for j, (p, q) in enumerate(parts):
                    row[p] = -(side * weight[i, j] + reach)
                    row[q] = -(-side * weight[i, j] + reach)
                rows.append((row, -np.inf, side * bias[i] + bias_reach))
            shrunk = variable(0.0, slope * most)
            rows.append(({shrunk: 1.0, down: -slope}, 0.0, 0.0))
            units.append((up, shrunk))
        parts = units
    matrix = np.zeros((len(rows), len(low)))
    for r, (entries, _, _) in enumerate(rows):
        for column, value in entries.items():
            matrix[r, column] = value
    price = np.zeros(len(low))
    for column, value in coefficient.items():
        price[column] = -value
    found = milp(
        price,
        constraints=LinearConstraint(matrix, [r[1] for r in rows], [r[2] for r in rows]) if rows else (),
        integrality=whole,
        bounds=Bounds(low, high),
        options={"mip_rel_gap": 0.0},
    )
    assert found.success
    return constant - float(found.fun)


def best_corner(case: Case, row: int) -> float:
    """The largest sign * logit(x_cf) over all corners of the set."""
    center, radii = case.param_set.center, case.param_set.radii
    flat = torch.cat([t.flatten() for t in center])
    reach = torch.cat([r.expand(t.shape).flatten() for t, r in zip(center, radii, strict=True)])
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=len(flat)))).double()
    corners = (flat + reach * signs).split([t.numel() for t in center], -1)
    theta = tuple(c.view(-1, *t.shape) for c, t in zip(corners, center, strict=True))
    return float((case.param_set.network.logit(theta, case.x_cf[row : row + 1]) * case.sign[row]).max())


# ---------------------------------------------------------------- against the oracles


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_behind_one_hidden_layer_the_best_corner_decides(slope: float, outputs: int, seed: int) -> None:
    kappas = (0.1, 0.5, 1.5)
    case = make_case(
        seed=seed, depth=2, width=2, inputs=2, slope=slope, outputs=outputs, kappa=kappas[seed], rows=6
    )
    for row, found in enumerate(decided(case, case.x_cf)):
        highest = best_corner(case, row)
        assert found.worst_logit >= highest - TOLERANCE
        assert (found.worst_logit < 0) == (highest < -1e-4) or abs(highest) < 1e-4
        if found.counterexample is not None:
            check_counterexample(case, row, found)
            assert highest > 0


@pytest.mark.parametrize("attacked", [True, False])
@pytest.mark.parametrize(
    ("slope", "outputs", "depth", "kappa"),
    [
        (0.0, 1, 3, 0.1),
        (0.0, 1, 4, 0.05),
        (0.0, 2, 4, 0.02),
        (0.01, 2, 3, 0.05),
        (0.3, 1, 4, 0.02),
        (0.3, 2, 3, 0.1),
        (1.0, 1, 3, 0.1),
    ],
)
def test_agrees_with_a_mixed_integer_program(
    slope: float, outputs: int, depth: int, kappa: float, attacked: bool
) -> None:
    ends = []
    for seed in range(4):
        case = make_valid(
            seed=seed, depth=depth, width=4, inputs=3, slope=slope, outputs=outputs, kappa=kappa
        )
        for row, found in enumerate(decided(case, case.x_cf) if attacked else by_branching_alone(case)):
            highest = program_maximum(case, row)
            assert found.worst_logit >= highest - 1e-6
            # HiGHS keeps its constraints to 1e-7 of its own scale, and a proof needs room for float32.
            assert (found.worst_logit < 0) == (highest < 0) or abs(highest) < 1e-4
            if found.counterexample is not None:
                check_counterexample(case, row, found)
                assert highest > -1e-6
            ends.append(outcome(found))
    assert {"certified", "broken"} <= set(ends)
    # Without a limit of time, a row stays unknown only where the worst models change the decision on x.
    assert ends.count("unknown") <= len(ends) / 4, ends


def test_agrees_with_a_mixed_integer_program_on_real_rows() -> None:
    x, y = (torch.from_numpy(np.asarray(part)).double() for part in load_breast_cancer(return_X_y=True))
    x = (x - x.amin(0)) / (x.amax(0) - x.amin(0))
    torch.manual_seed(0)
    parts = [nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()]
    module = nn.Sequential(*parts, nn.Linear(8, 1)).double()
    optimiser = torch.optim.Adam(module.parameters(), 5e-3)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(module(x)[:, 0], y).backward()
        optimiser.step()
    today = module(x)[:, 0] > 0
    accepted, declined = x[today][:16], x[~today][:16]
    case = Case(ParamSet.around(module, 0.05), declined, accepted, -torch.ones(16).double())
    ends = []
    for row, found in enumerate(decided(case, case.x_cf, time_budget=160.0)):
        ends.append(outcome(found))
        highest = program_maximum(case, row)
        if ends[-1] == "certified":
            assert highest < 0
        if ends[-1] == "broken":
            assert highest > 0
            check_counterexample(case, row, found)
    assert {"certified", "broken"} <= set(ends)
    assert ends.count("unknown") <= 1


# ---------------------------------------------------------------- soundness


@pytest.mark.parametrize("slope", [0.0, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_no_model_exceeds_the_bound(slope: float, depth: int, request: pytest.FixtureRequest) -> None:
    """Sampled models, corners and the attack; the time is short, so that unfinished bounds are seen too."""
    examples = 3000 if request.config.getoption("--long") else 8

    @settings(max_examples=examples)
    @given(cases(norm="linf", slope=slope, depth=depth), st.sampled_from([0.01, 0.1, 1.0]))
    def run(case: Case, time_budget: float) -> None:
        g = torch.Generator().manual_seed(depth)
        uniform, corners = case.param_set.sample(16, g), case.param_set.sample(16, g, corners=True)
        theta = tuple(torch.cat(pair) for pair in zip(uniform, corners, strict=True))
        seen = (case.param_set.network.logit(theta, case.x_cf) * case.sign).amax(0)
        attacked = attack(case.param_set, case.x, case.x_cf, case.sign, steps=4, restarts=1).worst_logit
        for row, found in enumerate(decided(case, case.x_cf, time_budget)):
            assert max(seen[row], attacked[row]) <= found.worst_logit + TOLERANCE
            if found.counterexample is not None:
                check_counterexample(case, row, found)

    run()


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_no_row_of_a_region_exceeds_the_bound(slope: float) -> None:
    @settings(max_examples=15)
    @given(cases(norm="linf", slope=slope, kappa=0.1))
    def run(case: Case) -> None:
        g = torch.Generator().manual_seed(1)
        reach = 0.3 * torch.rand(case.x_cf.shape, generator=g, dtype=torch.float64)
        box = Box(case.x_cf - reach, case.x_cf + reach)
        theta = case.param_set.sample(16, g, corners=True)
        ends = decided(case, box, time_budget=0.2)
        for k in range(6):
            share = torch.rand(case.x_cf.shape, generator=g, dtype=torch.float64)
            inside = torch.lerp(box.lower, box.upper, share.round() if k % 2 else share)
            seen = (case.param_set.network.logit(theta, inside) * case.sign).amax(0)
            assert all(seen[row] <= found.worst_logit + TOLERANCE for row, found in enumerate(ends))
        for row, found in enumerate(ends):
            if found.counterexample is not None:
                check_counterexample(case, row, found)
                there = found.counterexample.x_cf
                assert (box.lower[row] <= there).all()
                assert (there <= box.upper[row]).all()

    run()


def test_a_region_is_decided_with_its_rows_as_variables() -> None:
    """A linear model: the worst row of the region is a corner, and its maximum is known."""
    case = make_case(seed=5, depth=1, inputs=3, kappa=0.1, rows=8, spread=3.0)
    box = Box(case.x_cf - 0.5, case.x_cf + 0.5)
    weight, bias = case.param_set.center
    reach, bias_reach = (float(r) for r in case.param_set.radii)
    corners = torch.tensor(list(itertools.product((-0.5, 0.5), repeat=3))).double()
    for row, found in enumerate(decided(case, box)):
        points = case.x_cf[row] + corners
        logit = (points @ weight[0] + bias[0]) * case.sign[row]
        highest = float((logit + reach * points.abs().sum(-1)).max()) + bias_reach
        assert highest - TOLERANCE <= found.worst_logit <= highest + 1e-4


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31 - 1),
    slope=st.sampled_from([0.0, 0.01, 0.3]),
    outputs=st.sampled_from([1, 2]),
    scale=st.sampled_from([1e-8, 1.0, 1e8]),
)
def test_the_dual_bound_is_not_below_its_exact_value(
    seed: int, slope: float, outputs: int, scale: float
) -> None:
    """Rational arithmetic on the set's own numbers, at any multipliers, with terms that nearly cancel."""
    case = make_case(seed=seed, depth=3, width=3, inputs=2, slope=slope, outputs=outputs, kappa=0.3, rows=1)
    sign, point = float(case.sign[0]), case.x_cf[0].numpy()
    relaxation = Relaxation.of(case.param_set, Range(point, point), sign)
    ranges = relaxation.propagate([np.zeros(link.low.shape[1]) for link in relaxation.links])
    assert ranges is not None
    g = np.random.default_rng(seed)
    multipliers = [scale * g.normal(size=len(near.low)) for near in ranges]
    # The first layer's own range, exactly.
    inputs = [Fraction(v) for v in point.tolist()]
    for unit, (low, high) in enumerate(zip(ranges[0].low, ranges[0].high, strict=True)):
        ends = exact_ends(case.param_set, 0, unit, inputs)
        assert Fraction(low) <= ends[0]
        assert ends[1] <= Fraction(high)
    assert Fraction(relaxation.logit(ranges, multipliers)) >= exact_dual(case, sign, ranges, multipliers)


def exact_ends(param_set: ParamSet, k: int, unit: int, h: list[Fraction]) -> tuple[Fraction, Fraction]:
    """The range of one unit at given activations."""
    layer = param_set.layers[k]
    weights = [Fraction(w) for w in layer.weight[unit].tolist()]
    middle = sum((w * v for w, v in zip(weights, h, strict=True)), Fraction(float(layer.bias[unit])))
    reach = Fraction(float(layer.weight_radius)) * sum(map(abs, h)) + Fraction(float(layer.bias_radius))
    return middle - reach, middle + reach


def exact_dual(
    case: Case,
    sign: float,
    ranges: list[Range],
    multipliers: list[np.ndarray[tuple[int], np.dtype[np.float64]]],
) -> Fraction:
    """D(y) in rational arithmetic, from the set's own numbers, for two hidden layers."""
    param_set, total = case.param_set, Fraction(0)
    outputs = [Fraction(sign) * Fraction(r) for r in param_set.network.readout]
    for at in (1, 0):
        layer, slope = param_set.layers[at + 1], Fraction(param_set.network.slopes[at])
        reach = Fraction(float(layer.weight_radius))
        y = outputs
        total += sum((t * Fraction(float(b)) for t, b in zip(y, layer.bias, strict=True)), Fraction(0))
        total += sum(map(abs, y)) * Fraction(float(layer.bias_radius))
        own = [Fraction(0)] * 3 if at == 0 else [Fraction(v) for v in multipliers[at].tolist()]
        for j in range(len(own)):
            pulled = sum(
                (t * Fraction(float(w)) for t, w in zip(y, layer.weight[:, j], strict=True)), Fraction(0)
            )
            spread = reach * sum(map(abs, y))
            above, below = pulled + spread - own[j], slope * (spread - pulled) + own[j]
            ends = [Fraction(float(ranges[at].low[j])), Fraction(float(ranges[at].high[j]))]
            if ends[0] <= 0 <= ends[1]:
                ends.append(Fraction(0))
            total += max(above * z if z >= 0 else below * -z for z in ends)
        outputs = own
    return total


# ---------------------------------------------------------------- limits


def test_a_row_without_time_is_unknown_with_a_bound() -> None:
    case = make_valid(seed=3, depth=4, width=8, inputs=6, kappa=0.05, rows=16)
    problem = BoundProblem(case.param_set, case.x, case.x_cf, case.sign, precision=PRECISION)
    whole = decide_rows(problem)
    for row, slow in enumerate(whole):
        quick = branching.BranchAndBound(problem, row, 0.0).run(None)
        assert (quick.programs, quick.counterexample) == (0, None)
        assert slow.worst_logit <= quick.worst_logit + TOLERANCE < np.inf
    assert any(found.programs for found in whole)


def test_rows_whose_turn_does_not_come_are_unknown() -> None:
    case = make_valid(seed=3, depth=4, width=8, inputs=6, kappa=0.05, rows=16)
    assert decided(case, case.x_cf, time_budget=0.0) == [Decided(np.inf, None, 0)] * 16


def test_the_time_is_shared_by_all_rows() -> None:
    """A row that could use all of it leaves the others theirs."""
    case = make_valid(seed=3, depth=4, width=16, inputs=6, kappa=0.05, rows=16)
    start = time.monotonic()
    found = decided(case, case.x_cf, time_budget=3.0)
    assert time.monotonic() - start < 30.0
    assert all(each.worst_logit < np.inf for each in found)


def test_callers_may_have_turned_gradients_off() -> None:
    case = make_valid(seed=3, depth=3, width=4, inputs=3, kappa=0.1)
    expected = [outcome(found) for found in decided(case, case.x_cf)]
    with torch.no_grad():
        assert [outcome(found) for found in decided(case, case.x_cf)] == expected
    assert "broken" in expected


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_other_norms_are_refused(norm: str) -> None:
    case = make_case(seed=0, norm=norm)
    with pytest.raises(NotSupportedError, match="norm 'linf' for effort='exact'"):
        decided(case, case.x_cf)
