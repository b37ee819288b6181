"""The Open Inference Protocol (KServe V2) for the same model: ``infer`` decides, ``explain`` gives recourse.

A request has one tensor for each column, of the shape [n] or [n, 1]. Numbers are INT* or FP*, categories
BYTES (or BOOL), and a missing cell of a number is null.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse, Response
from pydantic import ConfigDict, Field

from veritracer import __version__
from veritracer.app.serve.api import needs, read, service_of
from veritracer.app.serve.keys import Caller
from veritracer.app.serve.messages import Cell, Options, Strict
from veritracer.app.serve.problems import refused
from veritracer.app.serve.rows import Columns
from veritracer.app.serve.service import Service
from veritracer.errors import DataError, listing, message

NAME = "veritracer"
KINDS = "BOOL|BYTES|U?INT(8|16|32|64)|FP(16|32|64)"
ModelName = Annotated[str, Path(max_length=100)]
router = APIRouter(prefix="/v2", tags=["kserve"], include_in_schema=False)


class Tensor(Strict):
    """One tensor of a request."""

    name: str
    shape: list[Annotated[int, Field(ge=0)]]
    datatype: Annotated[str, Field(pattern=f"^({KINDS})$")]
    data: list[Cell] | list[list[Cell]]
    parameters: dict[str, Any] | None = None


class Inference(Strict):
    """A request: one tensor for each column."""

    model_config = ConfigDict(**{**Strict.model_config, "extra": "ignore"})

    id: Annotated[str, Field(max_length=200)] | None = None
    inputs: Annotated[list[Tensor], Field(min_length=1)]
    parameters: dict[str, Any] | None = None


@router.get("")
async def server() -> dict[str, Any]:
    """What the server is."""
    return {"name": NAME, "version": __version__, "extensions": []}


@router.get("/health/live")
async def live() -> dict[str, bool]:
    """Whether it answers."""
    return {"live": True}


@router.get("/health/ready")
async def ready(request: Request) -> dict[str, bool]:
    """Whether it is ready."""
    return {"ready": service_of(request).ready}


@router.get("/models/{name}/ready")
async def model_ready(name: ModelName, request: Request) -> dict[str, Any]:
    """Whether the model is ready."""
    _check(name)
    return {"name": NAME, "ready": service_of(request).ready}


@router.get("/models/{name}")
async def model(name: ModelName, request: Request, caller: Annotated[Caller, needs(None)]) -> Response:
    """The model's tensors."""
    _check(name)
    inputs = [
        {"name": c.name, "datatype": "FP64" if c.is_numeric else _kind(c.categories[0]), "shape": [-1]}
        for c in service_of(request).columns.listed
    ]
    outputs = [
        {"name": "decision", "datatype": "BYTES", "shape": [-1]},
        {"name": "favourable", "datatype": "BOOL", "shape": [-1]},
        {"name": "probability", "datatype": "FP64", "shape": [-1]},
    ]
    told = {"name": NAME, "versions": [_version(request)], "platform": "veritracer"}
    return JSONResponse({**told, "inputs": inputs, "outputs": outputs})


@router.post("/models/{name}/infer")
async def infer(name: ModelName, request: Request, caller: Annotated[Caller, needs("decide")]) -> Response:
    """A decision for each row."""
    asked = await _read(name, request)
    rows = rows_of(asked.inputs, service_of(request).columns)
    told = json.loads(await service_of(request).decide(rows))["decisions"]
    columns = {key: [one[key] for one in told] for key in ("decision", "favourable", "probability")}
    return _answer(request, asked, columns)


@router.post("/models/{name}/explain")
async def explain(name: ModelName, request: Request, caller: Annotated[Caller, needs("decide")]) -> Response:
    """Recourse for each row; ``parameters`` are the options of ``explain``."""
    asked = await _read(name, request)
    service = service_of(request)
    rows = rows_of(asked.inputs, service.columns)
    options = Options.model_validate(asked.parameters or {})
    if (options.n or 1) > 1:
        remedy = "use /v1/recourse for alternatives"
        raise refused(422, "alternatives", "n = 1", f"{options.n}", remedy)
    told = json.loads(await service.recourse(rows, options))["answers"]
    return _answer(request, asked, explained(told, service))


def explained(told: list[dict[str, Any]], service: Service) -> dict[str, list[Any]]:
    """The answers as columns: the decision, how each ended, what was proved, and the values to have."""
    first = [one["alternatives"][0] for one in told]
    columns = {key: [one[key] for one in told] for key in ("decision", "favourable", "probability")}
    for key in ("status", "reason", "sentence", "certified", "valid", "radius", "cost"):
        columns[key] = [one[key] for one in first]
    for name in service.columns.names:
        columns[f"counterfactual.{name}"] = [one["counterfactual"][name] for one in first]
    return columns


def rows_of(inputs: list[Tensor], columns: Columns) -> list[dict[str, Any]]:
    """The rows that the tensors are, one tensor for each column."""
    flat = {tensor.name: _flat(tensor) for tensor in inputs}
    lacking = [name for name in columns.names if name not in flat]
    if lacking or len(flat) != len(inputs):
        received = f"none called {listing(lacking)}" if lacking else "one of them twice"
        raise DataError(message("a tensor for each column", received, "see GET /v2/models/veritracer"))
    lengths = {len(values) for values in flat.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise DataError(
            message("tensors of one length", f"{sorted(lengths)}", "give each row a value in all")
        )
    listed = [dict(zip(flat, cells, strict=True)) for cells in zip(*flat.values(), strict=True)]
    return [{name: _cell(row[name], name, columns) for name in row} for row in listed]


def _flat(tensor: Tensor) -> list[Any]:
    values: list[Any] = []
    for entry in tensor.data:
        values += entry if isinstance(entry, list) else [entry]
    if tensor.shape not in ([len(values)], [len(values), 1]):
        expected = f"the shape of {len(values)} rows for the tensor {tensor.name[:60]!r}"
        raise DataError(message(expected, f"{tensor.shape[:4]}", "say [n] or [n, 1]"))
    return values


def _cell(value: Any, name: str, columns: Columns) -> Any:
    """Text for a category that is a number or a truth value is that category."""
    column = next((one for one in columns.listed if one.name == name), None)
    return column.read(value) if column is not None and isinstance(value, str) else value


def _answer(request: Request, asked: Inference, columns: dict[str, list[Any]]) -> Response:
    outputs = [
        {"name": name, "shape": [len(values)], "datatype": _common(values), "data": values}
        for name, values in columns.items()
    ]
    told = {"model_name": NAME, "model_version": _version(request), "outputs": outputs}
    return JSONResponse({**told, "id": asked.id} if asked.id is not None else told)


async def _read(name: str, request: Request) -> Inference:
    _check(name)
    if "inference-header-content-length" in request.headers:
        remedy = "send tensors as JSON"
        raise refused(415, "binary", "tensors as JSON", "the binary extension", remedy)
    return await read(request, Inference)


def _check(name: str) -> None:
    if name != NAME:
        raise refused(404, "no-model", f"the model {NAME!r}", "another name", f"ask for {NAME}")


def _version(request: Request) -> str:
    return str(service_of(request).host.description["model_digest"])[:12]


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "BOOL"
    return "FP64" if isinstance(value, int | float) else "BYTES"


def _common(values: list[Any]) -> str:
    kinds = {_kind(value) for value in values if value is not None}
    return kinds.pop() if len(kinds) == 1 else "BYTES"
