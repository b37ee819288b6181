"""What the headers of entries say: JSON of one form for all that are no promise, and when each was made.

A header is read only as a writer writes it: one object with the fields of its kind, sorted, each of its type.
Whatever reads entries and whatever verifies them asks this module, so that they can not disagree.
"""

from __future__ import annotations

import json
import math
import struct
from itertools import pairwise
from typing import Any

from veritracer.errors import LedgerError, message
from veritracer.ledger.chain import Kind

FORMAT = "veritracer-ledger"

MONOTONE = 2
"""The version of a ledger from which on no entry is dated before the one before it."""

FIELDS: dict[str, dict[str, type]] = {
    "migration": {"format": str, "name": str, "time": float, "version": int},
    "model": {"digest": str, "time": float},
    "release": {"reason": str, "sequence": list, "time": float},
    "erasure": {"sequence": list, "time": float},
}
"""What each kind says of itself. The first migration also has the ``ledger``, 16 random bytes."""

_PROMISED = struct.Struct("<4xdd")  # behind four small numbers: issued and expires


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
        return float(_PROMISED.unpack_from(header)[0])
    except (TypeError, struct.error):
        raise _changed(kind, header) from None


def promised_at(header: bytes, issued: float, expires: float) -> bytes:
    """The header of a promise that is made at ``issued`` and ends at ``expires``."""
    return header[:4] + _PROMISED.pack(issued, expires)[4:] + header[_PROMISED.size :]


def _is_of(kind: Kind | str, content: dict[str, Any]) -> bool:
    fields = dict(FIELDS.get(kind, {"": str}))
    if kind == "migration" and content.get("version") == 1:
        fields["ledger"] = str
    if content.keys() != fields.keys() or any(type(content[k]) is not t for k, t in fields.items()):
        return False
    numbers = content.get("sequence", [1])
    return (
        math.isfinite(content["time"])
        and content.get("version", 1) >= 1
        and len(numbers) > 0
        and all(type(number) is int for number in numbers)
        and all(one < after for one, after in pairwise([0, *numbers, 2**63]))
    )


def _changed(kind: str, header: object) -> LedgerError:
    remedy = "the ledger was changed: run veritracer verify"
    return LedgerError(message(f"the header of a {kind}", repr(header)[:80], remedy))
