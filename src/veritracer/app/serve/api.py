"""The endpoints for programs."""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Request, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST

from veritracer import __version__
from veritracer.app.serve import models as m
from veritracer.app.serve.auth import Caller, Guard, Keys, Scope, bearer_key
from veritracer.app.serve.batching import Batcher
from veritracer.errors import LedgerUnavailableError, VeriTracerWarning
from veritracer.options import ExplainOptions

if TYPE_CHECKING:
    from veritracer.app.serve.app import Log, Metrics, Settings
    from veritracer.app.serve.operations import Job, Operation, Operations

T = TypeVar("T")
Plain = dict[str, Any]


class Service:
    """The state that the endpoints of one process share: model, batches, keys, log and metrics."""

    def __init__(self, settings: Settings, operations: Operations, log: Log, metrics: Metrics) -> None:
        self.settings, self.operations, self.log, self.metrics = settings, operations, log, metrics
        self.row = m.row_model(operations.model.schema_)
        self.guard = Guard(None if settings.keys is None else Keys.read(settings.keys))
        self.batcher = Batcher(
            operations.run,
            window=settings.window,
            most=settings.batch_rows,
            bound=settings.queue_rows,
            timeout=settings.timeout,
            observe=metrics.batch,
            queue=metrics.queued.set,
            failed=log.failure,
        )

    async def ask(self, operation: Operation, job: Job) -> Plain:
        """Return the answer to one request."""
        if len(job.rows) > self.settings.most_rows:
            expected = f"up to {self.settings.most_rows:,} rows at once"
            remedy = "send fewer at once, or use veritracer explain"
            raise m.refused(413, "rows", expected, f"{len(job.rows):,}", remedy)
        if operation == "issue":
            _ = self.operations.ledger  # refused without one
        reply: Plain = await self.batcher.ask(job.kind(operation), job, len(job.rows))
        if operation == "issue" and not reply["again"]:
            self.metrics.promises.inc(len(reply["promises"]))
        return reply

    async def ledger(self, call: Callable[..., T], *args: Any, **given: Any) -> T:
        """Return the answer of the ledger to a question, which is asked in a thread."""
        return await asyncio.to_thread(_quietly, partial(call, *args, **given))


def _quietly(call: Callable[[], T]) -> T:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VeriTracerWarning)
        return call()


def service_of(request: Request) -> Service:
    """Return the service that a request came to."""
    service: Service = request.app.state.service
    return service


def needs(scope: Scope | None) -> Any:
    """Return a dependency: the caller, who has this scope."""

    async def admitted(request: Request) -> Caller:
        return service_of(request).guard.admit(request, bearer_key(request), scope)

    return Depends(admitted)


# ---------------------------------------------------------------- decisions and recourse


async def decisions(request: Request, body: Any, caller: Annotated[Caller, needs("decide")]) -> Any:
    """Return the model's decision about each row, and its probability."""
    return await service_of(request).ask("decide", _job(body.rows))


async def recourse(request: Request, body: Any, caller: Annotated[Caller, needs("decide")]) -> Any:
    """Return a certified counterfactual near each row, what was proved of it, or why there is none."""
    return await service_of(request).ask("explain", _job(body.rows, body.options, notice=body.notice))


async def certificates(request: Request, body: Any, caller: Annotated[Caller, needs("decide")]) -> Any:
    """Certify pairs of a row and a counterfactual, which may come from anywhere."""
    others = [m.row_of(pair.counterfactual) for pair in body.pairs]
    job = _job([pair.row for pair in body.pairs], ExplainOptions(kappa=body.kappa), others=others)
    return await service_of(request).ask("certify", job)


async def promises(
    request: Request,
    response: Response,
    body: Any,
    caller: Annotated[Caller, needs("issue")],
    idempotency_key: Annotated[
        str,
        Header(
            min_length=1,
            max_length=200,
            pattern="^[!-~]+$",
            description="A new random key for each request; a retry repeats the key of the first time.",
        ),
    ],
) -> Any:
    """Promise recourse, all of it or nothing; a retry under the same key never issues twice."""
    from veritracer.app.serve.operations import Terms

    terms = Terms(
        body.ids,
        f"{caller.name}:{idempotency_key}",
        body.model_dump_json(by_alias=True, exclude_defaults=True),
        choose=body.choose,
        expires=body.expires,
        allow_duplicate=body.allow_duplicate,
    )
    job = _job(body.rows, body.options, notice=body.notice, terms=terms)
    told = await service_of(request).ask("issue", job)
    response.status_code = 200 if told["again"] else 201
    return told


def _job(rows: Sequence[Any], options: ExplainOptions | None = None, **more: Any) -> Job:
    from veritracer.app.serve.operations import Job

    return Job([m.row_of(row) for row in rows], options or ExplainOptions(), **more)


# ---------------------------------------------------------------- the ledger

Number = Annotated[int, Path(ge=1, le=2**63 - 1, description="The number of a promise.")]


async def promise(request: Request, number: Number, caller: Annotated[Caller, needs("issue")]) -> Any:
    """Return one promise as the ledger has it: values, sentence, dates, certificate."""
    service = service_of(request)
    return await service.ledger(service.operations.promise, number, strict=True)


async def erase_promise(request: Request, number: Number, caller: Annotated[Caller, needs("erase")]) -> Any:
    """Erase all records of the person to whom this promise was made; the chain still verifies."""
    service = service_of(request)
    return {"erased": await service.ledger(service.operations.erase, number=number)}


