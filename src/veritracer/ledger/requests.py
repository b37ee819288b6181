"""Requests that are granted once: what was asked for under a key, and what was issued for it.

A retry under the same key gets what was issued then, and nothing is issued again. A request is an entry of
the chain, right behind its promises and in the same transaction, so that whatever ends the process, either
all are there or none is. The entry has the hash of the key, the numbers and dates of the promises, and
commitments to the content of the request and to the response, which stand in a row beside it. The entry
decides whether something was issued: without its row a request is refused, and never granted again.
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


def kept_of(content: Mapping[str, Any], link: bytes, row: RequestRow) -> Kept:
    """Return what was issued for a request, from the content of its entry, its link and its row."""
    expires = math.inf if content["expires"] is None else content["expires"]
    answer = answer_of(row.response)
    return Kept(content["first"], content["count"], link, answer, content["time"], expires)
