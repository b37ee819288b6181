"""Run work in this process, in several processes of this machine or in the actors of a Ray cluster.

An engine maps a job over items and yields results as they are ready. Each worker opens the job once (and so
loads a model once) and then processes item after item. At most two items for each worker are in flight, so a
table of any length needs the memory of a few of its blocks. A killed worker is replaced and its item
repeated: a job must tolerate being run twice on the same item.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

from veritracer.errors import DataError, DataWarning, VeriTracerError, message
from veritracer.threads import cores, one_thread, only_compute

Name = Literal["local", "ray"]

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

LOADED = ("veritracer.distributed.jobs", "veritracer.estimator", "veritracer.explaining")
"""Modules preloaded in the process that workers are forked from."""

AHEAD = 2
"""Items in flight for each worker."""

ATTEMPTS = 3
"""Consecutive times that workers may be killed before the run fails."""


class Job(Protocol):
    """Work that each worker opens once and then applies to item after item; it is pickled on its way."""

    def open(self) -> Callable[[Any], Any]:
        """Return the function that processes one item."""
        ...


class Engine(Protocol):
    """Workers of one kind."""

    workers: int

    def map(self, job: Job, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of each item as it becomes ready."""
        ...


def make_engine(name: Name, workers: int | None = None) -> Engine:
    """Return the engine of that name; ``workers`` defaults to all cores (of the cluster, with Ray)."""
    if name == "ray":
        return RayEngine(workers)
    return LocalEngine(workers or cores())


def prepare(name: Name, workers: int | None = None) -> None:
    """Start that engine in the background, so that it loads while this process loads what it needs itself."""
    if name == "ray":
        _prepare_ray(workers)
    elif workers != 1:
        _prepare_forks()


# ---------------------------------------------------------------- this machine


class LocalEngine:
    """Processes of this machine; a single worker is this process itself."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map(self, job: Job, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of each item as it becomes ready."""
        if self.workers == 1:
            with one_thread():  # like every other worker
                yield from map(job.open(), items)
            return
        rest, unfinished, killed = iter(items), list[Any](), 0
        while True:
            done = 0
            with processes(self.workers, _open, job) as pool:
                running: dict[Future[Any], Any] = {pool.submit(_do, one): one for one in unfinished}
                try:
                    for result in _flow(pool, running, rest, self.workers * AHEAD):
                        done += 1
                        yield result
                    return
                except BrokenProcessPool:
                    unfinished = list(running.values())
            killed = 1 if done else killed + 1
            if killed == ATTEMPTS:
                raise _killed()


def _flow(pool: Executor, running: dict[Future[Any], Any], rest: Iterator[Any], most: int) -> Iterator[Any]:
    """Yield results while keeping ``running`` filled with the items whose results are still to come."""
    while True:
        while len(running) < most and (item := next(rest, _END)) is not _END:
            running[pool.submit(_do, item)] = item
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            result = future.result()
            del running[future]
            yield result


_END = object()


def _killed(said: str = "") -> VeriTracerError:
    received = f"{ATTEMPTS} in a row that were killed" + (f" ({said})" if said else "")
    remedy = "was memory short? Run the same command again with fewer --workers or --block-rows"
    return VeriTracerError(message("workers that finish", received, remedy))


_call: Callable[[Any], Any] | None = None


def _open(job: Job) -> None:
    global _call
    _call = job.open()


def _do(item: Any) -> Any:
    assert _call is not None
    return _call(item)


@contextmanager
def processes(count: int, begin: Callable[..., None] | None = None, *args: Any) -> Iterator[Executor]:
    """Open a pool of processes of one thread each; all of them are stopped at the end of the block.

    None of them outlives the process that started it. Unfinished work is lost, and nothing else.
    """
    older = {child.pid for child in multiprocessing.active_children()}
    # Libraries read these when they are loaded, so they must be set before a process starts.
    with _environment(ONE_THREAD):
        context = multiprocessing.get_context("forkserver" if _prepare_forks() else "spawn")
        pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(begin, args))
        try:
            yield pool
        finally:
            started = [child for child in multiprocessing.active_children() if child.pid not in older]
            pool.shutdown(wait=False, cancel_futures=True)
            _stop(started)


