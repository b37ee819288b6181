"""A task whose worker is killed on the first tries of an item; it imports nothing that takes time."""

from __future__ import annotations

import os
import signal
from pathlib import Path


class Deadly:
    """Squares numbers; the worker that does one of them is killed so many times."""

    def __init__(self, marks: Path, times: int, victim: int = 3) -> None:
        self.marks, self.times, self.victim = marks, times, victim

    def __call__(self, item: int) -> int:
        for attempt in range(self.times if item == self.victim else 0):
            mark = self.marks / f"{item}-{attempt}"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return item * item
