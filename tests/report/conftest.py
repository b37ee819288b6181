"""The fitted models that the tests of the report share."""

from __future__ import annotations

import pytest
import report_cases
from report_cases import Case


@pytest.fixture(scope="session")
def lending() -> Case:
    return report_cases.lending()


@pytest.fixture(scope="session")
def hostile() -> Case:
    return report_cases.hostile()
