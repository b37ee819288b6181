"""Where batches are computed, and how single requests become batches.

The process that speaks HTTP computes nothing, so that it always answers, and Python's lock is not shared with
the search. A worker is ``python -m veritracer.app.serve.workers``: frames come in on its standard input (a
length, then JSON), answers go out on its standard output (a length, JSON, and the bodies behind it). It ends
when its input does: whatever ends the service ends its workers. A worker may also be a thread of the service
itself.

A process is used again only after a completed exchange: a frame went out, and the answer with the same number
was read to its end. However an exchange ends otherwise (time-out, cancellation, an unexpected frame, the end
of the process), an answer may still be in the pipe, where the next request would read it. So the process is
killed, and the worker starts another one before it computes again. What it was working on is answered with
503.

Requests are collected for some milliseconds, and for as long as every worker is busy. Those that ask for the
same with the same options are answered together, those that waited longest first; idle workers share what
waits. That is bounded in rows; beyond it a request is refused at once, and told when to come back. A request
that was given up is not computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import struct
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, Protocol

from veritracer.app.serve.observing import log_failure
from veritracer.app.serve.problems import Problem, problem_of, raised, refused
from veritracer.app.serve.settings import Settings
from veritracer.errors import ServiceError, VeriTracerError, message

if TYPE_CHECKING:
    from veritracer.app.serve.host import ModelHost

Operation = Literal["decide", "explain", "certify", "issue"]
LENGTH = struct.Struct("<I")
STARTING = 120.0
"""Seconds that a worker may take to load its model."""

ENDING = 5.0
"""Seconds that a worker may take to end, before it is killed."""

FAILURES = ("problem", "failed")
"""What the answer to a frame has in it where there is none of the wanted kind."""

Key = tuple[Operation, str]

LONGEST = 10
"""Windows that a request waits at most for a batch to be complete, while a worker is idle."""


class Reply(NamedTuple):
    """What one request of a batch is answered: bytes of JSON, or a problem."""

    body: bytes
    problem: Problem | None = None


class Worker(Protocol):
    """Something that computes one batch at a time."""

    async def start(self) -> None:
        """Load the model."""

    async def run(
        self, operation: Operation, requests: Sequence[Any], options: dict[str, Any]
    ) -> list[Reply]:
        """An answer to each request of the batch."""

    def discard(self) -> None:
        """Give up the model that was loaded: start anew before the next batch."""

    async def stop(self) -> None:
        """End it, after what it is working on."""


class ThreadWorker:
    """A thread of this process, with a host that others may use too."""

    def __init__(self, host: ModelHost) -> None:
        self.host = host
        self.executor = ThreadPoolExecutor(1, "veritracer")

    async def start(self) -> None:
        """The host is loaded already."""

    async def run(
        self, operation: Operation, requests: Sequence[Any], options: dict[str, Any]
    ) -> list[Reply]:
        """An answer to each request of the batch."""
        call = getattr(self.host, operation)
        found = await asyncio.get_running_loop().run_in_executor(self.executor, call, requests, options)
        return [Reply(*answer) for answer in found]

    def discard(self) -> None:
        """Keep the host, which whoever shares it has not loaded then."""

    async def stop(self) -> None:
        """End the thread, after what it is working on."""
        await asyncio.get_running_loop().run_in_executor(None, self.executor.shutdown)


class ProcessWorker:
    """A process of its own with the model in it."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self.settings, self.folder = settings, folder
        self.process: asyncio.subprocess.Process | None = None
        self.usable = False
        self.number = 0

    async def start(self) -> None:
        """Load the model in a new process; refused where it cannot."""
        await self.stop()
        inside = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self.settings).items()}
        inside["model"] = self.folder
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "veritracer.app.serve.workers"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the service, which ends its workers in time
        )
        self.usable = True
        try:
            async with asyncio.timeout(STARTING):
                head, _ = await self._ask({"settings": inside}, "ready")
        except TimeoutError:
            received = f"one that needs more than {STARTING:g} seconds"
            raise _worker_ended("a worker that loads its model", received) from None
        if "ready" not in head:
            self.discard()
            if "problem" in head:
                raise ServiceError(message(*(head["problem"][k] for k in ("expected", "received", "remedy"))))
            raise RuntimeError("a worker failed to start; its log says where")

    async def run(
        self, operation: Operation, requests: Sequence[Any], options: dict[str, Any]
    ) -> list[Reply]:
        """Answer each request of the batch, in a new process if the last exchange was not completed."""
        if not self.usable:
            await self.start()
        frame = {"operation": operation, "requests": list(requests), "options": options}
        head, bodies = await self._ask(frame, "answers")
        if "problem" in head:
            raise raised(Problem(**head["problem"]))
        if "failed" in head:
            raise RuntimeError("a worker failed; its log says where")
        replies, start = [], 0
        for one in head["answers"]:
            problem = None if one["problem"] is None else Problem(**one["problem"])
            replies.append(Reply(bodies[start : start + one["size"]], problem))
            start += one["size"]
        return replies

    def discard(self) -> None:
        """Kill the process: another one is started before the worker computes again."""
        self.usable = False
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    async def stop(self) -> None:
        """End it, after what it is working on."""
        if self.process is None or self.process.stdin is None:
            return
        self.usable = False
        self.process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            try:
                async with asyncio.timeout(ENDING):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()

    async def _ask(self, frame: dict[str, Any], wanted: str) -> tuple[dict[str, Any], bytes]:
        """Send a frame and read its whole answer; kill the process if anything prevents that."""
        self.number += 1
        try:
            return await self._exchange({"number": self.number, **frame}, wanted)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.discard()
            raise _worker_ended("a worker to answer", "one that ended while it worked") from None
        except BaseException:
            self.discard()
            raise

    async def _exchange(self, frame: dict[str, Any], wanted: str) -> tuple[dict[str, Any], bytes]:
        assert self.process is not None
        writer, reader = self.process.stdin, self.process.stdout
        assert writer is not None
        assert reader is not None
        data = json.dumps(frame, allow_nan=False).encode()
        writer.write(LENGTH.pack(len(data)) + data)
        await writer.drain()
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        text = await reader.readexactly(size)
        try:
            head = json.loads(text)
            sizes = [int(one["size"]) for one in head.get("answers", ())]
            answers = head["number"] == frame["number"] and not head.keys().isdisjoint({wanted, *FAILURES})
            whole = "answers" not in head or len(sizes) == len(frame["requests"])
        except (ValueError, KeyError, TypeError, AttributeError):
            answers = whole = False
        if not (answers and whole):
            raise _worker_ended("the answer to the last frame", "another frame")
        return head, await reader.readexactly(sum(sizes))


