"""A job whose worker is killed on the first tries of an item; it imports nothing that takes time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path


class Deadly:
    """Squares numbers; the worker that does 3 is killed so many times."""

    def __init__(self, marks: Path, times: int) -> None:
        self.marks, self.times = marks, times

    def open(self) -> Callable[[int], int]:
        def do(item: int) -> int:
            for attempt in range(self.times if item == 3 else 0):
                mark = self.marks / f"{item}-{attempt}"
                if not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            return item * item

        return do
