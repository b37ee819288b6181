"""What is answered when something is refused: problem+json (RFC 9457) with the library's three parts.

``type`` names the kind of mistake, ``detail`` is the whole sentence, and ``expected``, ``received`` and
``remedy`` are its parts. A problem is a plain value, so that a worker process can hand it over.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from veritracer import errors
from veritracer.errors import Message, message

MEDIA_TYPE = "application/problem+json"

STATUS: dict[type[Exception], int] = {
    errors.NoRecordError: 404,
    errors.RequestReusedError: 422,
    errors.PromisedMeanwhileError: 409,
    errors.DeploymentError: 409,
    errors.LedgerUnavailableError: 503,
    errors.LedgerError: 500,
    errors.ServiceError: 503,
    errors.PromiseError: 409,
    errors.VeriTracerError: 422,
}
"""What each kind of error is answered with; the first that fits counts."""

SHOWN_ERRORS = 20


@dataclass(frozen=True)
class Problem:
    """One refusal: status, kind, the three parts, and what else is to be told.

    ``more`` becomes further members of the document, ``retry_after`` a header, in seconds.
    """

    status: int
    kind: str
    expected: str
    received: str
    remedy: str
    more: dict[str, Any] | None = None
    retry_after: int | None = None

    @property
    def detail(self) -> str:
        """The three parts as one sentence."""
        return str(message(self.expected, self.received, self.remedy))

    def document(self, request_id: str) -> dict[str, Any]:
        """The members of problem+json."""
        return {
            "type": f"urn:veritracer:problem:{self.kind}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "expected": self.expected,
            "received": self.received,
            "remedy": self.remedy,
            "request_id": request_id,
            **(self.more or {}),
        }

    def response(self, request_id: str) -> Response:
        """The answer."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        if self.status == 401:
            headers["WWW-Authenticate"] = 'Bearer realm="veritracer"'
        return JSONResponse(self.document(request_id), self.status, headers, MEDIA_TYPE)


def refused(
    status: int,
    kind: str,
    expected: str,
    received: str,
    remedy: str,
    *,
    retry_after: int | None = None,
    **more: Any,
) -> errors.ServiceError:
    """The exception that ends the handling of a request so."""
    return raised(Problem(status, kind, expected, received, remedy, more or None, retry_after))


def raised(problem: Problem) -> errors.ServiceError:
    """The exception that carries a problem."""
    return errors.ServiceError(problem.detail, problem.status, problem)


def problem_of(error: Exception) -> Problem:
    """The problem that an error of the library is to whoever asked."""
    if isinstance(error, errors.ServiceError) and isinstance(error.problem, Problem):
        return error.problem
    if isinstance(error, ValidationError):
        return invalid(error)
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    said = error.args[0] if error.args else None
    parts = ("a request that can be answered", str(error) or type(error).__name__, "correct it and try again")
    if isinstance(said, Message):
        parts = said.expected, said.received, said.remedy
    elif status == 500:  # nothing of the inside is told
        parts = "an answer", "an error of the service", "tell its operator the request's id"
    return Problem(status, _kind(error), *parts, retry_after=2 if status == 503 else None)


def invalid(error: ValidationError) -> Problem:
    """The problem of a body that is not what the endpoint takes: the first mistake, and a list of them."""
    listed = [
        {"pointer": "/" + "/".join(str(part) for part in one["loc"]), "message": one["msg"]}
        for one in error.errors(include_url=False, include_input=False, include_context=False)[:SHOWN_ERRORS]
    ]
    first = listed[0]
    received = f"at {first['pointer']}: {first['message'][:1].lower()}{first['message'][1:]}"
    remedy = "see the OpenAPI document of this service: /openapi.json"
    return Problem(422, "invalid-body", "a body of this endpoint", received, remedy, {"errors": listed})


def _kind(error: Exception) -> str:
    """The name of an error's class in the way of URNs: NoRecordError is no-record."""
    name = type(error).__name__.removesuffix("Error")
    return "".join(f"-{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
