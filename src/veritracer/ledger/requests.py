"""Requests that are granted once: what was asked under a key, and what was issued for it.

A retry under the same key gets what was issued then, and nothing is issued again. A request is an entry of
the chain, right behind its promises and in the same transaction: whatever ends the process, all are there or
none is. The entry has the hash of the key, the numbers and dates of the promises, and commitments to the
content of the request and to the response, which stand in a row beside it. The entry decides whether
something was issued: without its row a request is refused, and never granted again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from veritracer.ledger.chain import answer_of
from veritracer.ledger.records import SALT, commitment


class Request(NamedTuple):
    """A request under a key of the caller's: its content, and the answer for a retry.

    ``key`` and ``answer`` must name nobody: the hash of the key and the JSON of the answer outlast an
    erasure.
    """

    key: str
    content: bytes
    answer: dict[str, Any] | None = None

    @property
    def hashed(self) -> str:
        """Return the SHA-256 of the key in hexadecimal, which the ledger keeps."""
        return hashlib.sha256(self._key).hexdigest()

    @property
    def digest(self) -> bytes:
        """Return the digest of the content that the ledger keeps; to compare with it takes the key."""
        return hmac.digest(self._key, self.content, "sha256")

    @property
    def _key(self) -> bytes:
        return self.key.encode("utf-8", "surrogatepass")


class RequestRow(NamedTuple):
    """The row beside the entry of a request.

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
        """Return whether an erasure has cleared what was asked."""
        return self.salt == self.digest == b""


@dataclass(frozen=True)
class Kept:
    """Promises that were issued for a request: numbers from ``first`` on, dates, head and answer.

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
        """Return the numbers of the promises."""
        return range(self.first, self.first + self.count)


def kept_of(content: Mapping[str, Any], link: bytes, row: RequestRow) -> Kept:
    """Return what was issued for a request, from the content of its entry, its link and its row."""
    expires = math.inf if content["expires"] is None else content["expires"]
    answer = answer_of(row.response)
    return Kept(content["first"], content["count"], link, answer, content["time"], expires)
