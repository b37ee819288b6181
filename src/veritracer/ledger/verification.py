"""Check a whole ledger: the chain, what it commits to, and that every promise can be read.

The chain and its commitments show that a record is the one that was written. Somebody who writes one by hand
can link and commit to anything, so the contents are checked too: numbers in their ranges, blobs of their
lengths, texts of one form with the columns of the issuing schema, and rows whose text says the same as their
numbers. What ``verify`` accepts, every reader can use.
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
    FIELDS,
    FORMAT,
    VERSION,
    answer_of,
    content_of,
    follows,
    time_of,
)
from veritracer.ledger.promises import IssuingModel, is_wide
from veritracer.ledger.records import (
    FACTS,
    HASH,
    PARTS,
    Record,
    Row,
    checked_json,
    commitment,
    counterfactuals,
    decrypted,
    numbers_of,
    table_of,
)
from veritracer.proving import PRECISION

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

CELLS = {bool, int, float, str, type(None)}

MAX_FINDINGS = 1_000
"""Findings that are kept one by one; the others are counted."""

CLOCKS = 86_400.0
"""Seconds by which an entry may be ahead of the verifier's clock before that is noted."""


class Finding(NamedTuple):
    """Something that is not as it was written, and the number of its entry (0: none)."""

    sequence: int
    what: str