def _prepare_forks() -> bool:
    """Start the process that workers are forked from; return whether this system supports it.

    That process ends with this one, and its workers with it.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return False
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for this process alone
    try:
        with _environment(ONE_THREAD):
            multiprocessing.set_forkserver_preload(list(LOADED))
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return True


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _stop(children: list[BaseProcess]) -> None:
    for child in children:
        child.kill()
    for child in children:
        child.join()


def _begin(begin: Callable[..., None] | None, args: tuple[Any, ...]) -> None:
    """Make this process a worker: one thread, deaf to Ctrl-C, and gone when its parent is."""
    only_compute()
    warnings.simplefilter("ignore", DataWarning)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if begin is not None:
        begin(*args)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()  # the process that asked for workers, not the fork server
    assert parent is not None
    parent.join()
    os._exit(1)


# ---------------------------------------------------------------- Ray


class RayEngine:
    """Actors of a Ray cluster: the one in ``RAY_ADDRESS``, or one that is started here for the run."""

    def __init__(self, workers: int | None = None) -> None:
        self.ray = _ray()
        self.workers = workers or cores()
        self.given = workers

    def map(self, job: Job, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of each item as it becomes ready."""
        with _actors(self.given) as actors:
            self.workers = len(actors)
            yield from self._work(actors, self.ray.put(job), iter(items))

    def _work(self, actors: list[Any], job: Any, rest: Iterator[Any]) -> Iterator[Any]:
        running: dict[Any, Any] = {}
        waiting = actors * AHEAD  # one entry for each item that an actor can accept
        while True:
            while waiting and (item := next(rest, _END)) is not _END:
                worker = waiting.pop(0)
                running[worker.do.remote(job, item)] = worker
            if not running:
                return
            ready, _ = self.ray.wait(list(running), num_returns=1)
            waiting.append(running.pop(ready[0]))
            yield self._result(ready[0])

    def _result(self, reference: Any) -> Any:
        exceptions = self.ray.exceptions
        try:
            return self.ray.get(reference)
        except exceptions.RayTaskError as error:
            cause = error.cause if isinstance(getattr(error, "cause", None), VeriTracerError) else None
            raise (cause or error) from None
        except exceptions.RayActorError as error:
            raise _killed((str(error).strip().splitlines() or [""])[-1]) from None


class Worker:
    """A Ray actor: it loads what every job needs and opens the first job that it is given."""

    def __init__(self) -> None:
        for name in LOADED:
            import_module(name)
        only_compute()
        warnings.simplefilter("ignore", DataWarning)
        self.call: Callable[[Any], Any] | None = None

    def do(self, job: Job, item: Any) -> Any:
        """Return the result of one item."""
        self.call = self.call or job.open()
        return self.call(item)


@contextmanager
def connected(workers: int | None = None) -> Iterator[None]:
    """Keep a connection to Ray for the block: an existing one, or else a new one."""
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    _connect(workers)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(workers: int | None) -> None:
    own: dict[str, Any] = {"num_cpus": workers or cores(), "include_dashboard": False}
    with _environment({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}):
        _ray().init(
            log_to_driver=False, logging_level="ERROR", **({} if os.environ.get("RAY_ADDRESS") else own)
        )


_ahead: Future[list[Any]] | None = None


@contextmanager
def _actors(workers: int | None) -> Iterator[list[Any]]:
    """Provide actors for the block: those that are already being started, or else new ones."""
    global _ahead
    ray = _ray()
    began, _ahead = _ahead, None
    if began is not None:
        try:
            yield began.result()
        finally:
            ray.shutdown()
        return
    with connected(workers):
        found = _new_actors(workers)
        try:
            yield found
        finally:
            for one in found:
                ray.kill(one)


def _new_actors(workers: int | None) -> list[Any]:
    ray = _ray()
    actor = ray.remote(num_cpus=1, max_restarts=ATTEMPTS, max_task_retries=ATTEMPTS)(Worker)
    count = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    return [actor.remote() for _ in range(count)]


def _prepare_ray(workers: int | None) -> None:
    """Start connecting to Ray and creating actors in the background, unless a connection exists."""
    global _ahead
    if _ray().is_initialized():
        return
    began: Future[list[Any]] = Future()
    _ahead = began

    def start() -> None:
        try:
            _connect(workers)
            began.set_result(_new_actors(workers))
        except BaseException as error:  # raised where the result is awaited
            began.set_exception(error)
        else:
            threading.Event().wait()  # Ray's processes end with the thread that started them

    threading.Thread(target=start, daemon=True).start()


@contextmanager
def ray_tasks(workers: int) -> Iterator[_Tasks]:
    """Provide a ``submit`` method whose calls each become a task on one core of the cluster."""
    with connected(workers):
        yield _Tasks()


class _Tasks:
    def submit(self, call: Any, /, *args: Any) -> Future[Any]:
        """Return a future of the call's result."""
        ray = _ray()
        future: Future[Any] = ray.remote(num_cpus=1, max_retries=ATTEMPTS)(call).remote(*args).future()
        return future


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        remedy = "pip install 'veritracer[ray]', or use --engine local"
        raise DataError(message("the package ray", "an install without it", remedy)) from None
    return ray
