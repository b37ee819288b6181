"""The service behind both doors, asked in this process: reloads, audits, and a service without a ledger."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving_cases import people
from veritracer.app.serve.host import ModelHost
from veritracer.app.serve.messages import Options
from veritracer.app.serve.observing import Log
from veritracer.app.serve.service import Service

from veritracer.app.serve.app import Settings
from veritracer.app.serve.auth import EVERYBODY
from veritracer.errors import LedgerError, ServiceError


@pytest.fixture
def own(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a service with a ledger of its own."""
    return replace(settings, ledger=str(tmp_path / "l.db"))


@asynccontextmanager
async def started(settings: Settings, log: io.StringIO | None = None) -> AsyncIterator[Service]:
    service = Service(settings, Log(log or io.StringIO()))
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


def promised() -> dict[str, Any]:
    none = dict.fromkeys(("choose", "expires", "letter"))
    return {"rows": [dict(people()[0])], "ids": ["a"], "options": {}, "allow_duplicate": False, **none}


def test_a_service_without_a_ledger_promises_nothing(own: Settings) -> None:
    async def used() -> None:
        async with started(replace(own, ledger=None)) as service:
            for ask in (service.standing(), service.issue(EVERYBODY, "k", promised())):
                with pytest.raises(ServiceError, match="expected a service with a ledger, got one without"):
                    await ask
            with pytest.raises(LedgerError, match="start the service with --ledger"):
                _ = service.host.ledger
            assert json.loads(await service.decide(promised()["rows"]))["decisions"][0]["decision"] == "no"

    asyncio.run(used())


def test_an_own_time_budget_may_only_be_shorter(own: Settings) -> None:
    async def used() -> list[float]:
        async with started(replace(own, time_budget=2.0)) as service:
            asked = [Options(), Options(time_budget=1.0), Options(time_budget=60.0)]
            return [service.options(one)["time_budget"] for one in asked]

    assert asyncio.run(used()) == [2.0, 1.0, 2.0]


# ---------------------------------------------------------------- the host


def test_what_a_whole_batch_has_wrong_is_told_to_each(settings: Settings) -> None:
    host = ModelHost(settings)
    requests = [{"rows": [dict(row)]} for row in people()[:2]]
    answers = host.explain(requests, {"cost": {"nothing": 1.0}})
    assert [answer.problem and answer.problem.status for answer in answers] == [422, 422]
    assert "'nothing'" in answers[0].problem.received  # type: ignore[union-attr]


def test_a_letter_that_can_not_be_written_harms_nobody_else(settings: Settings) -> None:
    host = ModelHost(settings)
    first, second = ({"rows": [dict(row)]} for row in people()[:2])
    asked = {"format": "text", "fields": {"nonsense": "x"}}
    good, bad = host.explain([first, {**second, "letter": asked}], {})
    assert json.loads(good.body)["answers"][0]["alternatives"][0]["status"] == "certified"
    assert bad.problem is not None
    assert bad.problem.status == 422
