"""How requests become batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("fastapi")

from veritracer.serving.workers import Batcher, Operation, Pool, Reply


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

    async def load(self, folder: str, digests: Sequence[str]) -> None:
        pass

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
