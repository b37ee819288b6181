"""The promise-keeping update: fine-tuned inside of what was promised, measured, and checked by an audit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer.decisions import threshold_logit
from veritracer.errors import TrainingError, message
from veritracer.fine_tuning import EPOCHS, FINE_TUNE_LR_FACTOR, fine_tune
from veritracer.ledger.auditing import Audit, audit
from veritracer.ledger.candidate import Candidate
from veritracer.ledger.keeping import Demand, Demands, Exposed, PromiseError, exposed
from veritracer.ledger.sources import Source
from veritracer.ledger.times import Moment
from veritracer.ledger.update_report import Binding, UpdateReport, Way
from veritracer.ledger.updating import update
from veritracer.network import Theta, from_module, to_module
from veritracer.param_sets import ParamSet
from veritracer.threads import one_thread

MOST_RELEASED = 5
"""Limits, the most binding ones, whose release is tried: each is an update of its own."""

AT_BORDER = 0.999
"""A weight is held back where it has gone this share of the way that its limit leaves."""


class Anew(NamedTuple):
    """A model trained from scratch, and how good it is on the rows kept aside."""

    candidate: Candidate
    accuracy: float
    loss: float


FromScratch = Callable[[NDArray[np.int64], NDArray[np.int64]], Anew]
"""Trains on the first positions of the new rows, and judges on the second."""


@dataclass(frozen=True)
class Settings:
    """How to update; ``VeriTraCER.update`` documents each choice."""

    at: Moment = None
    epochs: int = EPOCHS
    learning_rate: float = FINE_TUNE_LR_FACTOR * 2e-3
    batch_size: int = 128
    random_state: int = 0
    penalty: float = 1.0
    least_kappa: float = 0.0
    max_loss: float | None = None
    allow_broken: int = 0
    held_out: float = 0.2
    compare: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise TrainingError(
                message("held_out between 0 and 1", repr(self.held_out), "0.2 is the default")
            )
        if not 0 < self.learning_rate < float("inf") or self.epochs < 1:
            received = f"{self.learning_rate} and {self.epochs}"
            expected = "a positive learning_rate and 1 epoch or more"
            raise TrainingError(message(expected, received, "leave them out for the defaults"))
        if self.penalty < 0 or self.least_kappa < 0 or (self.max_loss is not None and self.max_loss < 0):
            received = f"{self.penalty}, {self.least_kappa} and {self.max_loss}"
            expected = "penalty, least_kappa and max_loss of at least 0"
            raise TrainingError(message(expected, received, "correct the negative one"))


def kept_update(
    candidate: Candidate,
    x: Tensor,
    y: Tensor,
    source: Source | None,
    settings: Settings | None = None,
    *,
    scratch: FromScratch | None = None,
    held: Callable[[Theta], Tensor] | None = None,
) -> tuple[nn.Sequential, UpdateReport]:
    """The updated classifier, and what the update came to.

    ``x`` and ``y`` are new encoded rows (n, d) and 0/1 labels; ``source`` has the promises to keep, None for
    none. ``scratch`` trains anew; without it the same architecture is, from random weights. ``held`` is a
    penalty on the parameters that every way of updating has.

    Raises ``PromiseError``, with the report, where promises exclude each other, where keeping them costs
    more than ``max_loss``, and where more than ``allow_broken`` promises would be broken that are kept today.
    """
    job = _Job.of(candidate, x, y, source, settings or Settings(), held)
    with one_thread(next(candidate.module.parameters()).device.type == "cpu"):
        return _free(job, scratch) if source is None else _kept(job, source, scratch)


@dataclass(frozen=True)
class _Job:
    """One update: the model, the new rows in two parts, the promises."""

    candidate: Candidate
    x: Tensor
    y: Tensor
    source: Source | None
    settings: Settings
    train: NDArray[np.int64]
    held: NDArray[np.int64]
    penalty: Callable[[Theta], Tensor] | None

    @classmethod
    def of(
        cls,
        candidate: Candidate,
        x: Tensor,
        y: Tensor,
        source: Source | None,
        settings: Settings,
        penalty: Callable[[Theta], Tensor] | None,
    ) -> _Job:
        train, held = split(y, settings.held_out, settings.random_state)
        return cls(candidate, x, y, source, settings, train, held, penalty)

    def run(self, demands: Demands | None, rows: Exposed | None) -> nn.Sequential:
        """The update under these demands."""
        chosen = self.settings
        return update(
            self.candidate.module,
            self.x[self.train],
            self.y[self.train],
            None if demands is None else demands.intersection(self.candidate),
            exposed=rows,
            penalty=chosen.penalty,
            held=self.penalty,
            epochs=chosen.epochs,
            learning_rate=chosen.learning_rate,
            batch_size=chosen.batch_size,
            threshold=self.candidate.threshold,
            random_state=chosen.random_state,
        )

    def judged(self, module: nn.Module) -> tuple[Way, Audit | None]:
        """How good a classifier is, and what it makes of the promises."""
        accuracy, loss = quality(module, self.x[self.held], self.y[self.held], self.candidate.threshold)
        if self.source is None:
            return Way(accuracy, loss), None
        found = audit(self.source, self.candidate.with_module(module), at=self.settings.at, recourse=0)
        return Way(accuracy, loss, found.counts), found

    def anew(self, scratch: FromScratch | None) -> Way:
        """Training from scratch."""
        made = (scratch or self._same_architecture)(self.train, self.held)
        found = None
        if self.source is not None:
            found = audit(self.source, made.candidate, at=self.settings.at, recourse=0).counts
        return Way(made.accuracy, made.loss, found)

    def _same_architecture(self, train: NDArray[np.int64], held: NDArray[np.int64]) -> Anew:
        """The same layers from random weights, trained at the full rate for as many epochs."""
        network, theta = from_module(self.candidate.module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.random_state)
            fresh = to_module(network, [t.detach() for t in theta])
            for layer in fresh:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        made = fine_tune(
            fresh,
            self.x[train],
            self.y[train],
            epochs=self.settings.epochs,
            learning_rate=self.settings.learning_rate / FINE_TUNE_LR_FACTOR,
            batch_size=self.settings.batch_size,
            threshold=self.candidate.threshold,
            random_state=self.settings.random_state,
        )
        scores = quality(made, self.x[held], self.y[held], self.candidate.threshold)
        return Anew(self.candidate.with_module(made), *scores)

    def report(self, ways: dict[str, Way], **more: object) -> UpdateReport:
        counts = {"trained": len(self.train), "held_out": len(self.held)}
        return UpdateReport(ways, **counts, max_loss=self.settings.max_loss, **more)  # type: ignore[arg-type]


def _free(job: _Job, scratch: FromScratch | None) -> tuple[nn.Sequential, UpdateReport]:
    """The update without promises."""
    module = job.run(None, None)
    ways = {"today": job.judged(job.candidate.module)[0], "free": job.judged(module)[0]}
    if job.settings.compare:
        ways["from scratch"] = job.anew(scratch)
    return module, job.report(ways)


def _kept(job: _Job, source: Source, scratch: FromScratch | None) -> tuple[nn.Sequential, UpdateReport]:
    """The update inside of what was promised."""
    chosen = job.settings
    with source.snapshot(chosen.at) as view:
        demands = Demands.of(view, job.candidate, least_kappa=chosen.least_kappa)
        rows = exposed(view, job.candidate, demands)
    module = job.run(demands, rows)
    today, before = job.judged(job.candidate.module)
    kept, after = job.judged(module)
    assert before is not None
    assert after is not None
    ways = {"today": today, "kept": kept, "free": job.judged(job.run(None, None))[0]}
    if chosen.compare:
        ways["from scratch"] = job.anew(scratch)
    bound = tuple(sorted((_binding(d, module) for d in demands.tightest), key=_pressure, reverse=True))
    if chosen.compare:
        bound = _released(job, demands, rows, bound, kept.accuracy)
    broken = sorted(set(after.broken["sequence"].tolist()) - set(before.broken["sequence"].tolist()))
    report = job.report(
        ways, limits=bound, unproved=demands.unproved(), newly_broken=tuple(int(b) for b in broken)
    )
    _insist(report, chosen)
    return module, report


def _released(
    job: _Job, demands: Demands, rows: Exposed, bound: tuple[Binding, ...], accuracy: float
) -> tuple[Binding, ...]:
    """The limits, the first few with what releasing their promises would gain."""
    by_limit = {demand.limit: demand for demand in demands.tightest}
    tried = []
    for one in bound[:MOST_RELEASED]:
        way, _ = job.judged(job.run(demands.without(by_limit[one.limit]), rows))
        tried.append(replace(one, released=way, gain=way.accuracy - accuracy))
    return (*tried, *bound[MOST_RELEASED:])


def _insist(report: UpdateReport, settings: Settings) -> None:
    """Nothing; raises where the update is not acceptable, or breaks promises."""
    numbers = "; ".join(str(report).splitlines())
    if not report.acceptable:
        expected = f"a model that keeps the promises and costs at most {report.max_loss:g} of accuracy"
        remedy = f"raise max_loss, or release promises ({numbers})"
        raise PromiseError(message(expected, f"a cost of {report.cost:.4f}", remedy), report)
    if len(report.newly_broken) > settings.allow_broken:
        expected = f"at most {settings.allow_broken:,} promises that are newly broken"
        received = f"{len(report.newly_broken):,}, none of which has a proof that holds here"
        remedy = f"raise penalty, release them, or set allow_broken ({numbers})"
        raise PromiseError(message(expected, received, remedy), report)


def _binding(demand: Demand, module: nn.Module) -> Binding:
    """How far the updated model went against one limit."""
    param_set = demand.param_set
    moved = zip(param_set.displacements(module), param_set.radii, strict=True)
    used = max((share for share, radius in moved if radius > 0), default=0.0)
    return Binding(demand.limit, used, _at_border(param_set, module))


def _at_border(param_set: ParamSet, module: nn.Module) -> float:
    """The share of weights that can not go on: single ones of a box, all of a tensor's for other balls."""
    theta = from_module(module)[1]
    held = total = 0
    distances = param_set.distances(theta)
    for t, center, radius, distance in zip(theta, param_set.center, param_set.radii, distances, strict=True):
        if radius == 0:
            continue
        if param_set.norm == "linf":
            held += int(((t.detach().double() - center).abs() >= AT_BORDER * radius).sum())
        else:
            held += t.numel() * (distance >= AT_BORDER * float(radius))
        total += t.numel()
    return held / max(total, 1)


def _pressure(one: Binding) -> tuple[float, float]:
    return one.at_border, one.used


def split(y: Tensor, share: float, random_state: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions to learn from and positions to judge on, with both labels in proportion."""
    rng = np.random.default_rng(random_state)
    held = []
    for label in (0, 1):
        rows = np.flatnonzero(y.numpy() == label)
        held.append(rng.permutation(rows)[: max(round(share * len(rows)), 1)])
    aside = np.sort(np.concatenate(held))
    train = np.setdiff1d(np.arange(len(y)), aside)
    if len(train) == 0:
        received = f"{len(y):,} rows"
        raise TrainingError(message("new rows to learn from and some to judge on", received, "give more"))
    return train, aside


@torch.no_grad()
def quality(module: nn.Module, x: Tensor, y: Tensor, threshold: float) -> tuple[float, float]:
    """The share of encoded rows that is decided rightly, and the mean cross-entropy."""
    network, theta = from_module(module)
    logit = network.logit(tuple(t.double() for t in theta), x.double())
    right = (logit > 0) == (y > 0.5)
    shifted = logit + threshold_logit(threshold)
    loss = nn.functional.binary_cross_entropy_with_logits(shifted, y.double())
    return float(right.double().mean()), float(loss)
