"""One small model for all tests of the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from processes import run_many

FIT = [
    "fit",
    "train.csv",
    "--target",
    "approved",
    "--favourable",
    "yes",
    "--epochs",
    "6",
    "--no-panel",
    "--holdout",
    "0",
    "--quiet",
]
FIT += ["--immutable", "age,sex,region", "--increase-only", "years_employed", "--out", "model"]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.csv, people.csv, people.parquet, and a model of the first."""
    folder = tmp_path_factory.mktemp("made")
    tables = [("3000", "0", "train.csv"), ("120", "7", "people.csv"), ("120", "7", "people.parquet")]
    commands = [
        ["datasets", "write", "loans", "--rows", n, "--seed", seed, "--out", name, "--quiet"]
        for n, seed, name in tables
    ]
    done = run_many([*commands, FIT], folder)
    assert [d.returncode for d in done] == [0] * 4, done
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Path:
    """A fresh copy of that folder."""
    folder = tmp_path / "work"
    shutil.copytree(made, folder)
    return folder
