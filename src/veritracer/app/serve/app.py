"""The service as an ASGI application, and the processes that run it.

Every process of the service speaks HTTP, holds the model and computes batches in one thread. uvicorn starts
them and replaces those that end. ``RequestMiddleware`` is the one layer around all requests: their ids, sizes
and times, what every response carries, and the line of the log.
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
from typing import Any, TextIO

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.supervisors import Multiprocess

from veritracer import __version__, errors
from veritracer.app.serve.auth import is_loopback
from veritracer.app.serve.batching import watch
from veritracer.app.serve.models import Refusal, refused
from veritracer.errors import ServiceError, VeriTracerError, closest, message
from veritracer.options import PROMISE_TERM

MEDIA_TYPE = "application/problem+json"
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"

DRAIN = 20.0
"""Seconds in which requests that wait are completed when the service ends."""

START_TIMEOUT = 180
"""Seconds that a process may take to start, or to answer the supervisor's health check."""


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
        Last day of promises where a request does not say: ``365d``, a date, or ``never``.
    replace
        Deploy this model in place of the one that was deployed last.
    serve_broken
        Reason to serve a model that breaks promises of the ledger; None refuses it.
    original, ledger_key
        How people's own rows are kept, and the key of encrypted ones.
    allowed_hosts
        Names of the service besides its address; ``*`` is any.
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
        own = {"localhost", "127.0.0.1", "[::1]"} if is_loopback(self.host) else set()
        if not own and not self.allowed_hosts:
            return frozenset({"*"})
        return frozenset({*own, self.host, *self.allowed_hosts})


# ---------------------------------------------------------------- log and metrics


class Log:
    """Write lines of JSON, without anybody's data.

    A line names the route and never the path, the name of the key and never the key. Bodies, query strings
    and the messages of unexpected errors, which may quote a value, are left out.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream

    def line(self, event: str, **facts: Any) -> None:
        """Write one line."""
        stream = sys.stderr if self.stream is None else self.stream
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        stream.write(json.dumps({"time": now, "event": event, **facts}, default=str) + "\n")
        stream.flush()

    def failure(self, error: BaseException, **facts: Any) -> None:
        """Write where an unexpected error came from, without its message."""
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        self.line("failure", error=type(error).__name__, where=where[-8:], **facts)


class Metrics:
    """Numbers for Prometheus; with ``PROMETHEUS_MULTIPROC_DIR`` those of all processes together."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        seconds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
        rows = tuple(2.0**i for i in range(11))

        def histogram(name: str, text: str, label: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"veritracer_{name}", text, [label], buckets=buckets, registry=registry)

        labels = ["method", "route", "status"]
        self.requests = Counter("veritracer_requests", "Requests.", labels, registry=registry)
        self.seconds = histogram("request_seconds", "Time to answer.", "route", seconds)
        self.batch_rows = histogram("batch_rows", "Rows of a batch.", "operation", rows)
        self.batch_seconds = histogram("batch_seconds", "Time for a batch.", "operation", seconds)
        self.queued = Gauge(
            "veritracer_queued_rows", "Rows that wait.", registry=registry, multiprocess_mode="livesum"
        )
        self.promises = Counter("veritracer_promises_issued", "Promises issued.", registry=registry)

    def batch(self, kind: Any, rows: int, seconds: float) -> None:
        """Count a batch."""
        self.batch_rows.labels(kind.operation).observe(rows)
        self.batch_seconds.labels(kind.operation).observe(seconds)

    def text(self) -> bytes:
        """Return the numbers in Prometheus' format."""
        registry = self.registry
        if METRICS_FOLDER in os.environ:
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
UNKNOWN = {
    400: ("a request that can be read", "another", SEE),
    404: ("an address of this service", "another", SEE),
    405: ("a method of this address", "another", SEE),
}
SHOWN_ERRORS = 20


def refusal_of(error: Exception) -> ServiceError:
    """Return an error as the refusal of a request, with status, kind and three parts."""
    if isinstance(error, ServiceError) and isinstance(error.problem, Refusal):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        parts = UNKNOWN.get(error.status_code, ("a request that is allowed", str(error.detail)[:100], SEE))
        return refused(error.status_code, "http", *parts)
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    said = error.args[0] if error.args else None
    parts = ("a request that can be answered", str(error) or type(error).__name__, "correct it")
    if isinstance(said, errors.Message):
        parts = said.expected, said.received, said.remedy
    elif status == 500:  # nothing about the inside is told
        parts = "an answer", "an error of the service", "tell its operator the request's id"
    name = type(error).__name__.removesuffix("Error")
    kind = re.sub(r"(?<=.)([A-Z])", r"-\1", name).lower()
    return refused(status, kind, *parts, retry_after=2 if status == 503 else None)


