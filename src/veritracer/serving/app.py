"""The service as an ASGI application, and the process that serves it."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from veritracer import __version__
from veritracer.errors import ServiceError, VeriTracerError, message
from veritracer.serving import api, kserve, pages
from veritracer.serving.gate import Gate, protocol
from veritracer.serving.observing import Log
from veritracer.serving.problems import Problem, problem_of
from veritracer.serving.service import Service
from veritracer.serving.settings import Settings
from veritracer.serving.visitors import Sessions

TOLD = {
    400: ("a request that can be read", "another", "see /openapi.json"),
    404: ("an address of this service", "another", "see /openapi.json"),
    405: ("a method of this address", "another", "see /openapi.json"),
}


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
    app.include_router(kserve.router)
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
        http=protocol(settings.header_timeout),
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
    if problem.status >= 500 and problem.kind not in ("closing", "timeout", "reloading"):
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
