"""Algorithm 1: train a classifier and its counterfactual generator together against a set of models.

All models of a call are trained side by side, over parameters with a leading dimension: ten seeds are one
run. Each model has its own random stream (its start, the order of its rows), its own row weights, its own
gradient clipping and its own best epoch, so that it equals the run alone.

``monitor`` shows a progress bar and turns Ctrl-C into a stop after the current batch.
``TrainingRun`` prepares a run (panels and threshold) and ``TrainingResult`` holds its models.
"""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import FrameType
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from sklearn.base import clone
from torch import Tensor

from veritracer.bounds.methods import BOUNDS
from veritracer.encoding import Encoding
from veritracer.errors import TrainingError, TrainingWarning, message
from veritracer.models.network import Network, Theta, rate_threshold, threshold_logit
from veritracer.models.param_sets import ParamSet
from veritracer.threads import one_thread
from veritracer.training.config import TrainingConfig
from veritracer.training.data import Rows, TrainingData
from veritracer.training.distillation import Distillation, Teacher, sparse_attack, swapped_rows
from veritracer.training.generator import (
    Context,
    Generator,
    forward_with_context,
    init_parameters,
    make_generator,
    project_straight_through,
)
from veritracer.training.losses import (
    Adam,
    accuracy_loss,
    proximity_loss,
    robust_loss,
    validity_loss,
    weighted_mean,
)
from veritracer.training.panel import Labelled, Panel


class Epoch(NamedTuple):
    """Measurements of one epoch, one number for each model; the last six are on validation rows."""

    epoch: int
    epochs: int
    kappa: float
    seconds: float
    loss: Tensor
    generator_loss: Tensor
    accuracy: Tensor
    validity: Tensor
    certified: Tensor
    proximity: Tensor
    log_loss: Tensor
    objective: Tensor


class StopReason(Enum):
    """Why training stopped; ``TrainedModels.stopped`` is the reason as a phrase."""

    DONE = auto()
    NO_PROGRESS = auto()
    INTERRUPTED = auto()


@dataclass(frozen=True)
class TrainedModels:
    """Classifier and generator of each model, with the epoch they are from and the records of all epochs."""

    network: Network
    generator: Generator | None
    theta: list[Theta]
    generator_theta: list[Theta]
    best_epoch: list[int]
    history: list[list[dict[str, float]]]
    stop_reason: StopReason
    stopped: str
    threshold_logit: float


class _State(NamedTuple):
    """Parameters with a leading dimension for the models."""

    theta: list[Tensor]
    generator_theta: list[Tensor]


