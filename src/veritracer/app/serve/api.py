"""The endpoints for programs."""

# Annotations are evaluated where they stand: FastAPI reads them, and rows have a type of each service's own.

import asyncio
import json
import warnings
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Header, Path, Request, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, Counter
from pydantic import BaseModel

from veritracer import __version__
from veritracer.app.serve import models as m
from veritracer.app.serve.app import Settings, prometheus_text
from veritracer.app.serve.auth import Guard, Key, Scope, bearer_key
from veritracer.app.serve.batching import Batcher
from veritracer.app.serve.operations import Job, Operations, Plain, PromiseJob, expiry_of
from veritracer.errors import LedgerUnavailableError, VeriTracerWarning
from veritracer.options import ExplainOptions

T = TypeVar("T")

PROMISES = Counter("veritracer_promises_issued", "Promises issued.")


class Service:
    """The state that the endpoints of one process share: model, batches and keys."""

    def __init__(self, settings: Settings, *, end_if_hung: bool = False) -> None:
        self.settings = settings
        self.operations = Operations(settings)
        self.row = m.row_model(self.operations.model.schema_, self.operations.example())
        self.guard = Guard(settings.keys)
        self.batcher = Batcher(self.operations.run, settings, end_if_hung=end_if_hung)

    async def ask(self, job: Job) -> Plain:
        """Return the answer to one request."""
        if job.cost > self.settings.most_rows:
            expected = f"up to {self.settings.most_rows:,} rows at once, times the alternatives of each"
            remedy = "send fewer at once, or use veritracer explain"
            raise m.refused(413, "rows", expected, f"{job.cost:,}", remedy)
        if job.operation == "issue":
            _ = self.operations.ledger  # refused without one
        reply: Plain = await self.batcher.ask(job)
        if job.operation == "issue" and not reply["again"]:
            PROMISES.inc(len(reply["promises"]))
        return reply

    async def read_ledger(self, call: Callable[..., T], *args: Any, **given: Any) -> T:
        """Return the answer of the ledger to a question, which is asked in a thread."""

        def quietly() -> T:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", VeriTracerWarning)
                return call(*args, **given)

        return await asyncio.to_thread(quietly)


PROBLEM = {"content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {"description": "Refused: see its three parts.", **PROBLEM}
    for code in (400, 401, 403, 404, 408, 409, 413, 421, 422, 429, 500, 503, 504)
}
Number = Annotated[int, Path(ge=1, le=2**63 - 1, description="The number of a promise.")]
RetryKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern="^[!-~]+$",
        description="A new random key for each request; a retry repeats the key of the first time.",
    ),
]
_bearer = HTTPBearer(auto_error=False, description="An API key; or send it in X-API-Key.")


def describe(app: FastAPI) -> Plain:
    """Return the OpenAPI document of an application, with the problems that every endpoint refers to.

    A body with rows is called by its own name alone: the application has one type of row.
    """
    document: Plain = json.loads(json.dumps(FastAPI.openapi(app)).replace("_Row_", ""))
    document["components"]["schemas"]["Problem"] = m.Problem.model_json_schema()
    return document


