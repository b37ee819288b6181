"""Requests that are granted once: a retry gets what was issued then, and nothing is issued again.

The row of a request is written in the same transaction as its promises, so that whatever ends the process,
either both are there or neither is. It holds nothing that names a person: hashes of the key and (salted) of
what was asked, the numbers of the promises, and an answer in which the caller says nothing of anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from veritracer.errors import RequestReusedError, message

if TYPE_CHECKING:
    from veritracer.ledger.issuing import Issued

SALT = 16


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
