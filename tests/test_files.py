"""Files and folders that appear only when they are whole, written by one helper for the whole library."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import veritracer
from veritracer.files import document_text, envelope, whole_file, whole_folder, write_whole

SOURCE = Path(veritracer.__file__).parent


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_takes_its_place_when_it_is_whole(tmp_path: Path, shared: bool) -> None:
    place = tmp_path / "table.csv"
    place.write_text("old")
    with whole_file(place, shared=shared) as file:
        file.write(b"new")
        assert place.read_text() == "old"
        assert len(list(tmp_path.glob("*.partial"))) == 1
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("table.csv", "new")]


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_fails_leaves_what_was_there(tmp_path: Path, shared: bool) -> None:
    place = tmp_path / "table.csv"
    place.write_text("old")

    def interrupted() -> None:
        with whole_file(place, shared=shared) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("table.csv", "old")]


def test_writers_of_a_shared_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    place = tmp_path / "cell.json"
    with whole_file(place, shared=True) as one, whole_file(place, shared=True) as other:
        one.write(b"one")
        other.write(b"other")
    assert place.read_text() == "one"  # which ended last
    assert (place.stat().st_mode & 0o777, [p.name for p in tmp_path.iterdir()]) == (0o644, ["cell.json"])


def test_a_device_is_written_as_it_is() -> None:
    with whole_file(Path(os.devnull)) as file:
        file.write(b"nothing is kept")
    assert not Path(os.devnull).is_file()


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "letters"

    def interrupted() -> None:
        with whole_folder(place) as folder:
            (folder / "1.txt").write_text("Dear")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    with whole_folder(place) as folder:
        (folder / "1.txt").write_text("Dear")
        assert not place.exists()
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*")] == ["letters/1.txt"]


def test_a_document_says_what_it_is(tmp_path: Path) -> None:
    text = document_text({**envelope("veritracer-audit", 1), "κ": 0.2}, tmp_path / "audit.json")
    assert (tmp_path / "audit.json").read_text() == f"{text}\n"
    assert json.loads(text) == {"format": "veritracer-audit", "version": 1, "κ": 0.2}
    with pytest.raises(ValueError, match="not JSON compliant"):
        document_text({"κ": float("nan")}, tmp_path / "bad.json")
    assert not (tmp_path / "bad.json").exists()
    assert write_whole(tmp_path / "new" / "page.html", "é").read_bytes() == "é".encode()


def test_nobody_else_renames_partial_files() -> None:
    others = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "files.py"]
    signs = ("mkstemp", '.partial"', ".partial'", "os.fsync")
    assert [path.name for path in others if any(sign in path.read_text() for sign in signs)] == []
