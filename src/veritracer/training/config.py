"""The configuration of one training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from veritracer.bounds.methods import BOUNDS
from veritracer.bounds.methods import Method as Bound
from veritracer.errors import TrainingError, message
from veritracer.models.balls import Norm
from veritracer.models.network import Network
from veritracer.models.param_sets import RadiusRule

Training = Literal["veritracer", "counternet", "standard"]

GeneratorKind = Literal["residual", "counternet", "neighbour"]

Initialisation = Literal["small", "torch"]

STEPS, STEPS_PER_ROW, FEWEST_STEPS = 2500, 1.5, 400
"""Optimiser steps of a run without ``epochs``: proportional to the rows of a small table, to avoid
overfitting, up to the number that was enough for all five datasets."""

FEWEST_EPOCHS = 12
"""Minimum number of epochs of a run without ``epochs``."""


@dataclass(frozen=True)
class TrainingConfig:
    """Frozen configuration of one training run; ``VeriTraCER`` documents each parameter."""

    method: Training = "veritracer"
    bound: Bound = "simul-crown"
    kappa: float = 0.2
    norm: Norm = "linf"
    radius: RadiusRule | float = "mean-abs"
    generator: GeneratorKind = "residual"
    hidden: tuple[int, ...] = (100, 10, 10)
    generator_hidden: tuple[int, ...] = (100,)
    slope: float = 0.0
    weight_accuracy: float = 15.0
    weight_robust: float = 6.0
    weight_proximity: float = 16.0
    weight_validity: float = 4.0
    initialisation: Initialisation = "torch"
    learning_rate: float = 2e-3
    batch_size: int = 128
    epochs: int | None = None
    warmup: float = 0.15
    ramp: float = 0.3
    patience: int | None = None
    clip_norm: float = 10.0
    threshold_logit: float = 0.0

    def checked(self) -> TrainingConfig:
        """Return the same value; ``TrainingError`` for a value that is unknown or makes no sense."""
        choices = {
            "method": get_args(Training),
            "bound": tuple(BOUNDS),
            "norm": get_args(Norm),
            "generator": get_args(GeneratorKind),
            "initialisation": get_args(Initialisation),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                expected = f"{name} {' or '.join(map(repr, known))}"
                raise TrainingError(message(expected, repr(getattr(self, name)), "choose one of these"))
        sizes = {"epochs": self.epochs, "batch_size": self.batch_size, "patience": self.patience}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise TrainingError(message(f"{name} of at least 1", repr(size), "give a larger one"))
        if not self.hidden or min((*self.hidden, *self.generator_hidden, 1)) < 1:
            received = f"{self.hidden} and {self.generator_hidden}"
            raise TrainingError(message("hidden layers of at least one unit", received, "give their widths"))
        if not 0.0 < self.learning_rate < float("inf") or not self.clip_norm > 0.0:
            received = f"{self.learning_rate} and {self.clip_norm}"
            raise TrainingError(
                message("learning_rate and clip_norm above 0", received, "give positive numbers")
            )
        return self

    def network(self) -> Network:
        """Return the classifier's architecture."""
        return Network((self.slope,) * len(self.hidden))

    def latent_width(self, dim: int) -> int:
        """Return the number of latents of the generator: the classifier's last two hidden layers."""
        return sum((dim, *self.hidden)[-2:])

    @property
    def has_generator(self) -> bool:
        """Return whether training uses counterfactuals."""
        return self.method != "standard"

    @property
    def learns_generator(self) -> bool:
        """Return whether Algorithm 1 runs its line 5; a fixed generator has nothing to learn."""
        return self.has_generator and self.generator != "neighbour"

    def epochs_for(self, rows: int) -> int:
        """Return the number of epochs for a number of training rows."""
        if self.epochs is not None:
            return self.epochs
        batches = max(1, rows // min(self.batch_size, rows))
        steps = min(STEPS, round(FEWEST_STEPS + STEPS_PER_ROW * rows))
        return max(FEWEST_EPOCHS, -(-steps // batches))

    def robustness(self, progress: float) -> float:
        """Return how far κ and the robust weight are ramped up at this share of the run, from 0 to 1."""
        if self.method != "veritracer":
            return 0.0
        return min(1.0, max(0.0, (progress - self.warmup) / max(self.ramp, 1e-9)))

    def lr_factor(self, progress: float) -> float:
        """Return the factor of the learning rate at this share of the run: 1, then 0.3, then 0.1."""
        return 1.0 if progress < 0.6 else 0.3 if progress < 0.85 else 0.1
