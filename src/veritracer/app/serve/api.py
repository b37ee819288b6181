"""The endpoints for programs: each reads, asks the service, and answers."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from veritracer import __version__
from veritracer.app.serve import messages as m
from veritracer.app.serve.keys import Caller, Scope
from veritracer.app.serve.problems import MEDIA_TYPE, refused
from veritracer.app.serve.service import Service
from veritracer.errors import LedgerUnavailableError

Body = TypeVar("Body", bound=BaseModel)
JSON = "application/json"
IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,200}")
ACTS_ON: dict[str, type[BaseModel]] = {
    "decisions": m.DecisionsIn,
    "recourse": m.RecourseIn,
    "certificates": m.CertificatesIn,
    "promises": m.PromisesIn,
    "erasures": m.ErasureIn,
    "verify": m.VerifyIn,
}
Number = Annotated[int, Path(ge=1, le=2**63 - 1, description="The number of a promise.")]

router = APIRouter()


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    found: Service = request.app.state.service
    return found


def needs(scope: Scope | None) -> Any:
    """A dependency: who asks, if they have this scope."""

    async def admitted(request: Request) -> Caller:
        address = request.client.host if request.client else ""
        caller = service_of(request).admit(_key(request), address, scope)
        request.state.caller = caller.name
        return caller

    return Depends(admitted)


def _key(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.casefold() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("x-api-key")


def media_type(request: Request) -> str:
    """What the body is said to be."""
    return request.headers.get("content-type", "").partition(";")[0].strip().casefold()


async def read(request: Request, kind: type[Body]) -> Body:
    """The body of a request, strictly: it is JSON and nothing but what the endpoint takes."""
    if media_type(request) != JSON:
        received = media_type(request)[:60] or "none"
        raise refused(415, "media-type", JSON, received, f"send Content-Type: {JSON}")
    return kind.model_validate_json(await request.body())


def raw(body: bytes, status: int = 200) -> Response:
    """JSON that was written elsewhere."""
    return Response(body, status, media_type=JSON)


def _problems(*codes: int) -> dict[int | str, dict[str, Any]]:
    told = {"content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}}}}
    every = {*codes, 400, 401, 403, 408, 413, 421, 429, 500, 503}
    return {code: {"description": "Refused: see its three parts.", **told} for code in sorted(every)}


def _takes(name: str, example: Any = None) -> dict[str, Any]:
    media: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{ACTS_ON[name].__name__}"}}
    if example is not None:
        media["example"] = example
    return {"requestBody": {"required": True, "content": {JSON: media}}}


COMPUTES = _problems(415, 422, 504)


@router.post(
    "/v1/decisions",
    tags=["decide"],
    response_model=None,
    responses={200: {"model": m.DecisionsOut}, **COMPUTES},
    openapi_extra=_takes("decisions"),
)
async def decisions(request: Request, caller: Annotated[Caller, needs("decide")]) -> Response:
    """What the model decides about each row, and with which probability."""
    asked = await read(request, m.DecisionsIn)
    return raw(await service_of(request).decide(asked.rows))


@router.post(
    "/v1/recourse",
    tags=["decide"],
    response_model=None,
    responses={200: {"model": m.RecourseOut}, **COMPUTES},
    openapi_extra=_takes("recourse"),
)
async def recourse(request: Request, caller: Annotated[Caller, needs("decide")]) -> Response:
    """A certified counterfactual near each row: what is proved of it, or why there is none."""
    asked = await read(request, m.RecourseIn)
    return raw(await service_of(request).recourse(asked.rows, asked.options, asked.letter))


@router.post(
    "/v1/certificates",
    tags=["decide"],
    response_model=None,
    responses={200: {"model": m.CertificatesOut}, **COMPUTES},
    openapi_extra=_takes("certificates"),
)
async def certificates(request: Request, caller: Annotated[Caller, needs("decide")]) -> Response:
    """A certificate for each pair of a row and a counterfactual that may come from anywhere."""
    asked = await read(request, m.CertificatesIn)
    return raw(await service_of(request).certify([pair.model_dump() for pair in asked.pairs], asked.kappa))


@router.post(
    "/v1/promises",
    tags=["promises"],
    status_code=201,
    response_model=None,
    responses={
        201: {"model": m.PromisesOut, "description": "Issued now."},
        200: {"model": m.PromisesOut, "description": "Issued before, under the same key."},
        **_problems(404, 415, 422, 504),
    },
    openapi_extra=_takes("promises"),
)
async def promises(
    request: Request,
    caller: Annotated[Caller, needs("issue")],
    idempotency_key: Annotated[
        str, Header(description="A new one for each request; a retry has that of the first time.")
    ],
) -> Response:
    """Recourse that is promised from now on, all of it or nothing; a retry never issues twice."""
    if not IDEMPOTENCY_KEY.fullmatch(idempotency_key):
        remedy = "send a new random one, such as a UUID"
        raise refused(400, "idempotency-key", "1 to 200 printable characters", "another key", remedy)
    asked = await read(request, m.PromisesIn)
    body = await service_of(request).issue(caller, idempotency_key, asked.model_dump())
    return raw(body, 200 if json.loads(body)["again"] else 201)


@router.get(
    "/v1/promises/{number}",
    tags=["promises"],
    response_model=None,
    responses={200: {"model": m.PromiseOut}, **_problems(404, 422)},
)
async def promise(number: Number, request: Request, caller: Annotated[Caller, needs("issue")]) -> Response:
    """One promise as it was told: values, sentence, dates, certificate."""
    return JSONResponse(await service_of(request).promise(number))


@router.delete(
    "/v1/promises/{number}",
    tags=["promises"],
    response_model=None,
    responses={200: {"model": m.ErasedOut}, **_problems(404, 422)},
)
async def erase_promise(
    number: Number, request: Request, caller: Annotated[Caller, needs("erase")]
) -> Response:
    """Erase all records of the person to whom this promise was made; the chain still verifies."""
    return JSONResponse({"erased": await service_of(request).erase_promise(number)})


@router.post(
    "/v1/erasures",
    tags=["promises"],
    response_model=None,
    responses={200: {"model": m.ErasedOut}, **_problems(404, 415, 422)},
    openapi_extra=_takes("erasures", {"id": "customer-4711"}),
)
async def erasures(request: Request, caller: Annotated[Caller, needs("erase")]) -> Response:
    """Erase all records of a person by their id, which is in the body: addresses end up in logs."""
    asked = await read(request, m.ErasureIn)
    return JSONResponse({"erased": await service_of(request).erase(asked.id)})


@router.get(
    "/v1/ledger",
    tags=["ledger"],
    response_model=None,
    responses={200: {"model": m.LedgerOut}, **_problems(404)},
)
async def ledger(request: Request, caller: Annotated[Caller, needs("audit")]) -> Response:
    """How many promises there are, and the head of the chain."""
    return JSONResponse(await service_of(request).standing())


@router.post(
    "/v1/ledger/verify",
    tags=["ledger"],
    response_model=None,
    responses={200: {"model": m.VerifyOut}, **_problems(404, 415, 422)},
    openapi_extra=_takes("verify", {"head": None}),
)
async def verify(request: Request, caller: Annotated[Caller, needs("audit")]) -> Response:
    """Whether the ledger is what was written, and still goes on from a head that was noted."""
    asked = await read(request, m.VerifyIn)
    return JSONResponse(await service_of(request).verify(asked.head))


@router.get(
    "/v1/audits",
    tags=["audits"],
    response_model=None,
    responses={200: {"model": m.AuditsOut}, **_problems(404)},
)
async def audits(request: Request, caller: Annotated[Caller, needs("audit")]) -> Response:
    """List the audits and deployments that the ledger records, the newest first."""
    return JSONResponse({"audits": await service_of(request).recorded_audits()})


@router.get(
    "/v1/model",
    tags=["model"],
    response_model=None,
    responses={200: {"model": m.ModelOut}, **_problems()},
)
async def model(request: Request, caller: Annotated[Caller, needs(None)]) -> Response:
    """The model's card: what it is, what it reads, and the digests that certificates name."""
    return JSONResponse(service_of(request).host.description)


