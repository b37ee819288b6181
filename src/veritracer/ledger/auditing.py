"""Audit a model: the verdict on every live promise, streamed in one pass.

Promises that the model does not keep are listed: whose they are, by how much they are broken, and what these
people could do now. Those that cannot be checked are listed too, each with the reason.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds.rounding import round_up
from veritracer.encoding import Encoding
from veritracer.engines import Engine, Serial
from veritracer.errors import DataWarning
from veritracer.files import document_text, envelope
from veritracer.ledger.promises import IssuingModel, Promises, select
from veritracer.ledger.records import Row, table_of
from veritracer.ledger.snapshot import Source
from veritracer.ledger.verdicts import (
    EXPIRED,
    VERDICTS,
    AuditedModel,
    AuditResults,
    Unchecked,
    Verdict,
)
from veritracer.options import AUDIT_RECOURSE
from veritracer.threads import one_thread
from veritracer.times import Moment, format_time, to_timestamp

CHUNK = 50_000

PROMISED = ("kappa", "model", "issued", "expires")


@dataclass(frozen=True)
class Group:
    """The promises of one issuing model at one kappa.

    Attributes
    ----------
    model, norm, kappa
        Which models were promised to be fine.
    counts
        How many promises got each verdict.
    incompatibility
        Why nothing can be proved, whatever the distance: another encoding, threshold or architecture.
    distances
        How far each tensor (W1, b1, W2, ...) moved, as a share of its promised radius: at most 1 is inside.
        Infinite for a tensor that moved where none was to; None where architectures differ.
    """

    model: str
    norm: str
    kappa: float
    counts: dict[str, int]
    incompatibility: str
    distances: tuple[float, ...] | None

    @property
    def farthest(self) -> float | None:
        """Return the largest of the distances."""
        return None if self.distances is None else max(self.distances)


class NewRecourse(NamedTuple):
    """New recourse for an applicant whose promise was broken.

    ``start`` says from where: their original row, or the promised row where the former is not kept
    or is accepted by now. ``changes`` are (feature, from, to) in raw values.
    """

    sequence: int
    id: str
    start: Literal["original row", "promised row"]
    status: str
    changes: tuple[tuple[str, Any, Any], ...]
    sentence: str


@dataclass(frozen=True)
class Audit:
    """The verdicts of one model on all live promises.

    Attributes
    ----------
    at
        The moment at which promises had to be live, in seconds since 1970.
    model_digest, encoding_digest, threshold
        The model that was audited.
    counts
        How many promises got each verdict, and how many are ``expired``.
    groups
        The same by issuing model and kappa, with the distance between the models; the farthest first.
    broken
        A table of all broken promises: sequence, id, logit (how far x′ is on the wrong side, rounded down to
        ten digits), kappa, model; the worst first, and the earlier one first where they are equal.
    recourse
        New recourse for the worst of them.
    unchecked
        A table of all promises that cannot be checked, with the reason: they are not called kept.
    ledger, head
        Where the promises were read from, and the newest link of the chain then; empty for promises that are
        in no ledger.
    """

    at: float
    model_digest: str
    encoding_digest: str
    threshold: float
    counts: dict[str, int]
    groups: tuple[Group, ...]
    broken: pd.DataFrame
    recourse: tuple[NewRecourse, ...]
    unchecked: pd.DataFrame
    ledger: str = ""
    head: str = ""

    @property
    def live(self) -> int:
        """Return how many promises were checked against the model."""
        return sum(self.counts[name] for name in VERDICTS)

    @property
    def ok(self) -> bool:
        """Return whether every promise is kept: none is broken, and all could be checked."""
        return self.counts[Verdict.BROKEN] == self.counts[Verdict.NOT_CHECKABLE] == 0

    def passes(self, *, allow_broken: int = 0, allow_unchecked: int = 0) -> bool:
        """Return whether at most so many promises are broken, or cannot be checked."""
        broken, unknown = self.counts[Verdict.BROKEN], self.counts[Verdict.NOT_CHECKABLE]
        return broken <= allow_broken and unknown <= allow_unchecked

    def __str__(self) -> str:
        parts = ", ".join(f"{self.counts[name]:,} {name}" for name in (*VERDICTS, EXPIRED))
        return f"{self.live:,} live promises: {parts}"

    __repr__ = __str__  # and not the table of broken ones

    def table(self) -> pd.DataFrame:
        """Return the broken promises, the worst first."""
        return self.broken

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the whole audit as JSON text, and write it to ``path`` if given."""
        return document_text(self.to_plain(), path)

    def to_plain(self) -> dict[str, Any]:
        """Return the whole audit as numbers, texts, lists and mappings."""
        return {
            **envelope("veritracer-audit", 1),
            "at": format_time(self.at),
            "ok": self.ok,
            "live": self.live,
            "counts": self.counts,
            "model_digest": self.model_digest,
            "encoding_digest": self.encoding_digest,
            "threshold": self.threshold,
            "ledger": self.ledger,
            "head": self.head,
            "groups": [_plain_group(group) for group in self.groups],
            "broken": self.broken.to_dict("records"),
            "recourse": [_plain_recourse(one) for one in self.recourse],
            "unchecked": self.unchecked.to_dict("records"),
        }


