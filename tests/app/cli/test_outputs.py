"""No verb writes over what it reads, or over what it did not make."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from processes import run_many
from veritracer.app.cli.checks import check_output
from veritracer.errors import DataError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    return path


@pytest.mark.parametrize("kind", ["itself", "symlink", "hard link", "dotted"])
def test_an_input_is_not_an_output(table: Path, kind: str) -> None:
    out = table.with_name("other.csv")
    if kind == "itself":
        out = table
    elif kind == "symlink":
        out.symlink_to(table)
    elif kind == "hard link":
        os.link(table, out)
    else:
        out = table.parent / "." / "sub" / ".." / table.name
        (table.parent / "sub").mkdir()
    with pytest.raises(DataError, match="an output apart from what is read"):
        check_output(out, [table], force=False)
    check_output(out, [table], force=True)


def test_what_is_there_must_be_ours(tmp_path: Path, table: Path) -> None:
    other = tmp_path / "notes.csv"
    check_output(other, [table], force=False)
    other.write_text("my,own,work\n")
    with pytest.raises(DataError, match="not written by veritracer"):
        check_output(other, [table], force=False)
    other.write_text("a,recourse.status\n1,certified\n")
    check_output(other, [table], force=False)
    other.write_text("")
    check_output(other, [table], force=False)
    packed = tmp_path / "notes.csv.gz"
    packed.write_bytes(gzip.compress(b"a,recourse.status\n"))
    check_output(packed, [table], force=False)
    packed.write_bytes(gzip.compress(b"my,own\n"))
    with pytest.raises(DataError, match="--force"):
        check_output(packed, [table], force=False)


def test_nothing_to_lose(tmp_path: Path, table: Path) -> None:
    check_output(None, [table], force=False)
    check_output("-", [table], force=False)
    check_output(tmp_path / "new.csv", ["-", table, tmp_path / "missing"], force=False)


def test_every_verb_refuses_to_write_over_its_input(work: Path) -> None:
    (work / "other.csv").write_text("somebody's,work\n1,2\n")
    (work / "link.csv").symlink_to("people.csv")
    commands = [
        ["explain", "model", "people.csv", "--out", "people.csv"],
        ["explain", "model", "people.csv", "--out", "link.csv"],
        ["explain", "model", "people.csv", "--out", "other.csv"],
        ["certify", "model", "people.csv", "train.csv", "--out", "train.csv"],
        ["report", "model", "people.csv", "--out", "people.csv"],
        ["datasets", "write", "loans", "--rows", "10", "--out", "other.csv"],
    ]
    before = {path.name: path.read_bytes() for path in work.iterdir() if path.is_file()}
    for done in run_many(commands, work):
        assert done.returncode == 2, done
        assert "name another" in done.stderr
    assert {path.name: path.read_bytes() for path in work.iterdir() if path.is_file()} == before
    (forced,) = run_many(
        [["datasets", "write", "loans", "--rows", "10", "--out", "other.csv", "--force"]], work
    )
    assert forced.returncode == 0
    assert (work / "other.csv").read_text().count("\n") == 11
