"""Watching a long run: a progress bar, and Ctrl-C that stops after the batch, not in the middle of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from veritracer.training import Epoch

Watched = tuple[Callable[[Epoch], None] | None, Callable[[], bool]]


@contextmanager
def watch(*, verbose: bool) -> Iterator[Watched]:
    """What ``training.train`` reports to and asks: a callback for epochs, and whether to stop."""
    with _interruptible() as interrupted:
        if not verbose:
            yield None, interrupted
            return
        columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("training", total=None)

            def report(epoch: Epoch) -> None:
                bar.update(task, total=epoch.epochs, completed=epoch.epoch, description=summary(epoch))

            yield report, interrupted


def summary(epoch: Epoch) -> str:
    """One line on an epoch, averaged over the models that are trained side by side."""
    parts = [f"loss {float(epoch.loss.mean()):.3f}", f"accuracy {float(epoch.accuracy.mean()):.3f}"]
    if bool(epoch.validity.isfinite().all()):
        parts.append(f"validity {float(epoch.validity.mean()):.3f}")
        parts.append(f"certified {float(epoch.certified.mean()):.3f}")
    return f"epoch {epoch.epoch}/{epoch.epochs}: " + ", ".join(parts)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed since; a second one interrupts at once."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set  # only the main thread can listen for signals
        return
    before = signal.getsignal(signal.SIGINT)

    def listen(number: int, frame: FrameType | None) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    signal.signal(signal.SIGINT, listen)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