def train(
    config: TrainingConfig,
    encoding: Encoding,
    rows: Rows,
    validation: Rows,
    seeds: Sequence[int],
    *,
    teacher: Teacher | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> TrainedModels:
    """Return a classifier and a generator for each seed, from the best epoch of each.

    The best epoch is the one with the lowest validation objective once κ is fully ramped up: the training
    objective, on rows that were not trained on, with counterfactuals on the grid. A ``teacher`` is made from
    the same ``rows``; without one this is exactly Algorithm 1.
    """
    with one_thread(len(seeds) == 1 and rows.x.device.type == "cpu"):
        return _Training(config, encoding, rows, validation, seeds, teacher).run(on_epoch, interrupted)


class _Training:
    """One run; its changing parts are ``state`` and the optimisers."""

    def __init__(
        self,
        config: TrainingConfig,
        encoding: Encoding,
        rows: Rows,
        validation: Rows,
        seeds: Sequence[int],
        teacher: Teacher | None,
    ) -> None:
        self.config, self.encoding, self.rows, self.validation = config, encoding, rows, validation
        self.teacher = teacher
        self.streams = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        self.network = config.network()
        self.bound = BOUNDS[config.bound]
        sizes = (encoding.dim, *config.hidden, 1)
        latent = config.latent_width(encoding.dim)
        self.generator: Generator | None = None
        if config.has_generator:
            self.generator = make_generator(
                config.generator, encoding, latent, config.generator_hidden, rows.x, rows.y
            )
        self.state = self._initial(sizes)
        self.classifier_optimiser = Adam(self.state.theta)
        self.generator_optimiser = Adam(self.state.generator_theta) if config.learns_generator else None

    def _initial(self, sizes: tuple[int, ...]) -> _State:
        """Draw the initial parameters of all models, each from its own stream."""
        dtype, device = self.rows.x.dtype, self.rows.x.device
        small = self.config.initialisation == "small"
        starts = [init_parameters(sizes, stream, small=small) for stream in self.streams]
        proposals: list[Theta] = [() for _ in self.streams]
        if self.generator is not None and self.config.learns_generator:
            zero = self.config.generator == "residual"
            widths = self.generator.sizes
            proposals = [init_parameters(widths, stream, zero_last=zero) for stream in self.streams]
        return _State(*(_stack(each, dtype, device) for each in (starts, proposals)))

    def run(self, on_epoch: Callable[[Epoch], None] | None, interrupted: Callable[[], bool]) -> TrainedModels:
        """Train to the last epoch, until no model improves any more, or until an interruption."""
        config, models = self.config, len(self.streams)
        epochs = config.epochs_for(len(self.rows.x))
        best = _Best.none(self.state, models)
        history: list[Epoch] = []
        ended, stopped = StopReason.DONE, "all epochs done"
        for epoch in range(epochs):
            start = time.perf_counter()
            kept_going, loss, generator_loss = self._epoch(epoch, epochs, interrupted)
            record = self._measure(epoch, epochs, time.perf_counter() - start, loss, generator_loss)
            history.append(record)
            # Until the ramp ends an epoch solves an easier problem, and is only a last resort.
            ready = config.method != "veritracer" or config.robustness((epoch + 1) / epochs) >= 1.0
            best = best.updated(self.state, record, ready=ready)
            if on_epoch is not None:
                on_epoch(record)
            if not kept_going:
                ended, stopped = StopReason.INTERRUPTED, f"interrupted in epoch {epoch + 1} of {epochs}"
                break
            if config.patience is not None and ready and epoch - int(best.epoch.min()) >= config.patience:
                ended, stopped = StopReason.NO_PROGRESS, f"no progress for {config.patience} epochs"
                break
        return self._trained(best, history, ended, stopped)

    def _epoch(self, epoch: int, epochs: int, interrupted: Callable[[], bool]) -> tuple[bool, Tensor, Tensor]:
        """Run one pass over the rows; return whether to continue, and the mean losses of each model."""
        n = len(self.rows.x)
        size = min(self.config.batch_size, n)
        batches = max(1, n // size)
        order = torch.stack([torch.randperm(n, generator=stream) for stream in self.streams]).to(
            self.rows.x.device
        )
        total = torch.zeros(2, len(self.streams), dtype=self.rows.x.dtype, device=self.rows.x.device)
        for batch in range(batches):
            progress = (epoch + batch / batches) / epochs
            found = self._batch(order[:, batch * size : (batch + 1) * size], progress)
            if not bool(torch.isfinite(found).all()):
                raise TrainingError(
                    message(
                        "a finite loss",
                        f"nan or infinity in epoch {epoch + 1}, batch {batch + 1} of {batches}",
                        "try a smaller learning_rate or clip_norm, and check the table for extreme values",
                    )
                )
            total += found
            if interrupted():
                return False, *(total / (batch + 1))
        return True, *(total / batches)

    def _batch(self, index: Tensor, progress: float) -> Tensor:
        """Run lines 3 to 5 of Algorithm 1 on the rows ``index`` (models, batch); return both losses."""
        config, network, theta = self.config, self.network, self.state.theta
        robustness = config.robustness(progress)
        x, y = self.rows.x[index], self.rows.y[index]
        weight = self.rows.weight.gather(1, index)
        logit, context = forward_with_context(network, theta, x)
        sign = context.sign
        known = self._labels(y, index)
        loss = config.weight_accuracy * accuracy_loss(logit + config.threshold_logit, known, weight)
        x_cf = relaxed = x
        if self.generator is not None:
            x_cf, relaxed = project_straight_through(
                self.encoding, self.generator.propose(self.state.generator_theta, context), x
            )
        models = self._param_set(theta, robustness) if robustness > 0 else None
        if models is not None:
            worst = self.bound(models, x, x_cf.detach(), sign).worst_logit
            loss = loss + robustness * config.weight_robust * robust_loss(worst, weight)
        if self.teacher is not None:
            loss = loss + self._distillation_loss(self.teacher, context, x_cf.detach(), weight)
            if models is not None:
                loss = loss + robustness * self._anchor_robust_loss(self.teacher, index, models, x, weight)
        self._step(self.classifier_optimiser, theta, loss, progress)
        if self.generator_optimiser is None:
            return torch.stack([loss.detach(), torch.zeros_like(loss.detach())])
        fixed = [t.detach() for t in theta]
        cost = config.weight_proximity * proximity_loss(relaxed, x, weight)
        cost = cost + config.weight_validity * validity_loss(network.logit(fixed, x_cf), sign, weight)
        if models is not None:
            # The radii are those of a step ago: computing them anew costs more than it changes.
            worst = self.bound(replace(models, center=tuple(fixed)), x, x_cf, sign).worst_logit
            cost = cost + robustness * config.weight_robust * robust_loss(worst, weight)
        if self.teacher is not None:
            opinion = self.teacher.network_logits(x_cf) - config.threshold_logit
            weight_panel = self.teacher.options.for_generator
            cost = cost + weight_panel * validity_loss(opinion, sign, weight)
        self._step(self.generator_optimiser, self.state.generator_theta, cost, progress)
        return torch.stack([loss.detach(), cost.detach()])

    def _labels(self, y: Tensor, index: Tensor) -> Tensor:
        """Return the labels to learn from: the rows' own, or mixed with the panel's vote."""
        if self.teacher is None:
            return y
        share = self.teacher.options.soft_labels
        return torch.lerp(y, self.teacher.of_rows(self.teacher.soft_labels, index), share)

    def _distillation_loss(self, teacher: Teacher, context: Context, x_cf: Tensor, weight: Tensor) -> Tensor:
        """Return the cross-entropy against the panel at rows to which somebody might move, for each model."""
        options, x, theta = teacher.options, context.x, self.state.theta
        goal = torch.stack([torch.rand(x.shape[1], generator=stream) for stream in self.streams])
        goal = goal.to(x) * options.furthest
        attacked = sparse_attack(self.encoding, self.network, theta, x, context.sign, goal, options.moves)
        swapped = swapped_rows(self.encoding, x, options.swapped, self.streams)
        moved = torch.cat([x_cf, attacked, swapped], 1)
        target = teacher.targets(moved, moved=(True, True, False))
        logit = self.network.logit(theta, moved) + self.config.threshold_logit
        weights = (options.at_counterfactuals, options.at_attacks, options.at_swapped)
        parts = zip(weights, logit.chunk(3, 1), target.chunk(3, 1), strict=True)
        return torch.stack([w * accuracy_loss(each, t, weight) for w, each, t in parts]).sum(0)

    def _anchor_robust_loss(
        self, teacher: Teacher, index: Tensor, models: ParamSet, x: Tensor, weight: Tensor
    ) -> Tensor:
        """Return the robust loss of rows of which the panel is sure, until proved with a margin."""
        side = teacher.of_rows(teacher.side, index)
        worst = BOUNDS["ibp"](models, x, x, -side).worst_logit
        short = (worst.detach() > -teacher.options.proved).to(x.dtype)
        counted = weight * teacher.of_rows(teacher.sure, index)
        each = torch.sigmoid(worst).square() * short
        return teacher.options.at_sure_rows * weighted_mean(each, counted)

    def _param_set(self, theta: Sequence[Tensor], robustness: float) -> ParamSet:
        config = self.config
        if isinstance(config.radius, str):
            return ParamSet.of(
                self.network, tuple(theta), config.kappa * robustness, config.norm, config.radius
            )
        around = ParamSet.of(self.network, tuple(theta), norm=config.norm, radius=config.radius)
        return around.at(robustness)

    def _step(self, optimiser: Adam, parameters: list[Tensor], loss: Tensor, progress: float) -> None:
        """Take one step of all models along their own clipped gradients."""
        gradients = torch.autograd.grad(loss.sum(), parameters)
        size = torch.stack([g.flatten(1).square().sum(-1) for g in gradients]).sum(0).sqrt()
        shrink = (self.config.clip_norm / size.clamp(min=1e-12)).clamp(max=1.0)
        clipped = [g * shrink.view(-1, *(1,) * (g.dim() - 1)) for g in gradients]
        optimiser.step(clipped, self.config.learning_rate * self.config.lr_factor(progress))

    @torch.no_grad()
    def _measure(
        self, epoch: int, epochs: int, seconds: float, loss: Tensor, generator_loss: Tensor
    ) -> Epoch:
        """Return the validation record of the state after an epoch, at the full κ."""
        config, theta = self.config, self.state.theta
        models, rows = len(self.streams), self.validation
        x, y, weight = rows.x.expand(models, -1, -1), rows.y.expand(models, -1), rows.weight
        logit, context = forward_with_context(self.network, theta, x)
        sign = context.sign
        log_loss = accuracy_loss(logit + config.threshold_logit, y, weight)
        hits = weighted_mean(((logit > 0) == (y > 0.5)).to(x.dtype), weight)
        objective = config.weight_accuracy * log_loss
        nothing = torch.full_like(log_loss, math.nan)
        validity = certified = proximity = nothing
        if self.generator is not None:
            x_cf, _ = project_straight_through(
                self.encoding, self.generator.propose(self.state.generator_theta, context), x
            )
            cf_logit = self.network.logit(theta, x_cf) * sign
            # The cheap bound decides almost every row, and a record need not be exact.
            worst = BOUNDS["crown-ibp"](self._param_set(theta, 1.0), x, x_cf, sign).worst_logit
            validity = weighted_mean((cf_logit < 0).to(x.dtype), weight)
            certified = weighted_mean((worst < 0).to(x.dtype), weight)
            proximity = proximity_loss(x_cf, x, weight)
            objective = objective + config.weight_proximity * proximity
            objective = objective + config.weight_validity * validity_loss(cf_logit * sign, sign, weight)
            if config.method == "veritracer":
                objective = objective + config.weight_robust * robust_loss(worst, weight)
            if self.teacher is not None:
                target = self.teacher.targets(x_cf, moved=(True,))
                believed = accuracy_loss(cf_logit * sign + config.threshold_logit, target, weight)
                objective = objective + self.teacher.options.at_counterfactuals * believed
        kappa = config.kappa * config.robustness((epoch + 1) / epochs)
        numbers = (loss, generator_loss, hits, validity, certified, proximity, log_loss, objective)
        return Epoch(epoch + 1, epochs, kappa, seconds, *(t.cpu().double() for t in numbers))

    def _trained(self, best: _Best, history: list[Epoch], ended: StopReason, stopped: str) -> TrainedModels:
        models = range(len(self.streams))

        def take(stack: list[Tensor], model: int) -> Theta:
            return tuple(t[model].detach().clone() for t in stack)

        return TrainedModels(
            self.network,
            self.generator,
            [take(best.theta, m) for m in models],
            [take(best.generator_theta, m) for m in models],
            [int(best.epoch[m]) + 1 for m in models],
            [[_record(epoch, m) for epoch in history] for m in models],
            ended,
            stopped,
            self.config.threshold_logit,
        )


class _Best(NamedTuple):
    """The best state so far of each model, its objective and epoch; ready states come first."""

    theta: list[Tensor]
    generator_theta: list[Tensor]
    objective: Tensor
    ready: bool
    epoch: Tensor

    @classmethod
    def none(cls, state: _State, models: int) -> _Best:
        copies = [[t.detach().clone() for t in stack] for stack in state]
        return cls(
            copies[0],
            copies[1],
            torch.full((models,), math.inf),
            False,
            torch.zeros(models, dtype=torch.long),
        )

    def updated(self, state: _State, record: Epoch, *, ready: bool) -> _Best:
        """Return the better of this and the present state, model by model."""
        first = ready and not self.ready
        better = torch.ones_like(self.epoch, dtype=torch.bool) if first else record.objective < self.objective
        stacks = []
        for old, new in zip((self.theta, self.generator_theta), state, strict=True):
            stacks.append([_choose(better, n.detach(), o) for n, o in zip(new, old, strict=True)])
        objective = torch.where(better, record.objective, self.objective)
        epoch = torch.where(better, record.epoch - 1, self.epoch)
        return _Best(stacks[0], stacks[1], objective, self.ready or ready, epoch)


def _choose(better: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(better.to(new.device).view(-1, *(1,) * (new.dim() - 1)), new, old)


def _record(epoch: Epoch, model: int) -> dict[str, float]:
    """Return one model's part of an epoch's record."""
    fields = epoch._asdict()
    return {name: float(v[model]) if isinstance(v, Tensor) else float(v) for name, v in fields.items()}


def _stack(thetas: Sequence[Theta], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    stacked = [torch.stack(tensors).to(device, dtype) for tensors in zip(*thetas, strict=True)]
    return [tensor.requires_grad_() for tensor in stacked]


Monitor = tuple[Callable[[Epoch], None] | None, Callable[[], bool]]


@contextmanager
def monitor(*, verbose: bool) -> Iterator[Monitor]:
    """Provide the callbacks of ``train``: one that reports epochs, and one that says whether to stop."""
    with _interruptible() as interrupted:
        if not verbose:
            yield None, interrupted
            return
        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("training", total=None)

            def report(epoch: Epoch) -> None:
                bar.update(task, total=epoch.epochs, completed=epoch.epoch, description=summary(epoch))

            yield report, interrupted


def summary(epoch: Epoch) -> str:
    """Summarise an epoch in one line, averaged over the models that are trained side by side."""
    parts = [f"loss {float(epoch.loss.mean()):.3f}", f"accuracy {float(epoch.accuracy.mean()):.3f}"]
    if bool(epoch.validity.isfinite().all()):
        parts.append(f"validity {float(epoch.validity.mean()):.3f}")
        parts.append(f"certified {float(epoch.certified.mean()):.3f}")
    return f"epoch {epoch.epoch}/{epoch.epochs}: " + ", ".join(parts)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Provide a function that says whether Ctrl-C was pressed; a second Ctrl-C interrupts at once."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set  # only the main thread can handle signals
        return
    before = signal.getsignal(signal.SIGINT)

    def listen(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    signal.signal(signal.SIGINT, listen)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- one run, from data to models


@dataclass(frozen=True)
class TrainingRun:
    """Settings of one run: ``panel`` is not fitted yet, ``approval_rate`` replaces the threshold."""

    config: TrainingConfig
    panel: Panel | None
    threshold: float
    approval_rate: float | None
    device: str
    verbose: bool

    def fit(self, data: TrainingData, seeds: list[int], *, share_panel: bool = False) -> TrainingResult:
        """Train a model for each seed, all at once; Ctrl-C stops after the batch and keeps the best epoch."""
        panels = self._panels(data, seeds[:1] if share_panel else seeds)
        threshold = self._first_threshold(data, panels)
        config = replace(self.config, threshold_logit=threshold_logit(threshold))
        teacher = self._teacher(data, panels, threshold)
        with monitor(verbose=self.verbose) as (on_epoch, interrupted):
            trained = train(
                config,
                data.encoding,
                data.rows,
                data.validation,
                seeds,
                teacher=teacher,
                on_epoch=on_epoch,
                interrupted=interrupted,
            )
        if trained.stop_reason is StopReason.INTERRUPTED:
            kept = f"the best of {len(trained.history[0])} epochs was kept; fit again to train to the end"
            warnings.warn(message("a whole run", trained.stopped, kept), TrainingWarning, stacklevel=4)
        return TrainingResult(data, panels, trained, self.approval_rate)

    def _panels(self, data: TrainingData, seeds: Sequence[int]) -> list[Panel]:
        """Fit a panel for each seed on the rows that its model may see; return none if none is wanted."""
        if self.panel is None:
            return []
        return [
            clone(self.panel).fit_encoded(data.encoding, rows, seed=seed)
            for seed, rows in zip(seeds, _labelled(data), strict=False)
        ]

    def _first_threshold(self, data: TrainingData, panels: list[Panel]) -> float:
        """Return the given threshold, or an estimate of the one that accepts the wanted share of people."""
        if self.approval_rate is None:
            return self.threshold
        x, y, weight = (part.cpu() for part in data.rows)
        if panels:
            score = torch.logit(panels[0].vote(x), eps=1e-6)
        else:
            from sklearn.linear_model import LogisticRegression  # imported here: few models need it

            linear = LogisticRegression(max_iter=1000).fit(x.numpy(), y.numpy(), weight[0].numpy())
            score = torch.from_numpy(linear.decision_function(x.numpy()))
        at = float(rate_threshold(score[weight[0] > 0], self.approval_rate))
        return float(torch.sigmoid(torch.tensor(at, dtype=torch.float64)).clamp(0.01, 0.99))

    def _teacher(self, data: TrainingData, panels: list[Panel], threshold: float) -> Teacher | None:
        """Return the teacher of the classifiers if there is a panel with a weight in training."""
        if not panels or self.config.method != "veritracer" or panels[0].strength == 0:
            return None
        options = Distillation().times(panels[0].strength)
        rows = [Labelled(*(part.to(self.device) for part in mine)) for mine in _labelled(data)]
        return Teacher(panels, rows[: len(panels)], options, threshold_logit(threshold))


@dataclass(frozen=True)
class TrainingResult:
    """The models of a run, by index; on the CPU, in double precision."""

    data: TrainingData
    panels: list[Panel]
    trained: TrainedModels
    approval_rate: float | None

    def panel(self, index: int) -> Panel | None:
        """Return the panel of a model: its own, or the one that all share."""
        return self.panels[min(index, len(self.panels) - 1)] if self.panels else None

    def generator_theta(self, index: int) -> Theta:
        """Return the parameters of a model's generator."""
        return _double(self.trained.generator_theta[index])

    def classifier(self, index: int) -> tuple[Theta, float | None]:
        """Return a classifier, shifted to accept the wanted share of people, and its threshold (or None)."""
        theta, offset = _double(self.trained.theta[index]), self.trained.threshold_logit
        if self.approval_rate is None:
            return theta, None
        both = (self.data.rows, self.data.validation)
        parts = [(part.x.cpu(), part.weight[index].cpu() > 0) for part in both]
        logits = torch.cat([self.trained.network.logit(theta, x[seen].double()) for x, seen in parts])
        at = rate_threshold(logits, self.approval_rate)
        threshold = float(torch.sigmoid(at + offset))
        return (*theta[:-1], theta[-1] - (threshold_logit(threshold) - offset)), threshold

    def seen(self, index: int) -> tuple[Tensor, Tensor]:
        """Return the training rows (n, d) that a model saw, and which of them are favourable (n,)."""
        x, favourable, weight = (part.cpu() for part in self.data.rows)
        rows = weight[index] > 0
        return x[rows], favourable[rows] > 0.5


def _labelled(data: TrainingData) -> list[Labelled]:
    """Return the training rows as the panel of each model sees them, on the CPU."""
    x, y, weight = (part.cpu() for part in data.rows)
    return [Labelled(x, y, mine) for mine in weight]


def _double(theta: Theta) -> Theta:
    return tuple(t.detach().to("cpu", torch.float64) for t in theta)
