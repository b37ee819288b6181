"""Requests become batches, and every reply reaches its own request, whatever happened before."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from serving_cases import model

from recourse_tables import applicants
from veritracer.app.serve.batching import GRACE, Batcher
from veritracer.app.serve.operations import Job, Operations
from veritracer.app.serve.settings import Settings
from veritracer.errors import ServiceError

SOON = 0.05


@dataclass(frozen=True)
class Echo:
    """A job that is answered with its payload."""

    payload: Any
    cost: int = 1
    operation: str = "explain"

    @property
    def kind(self) -> str:
        return self.operation


class Model:
    """Compute that answers every request with itself, and notes the sizes of its batches."""

    def __init__(self, seconds: float = SOON) -> None:
        self.seconds, self.sizes = seconds, list[int]()
        self.open = threading.Event()
        self.open.set()

    def __call__(self, jobs: Sequence[Echo], until: float) -> list[Any]:
        self.sizes.append(len(jobs))
        assert self.open.wait(30)
        time.sleep(self.seconds)
        if jobs[0].operation == "broken":
            raise RuntimeError("a bug")
        return [ServiceError("no") if one.payload == "refused" else one.payload for one in jobs]


def limits(**chosen: Any) -> Settings:
    """Settings of a service that does not wait for company."""
    return Settings(model=Path("model"), **{"window": 0.0, "batch_rows": 100, "queue_rows": 1000, **chosen})


def run(use: Callable[[Batcher, Model], Awaitable[Any]], **chosen: Any) -> Any:
    """Use a batcher, and close it."""

    async def life() -> Any:
        compute = Model()
        batcher = Batcher(compute, limits(**chosen))
        batcher.start()
        try:
            return await use(batcher, compute)
        finally:
            compute.open.set()
            await batcher.close(5)

    return asyncio.run(life())


async def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def ask(batcher: Batcher, payload: Any = 7, rows: int = 1, kind: str = "explain") -> asyncio.Task[Any]:
    job: Any = Echo(payload, rows, kind)
    return asyncio.create_task(batcher.ask(job))


# ---------------------------------------------------------------- batches


def test_requests_that_arrive_together_are_computed_together() -> None:
    async def use(batcher: Batcher, compute: Model) -> list[int]:
        replies = await asyncio.gather(*(ask(batcher, k) for k in range(10)))
        assert replies == list(range(10))
        return compute.sizes

    assert run(use) == [10]
    assert run(use, batch_rows=4) == [4, 4, 2]


def test_a_batch_waits_while_others_join_it() -> None:
    """Each comes before the window after the one before it is over, the last long after that of the first."""

    async def use(batcher: Batcher, compute: Model) -> list[int]:
        async def one(k: int) -> int:
            await asyncio.sleep(0.03 * k)
            return int(await ask(batcher, k))

        assert await asyncio.gather(*(one(k) for k in range(8))) == list(range(8))
        return compute.sizes

    assert run(use, window=100.0) == [8]


def test_kinds_are_computed_apart_and_the_longest_waiting_comes_first() -> None:
    async def use(batcher: Batcher, compute: Model) -> list[int]:
        asked = [ask(batcher, k, kind="decide" if k % 2 else "explain") for k in range(5)]
        assert await asyncio.gather(*asked) == list(range(5))
        return compute.sizes

    assert run(use) == [3, 2]


def test_a_full_queue_says_when_to_come_back() -> None:
    async def use(batcher: Batcher, compute: Model) -> ServiceError:
        compute.open.clear()
        working = ask(batcher)
        await until(lambda: compute.sizes == [1])
        waiting = ask(batcher, rows=200)  # at 10 ms a row
        await asyncio.sleep(0)
        with pytest.raises(ServiceError, match="expected up to 300 rows to wait, got 200 waiting") as full:
            await ask(batcher, rows=101)
        compute.open.set()
        assert await asyncio.gather(working, waiting) == [7, 7]
        return full.value

    error = run(use, queue_rows=300)
    assert (error.status, error.problem["retry_after"]) == (429, 2)


@pytest.mark.parametrize(("kind", "payload", "status"), [("broken", 7, 500), ("explain", "refused", None)])
def test_an_error_reaches_those_whom_it_concerns(kind: str, payload: Any, status: int | None) -> None:
    async def use(batcher: Batcher, compute: Model) -> list[Any]:
        asked = ask(batcher, payload, kind=kind), ask(batcher, 8, kind=kind)
        return list(await asyncio.gather(*asked, return_exceptions=True))

    first, second = run(use)
    assert first.status == status
    assert second == 8 if kind == "explain" else second.status == 500


def test_closing_completes_what_waits_and_refuses_the_rest() -> None:
    async def use(batcher: Batcher, compute: Model) -> None:
        waits = ask(batcher)
        await asyncio.sleep(0)
        await batcher.close(10)
        assert await waits == 7
        with pytest.raises(ServiceError, match="got one that is ending"):
            await ask(batcher)

    run(use)

    async def hasty(batcher: Batcher, compute: Model) -> None:
        compute.open.clear()
        working = ask(batcher)
        await until(lambda: compute.sizes == [1])
        waits = ask(batcher)
        await asyncio.sleep(0)
        await batcher.close(0)
        with pytest.raises(ServiceError, match="got one that is ending"):
            await waits
        working.cancel()

    run(hasty)


# ---------------------------------------------------------------- deadlines


def test_who_waits_too_long_is_told_so_and_not_computed() -> None:
    async def use(batcher: Batcher, compute: Model) -> list[int]:
        compute.open.clear()
        first, second = ask(batcher, 1), None
        await until(lambda: compute.sizes == [1])
        second = ask(batcher, 2)
        for late in (first, second):
            with pytest.raises(ServiceError, match=r"got none after 0\.1 seconds") as error:
                await late
            assert error.value.status == 504
        assert batcher.is_stuck
        compute.open.set()
        await until(lambda: not batcher.is_computing and batcher.queued == 0)
        assert not batcher.is_stuck
        assert await ask(batcher, 3) == 3
        return compute.sizes

    assert run(use, timeout=0.1) == [1, 1]


def test_nobody_is_computed_who_left() -> None:
    async def use(batcher: Batcher, compute: Model) -> list[int]:
        compute.open.clear()
        first = ask(batcher, 1)
        await until(lambda: compute.sizes == [1])
        left, stays = ask(batcher, 2), ask(batcher, 3)
        await asyncio.sleep(0)
        left.cancel()
        compute.open.set()
        assert await asyncio.gather(first, stays) == [1, 3]
        return compute.sizes

    assert run(use) == [1, 1]


def test_only_a_batch_past_its_deadline_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer is set for each batch, and cleared unless the batch may still be computed."""
    told: list[Any] = []

    def later(seconds: float, **how: bool) -> None:
        told.append((round(seconds, 2), how["exit"]))

    monkeypatch.setattr(faulthandler, "dump_traceback_later", later)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: told.append("cancelled"))

    async def life() -> None:
        compute = Model()
        batcher = Batcher(compute, limits(timeout=5.0), end_if_hung=True)
        batcher.start()
        assert await ask(batcher) == 7
        assert told == [(5.0 + GRACE, True), "cancelled"]
        compute.open.clear()
        hangs = ask(batcher)
        await until(lambda: len(compute.sizes) == 2)
        await batcher.close(0)
        hangs.cancel()
        compute.open.set()

    asyncio.run(life())
    assert told[2:] == [(5.0 + GRACE, True)]


