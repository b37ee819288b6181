"""Whether what promises hold can be read: whatever ``verify`` accepts, every reader can use.

The chain and its commitments show that a record is the one that was written. Whoever writes one by hand can
link and commit to anything, so what it says is looked at too: numbers in their ranges, blobs of their
lengths, texts of one form with the columns of the issuing schema, and rows that say the same in words as
they do encoded.
"""

from __future__ import annotations

import math
import time
from array import array
from base64 import urlsafe_b64decode
from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.bounds.ibp import trace
from veritracer.bounds.rounding import logit_error
from veritracer.encoding import Encoding
from veritracer.errors import LedgerError, VeriTracerError
from veritracer.ledger.chain import (
    BEGINNING,
    EVENTFUL,
    FIELDS,
    FORMAT,
    MONOTONE,
    answer_of,
    content_of,
    link,
    time_of,
)
from veritracer.ledger.promises import ROUNDING, IssuingModel
from veritracer.ledger.records import (
    ADVICE,
    CERTIFIED,
    ENCRYPTED,
    FACTS,
    FAVOURABLE,
    HASH,
    HEADER,
    LAYOUTS,
    METHODS,
    ORIGINALS,
    PARTS,
    REGION,
    SALT,
    Row,
    checked_json,
    commitment,
    counterfactuals,
    decrypted,
    numbers_of,
    promised_dates,
    raw_ends,
    table_of,
)
from veritracer.proving import PRECISION

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

NARROW = 1e-3
"""How far texts of the first layout may be from what was certified: they rounded narrow numbers."""

BETWEEN = 1e-8
"""How far the raw ends of a region, encoded, may be from its encoded ones: the room for rounding."""

CELLS = {bool, int, float, str, type(None)}

MAX_FINDINGS = 1_000
"""Findings that are kept one by one; the others are counted."""

COMMITMENT = ORIGINALS.index("commitment")

PARTLY = PARTS.index("x")  # so many parts are always kept

CLOCKS = 86_400.0
"""Seconds that an entry may be ahead of the clock of whoever verifies before that is worth a note."""


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
    cipher: Fernet | None = None
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
            for seq, what, grave in faults(model, stored, self.cipher) if model is not None else ():
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
            yield f"this {kind} cannot be read"

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


# ---------------------------------------------------------------- the contents of promises


class Stored(NamedTuple):
    """What the ledger holds of one promise with a record; ``early`` is one from before version 2."""

    seq: int
    header: bytes
    who: bytes
    x_cf: bytes
    shown: bytes
    x: bytes | None
    original: bytes | None
    early: bool


class Fault(NamedTuple):
    """What is wrong with a promise; what is not ``grave`` an earlier release could write itself."""

    seq: int
    what: str
    grave: bool = True


def header_is_sound(blob: bytes) -> bool:
    """Whether the header of a promise says something that a promise can say."""
    if len(blob) != HEADER.itemsize:
        return False
    head = np.frombuffer(blob, HEADER)[0].item()
    layout, flags, method, original, issued, expires, kappa, radius, worst_logit = head
    small = layout in LAYOUTS and flags < 2 * ADVICE and method < len(METHODS)
    small &= not (flags & ADVICE and flags & CERTIFIED)
    finite = -np.inf < issued < np.inf and 0 <= kappa < np.inf and 0 <= radius < np.inf
    return bool(
        small and original < len(ORIGINALS) and finite and expires > -np.inf and worst_logit > -np.inf
    )


def faults(issuing: IssuingModel, stored: Sequence[Stored], cipher: Fernet | None) -> Iterator[Fault]:
    """What is wrong with promises of one model whose headers are sound."""
    whole = []
    for one in stored:
        wrong = _shape(issuing, one)
        if wrong:
            yield Fault(one.seq, wrong)
        else:
            whole.append(one)
    if whole:
        shown = _Shown.of(issuing, whole)
        yield from shown.faults()
        yield from _decisions(issuing, whole, shown.x_cf)
        yield from _originals(issuing, whole, cipher)


