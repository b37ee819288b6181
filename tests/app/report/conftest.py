"""The fitted models that the tests of the report share."""

from __future__ import annotations

from pathlib import Path

import pytest
import report_cases
from report_cases import Case

from veritracer.app.report import write_report


@pytest.fixture(scope="session")
def lending() -> Case:
    return report_cases.lending()


@pytest.fixture(scope="session")
def hostile() -> Case:
    return report_cases.hostile()


@pytest.fixture(scope="session")
def lending_report(lending: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of that model, which takes a while."""
    model, X, y, recourse = lending
    target = tmp_path_factory.mktemp("lending") / "report.html"
    return write_report(target, model, X, y, recourse=recourse)
