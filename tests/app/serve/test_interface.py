"""Schemathesis over the whole OpenAPI document, a few cases each; ``benchmarks/serve_fuzz.py`` has 20,000."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from serving_cases import served

from veritracer.app.serve.settings import Settings


@pytest.fixture(scope="module")
def interface(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The document of a service whose searches end at once."""
    ledger = str(tmp_path_factory.mktemp("fuzzed") / "l.db")
    with served(replace(settings, ledger=ledger, time_budget=0.001)) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_headers_conformance,
    schemathesis.checks.response_schema_conformance,
]


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_endpoint_answers_as_it_is_documented(interface: Any, mode: Any) -> None:
    """What is meant as a request of an endpoint, and what is not."""
    tried = 0
    for found in interface.get_all_operations():
        operation = found.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        def check(case: Any) -> None:
            nonlocal tried
            tried += 1
            case.call_and_validate(checks=CHECKS)

        try:
            check()
        except Unsatisfiable:
            continue  # nothing can be wrong with a request that has no parts
    assert tried > 20  # what can be wrong with a request is schemathesis' to choose
