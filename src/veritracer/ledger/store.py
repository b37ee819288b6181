"""What a ledger asks of the place that keeps its bytes: all that a new backend has to implement.

A store has rows and no opinion: entries of the chain in the order of their numbers, the parts of each promise
beside them, and the issuing models. What the bytes mean, and whether they are what was written, is for
``layout`` and ``chain``.

A request under a key is granted once: a retry gets what was issued then, and nothing is issued again. It is
an entry of the chain, right behind its promises and in the same transaction, so that whatever ends the
process, either all are there or none is. The entry has the hash of the key, the numbers and dates of the
promises, and commitments to what was asked and to the response, which stand in a row beside it. The entry
decides whether something was issued: without its row a request is refused, and never granted again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from veritracer.ledger.chain import answer_of
from veritracer.ledger.layout import SALT, commitment

if TYPE_CHECKING:
    from veritracer.ledger.chain import Kind
    from veritracer.ledger.issuing import Issued
    from veritracer.ledger.layout import Record

Rows = Sequence[Any]
"""Rows of one answer: each is a tuple of what the question names, in its order."""


class Reader(Protocol):
    """Questions to one state of the store; long answers come piece by piece."""

    def begin(self) -> None:
        """Fix the state that is shown from here on."""

    def head(self) -> bytes:
        """The link of the newest entry."""

    def events(self, *kinds: Kind) -> Rows:
        """Number, kind and header of all entries of these kinds, which are not promises."""

    def deployment(self, after: int = 0) -> bytes | None:
        """Return the header of the newest deployment behind a number; None where there is none."""

    def kept_models(self) -> Rows:
        """Number, kind and header of issuing models, without a look at every entry; one may be left out."""

    def model(self, seq: int) -> tuple[bytes, bytes]:
        """Document and weights of an issuing model."""

    def headers(self, model: int, chunk: int) -> Iterator[Rows]:
        """Number and header of the model's promises."""

    def promises(self, model: int, chunk: int, *, with_texts: bool = False) -> Iterator[Rows]:
        """Number, header, id, encoded rows and, if asked for, texts of the model's promises not erased."""

    def texts(self, sequence: Sequence[int]) -> dict[int, Any]:
        """Header, shown values and original row of promises by their number, of those that have a record."""

    def applications(self, whose: Sequence[bytes], after: int = 0) -> Iterator[Rows]:
        """Number, header, id and original row of these people's promises behind a number, not erased."""

    def people(self, chunk: int) -> Iterator[Rows]:
        """Number and id of all promises that are not erased."""

    def last(self) -> int:
        """The number of the newest entry."""

    def record(self, seq: int) -> Any:
        """Model, header, commitments and all parts of one promise; None if it has none (any more)."""

    def of(self, *whose: bytes) -> dict[bytes, list[int]]:
        """The numbers of all promises to each of these people."""

    def known(self, sequence: Iterable[int]) -> set[int]:
        """Which of these numbers are promises."""

    def everything(self, chunk: int) -> Iterator[Rows]:
        """All that verifying looks at: each entry with its parts, None where it has none."""

    def sizes(self) -> dict[str, int]:
        """How many rows stand beside the entries, by the name of their table."""

    def request(self, request: Request) -> Kept | None:
        """What was issued under this request's key before; refused where that was for something else."""

    def migrations(self) -> Rows:
        """Version, name and entry of each migration that was applied."""


class Writer(Protocol):
    """The end of the chain, held by one writer; all of its block is kept, or nothing."""

    seq: int
    link: bytes

    @property
    def newest(self) -> float:
        """The time of what was the newest entry before: no new one may be dated before it."""

    def append(self, kind: Kind, header: bytes, *, model: int = 0, commitments: bytes = b"") -> int:
        """The number of the new entry."""

    def promise(self, record: Record, model: int) -> int:
        """The number of the new promise."""

    def model(self, header: bytes, document: bytes, tensors: bytes) -> int:
        """The number of the new issuing model."""

    def require(self, version: int, now: float) -> None:
        """See to it that the ledger is of this version, or a newer one, before what needs it is written."""

    def index_people(self) -> None:
        """See to it that promises are found by whose they are without a look at all of them."""

    def request(self, request: Request, first: int, issued: float, expires: float) -> int:
        """Append the entry of a request whose promises, from ``first`` on, are the newest entries."""

    def delete(self, sequence: Sequence[int]) -> None:
        """Delete all that these promises say of a person; their entries stay.

        The store remembers in the same transaction that its files are still to be cleaned.
        """


