"""Update a model and keep its promises: fine-tune inside the promised sets, measure, and audit.

It is compared with no update, with a free one and with training from scratch, each with what it makes of the
promises; for every limit the report says what it cost.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone
from torch import Tensor, nn

from veritracer.errors import PromiseError, TrainingError, VeriTracerWarning, message
from veritracer.files import document_text, envelope
from veritracer.ledger.auditing import Audit, audit
from veritracer.ledger.constraints import (
    SetConstraint,
    SetConstraints,
    UnprotectedPromises,
    quality,
    split,
    train_inside,
    unprotected,
)
from veritracer.ledger.ledger import Ledger, open_ledger
from veritracer.ledger.promises import SetRequirement
from veritracer.ledger.snapshot import Source
from veritracer.ledger.verdicts import VERDICTS, AuditedModel, Verdict
from veritracer.models.network import Theta, from_module, threshold_logit, to_module
from veritracer.models.param_sets import ParamSet
from veritracer.options import FINE_TUNING_EPOCHS
from veritracer.threads import one_thread
from veritracer.times import Moment
from veritracer.training import Panel
from veritracer.training.data import LabelledRows, as_table
from veritracer.training.distillation import PanelPenalty
from veritracer.training.fine_tuning import FINE_TUNE_LR_FACTOR, fine_tune

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER

MAX_RELEASES_TRIED = 5
"""The number of most binding constraints whose release is tried: each is an update of its own."""

AT_BORDER = 0.999
"""The share of its radius from which on a weight counts as held back."""


class Variant(StrEnum):
    """A way to go on from today's model; the value is its name in reports and JSON."""

    TODAY = "today"
    KEPT = "kept"
    FREE = "free"
    SCRATCH = "from scratch"


@dataclass(frozen=True)
class UpdateVariant:
    """One model that could decide from now on.

    Attributes
    ----------
    accuracy, loss
        On the new rows that were kept aside: share decided rightly, and mean cross-entropy.
    counts
        How many live promises get each verdict; None where there are no promises to keep.
    """

    accuracy: float
    loss: float
    counts: dict[str, int] | None = None

    @property
    def kept(self) -> float | None:
        """Return the share of live promises that are checked and not broken; None without any."""
        if not self.counts:
            return None
        live = sum(self.counts[verdict] for verdict in VERDICTS)
        lost = self.counts[Verdict.BROKEN] + self.counts[Verdict.NOT_CHECKABLE]
        return None if live == 0 else 1 - lost / live


@dataclass(frozen=True)
class ActiveConstraint:
    """One constraint, and its cost.

    Attributes
    ----------
    requirement
        Which promises: of which model, at which kappa, how many.
    used
        How far the updated model went, in radii of this limit: 1 is its border.
    at_border
        The share of all weights that the limit holds back.
    released
        The update without these promises; None where that was not tried.
    gain
        What that would be worth: accuracy won by releasing them.
    """

    requirement: SetRequirement
    used: float
    at_border: float
    released: UpdateVariant | None = None
    gain: float | None = None