class Pool:
    """Workers of one service, each lent to one batch at a time."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = list(workers)
        self.idle: asyncio.Queue[Worker] = asyncio.Queue()

    async def start(self) -> None:
        """Start all of them at once."""
        try:
            await asyncio.gather(*(worker.start() for worker in self.workers))
        except BaseException:
            await asyncio.gather(*(worker.stop() for worker in self.workers))
            raise
        for worker in self.workers:
            self.idle.put_nowait(worker)

    async def run(
        self, worker: Worker, operation: Operation, requests: Sequence[Any], options: dict[str, Any]
    ) -> list[Reply]:
        """An answer to each request, by a worker that was taken from ``idle`` and is given back."""
        try:
            return await worker.run(operation, requests, options)
        finally:
            self.idle.put_nowait(worker)

    async def stop(self) -> None:
        """End all of them."""
        await asyncio.gather(*(worker.stop() for worker in self.workers))


def main() -> None:
    """Answer frames until there are no more: what a worker process does."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not get between the frames
    answer_frames(sys.stdin.buffer, out)


def answer_frames(source: BinaryIO, out: BinaryIO) -> None:
    """Read frames until there are no more, and write the answers: settings first, then what is asked."""
    host: ModelHost | None = None
    while (frame := _read(source)) is not None:
        bodies: list[bytes] = []
        try:
            if host is None:
                host = _host(frame["settings"])
                head: dict[str, Any] = {"ready": True}
            else:
                answers = getattr(host, frame["operation"])(frame["requests"], frame["options"])
                head, bodies = {"answers": _listed(answers)}, [one.body for one in answers]
        except VeriTracerError as error:
            head = {"problem": asdict(problem_of(error))}
        except Exception as error:  # a bug of ours, which must not end everybody's worker
            log_failure(error)
            head = {"failed": True}
        _write(out, {"number": frame["number"], **head}, *bodies)
    if host is not None:
        host.close()


def _host(inside: dict[str, Any]) -> ModelHost:
    from veritracer.app.serve.host import ModelHost

    for name in ("model", "codes", "keys"):
        inside[name] = None if inside[name] is None else Path(inside[name])
    return ModelHost(Settings(**inside))


def _read(source: BinaryIO) -> Any:
    length = source.read(LENGTH.size)
    if len(length) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(length)
    data = source.read(size)
    return json.loads(data) if len(data) == size else None


def _listed(answers: Sequence[Any]) -> list[dict[str, Any]]:
    """Return size and problem of each answer."""
    return [
        {"size": len(one.body), "problem": None if one.problem is None else asdict(one.problem)}
        for one in answers
    ]


def _write(out: BinaryIO, head: dict[str, Any], *bodies: bytes) -> None:
    data = json.dumps(head).encode()
    try:
        out.write(b"".join([LENGTH.pack(len(data)), data, *bodies]))
        out.flush()
    except BrokenPipeError:  # the service is gone, and with it whoever asked
        sys.exit(0)


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
            batch = self._take(key)
            if not batch:  # all of them gave up
                self.pool.idle.put_nowait(worker)
                continue
            task = asyncio.get_running_loop().create_task(self._run(worker, key, batch))
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def _ripe(self) -> Key:
        """The kind of request that waited longest, once it has waited long enough."""
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


def _worker_ended(expected: str, received: str) -> ServiceError:
    return refused(503, "worker-ended", expected, received, "try again", retry_after=2)


def _closing() -> VeriTracerError:
    return refused(
        503, "closing", "a service that goes on", "one that is ending", "ask another", retry_after=5
    )


def _failed() -> VeriTracerError:
    remedy = "tell its operator the request's id"
    return refused(500, "error", "an answer", "an error of the service", remedy)


if __name__ == "__main__":
    main()
