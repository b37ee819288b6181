"""The model of the set at which a plane is highest, and what that model says of other rows.

The slope of a plane on a tensor is an outer product, so in every norm the support point of the ball is
one as well: signs ⊗ signs, unit vector ⊗ unit vector, or a single entry. Such a model differs from
today's by a matrix of rank one in each layer, and evaluating it costs little more than a forward pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from veritracer import balls
from veritracer.bounds.affine import Affine
from veritracer.network import activate, affine
from veritracer.param_sets import ParamSet


def logit_at_worst(param_set: ParamSet, plane: Affine, x: Tensor) -> Tensor:
    """The logit of each row of ``x`` under the model at which that row's plane is highest, (..., n).

    If that model still gives ``x`` today's decision, then the constraint of Simul-CROWN does not bind, and
    its bound is the plane's own maximum: the other plane need not be looked at.
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
    """Whether the model at which each row's plane is highest decides ``x`` as today, (..., n)."""
    with torch.no_grad():
        return logit_at_worst(param_set, plane.detach(), x) * sign >= 0