@router.get(
    "/healthz", tags=["operation"], responses={200: {"content": {JSON: {"schema": {"type": "object"}}}}}
)
async def healthz() -> dict[str, str]:
    """Whether the process answers."""
    return {"status": "alive", "version": __version__}


@router.get(
    "/readyz",
    tags=["operation"],
    response_model=None,
    responses={200: {"content": {JSON: {"schema": {"type": "object"}}}}, **_problems()},
)
async def readyz(request: Request) -> Response:
    """Whether requests would be answered: the model is loaded, and the ledger reachable."""
    service = service_of(request)
    if not service.ready:
        raise refused(503, "not-ready", "a service that is ready", "one that is not", "wait", retry_after=2)
    if service.settings.ledger is not None:
        try:
            await service.with_ledger(lambda host: host.ledger.head)
        except LedgerUnavailableError:  # where it is, is told to those who may know
            raise refused(503, "ledger", "a ledger", "none that answers", "wait", retry_after=2) from None
    return JSONResponse({"status": "ready"})


@router.get(
    "/metrics",
    tags=["operation"],
    response_model=None,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **_problems()},
)
async def metrics(request: Request, caller: Annotated[Caller, needs(None)]) -> Response:
    """Numbers for Prometheus."""
    text = generate_latest(service_of(request).metrics.registry)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, caller: Annotated[Caller, needs(None)]) -> Response:
    """The service as OpenAPI describes it, with what its model knows of a row."""
    return JSONResponse(request.app.openapi())


def complete(document: dict[str, Any], service: Service) -> dict[str, Any]:
    """The OpenAPI document with the bodies that are read by hand, and what this model knows of a row."""
    components = document.setdefault("components", {})
    schemas: dict[str, Any] = components.setdefault("schemas", {})
    kinds: list[type[BaseModel]] = [*ACTS_ON.values(), m.ProblemOut]
    _, defined = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
    )
    schemas |= defined["$defs"]
    schemas["Row"] = service.columns.schema()
    row, example = {"$ref": "#/components/schemas/Row"}, service.columns.example()
    for name in ("DecisionsIn", "RecourseIn", "PromisesIn"):
        schemas[name]["properties"]["rows"] |= {"items": row, "maxItems": service.settings.most_rows}
    schemas["Pair"]["properties"] = {"row": row, "counterfactual": row}
    bodies: dict[str, Any] = {
        "/v1/decisions": {"rows": [example]},
        "/v1/recourse": {"rows": [example], "options": {"n": 2}},
        "/v1/certificates": {"pairs": [{"row": example, "counterfactual": example}]},
        "/v1/promises": {"rows": [example], "ids": ["customer-4711"], "expires": "365d"},
    }
    for path, body in bodies.items():
        document["paths"][path]["post"]["requestBody"]["content"][JSON]["example"] = body
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}] if service.keys is not None else []
    return document
