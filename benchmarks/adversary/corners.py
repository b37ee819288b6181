"""Every vertex of the set of a tiny network, in exact rational arithmetic.

All numbers are ``fractions.Fraction``: parameters, radii and rows are the floats that the library has, and
nothing is rounded after that. For a box the vertices are the corners; for l1 balls, the product of the
vertices of each tensor's cross-polytope. Every vertex is a model of the set, so a certificate that one of
them breaks is false.

Where the largest s·f(x') over the set is taken at a vertex, more is known: no bound may be below it.

- *Boxes*: if f is monotone in each parameter while all others are fixed, moving the parameters of a best
  model to an end one after the other loses nothing, and ends at a corner. That is so where no hidden unit
  feeds two hidden units: without a hidden layer, with one (of any width), and with more if all but the
  first have one unit. In other networks a unit can reach the logit with both signs, a parameter may be best
  strictly inside of its interval, and the corners are attacks, not the optimum.
- *l1*: the entries of a tensor share its budget, and the best model may split it. Without a hidden layer f
  is linear in each tensor, and where all hidden layers have one unit every tensor enters by one number that
  is linear in it, in which f is monotone: there a vertex is best. In all other networks the vertices are
  attacks.
- The condition "x keeps its decision" cuts the set, and its vertices are then elsewhere: for conditional
  certificates the vertices that keep it are attacks. l2 balls have no vertices and are left to ``attack``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import veritracer as vt
from benchmarks.adversary.running import Line, Part, Result, total

NETWORKS, AT_ONCE, ROWS = 2_400, 12, 4
ATTEMPTS = 6
"""Networks that are drawn at most until one has certified rows."""

MOST = 4_100
"""Vertices of a set at most."""

Tensor = np.ndarray  # of Fractions


class Tiny(NamedTuple):
    """A network with few parameters, a set around it, and what is known of the set's vertices."""

    module: nn.Sequential
    param_set: vt.ParamSet
    sizes: list[int]
    optimal: bool


def draw(seed: int) -> tuple[Tiny, torch.Tensor, torch.Tensor]:
    """A network with pairs of rows; the first of a few that has enough certified ones."""
    for attempt in range(ATTEMPTS):
        tiny = _network(seed * ATTEMPTS + attempt)
        x, x_cf, certified = _pairs(tiny, seed * ATTEMPTS + attempt)
        if certified >= ROWS // 2:
            break
    return tiny, x, x_cf


def _network(seed: int) -> Tiny:
    """A network whose set has few enough vertices, and that turns about half of all rows down."""
    rng = np.random.default_rng(seed)
    while True:
        depth = int(rng.choice([1, 2, 2, 3, 3]))
        sizes = [int(rng.integers(1, 5)), *rng.integers(1, 4, depth - 1).tolist(), int(rng.choice([1, 1, 2]))]
        biased = [bool(rng.random() < 0.8) for _ in range(depth)]
        norm = str(rng.choice(["linf", "linf", "l1"]))
        slope = float(rng.choice([0.0, 0.0, 0.01, 0.25]))
        counts = [
            n for (i, o), b in zip(pairwise(sizes), biased, strict=True) for n in (i * o, o if b else 0)
        ]
        vertices = 2 ** sum(counts) if norm == "linf" else int(np.prod([2 * n for n in counts if n]))
        if vertices <= MOST:
            break
    layers: list[nn.Module] = []
    g = torch.Generator().manual_seed(seed)
    for (into, out), bias in zip(pairwise(sizes), biased, strict=True):
        layer = nn.Linear(into, out, bias=bias, dtype=torch.float64)
        with torch.no_grad():
            for p in layer.parameters():
                p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64))
        layers += [layer, nn.LeakyReLU(slope) if slope else nn.ReLU()]
    module = nn.Sequential(*layers[:-1]).eval()
    if biased[-1]:
        with torch.no_grad():
            out = module(torch.rand(64, sizes[0], generator=g, dtype=torch.float64))
            layers[-2].bias -= out.median(0).values  # type: ignore[operator]
    if rng.random() < 0.5:
        module = module.float()
    hidden = sizes[1:-1]
    optimal = all(n == 1 for n in hidden[1 if norm == "linf" else 0 :])
    kappa = float(10 ** rng.uniform(-3, -0.2))
    rule: Any = str(rng.choice(["mean-abs", "norm"])) if rng.random() < 0.8 else kappa
    return Tiny(module, vt.ParamSet.around(module, kappa, norm, rule), sizes, optimal)


def balls(tiny: Tiny) -> list[list[Tensor]]:
    """For each tensor all vertices of its ball, as arrays of fractions; one where it cannot move."""
    found = []
    for tensor, radius in zip(tiny.param_set.center, tiny.param_set.radii, strict=True):
        center, reach = _exact(tensor.numpy()), Fraction(float(radius))
        if reach == 0:
            found.append([center])
        elif tiny.param_set.norm == "linf":
            signs = product((-1, 1), repeat=center.size)
            found.append([center + reach * np.array(s, dtype=object).reshape(center.shape) for s in signs])
        else:
            found.append([_moved(center, k, s * reach) for k in range(center.size) for s in (-1, 1)])
    return found


def _moved(center: Tensor, k: int, by: Fraction) -> Tensor:
    tensor = center.copy()
    tensor.flat[k] += by
    return tensor


