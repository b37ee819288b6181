"""Measure how far updates move a model, tensor by tensor, and the kappa that would have covered them.

``displacements_of`` measures updates that really happened: models that were deployed one after the other.
``simulated`` makes updates that might happen: today's model, retrained again and again.

``fine-tune``
    Training goes on from today's model, on a bootstrap sample of the rows at hand.
``next``
    The same on the next period's rows.
``seeds``
    Training from scratch on the rows at hand, with other seeds.
``bootstrap``
    Training from scratch with today's seed, on bootstrap samples of the rows at hand.

All of them keep today's encoding, without which no distance between models means anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from veritracer.errors import DataError, ModelFileError, listing, message
from veritracer.estimator import VeriTraCER
from veritracer.models.network import Network, from_module, to_module
from veritracer.models.param_sets import ParamSet
from veritracer.options import FINE_TUNING_EPOCHS
from veritracer.persistence import load
from veritracer.training.algorithm import train
from veritracer.training.data import prepare
from veritracer.training.fine_tuning import fine_tune

Kind = Literal["fine-tune", "next", "seeds", "bootstrap"]
WARM: tuple[Kind, ...] = ("fine-tune", "next")

Watch = Callable[[str, float], None]
"""Receives the present stage, and the share of it that is done."""


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
    """Measure how far models, one after the other, are from the centre of the set.

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
    """Return W1, b1, W2, b2, ...: the names of ``Displacement.tensors``."""
    return [f"{kind}{layer + 1}" for layer in range(network.depth) for kind in "Wb"]


# ---------------------------------------------------------------- updates that really happened


def displacements_of(
    history: Sequence[VeriTraCER | str | os.PathLike[str]], model: VeriTraCER, horizon: int
) -> list[Displacement]:
    """Measure how far each model of a history was left behind within the next ``horizon`` updates.

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
            ParamSet.around(models[k].classifier_, 1.0, model.norm, model.settings_.radius),
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


class Table(NamedTuple):
    """Raw rows and their raw labels."""

    X: Any
    y: Any


@dataclass(frozen=True)
class Updates:
    """The kind of updates to simulate.

    Attributes
    ----------
    kind
        See above.
    runs
        How many.
    horizon
        How many updates in a row a promise has to outlive.
    epochs, learning_rate
        Of fine-tuning; None is a fifth of the learning rate that the model was trained with.
    random_state
        Seed of everything random.
    """

    kind: Kind
    runs: int = 30
    horizon: int = 1
    epochs: int = FINE_TUNING_EPOCHS
    learning_rate: float | None = None
    random_state: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            known = ", ".join(map(repr, get_args(Kind)))
            raise DataError(message(f"a kind of update: {known}", repr(self.kind), "choose one of these"))
        for name in ("runs", "horizon", "epochs"):
            if getattr(self, name) < 1:
                raise DataError(message(f"{name} of at least 1", str(getattr(self, name)), "give more"))
        if self.learning_rate is not None and not 0.0 < self.learning_rate < float("inf"):
            received = f"{self.learning_rate:g}"
            raise DataError(message("a learning rate above 0", received, "leave it out for the usual one"))

    @property
    def is_warm(self) -> bool:
        """Return whether training continues from today's model instead of from scratch."""
        return self.kind in WARM


def simulated(
    model: VeriTraCER, table: Table, updates: Updates, watch: Watch | None = None
) -> list[Displacement]:
    """Measure how far each simulated update of ``model`` on ``table`` moves it."""
    param_set = model.param_set(1.0)
    chains = _warm(model, table, updates) if updates.is_warm else _cold(model, table, updates, watch)
    found = []
    for run, chain in enumerate(chains, 1):
        found.append(measure(f"run {run}", param_set, chain))
        if watch is not None:
            watch("simulating updates", run / updates.runs)
    return found


def _warm(model: VeriTraCER, table: Table, updates: Updates) -> Iterator[list[nn.Sequential]]:
    """Train chains of models, each step on another bootstrap sample."""
    x = model.encoding_.encode(table.X)
    y = torch.as_tensor(model.schema_.labels(table.y), dtype=x.dtype)
    options = model.fine_tuning(epochs=updates.epochs)
    if updates.learning_rate is not None:
        options["learning_rate"] = updates.learning_rate
    for run in range(updates.runs):
        rng = np.random.default_rng([updates.random_state, run])
        chain: list[nn.Sequential] = []
        for _ in range(updates.horizon):
            drawn = torch.from_numpy(rng.integers(0, len(x), len(x)))
            options["random_state"] = int(rng.integers(2**31))
            chain.append(
                fine_tune(
                    chain[-1] if chain else model.classifier_,
                    x[drawn],
                    y[drawn],
                    **options,
                )
            )
        yield chain


def _cold(
    model: VeriTraCER, table: Table, updates: Updates, watch: Watch | None
) -> Iterator[list[nn.Sequential]]:
    """Train chains of models from scratch, all in one batched run."""
    count = updates.runs * updates.horizon
    rng = np.random.default_rng(updates.random_state)
    own = 0 if model.random_state is None else int(model.random_state)
    seeds, times = [own] * count, None
    if updates.kind == "seeds":
        seeds = [own + 1 + k for k in range(count)]
    else:
        times = _times(len(table.X), count, rng)
    modules = from_scratch(model, table, seeds, times=times, watch=watch)
    for start in range(0, count, updates.horizon):
        yield modules[start : start + updates.horizon]


def from_scratch(
    model: VeriTraCER,
    table: Table,
    seeds: Sequence[int],
    *,
    times: ArrayLike | None = None,
    watch: Watch | None = None,
) -> list[nn.Sequential]:
    """Train classifiers as ``model`` was trained, with its encoding, one for each seed."""
    config = model.settings_
    prepared = prepare(
        table.X,
        table.y,
        schema=model.schema_,
        sample_weight=None,
        class_weight=model.class_weight,
        validation_fraction=config.validation_fraction,
        validation_seeds=seeds if config.validation == "random" else None,
        leave_out=[[] for _ in seeds],
        device=model.device,
        encoding=model.encoding_,
        times=times,
    )
    trained = train(
        config,
        prepared.encoding,
        prepared.rows,
        prepared.validation,
        seeds,
        on_epoch=None if watch is None else lambda e: watch("training from scratch", e.epoch / e.epochs),
    )
    return [to_module(trained.network, theta).eval() for theta in trained.theta]


def _times(rows: int, models: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return how often each bootstrap sample has each row, (models, rows)."""
    return rng.multinomial(rows, np.full(rows, 1 / rows), size=models).astype(np.float64)
