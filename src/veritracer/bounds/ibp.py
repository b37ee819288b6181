"""Interval bound propagation over sets of models (the paper's section 4.2.1): ranges, layer by layer."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from veritracer.bounds.intervals import Box, at_box, at_point, output_upper
from veritracer.param_sets import ParamSet


class Bound(NamedTuple):
    """An upper bound of ``sign * logit(x_cf)`` for each row, over a set of models.

    ``multiplier`` is the weight λ that the proof puts on "x keeps its decision": where it is 0, the
    bound holds for every model of the set; above 0, for those that still decide ``x`` as today.
    """

    worst_logit: Tensor
    multiplier: Tensor


class Trace(NamedTuple):
    """Ranges along the network.

    ``inputs[k]`` goes into layer k, ``outputs[k]`` comes out of it, before the activation. The last layer
    has no entry in ``outputs``: how to read it depends on the sign.
    """

    inputs: tuple[Box, ...]
    outputs: tuple[Box, ...]

    def select(self, rows: Tensor) -> Trace:
        """The ranges of the given rows."""
        return Trace(tuple(h.select(rows) for h in self.inputs), tuple(z.select(rows) for z in self.outputs))


def trace(param_set: ParamSet, x: Tensor | Box) -> Trace:
    """Ranges of every hidden layer over the set, at a point or over a box of inputs.

    At a point the first layer is exact. The box behind a ReLU is nonnegative, which the next product uses.
    """
    layers = param_set.layers
    h = x if isinstance(x, Box) else Box(x, x)
    inputs, outputs = [h], []
    for k, slope in enumerate(param_set.network.slopes):
        if k == 0 and isinstance(x, Tensor):
            z = at_point(layers[0], x)
        else:
            z = at_box(layers[k], h, nonnegative=k > 0 and param_set.network.slopes[k - 1] == 0.0)
        h = z.activate(slope)
        outputs.append(z)
        inputs.append(h)
    return Trace(tuple(inputs), tuple(outputs))


def coefficients(param_set: ParamSet, sign: Tensor) -> Tensor:
    """What the backward pass starts from: ``sign`` times the readout, (..., n, outputs)."""
    return sign.unsqueeze(-1) * sign.new_tensor(param_set.network.readout)


def ibp_upper(param_set: ParamSet, ranges: Trace, sign: Tensor) -> Tensor:
    """Upper bound of ``sign * logit`` from the ranges in front of the last layer, (..., n)."""
    behind_relu = param_set.network.slopes[-1:] == (0.0,)
    last, h = param_set.layers[-1], ranges.inputs[-1]
    return output_upper(last, h, coefficients(param_set, sign), nonnegative=behind_relu)
