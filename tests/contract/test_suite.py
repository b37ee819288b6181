"""What the test suite promises of itself: tests end, and only our own warnings fail them."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from veritracer.errors import DataWarning

SETTINGS = Path(__file__).parents[2] / "pyproject.toml"
LOOPS = """
import threading
from hypothesis import given, settings, strategies as st

def spin():
    while True:
        pass

@settings(deadline=None)
@given(st.integers())
def test_drawn(number):
    spin()

def test_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
"""


@pytest.mark.parametrize(
    ("name", "where", "workers"),
    [("drawn", "in spin", "0"), ("drawn", "in spin", "1"), ("lock", "in test_lock", "1")],
)
def test_a_test_that_does_not_end_fails_with_its_stack(
    name: str, where: str, workers: str, tmp_path: Path
) -> None:
    (tmp_path / "test_loops.py").write_text(LOOPS)
    command = [sys.executable, "-m", "pytest", "-c", str(SETTINGS), "--rootdir", str(tmp_path)]
    command += ["-p", "no:cacheprovider", "-o", "faulthandler_timeout=1"]
    done = subprocess.run(
        [*command, "-n", workers, "--max-worker-restart", "0", f"test_loops.py::test_{name}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
        check=False,
    )
    assert done.returncode != 0
    assert re.search(rf'test_loops\.py", line \d+ {where}', done.stderr), done.stderr


def warn_in(module: str, category: type[Warning]) -> None:
    """Give a warning that is attributed to this module."""
    warnings.warn_explicit("a warning", category, f"{module}.py", 1, module)


@pytest.mark.parametrize(
    ("module", "category"),
    [
        ("veritracer.app.notices", DeprecationWarning),
        ("veritracer_bench.running", RuntimeWarning),
        ("veritracer", UserWarning),
        ("test_of_a_caller", DataWarning),
        ("pandas", DataWarning),
        ("sys", ResourceWarning),
    ],
)
def test_our_warnings_are_errors(module: str, category: type[Warning]) -> None:
    with pytest.raises(category):
        warn_in(module, category)


def test_warnings_of_other_packages_are_none() -> None:
    categories = [DeprecationWarning, FutureWarning, UserWarning, RuntimeWarning]
    with warnings.catch_warnings(record=True) as listed:
        for category in categories:
            warn_in("weasyprint.text.ffi", category)
    assert [found.category for found in listed] == categories