def _invalid(error: RequestValidationError) -> ServiceError:
    """Return the refusal of a body or parameter: the first mistake, and a list of them."""
    listed = [
        {"pointer": "/" + "/".join(str(part) for part in one["loc"][1:]), "message": str(one["msg"])}
        for one in error.errors()[:SHOWN_ERRORS]
    ]
    first = error.errors()[0]
    context, where = first.get("ctx", {}), listed[0]["pointer"]
    said = getattr(context.get("error"), "args", ("",))[0]
    if isinstance(said, errors.Message):  # of the library itself
        parts = said.expected, said.received, said.remedy
        return refused(422, "invalid-request", *parts, errors=listed)
    expected = listed[0]["message"].removeprefix("Input should be ").partition(", got")[0]
    value = ascii(first.get("input"))
    received = f"{value if len(value) <= 60 else value[:57] + '...'} at {where}"
    if first["type"] == "missing":
        expected, received = where, "nothing"
    known = re.findall(r"'([^']*)'", context.get("expected", ""))
    close = closest(first.get("input"), known) if known else None
    remedy = SEE if close is None else f"did you mean {close!r}?"
    return refused(422, "invalid-request", expected, received, remedy, errors=listed)


def problem_response(refusal: ServiceError, request_id: str) -> Response:
    """Return a refusal as problem+json."""
    said, details, status = refusal.args[0], refusal.problem, refusal.status or 500
    assert isinstance(said, errors.Message)
    assert isinstance(details, Refusal)
    document = {
        "type": f"urn:veritracer:problem:{details.kind}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": str(said),
        "expected": said.expected,
        "received": said.received,
        "remedy": said.remedy,
        "request_id": request_id,
        **details.more,
    }
    headers = {} if details.retry_after is None else {"Retry-After": str(details.retry_after)}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="veritracer"'
    return Response(json.dumps(document), status, headers, MEDIA_TYPE)  # ASCII: half a character is possible


async def _answer(request: Request, error: Exception) -> Response:
    """Answer a request with the problem that an expected error is."""
    refusal: ServiceError = request.state.body.refusal or refusal_of(error)
    if refusal.status == 500:
        request.app.state.service.log.failure(error, request_id=request.state.request_id)
    response = problem_response(refusal, request.state.request_id)
    response.headers.update(getattr(error, "headers", None) or {})  # which methods are allowed
    return response


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


