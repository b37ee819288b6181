"""Algorithm 1: train a classifier and its counterfactual generator together against a set of models.

All models of a call are trained side by side, over parameters with a leading dimension: ten seeds are one
run. Each model has its own random stream (its start, the order of its rows), its own row weights, its own
gradient clipping and its own best epoch, so that it equals the run alone.

``monitor`` shows a progress bar and turns Ctrl-C into a stop after the current batch. ``fit_models`` is a
whole run: panels, threshold, training, and the threshold of an approval rate at the end.
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
from veritracer.training.checkpoints import Checkpoint, digest_of_run, numbered, restore
from veritracer.training.config import TrainingConfig
from veritracer.training.data import LabelledRows, TrainingData, members, padded
from veritracer.training.distillation import Distillation, Teacher, sparse_attack, swapped_rows
from veritracer.training.generator import (
    Context,
    Generator,
    Noise,
    forward_with_context,
    init_parameters,
    make_generator,
    project_straight_through,
)
from veritracer.training.losses import (
    Adam,
    accuracy_loss,
    proximity_loss,
    validity_loss,
    weighted_mean,
)
from veritracer.training.objective import Objective
from veritracer.training.panel import Panel


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


@dataclass(frozen=True)
class TrainedModels:
    """The models of a run on the CPU in double precision, each with its best epoch and all records.

    ``stopped`` is the reason for the end of training as a phrase, ``interrupted`` is true if it was Ctrl-C.
    ``panels`` has one for each model, one that all share, or none. ``thresholds`` has the probability at
    which each model decides, if an approval rate set it.
    """

    network: Network
    generator: Generator | None
    theta: list[Theta]
    generator_theta: list[Theta]
    best_epoch: list[int]
    history: list[list[dict[str, float]]]
    stopped: str
    interrupted: bool = False
    panels: Sequence[Panel] = ()
    thresholds: Sequence[float] = ()


Start = tuple[Theta, Theta]
"""Parameters of a classifier and of its generator to start from."""


class _State(NamedTuple):
    """Parameters with a leading dimension for the models."""

    theta: list[Tensor]
    generator_theta: list[Tensor]


def train(
    config: TrainingConfig,
    encoding: Encoding,
    rows: LabelledRows,
    validation: LabelledRows,
    seeds: Sequence[int],
    *,
    teacher: Teacher | None = None,
    start: Sequence[Start] | None = None,
    checkpoint: Checkpoint | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> TrainedModels:
    """Return a classifier and a generator for each seed, from the best epoch of each.

    The best epoch is the one with the lowest validation objective once κ is fully ramped up: the training
    objective, on rows that were not trained on, with counterfactuals on the grid. A ``teacher`` is made from
    the same ``rows``; without one this is exactly Algorithm 1. ``start`` has the parameters of classifier and
    generator that each model starts from, instead of random ones. A ``checkpoint`` is written at the ends of
    epochs; where its file exists, the run continues from there.
    """
    if checkpoint is not None and (teacher is not None or config.patience is not None):
        received = "a panel, or patience"
        raise TrainingError(message("a run without either for a checkpoint", received, "set both to None"))
    with one_thread(len(seeds) == 1 and rows.x.device.type == "cpu"):
        training = _Training(config, encoding, rows, validation, seeds, teacher, start)
        if checkpoint is None:
            return training.run(on_epoch, interrupted, None)
        run = digest_of_run(config, rows, validation, seeds, start)
        return training.run(on_epoch, interrupted, (checkpoint, run))


class _Moment(NamedTuple):
    """A point of a run: the ramp of the robust loss, from 0 to 1, and the learning rate."""

    robustness: float
    rate: float


class _Batch(NamedTuple):
    """Some training rows of each model, (models, n, ...), with what the classifier makes of them."""

    rows: Tensor
    y: Tensor
    weight: Tensor
    outputs: Tensor
    logit: Tensor
    context: Context
    goal: Tensor | None


class _Training:
    """One run: the present and the best state, the optimisers, the records, and stored counterfactuals."""

    def __init__(
        self,
        config: TrainingConfig,
        encoding: Encoding,
        rows: LabelledRows,
        validation: LabelledRows,
        seeds: Sequence[int],
        teacher: Teacher | None,
        start: Sequence[Start] | None,
    ) -> None:
        self.config, self.encoding, self.rows = config, encoding, rows
        self.teacher = teacher
        self.streams = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        self.network = config.network()
        self.objective = Objective(config)
        self.generator: Generator | None = None
        if config.has_generator:
            self.generator = make_generator(config, encoding, rows.x, rows.y)
        self.state = self._initial(start)
        self.members = members(rows) if config.validation == "random" else None
        self.validation = _of_models(validation, config, len(self.streams))
        self.stored: Tensor | None = None
        self.optimisers = {"classifier": Adam(self.state.theta, weight_decay=config.weight_decay)}
        if config.learns_generator:
            moved = self._moved_by_generator()
            self.optimisers["generator"] = Adam(moved, weight_decay=config.weight_decay)
        self.best = _BestModels.none(self.state, len(self.streams))
        self.history: list[Epoch] = []

    def _initial(self, start: Sequence[Start] | None) -> _State:
        """Draw the initial parameters of all models, each from its own stream, or take the given ones."""
        dtype, device = self.rows.x.dtype, self.rows.x.device
        if start is not None:
            return _State(*(_stack(each, dtype, device) for each in zip(*start, strict=True)))
        small = self.config.initialisation == "small"
        sizes = self.config.sizes(self.encoding.dim)
        starts = [init_parameters(sizes, stream, small=small) for stream in self.streams]
        proposals: list[Theta] = [() for _ in self.streams]
        if self.generator is not None and self.config.learns_generator:
            zero = self.config.generator == "residual"
            widths = self.generator.sizes
            proposals = [init_parameters(widths, stream, zero_last=zero) for stream in self.streams]
        return _State(*(_stack(each, dtype, device) for each in (starts, proposals)))

    def _moved_by_generator(self) -> list[Tensor]:
        """Return the parameters that the generator's step changes."""
        if self.config.joint:
            return [*self.state.theta, *self.state.generator_theta]
        return self.state.generator_theta

    def run(
        self,
        on_epoch: Callable[[Epoch], None] | None,
        interrupted: Callable[[], bool],
        checkpoint: tuple[Checkpoint, str] | None,
    ) -> TrainedModels:
        """Train to the last epoch, until no model improves any more, or until an interruption."""
        config = self.config
        epochs = config.epochs_for(len(self.rows.x))
        if checkpoint is not None:
            self._restore(*checkpoint)
        stopped, was_interrupted = "all epochs done", False
        for epoch in range(len(self.history), epochs):
            start = time.perf_counter()
            is_complete, loss, generator_loss = self._epoch(epoch, epochs, interrupted)
            record = self._measure(epoch, epochs, time.perf_counter() - start, loss, generator_loss)
            self.history.append(record)
            # Until the ramp ends an epoch solves an easier problem, and is only a last resort.
            ramped = config.method != "veritracer" or config.robustness((epoch + 1) / epochs) >= 1.0
            ready = ramped or config.select_all
            self.best = self.best.updated(self.state, record, ready=ready)
            if on_epoch is not None:
                on_epoch(record)
            if not is_complete:
                stopped, was_interrupted = f"interrupted in epoch {epoch + 1} of {epochs}", True
                break
            idle = epoch - int(self.best.epoch.min())
            if config.patience is not None and ready and idle >= config.patience:
                stopped = f"no progress for {config.patience} epochs"
                break
            if checkpoint is not None and (checkpoint[0].is_due() or epoch + 1 == epochs):
                self._write(*checkpoint)
        return self._trained(stopped, was_interrupted)

    def _write(self, checkpoint: Checkpoint, run: str) -> None:
        """Write everything that the next epoch depends on."""
        tensors = numbered("stream", [stream.get_state() for stream in self.streams])
        for name, group in self._changing().items():
            tensors |= numbered(name, group)
        if self.stored is not None:
            tensors["stored"] = self.stored
        steps = {name: optimiser.steps for name, optimiser in self.optimisers.items()}
        records = [[e.tolist() if isinstance(e, Tensor) else e for e in epoch] for epoch in self.history]
        checkpoint.write(run, tensors, {"steps": steps, "ready": self.best.ready, "history": records})

    def _restore(self, checkpoint: Checkpoint, run: str) -> None:
        """Continue where the checkpoint ended, if it was written."""
        written = checkpoint.read(run)
        if written is None:
            return
        tensors, document = written
        for i, stream in enumerate(self.streams):
            stream.set_state(tensors[f"stream.{i}"])
        for name, group in self._changing().items():
            restore(name, group, tensors)
        for name, optimiser in self.optimisers.items():
            optimiser.steps = int(document["steps"][name])
        self.stored = tensors["stored"].to(self.rows.x.device) if "stored" in tensors else None
        self.history = [
            Epoch(*record[:4], *(torch.tensor(each, dtype=torch.float64) for each in record[4:]))
            for record in document["history"]
        ]
        self.best = self.best._replace(ready=bool(document["ready"]))

    def _changing(self) -> dict[str, list[Tensor]]:
        """Return the tensors that epochs change, by name."""
        groups = {f"state.{name}": group for name, group in self.state._asdict().items()}
        groups |= {f"best.{name}": group for name, group in self.best.state._asdict().items()}
        groups |= {"best.numbers": [self.best.objective, self.best.epoch]}
        for name, optimiser in self.optimisers.items():
            groups |= {f"{name}.first": optimiser.first, f"{name}.second": optimiser.second}
        return groups

    def _epoch(self, epoch: int, epochs: int, interrupted: Callable[[], bool]) -> tuple[bool, Tensor, Tensor]:
        """Run the passes of one epoch; return whether to continue, and the mean losses of each model."""
        config = self.config
        if config.regenerates(epoch):
            self.stored = self._regenerated()
        passes = [self._step_both] if config.passes == "batch" else [self._step_classifier]
        if config.passes == "epoch":
            passes.append(self._step_generator)
        total = torch.zeros(2, len(self.streams), dtype=self.rows.x.dtype, device=self.rows.x.device)
        batches: list[tuple[Tensor, Tensor]] = []
        for step in passes:
            batches = self._batches()
            for position, (index, weight) in enumerate(batches):
                share = position / len(batches) if config.passes == "batch" else 0.0
                progress = (epoch + share) / epochs
                rate = config.learning_rate * config.lr_factor(progress, epoch)
                found = step(index, weight, _Moment(config.robustness(progress), rate))
                if not bool(torch.isfinite(found).all()):
                    at = f"epoch {epoch + 1}, batch {position + 1} of {len(batches)}"
                    remedy = (
                        "try a smaller learning_rate or clip_norm, and check the table for extreme values"
                    )
                    raise TrainingError(message("a finite loss", f"nan or infinity in {at}", remedy))
                total += found
                if interrupted():
                    return False, *(total / (position + 1))
        return True, *(total / len(batches))

    def _batches(self) -> list[tuple[Tensor, Tensor]]:
        """Return positions and weights (models, batch) of the rows of each batch, in a new order.

        NOTE[paper]: as in its code, separate passes use the last batch even if it is short.
        """
        rows = self.rows
        if self.members is None:
            n = len(rows.x)
            order = torch.stack([torch.randperm(n, generator=stream) for stream in self.streams])
            live = None
        else:
            order, live = self._shuffled_members(self.members)
            n = order.shape[1]
        order = order.to(rows.x.device)
        weight = rows.weight.gather(1, order)
        weight = weight if live is None else weight * live.to(weight)
        size = min(self.config.batch_size, n)
        count = max(1, n // size) if self.config.passes == "batch" else -(-n // size)
        parts = [slice(batch * size, (batch + 1) * size) for batch in range(count)]
        return [(order[:, part], weight[:, part]) for part in parts]

    def _shuffled_members(self, members: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return each model's rows in a new order; shorter lists are filled with rows of weight 0."""
        pairs = zip(members, self.streams, strict=True)
        shuffled = [rows[torch.randperm(len(rows), generator=stream)] for rows, stream in pairs]
        return padded(shuffled)

    def _forward(self, index: Tensor, weight: Tensor, *, attached: bool = False) -> _Batch:
        """Return the batch with the classifier's outputs; ``attached`` latents carry gradients."""
        x = self.rows.x[index]
        outputs, context = forward_with_context(self.network, self.state.theta, x, attached=attached)
        logit = self.network.read(outputs)
        goal = self.objective.goal(logit, context.sign)
        return _Batch(index, self.rows.y[index], weight, outputs, logit, context, goal)

    def _propose(self, context: Context, *, dropping: bool) -> tuple[Tensor, Tensor]:
        """Return the counterfactuals of a batch, and the relaxed rows that they came from."""
        if self.generator is None:
            return context.x, context.x
        noise = Noise(self.streams, dropping)
        proposal = self.generator.propose(self.state.generator_theta, context, noise)
        return project_straight_through(self.encoding, proposal, context.x)

    @torch.no_grad()
    def _regenerated(self) -> Tensor:
        """Return today's counterfactuals of all training rows, (models, n, d), without dropout."""
        x = self.rows.x.expand(len(self.streams), -1, -1)
        context = forward_with_context(self.network, self.state.theta, x)[1]
        return self._propose(context, dropping=False)[0]

    def _step_both(self, index: Tensor, weight: Tensor, moment: _Moment) -> Tensor:
        """Run lines 3 to 5 of Algorithm 1 on the rows ``index`` (models, batch); return both losses."""
        batch = self._forward(index, weight)
        x_cf, relaxed = self._propose(batch.context, dropping=True)
        models = self._param_set(self.state.theta, moment.robustness)
        loss = self._classifier_loss(batch, x_cf.detach(), models, moment)
        self._step("classifier", self.state.theta, loss, moment)
        if not self.config.learns_generator:
            return torch.stack([loss.detach(), torch.zeros_like(loss.detach())])
        fixed = [t.detach() for t in self.state.theta]
        if models is not None:
            # The radii are those of a step ago: computing them anew costs more than it changes.
            models = replace(models, center=tuple(fixed))
        cost = self._generator_loss(batch, x_cf, relaxed, fixed, models, moment)
        self._step("generator", self.state.generator_theta, cost, moment)
        return torch.stack([loss.detach(), cost.detach()])

    def _step_classifier(self, index: Tensor, weight: Tensor, moment: _Moment) -> Tensor:
        """Run line 4 of Algorithm 1 on the rows ``index``, with stored counterfactuals if there are any."""
        batch = self._forward(index, weight)
        x_cf = self._stored_at(batch)
        models = None if x_cf is None else self._param_set(self.state.theta, moment.robustness)
        loss = self._classifier_loss(batch, batch.context.x if x_cf is None else x_cf, models, moment)
        self._step("classifier", self.state.theta, loss, moment)
        return torch.stack([loss.detach(), torch.zeros_like(loss.detach())])

    def _stored_at(self, batch: _Batch) -> Tensor | None:
        """Return the counterfactuals of the classifier's pass: stored or new; None before the first ones."""
        if self.config.regenerate is None:
            with torch.no_grad():
                return self._propose(batch.context, dropping=False)[0]
        if self.stored is None:
            return None
        return self.stored.gather(1, batch.rows.unsqueeze(-1).expand(-1, -1, self.stored.shape[-1]))

    def _step_generator(self, index: Tensor, weight: Tensor, moment: _Moment) -> Tensor:
        """Run line 5 of Algorithm 1 on the rows ``index``; if ``joint``, the classifier moves too.

        NOTE[paper]: in its code a model without a generator takes this step as well, with a loss of zero, so
        that its classifier decays twice.
        """
        joint, zero = self.config.joint, weight.new_zeros(len(weight))
        if not self.config.learns_generator:
            if joint:
                self.optimisers["classifier"].decay(moment.rate)
            return torch.stack([zero, zero])
        batch = self._forward(index, weight, attached=joint)
        theta = self.state.theta if joint else [t.detach() for t in self.state.theta]
        x_cf, relaxed = self._propose(batch.context, dropping=True)
        models = self._param_set(theta, moment.robustness)
        cost = self._generator_loss(batch, x_cf, relaxed, theta, models, moment)
        self._step("generator", self._moved_by_generator(), cost, moment)
        return torch.stack([zero, cost.detach()])

    def _classifier_loss(
        self, batch: _Batch, x_cf: Tensor, models: ParamSet | None, moment: _Moment
    ) -> Tensor:
        """Return the classifier's loss of each model, against counterfactuals that are constants."""
        known = batch.y
        if self.teacher is not None:
            votes = self.teacher.of_rows(self.teacher.soft_labels, batch.rows)
            known = torch.lerp(known, votes, self.teacher.options.soft_labels)
        loss = self.objective.accuracy(batch.outputs, batch.logit, known, batch.weight)
        if models is not None:
            worst = self.objective.worst_logit(models, batch.context.x, x_cf, batch.context.sign)
            right = (batch.logit > 0) == (batch.y > 0.5) if self.config.mask_wrong else None
            loss = loss + self.objective.robust(worst, batch.goal, batch.weight, moment.robustness, right)
        if self.teacher is not None:
            loss = loss + self._distillation_loss(self.teacher, batch, x_cf)
            if models is not None:
                loss = loss + moment.robustness * self._anchor_robust_loss(self.teacher, batch, models)
        return loss

    def _generator_loss(
        self,
        batch: _Batch,
        x_cf: Tensor,
        relaxed: Tensor,
        theta: Sequence[Tensor],
        models: ParamSet | None,
        moment: _Moment,
    ) -> Tensor:
        """Return the generator's loss of each model, for the classifiers ``theta``."""
        sign, goal, weight = batch.context.sign, batch.goal, batch.weight
        cost = self.objective.proximity(x_cf, relaxed, batch.context.x, weight)
        cost = cost + self.objective.validity(self.network.logit(theta, x_cf), sign, goal, weight)
        if models is not None:
            worst = self.objective.worst_logit(models, batch.context.x, x_cf, sign)
            cost = cost + self.objective.robust(worst, goal, weight, moment.robustness)
        if self.teacher is not None:
            opinion = self.teacher.network_logits(x_cf) - self.config.threshold_logit
            weight_panel = self.teacher.options.for_generator
            cost = cost + weight_panel * validity_loss(opinion, sign, weight)
        return cost

    def _distillation_loss(self, teacher: Teacher, batch: _Batch, x_cf: Tensor) -> Tensor:
        """Return the cross-entropy against the panel at rows that people may move to, for each model."""
        options, x, theta = teacher.options, batch.context.x, self.state.theta
        goal = torch.stack([torch.rand(x.shape[1], generator=stream) for stream in self.streams])
        goal = goal.to(x) * options.furthest
        sign = batch.context.sign
        attacked = sparse_attack(self.encoding, self.network, theta, x, sign, goal, options.moves)
        swapped = swapped_rows(self.encoding, x, options.swapped, self.streams)
        moved = torch.cat([x_cf, attacked, swapped], 1)
        target = teacher.targets(moved, moved=(True, True, False))
        logit = self.network.logit(theta, moved) + self.config.threshold_logit
        weights = (options.at_counterfactuals, options.at_attacks, options.at_swapped)
        parts = zip(weights, logit.chunk(3, 1), target.chunk(3, 1), strict=True)
        return torch.stack([w * accuracy_loss(each, t, batch.weight) for w, each, t in parts]).sum(0)

    def _anchor_robust_loss(self, teacher: Teacher, batch: _Batch, models: ParamSet) -> Tensor:
        """Return the robust loss of rows of which the panel is sure, until proved with a margin."""
        x, side = batch.context.x, teacher.of_rows(teacher.side, batch.rows)
        worst = BOUNDS["ibp"](models, x, x, -side).worst_logit
        short = (worst.detach() > -teacher.options.proved).to(x.dtype)
        counted = batch.weight * teacher.of_rows(teacher.sure, batch.rows)
        each = torch.sigmoid(worst).square() * short
        return teacher.options.at_sure_rows * weighted_mean(each, counted)

    def _param_set(self, theta: Sequence[Tensor], robustness: float) -> ParamSet | None:
        """Return the set at this point of the ramp; None without a robust loss."""
        config = self.config
        if robustness == 0.0:
            return None
        grown = robustness if config.ramp_kappa else 1.0
        if isinstance(config.radius, str):
            return ParamSet.of(self.network, tuple(theta), config.kappa * grown, config.norm, config.radius)
        return ParamSet.of(self.network, tuple(theta), norm=config.norm, radius=config.radius).at(grown)

    def _step(self, optimiser: str, parameters: list[Tensor], loss: Tensor, moment: _Moment) -> None:
        """Take one step of all models along their own clipped gradients."""
        gradients = torch.autograd.grad(loss.sum(), parameters, materialize_grads=True)
        size = torch.stack([g.flatten(1).square().sum(-1) for g in gradients]).sum(0).sqrt()
        shrink = (self.config.clip_norm / size.clamp(min=1e-12)).clamp(max=1.0)
        clipped = [g * shrink.view(-1, *(1,) * (g.dim() - 1)) for g in gradients]
        self.optimisers[optimiser].step(clipped, moment.rate)

    @torch.no_grad()
    def _measure(
        self, epoch: int, epochs: int, seconds: float, loss: Tensor, generator_loss: Tensor
    ) -> Epoch:
        """Return the validation record of the state after an epoch, at the full κ."""
        config, theta, objective = self.config, self.state.theta, self.objective
        x, y, weight = self.validation
        outputs, context = forward_with_context(self.network, theta, x)
        logit, sign = self.network.read(outputs), context.sign
        log_loss = accuracy_loss(logit + config.threshold_logit, y, weight)
        hits = weighted_mean(((logit > 0) == (y > 0.5)).to(x.dtype), weight)
        total = objective.accuracy(outputs, logit, y, weight)
        nothing = torch.full_like(log_loss, math.nan)
        validity = certified = proximity = nothing
        if self.generator is not None:
            x_cf, _ = self._propose(context, dropping=False)
            goal = objective.goal(logit, sign)
            cf_logit = self.network.logit(theta, x_cf)
            models = self._param_set(theta, 1.0)
            assert models is not None
            # The cheap bound decides almost every row, and a record need not be exact.
            bound = objective.worst_logit if config.select_all else _by_crown_ibp
            worst = bound(models, x, x_cf, sign)
            validity = weighted_mean((cf_logit * sign < 0).to(x.dtype), weight)
            certified = weighted_mean((worst < 0).to(x.dtype), weight)
            proximity = proximity_loss(x_cf, x, weight)
            total = total + objective.proximity(x_cf, x_cf, x, weight)
            total = total + objective.validity(cf_logit, sign, goal, weight)
            if config.method == "veritracer":
                total = total + objective.robust(worst, goal, weight)
            if self.teacher is not None:
                target = self.teacher.targets(x_cf, moved=(True,))
                believed = accuracy_loss(cf_logit + config.threshold_logit, target, weight)
                total = total + self.teacher.options.at_counterfactuals * believed
        grown = config.robustness((epoch + 1) / epochs)
        kappa = config.kappa * (grown if config.ramp_kappa else float(grown > 0))
        numbers = (loss, generator_loss, hits, validity, certified, proximity, log_loss, total)
        return Epoch(epoch + 1, epochs, kappa, seconds, *(t.cpu().double() for t in numbers))

    def _trained(self, stopped: str, was_interrupted: bool) -> TrainedModels:
        best, models = self.best, range(len(self.streams))

        def take(stack: list[Tensor], model: int) -> Theta:
            return tuple(t[model].detach().to("cpu", torch.float64, copy=True) for t in stack)

        return TrainedModels(
            self.network,
            self.generator,
            [take(best.state.theta, m) for m in models],
            [take(best.state.generator_theta, m) for m in models],
            [int(best.epoch[m]) + 1 for m in models],
            [[_record(epoch, m) for epoch in self.history] for m in models],
            stopped,
            was_interrupted,
        )


def _by_crown_ibp(models: ParamSet, x: Tensor, x_cf: Tensor, sign: Tensor) -> Tensor:
    return BOUNDS["crown-ibp"](models, x, x_cf, sign).worst_logit


def _of_models(rows: LabelledRows, config: TrainingConfig, models: int) -> LabelledRows:
    """Return the validation rows with a leading dimension for the models: all rows, or those of each."""
    if config.validation == "stratified":
        return LabelledRows(rows.x.expand(models, -1, -1), rows.y.expand(models, -1), rows.weight)
    index, live = padded(members(rows))
    index = index.to(rows.x.device)
    weight = rows.weight.gather(1, index)
    return LabelledRows(rows.x[index], rows.y[index], weight if live is None else weight * live.to(weight))


class _BestModels(NamedTuple):
    """The best state so far of each model, its objective and epoch; ready states come first."""

    state: _State
    objective: Tensor
    ready: bool
    epoch: Tensor

    @classmethod
    def none(cls, state: _State, models: int) -> _BestModels:
        """Return the initial state, which any state after an epoch replaces."""
        copies = _State(*([t.detach().clone() for t in stack] for stack in state))
        worst = torch.full((models,), math.inf, dtype=torch.float64)
        return cls(copies, worst, False, torch.zeros(models, dtype=torch.long))

    def updated(self, state: _State, record: Epoch, *, ready: bool) -> _BestModels:
        """Return the better of this and the present state, model by model."""
        first = ready and not self.ready
        better = torch.ones_like(self.epoch, dtype=torch.bool) if first else record.objective < self.objective
        stacks = [
            [_choose(better, new.detach(), old) for new, old in zip(*both, strict=True)]
            for both in zip(state, self.state, strict=True)
        ]
        objective = torch.where(better, record.objective, self.objective)
        epoch = torch.where(better, record.epoch - 1, self.epoch)
        return _BestModels(_State(*stacks), objective, self.ready or ready, epoch)


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


def fit_models(
    config: TrainingConfig,
    data: TrainingData,
    seeds: Sequence[int],
    *,
    panel: Panel | None,
    threshold: float,
    approval_rate: float | None,
    share_panel: bool = False,
    start: Sequence[Start] | None = None,
    checkpoint: Checkpoint | None = None,
    verbose: bool = False,
) -> TrainedModels:
    """Train a model for each seed, all at once; Ctrl-C stops after the batch and keeps the best epoch.

    ``panel`` is the one to fit for each model; with ``share_panel`` there is one for all. An
    ``approval_rate`` replaces the threshold.
    """
    panels: list[Panel] = []
    if panel is not None:
        pairs = zip(seeds[:1] if share_panel else seeds, data.rows.to("cpu").of_models(), strict=False)
        panels = [clone(panel).fit_encoded(data.encoding, rows, seed=seed) for seed, rows in pairs]
    if approval_rate is not None:
        threshold = _first_threshold(data.rows, panels, approval_rate)
    config = replace(config, threshold_logit=threshold_logit(threshold))
    teacher = None
    if panels and config.method == "veritracer" and panels[0].strength != 0:
        rows, weights = data.rows.of_models()[: len(panels)], Distillation().times(panels[0].strength)
        teacher = Teacher(panels, rows, weights, config.threshold_logit)
    with monitor(verbose=verbose) as (on_epoch, interrupted):
        trained = train(
            config,
            data.encoding,
            data.rows,
            data.validation,
            seeds,
            teacher=teacher,
            start=start,
            checkpoint=checkpoint,
            on_epoch=on_epoch,
            interrupted=interrupted,
        )
    if trained.interrupted:
        remedy = f"the best of {len(trained.history[0])} epochs was kept; fit again to train to the end"
        warnings.warn(message("a whole run", trained.stopped, remedy), TrainingWarning, stacklevel=4)
    trained = replace(trained, panels=panels)
    return trained if approval_rate is None else _accepting(approval_rate, trained, config, data)


def _first_threshold(rows: LabelledRows, panels: Sequence[Panel], approval_rate: float) -> float:
    """Estimate the threshold that accepts this share of people, before there is a classifier."""
    x, y, weight = rows.to("cpu")
    if panels:
        score = torch.logit(panels[0].vote(x), eps=1e-6)
    else:
        from sklearn.linear_model import LogisticRegression  # imported here: few models need it

        linear = LogisticRegression(max_iter=1000).fit(x.numpy(), y.numpy(), weight[0].numpy())
        score = torch.from_numpy(linear.decision_function(x.numpy()))
    at = float(rate_threshold(score[weight[0] > 0], approval_rate))
    return float(torch.sigmoid(torch.tensor(at, dtype=torch.float64)).clamp(0.01, 0.99))


def _accepting(
    approval_rate: float, trained: TrainedModels, config: TrainingConfig, data: TrainingData
) -> TrainedModels:
    """Return the models with their last biases shifted so that each accepts this share of its rows."""
    network, offset = trained.network, config.threshold_logit
    shifted, thresholds = [], []
    for index, theta in enumerate(trained.theta):
        seen = [rows.seen(index)[0].double() for rows in (data.rows, data.validation)]
        at = rate_threshold(torch.cat([network.logit(theta, x) for x in seen]), approval_rate)
        thresholds.append(float(torch.sigmoid(at + offset)))
        shift = threshold_logit(thresholds[-1]) - offset
        readout = theta[-1].new_tensor(network.readout)
        shifted.append((*theta[:-1], theta[-1] - shift * readout / readout.square().sum()))
    return replace(trained, theta=shifted, thresholds=thresholds)
