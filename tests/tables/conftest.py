"""A saved model and its people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from postgres_server import Server

sys.path.insert(0, str(Path(__file__).parents[1] / "ledger"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``model`` and ``people.parquet``."""
    from run_cases import save_all

    return save_all(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for the session, started when the first test asks for it."""
    from postgres_server import Server, binaries

    place = binaries()
    if place is None:
        pytest.skip("no PostgreSQL server can be started here: needs initdb, and for root a user postgres")
    server = Server(place)
    yield server
    server.stop()