def audit(
    source: Source,
    model: Any,
    *,
    encoding: Encoding | None = None,
    threshold: float | None = None,
    at: Moment = None,
    recourse: int | None = AUDIT_RECOURSE,
    chunk: int = CHUNK,
    watch: Callable[[int, float | None], None] | None = None,
    engine: Engine | None = None,
    since: int = 0,
) -> Audit:
    """Return the verdict of ``model`` on every promise that is live at that time.

    Parameters
    ----------
    source
        A ``Ledger``, or a ``Snapshot`` of one. All is read from one state of it.
    model, encoding, threshold
        A fitted VeriTraCER, a ``Recourse``, or a torch module with its ``encoding``. The sign of the logit is
        the decision; a module's ``threshold`` (0.5) says at which probability that is, and has to be that of
        the issuing model for a proof.
    recourse
        How many of the broken promises get new recourse, the worst first; None is all of them.
    chunk
        Promises that are read at once.
    watch
        Called with the number of promises done, and the share of all.
    engine
        Where promises are judged, such as ``engines.make_engine("local", 8)``; by default in this process.
    since
        The number of an entry: only later promises are audited. By default all are.
    """
    now = to_timestamp(at)
    audited = AuditedModel.of(model, encoding, threshold)
    on_cpu = next(audited.module.parameters()).device.type == "cpu"
    with one_thread(on_cpu):
        with source.snapshot(at) as view:
            run, counted = _Run(audited, view.models()), view.counts()
            origin, head = view.place, view.head
            raw_for = view.raw_needed(audited.encoding.digest)
            pieces = view.promises(chunk=chunk, raw_for=raw_for, since=since)
            for promises, judged in run.judged(pieces, engine or Serial()):
                run.add(promises, judged)
                if watch is not None:
                    watch(run.done, run.done / max(counted.live, 1))
            broken = _joined(run.broken, "logit", ["logit", "sequence"])
            worst = [view.shown(number) for number in broken["sequence"].tolist()[:recourse]]
        found = _new_recourse(audited, worst)  # the ledger is not held up by the search
    return Audit(
        at=now,
        model_digest=audited.network.digest(audited.theta),
        encoding_digest=audited.encoding.digest,
        threshold=audited.threshold,
        counts={**run.counts(), EXPIRED: int(counted.expired)},
        groups=run.by_group(),
        broken=broken,
        recourse=found,
        unchecked=_joined(run.unchecked, "reason", ["sequence"]),
        ledger=origin,
        head=head,
    )


@dataclass
class _Run:
    """The state of an audit: verdicts counted by issuing model and kappa, and promises to be listed."""

    audited: AuditedModel
    models: Mapping[str, IssuingModel]
    broken: list[pd.DataFrame] = field(default_factory=list)
    unchecked: list[pd.DataFrame] = field(default_factory=list)
    groups: dict[tuple[str, float], NDArray[np.int64]] = field(default_factory=dict)
    done: int = 0

    def judged(self, pieces: Iterable[Promises], engine: Engine) -> Iterator[tuple[Promises, AuditResults]]:
        """Yield pieces of promises with their verdicts, in whatever order they are judged."""
        away: dict[int, Promises] = {}

        def sent() -> Iterator[tuple[int, Promises, IssuingModel]]:
            for number, promises in enumerate(pieces):
                away[number] = promises
                yield number, promises, self.models[promises.model]

        for number, judged in engine.map(partial(_judge, self.audited), sent()):
            yield away.pop(number), judged

    def add(self, promises: Promises, judged: AuditResults) -> None:
        """Count these verdicts, and list what is broken or not checkable."""
        kappas, which = np.unique(promises.kappa, return_inverse=True)
        counts = np.zeros((len(kappas), len(VERDICTS)), dtype=np.int64)
        np.add.at(counts, (which, judged.verdict), 1)
        for kappa, row in zip(kappas.tolist(), counts, strict=True):
            key = promises.model, kappa
            self.groups[key] = self.groups.get(key, 0) + row
        rows = np.flatnonzero(judged.verdict == Verdict.BROKEN.code)
        if len(rows):
            self.broken.append(_listed(select(promises, rows), logit=judged.margin[rows]))
        rows = np.flatnonzero(judged.verdict == Verdict.NOT_CHECKABLE.code)
        if len(rows):
            sentences = np.array([reason.value for reason in Unchecked], dtype=object)
            self.unchecked.append(_listed(select(promises, rows), reason=sentences[judged.why[rows]]))
        self.done += len(promises)

    def counts(self) -> dict[str, int]:
        """Return how many promises got each verdict."""
        return _named(sum(self.groups.values(), np.zeros(len(VERDICTS), dtype=np.int64)))

    def by_group(self) -> tuple[Group, ...]:
        """Return the same by issuing model and kappa."""
        found = (_group(self.audited, self.models[m], kappa, n) for (m, kappa), n in self.groups.items())
        return tuple(sorted(found, key=_how_far, reverse=True))


