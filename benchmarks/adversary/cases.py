"""Random networks, sets of models and pairs of rows, of every kind that ``certify`` takes.

Weights are drawn at scales from 1e-6 to 1e3, some layers are sparse, some units dead, some layers without a
bias; one logit or two; in float32 or in float64. ``extreme`` draws scales at which float32 loses or
overflows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import veritracer as vt
from veritracer.bounds import Box

DEPTHS, WIDEST, MOST_INPUTS = 4, 64, 32
SCALES = (-6.0, 3.0)
"""Powers of ten between which the weights of a network, or of each of its layers, are scaled."""

SIGNED = 0.3
"""The share of networks with rows of both signs: there the constraint on x binds, in [0, 1] hardly ever."""

ATTEMPTS = 12
"""Networks that are drawn at most for one case: many decide all rows alike."""

Double = torch.float64


@dataclass(frozen=True)
class Case:
    """A model, a set around it, and candidates for pairs of rows; ``recipe`` says how they were drawn."""

    module: nn.Sequential
    param_set: vt.ParamSet
    x: Tensor
    x_cf: Tensor | Box
    recipe: dict[str, Any]

    def select(self, rows: Tensor) -> tuple[Tensor, Tensor | Box]:
        """The pairs of the given rows."""
        x_cf = self.x_cf
        return self.x[rows], Box(*(end[rows] for end in x_cf)) if isinstance(x_cf, Box) else x_cf[rows]

    @property
    def ends(self) -> Box:
        """The counterfactuals as boxes, those of points without width."""
        return self.x_cf if isinstance(self.x_cf, Box) else Box(self.x_cf, self.x_cf)


def draw(seed: int, pairs: int, *, extreme: bool = False, small: bool = False) -> Case:
    """The case of that seed: the first network of a few that decides enough of its pairs apart."""
    best: tuple[int, Case] | None = None
    for attempt in range(ATTEMPTS):
        case, apart = _attempt(seed * ATTEMPTS + attempt, pairs, extreme=extreme, small=small)
        if best is None or apart > best[0]:
            best = apart, case
        if apart >= pairs // 2:
            break
    assert best is not None
    best[1].recipe["seed"] = seed
    return best[1]


def _attempt(seed: int, pairs: int, *, extreme: bool, small: bool) -> tuple[Case, int]:
    """A case, and how many of its pairs today's model decides apart."""
    rng, g = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    module, recipe = _module(rng, g, extreme=extreme, small=small)
    inputs = module[0].in_features
    spread = float(rng.choice([1.0, 4.0])) if rng.random() < SIGNED else None
    _balance(module, _rows(rng, g, 512, inputs, spread))
    x = _rows(rng, g, 6 * pairs, inputs, spread)
    x_cf = _counterfactuals(rng, g, x, spread)
    rows, apart = _apart(module, x, x_cf)
    x, x_cf = x[rows[:pairs]], x_cf[rows[:pairs]]
    param_set, about = _set(rng, module)
    recipe |= {**about, "signed": spread, "box": bool(rng.random() < 0.25)}
    if not recipe["box"]:
        return Case(module, param_set, x, x_cf, recipe), min(apart, pairs)
    width = torch.rand(x.shape, generator=g, dtype=Double) * float(10 ** rng.uniform(-4, -0.7))
    width *= torch.rand(x.shape, generator=g) < 0.7
    box = Box(_limited(x_cf - width, spread), _limited(x_cf + width, spread))
    return Case(module, param_set, x, box, recipe), min(apart, pairs)


