"""Requests that are granted once: what was requested under a key, and what was issued for it.

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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veritracer.ledger.records import SALT, commitment

if TYPE_CHECKING:
    from veritracer.counterfactuals import Counterfactuals


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
        """Return the commitments to the content and to the response; the latter has no salt."""
        return commitment(self.salt, self.digest) + commitment(b"", self.response)

    @property
    def is_cleared(self) -> bool:
        """Return whether an erasure has cleared the digest of the content."""
        return self.salt == self.digest == b""


@dataclass(frozen=True, repr=False)
class Issued:
    """Promises that were issued.

    Attributes
    ----------
    sequence
        Their numbers in the ledger.
    ids
        The applicants' ids.
    head
        The newest link of the chain, in hexadecimal: note it elsewhere.
    skipped
        The number of rows without a counterfactual, which got no promise.
    issued, expires
        When they were made and until when they hold, in seconds since 1970; infinite is never.
    uncertified, outgrown, out_of_range, repeated
        The number of counterfactuals left out because they are not certified (or not accepted by the panel),
        because nothing is proved until the promise would end, because a number of the row is further outside
        the range of the training rows than that is wide, and because the same application has a live promise
        already.
    openings
        With ``original="commitment"``: for each promise the salt and the content that prove later which row
        was committed to. It is kept nowhere else.
    recourse
        The counterfactuals, if ``VeriTraCER.issue`` found them.
    again
        Whether these were issued before for the same request, and nothing now. Ids, openings and the counts
        of what was left out are not kept then.
    answer
        The request's answer for a retry.
    """

    sequence: NDArray[np.int64]
    ids: list[str]
    head: str
    skipped: int = 0
    openings: list[bytes] = field(default_factory=list)
    recourse: Counterfactuals | None = None
    issued: float = math.nan
    expires: float = math.inf
    uncertified: int = 0
    outgrown: int = 0
    out_of_range: int = 0
    repeated: int = 0
    again: bool = False
    answer: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.sequence)

    def __str__(self) -> str:
        numbers = f" (entries {self.sequence[0]:,} to {self.sequence[-1]:,})" if len(self) else ""
        return "; ".join(
            [
                f"{len(self):,} {'promise' if len(self) == 1 else 'promises'}{numbers}",
                f"{self.uncertified:,} skipped, not certified",
                f"{self.outgrown:,} skipped, not certified until they would end",
                f"{self.out_of_range:,} skipped, far outside the training rows",
                f"{self.repeated:,} skipped, promised already",
                f"{self.skipped:,} without a counterfactual",
                f"head {self.head}",
            ]
        )

    __repr__ = __str__  # and not every number and id
