"""One state of a ledger: whatever is written meanwhile, all of its answers agree."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from veritracer.errors import LedgerError, message
from veritracer.ledger import kept_models
from veritracer.ledger.arrays import ENCRYPTED, Gone, Terms, headers, to_promises
from veritracer.ledger.promised import IssuingModel, Limit, Promises
from veritracer.ledger.records import CONDITIONAL
from veritracer.ledger.telling import Kept
from veritracer.ledger.texts import Row, from_json, private
from veritracer.ledger.times import Moment, moment
from veritracer.ledger.verifying import Check, Verification

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

    from veritracer.ledger.sql.reader import Reader

CHUNK = 20_000
"""Promises that are read at once: some 80 MB at 25 encoded columns; more at once is not faster."""

WITH_TEXTS = 10_000
"""Promises that are read at once, at most, where their texts are: each is some thousand bytes then."""


@dataclass(frozen=True)
class Counts:
    """How many promises there are, by what has become of them; the sum is all that were made."""

    live: int
    expired: int
    released: int
    erased: int


class Told(NamedTuple):
    """The raw values that somebody was shown, and their own; None where these can not be read."""

    shown: Row
    original: Row | None


class Snapshot:
    """The ledger within one transaction that reads: at one moment, or with ``at`` on an earlier day.

    It is what an audit reads from. A promise that is issued meanwhile, or a model, is not in it.
    """

    def __init__(
        self, reader: Reader, known: dict[int, IssuingModel], seal: Fernet | None, at: Moment = None
    ) -> None:
        self._reader, self._known, self._seal = reader, known, seal
        self._at = None if at is None else moment(at)
        self.time = moment(at)

    @contextmanager
    def snapshot(self, at: Moment = None) -> Iterator[Snapshot]:
        """The same state on another day."""
        yield Snapshot(self._reader, self._known, self._seal, at)

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
                terms = Terms.of(rows, self._gone, self._at, self.time)
                kept = terms.live | (terms.expired & terms.made) if expired else terms.live
                if kept.any():
                    yield to_promises(model, rows, terms, kept, self._seal)

    def told(self, sequence: Sequence[int]) -> list[Told]:
        """What the people of these promises were shown, and what they have."""
        found = self._reader.texts(sequence)
        gone = [number for number in sequence if number not in found]
        if gone:
            remedy = "it may have been erased: see Ledger.counts()"
            raise LedgerError(message(f"a record of promise {gone[0]}", "none", remedy))
        return [self._told(*found[number]) for number in sequence]

    def counts(self) -> Counts:
        """How many promises are live, and how many have expired or are gone."""
        total = np.zeros(4, dtype=np.int64)
        for _, terms in self._terms():
            groups = terms.live, terms.expired, terms.released, terms.erased
            total += [int((terms.made & group).sum()) for group in groups]
        return Counts(*total.tolist())

    def limits(self) -> list[Limit]:
        """What live promises ask of a later model: one entry for each issuing model and kappa."""
        found: dict[tuple[str, float], tuple[int, int]] = {}
        for digest, terms in self._terms():
            header = terms.header[terms.live]
            conditional = (header["flags"] & CONDITIONAL) > 0
            for kappa in np.unique(header["kappa"]).tolist():
                these = header["kappa"] == kappa
                before = found.get((digest, kappa), (0, 0))
                counts = int(these.sum()), int((these & conditional).sum())
                found[digest, kappa] = before[0] + counts[0], before[1] + counts[1]
        return [Limit(digest, kappa, *counts) for (digest, kappa), counts in found.items()]

    def kept(self, sequence: int) -> tuple[Kept, IssuingModel]:
        """The record of one promise, and who issued it."""
        row = self._reader.record(sequence)
        if row is None:
            remedy = "it may have been erased: see Ledger.counts()"
            raise LedgerError(message(f"a record of promise {sequence}", "none", remedy))
        kept = Kept(*row)
        if kept.model not in self._models:
            remedy = "the ledger was changed: run veritracer verify"
            raise LedgerError(message(f"the model of promise {sequence}", "none", remedy))
        return kept, self._models[kept.model]

    def verify(self, head: bytes | None = None, *, chunk: int = CHUNK // 2) -> Verification:
        """Whether the ledger is what was written, entry by entry."""
        check = Check(head, self._seal)
        for rows in self._reader.everything(chunk):
            check.entries(rows)
        return check.conclude(self._reader.sizes(), self._reader.migrations())

    @cached_property
    def _models(self) -> dict[int, IssuingModel]:
        """The issuing models by the number of their entry; they never change, and are read once."""
        numbers = [int(seq) for seq, _, _ in self._reader.events("model")]
        for seq in numbers:
            if seq not in self._known:
                self._known[seq] = kept_models.from_bytes(*self._reader.model(seq))
        return {seq: self._known[seq] for seq in numbers}

    @cached_property
    def _gone(self) -> Gone:
        return Gone.of(self._reader.events("release", "erasure"), self._at)

    def _terms(self) -> Iterator[tuple[str, Terms]]:
        """The headers of all promises, with the digest of their model."""
        for number, model in self._models.items():
            for rows in self._reader.headers(number, CHUNK):
                yield model.digest, Terms.of(rows, self._gone, self._at, self.time)

    def _told(self, header: bytes, shown: bytes, original: bytes | None) -> Told:
        locked = int(headers([header])[0]["original"]) == ENCRYPTED
        own = private(original, self._seal, encrypted=locked)
        return Told(from_json(shown), None if own is None else own.get("row"))
