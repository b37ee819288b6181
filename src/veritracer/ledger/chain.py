r"""The hash chain, which makes every change to the ledger show, and the headers of its entries.

Each entry carries a link, the SHA-256 of the link before it and of everything about the entry::

    commitment = SHA-256(salt ‖ content)                     for each part that may have to be erased
    link       = SHA-256(previous link ‖ "SEQ\nKIND\nMODEL\nLENGTH\n" ‖ header ‖ commitments)

with the numbers in decimal, LENGTH that of the header in bytes, and 32 zero bytes before the first entry.
Hashes are of stored bytes, never of values that were read and written again. Content and salt of a part can
be deleted and the chain still verifies; without its salt a commitment says nothing about the content, however
few contents are possible.

A header is canonical JSON: one object with the fields of its kind, sorted, each of its type. Readers and the
check call the same functions, so that they cannot disagree.

A request is an entry right behind the promises that were issued for it. It has two commitments: to its
content, with a salt that an erasure deletes, and to the response, without one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from types import UnionType
from typing import Any, Literal, get_args

from veritracer.errors import LedgerError, message
from veritracer.ledger.records import CHANGED, HASH, PROMISE, canonical, is_promise

Kind = Literal[
    "ledger", "model", "promise", "release", "erasure", "audit", "update", "deployment", "request", "clock"
]

BEGINNING = bytes(32)
"""The link before the first entry."""

FORMAT, VERSION = "veritracer-ledger", 1
"""The layout of a ledger, as its first entry names it."""

FIELDS: dict[str, dict[str, type | UnionType]] = {
    "ledger": {"format": str, "ledger": str, "time": float, "version": int},
    "model": {"digest": str, "time": float},
    "promise": PROMISE,
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
    "clock": {"newest": float, "reason": str, "time": float},
    "update": {"after": str, "before": str, "broken": int, "live": int, "proved": int, "time": float},
    "request": {"count": int, "expires": float | None, "first": int, "key": str, "time": float},
}
"""The fields of each kind's header, with their types.

``ledger`` of the first entry is 16 random bytes in hexadecimal. Of a request, ``key`` is the SHA-256 of the
caller's key; its promises have the numbers from ``first`` on, were made at its ``time`` and end at
``expires`` (None: never). A ``clock`` says that the time of the ``newest`` entry before it came from a wrong
clock; it is the only kind that may be dated before the entry before it.
"""

KEY = re.compile("[0-9a-f]{64}")
"""The SHA-256 of a request's key."""


def link(previous: bytes, seq: int, kind: str, model: int, header: bytes, commitments: bytes) -> bytes:
    """Return the link of an entry; ``model`` is the number of the issuing model's entry, or 0.

    >>> link(BEGINNING, 1, "ledger", 0, b"{}", b"").hex()[:16]
    '984bf8461a213564'
    """
    about = f"{seq}\n{kind}\n{model}\n{len(header)}\n".encode()
    return sha256(previous + about + header + commitments).digest()


def follows(previous: bytes, entry: Sequence[Any]) -> bool:
    """Return whether the link of a stored entry follows from the link before it."""
    seq, kind, model, header, commitments, stored = entry[:6]
    try:
        return bool(link(previous, seq, kind, model, header, commitments) == stored)
    except TypeError:  # SQLite keeps a text where bytes belong
        return False


def stored_link(stored: object) -> bytes:
    """Return the newest link as a database gives it (None without an entry); refuse what no link can be."""
    if stored is None:
        return BEGINNING
    if not isinstance(stored, bytes | memoryview) or len(bytes(stored)) != HASH:
        raise LedgerError(message(f"a link of {HASH} bytes", repr(stored)[:80], CHANGED))
    return bytes(stored)


def content_of(kind: str, header: bytes) -> dict[str, Any]:
    """Return the content of a header of that kind; refuse what no writer writes."""
    try:
        content = json.loads(header)
        whole = isinstance(content, dict) and canonical(content) == header
    except (TypeError, ValueError, RecursionError):
        whole = False
    if not whole or not _is_of(kind, content):
        raise LedgerError(message(f"the header of a {kind}", repr(header)[:80], CHANGED))
    found: dict[str, Any] = content
    return found


def time_of(kind: str, header: bytes) -> float:
    """Return when the entry was made, in seconds since 1970."""
    return float(content_of(kind, header)["time"])


def _is_of(kind: Kind | str, content: dict[str, Any]) -> bool:
    fields = FIELDS.get(kind, {"": str})
    if content.keys() != fields.keys():
        return False
    if any(type(content[name]) not in (get_args(wanted) or (wanted,)) for name, wanted in fields.items()):
        return False
    numbers = content.get("sequence", [1])
    counted = [value for value in content.values() if type(value) in (int, float)]
    return (
        all(map(math.isfinite, counted))
        and all(value >= 0 for value in counted if type(value) is int)
        and (kind != "promise" or is_promise(content))
        and (kind != "request" or KEY.fullmatch(content["key"]) is not None)
        and len(numbers) > 0
        and all(type(number) is int for number in numbers)
        and all(one < after for one, after in pairwise([0, *numbers, 2**63]))
    )


def answer_of(response: bytes) -> dict[str, Any] | None:
    """Return what a response tells a retry; refuse what is neither a JSON object nor null."""
    try:
        answer = json.loads(response)
    except (TypeError, ValueError, RecursionError):
        answer = ()
    if answer is not None and not isinstance(answer, dict):
        raise LedgerError(message("a response as JSON", repr(response)[:80], CHANGED))
    return answer
