r"""The hash chain: what makes a change to the ledger show, and the check that finds it.

Each entry carries a link, the SHA-256 of the link before it and of everything about the entry::

    commitment = SHA-256(salt ‖ content)                     for each part that may have to be erased
    link       = SHA-256(previous link ‖ "SEQ\nKIND\nMODEL\nLENGTH\n" ‖ header ‖ commitments)

with the numbers in decimal, LENGTH that of the header in bytes, and 32 zero bytes before the first entry.
Hashes are of the bytes that are stored, never of values that were read and written anew. Content and salt of
a part can be deleted and the chain still verifies; without its salt a commitment says nothing about the
content, however few contents are possible.

The header of an entry that is no promise is JSON, read only as a writer writes it: one object with the fields
of its kind, sorted, each of its type. Readers and the check ask the same functions, so that they can not
disagree.

A request (see ``store.Request``) is an entry right behind the promises that were issued for it. It has two
commitments: to what was asked, by a salt that an erasure deletes, and to the response, without one.
"""

from __future__ import annotations

import json
import math
import re
import struct
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from veritracer.errors import LedgerError, message
from veritracer.ledger.contents import Stored, faults, header_is_sound
from veritracer.ledger.layout import (
    ADVICE,
    HASH,
    ORIGINALS,
    PARTS,
    SALT,
    commitment,
    issued_at,
    promised_dates,
)
from veritracer.ledger.promises import IssuingModel

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

Kind = Literal[
    "migration", "model", "promise", "release", "erasure", "audit", "update", "deployment", "request"
]

BEGINNING = bytes(32)
"""The link before the first entry."""

FORMAT = "veritracer-ledger"

MONOTONE = 2
"""The version of a ledger from which on no entry is dated before the one before it."""

EVENTFUL = 3
"""The version from which on audits, updates and deployments are entries, and promises may be only advice."""

FIELDS: dict[str, dict[str, type | UnionType]] = {
    "migration": {"format": str, "name": str, "time": float, "version": int},
    "model": {"digest": str, "time": float},
    "release": {"reason": str, "sequence": list, "time": float},
    "erasure": {"sequence": list, "time": float},
    "audit": {
        "at": float,
        "broken": int,
        "checked": int,
        "encoding": str,
        "expired": int,
        "model": str,
        "not_checkable": int,
        "overtaken": int,
        "passed": bool,
        "proved": int,
        "threshold": float,
        "time": float,
    },
    "deployment": {
        "broken": int,
        "by": str,
        "encoding": str,
        "live": int,
        "model": str,
        "not_checkable": int,
        "reason": str,
        "threshold": float,
        "time": float,
    },
    "update": {"after": str, "before": str, "broken": int, "live": int, "proved": int, "time": float},
    "request": {"count": int, "expires": float | None, "first": int, "key": str, "time": float},
}
"""The fields of each kind's header. The first migration also has the ``ledger``, 16 random bytes.

Of a request, ``key`` is the SHA-256 of the caller's key in hexadecimal; its promises have the numbers from
``first`` on, were made at its ``time`` and end at ``expires`` (None: never).
"""

MAX_FINDINGS = 1_000
"""Findings that are kept one by one; the others are counted."""

KEY = re.compile("[0-9a-f]{64}")
"""The SHA-256 of a request's key."""

COMMITMENT = ORIGINALS.index("commitment")

PARTLY = PARTS.index("x")  # so many parts are always kept

CLOCKS = 86_400.0
"""Seconds that an entry may be ahead of the clock of whoever verifies before that is worth a note."""


def link(previous: bytes, seq: int, kind: str, model: int, header: bytes, commitments: bytes) -> bytes:
    """The link of an entry; ``model`` is the entry of the issuing model, 0 where there is none.

    >>> link(BEGINNING, 1, "migration", 0, b"{}", b"").hex()[:16]
    '3538bf095dc42818'
    """
    about = f"{seq}\n{kind}\n{model}\n{len(header)}\n".encode()
    return sha256(previous + about + header + commitments).digest()


def stored_link(stored: object) -> bytes:
    """The link of the newest entry as a database gives it, None without one; refuses what no link can be."""
    if stored is None:
        return BEGINNING
    if not isinstance(stored, bytes | memoryview) or len(bytes(stored)) != HASH:
        remedy = "the ledger was changed: run veritracer verify"
        raise LedgerError(message(f"a link of {HASH} bytes", repr(stored)[:80], remedy))
    return bytes(stored)


def to_bytes(content: dict[str, Any]) -> bytes:
    """The header with this content."""
    return json.dumps(content, sort_keys=True, allow_nan=False).encode()