def make_router(service: Service) -> APIRouter:
    """Return the endpoints of a service; bodies hold rows of the model that it serves."""
    router = APIRouter(responses=PROBLEMS)
    operations = service.operations
    row: Any = service.row

    def needs(scope: Scope | None) -> Any:
        """Return a dependency: the key of the caller, which has this scope."""

        async def admitted(request: Request, _: Annotated[object, Depends(_bearer)]) -> Key:
            return service.guard.admit(request, bearer_key(request), scope)

        return Depends(admitted)

    def rows_of(rows: list[BaseModel]) -> list[m.Row]:
        return [m.row_of(one) for one in rows]

    # ------------------------------------------------------------ decisions, recourse and promises

    @router.post("/v1/decisions", dependencies=[needs("decide")], response_model=m.DecisionsResponse)
    async def decisions(body: m.Rows[row]) -> Any:
        """Return the model's decision about each row, and its probability."""
        return await service.ask(Job("decide", rows_of(body.rows)))

    @router.post("/v1/recourse", dependencies=[needs("decide")], response_model=m.RecourseResponse)
    async def recourse(body: m.RecourseRequest[row]) -> Any:
        """Return a certified counterfactual near each row, what was proved of it, or why there is none."""
        return await service.ask(Job("explain", rows_of(body.rows), body.options, notice=body.notice))

    @router.post("/v1/certificates", dependencies=[needs("decide")], response_model=m.CertificatesResponse)
    async def certificates(body: m.CertificateRequest[row]) -> Any:
        """Certify pairs of a row and a counterfactual, which may come from anywhere."""
        rows = rows_of([pair.row for pair in body.pairs])
        others = rows_of([pair.counterfactual for pair in body.pairs])
        return await service.ask(Job("certify", rows, ExplainOptions(kappa=body.kappa), others))

    issued: dict[int | str, Plain] = {201: {"description": "Issued now.", "model": m.PromisesResponse}}

    @router.post("/v1/promises", response_model=m.PromisesResponse, responses={**PROBLEMS, **issued})
    async def promises(
        response: Response,
        body: m.PromiseRequest[row],
        key: Annotated[Key, needs("issue")],
        idempotency_key: RetryKey,
    ) -> Any:
        """Promise recourse, all of it or nothing; a retry under the same key never issues twice."""
        job = PromiseJob(
            rows_of(body.rows),
            body.options.until(expiry_of(body.expires or service.settings.expires)),
            notice=body.notice,
            ids=body.ids,
            key=f"{key.name}:{idempotency_key}",
            content=body.model_dump_json(by_alias=True, exclude_defaults=True),
            choose=body.choose,
            expires=body.expires,
            allow_duplicate=body.allow_duplicate,
        )
        reply = await service.ask(job)
        response.status_code = 200 if reply["again"] else 201
        return reply

    # ------------------------------------------------------------ the ledger

    @router.get("/v1/promises/{number}", dependencies=[needs("issue")], response_model=m.PromiseResponse)
    async def promise(number: Number) -> Any:
        """Return one promise as the ledger has it: values, sentence, dates, certificate."""
        return await service.read_ledger(operations.promise, number)

    @router.delete("/v1/promises/{number}", dependencies=[needs("erase")], response_model=m.ErasureResponse)
    async def erase_promise(number: Number) -> Any:
        """Erase all records of the person to whom this promise was made; the chain still verifies."""
        return {"erased": await service.read_ledger(operations.erase, number=number)}

    @router.post("/v1/erasures", dependencies=[needs("erase")], response_model=m.ErasureResponse)
    async def erasures(body: m.ErasureRequest) -> Any:
        """Erase all records of a person by their id, which is in the body as addresses end up in logs."""
        return {"erased": await service.read_ledger(operations.erase, identity=body.id)}

    @router.get("/v1/ledger", dependencies=[needs("audit")], response_model=m.LedgerResponse)
    async def ledger() -> Any:
        """Count the promises by status, and return the checksum of the chain."""
        return await service.read_ledger(operations.state)

    @router.post("/v1/ledger/verify", dependencies=[needs("audit")], response_model=m.VerifyResponse)
    async def verify(body: m.VerifyRequest) -> Any:
        """Check the chain, and that it goes on from a checksum that was noted earlier."""
        return await service.read_ledger(lambda: operations.ledger.verify(body.checksum))

    @router.get("/v1/audits", dependencies=[needs("audit")], response_model=m.AuditsResponse)
    async def audits() -> Any:
        """List the audits and deployments that the ledger records, the newest first."""
        return {"audits": await service.read_ledger(operations.audits)}

    # ------------------------------------------------------------ the model and the process

    @router.get("/v1/model", dependencies=[needs(None)], response_model=m.ModelResponse)
    async def model() -> Any:
        """Return the model card: what the model is, what it reads, and the digests that certificates name."""
        return operations.card

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answer, if the process is alive."""
        return {"status": "alive", "version": __version__}

    @router.get("/readyz")
    async def readyz() -> dict[str, str]:
        """Answer, if requests would be answered: batches are completed, and the ledger is reachable."""
        if service.batcher.is_stuck:
            received = f"no batch completed within {service.settings.timeout:g} seconds"
            raise m.refused(503, "not-ready", "a service that is ready", received, "wait", retry_after=2)
        if service.settings.ledger is not None:
            try:
                await service.read_ledger(lambda: operations.ledger.head)
            except LedgerUnavailableError:  # where it is, is told to those who may know
                received = "none that answers"
                raise m.refused(503, "ledger", "a ledger", received, "wait", retry_after=2) from None
        return {"status": "ready"}

    @router.get("/metrics", dependencies=[needs(None)], response_class=Response)
    async def metrics() -> Response:
        """Return numbers for Prometheus, of all processes together."""
        return Response(prometheus_text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.get("/openapi.json", dependencies=[needs(None)], include_in_schema=False)
    async def openapi(request: Request) -> Any:
        """Return this interface as OpenAPI describes it, with the rows of this model."""
        return request.app.openapi()

    return router
