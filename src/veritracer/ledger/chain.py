r"""The hash chain: what makes a change to the ledger show, and the check that finds it.

Each entry carries a link, the SHA-256 of the link before it and of everything about the entry::

    commitment = SHA-256(salt ‖ content)                     for each part that may have to be erased
    link       = SHA-256(previous link ‖ "SEQ\nKIND\nMODEL\nLENGTH\n" ‖ header ‖ commitments)

with the numbers in decimal, LENGTH that of the header in bytes, and 32 zero bytes before the first entry.
Hashes are of the bytes that are stored, never of values that were read and written anew. Content and salt of
a part can be deleted and the chain still verifies; without its salt a commitment says nothing about the
content, however few contents are possible.

The header of an entry that is no promise is JSON, read only as a writer writes it: one object with the fields
of its kind, sorted, each of its type. Readers and the check ask the same functions, so that they cannot
disagree.

A request (see ``store.Request``) is an entry right behind the promises that were issued for it. It has two
commitments: to what was asked, by a salt that an erasure deletes, and to the response, without one.
"""

from __future__ import annotations

import json
import math
import re
import struct
from hashlib import sha256
from itertools import pairwise
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args

from veritracer.errors import LedgerError, message
from veritracer.ledger.records import HASH, issued_at

if TYPE_CHECKING:
    pass

Kind = Literal[
    "migration", "model", "promise", "release", "erasure", "audit", "update", "deployment", "request"
]

BEGINNING = bytes(32)
"""The link before the first entry."""

FORMAT = "veritracer-ledger"

MONOTONE = 2
"""The version of a ledger from which on no entry is dated before the one before it."""

EVENTFUL = 3
"""The version from which on audits, updates and deployments are entries, and promises may be only advice."""

FIELDS: dict[str, dict[str, type | UnionType]] = {
    "migration": {"format": str, "name": str, "time": float, "version": int},
    "model": {"digest": str, "time": float},
    "release": {"reason": str, "sequence": list, "time": float},
    "erasure": {"sequence": list, "time": float},
    "audit": {
        "at": float,
        "broken": int,
        "checked": int,
        "encoding": str,
        "expired": int,
        "model": str,
        "not_checkable": int,
        "superseded": int,
        "passed": bool,
        "proved": int,
        "threshold": float,
        "time": float,
    },
    "deployment": {
        "broken": int,
        "by": str,
        "encoding": str,
        "live": int,
        "model": str,
        "not_checkable": int,
        "reason": str,
        "threshold": float,
        "time": float,
    },
    "update": {"after": str, "before": str, "broken": int, "live": int, "proved": int, "time": float},
    "request": {"count": int, "expires": float | None, "first": int, "key": str, "time": float},
}
"""The fields of each kind's header. The first migration also has the ``ledger``, 16 random bytes.

Of a request, ``key`` is the SHA-256 of the caller's key in hexadecimal; its promises have the numbers from
``first`` on, were made at its ``time`` and end at ``expires`` (None: never).
"""

KEY = re.compile("[0-9a-f]{64}")
"""The SHA-256 of a request's key."""


def link(previous: bytes, seq: int, kind: str, model: int, header: bytes, commitments: bytes) -> bytes:
    """The link of an entry; ``model`` is the entry of the issuing model, 0 where there is none.

    >>> link(BEGINNING, 1, "migration", 0, b"{}", b"").hex()[:16]
    '3538bf095dc42818'
    """
    about = f"{seq}\n{kind}\n{model}\n{len(header)}\n".encode()
    return sha256(previous + about + header + commitments).digest()


def stored_link(stored: object) -> bytes:
    """The link of the newest entry as a database gives it, None without one; refuses what no link can be."""
    if stored is None:
        return BEGINNING
    if not isinstance(stored, bytes | memoryview) or len(bytes(stored)) != HASH:
        remedy = "the ledger was changed: run veritracer verify"
        raise LedgerError(message(f"a link of {HASH} bytes", repr(stored)[:80], remedy))
    return bytes(stored)


def to_bytes(content: dict[str, Any]) -> bytes:
    """The header with this content."""
    return json.dumps(content, sort_keys=True, allow_nan=False).encode()


def content_of(kind: str, header: bytes) -> dict[str, Any]:
    """What a header of that kind says; refuses whatever no writer writes."""
    try:
        content = json.loads(header)
        whole = isinstance(content, dict) and to_bytes(content) == header
    except (TypeError, ValueError, RecursionError):
        whole = False
    if not whole or not _is_of(kind, content):
        raise _changed(kind, header)
    found: dict[str, Any] = content
    return found


def time_of(kind: str, header: bytes) -> float:
    """When the entry was made, in seconds since 1970."""
    if kind != "promise":
        return float(content_of(kind, header)["time"])
    try:
        return issued_at(header)
    except (TypeError, struct.error):
        raise _changed(kind, header) from None


def _is_of(kind: Kind | str, content: dict[str, Any]) -> bool:
    fields = dict(FIELDS.get(kind, {"": str}))
    if kind == "migration" and content.get("version") == 1:
        fields["ledger"] = str
    if content.keys() != fields.keys():
        return False
    if any(type(content[name]) not in (get_args(wanted) or (wanted,)) for name, wanted in fields.items()):
        return False
    numbers = content.get("sequence", [1])
    counted = [value for value in content.values() if type(value) in (int, float)]
    return (
        all(map(math.isfinite, counted))
        and all(value >= 0 for value in counted if type(value) is int)
        and content.get("version", 1) >= 1
        and (kind != "request" or KEY.fullmatch(content["key"]) is not None)
        and len(numbers) > 0
        and all(type(number) is int for number in numbers)
        and all(one < after for one, after in pairwise([0, *numbers, 2**63]))
    )


def answer_of(response: bytes) -> dict[str, Any] | None:
    """Return what a response tells whoever retries; refuse what is neither a JSON object nor null."""
    try:
        answer = json.loads(response)
    except (TypeError, ValueError, RecursionError):
        answer = ()
    if answer is not None and not isinstance(answer, dict):
        remedy = "the ledger was changed: run veritracer verify"
        raise LedgerError(message("a response as JSON", repr(response)[:80], remedy))
    return answer


def _changed(kind: str, header: object) -> LedgerError:
    remedy = "the ledger was changed: run veritracer verify"
    return LedgerError(message(f"the header of a {kind}", repr(header)[:80], remedy))
