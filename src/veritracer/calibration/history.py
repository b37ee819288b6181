"""Updates that really happened: the models that were deployed one after the other."""

from __future__ import annotations

import os
from collections.abc import Sequence

from veritracer.calibration.moves import Move, measure
from veritracer.errors import ModelFileError, listing, message
from veritracer.model import VeriTraCER
from veritracer.network import from_module
from veritracer.param_sets import ParamSet
from veritracer.saved import load


def moves_of(
    history: Sequence[VeriTraCER | str | os.PathLike[str]], model: VeriTraCER, horizon: int
) -> list[Move]:
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
    """Nothing; refuses, by name, models that are in no set around today's, however close their weights."""
    today = models[-1]
    questions = (
        ("encoding", lambda m: m.encoding_.digest),
        ("architecture", lambda m: _architecture(m)),
        ("threshold", lambda m: float(m.threshold)),
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