def _judge(audited: AuditedModel, item: tuple[int, Promises, IssuingModel]) -> tuple[int, AuditResults]:
    """Judge one piece of promises; return its number too, because pieces come back in any order."""
    number, promises, issuing = item
    return number, audited.judge(promises, issuing)


def _named(counts: NDArray[np.int64]) -> dict[str, int]:
    return dict(zip(VERDICTS, counts.tolist(), strict=True))


def _group(audited: AuditedModel, issuing: IssuingModel, kappa: float, counts: NDArray[np.int64]) -> Group:
    why, distances = audited.incompatibility(issuing), _distances(issuing, kappa, audited)
    return Group(issuing.digest, issuing.norm, kappa, _named(counts), why, distances)


def _distances(issuing: IssuingModel, kappa: float, audited: AuditedModel) -> tuple[float, ...] | None:
    """Return how far each tensor moved, in promised radii; None where architectures differ."""
    if not audited.has_architecture_of(issuing):
        return None
    shares = issuing.param_set(kappa).displacements(audited.theta)
    return tuple(round_up(torch.tensor(shares, dtype=torch.float64)).tolist())


def _how_far(group: Group) -> tuple[int, float]:
    return group.counts[Verdict.BROKEN], np.inf if group.farthest is None else group.farthest


def _new_recourse(audited: AuditedModel, broken: Sequence[dict[str, Any]]) -> tuple[NewRecourse, ...]:
    """Return new recourse by the audited model for broken promises, from people's own rows where known."""
    if not broken:
        return ()
    favourable = torch.tensor([one["favourable"] for one in broken])
    known = [one["original"] is not None for one in broken]
    own = [one["original"] if there else one["values"] for one, there in zip(broken, known, strict=True)]
    same = _decided(audited, own) == favourable
    from_own = (torch.tensor(known) & same).tolist()
    start = [row if there else one["values"] for row, one, there in zip(own, broken, from_own, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # a row of another encoding may be out of range
        found = audited.recourse().explain(
            _table(audited, start), only_unfavourable=False, search_radius=False
        )
    return tuple(
        NewRecourse(
            one["sequence"],
            one["id"],
            "original row" if from_own[i] else "promised row",
            str(found.status[i]),
            tuple((c.feature.name, c.before, c.after) for c in found.changes_of(i)),
            found.sentence(i),
        )
        for i, one in enumerate(broken)
    )


def _listed(some: Promises, **more: Any) -> pd.DataFrame:
    """Return a line for each promise: its applicant, further columns, and what was promised."""
    return pd.DataFrame(
        {
            "sequence": some.sequence,
            "id": some.ids,
            **more,
            "kappa": some.kappa,
            "model": some.model,
            "issued": some.issued,
            "expires": some.expires,
        }
    )


def _joined(pieces: list[pd.DataFrame], column: str, order: list[str]) -> pd.DataFrame:
    """Return the pieces as one table, with dates as text."""
    if not pieces:
        return pd.DataFrame({name: [] for name in ("sequence", "id", column, *PROMISED)})
    whole = pd.concat(pieces).sort_values(order, ignore_index=True)
    for name in ("issued", "expires"):
        whole[name] = [format_time(moment) for moment in whole[name]]
    return whole


def _table(audited: AuditedModel, rows: Sequence[Row]) -> pd.DataFrame:
    return table_of(rows, audited.encoding.schema.names)


def _decided(audited: AuditedModel, rows: Sequence[Row]) -> Tensor:
    """Return whether the audited model is favourable to each raw row, (n,)."""
    x = audited.encoding.encode(_table(audited, rows), out_of_range="ignore")
    with torch.no_grad():
        return audited.network.logit(audited.theta, x) > 0


def _plain_group(group: Group) -> dict[str, Any]:
    shares = group.distances
    plain = None if shares is None else [None if np.isinf(share) else share for share in shares]
    return {**vars(group), "distances": plain}


def _plain_recourse(one: NewRecourse) -> Mapping[str, Any]:
    changes = [dict(zip(("feature", "from", "to"), map(_cell, c), strict=True)) for c in one.changes]
    return {**one._asdict(), "changes": changes}


def _cell(value: Any) -> Any:
    if value is None or value is pd.NA or value is pd.NaT or value != value:
        return None
    return value if isinstance(value, bool | int | float | str) else str(value)
