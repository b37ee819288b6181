"""Affine functions of the parameters, one for each row, with slopes kept as outer products.

A backward pass meets layer k with a coefficient ``rows[k]`` on its outputs and an input ``cols[k]``. The
slope of the bound is their outer product for the weight matrix, and ``rows[k]`` for the bias. Entrywise norms
of outer products are products of norms, so the worst case over the set needs no tensor of the size rows ×
parameters.

In every norm the support point of a ball along an outer product is an outer product too: signs ⊗ signs, unit
vector ⊗ unit vector, or a single entry. So the model at which a plane is highest differs from today's by a
matrix of rank one in each layer, and evaluating it costs little more than a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.models import balls
from veritracer.models.balls import DUAL, Norm
from veritracer.models.network import activate, affine
from veritracer.models.param_sets import ParamSet


class Affine(NamedTuple):
    """``theta -> center + Σ_k <rows[k] ⊗ cols[k], W_k - W_k⁰> + <rows[k], b_k - b_k⁰>`` for each row.

    ``center`` (..., n) is the value at today's parameters, ``rows[k]`` has shape (..., n, out_k) and
    ``cols[k]`` (..., n, in_k).
    """

    center: Tensor
    rows: tuple[Tensor, ...]
    cols: tuple[Tensor, ...]

    def upper(self, radii: Sequence[Tensor], norm: Norm) -> Tensor:
        """Return the maximum over the set, (..., n): center + Σ_i radius_i ‖slope_i‖_q. Exact.

        The radii broadcast with ``center``: one for each row, or ``ParamSet.row_radii`` for all of them.
        """
        q = DUAL[norm]
        total = self.center
        for k, (row, col) in enumerate(zip(self.rows, self.cols, strict=True)):
            reach = radii[2 * k] * balls.norm(col, q) + radii[2 * k + 1]
            total = total + balls.norm(row, q) * reach
        return total

    def detach(self) -> Affine:
        """Return the same function without gradients."""
        return self._map(Tensor.detach)

    def shift(self, amount: Tensor) -> Affine:
        """Return the same function plus ``amount``."""
        return self._replace(center=self.center + amount)

    def flatten(self) -> Affine:
        """Return the same functions with all batch dimensions folded into one."""
        return Affine(
            self.center.flatten(),
            tuple(r.flatten(0, -2) for r in self.rows),
            tuple(c.flatten(0, -2) for c in self.cols),
        )

    def select(self, index: Tensor) -> Affine:
        """Return the functions of the given rows, of a flat ``Affine``."""
        return self._map(lambda t: t[index])

    def dense(self) -> Tensor:
        """Return the slopes as one matrix (n, number of parameters), of a flat ``Affine``; for oracles."""
        parts = []
        for row, col in zip(self.rows, self.cols, strict=True):
            parts += [(row.unsqueeze(-1) * col.unsqueeze(-2)).flatten(1), row]
        return torch.cat(parts, -1)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Affine:
        return Affine(function(self.center), tuple(map(function, self.rows)), tuple(map(function, self.cols)))


def logit_at_worst(param_set: ParamSet, plane: Affine, x: Tensor) -> Tensor:
    """Return the logit (..., n) of each row of ``x`` under the model at which that row's plane is highest.

    If that model still gives ``x`` today's decision, the constraint of Simul-CROWN does not bind, and its
    bound is the plane's own maximum: the other plane is not needed.
    """
    network, radii, norm = param_set.network, param_set.row_radii, param_set.norm
    h = x
    for k, (weight, bias) in enumerate(network.layers(param_set.center)):
        row, col = (
            balls.support_point(t.flatten(0, -2), norm).view_as(t) for t in (plane.rows[k], plane.cols[k])
        )
        reach = radii[2 * k] * (col * h).sum(-1) + radii[2 * k + 1]
        z = affine(h, weight, bias) + row * reach.unsqueeze(-1)
        h = activate(z, network.slopes[k]) if k < len(network.slopes) else z
    return network.read(h)


def keeps_decision(param_set: ParamSet, plane: Affine, x: Tensor, sign: Tensor) -> Tensor:
    """Return whether the model at which each row's plane is highest decides ``x`` as today, (..., n)."""
    with torch.no_grad():
        return logit_at_worst(param_set, plane.detach(), x) * sign >= 0