# ---------------------------------------------------------------- defect 2: answers to the wrong applicant

ASKED = 200


@cache
def rows() -> list[dict[str, Any]]:
    """Applications whose probabilities all differ, so that no answer can stand in for another."""
    frame, _ = applicants(2 * ASKED, seed=11)
    plain = frame.astype(object).where(frame.notna(), None).to_dict("records")
    by_probability = dict(zip(model().predict_proba(frame)[:, 1].tolist(), plain, strict=True))
    return list(by_probability.values())[:ASKED]


@pytest.fixture(scope="module")
def operations(settings: Settings) -> Operations:
    return Operations(settings)


class Faulty:
    """The model, with a fault in the next batch."""

    def __init__(self, operations: Operations) -> None:
        self.operations, self.fault, self.began = operations, "", threading.Event()

    def __call__(self, jobs: Sequence[Job], until: float) -> list[Any]:
        fault, self.fault = self.fault, ""
        self.began.set()
        if fault == "exception":
            raise RuntimeError("injected")
        if fault == "too few replies":
            return self.operations.run(jobs, until)[1:]
        if fault in ("time-out", "slow start", "cancellation"):
            time.sleep(0.6)
        return self.operations.run(jobs, until)


async def decided(batcher: Batcher) -> list[Any]:
    """Return the replies to one request for each application, some of them at once."""
    jobs = [Job("decide", [row]) for row in rows()]
    found = []
    for start in range(0, ASKED, 20):
        asked = [batcher.ask(job) for job in jobs[start : start + 20]]
        found += await asyncio.gather(*asked)
    return found


async def suffer(batcher: Batcher, compute: Faulty, fault: str) -> None:
    """Ask for some rows while the fault happens."""
    compute.fault = fault
    compute.began.clear()
    usual = batcher.settings
    batcher.settings = replace(usual, timeout=0.2 if fault in ("time-out", "slow start") else 30.0)
    jobs = [Job("decide", [row]) for row in rows()[:5]]
    tasks = [asyncio.create_task(batcher.ask(job)) for job in jobs]
    if fault == "cancellation":
        await until(compute.began.is_set)
        for task in tasks[:3]:
            task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    batcher.settings = usual
    wanted = {"time-out": 504, "slow start": 504, "exception": 500, "too few replies": 500}
    if fault == "cancellation":
        assert all(isinstance(one, asyncio.CancelledError) for one in ended[:3])
        expected = [compute.operations.run([job], 0.0)[0] for job in jobs[3:]]
        assert ended[3:] == expected
    else:
        assert [getattr(one, "status", None) for one in ended] == [wanted[fault]] * 5


@pytest.mark.parametrize("fault", ["time-out", "cancellation", "exception", "slow start", "too few replies"])
def test_answers_after_a_fault_are_those_of_a_fresh_process(operations: Operations, fault: str) -> None:
    """A request that ends otherwise than with its own answer changes no other reply."""

    async def life(first: str) -> list[Any]:
        compute = Faulty(operations)
        batcher = Batcher(compute, limits(window=1.0, batch_rows=16))
        batcher.start()
        try:
            if first == "slow start":  # the first batch of the process itself takes too long
                await suffer(batcher, compute, first)
            elif first:
                await asyncio.gather(*(ask_for(batcher, row) for row in rows()[:3]))
                await suffer(batcher, compute, first)
            return await decided(batcher)
        finally:
            await batcher.close(5)

    async def ask_for(batcher: Batcher, row: dict[str, Any]) -> Any:
        return await batcher.ask(Job("decide", [row]))

    fresh = asyncio.run(life(""))
    assert len({json.dumps(one) for one in fresh}) == ASKED
    after = asyncio.run(life(fault))
    for one, other in zip(after, fresh, strict=True):
        (a,), (b,) = one["decisions"], other["decisions"]
        assert (a["decision"], a["favourable"]) == (b["decision"], b["favourable"])
        assert a["probability"] == pytest.approx(b["probability"], abs=1e-12)
