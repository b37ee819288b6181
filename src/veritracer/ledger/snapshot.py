"""Promises in one state: read from a ledger within one transaction, or held in memory.

A ``Source`` gives a ``View`` of its promises at a moment, whatever is written meanwhile, and all answers of
one view agree. That is all that audits and updates ask for: a ``Ledger`` is one source, and promises
``in_memory`` (for experiments, and for tests) are another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from veritracer.errors import LedgerError, NoRecordError, message
from veritracer.ledger.chain import Kind, content_of
from veritracer.ledger.promises import (
    Counts,
    IssuingModel,
    Promises,
    RawRows,
    SetRequirement,
    Told,
    promised_ends,
    select,
)
from veritracer.ledger.records import (
    ADVICE,
    CERTIFIED,
    CONDITIONAL,
    ENCRYPTED,
    FACTS,
    FAVOURABLE,
    HASH,
    METHODS,
    SALT,
    commitment,
    from_json,
    headers,
    private,
    raw_rows,
    to_promises,
)
from veritracer.ledger.verification import Check, Verification
from veritracer.times import Moment, format_time, to_timestamp

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from veritracer.counterfactuals import Counterfactuals
    from veritracer.ledger.store import Reader

CHUNK = 20_000
"""Promises that are read at once: some 80 MB at 25 encoded columns; more at once is not faster."""

WITH_TEXTS = 10_000
"""Promises that are read at once, at most, where their texts are: each is some thousand bytes then."""


class View(Protocol):
    """Promises in one state and at one time: whatever is read from it belongs together."""

    def models(self) -> Mapping[str, IssuingModel]:
        """The issuing models by digest."""

    def promises(self, *, chunk: int = ..., raw_for: Collection[str] = ()) -> Iterator[Promises]:
        """The live promises, each piece of one issuing model; raw values too where it is in ``raw_for``."""

    def told(self, sequence: Sequence[int]) -> list[Told]:
        """The raw values that people were shown, and their own."""

    def requirements(self) -> list[SetRequirement]:
        """The sets that live promises ask a later model to stay in."""

    def counts(self) -> Any:
        """How many promises are live, expired, released and erased."""

    def reference(self) -> LedgerRef:
        """Which promises these are."""


class LedgerRef(NamedTuple):
    """Where promises were read from, and in which state: the newest link of the chain. Empty in memory."""

    ledger: str = ""
    head: str = ""


class Source(Protocol):
    """Where promises are read from: a ``Ledger``, a ``Snapshot`` of one, or promises ``in_memory``."""

    def snapshot(self, at: Moment = None) -> AbstractContextManager[View]:
        """The promises as they are now, on the day ``at``."""


def raw_needed(view: View, encoding_digest: str) -> set[str]:
    """The issuing models whose promises a model with that encoding has to read in raw values."""
    return {m.digest for m in view.models().values() if m.encoding.digest != encoding_digest}


class Snapshot:
    """The ledger within one transaction that reads: at one moment, or with ``at`` on an earlier day.

    It is what an audit reads from. A promise that is issued meanwhile, or a model, is not in it.
    """

    def __init__(
        self,
        reader: Reader,
        known: dict[int, IssuingModel],
        cipher: Fernet | None,
        at: Moment = None,
        place: str = "",
    ) -> None:
        self._reader, self._known, self._cipher, self._place = reader, known, cipher, place
        self._at = None if at is None else to_timestamp(at)
        self.time = to_timestamp(at)

    @contextmanager
    def snapshot(self, at: Moment = None) -> Iterator[Snapshot]:
        """The same state on another day."""
        yield Snapshot(self._reader, self._known, self._cipher, at, self._place)

    def reference(self) -> LedgerRef:
        """The ledger, and its newest link in this state."""
        return LedgerRef(self._place, self._reader.head().hex())

    def models(self) -> dict[str, IssuingModel]:
        """The models that issued promises, by digest."""
        return {model.digest: model for model in self._models.values()}

    def promises(
        self, *, expired: bool = False, chunk: int = CHUNK, raw_for: Collection[str] = ()
    ) -> Iterator[Promises]:
        """The live promises, with ``expired`` also those past their end; each chunk of one issuing model.

        Those of the models in ``raw_for`` come with their raw values.
        """
        for number, model in self._models.items():
            raw = model.digest in raw_for
            size = min(chunk, WITH_TEXTS) if raw else chunk
            for rows in self._reader.promises(number, size, with_texts=raw):
                status = PromiseStatus.of(rows, self._revoked, self._at, self.time)
                kept = status.live | (status.expired & status.made) if expired else status.live
                if kept.any():
                    some = rows if kept.all() else [rows[i] for i in np.flatnonzero(kept).tolist()]
                    yield to_promises(model, some, status.header[kept], self._cipher)

    def told(self, sequence: Sequence[int]) -> list[Told]:
        """What the people of these promises were shown, and what they have."""
        found = self._reader.texts(sequence)
        gone = [number for number in sequence if number not in found]
        if gone:
            remedy = "it may have been erased: see Ledger.counts()"
            raise NoRecordError(message(f"a record of promise {gone[0]}", "none", remedy))
        return [self._told(*found[number]) for number in sequence]

    def counts(self) -> Counts:
        """How many promises are live, and how many have expired or are gone."""
        total = np.zeros(5, dtype=np.int64)
        for _, status in self._statuses():
            groups = status.live, status.expired, status.released, status.erased, status.advice
            total += [int((status.made & group).sum()) for group in groups]
        return Counts(*total.tolist())

    def requirements(self) -> list[SetRequirement]:
        """What live promises ask of a later model: one entry for each issuing model and kappa."""
        found: dict[tuple[str, float], tuple[int, int]] = {}
        for digest, status in self._statuses():
            header = status.header[status.live]
            conditional = (header["flags"] & CONDITIONAL) > 0
            for kappa in np.unique(header["kappa"]).tolist():
                these = header["kappa"] == kappa
                before = found.get((digest, kappa), (0, 0))
                counts = int(these.sum()), int((these & conditional).sum())
                found[digest, kappa] = before[0] + counts[0], before[1] + counts[1]
        return [SetRequirement(digest, kappa, *counts) for (digest, kappa), counts in found.items()]

    def history(self) -> list[dict[str, Any]]:
        """What happened besides promises, in order."""
        kinds: tuple[Kind, ...] = (
            "migration",
            "model",
            "release",
            "erasure",
            "audit",
            "update",
            "deployment",
        )
        found = []
        for seq, kind, header in self._reader.events(*kinds):
            content = content_of(kind, header)
            dates: dict[str, Any] = {
                name: format_time(content[name]) for name in ("time", "at") if name in content
            }
            found.append({"number": int(seq), "kind": str(kind), **content, **dates})
        return found

    def listing(self, identity: str | None = None) -> pd.DataFrame:
        """Every promise with what has become of it."""
        lines: list[tuple[Any, ...]] = []
        people: dict[int, str] = dict(self._people(identity))
        for digest, status in self._statuses():
            words = status.words()
            for k, number in enumerate(status.sequence.tolist()):
                if identity is not None and number not in people:
                    continue
                head = status.header[k]
                issued, expires = (format_time(float(head[name])) for name in ("issued", "expires"))
                kappa = float(head["kappa"])
                lines.append((number, people.get(number), words[k], issued, expires, kappa, digest))
        columns = ["number", "id", "status", "issued", "expires", "kappa", "model"]
        return pd.DataFrame(lines, columns=columns).sort_values("number", ignore_index=True)

    def _people(self, identity: str | None) -> Iterator[tuple[int, str]]:
        """The number and the id of promises with a record."""
        if identity is not None:
            who = identity.encode()
            yield from ((number, identity) for number in self._reader.of(who)[who])
            return
        for rows in self._reader.people(CHUNK):
            yield from ((int(seq), who.decode()) for seq, who in rows)

    def kept(self, sequence: int) -> tuple[StoredPromise, IssuingModel]:
        """The record of one promise, and who issued it."""
        row = self._reader.record(sequence)
        if row is None:
            remedy = "it may have been erased: see Ledger.counts()"
            raise NoRecordError(message(f"a record of promise {sequence}", "none", remedy))
        kept = StoredPromise(*row)
        if kept.model not in self._models:
            remedy = "the ledger was changed: run veritracer verify"
            raise LedgerError(message(f"the model of promise {sequence}", "none", remedy))
        return kept, self._models[kept.model]

    def status(self, sequence: int, header: bytes) -> str:
        """What has become of one promise, in a word: live, expired, released or advice."""
        return PromiseStatus.of([(sequence, header)], self._revoked, self._at, self.time).words()[0]

    def verify(self, head: bytes | None = None, *, chunk: int = CHUNK // 2) -> Verification:
        """Whether the ledger is what was written, entry by entry."""
        check = Check(head, self._cipher)
        for rows in self._reader.everything(chunk):
            check.entries(rows)
        return check.conclude(self._reader.sizes(), self._reader.migrations())

    @cached_property
    def _models(self) -> dict[int, IssuingModel]:
        """The issuing models by the number of their entry; they never change, and are read once."""
        numbers = [int(seq) for seq, _, _ in self._reader.events("model")]
        for seq in numbers:
            if seq not in self._known:
                self._known[seq] = IssuingModel.from_bytes(*self._reader.model(seq))
        return {seq: self._known[seq] for seq in numbers}

    @cached_property
    def _revoked(self) -> Revocations:
        return Revocations.of(self._reader.events("release", "erasure"), self._at)

    def _statuses(self) -> Iterator[tuple[str, PromiseStatus]]:
        """The headers of all promises, with the digest of their model."""
        for number, model in self._models.items():
            for rows in self._reader.headers(number, CHUNK):
                yield model.digest, PromiseStatus.of(rows, self._revoked, self._at, self.time)

    def _told(self, header: bytes, shown: bytes, original: bytes | None) -> Told:
        locked = int(headers([header])[0]["original"]) == ENCRYPTED
        own = private(original, self._cipher, encrypted=locked)
        return Told(from_json(shown), None if own is None else own.get("row"))


@dataclass(frozen=True)
class Revocations:
    """The numbers of promises that were given back, and of those whose record was erased; sorted."""

    released: NDArray[np.int64]
    erased: NDArray[np.int64]

    @classmethod
    def of(cls, events: Iterable[Any], at: float | None) -> Revocations:
        """From the entries that say so; releases count from their day on."""
        found: dict[str, list[int]] = {"release": [], "erasure": []}
        for _, kind, header in events:
            content = content_of(kind, header)
            if kind == "erasure" or at is None or content["time"] <= at:
                found[kind] += content["sequence"]
        return cls(*(np.unique(np.array(found[kind], dtype=np.int64)) for kind in found))


@dataclass(frozen=True)
class PromiseStatus:
    """Number and header of some promises, and what has become of each by a moment."""

    sequence: NDArray[np.int64]
    header: NDArray[Any]
    made: NDArray[np.bool_]
    erased: NDArray[np.bool_]
    released: NDArray[np.bool_]
    advice: NDArray[np.bool_]
    expired: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Any], revoked: Revocations, at: float | None, now: float) -> PromiseStatus:
        """From rows that begin with number and header; without ``at`` all that were made count."""
        sequence = np.fromiter((row[0] for row in rows), np.int64, len(rows))
        header = headers([row[1] for row in rows])
        made = np.ones(len(rows), bool) if at is None else header["issued"] <= at
        erased = np.isin(sequence, revoked.erased)
        released = np.isin(sequence, revoked.released) & ~erased
        advice = ((header["flags"] & ADVICE) > 0) & ~released & ~erased
        expired = (header["expires"] <= now) & ~released & ~erased & ~advice
        return cls(sequence, header, made, erased, released, advice, expired)

    @property
    def live(self) -> NDArray[np.bool_]:
        """What still has to be kept."""
        return self.made & ~(self.erased | self.released | self.expired | self.advice)

    def words(self) -> list[str]:
        """What has become of each, in a word."""
        parts = {"erased": self.erased, "released": self.released, "advice": self.advice}
        parts |= {"expired": self.expired, "live": self.live}
        return [str(w) for w in np.select([*parts.values()], [*parts], "not made yet")]


class StoredPromise(NamedTuple):
    """What the ledger keeps of one promise."""

    model: int
    header: bytes
    commitments: bytes
    who: bytes
    shown: bytes
    x: bytes | None
    original: bytes | None


def render(sequence: int, kept: StoredPromise, model: IssuingModel, cipher: Fernet | None) -> dict[str, Any]:
    """Everything about a promise; the original row and the sentence are None where they cannot be read."""
    header = headers([kept.header])[0]
    own = private(kept.original, cipher, encrypted=int(header["original"]) == ENCRYPTED) or {}
    return {
        "sequence": sequence,
        "kind": "advice" if header["flags"] & ADVICE else "promise",
        "certified": bool(header["flags"] & CERTIFIED),
        "conditional": bool(header["flags"] & CONDITIONAL),
        "favourable": bool(header["flags"] & FAVOURABLE),
        "id": kept.who.decode(),
        "issued": format_time(float(header["issued"])),
        "expires": format_time(float(header["expires"])),
        "kappa": float(header["kappa"]),
        "norm": model.norm,
        "radii": model.param_set(float(header["kappa"])).named_radii,
        "center_digest": model.model_digest,
        "radius": float(header["radius"]),
        "method": METHODS[header["method"]],
        "worst_logit": float(header["worst_logit"]),
        "values": from_json(kept.shown),
        "original": own.get("row"),
        **{name: own.get(name) for name in ("sentence", *FACTS)},
        "model": model.digest,
        "encoding": model.encoding.digest,
    }


def render_opened(sequence: int, kept: StoredPromise, model: IssuingModel, opening: bytes) -> dict[str, Any]:
    """The original row and the sentence, given what opens the commitments to them; another is refused."""
    width = 8 * model.encoding.dim
    x, original = opening[2 * SALT : 2 * SALT + width], opening[2 * SALT + width :]
    seen = commitment(opening[:SALT], x) + commitment(opening[SALT : 2 * SALT], original)
    if seen != kept.commitments[-2 * HASH :]:
        remedy = "give the promise's own opening, as issue gave it"
        raise LedgerError(message(f"what opens promise {sequence}", "something else", remedy))
    return from_json(original)


@dataclass(frozen=True)
class InMemory:
    """Promises that nobody wrote down."""

    issuing: tuple[IssuingModel, ...]
    pieces: tuple[Promises, ...]
    at: Moment = None

    @contextmanager
    def snapshot(self, at: Moment = None) -> Iterator[InMemory]:
        """The same promises on that day."""
        yield replace(self, at=at)

    def models(self) -> dict[str, IssuingModel]:
        """The issuing models by digest."""
        return {model.digest: model for model in self.issuing}

    def promises(self, *, chunk: int = 50_000, raw_for: Collection[str] = ()) -> Iterator[Promises]:
        """The promises that have not expired, in pieces of one issuing model; raw values come with all."""
        now = to_timestamp(self.at)
        for piece in self.pieces:
            live = np.flatnonzero(piece.expires > now)
            for start in range(0, len(live), chunk):
                yield select(piece, live[start : start + chunk])

    def told(self, sequence: Sequence[int]) -> list[Told]:
        """The raw values that people were shown, and their own."""
        found: dict[int, Told] = {}
        for piece in self.pieces:
            some = select(piece, np.flatnonzero(np.isin(piece.sequence, list(sequence))))
            assert some.raw is not None, "promises of which only encoded rows are known"
            shown, own = raw_rows(some.raw.shown), raw_rows(some.raw.original)
            told = map(Told, shown, (row if k else None for row, k in zip(own, some.raw.known, strict=True)))
            found |= zip(some.sequence.tolist(), told, strict=True)
        return [found[number] for number in sequence]

    def requirements(self) -> list[SetRequirement]:
        """The sets that live promises ask a later model to stay in, by model, from the smallest on."""
        every: Counter[tuple[str, float]] = Counter()
        some: Counter[tuple[str, float]] = Counter()
        for piece in self.promises():
            for kappa, conditional in zip(piece.kappa.tolist(), piece.conditional.tolist(), strict=True):
                every[piece.model, kappa] += 1
                some[piece.model, kappa] += conditional
        return [SetRequirement(*key, count, some[key]) for key, count in sorted(every.items())]

    def reference(self) -> LedgerRef:
        """Nowhere."""
        return LedgerRef()

    def counts(self) -> Counts:
        """How many are live and how many have expired."""
        total, live = sum(map(len, self.pieces)), sum(map(len, self.promises()))
        return Counts(live, total - live, 0, 0)

    def __add__(self, other: InMemory) -> InMemory:
        """The promises of both."""
        known = self.models()
        more = tuple(model for model in other.issuing if model.digest not in known)
        return InMemory(self.issuing + more, self.pieces + other.pieces)


def in_memory(
    found: Counterfactuals,
    module: nn.Module,
    *,
    threshold: float = 0.5,
    ids: Sequence[Any] | None = None,
    expires: float = np.inf,
    first: int = 1,
) -> InMemory:
    """The counterfactuals of ``found`` as promises of ``module``, numbered from ``first``."""
    issuing = IssuingModel.of(module, found.encoding, threshold, found.param_set)
    rows = np.flatnonzero(found.status != "none")
    names = found.row.tolist() if ids is None else [ids[person] for person in found.row.tolist()]
    taken = torch.from_numpy(rows)
    # A region was promised only where something was proved of it.
    proved = torch.from_numpy(found.certified | (found.radius > 0)).unsqueeze(-1)
    lower, upper = (torch.where(proved, end, found.x_cf)[taken] for end in found.region)
    piece = Promises(
        model=issuing.digest,
        sequence=np.arange(first, first + len(rows)),
        ids=[str(names[row]) for row in rows.tolist()],
        issued=np.zeros(len(rows)),
        expires=np.full(len(rows), float(expires)),
        kappa=np.where(found.certified, found.kappa, found.radius)[rows],
        conditional=found.conditional[rows],
        radius=found.radius[rows],
        worst_logit=found.worst_logit[rows],
        favourable=found.favourable[rows],
        x_cf=found.x_cf[taken],
        x=found.x[taken],
        lower=lower,
        upper=upper,
        raw=_raw_rows(found, rows),
    )
    return InMemory((issuing,), (piece,))


def _raw_rows(found: Counterfactuals, rows: NDArray[np.intp]) -> RawRows:
    """What people were shown, what they have, and how far they may go."""
    shown, own = (frame.iloc[rows].reset_index(drop=True) for frame in (found.frame, found.original))
    ends = promised_ends(found)
    known, cut = np.ones(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    return RawRows(shown, own, known, ends.lower[rows], ends.upper[rows], cut)
