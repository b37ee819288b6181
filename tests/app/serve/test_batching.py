"""How requests become batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("fastapi")

from veritracer.app.serve.workers import Batcher, Operation, Pool, Reply
from veritracer.errors import ServiceError


class Slow:
    """A worker that notes how many requests each of its batches has."""

    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    async def start(self) -> None:
        pass

    async def run(
        self, operation: Operation, requests: Sequence[Any], options: dict[str, Any]
    ) -> list[Reply]:
        self.seen.append(len(requests))
        await asyncio.sleep(0.05)
        return [Reply(str(one["number"]).encode()) for one in requests]

    async def stop(self) -> None:
        pass


async def _asked(workers: int, most: int, arrivals: Sequence[float]) -> tuple[list[int], list[bytes]]:
    """The sizes of the batches and the answers of requests that come after so many seconds each."""
    seen: list[int] = []
    pool = Pool([Slow(seen) for _ in range(workers)])
    await pool.start()
    batcher = Batcher(pool, window=0.1, most=most, bound=1000, timeout=10)
    batcher.start()

    async def one(number: int, after: float) -> bytes:
        await asyncio.sleep(after)
        return await batcher.ask("explain", {"number": number}, {}, 1)

    answers = await asyncio.gather(*(one(k, after) for k, after in enumerate(arrivals)))
    await batcher.close(1)
    return seen, answers


def _sizes(workers: int, most: int, arrivals: Sequence[float]) -> list[int]:
    seen, answers = asyncio.run(_asked(workers, most, arrivals))
    assert answers == [str(k).encode() for k in range(len(arrivals))]
    return seen


def test_idle_workers_share_what_waits() -> None:
    assert _sizes(2, 100, [0.0] * 10) == [5, 5]
    assert _sizes(3, 100, [0.0] * 10) == [4, 3, 3]


def test_no_batch_is_larger_than_it_may_be() -> None:
    assert max(_sizes(1, 4, [0.0] * 10)) == 4


def test_a_batch_waits_while_others_join_it() -> None:
    """Each comes before the window after the one before it is over, the last long after that of the first."""
    assert _sizes(1, 100, [0.03 * k for k in range(8)]) == [8]


class Broken(Slow):
    """A worker that raises what it is given."""

    def __init__(self, error: Exception) -> None:
        super().__init__([])
        self.error = error

    async def run(
        self, operation: Operation, requests: Sequence[Any], options: dict[str, Any]
    ) -> list[Reply]:
        raise self.error


def batching(workers: Sequence[Any], **limits: Any) -> Batcher:
    """A batcher whose batches are complete at once; without workers nothing is ever answered."""
    pool = Pool(workers)
    for one in workers:
        pool.idle.put_nowait(one)
    made = Batcher(pool, **{"window": 0.0, "most": 100, "bound": 1000, "timeout": 10, **limits})
    made.start()
    return made


def ask(batcher: Batcher, rows: int = 1) -> asyncio.Task[bytes]:
    return asyncio.create_task(batcher.ask("explain", {"number": 7}, {}, rows))


def test_who_waits_too_long_is_told_so_and_not_computed() -> None:
    seen: list[int] = []

    async def asked() -> bytes:
        batcher = batching([], timeout=0.01)
        with pytest.raises(ServiceError, match=r"got none after 0\.01 seconds") as late:
            await ask(batcher)
        assert late.value.status == 504
        batcher.pool.idle.put_nowait(Slow(seen))
        batcher.timeout = 10
        answer = await ask(batcher)
        await batcher.close(1)
        return answer

    assert asyncio.run(asked()) == b"7"
    assert seen == [1]


def test_a_worker_is_not_disturbed_for_those_who_left() -> None:
    seen: list[int] = []

    async def asked() -> int:
        batcher = batching([])
        left = ask(batcher)
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        batcher.pool.idle.put_nowait(Slow(seen))
        while batcher.queued:
            await asyncio.sleep(0)
        await batcher.close(1)
        return batcher.pool.idle.qsize()

    assert asyncio.run(asked()) == 1
    assert seen == []


def test_an_answer_for_somebody_who_left_is_dropped() -> None:
    seen: list[int] = []

    async def asked() -> bytes:
        batcher = batching([Slow(seen)])
        left, stays = ask(batcher), ask(batcher)
        while not seen:
            await asyncio.sleep(0)
        left.cancel()
        answer = await stays
        await batcher.close(1)
        assert left.cancelled()
        return answer

    assert asyncio.run(asked()) == b"7"
    assert seen == [2]


def test_a_full_queue_says_when_to_come_back() -> None:
    async def asked() -> ServiceError:
        batcher = batching([], bound=300)
        first = ask(batcher, 200)  # at 10 ms a row
        await asyncio.sleep(0)
        with pytest.raises(ServiceError, match="expected up to 300 rows to wait, got 200 waiting") as full:
            await ask(batcher, 101)
        await batcher.close(0)
        with pytest.raises(ServiceError, match="got one that is ending"):
            await first
        with pytest.raises(ServiceError, match="got one that is ending"):
            await ask(batcher)
        return full.value

    error = asyncio.run(asked())
    assert (error.status, error.problem.retry_after) == (429, 2)  # type: ignore[union-attr]


def test_closing_finishes_what_waits() -> None:
    async def asked() -> bytes:
        batcher = batching([Slow([])])
        waits = ask(batcher)
        await asyncio.sleep(0)
        await batcher.close(10)
        return await waits

    assert asyncio.run(asked()) == b"7"


@pytest.mark.parametrize(
    ("error", "status"), [(ServiceError("it ended", 503), 503), (RuntimeError("a bug"), 500)]
)
def test_a_batch_that_fails_fails_for_each(error: Exception, status: int) -> None:
    async def asked() -> list[Any]:
        batcher = batching([Broken(error)])
        found = await asyncio.gather(ask(batcher), ask(batcher), return_exceptions=True)
        assert batcher.pool.idle.qsize() == 1
        await batcher.close(1)
        return found

    assert [one.status for one in asyncio.run(asked())] == [status] * 2
