"""Verbs of the command line: each is listed, and its help shows an example."""

from __future__ import annotations

from pathlib import Path

import pytest

from processes import run_here

VERBS = (
    "demo",
    "fit",
    "predict",
    "explain",
    "certify",
    "inspect",
    "issue",
    "promises",
    "update",
    "audit",
    "verify",
    "calibrate",
    "notices",
    "serve",
    "bench",
    "report",
    "datasets",
)
OPTIONS = {
    "explain": ("--engine", "--workers", "--out"),
    "serve": ("--ledger", "--host", "--port"),
    "issue": ("--ledger", "--expires"),
    "update": ("--keep", "--out"),
    "audit": ("--ledger", "--model"),
    "notices": ("--ledger", "--out"),
}
"""Options of the contract and of its examples."""


def test_verbs_are_listed(tmp_path: Path) -> None:
    (done,) = run_here([["--help"]], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    words = set(done.stdout.split())
    assert words >= set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_shows_an_example(verb: str, tmp_path: Path) -> None:
    (done,) = run_here([[verb, "--help"]], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: veritracer {verb}" in done.stdout
    assert f"Example: veritracer {verb}" in done.stdout
    for option in OPTIONS.get(verb, ()):
        assert option in done.stdout, option
