"""What computing has of a machine."""

from __future__ import annotations

import torch

from veritracer.threads import cores, one_thread, only_compute


def test_one_thread_is_for_the_block_and_only_compute_for_good() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        only_compute()
        assert torch.get_num_threads() == 1
        large = [torch.ones(2**22) for _ in range(4)]  # beyond both limits of what is kept
        assert sum(float(one.sum()) for one in large) == 4 * 2**22
    finally:
        torch.set_num_threads(before)
    assert cores() >= 1
