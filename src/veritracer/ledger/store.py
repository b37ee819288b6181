"""What a ledger asks of the place that keeps its bytes: all that a new backend has to implement.

A store has rows and no opinion: entries of the chain in the order of their numbers, the parts of each promise
beside them, and the issuing models. What the bytes mean, and whether they are what was written, is for
``layout`` and ``chain``.

A request under a key is granted once: a retry gets what was issued then, and nothing is issued again. Its row
is written in the same transaction as its promises, so that whatever ends the process, either both are there
or neither is. It holds nothing that names a person: hashes of the key and (salted) of what was asked, the
numbers of the promises, and an answer in which the caller says nothing of anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from veritracer.errors import RequestReusedError, message

if TYPE_CHECKING:
    from veritracer.ledger.chain import Kind
    from veritracer.ledger.issuing import Issued
    from veritracer.ledger.layout import Record

Rows = Sequence[Any]
"""Rows of one answer: each is a tuple of what the question names, in its order."""

SALT = 16


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

    def of(self, who: bytes) -> list[int]:
        """The numbers of all promises to somebody."""

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

    def request(self, request: Request, kept: Kept) -> None:
        """Remember what was issued for the request."""

    def delete(self, sequence: Sequence[int]) -> None:
        """Delete all that these promises say of a person; their entries stay."""


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

    def forget_traces(self) -> bool:
        """Whether deleted content has left the files too, as far as the store can do that."""

    def close(self) -> None:
        """Close what is open."""


class Request(NamedTuple):
    """Something that is asked for: under which key, what exactly, and what else to tell whoever retries.

    ``answer`` is kept as JSON beside the promises and must name nobody: an erasure leaves it there.
    """

    key: str
    content: bytes
    answer: dict[str, Any] | None = None

    @property
    def hashed(self) -> bytes:
        """What the key is known by."""
        return hashlib.sha256(self.key.encode("utf-8", "surrogatepass")).digest()

    @property
    def number(self) -> int:
        """Where it is kept: 63 bits of the key's hash."""
        return int.from_bytes(self.hashed[:8]) >> 1


@dataclass(frozen=True)
class Kept:
    """What was issued for a request: numbers from ``first`` on, the head after them, and its answer."""

    first: int
    count: int
    head: bytes
    answer: dict[str, Any] | None = None

    @property
    def sequence(self) -> range:
        """The numbers of the promises."""
        return range(self.first, self.first + self.count)

    def issued(self, skipped: int) -> Issued:
        """The same as ``issue`` tells it; the ids and openings of then are not kept."""
        from veritracer.ledger.issuing import Issued

        numbers = np.arange(self.first, self.first + self.count, dtype=np.int64)
        return Issued(numbers, [], self.head.hex(), skipped, again=True)


def keep(request: Request, kept: Kept) -> dict[str, Any]:
    """The row to write."""
    salt = os.urandom(SALT)
    return {
        "number": request.number,
        "key": request.hashed,
        "salt": salt,
        "digest": _digest(salt, request.content),
        "first": kept.first,
        "count": kept.count,
        "head": kept.head,
        "answer": json.dumps(request.answer, allow_nan=False).encode(),
    }


def look_up(request: Request, row: Any) -> Kept | None:
    """What the row says, if it is of this request; another request under the same key is refused."""
    if row is None:
        return None
    known = row.digest == b"" or hmac.compare_digest(row.digest, _digest(row.salt, request.content))
    if row.key != request.hashed or not known:
        remedy = "send a retry exactly as the first time, and give every new request a key of its own"
        received = "another request under its key"
        raise RequestReusedError(message("the request that this key was first used for", received, remedy))
    return Kept(int(row.first), int(row.count), bytes(row.head), json.loads(row.answer))


def _digest(salt: bytes, content: bytes) -> bytes:
    return hashlib.sha256(salt + content).digest()