def _shape(issuing: IssuingModel, one: Stored) -> str:
    """What is wrong with the form of one record; empty if nothing is."""
    d, features = issuing.encoding.dim, len(issuing.encoding.schema)
    layout, flags, _, original = one.header[:4]
    region = (16 * d + (16 * features if layout > 1 else 0)) if flags & REGION else 0
    reach = float(np.frombuffer(one.header, HEADER)["radius"][0]) * max(issuing.units)
    if not reach < np.inf:
        return "it speaks of a set of models without an end"
    if len(one.x_cf) != 8 * d + region:
        return "'x_cf' has another length than its header says"
    if not _is_text(one.who):
        return "the id is no text"
    if original == ENCRYPTED and not (_is_token(one.x) and _is_token(one.original)):
        return "the original row is not encrypted"
    return ""


class _Shown(NamedTuple):
    """What was promised, encoded and in raw units, of one model's promises."""

    encoding: Encoding
    stored: list[Stored]
    x_cf: Tensor
    lower: Tensor
    upper: Tensor
    raw_lower: Tensor
    raw_upper: Tensor

    @classmethod
    def of(cls, issuing: IssuingModel, stored: list[Stored]) -> _Shown:
        blobs = [one.x_cf for one in stored]
        region = np.array([one.header[1] & REGION > 0 for one in stored])
        second = np.array([one.header[0] > 1 for one in stored])
        encoded = counterfactuals(blobs, region, issuing.encoding.dim)
        ends = (torch.from_numpy(end) for end in raw_ends(blobs, region & second, issuing))
        return cls(issuing.encoding, stored, *encoded, *ends)

    def faults(self) -> Iterator[Fault]:
        """What is wrong with the numbers, then with the texts, then with the regions."""
        yield from _where("'x_cf' is no row of this encoding", ~_are_rows(self.x_cf), self.stored)
        inside = (self.lower >= 0) & (self.lower <= self.x_cf) & (self.x_cf <= self.upper) & (self.upper <= 1)
        yield from _where("the region does not hold the shown row", ~inside.all(-1).numpy(), self.stored)
        names = set(self.encoding.schema.names)
        rows = [_row(checked_json(one.shown), names) for one in self.stored]
        said = np.array([row is not None for row in rows])
        yield from _where("'shown' is no row of the issuing schema", ~said, self.stored)
        sound = yield from _compared("shown", self.encoding, self.stored, rows, self.x_cf)
        wide = sound & ~torch.isnan(self.raw_lower).all(-1).numpy()
        if wide.any():
            yield from self._regions(np.flatnonzero(wide), rows)

    def _regions(self, wide: NDArray[np.intp], rows: list[Row | None]) -> Iterator[Fault]:
        """Where the raw ends of a region are not those that are encoded beside them."""
        numbers = self.encoding.numbers(_table(self.encoding, [rows[k] for k in wide.tolist()]))
        some = torch.from_numpy(wide)
        wrong = torch.zeros(len(wide), dtype=torch.bool)
        for i, block in enumerate(self.encoding.blocks):
            low, high, own = self.raw_lower[some, i], self.raw_upper[some, i], numbers[:, i]
            extends = ~torch.isnan(low) | ~torch.isnan(high)
            wrong |= extends & (~((low <= own) & (own <= high)) | (block.group is not None))
            room = BETWEEN + self.encoding.units.of(block.feature.name, 2 * ROUNDING) * (
                low.abs() + high.abs()
            )
            first, last = self.encoding.units.interval(block.feature.name, low, high)
            wrong |= extends & ~(first >= self.lower[some, block.start] - room)
            wrong |= extends & ~(last <= self.upper[some, block.start] + room)
        stored = [self.stored[k] for k in wide.tolist()]
        yield from _where("the raw ends of the region are not those that were proved", wrong.numpy(), stored)


def _decisions(issuing: IssuingModel, stored: list[Stored], x_cf: Tensor) -> Iterator[Fault]:
    """Where the issuing model decides x′ as, by the header, it decided the original row.

    By more than rounding: a model in float32 may have decided otherwise about what lies within it.
    """
    sign = torch.tensor([1.0 if one.header[1] & FAVOURABLE else -1.0 for one in stored]).to(x_cf)
    alone = issuing.param_set(0.0)
    with torch.no_grad():
        logit = issuing.network.logit(issuing.theta, x_cf)
        error = logit_error(alone, trace(alone, x_cf), PRECISION)
    yield from _where(
        "its model decides the shown row as it did the original one", (sign * logit > error).numpy(), stored
    )


