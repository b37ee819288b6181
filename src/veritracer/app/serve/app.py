"""The service as an ASGI application, and the processes that run it.

Every process of the service speaks HTTP, holds the model and computes batches in one thread. uvicorn starts
them and replaces those that end. ``RequestMiddleware`` is the one layer around all requests: their ids, sizes
and times, the headers and problems of the responses, and the line of the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.supervisors import Multiprocess

from veritracer import __version__, errors
from veritracer.app.serve.auth import is_loopback
from veritracer.app.serve.batching import SECONDS
from veritracer.app.serve.models import refused
from veritracer.errors import ServiceError, VeriTracerError, closest, message
from veritracer.options import IssueOptions

MEDIA_TYPE = "application/problem+json"
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"

REQUESTS = Counter("veritracer_requests", "Requests.", ["method", "route", "status"])
REQUEST_SECONDS = Histogram("veritracer_request_seconds", "Time to answer.", ["route"], buckets=SECONDS)

DRAIN = 20.0
"""Seconds in which requests that wait are completed when the service ends."""

START_TIMEOUT = 180
"""Seconds that a process may take to start, or to answer the supervisor's health check."""

log = logging.getLogger("veritracer.serve")


# ---------------------------------------------------------------- settings


@dataclass(frozen=True)
class Settings:
    """Settings of a service.

    Attributes
    ----------
    model
        Folder of a saved model.
    ledger
        SQLite file or URL of the ledger; None serves no promises.
    keys
        File of API keys; None admits everybody, on a loopback address only.
    host, port
        Address to listen on.
    workers
        Processes.
    window
        Seconds without another request after which a batch is complete.
    batch_rows, queue_rows, most_rows
        Rows that are explained at once; rows that may wait (more are refused with 429); rows of one request.
        A row for which several alternatives are searched counts as often.
    time_budget
        Seconds for the search of each batch, where the request does not say less.
    timeout
        Seconds after which a request is given up (504).
    most_bytes, body_timeout
        Size of the largest body, and seconds in which it must arrive.
    codes
        JSON file with the reason codes of notices.
    fields
        What every notice says: institution, contact, rights.
    expires
        Last day of promises where a request does not say: ``365d``, a date, ``never``, or ``term``, the
        end of the term of the request.
    replace
        Deploy this model in place of the one that was deployed last.
    serve_broken
        Reason to serve a model that breaks promises of the ledger; None refuses it.
    original, ledger_key
        How people's own rows are kept, and the key of encrypted ones.
    allowed_hosts
        Names of the service besides its address; ``*`` is any.
    forwarded_allow_ips
        Addresses of trusted proxies, as uvicorn takes them; None leaves it to its environment variable
        ``FORWARDED_ALLOW_IPS``, and to 127.0.0.1 without that.
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
    expires: str = str(IssueOptions.expires)
    replace: bool = False
    serve_broken: str | None = None
    original: str = "plain"
    ledger_key: str | None = field(default=None, repr=False)
    allowed_hosts: tuple[str, ...] = ()
    forwarded_allow_ips: str | None = None

    def checked(self) -> Settings:
        """Return the settings; refuse a public address without keys, and limits that make no sense."""
        if self.keys is None and not is_loopback(self.host):
            remedy = "make a key with --add-key and pass --keys, or listen on 127.0.0.1"
            received = f"{self.host} without any"
            raise ServiceError(message("API keys where others can reach the service", received, remedy))
        counts = ("workers", "batch_rows", "queue_rows", "most_rows")
        least = {**dict.fromkeys(counts, 1.0), "most_bytes": 1024, "window": 0, "timeout": 0.1, "port": 0}
        for name, lowest in least.items():
            if not lowest <= getattr(self, name):
                received = repr(getattr(self, name))
                raise ServiceError(message(f"{name} of at least {lowest:g}", received, "give another one"))
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


# ---------------------------------------------------------------- log and metrics


class JsonLines(logging.Formatter):
    """Format records as lines of JSON, without anybody's data.

    A line names the route and never the path, the name of the key and never the key. Bodies, query strings
    and the messages of unexpected errors, which may quote a value, are left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line: time, event, the facts of the record, and where an error came from."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "event": record.getMessage(), **getattr(record, "facts", {})}
        if record.exc_info and record.exc_info[1] is not None:
            frames = traceback.extract_tb(record.exc_info[2])[-8:]
            line["error"] = type(record.exc_info[1]).__name__
            line["where"] = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
        return json.dumps(line, default=str)