def logits(tiny: Tiny, vertices: Sequence[Sequence[Tensor]], row: Tensor) -> list[Fraction]:
    """f(row) at every vertex of the set, in the order of ``product(*vertices)``."""
    network = tiny.param_set.network
    slopes = [Fraction(slope) for slope in network.slopes]
    reached = [row]  # what each choice of vertices so far makes of the row
    for k in range(len(vertices) // 2):
        weights, biases = vertices[2 * k], vertices[2 * k + 1]
        reached = [w.dot(h) + b for h in reached for w in weights for b in biases]
        if k < len(slopes):
            reached = [np.where(h > 0, h, slopes[k] * h) for h in reached]
    return [h[0] if len(h) == 1 else h[1] - h[0] for h in reached]


def _exact(values: np.ndarray) -> Tensor:
    return np.array([Fraction(float(v)) for v in values.flat], dtype=object).reshape(values.shape)


def run(job: int) -> Result:
    """Some networks, each with a few pairs of rows."""
    sums: Result = {"violations": []}
    for seed in range(job * AT_ONCE, (job + 1) * AT_ONCE):
        for name, value in check(seed).items():
            sums[name] = sums.get(name, [] if name == "violations" else 0) + value
    return sums


def check(seed: int) -> Result:
    """One network: certificates and bounds against all vertices."""
    tiny, x, x_cf = draw(seed)
    found = vt.certify(tiny.module, x, x_cf, tiny.param_set)
    result: Result = {"networks": 1, "optimal": int(tiny.optimal), "violations": []}
    result |= dict.fromkeys(("rows", "certified", "conditional", "radii", "vertices", "models", "close"), 0)
    result["vertices"] = _count(balls(tiny))
    for row in range(len(x)):
        sign = 1 if found.favourable[row] else -1
        exact = [_exact(v[row].numpy()) for v in (x, x_cf)]
        sets = [("kappa", tiny, bool(found.certified[row]), bool(found.conditional[row]))]
        assert found.radius is not None
        if found.radius[row] > 0:
            there = tiny._replace(param_set=tiny.param_set.at(float(found.radius[row])))
            plain = vt.certify(tiny.module, x[row], x_cf[row], there.param_set, radius=False)
            sets.append(("radius", there, True, bool(plain.conditional[0] or not plain.certified[0])))
        result["rows"] += 1
        result["certified"] += int(found.certified[row])
        result["conditional"] += int(found.certified[row] and found.conditional[row])
        result["radii"] += len(sets) - 1
        for what, at, certified, conditional in sets:
            bound = float(found.worst_logit[row]) if what == "kappa" and not conditional else None
            wrong, close = _judge(at, exact, sign, certified, conditional, bound, float(found.slack[row]))
            result["models"] += _count(balls(at))
            result["close"] += int(close)
            if wrong:
                about = {"seed": seed, "row": row, "at": what, "kappa": at.param_set.kappa}
                result["violations"].append(
                    {**about, "sizes": tiny.sizes, "norm": at.param_set.norm, **wrong}
                )
    return result


def _judge(
    tiny: Tiny,
    rows: list[Tensor],
    sign: int,
    certified: bool,
    conditional: bool,
    bound: float | None,
    slack: float,
) -> tuple[dict[str, Any], bool]:
    """What is wrong with a row, if anything; and whether its bound is as good as the exact maximum."""
    vertices = balls(tiny)
    there = [sign * value for value in logits(tiny, vertices, rows[1])]
    if certified and conditional:
        # Zero is the unfavourable decision: a model with s = +1 keeps x only above it.
        keeps = [value > 0 if sign > 0 else value <= 0 for value in logits(tiny, vertices, rows[0])]
        there = [value for value, kept in zip(there, keeps, strict=True) if kept]
    if not there:
        return {}, False
    highest = max(there)
    if certified and (highest > 0 or (highest == 0 and sign < 0)):
        return {"what": "a vertex breaks it", "logit": float(highest)}, False
    if bound is None or not np.isfinite(bound):
        return {}, False
    if Fraction(bound) < highest:
        return {"what": "a vertex exceeds the bound", "logit": float(highest), "bound": bound}, False
    return {}, bool(tiny.optimal and Fraction(bound) - highest <= 2 * Fraction(slack))


def _pairs(tiny: Tiny, seed: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Pairs of rows, of both signs in every third network; and how many are certified: half at most."""
    g = torch.Generator().manual_seed(seed + 1)
    x, x_cf = torch.rand(2, 40, tiny.sizes[0], generator=g, dtype=torch.float64)
    if seed % 3 == 0:
        x, x_cf = 4 * x - 2, 4 * x_cf - 2
    if seed % 2 == 0:
        x, x_cf = x.round(), x_cf.round()
    found = vt.certify(tiny.module, x, x_cf, tiny.param_set, radius=False)
    wanted = [found.certified, found.valid & ~found.certified, ~found.valid]
    some = [np.flatnonzero(rows)[: ROWS // 2 if k < 2 else ROWS] for k, rows in enumerate(wanted)]
    rows = np.concatenate(some)[:ROWS]
    return x[rows], x_cf[rows], len(some[0])


def _count(vertices: Sequence[Sequence[Tensor]]) -> int:
    return int(np.prod([len(some) for some in vertices]))


def lines(results: Sequence[Result]) -> list[Line]:
    """One line."""
    names = ("networks", "optimal", "rows", "certified", "conditional", "radii", "close")
    n = {name: total(results, name) for name in names}
    tried = f"vertices of the sets of {n['networks']:,} tiny networks × {ROWS} rows, in rational arithmetic"
    seen = (
        f"{n['certified']:,} of {n['rows']:,} rows certified ({n['conditional']:,} conditionally), "
        f"{n['radii']:,} again at their radius; a vertex is the optimum in {n['optimal']:,} "
        "networks, elsewhere an attack; "
        f"{n['close']:,} bounds equal the exact maximum up to their slack"
    )
    broken = sum(len(result["violations"]) for result in results)
    return [Line(tried, total(results, "models"), broken, seen)]


PART = Part("corners", NETWORKS // AT_ONCE, 2, run, lines)
