"""How many cores there are, and how many threads torch may use: one where operations are small."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """One thread inside of the block, if ``wanted``; then as many as before.

    Sharing a small operation costs more than it brings, and many times more if another process has the cores.
    """
    import torch  # who only counts cores does not need it

    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