def start_logging() -> None:
    """Write the log of the service to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    log.handlers = [handler]
    log.setLevel(logging.INFO)
    log.propagate = False


def prometheus_text() -> bytes:
    """Return the numbers in Prometheus' format: those of all processes, where there are several."""
    if METRICS_FOLDER not in os.environ:
        return generate_latest(REGISTRY)
    MultiProcessCollector(registry := CollectorRegistry())  # type: ignore[no-untyped-call]
    return generate_latest(registry)


# ---------------------------------------------------------------- problems

STATUS: dict[type[Exception], int] = {
    errors.NoRecordError: 404,
    errors.RequestReusedError: 422,
    errors.PromisedMeanwhileError: 409,
    errors.DeploymentError: 409,
    errors.LedgerUnavailableError: 503,
    errors.LedgerError: 409,
    errors.ServiceError: 503,
    errors.PromiseError: 409,
    errors.VeriTracerError: 422,
}
"""Status of each kind of error; the first that fits counts."""

SEE = "see the OpenAPI document of this service: /openapi.json"
SHOWN_ERRORS = 20


def refusal_of(error: Exception) -> ServiceError:
    """Return an error as the refusal of a request: with a status and the members of a problem."""
    if isinstance(error, ServiceError) and isinstance(error.problem, dict):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        received = HTTPStatus(error.status_code).phrase.lower()
        return refused(error.status_code, "http", "a request of this interface", received, SEE)
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    parts = ("a request that can be answered", str(error) or type(error).__name__, "correct it")
    if error.args and isinstance(error.args[0], errors.Message):
        parts = error.args[0].expected, error.args[0].received, error.args[0].remedy
    elif status == 500:  # nothing about the inside is told
        parts = "an answer", "an error of the service", "tell its operator the request's id"
    name = type(error).__name__.removesuffix("Error")
    kind = re.sub(r"(?<=.)([A-Z])", r"-\1", name).lower()
    members: dict[str, Any] = {"retry_after": 2} if status == 503 else {}
    return refused(status, kind, *parts, **members)


def _invalid(error: RequestValidationError) -> ServiceError:
    """Return the refusal of a body or parameter: the first mistake, and a list of them."""
    listed = [
        {"pointer": "/" + "/".join(str(part) for part in one["loc"][1:]), "message": str(one["msg"])}
        for one in error.errors()[:SHOWN_ERRORS]
    ]
    first, where = error.errors()[0], listed[0]["pointer"]
    context = first.get("ctx", {})
    said = getattr(context.get("error"), "args", ("",))[0]
    value = ascii(first.get("input"))
    expected = listed[0]["message"].removeprefix("Input should be ").partition(", got")[0]
    received, remedy = f"{value if len(value) <= 60 else value[:57] + '...'} at {where}", SEE
    if isinstance(said, errors.Message):  # of the library itself
        expected, received, remedy = said.expected, said.received, said.remedy
    elif first["type"] == "missing":
        expected, received = where, "nothing"
    elif close := closest(first.get("input"), re.findall(r"'([^']*)'", context.get("expected", ""))):
        remedy = f"did you mean {close!r}?"
    return refused(422, "invalid-request", expected, received, remedy, errors=listed)


def problem_response(refusal: ServiceError, request_id: str) -> Response:
    """Return a refusal as problem+json."""
    said, members, status = refusal.args[0], refusal.problem, refusal.status or 500
    assert isinstance(said, errors.Message)
    assert isinstance(members, dict)
    document = {
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": str(said),
        "expected": said.expected,
        "received": said.received,
        "remedy": said.remedy,
        "request_id": request_id,
        **members,
    }
    headers = {"WWW-Authenticate": 'Bearer realm="veritracer"'} if status == 401 else {}
    if "retry_after" in members:
        headers["Retry-After"] = str(members["retry_after"])
    return Response(json.dumps(document), status, headers, MEDIA_TYPE)  # ASCII: half a character is possible