async def erasures(
    request: Request, body: m.ErasureRequest, caller: Annotated[Caller, needs("erase")]
) -> Any:
    """Erase all records of a person by their id, which is in the body because addresses end up in logs."""
    service = service_of(request)
    return {"erased": await service.ledger(service.operations.erase, identity=body.id)}


async def ledger(request: Request, caller: Annotated[Caller, needs("audit")]) -> Any:
    """Count the promises by status, and return the checksum of the chain."""
    service = service_of(request)
    return await service.ledger(service.operations.state)


async def verify(request: Request, body: m.VerifyRequest, caller: Annotated[Caller, needs("audit")]) -> Any:
    """Check the chain, and that it goes on from a checksum that was noted earlier."""
    service = service_of(request)
    return await service.ledger(service.operations.verify, body.checksum)


async def audits(request: Request, caller: Annotated[Caller, needs("audit")]) -> Any:
    """List the audits and deployments that the ledger records, the newest first."""
    service = service_of(request)
    return {"audits": await service.ledger(service.operations.audits)}


# ---------------------------------------------------------------- the model and the process


async def model(request: Request, caller: Annotated[Caller, needs(None)]) -> Any:
    """Return the model card: what the model is, what it reads, and the digests that certificates name."""
    return service_of(request).operations.description


async def healthz() -> dict[str, str]:
    """Answer, if the process is alive."""
    return {"status": "alive", "version": __version__}


async def readyz(request: Request) -> dict[str, str]:
    """Answer, if requests would be answered: batches are completed, and the ledger is reachable."""
    service = service_of(request)
    if service.batcher.is_stuck:
        received = f"no batch completed within {service.settings.timeout:g} seconds"
        raise m.refused(503, "not-ready", "a service that is ready", received, "wait", retry_after=2)
    if service.settings.ledger is not None:
        try:
            await service.ledger(service.operations.head)
        except LedgerUnavailableError:  # where it is, is told to those who may know
            raise m.refused(503, "ledger", "a ledger", "none that answers", "wait", retry_after=2) from None
    return {"status": "ready"}


async def metrics(request: Request, caller: Annotated[Caller, needs(None)]) -> Response:
    """Return numbers for Prometheus, of all processes together."""
    text = service_of(request).metrics.text()
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def openapi(request: Request, caller: Annotated[Caller, needs(None)]) -> Any:
    """Return this interface as OpenAPI describes it, with the rows of this model."""
    return request.app.openapi()


def describe(app: FastAPI) -> Plain:
    """Return the OpenAPI document of an application, with the problems that every endpoint refers to."""
    document: Plain = FastAPI.openapi(app)
    document["components"]["schemas"].setdefault("Problem", m.Problem.model_json_schema())
    return document


# ---------------------------------------------------------------- the router

PROBLEM = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"description": "Refused: see its three parts.", **PROBLEM}
    for code in (400, 401, 403, 404, 408, 409, 413, 421, 422, 429, 500, 503, 504)
}


def make_router(service: Service) -> APIRouter:
    """Return the endpoints, with bodies that hold rows of the model that is served."""
    bodies = m.RequestModels.of(service.row, service.operations.example())
    bearer = HTTPBearer(auto_error=False, description="An API key; or send it in X-API-Key.")
    router = APIRouter(responses=PROBLEMS)
    for method, path, endpoint, answer in (
        ("POST", "/v1/decisions", with_body(decisions, bodies.decisions), m.DecisionsResponse),
        ("POST", "/v1/recourse", with_body(recourse, bodies.recourse), m.RecourseResponse),
        ("POST", "/v1/certificates", with_body(certificates, bodies.certificates), m.CertificatesResponse),
        ("POST", "/v1/promises", with_body(promises, bodies.promises), m.PromisesResponse),
        ("GET", "/v1/promises/{number}", promise, m.PromiseResponse),
        ("DELETE", "/v1/promises/{number}", erase_promise, m.ErasureResponse),
        ("POST", "/v1/erasures", erasures, m.ErasureResponse),
        ("GET", "/v1/ledger", ledger, m.LedgerResponse),
        ("POST", "/v1/ledger/verify", verify, m.VerifyResponse),
        ("GET", "/v1/audits", audits, m.AuditsResponse),
        ("GET", "/v1/model", model, m.ModelResponse),
    ):
        more: Plain = {"methods": [method], "response_model": answer, "dependencies": [Depends(bearer)]}
        if endpoint.__name__ == "promises":
            more["responses"] = {201: {"description": "Issued now.", "model": answer}}
        router.add_api_route(path, endpoint, **more)
    router.add_api_route("/healthz", healthz)
    router.add_api_route("/readyz", readyz)
    router.add_api_route("/metrics", metrics, response_class=Response, dependencies=[Depends(bearer)])
    router.add_api_route("/openapi.json", openapi, include_in_schema=False)
    return router


def with_body(endpoint: Callable[..., Any], kind: type[Any]) -> Callable[..., Any]:
    """Return the endpoint with this type of body, which depends on the model that is served."""
    written = inspect.signature(endpoint)
    parameters = [p.replace(annotation=kind) if p.name == "body" else p for p in written.parameters.values()]

    @wraps(endpoint)
    async def call(**given: Any) -> Any:
        return await endpoint(**given)

    call.__signature__ = written.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call