@dataclass(frozen=True)
class UpdateReport:
    """The result of an update.

    Attributes
    ----------
    ways
        By name: ``today`` (no update), ``kept`` (inside of what was promised), ``free`` (wherever training
        goes) and ``from scratch``; those that were tried.
    constraints
        The tightest limit of each issuing model, the one that holds back most first.
    unproved
        How many promises no set protects, by the reason: they are kept by a penalty at best, and checked.
    newly_broken
        The numbers of promises that today's model keeps and the updated one does not.
    trained, held_out
        How many new rows were learned from, and how many were kept aside.
    max_loss
        How much accuracy the promises may cost against the better of the free update and of training from
        scratch; None is any.
    """

    ways: dict[str, UpdateVariant]
    constraints: tuple[ActiveConstraint, ...] = ()
    unproved: dict[str, int] = field(default_factory=dict)
    newly_broken: tuple[int, ...] = ()
    trained: int = 0
    held_out: int = 0
    max_loss: float | None = None

    @property
    def costs(self) -> dict[str, float]:
        """Return the accuracy lost by keeping the promises, against each model tried without them."""
        if Variant.KEPT not in self.ways:
            return {}
        others = [name for name in (Variant.FREE, Variant.SCRATCH) if name in self.ways]
        return {str(name): self.ways[name].accuracy - self.ways[Variant.KEPT].accuracy for name in others}

    @property
    def cost(self) -> float | None:
        """Return the accuracy lost against the best model without the promises; None without promises.

        That is the better of the free update and of training from scratch, where both were tried: the
        institution could have had either.
        """
        return max(self.costs.values(), default=None)

    @property
    def acceptable(self) -> bool:
        """Return whether keeping the promises costs no more than ``max_loss``."""
        return self.max_loss is None or self.cost is None or self.cost <= self.max_loss

    @property
    def ok(self) -> bool:
        """Return whether the update is acceptable and breaks no promise that was kept until now."""
        return self.acceptable and not self.newly_broken

    def __str__(self) -> str:
        return "\n".join(lines(self))

    def to_plain(self) -> dict[str, Any]:
        """Return the report as numbers, texts, lists and mappings."""
        body = {**asdict(self), "newly_broken": list(self.newly_broken)}
        numbers = {"ok": self.ok, "cost": self.cost, "costs": self.costs}
        return {**envelope("veritracer-update", 1), **numbers, **body}

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the report as JSON text, and write it to ``path`` if given."""
        return document_text(self.to_plain(), path)


def lines(report: UpdateReport) -> list[str]:
    """Return the report in sentences, a line for each way and each constraint."""
    said = [f"{report.trained:,} new rows learned from, {report.held_out:,} kept aside."]
    for name, way in report.ways.items():
        proved = "" if way.counts is None else f", {way.counts[Verdict.PROVED]:,} of them by proof"
        unknown = (way.counts or {}).get(Verdict.NOT_CHECKABLE, 0)
        proved += f", {unknown:,} cannot be checked" if unknown else ""
        kept = "" if way.kept is None else f"; {way.kept:.2%} of promises kept{proved}"
        said.append(f"{name}: accuracy {way.accuracy:.4f}{kept}")
    for one in report.constraints:
        gain = "" if one.gain is None else f"; releasing them gains {one.gain:+.4f} of accuracy"
        of = one.requirement
        said.append(
            f"{of.count:,} promises of {of.model[:12]} at kappa = {of.kappa:g}: "
            f"{one.used:.2f} of the radius used, {one.at_border:.1%} of the weights held back{gain}"
        )
    said += [f"{count:,} promises without a proof to keep ({why})" for why, count in report.unproved.items()]
    return said


FromScratch = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[AuditedModel, Tensor]]
"""Trains on the first positions of the new rows; returns the model and the second ones, encoded for it."""


@dataclass(frozen=True)
class UpdateSettings:
    """Settings of an update; ``VeriTraCER.update`` documents each."""

    at: Moment = None
    epochs: int = FINE_TUNING_EPOCHS
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


def constrained_update(
    audited: AuditedModel,
    x: Tensor,
    y: Tensor,
    source: Source | None,
    settings: UpdateSettings | None = None,
    *,
    scratch: FromScratch | None = None,
    held: Callable[[Theta], Tensor] | None = None,
) -> tuple[nn.Sequential, UpdateReport]:
    """Return the updated classifier and the report.

    ``x`` and ``y`` are new encoded rows (n, d) and 0/1 labels; ``source`` has the promises to keep, None for
    none. ``scratch`` trains anew; without it the same architecture is, from random weights. ``held`` is a
    penalty on the parameters that every way of updating has.

    Raises ``PromiseError``, with the report, where promises exclude each other, where keeping them costs
    more than ``max_loss``, and where more than ``allow_broken`` promises would be broken that are kept today.
    """
    job = _Job(audited, x, y, source, settings or UpdateSettings(), held)
    with one_thread(next(audited.module.parameters()).device.type == "cpu"):
        return _free(job, scratch) if source is None else _constrained(job, source, scratch)


@dataclass(frozen=True)
class _Job:
    """One update: the model, the new rows, and the promises."""

    audited: AuditedModel
    x: Tensor
    y: Tensor
    source: Source | None
    settings: UpdateSettings
    penalty: Callable[[Theta], Tensor] | None

    @cached_property
    def parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of the rows to learn from, and of those to judge on."""
        return split(self.y, self.settings.held_out, self.settings.random_state)

    def run(
        self, constraints: SetConstraints | None = None, rows: UnprotectedPromises | None = None
    ) -> nn.Sequential:
        """Return the classifier updated under these constraints."""
        chosen, (train, _) = self.settings, self.parts
        return train_inside(
            self.audited.module,
            self.x[train],
            self.y[train],
            None if constraints is None else constraints.intersection(self.audited),
            unprotected=rows,
            penalty=chosen.penalty,
            held=self.penalty,
            epochs=chosen.epochs,
            learning_rate=chosen.learning_rate,
            batch_size=chosen.batch_size,
            threshold=self.audited.threshold,
            random_state=chosen.random_state,
        )

    def judged(
        self, model: AuditedModel | nn.Module, x: Tensor | None = None
    ) -> tuple[UpdateVariant, Audit | None]:
        """Return the quality of a model on the held-out rows, and the audit of its promises.

        ``x`` has these rows as the model encodes them; without it the encoding is today's.
        """
        audited, held_out = (
            AuditedModel.of(model, self.audited.encoding, self.audited.threshold),
            self.parts[1],
        )
        x = self.x[held_out] if x is None else x
        accuracy, loss = quality(audited.module, x, self.y[held_out], audited.threshold)
        if self.source is None:
            return UpdateVariant(accuracy, loss), None
        found = audit(self.source, audited, at=self.settings.at, recourse=0)
        return UpdateVariant(accuracy, loss, found.counts), found

    def retrained(self, scratch: FromScratch | None) -> UpdateVariant:
        """Return the variant trained from scratch; without ``scratch`` in the same architecture."""
        if scratch is None:
            return self.judged(self._same_architecture())[0]
        return self.judged(*scratch(*self.parts))[0]

    def _same_architecture(self) -> nn.Sequential:
        """Train the same layers from random weights, at the full rate for as many epochs."""
        network, theta = from_module(self.audited.module)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.random_state)
            fresh = to_module(network, [t.detach() for t in theta])
            for layer in fresh:
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        train = self.parts[0]
        return fine_tune(
            fresh,
            self.x[train],
            self.y[train],
            epochs=self.settings.epochs,
            learning_rate=self.settings.learning_rate / FINE_TUNE_LR_FACTOR,
            batch_size=self.settings.batch_size,
            threshold=self.audited.threshold,
            random_state=self.settings.random_state,
        )

    def report(self, ways: dict[str, UpdateVariant], **more: Any) -> UpdateReport:
        """Return the report of an update."""
        train, held_out = map(len, self.parts)
        return UpdateReport(ways, trained=train, held_out=held_out, max_loss=self.settings.max_loss, **more)