@dataclass(frozen=True)
class Verification:
    """The result of checking a ledger.

    Attributes
    ----------
    ok
        Whether nothing was found.
    findings, count
        The first findings, and the number of all.
    entries, promises, erased
        How many entries were checked, how many are promises, and how many of these were erased.
    head
        The newest link, in hexadecimal.
    notes, noted
        The first remarks on what is unusual and no fault, and the number of all; ``ok`` ignores them.
    newer
        How many entries follow the noted head, which says nothing about them; None without one.
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
        """Return whether nothing was found."""
        return self.count == 0


@dataclass
class Check:
    """State of a verification that goes through the chain piece by piece.

    ``runs`` are the promises since the last entry of another kind: for each run with the same dates its first
    number and these dates. ``requests`` has the entries of requests by their keys; ``cleared`` their number,
    that of their first promise, and whether an erasure has cleared them.
    """

    head: bytes | None = None
    cipher: Fernet | None = None
    seq: int = 0
    link: bytes = BEGINNING
    time: float = float("-inf")
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
        """Count a remark on what is no fault, and keep it if it is among the first."""
        self.noted += 1
        if len(self.notes) < MAX_FINDINGS:
            self.notes.append(Finding(sequence, what))

    def entries(self, rows: Iterable[Sequence[Any]]) -> None:
        """Check a piece of the chain: place, link, time and parts of each entry."""
        for row in rows:
            self._entry(row)
        for number, stored in self.waiting.items():
            model = self.models.get(number)
            for fault in faults(model, stored, self.cipher) if model is not None else ():
                self.found(*fault)
        self.waiting.clear()

    def _entry(self, row: Sequence[Any]) -> None:
        seq, kind, _, header, _, stored = row[:6]
        if seq != self.seq + 1:
            self.found(seq, f"entries {self.seq + 1:,} to {seq - 1:,} are missing")
        if not follows(self.link, row):
            self.found(seq, f"the link of this {kind} does not follow from the entry before it")
        self.seq, self.link = seq, stored
        self.seen = seq if stored == self.head else self.seen
        for what in self._parts(row):
            self.found(seq, what)
        self._time(seq, kind, header)

    def _time(self, seq: int, kind: str, header: bytes) -> None:
        """Compare the time of the entry with that of the one before it and with the clock here."""
        try:
            made = time_of(kind, header)
        except LedgerError:
            return  # and was found already
        if made < self.time:
            self.found(seq, "it is dated before the entry before it")
        if made > time.time() + CLOCKS and made > self.time:
            self.note(seq, "it is dated in the future")
        self.time = made

    def _parts(self, row: Sequence[Any]) -> Iterator[str]:
        seq, kind, model, header, commitments = row[:5]
        record = None if row[6] is None else Record(header, commitments, *row[6:12])
        document, tensors, *request = row[12:]
        beside = ("records", record), ("models", document), ("requests", request[-1])
        self.beside.update(name for name, part in beside if part is not None)
        if (seq == 1) != (kind == "ledger"):
            yield "a ledger has one entry that names it, the first"
        try:
            if kind == "promise":
                if document is not None:
                    yield "a promise has the content of a model"
                yield from self._promise(seq, model, header, commitments, record)
            else:
                if record is not None:
                    yield f"a {kind} has the record of a promise"
                if model != 0 or (commitments and kind not in ("model", "request")):
                    yield f"a {kind} has an issuing model, or commitments"
                if kind == "request":
                    yield from self._request(seq, content_of(kind, header), commitments, *request)
                yield from self._event(seq, kind, header, commitments, document, tensors)
                self.runs.clear()
            if kind != "request" and request[-1] is not None:
                yield f"a {kind} has the row of a request"
        except (TypeError, ValueError, KeyError, AttributeError, LedgerError):
            yield f"this {kind} cannot be read"

    def _promise(
        self, seq: int, model: int, header: bytes, commitments: bytes, record: Record | None
    ) -> Iterator[str]:
        self.promises.append(seq)
        if model not in self.models:
            yield "a promise of a model that is not in the ledger"
        content = content_of("promise", header)
        dates = content["time"], math.inf if content["expires"] is None else content["expires"]
        if not self.runs or self.runs[-1][1] != dates:
            self.runs.append((seq, dates))
        if record is None:
            self.missing.add(seq)
            if len(commitments) != HASH * len(PARTS):
                yield "a promise has other commitments"
            return
        wrong = list(record.faults(content["original"]))
        yield from wrong
        if not wrong:
            self.waiting.setdefault(model, []).append(Stored(seq, content, record))

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
        elif kind == "ledger":
            if (content["format"], content["version"]) != (FORMAT, VERSION):
                yield "it is a ledger of another layout"
        elif kind in ("release", "erasure"):
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
        """Return the dates of the promises from ``first`` on, since the last entry of another kind."""
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

    def conclude(self, sizes: Mapping[str, int]) -> Verification:
        """Check what only the whole ledger shows, and return the result."""
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
        """Yield requests that were cleared without an erasure of a promise of theirs, or not despite one."""
        erased = sorted(self.erased)
        for seq, first, cleared in self.cleared:
            gone = bisect_left(erased, seq) > bisect_left(erased, first)
            if cleared and not gone:
                yield seq, "what was asked is gone, and no entry says that one of its promises was erased"
            if gone and not cleared:
                yield seq, "what was asked is still there, though one of its promises was erased"


# ---------------------------------------------------------------------------------- the contents of promises


class Stored(NamedTuple):
    """A promise with its record: its number, and the content of its header."""

    seq: int
    header: Mapping[str, Any]
    record: Record


def faults(issuing: IssuingModel, stored: Sequence[Stored], cipher: Fernet | None) -> Iterator[Finding]:
    """Yield what is wrong with promises of one model whose headers and commitments are sound."""
    whole = []
    for one in stored:
        wrong = _shape(issuing, one)
        if wrong:
            yield Finding(one.seq, wrong)
        else:
            whole.append(one)
    if whole:
        wide = np.array([one.header["region"] for one in whole])
        x_cf, region = counterfactuals([one.record.x_cf for one in whole], wide, issuing)
        yield from _shown(issuing.encoding, whole, x_cf, region, wide)
        yield from _decisions(issuing, whole, x_cf)
        yield from _originals(issuing, whole, cipher)


def _shape(issuing: IssuingModel, one: Stored) -> str:
    """Return what is wrong with the form of one record; an empty text if nothing is."""
    region = 2 * len(issuing.encoding.schema) if one.header["region"] else 0
    if not one.header["radius"] * max(issuing.units) < math.inf:
        return "it covers a set of models without an end"
    if len(one.record.x_cf) != 8 * (issuing.encoding.dim + region):
        return "'x_cf' has another length than its header says"
    if not _is_text(one.record.id):
        return "the id is no text"
    if one.header["original"] == "encrypted" and not (
        _is_token(one.record.x) and _is_token(one.record.private)
    ):
        return "the original row is not encrypted"
    return ""


def _shown(
    encoding: Encoding,
    stored: list[Stored],
    x_cf: Tensor,
    region: NDArray[np.float64],
    wide: NDArray[np.bool_],
) -> Iterator[Finding]:
    """Yield what is wrong with the encoded counterfactuals, then with their texts, then with the regions."""
    yield from _where("'x_cf' is no row of this encoding", ~_are_rows(x_cf), stored)
    names = set(encoding.schema.names)
    rows = [_row(checked_json(one.record.public), names) for one in stored]
    readable = np.array([row is not None for row in rows])
    yield from _where("'public' is no row of the issuing schema", ~readable, stored)
    sound = yield from _compared("public", encoding, stored, rows, x_cf)
    yield from _where("its region has no extent", wide & ~is_wide(region), stored)
    some = np.flatnonzero(wide & sound)
    if len(some):
        shown = encoding.numbers(_table(encoding, [rows[k] for k in some.tolist()])).numpy()
        low, high = region[some, 0], region[some, 1]
        extends = ~np.isnan(low) | ~np.isnan(high)
        one_hot = np.array([block.group is not None for block in encoding.blocks])
        holds = (low <= shown) & (shown <= high) & np.isfinite(low) & np.isfinite(high) & ~one_hot
        wrong = (extends & ~holds).any(1)
        yield from _where("the region does not hold the shown row", wrong, [stored[k] for k in some.tolist()])


def _decisions(issuing: IssuingModel, stored: list[Stored], x_cf: Tensor) -> Iterator[Finding]:
    """Yield promises whose x' the issuing model decides as, by the header, it decided the original row.

    By more than rounding: a model in float32 may have decided otherwise about what lies within it.
    """
    sign = torch.tensor([1.0 if one.header["favourable"] else -1.0 for one in stored]).to(x_cf)
    alone = issuing.param_set(0.0)
    with torch.no_grad():
        logit = issuing.network.logit(issuing.theta, x_cf)
        error = logit_error(alone, trace(alone, x_cf), PRECISION)
    yield from _where(
        "its model decides the shown row as it did the original one", (sign * logit > error).numpy(), stored
    )


def _originals(issuing: IssuingModel, stored: list[Stored], cipher: Fernet | None) -> Iterator[Finding]:
    """Yield what is wrong with applicants' own rows, of those that can be read."""
    encoding, kept, rows, blobs = issuing.encoding, [], [], []
    names = set(encoding.schema.names)
    for one in stored:
        parts = _readable(one, cipher)
        if parts is None:
            continue
        x, text = parts
        content = checked_json(text)
        row = _row(content["row"], names) if content is not None and _is_private(content) else None
        if row is None or len(x) != 8 * encoding.dim:
            yield Finding(one.seq, "'private' is no row of the issuing schema with its sentence")
        else:
            kept.append(one)
            rows.append(row)
            blobs.append(x)
    if kept:
        own = numbers_of(blobs, encoding.dim)
        yield from _where("'x' is no row of this encoding", ~_are_rows(own), kept)
        yield from _compared("private", encoding, kept, rows, own)


