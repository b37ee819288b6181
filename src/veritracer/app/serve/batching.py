"""Collect single requests into batches, and compute one batch at a time in a thread of this process.

Requests of the same kind with the same options form a batch once none has joined it for ``window`` seconds,
and at the latest while the batch before it is computed. A request is an object with its rows and the future
of its own reply, so a reply cannot reach anybody else: a request that timed out or was cancelled leaves a
future that nobody reads.

The number of rows that wait is bounded. A request past its deadline is answered with 504 and not computed.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from veritracer.app.serve.models import refused
from veritracer.errors import ServiceError, VeriTracerError

Compute = Callable[[Any, Sequence[Any], float], Sequence[Any]]
"""Answers to the requests of one kind by a deadline, in their order; an exception refuses its request."""

LONGEST = 10
"""Windows after which a batch no longer waits for more requests."""

GRACE = 10.0
"""Seconds past the deadline of a batch after which the process is taken to hang."""


@dataclass(eq=False)
class Waiting:
    """A request that waits for its batch."""

    payload: Any
    rows: int
    since: float
    deadline: float
    reply: asyncio.Future[Any]


class Batcher:
    """Collects requests and computes them in batches.

    Parameters
    ----------
    compute
        Answers the requests of a batch.
    window
        Seconds without another request after which a batch is complete.
    most
        Rows of a batch; a single request may have more.
    bound
        Rows that may wait.
    timeout
        Seconds after which a request is given up.
    observe
        Receives the kind, the rows and the seconds of each batch.
    queue
        Receives the number of rows that wait, whenever it changes.
    failed
        Receives the errors of our own that end a batch.
    """

    def __init__(
        self,
        compute: Compute,
        *,
        window: float,
        most: int,
        bound: int,
        timeout: float,
        observe: Callable[[Any, int, float], None] = lambda kind, rows, seconds: None,
        queue: Callable[[int], None] = lambda rows: None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self.compute, self.observe, self.queue, self.failed = compute, observe, queue, failed
        self.window, self.most, self.bound, self.timeout = window, most, bound, timeout
        self.queued = 0
        self.computing_until: float | None = None
        """Deadline of the batch that is computed now; None between batches."""
        self._groups: OrderedDict[Hashable, deque[Waiting]] = OrderedDict()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "compute")
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._seconds_a_row = 0.01
        self._stuck_since: float | None = None

    def start(self) -> None:
        """Begin to compute batches in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def ask(self, kind: Hashable, payload: Any, rows: int) -> Any:
        """Return the reply to one request; refuse it if too many wait, or if it takes too long."""
        self._admit(rows)
        now = time.monotonic()
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        one = Waiting(payload, rows, now, now + self.timeout, reply)
        self._groups.setdefault(kind, deque()).append(one)
        self._count(rows)
        self._stuck_since = self._stuck_since or now
        self._arrived.set()
        try:
            async with asyncio.timeout(self.timeout):
                return await reply
        except TimeoutError:
            remedy = "ask for fewer rows, or later; repeat a request for promises under the same key"
            received = f"none after {self.timeout:g} seconds"
            raise refused(504, "timeout", "an answer in time", received, remedy, retry_after=5) from None

    @property
    def is_stuck(self) -> bool:
        """Return whether requests wait and no batch has been completed within the time-out."""
        return self._stuck_since is not None and time.monotonic() - self._stuck_since > self.timeout

    async def close(self, patience: float) -> None:
        """Refuse new requests, complete those that wait for up to ``patience`` seconds, refuse the rest."""
        self._closed = True
        deadline = time.monotonic() + patience
        while (self._groups or self.computing_until is not None) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if self._task is not None:
            self._task.cancel()
        for group in self._groups.values():
            for one in group:
                _tell(one, _closing())
        self._groups.clear()
        self._thread.shutdown(wait=False)

    def _admit(self, rows: int) -> None:
        if self._closed:
            raise _closing()
        if self.queued and self.queued + rows > self.bound:
            wait = max(1, math.ceil(self.queued * self._seconds_a_row))
            received, remedy = f"{self.queued:,} waiting already", f"try again in {wait} seconds"
            expected = f"up to {self.bound:,} rows to wait"
            raise refused(429, "queue-full", expected, received, remedy, retry_after=wait)

    def _count(self, rows: int) -> None:
        self.queued += rows
        self.queue(self.queued)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            kind = await self._ripe()
            batch = self._take(kind)
            if batch:
                await self._answer(kind, batch)
            self._stuck_since = time.monotonic() if self._groups else None

    async def _answer(self, kind: Hashable, batch: Sequence[Waiting]) -> None:
        """Compute a batch, and give each request its own reply."""
        rows, start = sum(one.rows for one in batch), time.monotonic()
        self.computing_until = until = max(one.deadline for one in batch)
        compute = partial(self.compute, kind, [one.payload for one in batch], until)
        try:
            replies = await asyncio.get_running_loop().run_in_executor(self._thread, compute)
            pairs: list[tuple[Waiting, Any]] = list(zip(batch, replies, strict=True))
        except Exception as error:
            self.failed(error)
            pairs = [(one, error) for one in batch]
        finally:
            self.computing_until = None
        for one, reply in pairs:
            _tell(one, reply)
        seconds = time.monotonic() - start
        self._seconds_a_row += 0.2 * (seconds / rows - self._seconds_a_row)
        self.observe(kind, rows, seconds)

    async def _ripe(self) -> Hashable:
        """Return the kind of the request that has waited longest, once its batch is complete."""
        kind, group = min(self._groups.items(), key=lambda pair: pair[1][0].since)
        while not self._closed and sum(one.rows for one in group) < self.most:
            complete = min(group[-1].since + self.window, group[0].since + LONGEST * self.window)
            if (left := complete - time.monotonic()) <= 0:
                break
            await asyncio.sleep(min(left, 0.002))
        return kind

    def _take(self, kind: Hashable) -> list[Waiting]:
        """Return requests of one kind for one batch, without those that were given up."""
        group, rows = self._groups[kind], 0
        batch: list[Waiting] = []
        while group and (not batch or rows + group[0].rows <= self.most):
            one = group.popleft()
            self._count(-one.rows)
            if not one.reply.done() and one.deadline > time.monotonic():
                batch.append(one)
                rows += one.rows
        if not group:
            del self._groups[kind]
        if not self._groups:
            self._arrived.clear()
        return batch


def watch(
    batcher: Batcher, hung: Callable[[], None], *, grace: float = GRACE, every: float = 0.5
) -> threading.Thread:
    """Start a thread that calls ``hung`` once a batch is ``grace`` seconds past its deadline."""

    def look() -> None:
        while True:
            time.sleep(every)
            until = batcher.computing_until
            if until is not None and time.monotonic() > until + grace:
                return hung()

    thread = threading.Thread(target=look, name="watchdog", daemon=True)
    thread.start()
    return thread


def _tell(one: Waiting, reply: Any) -> None:
    """Give a request its reply, if somebody still waits for it."""
    if one.reply.done():
        return
    if isinstance(reply, Exception):
        one.reply.set_exception(reply if isinstance(reply, VeriTracerError) else _failed())
    else:
        one.reply.set_result(reply)


def _closing() -> ServiceError:
    expected, received = "a service that accepts requests", "one that is ending"
    return refused(503, "closing", expected, received, "try again", retry_after=5)


def _failed() -> ServiceError:
    remedy = "tell its operator the request's id"
    return refused(500, "error", "an answer", "an error of the service", remedy)