def _free(job: _Job, scratch: FromScratch | None) -> tuple[nn.Sequential, UpdateReport]:
    """Update without promises."""
    free = job.run()
    ways: dict[str, UpdateVariant] = {
        Variant.TODAY: job.judged(job.audited)[0],
        Variant.FREE: job.judged(free)[0],
    }
    if job.settings.compare:
        ways[Variant.SCRATCH] = job.retrained(scratch)
    return free, job.report(ways)


def _constrained(
    job: _Job, source: Source, scratch: FromScratch | None
) -> tuple[nn.Sequential, UpdateReport]:
    """Update inside the promised sets."""
    chosen = job.settings
    with source.snapshot(chosen.at) as view:
        constraints = SetConstraints.of(view, job.audited, least_kappa=chosen.least_kappa)
        rows = unprotected(view, job.audited, constraints)
    updated = job.run(constraints, rows)
    (today, before), (inside, after) = job.judged(job.audited), job.judged(updated)
    assert before is not None
    assert after is not None
    ways: dict[str, UpdateVariant] = {
        Variant.TODAY: today,
        Variant.KEPT: inside,
        Variant.FREE: job.judged(job.run())[0],
    }
    if chosen.compare or chosen.max_loss is not None:
        ways[Variant.SCRATCH] = job.retrained(scratch)
    active = [(_active(constraint, updated), constraint) for constraint in constraints.tightest]
    active.sort(key=lambda pair: (pair[0].at_border, pair[0].used), reverse=True)
    for k, (one, constraint) in enumerate(active[: MAX_RELEASES_TRIED if chosen.compare else 0]):
        released, _ = job.judged(job.run(constraints.without(constraint), rows))
        gain = released.accuracy - inside.accuracy
        active[k] = replace(one, released=released, gain=gain), constraint
    broken = set(after.broken["sequence"].tolist()) - set(before.broken["sequence"].tolist())
    report = job.report(
        ways,
        constraints=tuple(one for one, _ in active),
        unproved=constraints.unproved(),
        newly_broken=tuple(sorted(broken)),
    )
    _insist(report, chosen)
    return updated, report