def _module(
    rng: np.random.Generator, g: torch.Generator, *, extreme: bool, small: bool
) -> tuple[nn.Sequential, dict[str, Any]]:
    depth = int(rng.integers(1 + extreme, DEPTHS + 1))
    widest = 8 if small else WIDEST
    widths = [round(math.exp(rng.uniform(0, math.log(widest)))) for _ in range(depth - 1)]
    sizes = [round(math.exp(rng.uniform(0, math.log(MOST_INPUTS)))), *widths, int(rng.integers(1, 3))]
    slope = float(rng.choice([0.0, 0.0, 0.01, 0.1, 0.3]))
    biased = [bool(rng.random() < 0.85) for _ in range(depth)] if rng.random() < 0.5 else [True] * depth
    exponents = _exponents(rng, depth, extreme=extreme)
    sparse = float(rng.choice([0.0, 0.0, 0.0, 0.5, 0.9]))
    dead = float(rng.choice([0.0, 0.0, 0.0, 0.3, 0.7]))
    uneven = float(rng.choice([0.0, 5.0])) if extreme or rng.random() < 0.3 else 0.0
    layers: list[nn.Module] = []
    size = 0.0  # the power of ten of what comes out of the layers so far
    for k, (into, out) in enumerate(pairwise(sizes)):
        size = size + exponents[k] if rng.random() < 0.8 or extreme else exponents[k]
        layer = nn.Linear(into, out, bias=biased[k], dtype=Double)
        _fill(layer, g, sparse, dead * (k < depth - 1), uneven)
        with torch.no_grad():
            layer.weight *= 10.0 ** exponents[k]
            if biased[k]:
                layer.bias *= 0.3 * 10.0 ** min(size, 300.0)
        layers += [layer, nn.LeakyReLU(slope) if slope else nn.ReLU()]
    narrow = bool(rng.random() < 0.5) and not extreme
    module = nn.Sequential(*layers[:-1]).eval()
    recipe = {
        "sizes": sizes,
        "slope": slope,
        "biased": biased,
        "sparse": sparse,
        "dead": dead,
        "uneven": uneven,
    }
    recipe |= {"exponents": [round(e, 1) for e in exponents], "dtype": "float32" if narrow else "float64"}
    return module.float() if narrow else module, recipe


def _exponents(rng: np.random.Generator, depth: int, *, extreme: bool) -> list[float]:
    if extreme:  # a large layer and then one whose weights float32 cannot hold, or the other way round
        # In half of them only some weights are so small, and certificates survive.
        ends = [(20.0, 36.0), (-50.0, -36.0)] if rng.random() < 0.5 else [(0.0, 15.0), (-36.0, -30.0)]
        return [float(rng.uniform(*ends[k % 2])) for k in range(int(rng.integers(2)), depth + 1)][:depth]
    kind = rng.random()
    if kind < 0.6:
        return [0.0] * depth
    if kind < 0.8:
        return [float(rng.uniform(*SCALES))] * depth
    return [float(rng.uniform(*SCALES)) for _ in range(depth)]


def _fill(layer: nn.Linear, g: torch.Generator, sparse: float, dead: float, uneven: float) -> None:
    """Nothing; the layer has random parameters, of sizes that differ by up to ``uneven`` powers of ten."""
    out, into = layer.weight.shape
    weight = torch.randn(out, into, generator=g, dtype=Double) / into**0.5
    weight *= torch.rand(out, into, generator=g) >= sparse
    weight *= 10.0 ** (-uneven * torch.rand(out, into, generator=g, dtype=Double))
    gone = torch.rand(out, generator=g) < dead
    weight[gone] = -weight[gone].abs()
    bias = torch.randn(out, generator=g, dtype=Double)
    bias[gone] = -bias[gone].abs()
    with torch.no_grad():
        layer.weight.copy_(weight)
        if layer.bias is not None:
            layer.bias.copy_(bias)