def _is_private(content: Row) -> bool:
    """Return whether this is a row with its sentence and what a notice says."""
    kinds = {"row": object, "sentence": str, **FACTS}
    return content.keys() == kinds.keys() and all(isinstance(content[name], kinds[name]) for name in kinds)


def _compared(
    part: str, encoding: Encoding, stored: list[Stored], rows: Sequence[Row | None], certified: Tensor
) -> Generator[Finding, None, NDArray[np.bool_]]:
    """Yield texts that are not, bit for bit, what was certified; return where they can be encoded, (n,)."""
    again = _encoded(encoding, rows)
    read = ~torch.isnan(again).any(-1)
    there = torch.tensor([row is not None for row in rows])
    unreadable = (~read & there).numpy()
    yield from _where(f"{part!r} has values that the issuing encoding does not", unreadable, stored)
    other = read & (again != certified).any(-1)
    yield from _where(f"{part!r} is not the row that was certified", other.numpy(), stored)
    return np.asarray(read.numpy())


def _encoded(encoding: Encoding, rows: Sequence[Row | None]) -> Tensor:
    """Return the rows encoded, (n, d); NaN where one is None or cannot be encoded."""
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
    """Return the content if it has a plain value for each column of the schema, and nothing else."""
    if not isinstance(content, dict) or content.keys() != names:
        return None
    return content if set(map(type, content.values())) <= CELLS else None


def _readable(one: Stored, cipher: Fernet | None) -> tuple[bytes, bytes] | None:
    """Return the original row, encoded and as text; None where it is not kept, or under another key."""
    if one.record.x is None or one.record.private is None:
        return None
    if one.header["original"] != "encrypted":
        return one.record.x, one.record.private
    try:
        return (
            None
            if cipher is None
            else (decrypted(one.record.x, cipher), decrypted(one.record.private, cipher))
        )
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
    """Return whether the bytes could be a Fernet token: version, time, IV, whole blocks, and a MAC."""
    try:
        token = urlsafe_b64decode(blob or b"")
    except ValueError:
        return False
    return len(token) >= 73 and token[0] == 0x80 and (len(token) - 57) % 16 == 0


def _where(what: str, wrong: NDArray[np.bool_], stored: Sequence[Stored]) -> Iterator[Finding]:
    for k in np.flatnonzero(wrong).tolist():
        yield Finding(stored[k].seq, what)