def _insist(report: UpdateReport, settings: UpdateSettings) -> None:
    """Raise if the update is not acceptable, or breaks promises."""
    numbers = "; ".join(str(report).splitlines())
    if not report.acceptable:
        expected = f"a model that keeps the promises and costs at most {report.max_loss:g} of accuracy"
        remedy = f"raise max_loss, or release promises ({numbers})"
        against = ", ".join(f"{cost:.4f} against {name}" for name, cost in report.costs.items())
        raise PromiseError(message(expected, f"a cost of {against}", remedy), report)
    if len(report.newly_broken) > settings.allow_broken:
        expected = f"at most {settings.allow_broken:,} promises that are newly broken"
        received = f"{len(report.newly_broken):,}, none of which has a proof that holds here"
        remedy = f"raise penalty, release them, or set allow_broken ({numbers})"
        raise PromiseError(message(expected, received, remedy), report)


def _active(constraint: SetConstraint, module: nn.Module) -> ActiveConstraint:
    """Return how far the updated model went against one constraint."""
    param_set = constraint.param_set
    moved = zip(param_set.displacements(module), param_set.radii, strict=True)
    used = max((share for share, radius in moved if radius > 0), default=0.0)
    return ActiveConstraint(constraint.requirement, used, _at_border(param_set, module))


def _at_border(param_set: ParamSet, module: nn.Module) -> float:
    """Return the share of weights at the border: single ones of a box, whole tensors of other balls."""
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


# ---------------------------------------------------------------- the estimator's next version

Model = TypeVar("Model", bound="VeriTraCER")


def update(
    model: Model,
    table: tuple[Any, ArrayLike],
    x: Tensor,
    *,
    keep: Ledger | str | os.PathLike[str] | None,
    panel: str | None,
    random_state: int,
    learning_rate: float | None,
    **options: Any,
) -> Model:
    """Return a copy of the estimator, fine-tuned inside the sets of all live promises in ``keep``.

    ``table`` has the new rows and their labels, as given; ``x`` the rows encoded, (n, d). ``options`` are
    those of ``UpdateSettings``.
    """
    rate = FINE_TUNE_LR_FACTOR * model.settings_.learning_rate
    chosen = UpdateSettings(
        learning_rate=rate if learning_rate is None else learning_rate,
        batch_size=model.settings_.batch_size,
        random_state=random_state,
        **options,
    )
    labels = torch.as_tensor(model.encoding_.schema.labels(table[1]), dtype=x.dtype)
    made = copy.copy(model)
    learned = split(labels, chosen.held_out, chosen.random_state)[0]
    rows = LabelledRows(x[learned].float(), labels[learned].float(), torch.ones(len(learned)))
    made.panel_ = _panel_for(model, panel, rows, chosen.random_state)
    with nullcontext() if keep is None else open_ledger(keep, create=False) as source:
        made.classifier_, made.update_ = constrained_update(
            AuditedModel.of(model),
            x,
            labels,
            source,
            chosen,
            scratch=lambda train, held: _retrained(model, table, train, held),
            held=_held_to_panel(made, rows, chosen.random_state),
        )
    return made


def _panel_for(model: VeriTraCER, choice: str | None, rows: LabelledRows, seed: int) -> Panel | None:
    """Return the panel of a model that is updated on these rows."""
    if choice not in ("keep", "refit", None):
        raise TrainingError(message("panel='keep', 'refit' or None", repr(choice), "choose one of them"))
    if model.panel_ is None or choice == "keep":
        return model.panel_
    if choice is None:
        return None
    refitted: Panel = clone(model.panel_).fit_encoded(model.encoding_, rows, seed=seed)
    return refitted


def _held_to_panel(model: VeriTraCER, rows: LabelledRows, seed: int) -> PanelPenalty | None:
    """Return the penalty that keeps an update close to the panel; None without an active panel."""
    if model.panel_ is None or model.panel_.strength == 0 or model.settings_.weight_accuracy <= 0:
        return None
    return PanelPenalty(
        model.panel_,
        model.encoding_,
        from_module(model.classifier_)[0],
        rows,
        threshold_logit=threshold_logit(model.threshold_),
        accuracy=model.settings_.weight_accuracy,
        random_state=seed,
    )


def _retrained(
    model: VeriTraCER, table: tuple[Any, ArrayLike], train: NDArray[np.int64], held: NDArray[np.int64]
) -> tuple[AuditedModel, Tensor]:
    """Train a model in the same way on some of the rows; return it and others, encoded for it."""
    rows, labels = as_table(table[0]), np.asarray(table[1])
    parts = [rows.iloc[part] if hasattr(rows, "iloc") else rows[part] for part in (train, held)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VeriTracerWarning)  # of a model that is only compared with
        other = type(model)(**{**model.get_params(deep=False), "schema": model.schema_})
        other.fit(parts[0], labels[train])
        return AuditedModel.of(other), other.encoding_.encode(parts[1])
