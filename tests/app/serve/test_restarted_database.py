"""A ledger in PostgreSQL that goes away and comes back: 503, and then answers again, without a restart."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_cases import people, served

from veritracer.app.serve.settings import Settings

sys.path.append(str(Path(__file__).parents[2] / "ledger"))
from postgres_server import Server, binaries


@pytest.fixture
def database() -> Iterator[Server]:
    folder = binaries()
    if folder is None:
        pytest.skip("no PostgreSQL server can be started here: needs initdb, and for root a user postgres")
    server = Server(folder)
    yield server
    server.stop()


def test_the_service_outlives_its_database(settings: Settings, database: Server) -> None:
    with (
        served(replace(settings, ledger=database.new())) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        body: dict[str, Any] = {"rows": [dict(people()[0])], "ids": ["somebody"]}
        issue = {"url": "/v1/promises", "json": body, "headers": {"Idempotency-Key": "k"}}
        first = client.post(**issue)
        assert first.status_code == 201
        assert database.process is not None
        database.process.send_signal(signal.SIGQUIT)
        database.process.wait()
        number = first.json()["promises"][0]["number"]
        for answer in (client.get("/readyz"), client.get(f"/v1/promises/{number}"), client.post(**issue)):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/healthz").status_code == 200
        assert client.post("/v1/decisions", json={"rows": body["rows"]}).status_code == 200
        database.start()
        assert client.get("/readyz").status_code == 200
        again = client.post(**issue)
        assert (again.status_code, again.json()["promises"][0]["number"]) == (200, number)
        assert client.post("/v1/ledger/verify", json={}).json()["ok"]
