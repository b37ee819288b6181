"""Whether a ledger is what was written: every link, every commitment, every row in its place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from veritracer.ledger.chain import BEGINNING, HASH, SALT, link
from veritracer.ledger.records import HEADER, LAYOUT, ORIGINALS, PARTS

MOST = 1_000
"""Findings that are kept one by one; the others are counted."""

COMMITMENT = ORIGINALS.index("commitment")
PARTLY = PARTS.index("x")  # so many parts are always kept


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
    """

    findings: tuple[Finding, ...]
    count: int
    entries: int
    promises: int
    erased: int
    head: str

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.count == 0


@dataclass
class Check:
    """The state of a verification that goes through the chain entry by entry."""

    head: bytes | None = None
    seq: int = 0
    link: bytes = BEGINNING
    seen: bool = False
    promises: int = 0
    count: int = 0
    findings: list[Finding] = field(default_factory=list)
    models: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    erased: set[int] = field(default_factory=set)
    migrations: list[tuple[int, str, int]] = field(default_factory=list)
    beside: dict[str, int] = field(default_factory=lambda: {"encoded": 0, "texts": 0, "models": 0})

    def found(self, sequence: int, what: str) -> None:
        """Nothing; it is noted."""
        self.count += 1
        if len(self.findings) < MOST:
            self.findings.append(Finding(sequence, what))

    def entry(self, row: Sequence[Any]) -> None:
        """Nothing; the entry's place, link and parts were checked."""
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
        self.seen = self.seen or stored == self.head
        for what in self._parts(row):
            self.found(seq, what)

    def _parts(self, row: Sequence[Any]) -> Iterator[str]:
        seq, kind, model, header, commitments = row[:5]
        salts, who, x_cf, x, shown, original, document, tensors = row[6:]
        for name, part in (("encoded", salts), ("texts", shown), ("models", document)):
            self.beside[name] += part is not None
        try:
            if kind == "promise":
                if document is not None:
                    yield "a promise has the content of a model"
                parts = (who, x_cf, shown, x, original)
                yield from self._promise(seq, model, header, commitments, salts, parts)
            else:
                if salts is not None or shown is not None:
                    yield f"a {kind} has the record of a promise"
                yield from self._event(seq, kind, header, commitments, document, tensors)
        except (TypeError, ValueError, KeyError, AttributeError):
            yield f"this {kind} can not be read"

    def _promise(
        self, seq: int, model: int, header: bytes, commitments: bytes, salts: bytes | None, parts: Any
    ) -> Iterator[str]:
        self.promises += 1
        if model not in self.models:
            yield "a promise of a model that is not in the ledger"
        if len(header) != HEADER.itemsize or header[0] != LAYOUT or len(commitments) != HASH * len(PARTS):
            yield "the header of a promise has another layout"
            return
        if salts is None or parts[2] is None:
            if salts is not None or parts[2] is not None:
                yield "half of the record is missing"
            self.missing.add(seq)
            return
        kept = PARTLY if header[3] == COMMITMENT else len(PARTS)
        if len(salts) != SALT * kept or any(part is not None for part in parts[kept:]):
            yield "the record has other parts than were committed to"
            return
        for k in range(kept):
            at, to = SALT * k, HASH * k
            if sha256(salts[at : at + SALT] + parts[k]).digest() != commitments[to : to + HASH]:
                yield f"{PARTS[k]!r} is not what was committed to"

    def _event(
        self, seq: int, kind: str, header: bytes, commitments: bytes, document: Any, tensors: Any
    ) -> Iterator[str]:
        content = json.loads(header)
        if kind == "model":
            self.models.add(seq)
            if document is None or tensors is None:
                yield "an issuing model is missing"
                return
            name = sha256(document)
            if (
                commitments != name.digest() + sha256(tensors).digest()
                or content["digest"] != name.hexdigest()
            ):
                yield "an issuing model is not what was committed to"
            return
        if document is not None:
            yield f"a {kind} has the content of a model"
        if kind == "erasure":
            self.erased.update(content["sequence"])
        elif kind == "migration":
            self.migrations.append((content["version"], content["name"], seq))
        elif kind != "release":
            yield f"{kind!r} is not a kind of entry"

    def conclude(self, sizes: Mapping[str, int], migrations: Iterable[Any]) -> Verification:
        """What was found, after what only the whole can show."""
        for seq in sorted(self.missing - self.erased):
            self.found(seq, "the record is missing, and no entry says that it was erased")
        for seq in sorted(self.erased - self.missing):
            self.found(seq, "the record is still there, though an entry says that it was erased")
        for name, size in sizes.items():
            seen = self.beside[name.removeprefix("veritracer_")]
            if size != seen:
                self.found(0, f"{name} has {size - seen:,} rows that belong to no entry")
        if [tuple(row) for row in migrations] != self.migrations:
            self.found(0, "veritracer_migrations is not what the entries say")
        if not self.seq:
            self.found(0, "there is no entry at all")
        if self.head is not None and not self.seen:
            self.found(0, "the head that was noted is not in the chain: its end was cut off or rewritten")
        erased = len(self.erased & self.missing)
        head = self.link.hex() if isinstance(self.link, bytes) else ""
        return Verification(tuple(self.findings), self.count, self.seq, self.promises, erased, head)
