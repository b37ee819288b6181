"""Updates that might happen: today's model, retrained again and again.

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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn

from veritracer.calibration.displacement import Displacement, measure
from veritracer.errors import DataError, message
from veritracer.fine_tuning import EPOCHS, fine_tune
from veritracer.model import VeriTraCER
from veritracer.network import to_module
from veritracer.preparing import prepare
from veritracer.training import train

Kind = Literal["fine-tune", "next", "seeds", "bootstrap"]
WARM: tuple[Kind, ...] = ("fine-tune", "next")

Watch = Callable[[str, float], None]
"""Is told what is being done, and which share of it is."""


class Table(NamedTuple):
    """Raw rows and their raw labels."""

    X: Any
    y: Any


@dataclass(frozen=True)
class Updates:
    """What kind of updates to simulate.

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
    epochs: int = EPOCHS
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
        """Whether training goes on from today's model instead of from scratch."""
        return self.kind in WARM


def simulated(
    model: VeriTraCER, table: Table, updates: Updates, watch: Watch | None = None
) -> list[Displacement]:
    """How far each simulated update of ``model`` moves it; ``table`` is what it is retrained on."""
    param_set = model.param_set(1.0)
    chains = _warm(model, table, updates) if updates.is_warm else _cold(model, table, updates, watch)
    found = []
    for run, chain in enumerate(chains, 1):
        found.append(measure(f"run {run}", param_set, chain))
        if watch is not None:
            watch("simulating updates", run / updates.runs)
    return found


def _warm(model: VeriTraCER, table: Table, updates: Updates) -> Iterator[list[nn.Sequential]]:
    """Chains of models that were trained on, each step on another bootstrap sample."""
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
    """Chains of models that were trained from scratch, all in one batched run."""
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
    """Classifiers that were trained as ``model`` was, with its encoding, one for each seed."""
    prepared = prepare(
        table.X,
        table.y,
        schema=model.schema_,
        sample_weight=None,
        class_weight=model.class_weight,
        validation_fraction=model.validation_fraction,
        leave_out=[[] for _ in seeds],
        device=model.device,
        encoding=model.encoding_,
        times=times,
    )
    trained = train(
        model.training_config(),
        prepared.encoding,
        prepared.rows,
        prepared.validation,
        seeds,
        on_epoch=None if watch is None else lambda e: watch("training from scratch", e.epoch / e.epochs),
    )
    double = [tuple(t.detach().to("cpu", torch.float64) for t in theta) for theta in trained.theta]
    return [to_module(trained.network, theta).eval() for theta in double]


def _times(rows: int, models: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """How often a bootstrap sample has each row, (models, rows)."""
    return rng.multinomial(rows, np.full(rows, 1 / rows), size=models).astype(np.float64)
