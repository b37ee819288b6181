"""Cores, threads (one where operations are small) and memory: what computing has of a machine."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""What glibc's ``mallopt`` calls the free memory that is given back, and the size of what is mapped apart."""


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


def only_compute() -> None:
    """Make the most of a process that does nothing else: one thread, and memory that is kept for later.

    Tensors of some megabytes come and go. By default each of them is asked of the system and given back,
    page by page, which takes a fifth of the time.
    """
    import torch

    torch.set_num_threads(1)
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    tune(M_MMAP_THRESHOLD, 64 * 2**20)
    tune(M_TRIM_THRESHOLD, 256 * 2**20)
