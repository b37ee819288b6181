"""Promises of a ledger in one state: read within one transaction, at one moment or on an earlier day."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.errors import LedgerError, NoRecordError, message
from veritracer.ledger.chain import Kind, content_of
from veritracer.ledger.promises import Counts, IssuingModel, Promises, SetRequirement
from veritracer.ledger.records import (
    CHANGED,
    FACTS,
    HASH,
    SALT,
    Row,
    commitment,
    from_json,
    headers,
    private,
    separated,
    to_promises,
)
from veritracer.ledger.verification import Check, Verification
from veritracer.times import Moment, format_time, to_timestamp

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from veritracer.ledger.database import Reader

CHUNK = 20_000
"""Promises that are read at once: some 80 MB at 25 encoded columns; more at once is not faster."""

WITH_TEXTS = 10_000
"""Promises that are read at once, at most, with their texts: each is about a thousand bytes then."""

EVENTS: tuple[Kind, ...] = ("ledger", "model", "release", "erasure", "audit", "update", "deployment")
"""The kinds of entries that ``history`` lists."""


class Source(Protocol):
    """A source of promises for audits and updates: a ``Ledger``, or a ``Snapshot`` of one."""

    def snapshot(self, at: Moment = None) -> AbstractContextManager[Snapshot]:
        """Open the promises as they are now, on the day ``at``."""


class LedgerRef(NamedTuple):
    """The ledger that promises were read from, and its newest link in that state."""

    ledger: str
    head: str


class RawPair(NamedTuple):
    """The raw values an applicant was shown, and their own; None where these cannot be read."""

    shown: Row
    original: Row | None


class Snapshot:
    """A ledger within one reading transaction: at one moment, or with ``at`` on an earlier day.

    Audits and updates read from it. Promises and models that are written meanwhile are not in it.
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
        """Open the same state on another day."""
        yield Snapshot(self._reader, self._known, self._cipher, at, self._place)

    def reference(self) -> LedgerRef:
        """Return the ledger and its newest link in this state."""
        return LedgerRef(self._place, self._reader.head().hex())

    def models(self) -> dict[str, IssuingModel]:
        """Return the models that issued promises, by digest."""
        return {model.digest: model for model in self._models.values()}

    def promises(
        self, *, expired: bool = False, chunk: int = CHUNK, raw_for: Collection[str] = (), since: int = 0
    ) -> Iterator[Promises]:
        """Yield the live promises, with ``expired`` also those past their end, in chunks of one model each.

        Promises of the models in ``raw_for`` come with their raw values. With ``since`` only promises after
        that entry are read.
        """
        for number, model in self._models.items():
            raw = model.digest in raw_for
            size = min(chunk, WITH_TEXTS) if raw else chunk
            for rows in self._reader.promises(number, size, with_texts=raw, since=since):
                status = PromiseStatus.of(rows, self._revoked, self._at, self.time)
                kept = status.live | (status.expired & status.made) if expired else status.live
                if kept.any():
                    some = rows if kept.all() else [rows[i] for i in np.flatnonzero(kept).tolist()]
                    yield to_promises(model, some, status.header[kept], self._cipher)

    def raw_needed(self, encoding_digest: str) -> set[str]:
        """Return the issuing models whose promises another encoding has to read in raw values."""
        return {m.digest for m in self._models.values() if m.encoding.digest != encoding_digest}

    def raw_values(self, sequence: Sequence[int]) -> list[RawPair]:
        """Return the raw values of these promises: what was shown, and the applicants' own rows."""
        found = self._reader.texts(sequence)
        gone = [number for number in sequence if number not in found]
        if gone:
            remedy = "it may have been erased: see Ledger.counts()"
            raise NoRecordError(message(f"a record of promise {gone[0]}", "none", remedy))
        return [self._raw(*found[number]) for number in sequence]

    def counts(self) -> Counts:
        """Return the number of promises by status."""
        total = np.zeros(4, dtype=np.int64)
        for _, status in self._statuses():
            groups = status.live, status.expired, status.released, status.erased
            total += [int((status.made & group).sum()) for group in groups]
        return Counts(*total.tolist())

    def requirements(self) -> list[SetRequirement]:
        """Return what live promises require of a later model, by issuing model and kappa."""
        found: dict[tuple[str, float], tuple[int, int]] = {}
        for digest, status in self._statuses():
            header = status.header[status.live]
            conditional = header["conditional"]
            for kappa in np.unique(header["kappa"]).tolist():
                these = header["kappa"] == kappa
                before = found.get((digest, kappa), (0, 0))
                counts = int(these.sum()), int((these & conditional).sum())
                found[digest, kappa] = before[0] + counts[0], before[1] + counts[1]
        return [SetRequirement(digest, kappa, *counts) for (digest, kappa), counts in found.items()]

    def history(self) -> list[dict[str, Any]]:
        """Return what happened besides promises, in order."""
        found = []
        for seq, kind, header in self._reader.events(*EVENTS):
            content = content_of(kind, header)
            dates: dict[str, Any] = {
                name: format_time(content[name]) for name in ("time", "at") if name in content
            }
            found.append({"number": int(seq), "kind": str(kind), **content, **dates})
        return found

    def listing(self, identity: str | None = None) -> pd.DataFrame:
        """Return every promise with its status."""
        lines: list[tuple[Any, ...]] = []
        people: dict[int, str] = dict(self._people(identity))
        for digest, status in self._statuses():
            words = status.words()
            for k, number in enumerate(status.sequence.tolist()):
                if identity is not None and number not in people:
                    continue
                head = status.header[k]
                issued, expires = (format_time(float(head[name])) for name in ("time", "expires"))
                kappa = float(head["kappa"])
                lines.append((number, people.get(number), words[k], issued, expires, kappa, digest))
        columns = ["number", "id", "status", "issued", "expires", "kappa", "model"]
        return pd.DataFrame(lines, columns=columns).sort_values("number", ignore_index=True)

    def _people(self, identity: str | None) -> Iterator[tuple[int, str]]:
        """Yield number and id of promises with a record."""
        if identity is not None:
            who = identity.encode()
            yield from ((number, identity) for number in self._reader.of(who)[who])
            return
        for rows in self._reader.people(CHUNK):
            yield from ((int(seq), who.decode()) for seq, who in rows)

    def record(self, sequence: int) -> tuple[StoredPromise, IssuingModel]:
        """Return the record of one promise and the model that issued it."""
        row = self._reader.record(sequence)
        if row is None:
            remedy = "it may have been erased: see Ledger.counts()"
            raise NoRecordError(message(f"a record of promise {sequence}", "none", remedy))
        kept = StoredPromise(*row)
        if kept.model not in self._models:
            raise LedgerError(message(f"the model of promise {sequence}", "none", CHANGED))
        return kept, self._models[kept.model]

    def status(self, sequence: int, header: bytes) -> str:
        """Return the status of one promise: live, expired or released."""
        return PromiseStatus.of([(sequence, header)], self._revoked, self._at, self.time).words()[0]

    def verify(self, head: bytes | None = None, *, chunk: int = CHUNK // 2) -> Verification:
        """Check entry by entry that the ledger is what was written."""
        check = Check(head, self._cipher)
        for rows in self._reader.everything(chunk):
            check.entries(rows)
        return check.conclude(self._reader.sizes())

    @cached_property
    def _models(self) -> dict[int, IssuingModel]:
        """Return the issuing models by the number of their entry; they never change, and are read once."""
        numbers = [int(seq) for seq, _, _ in self._reader.events("model")]
        for seq in numbers:
            if seq not in self._known:
                self._known[seq] = IssuingModel.from_bytes(*self._reader.model(seq))
        return {seq: self._known[seq] for seq in numbers}

    @cached_property
    def _revoked(self) -> Revocations:
        return Revocations.of(self._reader.events("release", "erasure"), self._at)

    def _statuses(self) -> Iterator[tuple[str, PromiseStatus]]:
        """Yield the status of all promises, with the digest of their model."""
        for number, model in self._models.items():
            for rows in self._reader.headers(number, CHUNK):
                yield model.digest, PromiseStatus.of(rows, self._revoked, self._at, self.time)

    def _raw(self, header: bytes, public: bytes, own: bytes | None) -> RawPair:
        original = private(own, self._cipher, encrypted=bool(headers([header])[0]["encrypted"]))
        return RawPair(from_json(public), None if original is None else original.get("row"))


@dataclass(frozen=True)
class Revocations:
    """Sorted numbers of the promises that were released, and of those whose record was erased."""

    released: NDArray[np.int64]
    erased: NDArray[np.int64]

    @classmethod
    def of(cls, events: Iterable[Any], at: float | None) -> Revocations:
        """Read the entries that say so; releases count from their day on."""
        found: dict[str, list[int]] = {"release": [], "erasure": []}
        for _, kind, header in events:
            content = content_of(kind, header)
            if kind == "erasure" or at is None or content["time"] <= at:
                found[kind] += content["sequence"]
        return cls(*(np.unique(np.array(found[kind], dtype=np.int64)) for kind in found))


@dataclass(frozen=True)
class PromiseStatus:
    """Number, header and status of some promises at a moment."""

    sequence: NDArray[np.int64]
    header: NDArray[Any]
    made: NDArray[np.bool_]
    erased: NDArray[np.bool_]
    released: NDArray[np.bool_]
    expired: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Sequence[Any], revoked: Revocations, at: float | None, now: float) -> PromiseStatus:
        """Return the status of rows of number and header; without ``at`` all that were made count."""
        sequence = np.fromiter((row[0] for row in rows), np.int64, len(rows))
        header = headers([row[1] for row in rows])
        made = np.ones(len(rows), bool) if at is None else header["time"] <= at
        erased = np.isin(sequence, revoked.erased)
        released = np.isin(sequence, revoked.released) & ~erased
        expired = (header["expires"] <= now) & ~released & ~erased
        return cls(sequence, header, made, erased, released, expired)

    @property
    def live(self) -> NDArray[np.bool_]:
        """Return a mask of the promises that still have to be kept."""
        return self.made & ~(self.erased | self.released | self.expired)

    def words(self) -> list[str]:
        """Return the status of each in a word."""
        parts = {"erased": self.erased, "released": self.released}
        parts |= {"expired": self.expired, "live": self.live}
        return [str(w) for w in np.select([*parts.values()], [*parts], "not made yet")]


