"""``veritracer issue`` is ended at every step, and repeated: no promise twice, no part missing.

Results have to be on the disk before their promises are in the ledger. The tests know nothing of how that is
done: they end the process, repeat the command, and look at the ledger and at the files.
"""

from __future__ import annotations

import os
import re
import shutil
from base64 import b64decode
from pathlib import Path

import pandas as pd
import pytest
from crashing import KILLED, WAYS
from ledger_cases import undecided
from postgres_server import Server

import veritracer as vt
from processes import THREE_PARTS, Done, assert_refused, run
from recourse_tables import SCHEMA, applicants

HERE = Path(__file__).parent
ISSUE = ["issue", "model", "people.csv", "--id-column", "who", "--kappa", "0.005", "--out", "recourse.csv"]
ISSUE += ["--original", "commitment"]
COMMITS = ("the commit fails", "the commit is kept and its answer lost", "killed after the commit")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and thirty people."""
    folder = tmp_path_factory.mktemp("crash") / "made"
    frame, y = applicants(200)
    model = vt.VeriTraCER(schema=SCHEMA, method="standard", panel=None, hidden=(6,), epochs=1)
    model.fit(frame, y)
    model.classifier_ = undecided(model.encoding_, model.encoding_.encode(frame))
    model.save(folder / "model")
    people = applicants(30, seed=9)[0]
    people.assign(who=[f"p{i}" for i in range(30)]).to_csv(folder / "people.csv", index=False)
    return folder


@pytest.fixture
def work(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(made, tmp_path / "work")
    return tmp_path / "work"


def issue(work: Path, ledger: str, *more: str, way: str | None = None) -> Done:
    """The command, in a process of its own, ended in some way or left alone."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    before = "" if way is None else f"import crashing; crashing.install({way!r})"
    return run(*ISSUE, "--ledger", ledger, *more, before=before, env={"PYTHONPATH": path}, cwd=work)


def promised(ledger: str) -> dict[int, str]:
    """Who was promised something, by the numbers of the promises."""
    with vt.Ledger(ledger) as place:
        assert place.verify().ok
        pieces = [(piece.sequence.tolist(), piece.ids) for piece in place.promises()]
    return {number: who for numbers, ids in pieces for number, who in zip(numbers, ids, strict=True)}


def assert_whole(work: Path, ledger: str) -> None:
    """Nothing; everybody is promised something once, has the result of exactly that, and nothing is left."""
    numbers = promised(ledger)
    assert len(set(numbers.values())) == len(numbers) > 2
    people, found = (pd.read_csv(work / name) for name in ("people.csv", "recourse.csv"))
    assert found["who"].tolist() == people["who"].tolist()
    opening = found.set_index("who")["recourse.opening"]
    assert sorted(opening.dropna().index) == sorted(numbers.values())
    with vt.Ledger(ledger) as place:
        for number, who in numbers.items():
            row = place.opened(number, b64decode(opening[who]))["row"]
            assert row["income"] == people.set_index("who")["income"][who]
    names = {path.name for path in work.iterdir()} - {"promises.db", "promises.db-wal", "promises.db-shm"}
    named = {name for name in names if not re.search(r"\.[0-9a-f]{8}\.pending(\.partial)?$", name)}
    assert named == {"model", "people.csv", "recourse.csv"}


def ended_and_repeated(work: Path, ledger: str, way: str) -> None:
    first = issue(work, ledger, way=way)
    if way.startswith("killed"):
        assert first.returncode == KILLED, first
    else:
        assert first.returncode == 2, first
        assert THREE_PARTS.fullmatch(first.stderr), first.stderr
        assert ("nothing was kept" in first.stderr) <= (promised(ledger) == {}), first.stderr
    if "commit" in way and not way.startswith("killed"):
        assert "unknown: repeat the command" in first.stderr
    again = issue(work, ledger)
    assert again.returncode == 0, again
    assert re.search(r"\d promises were issued", again.stdout), again.stdout
    assert_whole(work, ledger)


@pytest.mark.parametrize("way", WAYS)
def test_a_command_that_was_ended_is_repeated(way: str, work: Path) -> None:
    ended_and_repeated(work, str(work / "promises.db"), way)
    if not way.startswith("killed wh"):  # of a process that is killed before its note nobody knows the files
        assert not list(work.glob("*.pending*"))


@pytest.mark.long
@pytest.mark.parametrize("way", COMMITS)
def test_so_it_is_with_postgres(way: str, work: Path, postgres: Server) -> None:
    ended_and_repeated(work, postgres.new(), way)


def test_what_is_repeated_has_to_be_the_same(work: Path) -> None:
    """Other rows, another question or another ledger are refused by name, and nothing is lost by that."""
    ledger = str(work / "promises.db")
    assert issue(work, ledger, way="killed after the commit").returncode == KILLED
    people = pd.read_csv(work / "people.csv")
    changed = {
        "shortened": people[:-1],
        "lengthened": pd.concat([people, people[:1].assign(who="new")]),
        "reordered": people[::-1],
    }
    for rows in changed.values():
        rows.to_csv(work / "people.csv", index=False)
        done = issue(work, ledger)
        assert_refused(done)
        assert "recourse.csv.pending.json names, got other rows" in done.stderr
    people.to_csv(work / "people.csv", index=False)
    for more, said in (
        (["--overshoot", "0.1"], "another options"),
        (["--expires", "90d"], "another options"),
    ):
        done = issue(work, ledger, *more)
        assert_refused(done)
        assert said in done.stderr
    vt.Ledger(work / "other.db").close()
    done = issue(work, str(work / "other.db"))
    assert_refused(done)
    assert "the ledger that" in done.stderr
    (work / "other.db").unlink()
    assert issue(work, ledger).returncode == 0
    assert_whole(work, ledger)
    done = issue(work, ledger)
    assert_refused(done)  # once more: the openings that are there are not written over
    assert "recourse.csv, which has openings of commitments" in done.stderr
    assert_whole(work, ledger)


def test_where_nothing_is_promised_the_ledger_stays_as_it_is(work: Path) -> None:
    ledger = str(work / "promises.db")
    first, again = issue(work, ledger), issue(work, ledger, "--out", "none.csv")
    assert (first.returncode, again.returncode) == (0, 0), again
    assert "0 promises were issued" in again.stdout
    assert first.stdout.splitlines()[-1] == again.stdout.splitlines()[-1]  # the head
    assert len(pd.read_csv(work / "none.csv")) == len(pd.read_csv(work / "people.csv"))
    (work / "none.csv").unlink()
    assert_whole(work, ledger)


def test_what_is_written_nowhere_is_not_issued(work: Path) -> None:
    command = [part for part in ISSUE if part not in ("--out", "recourse.csv")]
    for more in ([], ["--out", "-"], ["--allow-duplicate", "--original", "plain"]):
        done = run(*command, "--ledger", "promises.db", *more, cwd=work)
        assert_refused(done)
        assert "add --out FILE" in done.stderr
    assert not (work / "promises.db").exists()
