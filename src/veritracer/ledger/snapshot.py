"""Promises of a ledger in one state: read within one transaction, at one moment or on an earlier day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

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
    Record,
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


class Status(StrEnum):
    """The status of a promise at a moment; only live ones still have to be kept."""

    LIVE = "live"
    EXPIRED = "expired"
    RELEASED = "released"
    ERASED = "erased"
    UNMADE = "not made yet"


class Source(Protocol):
    """A source of promises for audits and updates: a ``Ledger``, or a ``Snapshot`` of one."""

    def snapshot(self, at: Moment = None) -> AbstractContextManager[Snapshot]:
        """Open the promises as they are now, on the day ``at``."""


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
        self._reader, self._known, self._cipher, self.place = reader, known, cipher, place
        self._at = None if at is None else to_timestamp(at)
        self.time = to_timestamp(at)

    @contextmanager
    def snapshot(self, at: Moment = None) -> Iterator[Snapshot]:
        """Open the same state on another day."""
        yield Snapshot(self._reader, self._known, self._cipher, at, self.place)

    @property
    def head(self) -> str:
        """Return the newest link in this state, in hexadecimal."""
        return self._reader.head().hex()

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
                header = headers([row[1] for row in rows])
                status = self._status([row[0] for row in rows], header)
                wanted = np.isin(status, [Status.LIVE, Status.EXPIRED]) if expired else status == Status.LIVE
                if wanted.any():
                    some = rows if wanted.all() else [rows[i] for i in np.flatnonzero(wanted).tolist()]
                    yield to_promises(model, some, header[wanted], self._cipher)

    def raw_needed(self, encoding_digest: str) -> set[str]:
        """Return the issuing models whose promises another encoding has to read in raw values."""
        return {m.digest for m in self._models.values() if m.encoding.digest != encoding_digest}

    def counts(self) -> Counts:
        """Return the number of promises by status."""
        total: Counter[str] = Counter()
        for _, _, _, status in self._statuses():
            total.update(status.tolist())
        return Counts(**{word: total[word] for word in Status if word != Status.UNMADE})

    def requirements(self) -> list[SetRequirement]:
        """Return what live promises require of a later model, by issuing model and kappa."""
        found: dict[tuple[str, float], tuple[int, int]] = {}
        for digest, _, every, status in self._statuses():
            header = every[status == Status.LIVE]
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
        for digest, sequence, header, status in self._statuses():
            for number, head, word in zip(sequence, header, status.tolist(), strict=True):
                if identity is not None and number not in people:
                    continue
                issued, expires = (format_time(float(head[name])) for name in ("time", "expires"))
                kappa = float(head["kappa"])
                lines.append((number, people.get(number), word, issued, expires, kappa, digest))
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

    def shown(self, sequence: int) -> dict[str, Any]:
        """Return everything about one promise: see ``Ledger.shown``."""
        model, header, record = self._record(sequence)
        own = private(record.private, self._cipher, encrypted=header["original"] == "encrypted") or {}
        return {
            "sequence": sequence,
            **{name: header[name] for name in ("certified", "conditional", "favourable", "kappa", "radius")},
            "id": record.id.decode(),
            "issued": format_time(header["time"]),
            "expires": format_time(_or_infinity(header["expires"])),
            "norm": model.norm,
            "radii": model.param_set(header["kappa"]).named_radii,
            "center_digest": model.model_digest,
            "method": header["method"],
            "worst_logit": _or_infinity(header["worst_logit"]),
            "values": from_json(record.public),
            "original": own.get("row"),
            **{name: own.get(name) for name in ("sentence", *FACTS)},
            "model": model.digest,
            "encoding": model.encoding.digest,
            "status": str(self._status([sequence], headers([record.header]))[0]),
        }

    def opened(self, sequence: int, opening: bytes) -> dict[str, Any]:
        """Return the original row and what speaks of it: see ``Ledger.opened``."""
        salt, part = opening[:SALT], opening[SALT:]
        if commitment(salt, part) != self._record(sequence)[2].commitments[-HASH:]:
            remedy = "give the promise's own opening, as issue gave it"
            raise LedgerError(message(f"what opens promise {sequence}", "something else", remedy))
        return from_json(separated(part)[1])

    def _record(self, sequence: int) -> tuple[IssuingModel, dict[str, Any], Record]:
        """Return a promise: its model, the content of its header, and its record.

        The entries of both, their links and what they commit to are checked; other entries are not.
        """
        entry, parts = self._reader.entry(sequence), self._reader.parts(sequence)
        if entry is None or entry.kind != "promise" or parts is None:
            remedy = "it may have been erased: see Ledger.counts()"
            raise NoRecordError(message(f"a record of promise {sequence}", "none", remedy))
        record, content = Record(entry.header, entry.commitments, *parts), content_of("promise", entry.header)
        try:
            faults = list(record.faults(content["original"]))
        except TypeError:  # SQLite keeps a text where bytes belong
            faults = ["it cannot be read"]
        if faults:
            raise LedgerError(message(f"promise {sequence} as it was issued", faults[0], CHANGED))
        if self._reader.entry(entry.model) is None or entry.model not in self._models:
            raise LedgerError(message(f"the model of promise {sequence}", "none", CHANGED))
        return self._models[entry.model], content, record

    def verify(self, head: bytes | None = None, *, chunk: int = CHUNK // 2) -> Verification:
        """Check entry by entry that the ledger is what was written."""
        check = Check(head, self._cipher)
        for rows in self._reader.everything(chunk):
            check.entries(rows)
        return check.conclude(self._reader.sizes())

    @cached_property
    def _models(self) -> dict[int, IssuingModel]:
        """Return the issuing models by the number of their entry; they never change, and are read once."""
        digests = {
            int(seq): content_of(kind, header)["digest"] for seq, kind, header in self._reader.events("model")
        }
        for seq, digest in digests.items():
            if seq not in self._known or self._known[seq].digest != digest:
                model = IssuingModel.from_bytes(*self._reader.model(seq))
                if model.digest != digest:
                    received = f"{model.digest[:12]}… where it says {digest[:12]}…"
                    raise LedgerError(message(f"the issuing model of entry {seq}", received, CHANGED))
                self._known[seq] = model
        return {seq: self._known[seq] for seq in digests}

    @cached_property
    def _revoked(self) -> Revocations:
        return Revocations.of(self._reader.events("release", "erasure"), self._at)

    def _statuses(self) -> Iterator[tuple[str, list[int], NDArray[Any], NDArray[np.str_]]]:
        """Yield numbers, headers and status of all promises, with the digest of their model."""
        for number, model in self._models.items():
            for rows in self._reader.headers(number, CHUNK):
                sequence, header = [int(row[0]) for row in rows], headers([row[1] for row in rows])
                yield model.digest, sequence, header, self._status(sequence, header)

    def _status(self, sequence: Sequence[int], header: NDArray[Any]) -> NDArray[np.str_]:
        return status_of(sequence, header, self._revoked, self._at, self.time)


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


def status_of(
    sequence: Sequence[int], header: NDArray[Any], revoked: Revocations, at: float | None, now: float
) -> NDArray[np.str_]:
    """Return the ``Status`` of promises as texts, (n,).

    Without ``at`` all that are in the ledger were made; with it, those that are dated up to that moment.
    """
    found = {
        Status.UNMADE: np.zeros(len(header), bool) if at is None else header["time"] > at,
        Status.ERASED: np.isin(sequence, revoked.erased),
        Status.RELEASED: np.isin(sequence, revoked.released),
        Status.EXPIRED: header["expires"] <= now,
    }
    return np.select([*found.values()], [np.str_(one) for one in found], np.str_(Status.LIVE))


def _or_infinity(number: float | None) -> float:
    return np.inf if number is None else number
