"""Who may ask for what: API keys, of which only hashes are kept, their scopes, and how often they may ask.

A key is ``vt_NAME_SECRET`` with 32 random bytes as its secret: nobody can guess it, so a plain SHA-256 is
enough, and slow hashes would only slow the service. It is looked up by its name, and the hashes are compared
in constant time, with a stranger's too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from veritracer.errors import ServiceError, listing, message, unknown_name
from veritracer.files import envelope, write_whole

Scope = Literal["decide", "issue", "audit", "erase", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
FORMAT, VERSION = "veritracer-keys", 1
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
MOST_STRANGERS = 10_000
"""Addresses whose failures are remembered."""


@dataclass(frozen=True)
class Caller:
    """Who asks: the name of the key, and what it may do."""

    name: str
    scopes: frozenset[Scope]

    def may(self, scope: Scope) -> bool:
        """Whether this caller has the scope; ``admin`` has all."""
        return scope in self.scopes or "admin" in self.scopes


EVERYBODY = Caller("everybody", frozenset(SCOPES))
"""Who asks where there are no keys, which is on a loopback address only."""


@dataclass(frozen=True)
class Keys:
    """The keys of a service: name to hash and scopes."""

    known: Mapping[str, tuple[bytes, frozenset[Scope]]]

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys in a file that ``add_key`` wrote."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if (content["format"], content["version"]) != (FORMAT, VERSION):
                raise ValueError("another format")
            known = {name: _entry(one) for name, one in content["keys"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            received = f"{path} ({getattr(error, 'strerror', None) or type(error).__name__})"
            remedy = "make one: veritracer serve --keys FILE --add-key NAME --scopes decide"
            raise ServiceError(message("a file of API keys", received, remedy)) from None
        if not known:
            raise ServiceError(message("an API key in the file", f"none in {path}", "add one: --add-key"))
        return cls(known)

    def caller(self, key: str) -> Caller | None:
        """Whose key this is; None for a stranger's."""
        name = key.removeprefix("vt_").rpartition("_")[0]
        expected, scopes = self.known.get(name, (bytes(32), frozenset()))
        same = hmac.compare_digest(hashlib.sha256(key.encode("utf-8", "replace")).digest(), expected)
        return Caller(name, scopes) if same and name in self.known else None


def add_key(path: Path, name: str, scopes: Iterable[str]) -> str:
    """The new key, told this once; the file has its hash, and a key of the same name is replaced."""
    if not NAME.fullmatch(name):
        remedy = "such as origination-1"
        raise ServiceError(message("a name of small letters, digits and hyphens", repr(name), remedy))
    wanted = sorted(set(scopes))
    for scope in wanted:
        if scope not in SCOPES:
            raise ServiceError(unknown_name("a scope of API keys", scope, SCOPES))
    if not wanted:
        raise ServiceError(message("scopes for the key", "none", f"give some of {listing(SCOPES)}"))
    content: dict[str, Any] = {**envelope(FORMAT, VERSION), "keys": {}}
    if path.exists():
        Keys.read(path)
        content = json.loads(path.read_text(encoding="utf-8"))
    key = f"vt_{name}_{secrets.token_urlsafe(32).replace('_', '-')}"
    content["keys"][name] = {"sha256": hashlib.sha256(key.encode()).hexdigest(), "scopes": wanted}
    write_whole(path, json.dumps(content, indent=1) + "\n")
    path.chmod(0o600)
    return key


def _entry(one: Mapping[str, Any]) -> tuple[bytes, frozenset[Scope]]:
    scopes = frozenset(scope for scope in SCOPES if scope in one["scopes"])
    hashed = bytes.fromhex(one["sha256"])
    if len(hashed) != 32 or len(scopes) != len(set(one["scopes"])):
        raise ValueError("a key that is none")
    return hashed, scopes


@dataclass
class RateLimit:
    """Token buckets by name: ``rate`` a second, ``burst`` at once; a rate of 0 lets everything pass."""

    rate: float
    burst: float
    most: int = MOST_STRANGERS
    buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def wait(self, name: str, *, spend: bool = True, now: float | None = None) -> float:
        """Seconds to wait before this name may ask again; 0: it may, and one token is spent.

        >>> limit = RateLimit(rate=1, burst=2)
        >>> [limit.wait("a", now=0.0) for _ in range(3)]
        [0.0, 0.0, 1.0]
        """
        if self.rate == 0:
            return 0.0
        now = time.monotonic() if now is None else now
        left, at = self.buckets.pop(name, (self.burst, now))
        left = min(self.burst, left + (now - at) * self.rate)
        allowed = left >= 1.0
        self.buckets[name] = (left - 1.0 if allowed and spend else left), now
        if len(self.buckets) > self.most:
            self.buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - left) / self.rate
