"""Run ``veritracer serve``: decisions, certified recourse and promises over HTTP, and a page for people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from veritracer import model_folder
from veritracer.app.cli.options import KeyFile, names, with_flags
from veritracer.app.cli.output import say
from veritracer.app.cli.places import read_key
from veritracer.app.serve.settings import Settings
from veritracer.errors import ServiceError, message
from veritracer.times import parse_expiry


@with_flags
def serve(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="The folder of a saved model.", show_default=False),
    ] = None,
    *,
    settings: Settings,
    add_key: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Create a key, print it, and exit.", show_default=False),
    ] = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SCOPE,...",
            help="Scopes of the new key: decide, issue, audit, erase, admin.",
            show_default=False,
        ),
    ] = None,
    key_expires: Annotated[
        str, typer.Option(help="Duration or last day of the new key: 365d, a date, or never.")
    ] = "365d",
    key_file: KeyFile = None,
) -> None:
    """Serve a model over HTTP: an API for programs, a page for people, and metrics for Prometheus.

    Requests that arrive within some milliseconds are computed as one batch. Without --keys the service
    listens on a loopback address only; keys are stored as hashes, and expire.

    With --ledger the model is audited first; one that is deployed already, against newer promises only. A
    model that breaks live promises is refused (exit code 2) unless --serve-broken gives a reason; it then
    decides and explains, and promises nothing. A model other than the one deployed last is refused unless
    --replace is given.
    """
    if add_key is not None:
        _add_key(settings.keys, add_key, scopes, key_expires)
        return
    if model is None:
        remedy = "veritracer serve MODEL --ledger promises.db"
        raise ServiceError(message("a model to serve", "none", remedy))
    key = None if key_file is None else read_key(key_file)
    settings = replace(settings, model=Path(model), ledger_key=key).checked()
    model_folder.verified(model)
    from veritracer.app.serve.app import serve as run

    say(f"Serving {model} on http://{settings.host}:{settings.port} — Ctrl-C ends it.")
    raise typer.Exit(run(settings))


def _add_key(path: Path | None, name: str, scopes: list[str] | None, expires: str) -> None:
    from veritracer.app.serve.auth import add_key

    if path is None:
        raise ServiceError(message("a file for the key", "none", "add --keys FILE"))
    print(add_key(path, name, names(scopes), parse_expiry(expires)))
