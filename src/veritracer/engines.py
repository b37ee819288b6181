"""Run a task over many items: in this process, in several processes, or on a Ray cluster.

``Engine.map`` yields results as they are ready and keeps only a few items ahead, so a table of any length
needs the memory of a few of its batches. A killed worker is replaced and its items are done again: a task
must tolerate being run twice on the same item.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from multiprocessing import forkserver
from typing import Any, Literal, Protocol, TypeVar

from veritracer.errors import DataError, DataWarning, VeriTracerError, message
from veritracer.threads import cores, one_thread, only_compute

T = TypeVar("T")
R = TypeVar("R")

EngineName = Literal["local", "ray"]

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

PRELOADED = ("veritracer.tables.batches",)
"""Modules imported once, in the process that workers are forked from."""

AHEAD = 2
"""Items in flight for each worker."""

ATTEMPTS = 3
"""Times in a row that workers may be killed before the run fails."""


class Engine(Protocol):
    """Something that runs a task over items."""

    def map(self, task: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the result of each item, as they become ready."""
        ...


def make_engine(name: EngineName = "local", workers: int | None = None) -> Engine:
    """Return the engine of that name; ``workers`` defaults to all cores (with Ray, of the cluster)."""
    if name == "ray":
        return Ray(workers)
    count = workers or cores()
    return Serial() if count == 1 else Processes(count)


class Serial:
    """Run the task in this process, with one thread like every other worker."""

    def map(self, task: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the result of each item in order."""
        with one_thread():
            yield from map(task, items)


# ---------------------------------------------------------------- this machine


class Processes:
    """Run the task in processes of this machine, each with one thread.

    What workers are forked from starts to load at once, while this process loads what it needs itself.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        _start_fork_server()

    def map(self, task: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the result of each item as it becomes ready; after a kill, do what is unfinished again."""
        waiting, unfinished, kills = enumerate(items), dict[int, T](), 0
        while kills < ATTEMPTS:
            with _pool(self.workers) as pool, suppress(BrokenProcessPool):
                running = {pool.submit(task, item): number for number, item in unfinished.items()}
                while True:
                    for number, item in islice(waiting, self.workers * AHEAD - len(running)):
                        unfinished[number] = item
                        running[pool.submit(task, item)] = number
                    if not running:
                        return
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        del unfinished[running.pop(future)]
                        kills = 0
                        yield result
            kills += 1
        raise _killed()


def _killed(said: str = "") -> VeriTracerError:
    received = f"{ATTEMPTS} in a row that were killed" + (f" ({said})" if said else "")
    remedy = "was memory short? Run the same command again with fewer --workers or --batch-rows"
    return VeriTracerError(message("workers that finish", received, remedy))


@contextmanager
def _pool(count: int) -> Iterator[Executor]:
    """Open a pool of processes; at the end of the block all of them are stopped, whatever they are doing."""
    older = {child.pid for child in multiprocessing.active_children()}
    # Libraries read these variables when they are loaded, so they must be set before a process starts.
    with _environment(ONE_THREAD):
        context = multiprocessing.get_context("forkserver" if _start_fork_server() else "spawn")
        pool = ProcessPoolExecutor(count, context, initializer=_become_worker)
        try:
            yield pool
        finally:
            started = [child for child in multiprocessing.active_children() if child.pid not in older]
            pool.shutdown(wait=False, cancel_futures=True)
            for child in started:
                child.kill()
            for child in started:
                child.join()


def _start_fork_server() -> bool:
    """Start the process that workers are forked from; return whether this system supports it.

    That process ends with this one, and its workers with it.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return False
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for this process alone
    try:
        with _environment(ONE_THREAD):
            multiprocessing.set_forkserver_preload(list(PRELOADED))
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


def _become_worker() -> None:
    """Make this process a worker: one thread, no reaction to Ctrl-C, and no life after its parent."""
    only_compute()
    warnings.simplefilter("ignore", DataWarning)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()  # the process that asked for workers, not the fork server
    assert parent is not None
    parent.join()
    os._exit(1)


# ---------------------------------------------------------------- Ray


class Ray:
    """Run the task on the Ray cluster in ``RAY_ADDRESS``, or on one that is started here for the run."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers, self.ray = workers, _ray()

    def map(self, task: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the result of each item as it becomes ready."""
        ray = self.ray
        with connected(self.workers):
            count = self.workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
            call, shared = ray.remote(num_cpus=1, max_retries=ATTEMPTS)(_attempt), ray.put(task)
            running: list[Any] = []
            for item in items:
                running.append(call.remote(shared, item))
                if len(running) == count * AHEAD:
                    ready, running = ray.wait(running, num_returns=1)
                    yield self._result(ready[0])
            while running:
                ready, running = ray.wait(running, num_returns=1)
                yield self._result(ready[0])

    def _result(self, reference: Any) -> Any:
        try:
            result, error = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError:  # a defect of the task: its own traceback says most
            raise
        except self.ray.exceptions.RayError as lost:
            raise _killed((str(lost).strip().splitlines() or [""])[-1]) from None
        if error is not None:
            raise error
        return result


def _attempt(task: Callable[[Any], Any], item: Any) -> tuple[Any, VeriTracerError | None]:
    """Return the result of one item, or what the task says is wrong with it."""
    _tune_ray_worker()
    try:
        return task(item), None
    except VeriTracerError as error:
        return None, error


@cache
def _tune_ray_worker() -> None:
    only_compute()
    warnings.simplefilter("ignore", DataWarning)


@contextmanager
def connected(workers: int | None = None) -> Iterator[None]:
    """Keep a connection to Ray for the block: an existing one, or else a new one."""
    ray = _ray()
    if ray.is_initialized():
        yield
        return
    own = (
        {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers or cores(), "include_dashboard": False}
    )
    with _environment({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_USAGE_STATS_ENABLED": "0"}):
        ray.init(log_to_driver=False, logging_level="ERROR", **own)
    try:
        yield
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        remedy = "pip install 'veritracer[ray]', or use --engine local"
        raise DataError(message("the package ray", "an install without it", remedy)) from None
    return ray