class StoredPromise(NamedTuple):
    """The entry and the record of one promise, as they are stored."""

    model: int
    header: bytes
    commitments: bytes
    salts: bytes
    id: bytes
    x_cf: bytes
    public: bytes
    x: bytes | None
    private: bytes | None


def render(
    sequence: int, stored: StoredPromise, model: IssuingModel, cipher: Fernet | None
) -> dict[str, Any]:
    """Return everything about a promise; what speaks of the original row is None where it cannot be read."""
    header = content_of("promise", stored.header)
    own = private(stored.private, cipher, encrypted=header["original"] == "encrypted") or {}
    expires = np.inf if header["expires"] is None else header["expires"]
    worst = np.inf if header["worst_logit"] is None else header["worst_logit"]
    return {
        "sequence": sequence,
        **{name: header[name] for name in ("certified", "conditional", "favourable", "kappa", "radius")},
        "id": stored.id.decode(),
        "issued": format_time(header["time"]),
        "expires": format_time(expires),
        "norm": model.norm,
        "radii": model.param_set(header["kappa"]).named_radii,
        "center_digest": model.model_digest,
        "method": header["method"],
        "worst_logit": worst,
        "values": from_json(stored.public),
        "original": own.get("row"),
        **{name: own.get(name) for name in ("sentence", *FACTS)},
        "model": model.digest,
        "encoding": model.encoding.digest,
    }


def render_opened(sequence: int, stored: StoredPromise, opening: bytes) -> dict[str, Any]:
    """Return the original row and what speaks of it, given what opens the commitment; refuse another."""
    salt, part = opening[:SALT], opening[SALT:]
    if commitment(salt, part) != stored.commitments[-HASH:]:
        remedy = "give the promise's own opening, as issue gave it"
        raise LedgerError(message(f"what opens promise {sequence}", "something else", remedy))
    return from_json(separated(part)[1])