async def _reraise(request: Request, error: Exception) -> Response:
    """Leave an error to ``RequestMiddleware``."""
    raise error


# ---------------------------------------------------------------- the layer around all requests

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SAFE = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with none at all, browsers send forms from the origin "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
}
HTTPS_ONLY = "max-age=31536000"
"""Strict-Transport-Security of responses over TLS: browsers stay with it for a year."""


class RequestMiddleware:
    """Check host, origin and size of every request; answer errors with problems; write the log."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings, self.hosts = app, settings, settings.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, start, status = Headers(scope=scope), time.perf_counter(), 0
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def answer(piece: Message) -> None:
            nonlocal status
            if piece["type"] == "http.response.start":
                status = piece["status"]
                _add_headers(MutableHeaders(scope=piece), scope, status, request_id)
            await send(piece)

        try:
            self._check(scope, headers)
            await self.app(scope, await self._body(receive), answer)
        except Exception as error:
            refusal = refusal_of(error)
            if refusal.status == 500 or status:
                log.exception("failure", extra={"facts": {"request_id": request_id}})
            if status:  # too late for another answer: the connection ends
                raise
            response = problem_response(refusal, request_id)
            response.headers.update(getattr(error, "headers", None) or {})  # which methods are allowed
            await response(scope, receive, answer)
        finally:
            _record(scope, status, time.perf_counter() - start)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Refuse a request that its head alone rules out."""
        name = re.sub(r":\d+$", "", headers.get("host", ""))
        if "*" not in self.hosts and name.casefold() not in self.hosts:
            remedy = "use its own, or start it with --allowed-host"
            raise refused(421, "host", "a name of this service as Host", "another", remedy)
        if scope["method"] not in SAFE and not is_same_origin(headers):
            remedy = "send it from the service's own pages, or without a browser"
            raise refused(403, "origin", "a request from this service's own pages", "another origin", remedy)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.settings.most_bytes:
            raise self._too_large()

    async def _body(self, receive: Receive) -> Receive:
        """Receive the body, which must arrive in time and within its size, for the application to read."""
        content, more = b"", True
        try:
            async with asyncio.timeout(self.settings.body_timeout):
                while more:
                    piece = await receive()
                    content += piece.get("body", b"")
                    more = piece.get("more_body", False)
                    if len(content) > self.settings.most_bytes:
                        raise self._too_large()
        except TimeoutError:
            remedy = "send it without pauses"
            received = "one that is not complete"
            raise refused(408, "slow-body", "a body in time", received, remedy) from None
        pieces = [{**piece, "body": content}] if piece["type"] == "http.request" else [piece]

        async def replay() -> Message:
            return pieces.pop() if pieces else await receive()  # what follows is the end of the connection

        return replay

    def _too_large(self) -> ServiceError:
        expected = f"a body of up to {self.settings.most_bytes:,} bytes"
        return refused(413, "too-large", expected, "a larger one", "send fewer rows at once")


def _add_headers(headers: MutableHeaders, scope: Scope, status: int, request_id: str) -> None:
    """Add the headers that all responses have."""
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    headers["X-Request-ID"] = request_id
    if scope["scheme"] == "https":
        headers["Strict-Transport-Security"] = HTTPS_ONLY
    if status in (408, 413):  # the rest of the body is not read
        headers["Connection"] = "close"


def _record(scope: Scope, status: int, seconds: float) -> None:
    """Count a request, and write its line of the log."""
    route = getattr(scope.get("route"), "path", "") or "unknown"
    method = scope["method"] if scope["method"] in METHODS else "OTHER"
    REQUESTS.labels(method, route, str(status)).inc()
    REQUEST_SECONDS.labels(route).observe(seconds)
    request_id, caller = scope["state"]["request_id"], scope["state"].get("caller")
    facts = {"request_id": request_id, "method": method, "route": route, "status": status}
    log.info("request", extra={"facts": {**facts, "ms": round(1000 * seconds, 1), "key": caller}})


