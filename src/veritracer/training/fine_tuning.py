"""Continue the training of a model on new rows, with an optional projection after each step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from veritracer.errors import TrainingError, message
from veritracer.models.network import Network, Theta, from_module, threshold_logit, to_module
from veritracer.options import FINE_TUNING_EPOCHS

FINE_TUNE_LR_FACTOR = 0.2
"""Learning rate of fine-tuning, as a share of that of training."""


def fine_tune(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    project: Callable[[Theta], Theta] | None = None,
    penalty: Callable[[Theta], Tensor] | None = None,
    epochs: int = FINE_TUNING_EPOCHS,
    learning_rate: float = FINE_TUNE_LR_FACTOR * 2e-3,
    batch_size: int = 128,
    threshold: float = 0.5,
    random_state: int = 0,
) -> nn.Sequential:
    """Return a copy of a torch MLP after some epochs of Adam on the cross-entropy of encoded rows.

    ``y`` holds labels 0 and 1. ``project`` is applied to the parameters after every step:
    ``ParamSet.project`` keeps the model in its set. ``penalty``, a differentiable function of the parameters,
    is added to the loss of every step. The sign of the logit stays the decision at ``threshold``. Precision
    and device are the module's own.
    """
    _check_labels(x, y)
    network, theta = from_module(module)
    theta = tuple(t.detach().clone() for t in theta)
    x, y = x.to(theta[0]), y.to(theta[0])
    order = torch.Generator().manual_seed(random_state)
    optimiser = torch.optim.Adam(_learned(network, theta), lr=learning_rate)
    offset = threshold_logit(threshold)
    for _ in range(epochs):
        shuffled = torch.randperm(len(x), generator=order).to(x.device)
        for batch in torch.split(shuffled, batch_size):
            logit = network.logit(theta, x[batch]) + offset
            loss = nn.functional.binary_cross_entropy_with_logits(logit, y[batch])
            if penalty is not None:
                loss = loss + penalty(theta)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if project is not None:
                _overwrite(theta, project(tuple(t.detach() for t in theta)))
    return to_module(network, tuple(t.detach() for t in theta)).eval()


def _learned(network: Network, theta: Theta) -> list[Tensor]:
    """Return the tensors that training may change: all except the zeros in place of missing biases."""
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
