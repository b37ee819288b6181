"""Eight writers at once, killed at random moments: no commit is lost, and nothing is half there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PATH = os.pathsep.join([str(HERE.parent), str(HERE)])


def killed(place: str, *, kills: int, promises: int, seed: int = 0) -> dict[str, Any]:
    """What became of a ledger whose writers were killed; in a process of its own, which forks them."""
    command = [sys.executable, "-W", "error", "-m", "faults", place]
    command += ["--kills", str(kills), "--promises", str(promises), "--seed", str(seed)]
    env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=3_000)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def assert_unharmed(found: dict[str, Any], promises: int) -> None:
    for what in ("lost", "half", "other_heads", "findings", "ended_badly"):
        assert found[what] == 0, found
    assert found["promises"] >= promises
    assert found["commits_seen"] > 0


@pytest.mark.long
def test_writers_that_are_killed_harm_nothing(tmp_path: Path) -> None:
    found = killed(str(tmp_path / "promises.db"), kills=12, promises=600)
    assert_unharmed(found, 600)
    assert found["kills_in_transaction"] > 0, found


def test_many_kills_and_many_promises(place: str, pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("two minutes and more: only with --long")
    assert_unharmed(killed(place, kills=200, promises=100_000, seed=1), 100_000)