def is_same_origin(headers: Headers, *, stated: bool = False) -> bool:
    """Return whether a browser, if it is one, sends this from a page of the service.

    With ``stated``, a request that does not say where it comes from is refused too.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin", "none") or (stated and site != "same-origin" and origin is None):
        return False
    return origin is None or origin.partition("://")[2].casefold() == headers.get("host", "").casefold()


# ---------------------------------------------------------------- the application


def create_app(settings: Settings, *, digest: str | None = None, end_if_hung: bool = False) -> FastAPI:
    """Load the model and return the application; refuse a model of another ``digest``.

    With ``end_if_hung`` the process ends when a batch hangs.
    """
    from veritracer.app.serve import api, page

    if not log.hasHandlers():  # errors must not be written with their messages
        start_logging()
    service = api.Service(settings.checked(), end_if_hung=end_if_hung)
    if digest not in (None, service.operations.digest):
        remedy = "start the service anew to deploy another model"
        raise ServiceError(message(f"the model {digest}", service.operations.digest, remedy))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        log.info("started", extra={"facts": {"model": service.operations.digest}})
        yield
        await service.batcher.close(DRAIN)
        service.operations.close()
        log.info("stopped")

    app = FastAPI(
        title="VeriTraCER",
        version=__version__,
        description="Decisions, certified recourse and promises.",
        lifespan=lifespan,
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # see api.make_router, which asks for a key
        redirect_slashes=False,
        exception_handlers={HTTPException: _reraise, RequestValidationError: _reraise},
    )
    app.state.service = service
    app.include_router(api.make_router(service))
    app.include_router(page.router)
    app.openapi = partial(api.describe, app)  # type: ignore[method-assign]  # as FastAPI proposes it
    app.add_middleware(RequestMiddleware, settings=settings)
    return app


# ---------------------------------------------------------------- processes


def serve(settings: Settings) -> int:
    """Audit the model, run the service until it is told to end, and return the exit code."""
    from veritracer.app.serve.operations import deploy

    with listening(settings.checked()) as place:
        start_logging()
        digest = deploy(settings)
        with tempfile.TemporaryDirectory(prefix="veritracer-metrics-") as folder:
            os.environ[METRICS_FOLDER] = folder
            config = server_config(partial(process_app, settings, digest), settings)
            Supervisor(config, [place]).run()
    return 0


class Supervisor(Multiprocess):
    """Keep the processes of the service running; forget the gauges of those that ended."""

    def keep_subprocess_alive(self) -> None:
        """Replace processes that ended or hang."""
        for process in self.processes:  # so that a health check ends with the process that it asks
            process.child_conn.close()
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
            log.info("replaced", extra={"facts": {"process": pid}})


def process_app(settings: Settings, digest: str) -> FastAPI:
    """Return the application of one process, which ends with its parent and does not outlive a hung batch."""
    start_logging()
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    try:
        return create_app(settings, digest=digest, end_if_hung=True)
    except VeriTracerError as error:  # the supervisor tries again: a folder may be away for a moment
        log.error("not started", extra={"facts": {"why": str(error)}})
        sys.exit(1)


def _end_with_parent() -> None:
    """End this process once its parent is gone, however that ended, without waiting for its other threads."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    try:
        log.info("ended", extra={"facts": {"why": "parent gone"}})
    finally:
        os._exit(1)


def listening(settings: Settings) -> socket.socket:
    """Return a socket at the service's address, taken before the model is loaded."""
    place = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((settings.host.strip("[]"), settings.port))
    except OSError as error:
        place.close()
        where, remedy = f"to listen on {settings.host}:{settings.port}", "name another --port or --host"
        raise ServiceError(message(where, error.strerror or str(error), remedy)) from None
    return place


def server_config(app: FastAPI | Callable[[], FastAPI], settings: Settings) -> uvicorn.Config:
    """Return how uvicorn serves an application, or a factory of one in several processes."""
    return uvicorn.Config(
        app,
        factory=not isinstance(app, FastAPI),
        workers=settings.workers,
        host=settings.host,
        port=settings.port,
        log_config=None,
        log_level="critical",  # our own log says what happens
        access_log=False,
        forwarded_allow_ips=settings.forwarded_allow_ips,
        server_header=False,
        http="h11",
        ws="none",
        lifespan="on",
        limit_concurrency=4096,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(settings.timeout),
        timeout_worker_healthcheck=START_TIMEOUT,
    )
