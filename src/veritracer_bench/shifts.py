"""The paper's three ways in which a later model differs: another seed, fewer rows, new data.

Each function leaves its arguments unchanged and returns new models. All of them keep the encoding of today's
model: with another scaler the same person would be another row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from veritracer.options import FINE_TUNING_EPOCHS
from veritracer.training.fine_tuning import FINE_TUNE_LR_FACTOR, fine_tune

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER

MODELS = 10
"""Number of models, or trials, in each of the paper's experiments."""

LEFT_OUT = 0.01
"""Share of the training rows that each model of the leave-out experiment does not see."""


class Shifted(NamedTuple):
    """A model of the original data, and its classifier after fine-tuning on the shifted data."""

    original: VeriTraCER
    module: nn.Sequential


def random_initialisation(
    model: VeriTraCER, X: Any, y: ArrayLike, *, models: int = MODELS
) -> list[VeriTraCER]:
    """Train models that differ only in their seed, 0, 1, ..., in one batched run."""
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
    """Train models with the seed of ``model``, each without another random ``share`` of the rows.

    At least one row is left out. The rows are drawn anew for each model, without replacement.
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
    slower: float = FINE_TUNE_LR_FACTOR,
) -> list[Shifted]:
    """Train models on the original rows, and fine-tune each classifier on the shifted rows.

    NOTE[paper]: the paper fine-tunes with the loss that the model was trained with; here every method's
    classifier is fine-tuned by cross-entropy, so that all methods face the same kind of update. Values of the
    shifted rows beyond the original range are clipped by the encoding, which warns of them.
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
                **each.fine_tuning(
                    epochs=epochs, learning_rate=slower * each.settings_.learning_rate, random_state=seed
                ),
            ),
        )
        for seed, each in enumerate(trained)
    ]
