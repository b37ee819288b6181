"""The service as an ASGI application, what every request to it passes, and the process that serves it.

The gate is one layer around the whole: a request's id, its address, its size, its time; and what every answer
carries. Refusals here are problem+json too.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
import uuid
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from veritracer import __version__
from veritracer.app.serve import api, pages
from veritracer.app.serve.observing import Log, Metrics
from veritracer.app.serve.problems import Problem, problem_of
from veritracer.app.serve.service import Service
from veritracer.app.serve.settings import Settings
from veritracer.app.serve.visitors import Sessions
from veritracer.errors import ServiceError, VeriTracerError, message

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SAFE = ("GET", "HEAD", "OPTIONS")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with none at all, browsers send forms from the origin "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
}
HSTS = "max-age=31536000"

TOLD = {
    400: ("a request that can be read", "another", "see /openapi.json"),
    404: ("an address of this service", "another", "see /openapi.json"),
    405: ("a method of this address", "another", "see /openapi.json"),
}


class Gate:
    """The layer around the whole service: see the module."""

    def __init__(self, app: ASGIApp, settings: Settings, log: Log, metrics: Metrics) -> None:
        self.app, self.settings, self.log, self.metrics = app, settings, log, metrics
        self.hosts = settings.hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, start = Headers(scope=scope), time.perf_counter()
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state: MutableMapping[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        answer = Answering(send, request_id, secure=self.settings.cookies_are_secure)
        limited = Limited(receive, self.settings.most_bytes, self.settings.body_timeout)
        try:
            problem = self._refusal(scope, headers)
            if problem is not None:
                await problem.response(request_id)(scope, receive, answer)
            else:
                await self.app(scope, limited, answer)
        except Exception as error:
            if answer.status:  # too late for another answer: the connection ends
                self.log.failure(error, request_id=request_id)
                raise
            problem = limited.problem or problem_of(error)
            if problem.status == 500:
                self.log.failure(error, request_id=request_id)
            await problem.response(request_id)(scope, receive, answer)
        finally:
            self._note(scope, answer.status, time.perf_counter() - start, request_id)

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        """Why this request goes no further, by its head alone."""
        host = headers.get("host", "")
        name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
        if "*" not in self.hosts and name.casefold() not in self.hosts:
            remedy = "use its own, or start it with --allowed-host"
            return Problem(421, "host", "a name of this service as Host", "another", remedy)
        if scope["method"] not in SAFE and not _same_origin(headers, host):
            remedy = "send it from the service's own pages, or without a browser"
            return Problem(403, "origin", "a request from this service's own pages", "another origin", remedy)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self.settings.most_bytes:
            return _too_large(self.settings.most_bytes)
        return None

    def _note(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        route = getattr(scope.get("route"), "path", "") or "unknown"
        state = scope.get("state", {})
        self.metrics.requests.labels(
            scope["method"] if scope["method"] in METHODS else "OTHER", route, str(status)
        ).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        self.log.line(
            "request",
            request_id=request_id,
            method=scope["method"][:16],
            route=route,
            status=status,
            ms=round(1000 * seconds, 1),
            key=state.get("caller"),
        )


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Limited:
    """The body of a request, which has to arrive in time and within its size."""

    def __init__(self, receive: Receive, most: int, seconds: float) -> None:
        self.receive, self.left, self.most = receive, most, most
        self.deadline = time.monotonic() + seconds
        self.problem: Problem | None = None
        self.whole = False

    async def __call__(self) -> Message:
        """The next piece."""
        if self.whole:  # what follows is the end of the connection, whenever that is
            return await self.receive()
        try:
            async with asyncio.timeout(max(0.0, self.deadline - time.monotonic())):
                piece = await self.receive()
        except TimeoutError:
            remedy = "send it without pauses"
            self.problem = Problem(408, "slow-body", "a body in time", "one that is not complete", remedy)
            raise
        self.left -= len(piece.get("body", b""))
        self.whole = not piece.get("more_body", False)
        if self.left < 0:
            self.problem = _too_large(self.most)
            raise ValueError("a body that is too large")
        return piece


class Answering:
    """The answer, with the headers that all have; knows its status."""

    def __init__(self, send: Send, request_id: str, *, secure: bool) -> None:
        self.send, self.request_id, self.secure = send, request_id, secure
        self.status = 0

    async def __call__(self, piece: Message) -> None:
        """Send a piece of it."""
        if piece["type"] == "http.response.start":
            self.status = piece["status"]
            headers = MutableHeaders(scope=piece)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
            if self.secure:
                headers.setdefault("Strict-Transport-Security", HSTS)
            headers["X-Request-ID"] = self.request_id
            if self.status in (408, 413):  # the rest of the body is not read
                headers["Connection"] = "close"
        await self.send(piece)


def _same_origin(headers: Headers, host: str) -> bool:
    """Whether a browser, if it is one, sends this from a page of the service itself."""
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2].casefold() == host.casefold()


def _too_large(most: int) -> Problem:
    remedy = "send fewer rows at once"
    return Problem(413, "too-large", f"a body of up to {most:,} bytes", "a larger one", remedy)


def create_app(settings: Settings, log: Log | None = None) -> FastAPI:
    """The application; the model is loaded when it starts."""
    service = Service(settings, log)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        try:
            await service.start()
        except VeriTracerError as error:
            app.state.refused = error  # for serve(), which can say it in one sentence
            raise
        yield
        await service.stop()

    app = FastAPI(
        title="VeriTraCER",
        version=__version__,
        description="Decisions, certified recourse and promises.",
        lifespan=life,
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # see api.openapi
        redirect_slashes=False,
    )
    app.state.service, app.state.sessions = service, Sessions(settings.cookies_are_secure)
    app.include_router(api.router)
    app.include_router(pages.router)
    app.openapi = lambda: _openapi(app, service)  # type: ignore[method-assign]  # FastAPI's own way
    for kind in (VeriTracerError, ValidationError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _answer)
    app.add_middleware(Gate, settings=settings, log=service.log, metrics=service.metrics)
    return app


def serve(settings: Settings) -> int:
    """The exit code, after the service has run until it was told to end."""
    with listening(settings.checked()) as place:
        app = create_app(settings)
        server = uvicorn.Server(server_config(app, settings))
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what ends the start is told below
        with suppress(SystemExit):  # uvicorn's way to end where the application does not start
            server.run(sockets=[place])
    refused: VeriTracerError | None = getattr(app.state, "refused", None)
    if refused is not None:
        raise refused
    return 0 if server.started else 1


def listening(settings: Settings) -> socket.socket:
    """A socket at the service's address, taken before the model is loaded, or an error that says why not."""
    place = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind((settings.host.strip("[]"), settings.port))
    except OSError as error:
        place.close()
        where, remedy = f"to listen on {settings.host}:{settings.port}", "name another --port or --host"
        raise ServiceError(message(where, error.strerror or str(error), remedy)) from None
    return place


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    """How uvicorn serves the application."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        http="h11",
        ws="none",
        lifespan="on",
        limit_concurrency=4096,
        backlog=2048,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=int(settings.timeout),
    )


def _openapi(app: FastAPI, service: Service) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    return api.complete(document, service)


async def _answer(request: Request, error: Exception) -> Response:
    """The problem that an expected error is."""
    problem = _http(error) if isinstance(error, HTTPException) else problem_of(_read_error(error))
    if problem.status >= 500 and problem.kind not in ("closing", "timeout"):
        request.app.state.service.log.failure(error, request_id=request.state.request_id)
    response = problem.response(request.state.request_id)
    response.headers.update(getattr(error, "headers", None) or {})  # which methods are allowed
    return response


def _read_error(error: Exception) -> Exception:
    """FastAPI's own error about headers and paths as pydantic's, which it is made of."""
    if not isinstance(error, RequestValidationError):
        return error
    first = error.errors()[0]
    where = "/".join(str(part) for part in first["loc"])
    remedy = "see the OpenAPI document of this service: /openapi.json"
    missing_key = first["loc"] == ("header", "idempotency-key")
    status = 400 if missing_key else 422
    said = message("a request of this endpoint", f"at {where}: {first['msg'].lower()}", remedy)
    problem = Problem(status, "invalid-request", said.expected, said.received, said.remedy)
    return ServiceError(str(said), status, problem)


def _http(error: HTTPException) -> Problem:
    parts = TOLD.get(error.status_code, ("a request that is allowed", str(error.detail)[:100], "correct it"))
    return Problem(error.status_code, "http", *parts)