def content_of(kind: str, header: bytes) -> dict[str, Any]:
    """What a header of that kind says; refuses whatever no writer writes."""
    try:
        content = json.loads(header)
        whole = isinstance(content, dict) and to_bytes(content) == header
    except (TypeError, ValueError, RecursionError):
        whole = False
    if not whole or not _is_of(kind, content):
        raise _changed(kind, header)
    found: dict[str, Any] = content
    return found


def time_of(kind: str, header: bytes) -> float:
    """When the entry was made, in seconds since 1970."""
    if kind != "promise":
        return float(content_of(kind, header)["time"])
    try:
        return issued_at(header)
    except (TypeError, struct.error):
        raise _changed(kind, header) from None


def _is_of(kind: Kind | str, content: dict[str, Any]) -> bool:
    fields = dict(FIELDS.get(kind, {"": str}))
    if kind == "migration" and content.get("version") == 1:
        fields["ledger"] = str
    if content.keys() != fields.keys():
        return False
    if any(type(content[name]) not in (get_args(wanted) or (wanted,)) for name, wanted in fields.items()):
        return False
    numbers = content.get("sequence", [1])
    counted = [value for value in content.values() if type(value) in (int, float)]
    return (
        all(map(math.isfinite, counted))
        and all(value >= 0 for value in counted if type(value) is int)
        and content.get("version", 1) >= 1
        and (kind != "request" or KEY.fullmatch(content["key"]) is not None)
        and len(numbers) > 0
        and all(type(number) is int for number in numbers)
        and all(one < after for one, after in pairwise([0, *numbers, 2**63]))
    )


def answer_of(response: bytes) -> dict[str, Any] | None:
    """Return what a response tells whoever retries; refuse what is neither a JSON object nor null."""
    try:
        answer = json.loads(response)
    except (TypeError, ValueError, RecursionError):
        answer = ()
    if answer is not None and not isinstance(answer, dict):
        remedy = "the ledger was changed: run veritracer verify"
        raise LedgerError(message("a response as JSON", repr(response)[:80], remedy))
    return answer


def _changed(kind: str, header: object) -> LedgerError:
    remedy = "the ledger was changed: run veritracer verify"
    return LedgerError(message(f"the header of a {kind}", repr(header)[:80], remedy))


class Finding(NamedTuple):
    """Something that is not as it was written: at which entry (0: in no entry), and what."""

    sequence: int
    what: str


@dataclass(frozen=True)
class Verification:
    """What checking a ledger found.

    Attributes
    ----------
    ok
        Whether nothing was found.
    findings, count
        What was found, the first of them one by one, and how many there are in all.
    entries, promises, erased
        What was looked at: entries of the chain, how many are promises, and how many of these have no record
        any more, as an entry says.
    head
        The newest link, in hexadecimal.
    notes, noted
        What an earlier release wrote and this one would not, or what is odd and no fault: the first of them,
        and how many. ``ok`` does not depend on them.
    newer
        How many entries follow the head that was noted, which says nothing about them; None without one.
    """

    findings: tuple[Finding, ...]
    count: int
    entries: int
    promises: int
    erased: int
    head: str
    notes: tuple[Finding, ...] = ()
    noted: int = 0
    newer: int | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.count == 0


