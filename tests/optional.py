"""What a few tests need from the system, and why they are skipped where it is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache

import pytest

posix = pytest.mark.skipif(os.name == "nt", reason="needs signals, limits or permissions of POSIX")


@cache
def missing_pango() -> str | None:
    """Return the library that WeasyPrint cannot load, in its own words; None if it has all."""
    try:
        import weasyprint  # noqa: F401
    except OSError as error:
        return str(error).splitlines()[0]
    return None


def skip_without_pango() -> None:
    """Skip a test that writes a PDF where it cannot be written."""
    if missing := missing_pango():
        pytest.skip(f"a PDF needs Pango: {missing}")


def chromium() -> str | None:
    """Return the path of a Chromium that starts; None if there is none, or only a stub that installs one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found and _said([found, "--version"]) is not None:
            return found
    return None


def java() -> bool:
    """Return whether Java 17 or newer is here, which Spark 4 needs."""
    found = re.search(r'version "(\d+)', _said(["java", "-version"]) or "")
    return found is not None and int(found[1]) >= 17


def _said(command: list[str]) -> str | None:
    """Return what a command writes; None if it does not exist or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None
