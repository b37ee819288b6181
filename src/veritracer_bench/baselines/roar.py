"""ROAR: recourse against the worst shift of a linear model's weights (Upadhyay, Joshi, Lakkaraju 2021).

Its linear model approximates the network near a row, after LIME (Ribeiro et al. 2016).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from veritracer.encoding import Encoding
from veritracer.metrics import MOVED
from veritracer_bench.baselines.explainer import Baseline, Options

KERNEL_WIDTH = 0.75
"""Width of LIME's kernel, in units of the square root of the number of columns."""

RIDGE = 1.0


class Linear(NamedTuple):
    """A linear model for each row: ``slope`` (n, d) and ``offset`` (n,)."""

    slope: Tensor
    offset: Tensor


class Sample(NamedTuple):
    """Points (s, d) in LIME's scaled coordinates, their logits (s,), and the scale: x = mean + scale * z."""

    z: Tensor
    logit: Tensor
    mean: Tensor
    scale: Tensor


def category_columns(encoding: Encoding) -> Tensor:
    """Return which columns (d,) belong to a one-hot group or mark a missing cell: they are not numbers."""
    fixed = torch.zeros(encoding.dim, dtype=torch.bool)
    for block in encoding.blocks:
        fixed[block.flags] = True
        if block.group is not None:
            fixed[block.group] = True
    return fixed


def draw(
    logit: Callable[[Tensor], Tensor],
    x_train: Tensor,
    fixed: Tensor,
    size: int,
    rng: torch.Generator,
    *,
    independent: bool = False,
) -> Sample:
    """Draw points with the training rows' means and deviations, and categories as in some training row.

    LIME draws anew for each row, but around the mean of the table and not around the row, so that one sample
    can serve all of them. With ``independent`` every column of a category is drawn by its own frequency.
    """
    mean, spread = x_train.mean(0), x_train.std(0, correction=0)
    mean = torch.where(fixed, torch.zeros_like(mean), mean)
    scale = torch.where(fixed | (spread <= 0), torch.ones_like(spread), spread)
    z = torch.randn(size, x_train.shape[1], generator=rng, dtype=x_train.dtype)
    z = torch.where(spread <= 0, torch.zeros_like(z), z)
    if independent:
        chosen = torch.rand(z.shape, generator=rng, dtype=z.dtype) < x_train.mean(0)
        categories = chosen.to(z)
    else:
        categories = x_train[torch.randint(len(x_train), (size,), generator=rng)]
    z = torch.where(fixed, categories, z)
    with torch.no_grad():
        return Sample(z, logit(mean + scale * z), mean, scale)


def fit(sample: Sample, x: Tensor, at_x: Tensor) -> Linear:
    """Fit a ridge regression to the sampled logits for each row of ``x`` (n, d), weighted by nearness.

    Solves (Σ w (z − z̄)(z − z̄)ᵀ + I) c = Σ w (z − z̄) logit, where w decreases with the distance between z
    and the row like LIME's kernel, and converts from scaled coordinates to those of ``x``. The row itself,
    with its logit ``at_x`` (n,) and weight 1, is one of the points, so that an outlier is not alone.
    """
    z, logit = sample.z, sample.logit
    here = (x - sample.mean) / sample.scale
    width = KERNEL_WIDTH * z.shape[1] ** 0.5
    weight = torch.exp(-0.5 * (torch.cdist(here, z) / width).square())  # (n, s)
    total = 1.0 + weight.sum(-1, keepdim=True)
    middle, level = (here + weight @ z) / total, (at_x + weight @ logit) / total[:, 0]
    # One column at a time: all products at once would be a tensor (n, s, d).
    moments = torch.stack([weight @ (z * z[:, i : i + 1]) for i in range(z.shape[1])], 1)
    moments = moments + here.unsqueeze(-1) * here.unsqueeze(-2)
    moments = moments - total.unsqueeze(-1) * middle.unsqueeze(-1) * middle.unsqueeze(-2)
    moments = moments + RIDGE * torch.eye(z.shape[1], dtype=z.dtype)
    right = (
        here * at_x.unsqueeze(-1) + weight @ (z * logit.unsqueeze(-1)) - total * middle * level.unsqueeze(-1)
    )
    slope = torch.linalg.solve(moments, right) / sample.scale
    centre = sample.mean + sample.scale * middle
    return Linear(slope, level - (slope * centre).sum(-1))


