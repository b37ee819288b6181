"""Where the ledgers of the tests are: a SQLite file, and a database of a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import Server, binaries


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A server for the session, started when the first test asks for it."""
    folder = binaries()
    if folder is None:
        pytest.skip("no PostgreSQL server can be started here: needs initdb, and for root a user postgres")
    server = Server(folder)
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def shared_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same, for all tests of a module."""
    if request.param == "sqlite":
        return str(tmp_path_factory.mktemp("ledger") / "promises.db")
    server: Server = request.getfixturevalue("postgres")
    return server.new()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A path or URL where there is no ledger yet."""
    if request.param == "sqlite":
        return str(tmp_path / "promises.db")
    server: Server = request.getfixturevalue("postgres")
    return server.new()
