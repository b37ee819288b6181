"""A saved model and its people; a Ray of the session's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("ledger", "tables")]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``model`` and ``people.parquet``."""
    from run_cases import save_all

    return save_all(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def ray() -> Iterator[None]:
    """A Ray for the session, started when the first test asks for it."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    from veritracer.engines import connected

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
        with connected(2):
            yield
