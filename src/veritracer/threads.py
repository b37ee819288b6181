"""Set the number of threads and the allocator for many small operations."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's ``mallopt``: when free memory is returned, and the size from which it is mapped."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Use one thread inside the block if ``wanted``, and restore the number of threads after it.

    Sharing a small operation costs more than it saves, and much more if another process holds the cores.
    """
    import torch  # counting cores does not need it

    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def only_compute() -> None:
    """Tune a process that only computes: one thread, and freed memory that is kept for later.

    Tensors of some megabytes come and go. By default each of them is mapped and returned page by page, which
    takes a fifth of the time.
    """
    import torch

    torch.set_num_threads(1)
    try:
        tune = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    tune(M_MMAP_THRESHOLD, 64 * 2**20)
    tune(M_TRIM_THRESHOLD, 256 * 2**20)
