"""The configuration of one training run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from veritracer.bounds.methods import BOUNDS
from veritracer.bounds.methods import Method as Bound
from veritracer.errors import TrainingError, message
from veritracer.models.balls import Norm
from veritracer.models.network import Network
from veritracer.options import KAPPA

Training = Literal["veritracer", "counternet", "standard"]

GeneratorKind = Literal["residual", "counternet", "neighbour"]

Initialisation = Literal["small", "torch"]

AccuracyLoss = Literal["cross-entropy", "mse", "output-cross-entropy"]

ProximityLoss = Literal["absolute", "squared"]

Target = Literal["decision", "probability"]

Passes = Literal["batch", "epoch"]

Validation = Literal["stratified", "random"]

STEPS, STEPS_PER_ROW, FEWEST_STEPS = 2500, 1.5, 400
"""Optimiser steps of a run without ``epochs``: proportional to the rows of a small table, to avoid
overfitting, up to the number that was enough for all five datasets."""

FEWEST_EPOCHS = 12
"""Minimum number of epochs of a run without ``epochs``."""


@dataclass(frozen=True)
class TrainingConfig:
    """Frozen configuration of one training run; ``VeriTraCER`` documents the fields up to ``clip_norm``.

    The remaining fields are set by recipes.

    Attributes
    ----------
    logits
        Outputs of the classifier. With 2 the decision is the larger one, and both rows of the last layer may
        move independently within the set.
    generator_slope, dropout
        Slope below zero of the generator's LeakyReLU, and the share of its hidden units that training drops.
    clamp, sample
        The output map of ``generator="counternet"``: whether numbers are clamped to [0, 1] instead of passed
        through a sigmoid, and whether categories are drawn (Gumbel) wherever training uses them instead of
        the most likely ones.
    accuracy_loss, output_weights
        ``"cross-entropy"`` of the logit, ``"mse"`` of the probability, or ``"output-cross-entropy"``: the
        cross-entropy of each of two outputs by itself, times its weight. The last two also decide the form of
        the robust loss and make the validity loss a squared error.
    proximity_loss
        Mean ``"absolute"`` change, or mean ``"squared"`` change of the counterfactual as it is shown.
    target
        What a counterfactual is pushed towards: the opposite of the ``"decision"``, or one minus the
        ``"probability"`` of the row, without gradient.
    mask_wrong
        Whether rows that are misclassified contribute a constant to the classifier's robust loss.
    weight_decay, lr_decay
        Decoupled weight decay of Adam, and the factor of the learning rate per epoch, applied before the
        first epoch too (None: three levels, see ``lr_factor``).
    passes
        ``"batch"`` updates classifier and generator in each batch. ``"epoch"`` makes one pass over all rows
        for the classifier and then another one for the generator, short last batches included; kappa and the
        robust weight stay the same within an epoch.
    joint
        Whether the generator's step also moves the classifier, through the latents and both bounds.
    regenerate, first_regenerated
        With ``passes="epoch"``, the classifier's pass uses stored counterfactuals, which are made anew every
        ``regenerate`` epochs from epoch ``first_regenerated`` (counted from 0); before, it has no robust
        loss. None makes them anew in each batch.
    ramp_kappa
        Whether kappa grows together with the robust weight; otherwise it is constant.
    detach_slopes
        Whether the planes of Simul-CROWN are constants for the gradient; see ``worst_case``.
    select_all
        Whether the best epoch is chosen among all epochs instead of those after the ramp.
    validation
        Validation rows are ``"stratified"`` and the same for every seed, or ``"random"`` and drawn by it.
    validation_fraction
        As in ``VeriTraCER``.
    """

    method: Training = "veritracer"
    bound: Bound = "simul-crown"
    kappa: float = KAPPA
    norm: Norm = "linf"
    radius: str | float = "mean-abs"
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
    logits: Literal[1, 2] = 1
    generator_slope: float = 0.0
    dropout: float = 0.0
    clamp: bool = False
    sample: bool = False
    accuracy_loss: AccuracyLoss = "cross-entropy"
    output_weights: tuple[float, float] = (1.0, 1.0)
    proximity_loss: ProximityLoss = "absolute"
    target: Target = "decision"
    mask_wrong: bool = False
    weight_decay: float = 0.0
    lr_decay: float | None = None
    passes: Passes = "batch"
    joint: bool = False
    regenerate: int | None = None
    first_regenerated: int = 0
    ramp_kappa: bool = True
    detach_slopes: bool = False
    select_all: bool = False
    validation: Validation = "stratified"
    validation_fraction: float = 0.1

    def checked(self) -> TrainingConfig:
        """Return the same value; ``TrainingError`` for a value that is unknown or makes no sense."""
        choices = {
            "method": get_args(Training),
            "bound": tuple(BOUNDS),
            "norm": get_args(Norm),
            "generator": get_args(GeneratorKind),
            "initialisation": get_args(Initialisation),
            "logits": (1, 2),
            "accuracy_loss": get_args(AccuracyLoss),
            "proximity_loss": get_args(ProximityLoss),
            "target": get_args(Target),
            "passes": get_args(Passes),
            "validation": get_args(Validation),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                expected = f"{name} {' or '.join(map(repr, known))}"
                raise TrainingError(message(expected, repr(getattr(self, name)), "choose one of these"))
        sizes = {"epochs": self.epochs, "batch_size": self.batch_size, "patience": self.patience}
        sizes |= {"regenerate": self.regenerate}
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
        self._check_combinations()
        return self

    def _check_combinations(self) -> None:
        """Refuse options that do nothing together."""
        if self.accuracy_loss == "output-cross-entropy" and self.logits == 1:
            received = "one logit with accuracy_loss='output-cross-entropy'"
            raise TrainingError(message("two outputs to weight", received, "set logits=2"))
        if self.passes == "batch" and (self.joint or self.regenerate is not None or not self.ramp_kappa):
            received = "joint, regenerate or a constant kappa with passes='batch'"
            raise TrainingError(message("separate passes for these options", received, "use passes='epoch'"))
        if not 0.0 <= self.dropout < 1.0 or not self.weight_decay >= 0.0:
            received = f"dropout {self.dropout} and weight_decay {self.weight_decay}"
            remedy = "the paper uses 0.3 and 0.05"
            raise TrainingError(message("dropout in [0, 1) and weight_decay >= 0", received, remedy))
        if self.generator != "counternet" and (self.clamp or self.sample or self.dropout):
            received = f"clamp, sample or dropout with generator={self.generator!r}"
            raise TrainingError(
                message("options of this generator", received, "choose generator='counternet'")
            )

    def network(self) -> Network:
        """Return the classifier's architecture."""
        readout = (1.0,) if self.logits == 1 else (-1.0, 1.0)
        return Network((self.slope,) * len(self.hidden), readout)

    def sizes(self, dim: int) -> tuple[int, ...]:
        """Return the widths of the classifier's layers, inputs first."""
        return (dim, *self.hidden, self.logits)

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

    def regenerates(self, epoch: int) -> bool:
        """Return whether stored counterfactuals are made anew before this epoch, counted from 0."""
        if self.regenerate is None or self.method != "veritracer":
            return False
        return epoch >= self.first_regenerated and epoch % self.regenerate == 0

    def robustness(self, progress: float) -> float:
        """Return how far κ and the robust weight are ramped up at this share of the run, from 0 to 1."""
        if self.method != "veritracer":
            return 0.0
        return min(1.0, max(0.0, (progress - self.warmup) / max(self.ramp, 1e-9)))

    def lr_factor(self, progress: float, epoch: int) -> float:
        """Return the factor of the learning rate at this share of the run, in this epoch (from 0).

        Without ``lr_decay`` it is 1, then 0.3, then 0.1.
        """
        if self.lr_decay is not None:
            return float(self.lr_decay ** (epoch + 1))
        return 1.0 if progress < 0.6 else 0.3 if progress < 0.85 else 0.1
