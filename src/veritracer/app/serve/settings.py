"""The settings of a service: the flags of ``veritracer serve`` are made from these fields.

The module imports no web framework, because the command line lists the flags before it needs one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from veritracer.errors import ServiceError, message
from veritracer.options import OPTIONS_CONFIG, PROMISE_TERM, PYTHON_ONLY, Names, Original, raises_data_errors


@raises_data_errors
@dataclass(frozen=True, kw_only=True, config=OPTIONS_CONFIG)
class Settings:
    """Settings of a service; ``checked`` compares them with each other."""

    model: Annotated[Path, Field(json_schema_extra=PYTHON_ONLY, description="Folder of a saved model.")] = (
        Path()
    )
    ledger: Annotated[
        str | None,
        Field(
            json_schema_extra={"metavar": "PLACE", "envvar": "VERITRACER_LEDGER"},
            description="SQLite file or URL of the ledger; no promises without one.",
        ),
    ] = None
    host: Annotated[str, Field(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535, description="Port to listen on.")] = 8080
    keys: Annotated[Path | None, Field(description="File of API keys; required on a public address.")] = None
    workers: Annotated[int, Field(ge=1, description="Processes, each with the model in memory.")] = 1
    window: Annotated[
        float, Field(ge=0, le=1000, description="Milliseconds without a request that complete a batch.")
    ] = 4.0
    batch_rows: Annotated[
        int,
        Field(
            ge=1,
            description=(
                "Rows of a batch; 1 turns batches off. A row with several alternatives counts as often."
            ),
        ),
    ] = 256
    queue_rows: Annotated[int, Field(ge=1, description="Rows that may wait; more are refused (429).")] = 2048
    most_rows: Annotated[
        int, Field(ge=1, json_schema_extra=PYTHON_ONLY, description="Rows of one request.")
    ] = 1000
    time_budget: Annotated[
        float | None, Field(ge=0, description="Seconds for each search, then the best so far.")
    ] = None
    timeout: Annotated[float, Field(ge=0.1, description="Seconds until a request is given up (504).")] = 30.0
    most_bytes: Annotated[
        int, Field(ge=1024, json_schema_extra=PYTHON_ONLY, description="Size of the largest body.")
    ] = 2**20
    body_timeout: Annotated[
        float, Field(gt=0, json_schema_extra=PYTHON_ONLY, description="Seconds in which a body must arrive.")
    ] = 10.0
    codes: Annotated[Path | None, Field(description="Reason codes of notices (JSON).")] = None
    fields: Annotated[
        Mapping[str, str], Field(description="What notices say: institution, contact, rights.")
    ] = Field(default_factory=dict)
    expires: Annotated[
        str, Field(description="Duration or last day of promises: 365d, a date, or never.")
    ] = f"{PROMISE_TERM.days}d"
    replace: Annotated[bool, Field(description="Deploy MODEL in place of the model deployed last.")] = False
    serve_broken: Annotated[
        str | None,
        Field(
            json_schema_extra={"metavar": "REASON"},
            description="Serve MODEL although it breaks promises; the ledger records the reason.",
        ),
    ] = None
    original: Annotated[
        Original, Field(description="Keep people's own rows as text, encrypted, or as a commitment.")
    ] = "plain"
    ledger_key: Annotated[
        str | None, Field(json_schema_extra=PYTHON_ONLY, description="Key of encrypted original rows.")
    ] = Field(default=None, repr=False)
    allowed_hosts: Annotated[
        Names, Field(description="Names of the service, as its proxy passes them on in Host; * is any.")
    ] = ()
    forwarded_allow_ips: Annotated[
        str | None,
        Field(
            json_schema_extra={"metavar": "ADDRESS,...", "envvar": "FORWARDED_ALLOW_IPS"},
            description="Addresses of trusted proxies, or *; 127.0.0.1 by default.",
        ),
    ] = None

    def checked(self) -> Settings:
        """Return the settings; refuse a public address without keys, and options that need a ledger."""
        if self.keys is None and not is_loopback(self.host):
            remedy = "make a key with --add-key and pass --keys, or listen on 127.0.0.1"
            received = f"{self.host} without any"
            raise ServiceError(message("API keys where others can reach the service", received, remedy))
        if self.ledger is None and (self.replace or self.serve_broken is not None):
            option = "--replace" if self.replace else "--serve-broken"
            raise ServiceError(message(f"a ledger with {option}", "none", "add --ledger, or leave it out"))
        if self.serve_broken is not None and not self.serve_broken.strip():
            raise ServiceError(message("a reason with --serve-broken", "an empty one", "state it"))
        return self

    @property
    def hosts(self) -> frozenset[str]:
        """The names under which the service may be addressed; ``*`` among them is any."""
        local = {"localhost", "127.0.0.1", "[::1]"} if is_loopback(self.host) else set()
        if not local and not self.allowed_hosts:
            return frozenset({"*"})
        return frozenset({*local, self.host, *self.allowed_hosts})


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