class RequestMiddleware:
    """Check host, origin and size of every request; give responses their headers; write the log."""

    def __init__(self, app: ASGIApp, settings: Settings, log: Log, metrics: Metrics) -> None:
        self.app, self.settings, self.log, self.metrics = app, settings, log, metrics
        self.hosts = settings.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, start = Headers(scope=scope), time.perf_counter()
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        answer = Answering(send, request_id)
        body = LimitedBody(receive, self.settings.most_bytes, self.settings.body_timeout)
        scope.setdefault("state", {}).update(request_id=request_id, body=body)
        try:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await problem_response(refusal, request_id)(scope, receive, answer)
            else:
                await self.app(scope, body, answer)
        except Exception as error:
            refusal = body.refusal or refusal_of(error)
            if refusal.status == 500 or answer.status:
                self.log.failure(error, request_id=request_id)
            if answer.status:  # too late for another answer: the connection ends
                raise
            await problem_response(refusal, request_id)(scope, receive, answer)
        finally:
            self._note(scope, answer.status, time.perf_counter() - start)

    def _refusal(self, scope: Scope, headers: Headers) -> ServiceError | None:
        """Return why a request is refused, judged by its head alone."""
        host = headers.get("host", "")
        name = re.sub(r":\d+$", "", host)
        if "*" not in self.hosts and name.casefold() not in self.hosts:
            remedy = "use its own, or start it with --allowed-host"
            return refused(421, "host", "a name of this service as Host", "another", remedy)
        if scope["method"] not in SAFE and not is_same_origin(headers):
            remedy = "send it from the service's own pages, or without a browser"
            return refused(403, "origin", "a request from this service's own pages", "another origin", remedy)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.settings.most_bytes:
            return _too_large(self.settings.most_bytes)
        return None

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "") or "unknown"
        method = scope["method"] if scope["method"] in METHODS else "OTHER"
        self.metrics.requests.labels(method, route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        state, ms = scope["state"], round(1000 * seconds, 1)
        facts = {"request_id": state["request_id"], "method": method, "route": route, "status": status}
        self.log.line("request", **facts, ms=ms, key=state.get("caller"))


class LimitedBody:
    """Receive the body of a request, which must arrive in time and within its size."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self.receive, self.left, self.most = receive, most, most
        self.deadline = time.monotonic() + seconds
        self.refusal: ServiceError | None = None
        self.whole = False

    async def __call__(self) -> Message:
        """Return the next piece."""
        if self.whole:  # what follows is the end of the connection, whenever that is
            return await self.receive()
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
                piece = await self.receive()
        except TimeoutError:
            received, remedy = "one that is not complete", "send it without pauses"
            self.refusal = refused(408, "slow-body", "a body in time", received, remedy)
            raise self.refusal from None
        self.left -= len(piece.get("body", b""))
        self.whole = not piece.get("more_body", False)
        if self.left < 0:
            self.refusal = _too_large(self.most)
            raise self.refusal
        return piece


class Answering:
    """Send a response with the headers that all have; remember its status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.send, self.request_id = send, request_id
        self.status = 0

    async def __call__(self, piece: Message) -> None:
        """Send a piece of it."""
        if piece["type"] == "http.response.start":
            self.status = piece["status"]
            headers = MutableHeaders(scope=piece)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers["X-Request-ID"] = self.request_id
            if self.status in (408, 413):  # the rest of the body is not read
                headers["Connection"] = "close"
        await self.send(piece)


def is_same_origin(headers: Headers, *, stated: bool = False) -> bool:
    """Return whether a browser, if it is one, sends this from a page of the service.

    With ``stated``, a request that does not say where it comes from is refused too.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site not in (None, "same-origin", "none") or (stated and site != "same-origin" and origin is None):
        return False
    return origin is None or origin.partition("://")[2].casefold() == headers.get("host", "").casefold()


def _too_large(most: int) -> ServiceError:
    expected, remedy = f"a body of up to {most:,} bytes", "send fewer rows at once"
    return refused(413, "too-large", expected, "a larger one", remedy)


# ---------------------------------------------------------------- the application


def create_app(settings: Settings, log: Log | None = None, *, digest: str | None = None) -> FastAPI:
    """Load the model and return the application; refuse a model of another ``digest``."""
    from veritracer.app.serve import api, page
    from veritracer.app.serve.operations import Operations

    operations = Operations(settings.checked())
    if digest not in (None, operations.digest):
        remedy = "start the service anew to deploy another model"
        raise ServiceError(message(f"the model {digest}", operations.digest, remedy))
    service = api.Service(settings, operations, log or Log(), Metrics())

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        service.log.line("started", model=operations.digest)
        yield
        await service.batcher.close(DRAIN)
        operations.close()
        service.log.line("stopped")

    app = FastAPI(
        title="VeriTraCER",
        version=__version__,
        description="Decisions, certified recourse and promises.",
        lifespan=life,
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # see api.openapi, which asks for a key
        redirect_slashes=False,
    )
    app.state.service = service
    app.include_router(api.make_router(service))
    app.include_router(page.router)
    app.openapi = partial(api.describe, app)  # type: ignore[method-assign]  # as FastAPI proposes it
    for kind in (VeriTracerError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer)
    app.add_middleware(RequestMiddleware, settings=settings, log=service.log, metrics=service.metrics)
    return app


# ---------------------------------------------------------------- processes


def serve(settings: Settings) -> int:
    """Audit the model, run the service until it is told to end, and return the exit code."""
    from veritracer.app.serve.operations import deploy

    with listening(settings.checked()) as place:
        digest = deploy(settings)
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # our own log says what happens
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
            Log().line("replaced", process=pid)


def process_app(settings: Settings, digest: str) -> FastAPI:
    """Return the application of one process, which ends with its parent and does not outlive a hung batch."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    end_with_parent()
    try:
        app = create_app(settings, digest=digest)
    except VeriTracerError as error:  # the supervisor tries again: a folder may be away for a moment
        Log().line("not started", why=str(error))
        sys.exit(1)
    service = app.state.service
    watch(service.batcher, partial(_end, service.log, "hung"))
    return app


def end_with_parent() -> None:
    """Start a thread that ends this process when its parent is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def wait() -> None:
            parent.join()
            _end(Log(), "parent gone")

        threading.Thread(target=wait, name="parent", daemon=True).start()


def _end(log: Log, why: str) -> None:
    """End this process at once, without waiting for the thread that computes."""
    try:
        log.line("ended", why=why)
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
        access_log=False,
        server_header=False,
        http="h11",
        ws="none",
        lifespan="on",
        limit_concurrency=4096,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(settings.timeout),
        timeout_worker_healthcheck=START_TIMEOUT,
    )
