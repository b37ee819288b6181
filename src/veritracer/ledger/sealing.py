"""Original rows under a key, for those who must not keep them readable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from veritracer.errors import LedgerError, message

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


def new_key() -> bytes:
    """A fresh random key; whoever loses it has lost the rows."""
    from cryptography.fernet import Fernet

    return Fernet.generate_key()


def sealer(key: bytes | str) -> Fernet:
    """What encrypts and decrypts with ``key`` (Fernet: AES-128 in CBC mode with HMAC-SHA256)."""
    try:
        from cryptography.fernet import Fernet
    except ModuleNotFoundError:
        remedy = "pip install 'veritracer[encryption]'"
        raise LedgerError(message("the package cryptography", "an install without it", remedy)) from None
    try:
        return Fernet(key)
    except ValueError:
        remedy = "make one with veritracer.ledger.new_key()"
        raise LedgerError(
            message("a key of 32 bytes in URL-safe base64", f"{len(key)} characters", remedy)
        ) from None


def opened(sealed: bytes, seal: Fernet) -> bytes:
    """The content, refused where the key is another one."""
    from cryptography.fernet import InvalidToken

    try:
        return seal.decrypt(sealed)
    except InvalidToken:
        remedy = "give the key that the promises were issued with"
        raise LedgerError(message("the key of the encrypted rows", "another one", remedy)) from None
