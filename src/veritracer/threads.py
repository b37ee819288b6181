"""How many threads torch may use: one where its operations are too small to share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """One thread inside of the block, if ``wanted``; then as many as before.

    Sharing a small operation costs more than it brings, and many times more if another process has the cores.
    """
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
