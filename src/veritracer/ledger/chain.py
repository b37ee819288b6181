r"""The hash chain: what makes a change to the ledger show.

Each entry carries a link, the SHA-256 of the link before it and of everything about the entry::

    commitment = SHA-256(salt ‖ content)                     for each part that may have to be erased
    link       = SHA-256(previous link ‖ "SEQ\nKIND\nMODEL\nLENGTH\n" ‖ header ‖ commitments)

with the numbers in decimal, LENGTH that of the header in bytes, and 32 zero bytes before the first entry.
Hashes are of the bytes that are stored, never of values that were read and written anew. Content and salt of
a part can be deleted and the chain still verifies; without its salt a commitment says nothing about the
content, however few contents are possible.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Literal

from veritracer.errors import LedgerError, message

Kind = Literal["migration", "model", "promise", "release", "erasure"]

BEGINNING = bytes(32)
"""The link before the first entry."""

HASH, SALT = 32, 16
"""The lengths of a hash and of a salt, in bytes."""


def commitment(salt: bytes, content: bytes) -> bytes:
    """The hash that stands for ``content`` in the chain."""
    return sha256(salt + content).digest()


def stored_link(stored: object) -> bytes:
    """The link of the newest entry as a database gives it, None without one; refuses what no link can be."""
    if stored is None:
        return BEGINNING
    if not isinstance(stored, bytes | memoryview) or len(bytes(stored)) != HASH:
        remedy = "the ledger was changed: run veritracer verify"
        raise LedgerError(message(f"a link of {HASH} bytes", repr(stored)[:80], remedy))
    return bytes(stored)


def link(previous: bytes, seq: int, kind: str, model: int, header: bytes, commitments: bytes) -> bytes:
    """The link of an entry; ``model`` is the entry of the issuing model, 0 where there is none.

    >>> link(BEGINNING, 1, "migration", 0, b"{}", b"").hex()[:16]
    '3538bf095dc42818'
    """
    about = f"{seq}\n{kind}\n{model}\n{len(header)}\n".encode()
    return sha256(previous + about + header + commitments).digest()
