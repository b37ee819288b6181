"""Run ``veritracer serve``: decisions, certified recourse and promises over HTTP, and a page for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from veritracer import model_folder
from veritracer.app.cli.options import KeyFile, names, texts
from veritracer.app.cli.output import say
from veritracer.app.cli.places import read_key
from veritracer.errors import ServiceError, message
from veritracer.times import parse_expiry


def serve(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="The folder of a saved model.", show_default=False),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            envvar="VERITRACER_LEDGER",
            help="SQLite file or URL of the ledger; no promises without one.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on.")] = 8080,
    keys: Annotated[
        Path | None,
        typer.Option(help="File of API keys; required on a public address.", show_default=False),
    ] = None,
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
    workers: Annotated[int, typer.Option(min=1, help="Processes, each with the model in memory.")] = 1,
    window: Annotated[
        float,
        typer.Option(min=0.0, max=1000.0, help="Milliseconds without a request that complete a batch."),
    ] = 4.0,
    batch: Annotated[int, typer.Option(min=1, help="Rows of a batch; 1 turns batches off.")] = 256,
    queue: Annotated[int, typer.Option(min=1, help="Rows that may wait; more are refused (429).")] = 2048,
    time_budget: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds for each search, then the best so far.", show_default=False),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a request is given up (504).")
    ] = 30.0,
    codes: Annotated[
        Path | None, typer.Option(help="Reason codes of notices (JSON).", show_default=False)
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TEXT", help="What notices say: institution, ...", show_default=False),
    ] = None,
    expires: Annotated[
        str, typer.Option(help="Duration or last day of promises: 365d, a date, term, or never.")
    ] = "term",
    replace: Annotated[
        bool, typer.Option("--replace", help="Deploy MODEL in place of the model deployed last.")
    ] = False,
    serve_broken: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Serve MODEL although it breaks promises; the ledger records the reason.",
            show_default=False,
        ),
    ] = None,
    original: Annotated[
        Literal["plain", "encrypted", "commitment"],
        typer.Option(help="Keep people's own rows plain, encrypted, or as a commitment."),
    ] = "plain",
    key_file: KeyFile = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Name of the service, as its proxy passes it on in Host.", show_default=False
        ),
    ] = None,
    forwarded_allow_ips: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS,...",
            envvar="FORWARDED_ALLOW_IPS",
            help="Addresses of trusted proxies, or *; 127.0.0.1 by default.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP: an API for programs, a page for people, and metrics for Prometheus.

    Requests that arrive within some milliseconds are computed as one batch. Without --keys the service
    listens on a loopback address only; keys are stored as hashes, and expire.

    With --ledger the model is audited first; one that is deployed already, against newer promises only. A
    model that breaks live promises is refused (exit code 2) unless --serve-broken gives a reason; it then
    decides and explains, and promises nothing. A model other than the one deployed last is refused unless
    --replace is given.
    """
    from veritracer.app.serve.app import Settings

    if add_key is not None:
        _add_key(keys, add_key, scopes, key_expires)
        return
    if model is None:
        remedy = "veritracer serve MODEL --ledger promises.db"
        raise ServiceError(message("a model to serve", "none", remedy))
    settings = Settings(
        Path(model),
        ledger,
        keys,
        host=host,
        port=port,
        workers=workers,
        window=window / 1000,
        batch_rows=batch,
        queue_rows=queue,
        time_budget=time_budget,
        timeout=timeout,
        codes=codes,
        fields=texts("--field", field),
        expires=expires,
        replace=replace,
        serve_broken=serve_broken,
        original=original,
        ledger_key=None if key_file is None else read_key(key_file),
        allowed_hosts=tuple(allowed_host or ()),
        forwarded_allow_ips=forwarded_allow_ips,
    ).checked()
    model_folder.verified(model)
    from veritracer.app.serve.app import serve as run

    say(f"Serving {model} on http://{host}:{port} — Ctrl-C ends it.")
    raise typer.Exit(run(settings))


def _add_key(path: Path | None, name: str, scopes: list[str] | None, expires: str) -> None:
    from veritracer.app.serve.auth import add_key

    if path is None:
        raise ServiceError(message("a file for the key", "none", "add --keys FILE"))
    print(add_key(path, name, names(scopes), parse_expiry(expires)))
