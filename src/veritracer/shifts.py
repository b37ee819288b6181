"""The paper's three ways in which tomorrow's model differs: another seed, fewer rows, new data.

Each function leaves what it is given as it is and returns new models. All of them keep the encoding of
today's model: with another scaler the same person would be another row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from veritracer.errors import TrainingError, message
from veritracer.model import VeriTraCER
from veritracer.network import Network, Theta, from_module, to_module

MODELS = 10
"""Models, or trials, in each of the paper's experiments."""

LEFT_OUT = 0.01
"""The share of the training rows that each model of the leave-out experiment does not see."""

FINE_TUNING_EPOCHS = 20

SLOWER = 0.2
"""Fine-tuning runs at this share of the learning rate of training."""


class Shifted(NamedTuple):
    """A model of the original data, and the classifier that it became on the shifted data."""

    original: VeriTraCER
    module: nn.Sequential


def random_initialisation(
    model: VeriTraCER, X: Any, y: ArrayLike, *, models: int = MODELS
) -> list[VeriTraCER]:
    """Models that differ in their seed alone, 0, 1, ..., trained in one batched run."""
    return model.fit_many(X, y, range(models))


def leave_out(
    model: VeriTraCER,
    X: Any,
    y: ArrayLike,
    *,
    models: int = MODELS,
    share: float = LEFT_OUT,
    random_state: int = 0,
) -> list[VeriTraCER]:
    """Models with one seed, that of ``model``, each of which misses another random ``share`` of the rows.

    At least one row is left out. The rows are drawn anew for each model, without replacement inside of it.
    """
    rng = np.random.default_rng(random_state)
    rows = len(X)
    count = max(1, round(share * rows))
    dropped = [np.sort(rng.choice(rows, count, replace=False)) for _ in range(models)]
    seed = 0 if model.random_state is None else int(model.random_state)
    return model.fit_many(X, y, [seed] * models, leave_out=dropped)


def distribution_shift(
    model: VeriTraCER,
    original: tuple[Any, ArrayLike],
    shifted: tuple[Any, ArrayLike],
    *,
    trials: int = MODELS,
    epochs: int = FINE_TUNING_EPOCHS,
    slower: float = SLOWER,
) -> list[Shifted]:
    """Models of the original rows, each beside what fine-tuning on the shifted rows makes of its classifier.

    NOTE[paper]: the paper fine-tunes with the loss that the model was trained with; here every method's
    classifier is fine-tuned by cross-entropy, so that all methods face the same kind of update. Values
    of the shifted rows beyond the original range are clipped by the encoding, which warns of them.
    """
    trained = model.fit_many(*original, range(trials))
    X, y = shifted
    x = trained[0].encoding_.encode(X)
    labels = torch.as_tensor(trained[0].schema_.labels(y), dtype=x.dtype)
    return [
        Shifted(
            each,
            fine_tune(
                each.classifier_,
                x,
                labels,
                epochs=epochs,
                learning_rate=slower * each.learning_rate,
                batch_size=each.batch_size,
                threshold=each.threshold,
                random_state=seed,
            ),
        )
        for seed, each in enumerate(trained)
    ]


def fine_tune(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    epochs: int = FINE_TUNING_EPOCHS,
    learning_rate: float = SLOWER * 2e-3,
    batch_size: int = 128,
    threshold: float = 0.5,
    random_state: int = 0,
    project: Callable[[Theta], Theta] | None = None,
) -> nn.Sequential:
    """A copy of a torch MLP after some epochs of Adam on the cross-entropy of encoded rows and 0/1 labels.

    ``project`` is applied to the parameters after every step: ``ParamSet.project`` keeps the model in its
    set. The logit's sign stays the decision at ``threshold``. Precision and device are the module's own.
    """
    _check_labels(x, y)
    network, theta = from_module(module)
    theta = tuple(t.detach().clone() for t in theta)
    x, y = x.to(theta[0]), y.to(theta[0])
    order = torch.Generator().manual_seed(random_state)
    optimiser = torch.optim.Adam(_learned(network, theta), lr=learning_rate)
    offset = math.log(threshold / (1.0 - threshold))
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(x), generator=order).to(x.device), batch_size):
            logit = network.logit(theta, x[batch]) + offset
            loss = nn.functional.binary_cross_entropy_with_logits(logit, y[batch])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if project is not None:
                _overwrite(theta, project(tuple(t.detach() for t in theta)))
    return to_module(network, tuple(t.detach() for t in theta)).eval()


def _learned(network: Network, theta: Theta) -> list[Tensor]:
    """The tensors that training may move: a bias that a layer does not have is none of them."""
    has = [there for biased in network.biased for there in (True, biased)]
    return [t.requires_grad_() for t, there in zip(theta, has, strict=True) if there]


@torch.no_grad()
def _overwrite(theta: Theta, new: Theta) -> None:
    for old, value in zip(theta, new, strict=True):
        old.copy_(value)


def _check_labels(x: Tensor, y: Tensor) -> None:
    if y.shape != x.shape[:1] or not len(x):
        received = f"{tuple(y.shape)} labels for {tuple(x.shape)} rows"
        raise TrainingError(message("rows (n, d) and a label for each, (n,)", received, "encode both"))
    if not bool(((y == 0) | (y == 1)).all()):
        remedy = "use schema.labels(y), which gives 1 for favourable"
        raise TrainingError(message("labels 0 and 1", "others", remedy))
