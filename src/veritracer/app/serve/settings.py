"""Every choice of a service as one frozen value, checked before anything is started."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from veritracer.errors import ServiceError, message
from veritracer.options import PROMISE_TERM


@dataclass(frozen=True)
class Settings:
    """What a service is to do.

    Attributes
    ----------
    model
        The folder of a saved model.
    ledger
        Where promises are kept: a SQLite file or a database's URL; None serves no promises.
    keys
        The file of API keys; None lets everybody in, on a loopback address alone.
    host, port
        Where it listens.
    workers
        Processes that compute; 0 computes in a thread of the service itself.
    window
        Seconds without another request after which a batch is complete.
    batch_rows, queue_rows, most_rows
        Rows that are explained at once; rows that may wait (more are refused with 429); rows of one request.
    time_budget
        Seconds for the search of each batch, where the request does not say less; None: as long as it takes.
    timeout
        Seconds after which a request is given up (504), whether it waits or is worked on.
    most_bytes
        The largest body that is read.
    body_timeout
        Seconds in which the body of a request has to arrive.
    codes
        The reason codes of letters, a JSON file.
    fields
        What every letter says: institution, contact, rights.
    expires
        Until when promises hold where a request does not say: ``365d``, a date, or ``never``.
    replace
        Deploy this model in place of the one that the ledger says was deployed last.
    serve_broken
        Why a model is served that breaks promises of the ledger; None refuses it.
    original, ledger_key
        How people's own rows are kept, and the key of encrypted ones.
    allowed_hosts
        Names under which the service may be addressed, besides its own address; ``*`` is any.
    secure_cookies
        Whether the page's cookie is for HTTPS only; by default where the address is not a loopback one.
    """

    model: Path
    ledger: str | None = None
    keys: Path | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    window: float = 0.004
    batch_rows: int = 256
    queue_rows: int = 2048
    most_rows: int = 1000
    time_budget: float | None = None
    timeout: float = 30.0
    most_bytes: int = 2**20
    body_timeout: float = 10.0
    codes: Path | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    expires: str = f"{PROMISE_TERM.days}d"
    replace: bool = False
    serve_broken: str | None = None
    original: str = "plain"
    ledger_key: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    secure_cookies: bool | None = None

    def checked(self) -> Settings:
        """The same value; a public address without keys is refused, and so are limits that make no sense."""
        if self.keys is None and not is_loopback(self.host):
            remedy = "make a key with --add-key and pass --keys, or listen on 127.0.0.1"
            received = f"{self.host} without any"
            raise ServiceError(message("API keys where others can reach the service", received, remedy))
        least: dict[str, float] = {
            "batch_rows": 1,
            "queue_rows": 1,
            "most_rows": 1,
            "most_bytes": 1024,
            "workers": 0,
        }
        least |= {"window": 0, "timeout": 0.1, "port": 0}
        for name, lowest in least.items():
            if not lowest <= getattr(self, name):
                received = repr(getattr(self, name))
                raise ServiceError(message(f"{name} of at least {lowest}", received, "give another one"))
        if self.ledger is None and (self.replace or self.serve_broken is not None):
            option = "--replace" if self.replace else "--serve-broken"
            raise ServiceError(message(f"a ledger with {option}", "none", "add --ledger, or leave it out"))
        if self.serve_broken is not None and not self.serve_broken.strip():
            raise ServiceError(message("a reason with --serve-broken", "an empty one", "say why"))
        return self

    @property
    def cookies_are_secure(self) -> bool:
        """Whether the page's cookie is for HTTPS only."""
        return not is_loopback(self.host) if self.secure_cookies is None else self.secure_cookies

    @property
    def hosts(self) -> frozenset[str]:
        """The names under which the service may be addressed; ``*`` among them is any."""
        own = {"localhost", "127.0.0.1", "[::1]"} if is_loopback(self.host) else set()
        if not own and not self.allowed_hosts:
            return frozenset({"*"})
        return frozenset({*own, self.host, *self.allowed_hosts})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