# ---------------------------------------------------------------- the worst shift


LAMBDAS = (0.0005, 0.001, 0.005, *(0.01 + 0.05 * i for i in range(22)))
"""Costs that are tried for each row, as in the authors' code."""

ROUNDED = 4
"""Decimals of LIME's coefficients, in the authors' code."""

MOMENTUM, SQUARES = 0.9, 0.999
"""Adam's decay of the mean gradient and of its square."""


@dataclass(frozen=True)
class RoarOptions(Options):
    """Hyperparameters of ROAR.

    Attributes
    ----------
    delta_max
        Maximum change of every weight of the surrogate, and of its offset.
    cost
        λ, the weight of distance. ``None`` tries ``LAMBDAS`` upwards and takes, for each row, the last one
        before the classifier stops agreeing that the decision has changed: the authors' own heuristic.
    learning_rate, tolerance, steps
        Of Adam; a row is finished when its loss changes by at most ``tolerance``, or after ``steps``.
    samples
        Number of points to which a local surrogate is fitted.
    clip
        Whether a column stays in [0, 1], the range of the training rows.
        NOTE[paper]: ROAR knows no range, but outside of it no row can be decoded.
    recipe
        ``"paper"`` computes what the code of the paper reproduced here does: no range, no limit of steps,
        rounded coefficients, categories that are drawn column by column and move until they are put back,
        a second local model for the final search, and the λ with the least cost up to the first failure.
    """

    delta_max: float = 0.1
    cost: float | None = None
    learning_rate: float = 1e-3
    tolerance: float = 1e-4
    steps: int = 3000
    samples: int = 5000
    clip: bool = True
    recipe: Literal["paper"] | None = None


class Problem(NamedTuple):
    """p problems side by side: rows (p, d), wanted decisions, linear models, and the weight of distance."""

    start: Tensor
    goal: Tensor
    slope: Tensor
    offset: Tensor
    cost: Tensor

    def select(self, keep: Tensor | slice) -> Problem:
        """Return some of the problems."""
        return Problem(*(part[keep] for part in self))

    def objective(self, point: Tensor, delta_max: float) -> tuple[Tensor, Tensor]:
        """Return the worst model's cross-entropy plus the cost, (p,), and the gradient (p, d)."""
        margin = self.goal * ((point * self.slope).sum(-1) + self.offset)
        short = delta_max * (point.abs().sum(-1) + 1.0) - margin
        move = point - self.start
        loss = softplus(short) + self.cost * move.abs().sum(-1)
        uphill = delta_max * point.sign() - self.goal.unsqueeze(-1) * self.slope
        gradient = torch.sigmoid(short).unsqueeze(-1) * uphill + self.cost.unsqueeze(-1) * move.sign()
        return loss, gradient


