"""Every answer belongs to the request that it is given to, whatever happened to the process that computes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

pytest.importorskip("fastapi")

from serving_cases import model, save_all

from recourse_tables import applicants
from veritracer.app.serve import workers
from veritracer.app.serve.messages import Options
from veritracer.app.serve.observing import Log
from veritracer.app.serve.service import Service
from veritracer.app.serve.settings import Settings
from veritracer.app.serve.workers import LENGTH

ASKED = 200


@cache
def rows() -> list[dict[str, Any]]:
    """Applications whose probabilities all differ, so that no answer can stand in for another."""
    frame, _ = applicants(2 * ASKED, seed=11)
    plain = frame.astype(object).where(frame.notna(), None).to_dict("records")
    by_chance = dict(zip(model().predict_proba(frame)[:, 1].tolist(), plain, strict=True))
    return list(by_chance.values())[:ASKED]


async def answers(service: Service) -> list[Any]:
    """The answers to one request after the other."""
    return [json.loads(await service.decide([row])) for row in rows()]


def process_of(service: Service) -> Any:
    (worker,) = service.pool.workers
    return worker.process  # type: ignore[attr-defined]


async def killed(service: Service) -> None:
    """The process ends while somebody asks, who is refused."""
    os.kill(process_of(service).pid, signal.SIGKILL)
    await process_of(service).wait()
    (refusal,) = await asyncio.gather(service.decide(rows()[:1]), return_exceptions=True)
    assert isinstance(refusal, Exception)


async def time_out(service: Service, patch: pytest.MonkeyPatch) -> None:
    """A process that takes too long to start, and is ready later on."""
    with patch.context() as slow:
        slow.setattr(workers, "STARTING", 0.2)
        await killed(service)
        await asyncio.gather(service.decide(rows()[1:2]), return_exceptions=True)


async def cancellation(service: Service, patch: pytest.MonkeyPatch) -> None:
    """A batch that is given up while it is computed."""
    asked = asyncio.create_task(service.recourse(rows()[:50], Options()))
    while not service.batcher.running:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    for task in service.batcher.running:
        task.cancel()
    asked.cancel()
    await asyncio.gather(asked, *service.batcher.running, return_exceptions=True)


async def unexpected_frame(service: Service, patch: pytest.MonkeyPatch) -> None:
    """A process that writes a frame that nobody asked for, which looks like the answer to one request."""
    body = b'{"decisions": []}'
    head = json.dumps({"answers": [{"size": len(body), "problem": None}]}).encode()
    process_of(service).stdout.feed_data(LENGTH.pack(len(head)) + head + body)
    await asyncio.gather(service.decide(rows()[:1]), return_exceptions=True)


async def no_start(service: Service, patch: pytest.MonkeyPatch) -> None:
    """A process that cannot load its model, because the folder is away for a while."""
    folder = service.settings.model
    away = folder.rename(folder.with_name("away"))
    try:
        await killed(service)
        await asyncio.gather(service.decide(rows()[1:2]), return_exceptions=True)
    finally:
        away.rename(folder)


@pytest.fixture(scope="module")
def settings_alone(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A service whose only worker is a process, and whose model nobody else uses."""
    folder = save_all(tmp_path_factory.mktemp("alone"))
    return Settings(folder / "model", workers=1, window=0.0, timeout=120)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.fixture(scope="module")
def service(settings_alone: Settings, runner: asyncio.Runner) -> Iterator[Service]:
    made = Service(settings_alone, Log(io.StringIO()))
    runner.run(made.start())
    yield made
    runner.run(made.stop())


@pytest.fixture(scope="module")
def expected(service: Service, runner: asyncio.Runner) -> list[Any]:
    """The answers of a fresh process."""
    found = runner.run(answers(service))
    assert len({json.dumps(one) for one in found}) == ASKED
    return found


@pytest.mark.parametrize("fault", [time_out, cancellation, unexpected_frame, no_start])
def test_answers_after_a_fault_are_those_of_a_fresh_process(
    service: Service,
    runner: asyncio.Runner,
    expected: list[Any],
    fault: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner.run(fault(service, monkeypatch))
    assert runner.run(answers(service)) == expected
