"""Write docs/reference/http.md: every endpoint of the service, from the OpenAPI document of the application.

``python docs/write_http.py``, or ``make docs``. The document describes the rows of one model, so a small
model of ``loans`` is trained first.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("reference") / "http.md"
METHODS = ("get", "post", "put", "patch", "delete")
HEAD = """# HTTP

Written by `make docs` from the OpenAPI document of the service. [Serve](../how-to/serve.md) says how
to start it.

A running service has the same document at `/openapi.json`, with the columns of its own model instead of
those of *Row*. Send a key as `Authorization: Bearer KEY` or as `X-API-Key`. Errors are
`application/problem+json` with `expected`, `received`, `remedy` and a `request_id`. Their status is one of:

| status | meaning |
|---|---|
| 400 | the body cannot be read as JSON |
| 401, 403 | no valid key; the key lacks the scope |
| 404 | no such promise or address |
| 408 | the body did not arrive in time |
| 409 | another model is deployed, or somebody else promised meanwhile |
| 413 | the body is too large, or has too many rows |
| 421 | the service is not addressed by one of its names |
| 422 | the body, a header or a number in the address is not valid |
| 429 | too many rows wait, or too many wrong keys: try again after `Retry-After` |
| 500, 503, 504 | a bug; the ledger or the model is not available; the request took too long |
"""

Document = Mapping[str, Any]


def document() -> Document:
    """Return the OpenAPI document of a service with a small model and a ledger."""
    import veritracer as vt
    from veritracer.app.serve.app import create_app
    from veritracer.app.serve.settings import Settings

    data = vt.datasets.loans(rows=300)
    model = vt.VeriTraCER(schema=data.schema, method="standard", hidden=(4,), epochs=1, panel=None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model.fit(data.X, data.y).save(folder / "model")
        app = create_app(Settings(model=folder / "model", ledger=str(folder / "promises.db")))
        return asyncio.run(_started(app))


async def _started(app: Any) -> Document:
    async with app.router.lifespan_context(app):  # the model is loaded by then
        described: Document = app.openapi()
    return described


def page(described: Document) -> str:
    """Return the page: a section for each operation, then one for each kind of object that they share."""
    operations = [
        _operation(described, path, method, each)
        for path, methods in described["paths"].items()
        for method, each in methods.items()
        if method in METHODS
    ]
    return "\n".join([HEAD, "## Endpoints\n", *operations, "## Objects\n", *_objects(described)])


def _operation(described: Document, path: str, method: str, operation: Document) -> str:
    lines = [f"### {method.upper()} {path}\n"]
    text = operation.get("description") or operation.get("summary", "")
    lines += [f"{' '.join(text.split())}\n"] if text else []
    parameters = operation.get("parameters", ())
    rows = [
        (f"`{each['name']}`", each["in"], _type(each["schema"]), each.get("description", ""))
        for each in (_resolved(described, entry) for entry in parameters)
    ]
    lines += _table(("parameter", "in", "type", "meaning"), rows)
    if "requestBody" in operation:
        lines.append(f"Body: {_content(operation['requestBody'])}.\n")
    for status, entry in sorted(operation["responses"].items()):
        if status.startswith("2"):
            answer = _resolved(described, entry)
            meaning = answer.get("description", "").rstrip(".")
            lines.append(f"Answer {status} ({meaning}): {_content(answer) or 'no body'}.\n")
    refused = [status for status in sorted(operation["responses"]) if status[0] in "45"]
    return "\n".join([*lines, *([f"Errors: {', '.join(refused)}.\n"] if refused else [])])


def _objects(described: Document) -> Iterator[str]:
    for name, schema in sorted(described.get("components", {}).get("schemas", {}).items()):
        yield f"### {name}\n"
        if name in _rows_of(described):
            yield "A row of the model's table: one field for each feature of its schema.\n"
            continue
        if text := schema.get("description"):
            yield f"{' '.join(text.split())}\n"
        if "properties" not in schema:
            yield f"{_type(schema)}.\n"
            continue
        required = set(schema.get("required", ()))
        rows = [
            (f"`{field}`", _type(each), _default(each, field in required), each.get("description", ""))
            for field, each in schema["properties"].items()
        ]
        yield from _table(("field", "type", "default", "meaning"), rows)


def _rows_of(described: Document) -> set[str]:
    """Return the names of the objects that have the columns of the model's table."""
    schemas = described.get("components", {}).get("schemas", {})
    columns = {"loan_amount", "savings", "employment"}
    return {name for name, schema in schemas.items() if columns <= set(schema.get("properties", ()))}


def _content(entry: Document) -> str:
    kinds = entry.get("content", {})
    return ", ".join(f"`{kind}` {_type(found.get('schema', {}))}".strip() for kind, found in kinds.items())


def _type(schema: Document) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_type(each) for each in schema[key]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_type(schema['additionalProperties'])}"
    limits = [f"{sign} {schema[key]}" for key, sign in _LIMITS.items() if key in schema]
    return " ".join([str(kind), *limits])


_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _default(schema: Document, required: bool) -> str:
    return "required" if required else f"`{schema['default']!r}`" if "default" in schema else ""


def _resolved(described: Document, entry: Document) -> Document:
    if "$ref" not in entry:
        return entry
    found: Any = described
    for part in entry["$ref"].removeprefix("#/").split("/"):
        found = found[part]
    resolved: Document = found
    return resolved


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    cells = [" | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {row} |" for row in cells), ""]


if __name__ == "__main__":
    PAGE.write_text(page(document()), encoding="utf-8")
