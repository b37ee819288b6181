"""A linear model next to a row that behaves like the network there, after LIME (Ribeiro et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.encoding import Encoding

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
    """Which columns (d,) belong to a one-hot group or say that a cell is missing: no number to be moved."""
    fixed = torch.zeros(encoding.dim, dtype=torch.bool)
    for block in encoding.blocks:
        fixed[block.flags] = True
        if block.group is not None:
            fixed[block.group] = True
    return fixed


def draw(
    logit: Callable[[Tensor], Tensor], x_train: Tensor, fixed: Tensor, size: int, rng: torch.Generator
) -> Sample:
    """Random points with the training rows' means and deviations; categories as some training row has them.

    LIME draws anew for each row, but around the mean of the table and not around the row, so that one
    sample can serve all of them.
    """
    mean, spread = x_train.mean(0), x_train.std(0, correction=0)
    mean = torch.where(fixed, torch.zeros_like(mean), mean)
    scale = torch.where(fixed | (spread <= 0), torch.ones_like(spread), spread)
    z = torch.randn(size, x_train.shape[1], generator=rng, dtype=x_train.dtype)
    z = torch.where(spread <= 0, torch.zeros_like(z), z)
    somebody = x_train[torch.randint(len(x_train), (size,), generator=rng)]
    z = torch.where(fixed, somebody, z)
    with torch.no_grad():
        return Sample(z, logit(mean + scale * z), mean, scale)


def fit(sample: Sample, x: Tensor, at_x: Tensor) -> Linear:
    """The ridge regression of the sampled logits for each row of ``x`` (n, d), weighted by nearness to it.

    Solves (Σ w (z − z̄)(z − z̄)ᵀ + I) c = Σ w (z − z̄) logit, where w falls with the distance between z and
    the row as LIME's kernel does, and goes back from scaled coordinates to those of ``x``. The row itself,
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