@dataclass
class Check:
    """The state of a verification that goes through the chain, piece by piece.

    ``monotone`` is whether what follows was written by a release that lets no time go back, ``eventful`` by
    one that knows audits, updates, deployments and advice. ``runs`` are the promises since the last entry of
    another kind: the first number of each run that was made and ends at the same two times, with these.
    ``requests`` has the entries of requests by their keys; ``cleared`` their number, that of their first
    promise, and whether what was asked is gone.
    """

    head: bytes | None = None
    seal: Fernet | None = None
    seq: int = 0
    link: bytes = BEGINNING
    time: float = float("-inf")
    monotone: bool = False
    eventful: bool = False
    seen: int | None = None
    count: int = 0
    findings: list[Finding] = field(default_factory=list)
    noted: int = 0
    notes: list[Finding] = field(default_factory=list)
    promises: array[int] = field(default_factory=lambda: array("q"))
    models: dict[int, IssuingModel | None] = field(default_factory=dict)
    waiting: dict[int, list[Stored]] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)
    erased: set[int] = field(default_factory=set)
    migrations: list[tuple[int, str, int]] = field(default_factory=list)
    runs: list[tuple[int, tuple[float, float]]] = field(default_factory=list)
    requests: dict[str, int] = field(default_factory=dict)
    cleared: list[tuple[int, int, bool]] = field(default_factory=list)
    beside: Counter[str] = field(default_factory=Counter)

    def found(self, sequence: int, what: str) -> None:
        """Count a fault, and keep it if it is among the first."""
        self.count += 1
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(sequence, what))

    def note(self, sequence: int, what: str) -> None:
        """The same for what is no fault of the ledger."""
        self.noted += 1
        if len(self.notes) < MAX_FINDINGS:
            self.notes.append(Finding(sequence, what))

    def entries(self, rows: Iterable[Sequence[Any]]) -> None:
        """Check a piece of the chain: each entry's place, link, time and parts."""
        for row in rows:
            self._entry(row)
        for number, stored in self.waiting.items():
            model = self.models.get(number)
            for seq, what, grave in faults(model, stored, self.seal) if model is not None else ():
                (self.found if grave else self.note)(seq, what)
        self.waiting.clear()

    def _entry(self, row: Sequence[Any]) -> None:
        seq, kind, model, header, commitments, stored = row[:6]
        if seq != self.seq + 1:
            self.found(seq, f"entries {self.seq + 1:,} to {seq - 1:,} are missing")
        try:
            holds = link(self.link, seq, kind, model, header, commitments) == stored
        except TypeError:  # SQLite keeps a text where bytes belong
            holds = False
        if not holds:
            self.found(seq, f"the link of this {kind} does not follow from the entry before it")
        self.seq, self.link = seq, stored
        self.seen = seq if stored == self.head else self.seen
        late = self.monotone
        for what in self._parts(row):
            self.found(seq, what)
        self._time(seq, kind, header, late=late)

    def _time(self, seq: int, kind: str, header: bytes, *, late: bool) -> None:
        """When the entry was made, against the one before it and against the clock here."""
        try:
            made = time_of(kind, header)
        except LedgerError:
            return  # and was found already
        if made < self.time:
            (self.found if late else self.note)(seq, "it is dated before the entry before it")
        if made > time.time() + CLOCKS and made > self.time:
            self.note(seq, "it is dated in the future")
        self.time = made

    def _parts(self, row: Sequence[Any]) -> Iterator[str]:
        seq, kind, model, header, commitments = row[:5]
        salts, who, x_cf, x, shown, original, document, tensors, *asked = row[6:]
        beside = ("encoded", salts), ("texts", shown), ("models", document), ("requests", asked[-1])
        self.beside.update(name for name, part in beside if part is not None)
        if (seq == 1) != (kind == "migration" and not self.migrations):
            yield "a ledger begins with its first migration, and nothing else does"
        try:
            if kind == "promise":
                if document is not None:
                    yield "a promise has the content of a model"
                parts = (who, x_cf, shown, x, original)
                yield from self._promise(seq, model, header, commitments, salts, parts)
            else:
                if salts is not None or shown is not None:
                    yield f"a {kind} has the record of a promise"
                if model != 0 or (commitments and kind not in ("model", "request")):
                    yield f"a {kind} has an issuing model, or commitments"
                if kind == "request":
                    yield from self._request(seq, content_of(kind, header), commitments, *asked)
                yield from self._event(seq, kind, header, commitments, document, tensors)
                self.runs.clear()
            if kind != "request" and asked[-1] is not None:
                yield f"a {kind} has the row of a request"
        except (TypeError, ValueError, KeyError, AttributeError, LedgerError):
            yield f"this {kind} can not be read"

    def _promise(
        self, seq: int, model: int, header: bytes, commitments: bytes, salts: bytes | None, parts: Any
    ) -> Iterator[str]:
        self.promises.append(seq)
        if model not in self.models:
            yield "a promise of a model that is not in the ledger"
        if not header_is_sound(header) or len(commitments) != HASH * len(PARTS):
            yield "the header of a promise is none"
            return
        if not self.runs or self.runs[-1][1] != promised_dates(header):
            self.runs.append((seq, promised_dates(header)))
        if header[1] & ADVICE and not self.eventful:
            yield "advice in a ledger of a version that has none"
        if salts is None or parts[2] is None:
            if salts is not None or parts[2] is not None:
                yield "half of the record is missing"
            self.missing.add(seq)
            return
        kept = PARTLY if header[3] == COMMITMENT else len(PARTS)
        if len(salts) != SALT * kept or any(part is not None for part in parts[kept:]):
            yield "the record has other parts than were committed to"
            return
        sound = True
        for k in range(kept):
            at, to = SALT * k, HASH * k
            if sha256(salts[at : at + SALT] + parts[k]).digest() != commitments[to : to + HASH]:
                sound = False
                yield f"{PARTS[k]!r} is not what was committed to"
        if sound:
            who, x_cf, shown, x, original = parts
            stored = Stored(seq, header, who, x_cf, shown, x, original, not self.monotone)
            self.waiting.setdefault(model, []).append(stored)

    def _event(
        self, seq: int, kind: str, header: bytes, commitments: bytes, document: Any, tensors: Any
    ) -> Iterator[str]:
        if kind not in FIELDS:
            yield f"{kind!r} is not a kind of entry"
            return
        if kind == "model":
            self.models[seq] = None
        elif document is not None:
            yield f"a {kind} has the content of a model"
        content = content_of(kind, header)
        if kind == "model":
            yield from self._model(seq, content["digest"], commitments, document, tensors)
        elif kind == "migration":
            if (content["format"], content["version"]) != (FORMAT, len(self.migrations) + 1):
                yield "a migration is left out, or of something else"
            self.migrations.append((content["version"], content["name"], seq))
            self.monotone |= content["version"] >= MONOTONE
            self.eventful |= content["version"] >= EVENTFUL
        elif kind in ("audit", "update", "deployment"):
            if not self.eventful:
                yield f"{'a' if kind == 'deployment' else 'an'} {kind} in a ledger of a version that has none"
        elif kind != "request":
            unknown = [number for number in content["sequence"] if not self._is_promise(number)]
            if unknown:
                yield f"it speaks of {unknown[0]:,}, which is no promise before it"
            self.erased.update(content["sequence"] if kind == "erasure" else ())

    def _request(
        self, seq: int, content: dict[str, Any], commitments: bytes, salt: Any, digest: Any, response: Any
    ) -> Iterator[str]:
        first, count, expires = content["first"], content["count"], content["expires"]
        if first + count != seq or len(self.promises) - bisect_left(self.promises, first) != count:
            yield "a request does not stand right behind its promises"
        elif self._dates_since(first) - {(content["time"], math.inf if expires is None else expires)}:
            yield "a request has other dates than its promises"
        if self.requests.setdefault(content["key"], seq) != seq:
            yield f"the key of this request is that of entry {self.requests[content['key']]:,}"
        if len(commitments) != 2 * HASH:
            yield "a request has other commitments"
        elif response is None:
            yield "the row of this request is missing"
        else:
            if sha256(response).digest() != commitments[HASH:]:
                yield "the response to this request is not what was committed to"
            elif (salt, digest) != (b"", b"") and commitment(salt, digest) != commitments[:HASH]:
                yield "what was asked is not what was committed to"
            answer_of(response)
            self.cleared.append((seq, first, (salt, digest) == (b"", b"")))

    def _dates_since(self, first: int) -> set[tuple[float, float]]:
        """When the promises from this one on were made and end, of those since the last other entry."""
        ends = [start for start, _ in self.runs[1:]] + [self.seq]
        return {dates for (_, dates), end in zip(self.runs, ends, strict=False) if end > first}

    def _model(self, seq: int, digest: str, commitments: bytes, document: Any, tensors: Any) -> Iterator[str]:
        if document is None or tensors is None:
            yield "an issuing model is missing"
            return
        name = sha256(document)
        if commitments != name.digest() + sha256(tensors).digest() or digest != name.hexdigest():
            yield "an issuing model is not what was committed to"
            return
        self.models[seq] = IssuingModel.from_bytes(document, tensors)

    def _is_promise(self, number: int) -> bool:
        at = bisect_left(self.promises, number)
        return at < len(self.promises) and self.promises[at] == number

    def conclude(self, sizes: Mapping[str, int], migrations: Iterable[Any]) -> Verification:
        """What was found, after what only the whole can show."""
        for seq in sorted(self.missing - self.erased):
            self.found(seq, "the record is missing, and no entry says that it was erased")
        for seq in sorted(self.erased - self.missing):
            self.found(seq, "the record is still there, though an entry says that it was erased")
        for seq, what in self._unlike_erasures():
            self.found(seq, what)
        for name, size in sizes.items():
            seen = self.beside[name.removeprefix("veritracer_")]
            if size != seen:
                self.found(0, f"{name} has {size - seen:,} rows that belong to no entry")
        if [tuple(row) for row in migrations] != self.migrations:
            self.found(0, "veritracer_migrations is not what the entries say")
        if not self.seq:
            self.found(0, "there is no entry at all")
        if self.head is not None and self.seen is None:
            self.found(0, "the head that was noted is not in the chain: its end was cut off or rewritten")
        return Verification(
            findings=tuple(self.findings),
            count=self.count,
            entries=self.seq,
            promises=len(self.promises),
            erased=len(self.erased & self.missing),
            head=self.link.hex() if isinstance(self.link, bytes) else "",
            notes=tuple(self.notes),
            noted=self.noted,
            newer=None if self.seen is None else self.seq - self.seen,
        )

    def _unlike_erasures(self) -> Iterator[tuple[int, str]]:
        """Requests that were cleared without an erasure of one of their promises, or not in spite of one."""
        erased = sorted(self.erased)
        for seq, first, cleared in self.cleared:
            gone = bisect_left(erased, seq) > bisect_left(erased, first)
            if cleared and not gone:
                yield seq, "what was asked is gone, and no entry says that one of its promises was erased"
            if gone and not cleared:
                yield seq, "what was asked is still there, though one of its promises was erased"
