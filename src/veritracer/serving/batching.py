"""Single requests become batches: collected for some milliseconds, and for as long as every worker is busy.

Requests that ask for the same with the same options are answered together, those that waited longest first;
idle workers share what waits. That is bounded in rows; beyond it a request is refused at once, and told
when to come back. A request that was given up is not computed.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from veritracer.errors import VeriTracerError
from veritracer.serving.problems import raised, refused
from veritracer.serving.workers import Operation, Pool, Reply

Key = tuple[Operation, str]

LONGEST = 10
"""Windows that a request waits at most for a batch to be complete, while a worker is idle."""


@dataclass
class Waiting:
    """A request that waits: what it asks, how many rows it has, since when, and who is to be told."""

    payload: dict[str, Any]
    rows: int
    since: float
    reply: asyncio.Future[bytes]


@dataclass
class Observed:
    """What a batcher tells whoever watches it: how large batches were, and how long they took."""

    batch: Callable[[str, int, float], None] = lambda operation, rows, seconds: None
    queue: Callable[[int], None] = lambda rows: None


@dataclass
class Batcher:
    """Collects requests, and hands them to the workers of a pool as batches.

    A batch is complete when nobody has joined it for ``window`` seconds: those who were answered together ask
    again together. ``most`` are the rows of a batch, of which a single request may have more; ``bound`` the
    rows that may wait.
    """

    pool: Pool
    window: float
    most: int
    bound: int
    timeout: float
    observed: Observed = field(default_factory=Observed)
    groups: OrderedDict[Key, deque[Waiting]] = field(default_factory=OrderedDict)
    queued: int = 0
    closed: bool = False
    pace: float = 0.01  # seconds a row, as measured
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    running: set[asyncio.Task[None]] = field(default_factory=set)
    task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to hand over batches."""
        self.task = asyncio.get_running_loop().create_task(self._dispatch())

    async def ask(
        self, operation: Operation, payload: dict[str, Any], options: dict[str, Any], rows: int
    ) -> bytes:
        """The answer to one request; refused where too many wait, or where it takes too long."""
        self._check(rows)
        key = operation, json.dumps(options, sort_keys=True)
        loop = asyncio.get_running_loop()
        one = Waiting(payload, rows, time.monotonic(), loop.create_future())
        self.groups.setdefault(key, deque()).append(one)
        self._count(rows)
        self.arrived.set()
        try:
            async with asyncio.timeout(self.timeout):
                return await one.reply
        except TimeoutError:
            remedy = (
                "ask for less at once, or later; a promise may have been issued: retry under the same key"
            )
            received = f"none after {self.timeout:g} seconds"
            raise refused(504, "timeout", "an answer in time", received, remedy, retry_after=5) from None

    async def close(self, patience: float) -> None:
        """Refuse what comes from now on, finish what waits as far as ``patience`` goes, refuse the rest."""
        self.closed = True
        deadline = time.monotonic() + patience
        while (self.queued or self.running) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if self.task is not None:
            self.task.cancel()
        for group in self.groups.values():
            for one in group:
                if not one.reply.done():
                    one.reply.set_exception(_closing())
        self.groups.clear()

    def _check(self, rows: int) -> None:
        if self.closed:
            raise _closing()
        if self.queued and self.queued + rows > self.bound:
            wait = max(1, math.ceil(self.queued * self.pace))
            received = f"{self.queued:,} waiting already"
            remedy = f"try again in {wait} seconds"
            raise refused(
                429, "queue-full", f"up to {self.bound:,} rows to wait", received, remedy, retry_after=wait
            )

    def _count(self, rows: int) -> None:
        self.queued += rows
        self.observed.queue(self.queued)

    async def _dispatch(self) -> None:
        while True:
            await self.arrived.wait()
            worker = await self.pool.idle.get()
            key = await self._ripe()
            batch = self._take(key) if key is not None else []
            if key is None or not batch:
                self.pool.idle.put_nowait(worker)
                continue
            task = asyncio.get_running_loop().create_task(self._run(worker, key, batch))
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def _ripe(self) -> Key | None:
        """The kind of request that waited longest, once it has waited long enough; None if all gave up."""
        if not self.groups:
            self.arrived.clear()
            return None
        key, group = min(self.groups.items(), key=lambda pair: pair[1][0].since)
        while not self.closed and sum(one.rows for one in group) < self.most:
            complete = min(group[-1].since + self.window, group[0].since + LONGEST * self.window)
            if (left := complete - time.monotonic()) <= 0:
                break
            await asyncio.sleep(min(left, 0.002))
        return key

    def _take(self, key: Key) -> list[Waiting]:
        """Requests of one kind for one batch, one idle worker's share, without those that were given up."""
        group, rows = self.groups[key], 0
        batch: list[Waiting] = []
        workers = 1 + self.pool.idle.qsize()
        most = min(self.most, math.ceil(sum(one.rows for one in group) / workers))
        while group and (not batch or rows + group[0].rows <= most):
            one = group.popleft()
            self._count(-one.rows)
            if not one.reply.done():
                batch.append(one)
                rows += one.rows
        if not group:
            del self.groups[key]
        if not self.groups:
            self.arrived.clear()
        return batch

    async def _run(self, worker: Any, key: Key, batch: list[Waiting]) -> None:
        operation, options = key[0], json.loads(key[1])
        rows, start = sum(one.rows for one in batch), time.monotonic()
        try:
            replies = await self.pool.run(worker, operation, [one.payload for one in batch], options)
        except Exception as error:
            told: Exception = error if isinstance(error, VeriTracerError) else _failed()
            for one in batch:
                if not one.reply.done():
                    one.reply.set_exception(told)
            return
        took = time.monotonic() - start
        self.pace += 0.2 * (took / rows - self.pace)
        self.observed.batch(operation, rows, took)
        for one, reply in zip(batch, replies, strict=True):
            _tell(one, reply)


def _tell(one: Waiting, reply: Reply) -> None:
    if one.reply.done():
        return
    if reply.problem is None:
        one.reply.set_result(reply.body)
    else:
        one.reply.set_exception(raised(reply.problem))


def _closing() -> VeriTracerError:
    return refused(
        503, "closing", "a service that goes on", "one that is ending", "ask another", retry_after=5
    )


def _failed() -> VeriTracerError:
    remedy = "tell its operator the request's id"
    return refused(500, "error", "an answer", "an error of the service", remedy)