def _originals(issuing: IssuingModel, stored: list[Stored], cipher: Fernet | None) -> Iterator[Fault]:
    """What is wrong with people's own rows, of those that can be read."""
    encoding, kept, rows, blobs = issuing.encoding, [], [], []
    names = set(encoding.schema.names)
    for one in stored:
        parts = _readable(one, cipher)
        if parts is None:
            continue
        x, text = parts
        content = checked_json(text)
        row = None
        if content is not None and _is_private(content):
            row = _row(content["row"], names)
        if row is None or len(x) != 8 * encoding.dim:
            yield Fault(one.seq, "'original' is no row of the issuing schema with its sentence")
        else:
            kept.append(one)
            rows.append(row)
            blobs.append(x)
    if kept:
        own = numbers_of(blobs, encoding.dim)
        yield from _where("'x' is no row of this encoding", ~_are_rows(own), kept)
        yield from _compared("original", encoding, kept, rows, own)


def _is_private(content: Row) -> bool:
    """Return whether these are a row with its sentence and, in all but old entries, what a notice says."""
    kinds = {"row": object, "sentence": str} | (FACTS if FACTS.keys() & content.keys() else {})
    return content.keys() == kinds.keys() and all(isinstance(content[name], kinds[name]) for name in kinds)


def _compared(
    part: str, encoding: Encoding, stored: list[Stored], rows: Sequence[Row | None], certified: Tensor
) -> Generator[Fault, None, NDArray[np.bool_]]:
    """Yields where texts are not what was certified; returns where they can be encoded, (n,)."""
    again = _encoded(encoding, rows)
    read = ~torch.isnan(again).any(-1)
    yield from _where(
        f"'{part}' has values that the issuing encoding does not",
        (~read & torch.tensor([row is not None for row in rows])).numpy(),
        stored,
    )
    first = torch.tensor([one.header[0] == 1 for one in stored])
    far = (again - certified).abs().amax(-1) > torch.where(first, NARROW, 0.0)
    for k in (far & read).nonzero().squeeze(-1).tolist():
        one = stored[k]
        yield Fault(one.seq, f"'{part}' is not the row that was certified", grave=not one.early)
    return np.asarray(read.numpy())


def _encoded(encoding: Encoding, rows: Sequence[Row | None]) -> Tensor:
    """The rows encoded, (n, d); NaN where one is None or cannot be."""
    out = torch.full((len(rows), encoding.dim), torch.nan, dtype=torch.float64)
    there = [k for k, row in enumerate(rows) if row is not None]
    parts = [there] if there else []
    while parts:
        part = parts.pop()
        try:
            table = _table(encoding, [rows[k] for k in part])
            out[part] = encoding.encode(table, out_of_range="ignore")
        except (VeriTracerError, ArithmeticError, TypeError, ValueError):
            half = len(part) // 2
            parts += [part[:half], part[half:]] if half else []
    return out


def _table(encoding: Encoding, rows: Sequence[Row | None]) -> Any:
    return table_of([row or {} for row in rows], encoding.schema.names)


def _row(content: Any, names: set[str]) -> Row | None:
    """The content if it has a plain value for each column of the schema, and nothing else."""
    if not isinstance(content, dict) or content.keys() != names:
        return None
    return content if set(map(type, content.values())) <= CELLS else None


def _readable(one: Stored, cipher: Fernet | None) -> tuple[bytes, bytes] | None:
    """The person's own row, encoded and as a text; None where it is not kept, or under another key."""
    if one.x is None or one.original is None:
        return None
    if one.header[3] != ENCRYPTED:
        return one.x, one.original
    try:
        return None if cipher is None else (decrypted(one.x, cipher), decrypted(one.original, cipher))
    except LedgerError:
        return None


def _are_rows(numbers: Tensor) -> NDArray[np.bool_]:
    return np.asarray(((numbers >= 0) & (numbers <= 1)).all(-1).numpy())  # NaN is neither


def _is_text(blob: bytes) -> bool:
    try:
        return bool(blob.decode().strip())
    except UnicodeDecodeError:
        return False


def _is_token(blob: bytes | None) -> bool:
    """Whether the bytes could be a Fernet token: version, time, IV, whole blocks, and a MAC."""
    try:
        token = urlsafe_b64decode(blob or b"")
    except ValueError:
        return False
    return len(token) >= 73 and token[0] == 0x80 and (len(token) - 57) % 16 == 0


def _where(what: str, wrong: NDArray[np.bool_], stored: Sequence[Stored]) -> Iterator[Fault]:
    for k in np.flatnonzero(wrong).tolist():
        yield Fault(stored[k].seq, what)
