"""The reference covers what is exported, and the architecture page what the source tree has."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import veritracer
from veritracer import counterfactuals

DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_is_in_the_reference() -> None:
    text = (DOCS / "reference/api.md").read_text(encoding="utf-8")
    entries = set(re.findall(r"^::: veritracer\.(\S+)$", text, flags=re.M))
    assert set(veritracer.__all__) - {"__version__"} <= entries


def test_the_tables_of_modules_are_up_to_date() -> None:
    page = runpy.run_path(str(DOCS / "write_architecture.py"))["page"]()
    assert (DOCS / "explanation/architecture.md").read_text(encoding="utf-8") == page, "run make docs"


def test_the_reference_lists_the_fields_of_schemas_and_results() -> None:
    pages = {veritracer.Schema: "schema", veritracer.Feature: "schema", veritracer.Counterfactuals: "results"}
    for described, name in pages.items():
        text = (DOCS / f"reference/{name}.md").read_text(encoding="utf-8")
        rows = " ".join(re.findall(r"^\| ([^|]+) \|", text, flags=re.M))
        for field in described.__annotations__:
            assert f"`{field}`" in rows or field == "model_config", (name, field)


def test_the_reference_lists_the_columns_that_explain_writes() -> None:
    text = (DOCS / "reference/results.md").read_text(encoding="utf-8")
    for column in ("status", "reason", *counterfactuals.NUMBERS):
        assert f"`recourse.{column}`" in text, column


def test_the_page_of_an_openapi_document() -> None:
    reference = {"$ref": "#/components/schemas/In"}
    described = {
        "paths": {
            "/rows/{n}": {
                "post": {
                    "description": "Do it.",
                    "parameters": [{"name": "n", "in": "path", "schema": {"type": "integer", "minimum": 1}}],
                    "requestBody": {"content": {"text/json": {"schema": reference}}},
                    "responses": {"201": {"description": "Done."}, "404": {"description": "No such row."}},
                }
            }
        },
        "components": {"schemas": {"In": {"properties": {"kappa": {"type": "number", "default": 0.2}}}}},
    }
    page = runpy.run_path(str(DOCS / "write_http.py"))["page"](described)
    assert "### POST /rows/{n}\n\nDo it.\n" in page
    assert "| `n` | path | integer ≥ 1 |  |" in page
    assert "Body: `text/json` [In](#in)." in page
    assert "Answer 201 (Done): no body." in page
    assert "Errors: 404." in page
    assert (
        "### In\n\n| field | type | default | meaning |\n|---|---|---|---|\n| `kappa` | number | `0.2` |  |"
        in page
    )
