"""Collect single requests into batches, and compute one batch at a time in a thread of this process.

Requests of the same kind form a batch once none has joined it for ``window`` seconds, and at the latest while
the batch before it is computed. A request is an object with its job and the future of its own reply, so a
reply cannot reach another request: one that timed out or was cancelled leaves a future that nobody reads.

The cost of the requests that wait is bounded. A request past its deadline is answered with 504 and not
computed. Batches are measured for Prometheus.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from prometheus_client import Gauge, Histogram

from veritracer.app.serve.models import refused
from veritracer.errors import ServiceError, VeriTracerError

if TYPE_CHECKING:
    from veritracer.app.serve.operations import Job
    from veritracer.app.serve.settings import Settings

Compute = Callable[[Sequence[Any], float], Sequence[Any]]
"""Reply to jobs of one kind by a deadline, in their order; an exception as a reply refuses its request."""

LONGEST = 10
"""Windows after which a batch no longer waits for more requests."""

GRACE = 10.0
"""Seconds past the deadline of a batch after which the process is taken to hang."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the intervals in which times are counted."""

BATCH_ROWS = Histogram(
    "veritracer_batch_rows", "Rows of a batch.", ["operation"], buckets=[2.0**i for i in range(11)]
)
BATCH_SECONDS = Histogram("veritracer_batch_seconds", "Time for a batch.", ["operation"], buckets=SECONDS)
QUEUED = Gauge("veritracer_queued_rows", "Rows that wait.", multiprocess_mode="livesum")

log = logging.getLogger("veritracer.serve")


@dataclass(eq=False)
class Waiting:
    """A request that waits for its batch."""

    job: Job
    since: float
    deadline: float
    reply: asyncio.Future[Any]

    def answer(self, reply: Any) -> None:
        """Set the reply, unless nobody waits for it any more."""
        if self.reply.done():
            return
        if isinstance(reply, Exception):
            self.reply.set_exception(reply)
        else:
            self.reply.set_result(reply)


class Batcher:
    """Collect requests and compute them in batches.

    Parameters
    ----------
    compute
        Replies to the jobs of a batch.
    settings
        Those of the service: ``window``, ``batch_rows``, ``queue_rows`` and ``timeout``.
    end_if_hung
        End the process when a batch is ``GRACE`` seconds past its deadline.
    """

    def __init__(self, compute: Compute, settings: Settings, *, end_if_hung: bool = False) -> None:
        self.compute, self.settings, self.end_if_hung = compute, settings, end_if_hung
        self.queued = 0
        self.is_computing = False
        self._groups: OrderedDict[Any, deque[Waiting]] = OrderedDict()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "compute")
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._seconds_per_row = 0.01
        self._idle_since: float | None = None

    def start(self) -> None:
        """Begin to compute batches in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def ask(self, job: Job) -> Any:
        """Return the reply to one request; refuse it if too many wait, or if it takes too long."""
        self._admit(job.cost)
        now, timeout = time.monotonic(), self.settings.timeout
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._groups.setdefault(job.kind, deque()).append(Waiting(job, now, now + timeout, reply))
        self._count(job.cost)
        self._idle_since = self._idle_since or now
        self._arrived.set()
        try:
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            remedy = "ask for fewer rows, or later; repeat a request for promises under the same key"
            received = f"none after {timeout:g} seconds"
            raise refused(504, "timeout", "an answer in time", received, remedy, retry_after=5) from None

    @property
    def is_stuck(self) -> bool:
        """Return whether requests wait and no batch has been completed within the time-out."""
        return self._idle_since is not None and time.monotonic() - self._idle_since > self.settings.timeout

    async def close(self, patience: float) -> None:
        """Refuse new requests, complete those that wait for up to ``patience`` seconds, refuse the rest."""
        self._closed = True
        deadline = time.monotonic() + patience
        while (self._groups or self.is_computing) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if self._task is not None:
            self._task.cancel()
        for group in self._groups.values():
            for waiting in group:
                waiting.answer(_closing())
        self._groups.clear()
        self._thread.shutdown(wait=False)

    def _admit(self, cost: int) -> None:
        if self._closed:
            raise _closing()
        if self.queued and self.queued + cost > self.settings.queue_rows:
            wait = max(1, math.ceil(self.queued * self._seconds_per_row))
            received, remedy = f"{self.queued:,} waiting already", f"try again in {wait} seconds"
            expected = f"up to {self.settings.queue_rows:,} rows to wait"
            raise refused(429, "queue-full", expected, received, remedy, retry_after=wait)

    def _count(self, cost: int) -> None:
        self.queued += cost
        QUEUED.set(self.queued)

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._take(await self._complete_kind())
            if batch:
                await self._answer(batch)
            self._idle_since = time.monotonic() if self._groups else None

    async def _answer(self, batch: Sequence[Waiting]) -> None:
        """Compute a batch, and give each request its own reply."""
        operation, cost = batch[0].job.operation, sum(one.job.cost for one in batch)
        start, until = time.monotonic(), max(one.deadline for one in batch)
        compute = partial(self.compute, [one.job for one in batch], until)
        self.is_computing = True
        if self.end_if_hung:  # in a thread of its own, which needs no interpreter
            faulthandler.dump_traceback_later(until - start + GRACE, exit=True)
        try:
            replies = await asyncio.get_running_loop().run_in_executor(self._thread, compute)
            pairs: list[tuple[Waiting, Any]] = list(zip(batch, replies, strict=True))
        except VeriTracerError as error:
            pairs = [(one, error) for one in batch]
        except Exception as error:
            log.exception("failure", exc_info=error)
            pairs = [(one, _failed()) for one in batch]
        self.is_computing = False
        if self.end_if_hung:  # not where this task is cancelled: the thread may compute on
            faulthandler.cancel_dump_traceback_later()
        for waiting, reply in pairs:
            waiting.answer(reply)
        seconds = time.monotonic() - start
        self._seconds_per_row += 0.2 * (seconds / cost - self._seconds_per_row)
        BATCH_ROWS.labels(operation).observe(cost)
        BATCH_SECONDS.labels(operation).observe(seconds)

    async def _complete_kind(self) -> Any:
        """Return the kind of the request that has waited longest, once its batch is complete."""
        kind, group = min(self._groups.items(), key=lambda pair: pair[1][0].since)
        window = self.settings.window / 1000
        while not self._closed and sum(one.job.cost for one in group) < self.settings.batch_rows:
            complete = min(group[-1].since + window, group[0].since + LONGEST * window)
            if (left := complete - time.monotonic()) <= 0:
                break
            await asyncio.sleep(min(left, 0.002))
        return kind

    def _take(self, kind: Any) -> list[Waiting]:
        """Return requests of one kind for one batch, without those that were given up."""
        group, cost = self._groups[kind], 0
        batch: list[Waiting] = []
        while group and (not batch or cost + group[0].job.cost <= self.settings.batch_rows):
            waiting = group.popleft()
            self._count(-waiting.job.cost)
            if not waiting.reply.done() and waiting.deadline > time.monotonic():
                batch.append(waiting)
                cost += waiting.job.cost
        if not group:
            del self._groups[kind]
        if not self._groups:
            self._arrived.clear()
        return batch


def _closing() -> ServiceError:
    expected, received = "a service that accepts requests", "one that is ending"
    return refused(503, "closing", expected, received, "try again", retry_after=5)


def _failed() -> ServiceError:
    remedy = "tell its operator the request's id"
    return refused(500, "error", "an answer", "an error of the service", remedy)
