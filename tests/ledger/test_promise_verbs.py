"""What ``veritracer promises`` prints, asked in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ledger_cases import issue, recourse
from typer.testing import CliRunner

import veritracer as vt
from veritracer.app.cli.ledger import app


@pytest.fixture
def ledger(tmp_path: Path) -> tuple[str, list[int], list[str]]:
    """The place of a ledger, its promises' numbers, and whose they are."""
    place = str(tmp_path / "l.db")
    with vt.Ledger(place) as opened:
        done = issue(opened, recourse())
    return place, done.sequence.tolist(), list(done.ids)


def said(*args: str) -> str:
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_a_verb_there_is_help() -> None:
    assert "List, show, release and erase promises" in said()


def test_a_long_list_is_cut_and_says_so(ledger: tuple[str, list[int], list[str]]) -> None:
    place, numbers, _ = ledger
    told = said("list", "--ledger", place, "--most", "2")
    assert f"{len(numbers)} of {len(numbers)} promises ({len(numbers)} live)" in told
    assert f"{len(numbers) - 2} more: ask with --most, --id or --json." in told


def test_a_release_and_an_erasure_as_json(ledger: tuple[str, list[int], list[str]]) -> None:
    place, numbers, ids = ledger
    first, second = numbers[:2]
    released = json.loads(
        said("release", str(first), str(second), "--ledger", place, "--reason", "withdrawn", "--json")
    )
    assert released["released"] == [first, second]
    erased = json.loads(said("erase", ids[0], "--ledger", place, "--yes", "--json"))
    assert erased["erased"] == [first]
    with vt.Ledger(place) as opened:
        assert (opened.head, opened.counts().released) == (erased["head"], 1)
        assert opened.verify(released["head"]).ok
