"""API keys, of which only hashes are kept: who may do what, and until when.

A key is ``vt_NAME_SECRET`` with 32 random bytes as its secret. Nobody can guess it, so a plain SHA-256 is
enough. It is looked up by its name, and hashes are compared in constant time, unknown names included. The API
takes it as a bearer token or in ``X-API-Key``, the page as the password of HTTP Basic. The file of keys is
read again whenever it changes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request

from veritracer.app.serve.models import refused
from veritracer.app.serve.settings import is_loopback
from veritracer.errors import ServiceError, listing, message, unknown_name
from veritracer.files import write_whole

Scope = Literal["decide", "issue", "audit", "erase", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")

FAILURES = 20
"""Wrong keys that a client may try at once; one more every ``PAUSE`` seconds."""

PAUSE = 6.0

MOST_CLIENTS = 10_000
"""Clients whose failed logins are counted."""

log = logging.getLogger("veritracer.serve")


class Key(BaseModel):
    """The entry of a key in the file: the hash, the scopes, and the moment at which it expires."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = "0" * 64
    scopes: frozenset[Scope] = frozenset()
    expires: AwareDatetime | None = None

    def may(self, scope: Scope | None) -> bool:
        """Return whether this key has the scope; ``admin`` has all, and any key has None."""
        return scope is None or scope in self.scopes or "admin" in self.scopes


EVERYBODY = Key(name="everybody", scopes=frozenset(SCOPES))
"""The caller of a service without keys, which listens on a loopback address only."""


class KeyFile(BaseModel):
    """The keys of a service as JSON."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["veritracer-keys"] = "veritracer-keys"
    version: Literal[1] = 1
    keys: list[Key] = []

    @classmethod
    def read(cls, path: Path) -> KeyFile:
        """Read the keys in a file that ``add_key`` wrote."""
        try:
            found = cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            received = f"{path} ({getattr(error, 'strerror', None) or 'not as add-key writes it'})"
            remedy = "make one: veritracer serve --keys FILE --add-key NAME --scopes decide"
            raise ServiceError(message("a file of API keys", received, remedy)) from None
        if not found.keys:
            raise ServiceError(message("an API key in the file", f"none in {path}", "add one: --add-key"))
        return found


def add_key(path: Path, name: str, scopes: Iterable[str], expires: timedelta | datetime | None = None) -> str:
    """Add a key to a file, which keeps its hash, and return it; one of the same name is replaced."""
    if not NAME.fullmatch(name):
        remedy = "such as origination-1"
        raise ServiceError(message("a name of lower-case letters, digits and hyphens", repr(name), remedy))
    wanted = set(scopes)
    for scope in wanted - set(SCOPES):
        raise ServiceError(unknown_name("a scope of API keys", scope, SCOPES))
    if not wanted:
        raise ServiceError(message("scopes for the key", "none", f"give some of {listing(SCOPES)}"))
    kept = [one for one in KeyFile.read(path).keys if one.name != name] if path.exists() else []
    text = f"vt_{name}_{secrets.token_urlsafe(32).replace('_', '-')}"
    end = datetime.now(UTC) + expires if isinstance(expires, timedelta) else expires
    key = {"name": name, "sha256": _sha256(text), "scopes": wanted, "expires": end}
    content = KeyFile(keys=[*kept, Key.model_validate(key)])
    write_whole(path, content.model_dump_json(indent=1) + "\n")
    path.chmod(0o600)
    return text


class Guard:
    """Admit requests by the keys in a file; without a file everybody is admitted."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._state: object = None
        self._known: dict[str, Key] = {}
        self._refresh()

    def admit(self, request: Request, text: str | None, scope: Scope | None) -> Key:
        """Return the caller's key; refuse a missing or unknown one with 401, a missing scope with 403.

        A valid key is looked up first, so the failures of others never delay it.
        """
        if self.path is None:
            return EVERYBODY
        key = None if text is None else self.find(text)
        if key is None:
            if text is not None and (wait := self.count_failure(_client_of(request))) > 0:
                seconds = round(wait + 0.5)
                expected, remedy = "fewer wrong keys", f"try again in {seconds} seconds"
                raise refused(429, "failed-logins", expected, "too many", remedy, retry_after=seconds)
            received = "none" if text is None else "one that is unknown or has expired"
            remedy = "send Authorization: Bearer KEY"
            raise refused(401, "unauthorised", "an API key of this service", received, remedy)
        request.state.caller = key.name
        if not key.may(scope):
            received, remedy = f"one with {', '.join(sorted(key.scopes))}", "ask the operator for another one"
            raise refused(403, "forbidden", f"a key with the scope {scope}", received, remedy)
        return key

    def find(self, text: str) -> Key | None:
        """Return the key with this text; None if it is unknown or has expired."""
        try:
            self._refresh()
        except ServiceError as error:  # nobody is admitted by keys that may have been revoked
            log.error("keys", extra={"facts": {"why": str(error)}})
            expected, remedy = "a service that can read its keys", "tell its operator"
            raise refused(503, "keys", expected, "one that cannot", remedy) from None
        key = self._known.get(text.removeprefix("vt_").rpartition("_")[0])
        same = hmac.compare_digest(_sha256(text), EVERYBODY.sha256 if key is None else key.sha256)
        valid = same and key is not None and (key.expires is None or datetime.now(UTC) < key.expires)
        return key if valid else None

    def count_failure(self, client: str, now: float | None = None) -> float:
        """Count a wrong key; return 0, or the seconds until this client may try another one.

        >>> guard = Guard(None)
        >>> [guard.count_failure("a", now=0.0) for _ in range(FAILURES + 1)][-2:]
        [0.0, 6.0]
        """
        now = time.monotonic() if now is None else now
        left, at = self._failures.pop(client, (float(FAILURES), now))
        left = min(float(FAILURES), left + (now - at) / PAUSE)
        self._failures[client] = (left - 1.0 if left >= 1.0 else left), now
        if len(self._failures) > MOST_CLIENTS:
            self._failures.popitem(last=False)
        return 0.0 if left >= 1.0 else (1.0 - left) * PAUSE

    def _refresh(self) -> None:
        """Read the file, unless it is as it was read last."""
        if self.path is None:
            return
        found = self.path.stat() if self.path.exists() else None
        state = found and (found.st_ino, found.st_size, found.st_mtime_ns)
        if state is None or state != self._state:
            self._known = {key.name: key for key in KeyFile.read(self.path).keys}
            self._state = state


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def bearer_key(request: Request) -> str | None:
    """Return the key of a request to the API."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.casefold() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("x-api-key")


def basic_key(request: Request) -> str | None:
    """Return the key of a request to the page: the password of HTTP Basic, whatever the user's name is.

    Over plain HTTP from another machine anybody on the way could read it, so it is refused there.
    """
    if request.url.scheme != "https" and not is_loopback(_client_of(request)):
        remedy = "use the address of its proxy, which begins with https"
        raise refused(403, "transport", "a page over TLS", "one without", remedy)
    scheme, _, coded = request.headers.get("authorization", "").partition(" ")
    try:
        text = base64.b64decode(coded, validate=True).decode("utf-8", "replace")
    except ValueError:
        return None
    return text.partition(":")[2] if scheme.casefold() == "basic" else None


def _client_of(request: Request) -> str:
    """Return the address of the client, which is the one that a trusted proxy names."""
    return request.client.host if request.client else ""
