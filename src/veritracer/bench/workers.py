"""Processes that do the work, one thread each; none of them outlives the run that started it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from veritracer.errors import DataWarning

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Pool(Protocol):
    """What work is handed to."""

    def submit(self, call: Any, /, *args: Any) -> Future[Any]:
        """A promise of the call's result."""
        ...


class Here:
    """A pool without processes: work is done when it is submitted."""

    def submit(self, call: Any, /, *args: Any) -> Future[Any]:
        """The call's result, or its error, at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args))
        except Exception as error:  # whoever asks for the result gets it
            future.set_exception(error)
        return future


@contextmanager
def pool_of(count: int) -> Iterator[Pool]:
    """A pool of so many processes (0: this one); at the end of the block all of them are stopped at once.

    Whatever they were doing is lost, and nothing else: each result is a file that is whole or absent.
    """
    if count == 0:
        yield Here()
        return
    older = {child.pid for child in multiprocessing.active_children()}
    # Libraries read these when they are loaded, so they must be there before a process begins.
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=(os.getpid(),))
        try:
            yield pool
        finally:
            started = [child for child in multiprocessing.active_children() if child.pid not in older]
            pool.shutdown(wait=False, cancel_futures=True)
            _stop(started)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def _stop(children: list[BaseProcess]) -> None:
    for child in children:
        child.kill()
    for child in children:
        child.join()


def _begin(parent: int) -> None:
    """Make this process a worker: one thread, deaf to Ctrl-C, and gone when its parent is."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", DataWarning)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
