"""The service behind both doors, asked in this process: reloads, audits, and a service without a ledger."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving_cases import people

import veritracer as vt
from veritracer.app.serve import service as module
from veritracer.app.serve.host import ModelHost
from veritracer.app.serve.keys import EVERYBODY
from veritracer.app.serve.messages import Options
from veritracer.app.serve.observing import Log
from veritracer.app.serve.service import Service
from veritracer.app.serve.settings import Settings
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


def test_nothing_is_promised_while_the_model_is_exchanged(own: Settings) -> None:
    async def used() -> None:
        async with started(own) as service:
            async with service.reloading:
                with pytest.raises(ServiceError, match="got one that is being exchanged") as refused:
                    await service.issue(EVERYBODY, "k", promised())
                assert refused.value.status == 503
                with pytest.raises(ServiceError, match="expected one reload at a time") as refused:
                    await service.reload("same", "admin")
                assert refused.value.status == 409
            service.issuing = 1  # somebody is being promised something
            reload = asyncio.create_task(service.reload("same", "admin"))
            while not service.reloading.locked():
                await asyncio.sleep(0)
            service.issuing = 0
            assert (await reload)["model_digest"] == service.host.description["model_digest"]

    asyncio.run(used())


def test_a_service_without_a_ledger_promises_nothing(own: Settings) -> None:
    async def used() -> None:
        async with started(replace(own, ledger=None)) as service:
            for ask in (service.standing(), service.issue(EVERYBODY, "k", promised())):
                with pytest.raises(ServiceError, match="expected a service with a ledger, got one without"):
                    await ask
            with pytest.raises(LedgerError, match="start the service with --ledger"):
                _ = service.host.ledger
            before = service.host.description["model_digest"]
            assert (await service.reload("harsh", "admin"))[
                "model_digest"
            ] != before  # nobody was promised anything
            assert json.loads(await service.decide(promised()["rows"]))["decisions"][0]["decision"] == "no"

    asyncio.run(used())


def test_a_service_without_candidates_knows_none(own: Settings) -> None:
    async def used() -> None:
        async with started(replace(own, candidates=None)) as service:
            with pytest.raises(ServiceError, match="expected a folder of candidates, got a service without"):
                service.audit_named("same")

    asyncio.run(used())


def test_an_own_time_budget_may_only_be_shorter(own: Settings) -> None:
    async def used() -> list[float]:
        async with started(replace(own, time_budget=2.0)) as service:
            asked = [Options(), Options(time_budget=1.0), Options(time_budget=60.0)]
            return [service.options(one)["time_budget"] for one in asked]

    assert asyncio.run(used()) == [2.0, 1.0, 2.0]


def finished(job: module.Job) -> module.Job:
    deadline = time.monotonic() + 30
    while job.state in ("waiting", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return job


def test_only_so_many_audits_wait_and_are_remembered(own: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 2)

    async def used() -> None:
        async with started(own) as service:
            free = threading.Event()
            service.audits.executor.submit(free.wait, 30)  # whoever audits is busy
            monkeypatch.setattr(module, "MOST_WAITING", 2)
            jobs = [service.audit_named("same") for _ in range(2)]
            with pytest.raises(ServiceError, match="expected up to 2 audits at once") as refused:
                service.audit_named("same")
            assert refused.value.status == 429
            free.set()
            assert [finished(job).state for job in jobs] == ["done", "done"]
            last = service.audit_named("same")
            assert list(service.audits.jobs) == [jobs[1].id, last.id]
            with pytest.raises(ServiceError, match="got no such id"):
                service.audits.job(jobs[0].id)
            finished(last)

    asyncio.run(used())


def test_an_audit_that_breaks_is_logged_and_tells_nothing(
    own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise RuntimeError("somebody-4711")

    log = io.StringIO()

    async def used() -> dict[str, Any]:
        async with started(own, log) as service:
            monkeypatch.setattr(vt, "audit", broken)
            return finished(service.audit_named("same")).plain()

    told = asyncio.run(used())
    assert (told["state"], told["problem"]["status"]) == ("failed", 500)
    assert '"error": "RuntimeError"' in log.getvalue()
    assert "somebody-4711" not in log.getvalue() + json.dumps(told)


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
