"""How far one update moved a model, tensor by tensor, and the kappa that would have covered it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from veritracer.network import Network
from veritracer.param_sets import ParamSet


@dataclass(frozen=True)
class Move:
    """One update, or several in a row that one promise has to outlive.

    Attributes
    ----------
    name
        Which update it is.
    tensors
        How far each tensor moved, in units of its radius at kappa = 1: W1, b1, W2, ... Of several updates
        the farthest. Infinite where a tensor moved that has no radius.
    needed
        The smallest kappa whose set has the new model: the largest of them.
    """

    name: str
    tensors: tuple[float, ...]
    needed: float


def measure(name: str, param_set: ParamSet, models: Sequence[nn.Module]) -> Move:
    """How far the models, one after the other, are from the centre of the set.

    >>> from torch import nn
    >>> old, new = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> for layer, value in ((old, 2.0), (new, 3.0)):
    ...     for tensor in layer.parameters():
    ...         _ = nn.init.constant_(tensor, value)
    >>> measure("an update", ParamSet.around(old), [new])
    Move(name='an update', tensors=(0.5, 0.5), needed=0.5)
    """
    each = [param_set.at(1.0).displacements(model) for model in models]
    tensors = tuple(max(column) for column in zip(*each, strict=True))
    needed = max(tensors)
    # A quotient is rounded, and the product with it may fall short of the distance by a digit.
    while math.isfinite(needed) and not all(param_set.at(needed).contains(model) for model in models):
        needed = math.nextafter(needed, math.inf)
    return Move(name, tensors, needed)


def tensor_names(network: Network) -> list[str]:
    """W1, b1, W2, b2, ...: the order of ``Move.tensors``."""
    return [f"{kind}{layer + 1}" for layer in range(network.depth) for kind in "Wb"]