def _balance(module: nn.Sequential, rows: Tensor) -> None:
    """Nothing; the last bias, where there is one, is such that half of the rows are turned down."""
    last = module[-1]
    if last.bias is None:
        return
    with torch.no_grad():
        logit = _logit(module, rows)
        middle = logit.sort().values[len(logit) // 2 - 1 : len(logit) // 2 + 1].mean()
        if bool(torch.isfinite(middle)):
            last.bias[-1] -= middle.to(last.bias)


def _logit(module: nn.Sequential, rows: Tensor) -> Tensor:
    with torch.no_grad():
        out = module(rows.to(module[0].weight.dtype)).double()
    return out[:, 0] if out.shape[1] == 1 else out[:, 1] - out[:, 0]


def _rows(rng: np.random.Generator, g: torch.Generator, n: int, d: int, spread: float | None) -> Tensor:
    """Rows in [0, 1] (or of both signs, up to ``spread``): uniform, corners, and rows with many zeros."""
    rows = torch.rand(n, d, generator=g, dtype=Double)
    kind = torch.from_numpy(rng.random(n)).unsqueeze(-1)
    rows = torch.where(kind < 0.25, rows.round(), rows)
    rows = rows if spread is None else (2 * rows - 1) * spread
    thin = rows * (torch.rand(n, d, generator=g) < 0.2)
    return torch.where((kind >= 0.25) & (kind < 0.35), thin, rows)


def _counterfactuals(rng: np.random.Generator, g: torch.Generator, x: Tensor, spread: float | None) -> Tensor:
    """For each row another one: anywhere, mirrored, with a few other values, or close by."""
    kind = torch.from_numpy(rng.random(len(x))).unsqueeze(-1)
    other = _rows(rng, g, *x.shape, spread)
    few = torch.where(torch.rand(x.shape, generator=g) < 0.25, other, x)
    near = _limited(x + 0.2 * torch.randn(x.shape, generator=g, dtype=Double), spread)
    if spread is not None:  # where a model that helps x' harms x
        opposite = -x * 4 * torch.rand(len(x), 1, generator=g, dtype=Double)
        return torch.where(kind < 0.3, other, torch.where(kind < 0.8, opposite, few))
    found = torch.where(kind < 0.45, other, 1 - x)
    found = torch.where(kind >= 0.6, few, found)
    return torch.where(kind >= 0.8, near, found)


def _limited(rows: Tensor, spread: float | None) -> Tensor:
    return rows.clamp(0, 1) if spread is None else rows


def _apart(module: nn.Sequential, x: Tensor, x_cf: Tensor) -> tuple[Tensor, int]:
    """The rows, those first that today's model decides apart from their pair; and how many these are.

    Half of them are those whose x is nearest to the other decision, compared with x'.
    """
    here, there = (_logit(module, rows) for rows in (x, x_cf))
    apart = (here > 0) != (there > 0)
    closeness = here.abs() / there.abs().clamp(min=1e-300)
    rank = torch.where(torch.arange(len(x)) % 2 == 0, closeness.argsort().argsort(), torch.arange(len(x)))
    return torch.argsort(rank + len(x) * ~apart, stable=True), int(apart.sum())


def _set(rng: np.random.Generator, module: nn.Sequential) -> tuple[vt.ParamSet, dict[str, Any]]:
    norm = str(rng.choice(["linf", "l2", "l1"]))
    rule = str(rng.choice(["mean-abs", "norm", "absolute"]))
    kappa = float(10 ** rng.uniform(-3, 0))
    radius: Any = rule
    if rule == "absolute":
        sizes = [float(p.detach().double().abs().mean()) for p in module.parameters()]
        # Absolute radii are given for each tensor, also for the bias that a layer does not have.
        means = iter(sizes)
        every = [
            next(means) if there else 0.0
            for layer in module
            if isinstance(layer, nn.Linear)
            for there in (True, layer.bias is not None)
        ]
        one = bool(rng.random() < 0.3)
        least = min((size for size in every if size > 0), default=1.0)
        radius = kappa * least if one else [kappa * size for size in every]
    return vt.ParamSet.around(module, kappa, norm, radius), {"norm": norm, "rule": rule, "kappa": kappa}