class Roar(Baseline[RoarOptions]):
    """Minimise over x′ the worst loss(w + δ, x′) over ‖δ‖∞ ≤ delta_max, plus λ·‖x′ − x‖₁.

    w is a linear model of the network's logit near x (LIME); a linear network is its own. With s = ±1 the
    wanted decision, the worst case is exact: s·(w + δ)(x′, 1) is at least s·w(x′, 1) − delta_max·(‖x′‖₁ + 1),
    so that no linear program is solved. Categories stay unchanged, as in the paper reproduced here.
    """

    name = "roar"
    options = RoarOptions

    def prepare(self) -> None:
        """Draw the sample to which local models are fitted."""
        self.fixed = category_columns(self.encoding)
        self.paper = self.config.recipe == "paper"
        rng, size = self.stream(), self.config.samples
        self.samples = [
            draw(self.logit, self.x_train, self.fixed, size, rng, independent=self.paper)
            for _ in range(2 if self.paper else 1)
        ]

    def search(self, x: Tensor) -> Tensor:
        """Optimise all λ and all rows at once, then choose the λ of each row."""
        goal = self.goal(x)
        costs = x.new_tensor(LAMBDAS if self.config.cost is None else [self.config.cost])
        found = self._found(x, goal, self._local(x, self.samples[0]), costs)
        if not self.paper:
            return found[_last_before_failure(self.reached(found, goal)), torch.arange(len(x))]
        moved = (found - x).abs()
        chosen = _least_until_failure(
            self.reached(found, goal), moved.mean(-1) + (moved > MOVED).double().mean(-1)
        )
        again = self._found(x, goal, self._local(x, self.samples[1]), costs[chosen].unsqueeze(0))
        return again[0]

    def _found(self, x: Tensor, goal: Tensor, local: Linear, costs: Tensor) -> Tensor:
        """Return where the optimisation ends for each λ and row, (λ, n, d); λ may differ between rows."""
        every = (len(costs), len(x))
        problem = Problem(
            x.expand(*every, -1).reshape(-1, x.shape[1]),
            goal.expand(every).flatten(),
            local.slope.expand(*every, -1).reshape(-1, x.shape[1]),
            local.offset.expand(every).flatten(),
            (costs if costs.dim() == 2 else costs.unsqueeze(-1)).expand(every).flatten(),
        )
        found = self._optimise(problem).view(*every, -1)
        return torch.where(self.fixed, x, found)

    def _local(self, x: Tensor, sample: Sample) -> Linear:
        """Return the linear model of each row; columns that must not move have no slope."""
        if self.network.depth == 1:
            origin = torch.zeros_like(x[:1])
            slope = (self.logit(torch.eye(x.shape[1], dtype=x.dtype)) - self.logit(origin)).expand_as(x)
            local = Linear(slope, self.logit(origin).expand(len(x)))
        else:
            local = fit(sample, x, self.logit(x))
        here = torch.where(self.fixed, local.slope * x, torch.zeros_like(x)).sum(-1)
        slope = torch.where(self.fixed, 0.0, local.slope)
        return Linear(slope.round(decimals=ROUNDED) if self.paper else slope, local.offset + here)

    def _optimise(self, problem: Problem) -> Tensor:
        """Return the point at which Adam stops in each problem, (p, d); finished problems leave the batch.

        Written out because an optimiser of torch cannot drop rows, and most finish long before the last.
        """
        config = self.config
        rest, active = problem.start.clone(), torch.arange(len(problem.start))
        point, before = problem.start.clone(), torch.ones_like(problem.goal)
        mean, square = torch.zeros_like(point), torch.zeros_like(point)
        for step in count(1) if self.paper else range(1, config.steps + 1):
            loss, gradient = problem.objective(point, config.delta_max)
            gradient = gradient if self.paper else torch.where(self.fixed, 0.0, gradient)
            mean = torch.lerp(mean, gradient, 1 - MOMENTUM)
            square = torch.lerp(square, gradient.square(), 1 - SQUARES)
            scale = (square / (1 - SQUARES**step)).sqrt() + 1e-8
            point = point - config.learning_rate / (1 - MOMENTUM**step) * mean / scale
            point = point.clamp(0.0, 1.0) if config.clip and not self.paper else point
            rest[active] = point
            moving = (loss - before).abs() > config.tolerance
            if not bool(moving.any()):
                break
            keep = moving.nonzero()[:, 0] if not bool(moving.all()) else slice(None)
            problem, active, before = problem.select(keep), active[keep], loss[keep]
            point, mean, square = point[keep], mean[keep], square[keep]
        return rest


def _last_before_failure(reached: Tensor) -> Tensor:
    """Return for each row the last λ before the first failure after a success; the last one if none fails."""
    ever = reached.cumsum(0) > 0
    failed = ever & ~reached
    last = len(reached) - 1
    return torch.where(failed.any(0), failed.int().argmax(0) - 1, last)


def _least_until_failure(reached: Tensor, cost: Tensor) -> Tensor:
    """Return for each row the cheapest λ up to the first failure after a success, that one included.

    NOTE[paper]: this is the rule of the authors' code, which usually takes the failing λ.
    """
    failed = (reached.cumsum(0) > 0) & ~reached
    tried = failed.cumsum(0) - failed.int() == 0
    return torch.where(tried, cost, torch.inf).argmin(0)
