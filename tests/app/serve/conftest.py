"""A service for the session, without keys; others are made where a test needs them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi")

from serving_cases import CODES, save_all, served

from veritracer.app.serve.settings import Settings


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, candidates and reason codes."""
    folder = save_all(tmp_path_factory.mktemp("serving"))
    (folder / "codes.json").write_text(json.dumps(CODES))
    return folder


@pytest.fixture(scope="session")
def settings(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings with a ledger."""
    return Settings(
        model=saved / "model",
        ledger=str(tmp_path_factory.mktemp("ledger") / "promises.db"),
        codes=saved / "codes.json",
        fields={"institution": "Bank of Examples"},
        timeout=120.0,  # a busy machine is no fault of the service
    )


@pytest.fixture(scope="session")
def url(settings: Settings) -> Iterator[str]:
    """The address of that service."""
    with served(settings) as address:
        yield address


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[httpx.Client]:
    """A client of that service."""
    with httpx.Client(base_url=url, timeout=30) as made:
        yield made