class Store(Protocol):
    """The bytes of one ledger: readers at any time, one writer at a time."""

    @property
    def place(self) -> str:
        """Where it is, without any password."""

    @property
    def read_only(self) -> bool:
        """Whether it can only be read."""

    def reading(self) -> AbstractContextManager[Reader]:
        """Questions to one state of the ledger."""

    def writing(self) -> AbstractContextManager[tuple[Writer, Reader]]:
        """The end of the chain, and questions to the ledger; all of the block is kept, or nothing."""

    def forget_traces(self) -> str:
        """Remove deleted content from the files too; return what prevented it, or nothing."""

    def close(self) -> None:
        """Close what is open."""


class Request(NamedTuple):
    """Something that is asked for: under which key, what exactly, and what else to tell whoever retries.

    ``key`` and ``answer`` must name nobody: the hash of the one and the JSON of the other outlast an erasure.
    """

    key: str
    content: bytes
    answer: dict[str, Any] | None = None

    @property
    def hashed(self) -> str:
        """Return what the ledger keeps of the key: its SHA-256, in hexadecimal."""
        return hashlib.sha256(self._key).hexdigest()

    @property
    def digest(self) -> bytes:
        """Return what the ledger keeps of the content; only somebody who has the key can compare with it."""
        return hmac.digest(self._key, self.content, "sha256")

    @property
    def _key(self) -> bytes:
        return self.key.encode("utf-8", "surrogatepass")


class RequestRow(NamedTuple):
    """What stands beside the entry of a request.

    An erasure of one of its promises empties ``salt`` and ``digest``; ``response`` stays.
    """

    salt: bytes
    digest: bytes
    response: bytes

    @classmethod
    def of(cls, request: Request) -> RequestRow:
        """Return a row for this request, with a fresh salt."""
        response = json.dumps(request.answer, allow_nan=False).encode()
        return cls(os.urandom(SALT), request.digest, response)

    @property
    def commitments(self) -> bytes:
        """Return the commitments to what was asked and to the response; the latter has no salt."""
        return commitment(self.salt, self.digest) + commitment(b"", self.response)

    @property
    def is_cleared(self) -> bool:
        """Tell whether nothing is left of what was asked."""
        return self.salt == self.digest == b""


@dataclass(frozen=True)
class Kept:
    """What was issued for a request: numbers from ``first`` on, their dates, the head, and the answer.

    ``head`` is the link of the request's own entry, which follows its promises.
    """

    first: int
    count: int
    head: bytes
    answer: dict[str, Any] | None = None
    issued: float = math.nan
    expires: float = math.inf

    @property
    def sequence(self) -> range:
        """The numbers of the promises."""
        return range(self.first, self.first + self.count)

    def as_issued(self, skipped: int) -> Issued:
        """The same as ``issue`` tells it; the ids and openings of then are not kept."""
        from veritracer.ledger.issuing import Issued

        numbers = np.arange(self.first, self.first + self.count, dtype=np.int64)
        head, issued, expires = self.head.hex(), self.issued, self.expires
        return Issued(numbers, [], head, skipped, issued=issued, expires=expires, again=True)


def kept_of(content: Mapping[str, Any], link: bytes, row: RequestRow) -> Kept:
    """Return what was issued for a request, from the content of its entry, its link and its row."""
    expires = math.inf if content["expires"] is None else content["expires"]
    answer = answer_of(row.response)
    return Kept(content["first"], content["count"], link, answer, content["time"], expires)
