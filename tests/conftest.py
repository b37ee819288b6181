"""Options and profiles of the test suite."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = ["*conftest.py"]  # they are loaded, and not looked through for doctests
torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))  # the suite runs one process for each core

QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("quick", max_examples=60, **QUIET)
settings.register_profile("ci", max_examples=30, derandomize=True, **QUIET)
settings.load_profile("ci" if os.environ.get("CI") else "quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long", action="store_true", help="200,000 examples of soundness, and ten times as many statements"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless it is asked for."""
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="takes minutes: make long"))
