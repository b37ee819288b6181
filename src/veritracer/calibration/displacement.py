"""How far one update moved a model, tensor by tensor, and the kappa that would have covered it.

``displacements_of`` measures updates that really happened: models that were deployed one after the other.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from veritracer.errors import ModelFileError, listing, message
from veritracer.model import VeriTraCER
from veritracer.network import Network, from_module
from veritracer.param_sets import ParamSet
from veritracer.saved import load


@dataclass(frozen=True)
class Displacement:
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


def measure(name: str, param_set: ParamSet, models: Sequence[nn.Module]) -> Displacement:
    """How far the models, one after the other, are from the centre of the set.

    >>> from torch import nn
    >>> old, new = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> for layer, value in ((old, 2.0), (new, 3.0)):
    ...     for tensor in layer.parameters():
    ...         _ = nn.init.constant_(tensor, value)
    >>> measure("an update", ParamSet.around(old), [new])
    Displacement(name='an update', tensors=(0.5, 0.5), needed=0.5)
    """
    each = [param_set.at(1.0).displacements(model) for model in models]
    tensors = tuple(max(column) for column in zip(*each, strict=True))
    needed = max(tensors)
    # A quotient is rounded, and the product with it may fall short of the distance by a digit.
    while math.isfinite(needed) and not all(param_set.at(needed).contains(model) for model in models):
        needed = math.nextafter(needed, math.inf)
    return Displacement(name, tensors, needed)


def tensor_names(network: Network) -> list[str]:
    """W1, b1, W2, b2, ...: the order of ``Displacement.tensors``."""
    return [f"{kind}{layer + 1}" for layer in range(network.depth) for kind in "Wb"]


# ---------------------------------------------------------------- updates that really happened


def displacements_of(
    history: Sequence[VeriTraCER | str | os.PathLike[str]], model: VeriTraCER, horizon: int
) -> list[Displacement]:
    """How far each model of the history was left behind within the next ``horizon`` updates.

    The history is in the order of deployment, before ``model``. Promises are made by the earlier model, so
    its weights are the measure.
    """
    names = [_name(each, k) for k, each in enumerate(history, 1)] + ["today's model"]
    models = [*(each if isinstance(each, VeriTraCER) else load(each) for each in history), model]
    _check(names, models)
    if len(models) <= horizon:
        received = f"{len(history)} before today's"
        remedy = f"give at least {horizon} earlier models, or simulate updates"
        raise ModelFileError(message("a history of models", received, remedy))
    return [
        measure(
            f"{names[k]} to {names[k + horizon]}",
            ParamSet.around(models[k].classifier_, 1.0, model.norm, model.radius),
            [later.classifier_ for later in models[k + 1 : k + 1 + horizon]],
        )
        for k in range(len(models) - horizon)
    ]


def _name(model: VeriTraCER | str | os.PathLike[str], position: int) -> str:
    return f"model {position}" if isinstance(model, VeriTraCER) else os.fspath(model)


def _check(names: Sequence[str], models: Sequence[VeriTraCER]) -> None:
    """Refuse, by name, models that are in no set around today's, however close their weights."""
    today = models[-1]
    questions = (
        ("encoding", lambda m: m.encoding_.digest),
        ("architecture", lambda m: _architecture(m)),
        ("threshold", lambda m: float(m.threshold_)),
    )
    for what, of in questions:
        others = [name for name, each in zip(names, models, strict=True) if of(each) != of(today)]
        if others:
            remedy = "leave them out: no kappa covers a change of it"
            received = f"another one in {listing(others)}"
            raise ModelFileError(message(f"models with today's {what}", received, remedy))


def _architecture(model: VeriTraCER) -> object:
    network, theta = from_module(model.classifier_)
    return network, [tuple(t.shape) for t in theta]
