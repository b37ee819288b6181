"""API keys, of which only hashes are kept: who may ask for what.

A key is ``vt_NAME_SECRET`` with 32 random bytes as its secret. Nobody can guess it, so a plain SHA-256 is
enough. It is looked up by its name, and hashes are compared in constant time, unknown names included. The API
takes it as a bearer token or in ``X-API-Key``, the page as the password of HTTP Basic.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from starlette.requests import Request

from veritracer.app.serve.models import refused
from veritracer.errors import ServiceError, listing, message, unknown_name
from veritracer.files import envelope, write_whole

Scope = Literal["decide", "issue", "audit", "erase", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
FORMAT, VERSION = "veritracer-keys", 1
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")

FAILURES = 20
"""Wrong keys that a client may try at once; one more every ``PAUSE`` seconds."""

PAUSE = 6.0

MOST_CLIENTS = 10_000
"""Clients whose failed logins are counted."""


@dataclass(frozen=True)
class Caller:
    """The name of a key, and its scopes."""

    name: str
    scopes: frozenset[Scope]

    def may(self, scope: Scope | None) -> bool:
        """Return whether this caller has the scope; ``admin`` has all, and any key has None."""
        return scope is None or scope in self.scopes or "admin" in self.scopes


EVERYBODY = Caller("everybody", frozenset(SCOPES))
"""The caller of a service without keys, which listens on a loopback address only."""


@dataclass(frozen=True)
class Keys:
    """The keys of a service: name to hash and scopes."""

    known: Mapping[str, tuple[bytes, frozenset[Scope]]]

    @classmethod
    def read(cls, path: Path) -> Keys:
        """Read the keys in a file that ``add_key`` wrote."""
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
        """Return the caller with this key; None if it is unknown."""
        name = key.removeprefix("vt_").rpartition("_")[0]
        expected, scopes = self.known.get(name, (bytes(32), frozenset()))
        same = hmac.compare_digest(hashlib.sha256(key.encode("utf-8", "replace")).digest(), expected)
        return Caller(name, scopes) if same and name in self.known else None


def add_key(path: Path, name: str, scopes: Iterable[str]) -> str:
    """Add a key to a file, which keeps its hash, and return it; one of the same name is replaced."""
    if not NAME.fullmatch(name):
        remedy = "such as origination-1"
        raise ServiceError(message("a name of lower-case letters, digits and hyphens", repr(name), remedy))
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
        raise ValueError("not an entry of a key")
    return hashed, scopes


@dataclass
class FailedLogins:
    """Count the wrong keys of each client: a token bucket for each, the oldest forgotten first."""

    buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def wait(self, client: str, now: float | None = None) -> float:
        """Count a wrong key; return 0, or the seconds until this client may try another one.

        >>> logins = FailedLogins()
        >>> [logins.wait("a", now=0.0) for _ in range(FAILURES + 1)][-2:]
        [0.0, 6.0]
        """
        now = time.monotonic() if now is None else now
        left, at = self.buckets.pop(client, (float(FAILURES), now))
        left = min(float(FAILURES), left + (now - at) / PAUSE)
        self.buckets[client] = (left - 1.0 if left >= 1.0 else left), now
        if len(self.buckets) > MOST_CLIENTS:
            self.buckets.popitem(last=False)
        return 0.0 if left >= 1.0 else (1.0 - left) * PAUSE


@dataclass
class Guard:
    """Admit requests by their keys; without keys everybody is admitted."""

    keys: Keys | None
    failures: FailedLogins = field(default_factory=FailedLogins)

    def admit(self, request: Request, key: str | None, scope: Scope | None) -> Caller:
        """Return the caller; refuse a missing or unknown key with 401, and a missing scope with 403.

        A valid key is looked up first, so the failures of others never delay it.
        """
        if self.keys is None:
            return EVERYBODY
        caller = None if key is None else self.keys.caller(key)
        if caller is None:
            if key is not None and (wait := self.failures.wait(client_of(request))) > 0:
                seconds = round(wait + 0.5)
                expected, remedy = "fewer wrong keys", f"try again in {seconds} seconds"
                raise refused(429, "failed-logins", expected, "too many", remedy, retry_after=seconds)
            received = "none" if key is None else "an unknown one"
            remedy = "send Authorization: Bearer KEY"
            raise refused(401, "unauthorised", "an API key of this service", received, remedy)
        request.state.caller = caller.name
        if not caller.may(scope):
            received = f"one with {', '.join(sorted(caller.scopes))}"
            remedy = "ask the operator for another one"
            raise refused(403, "forbidden", f"a key with the scope {scope}", received, remedy)
        return caller


def bearer_key(request: Request) -> str | None:
    """Return the key of a request to the API."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.casefold() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("x-api-key")


def basic_key(request: Request) -> str | None:
    """Return the key of a request to the page: the password of HTTP Basic, whatever the user's name is."""
    scheme, _, coded = request.headers.get("authorization", "").partition(" ")
    if scheme.casefold() != "basic":
        return None
    try:
        return base64.b64decode(coded, validate=True).decode("utf-8", "replace").partition(":")[2]
    except ValueError:
        return None


def client_of(request: Request) -> str:
    """Return the address of the client."""
    return request.client.host if request.client else ""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
