"""A person's record can go: from the tables, from the files, and without breaking the chain."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import sqlalchemy as sa
from ledger_cases import behind, issue, model, recourse, rows_of, untrained
from sqlalchemy.exc import OperationalError

import veritracer as vt
from veritracer.errors import LedgerError, NoRecordError, VeriTracerWarning
from veritracer.ledger import connections, database
from veritracer.ledger.records import SALT
from veritracer.ledger.requests import Request


def test_an_erased_record_can_not_be_read_and_the_chain_holds(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        first, second = issue(ledger, found, "a"), issue(ledger, found, "a")
        who = first.ids[3]
        erased = ledger.erase(who)
        assert erased == [int(first.sequence[3]), int(second.sequence[3])]
        assert ledger.sequences_of(who) == []
        verified = ledger.verify(second.head)
        assert (verified.ok, verified.erased, verified.promises) == (True, 2, 2 * len(first))
        with pytest.raises(LedgerError, match=r"expected a record of promise \d+, got none — .+"):
            ledger.shown(erased[0])
        assert who not in [name for piece in ledger.promises() for name in piece.ids]
        assert ledger.counts().erased == 2
        with pytest.raises(LedgerError, match="people with a record"):
            ledger.erase(who)


def test_nothing_of_the_person_is_left_in_the_file(tmp_path: Path) -> None:
    found = recourse()
    path = tmp_path / "promises.db"

    def stored() -> bytes:
        return b"".join(file.read_bytes() for file in sorted(tmp_path.iterdir()))

    with vt.Ledger(path) as ledger:
        issued = issue(ledger, found, "Wilhelmina")
        row = int(np.flatnonzero(found.status != "none")[2])
        income = f'"income": {found.original["income"].iloc[row]}'.encode()
        traces = [income, found.x[row].numpy().tobytes(), found.x_cf[row].numpy().tobytes()]
        assert all(trace in stored() for trace in traces)
        ledger.erase(issued.ids[2])
        assert not any(trace in stored() for trace in traces)
        assert ledger.verify(issued.head).ok


def test_a_reader_may_hold_up_the_cleaning_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veritracer.ledger.connections.READERS_MAY_TAKE", 10)
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        issued = issue(ledger, recourse())
        reading = ledger.promises(chunk=2)
        next(reading)
        with pytest.warns(VeriTracerWarning, match="still reads .+ — the erasure is recorded, but"):
            ledger.erase(issued.ids[0])
        reading.close()
        assert ledger.verify(issued.head).ok


def test_what_was_only_committed_to_can_be_opened(place: str) -> None:
    found = recourse()
    rows = np.flatnonzero(found.status != "none")
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, found, original="commitment")
        for k in (0, len(rows) - 1):
            opened = ledger.opened(int(issued.sequence[k]), issued.openings[k])
            assert opened["sentence"] == found.sentence(int(rows[k]))
            assert opened["row"]["income"] == found.original["income"].iloc[rows[k]]
        with pytest.raises(LedgerError, match=r"expected what opens promise \d+, got something else — .+"):
            ledger.opened(int(issued.sequence[0]), issued.openings[1])
    assert len(issued.openings[0]) > SALT + 8 * model().encoding_.dim


def of(path: Path) -> bytes:
    """All bytes of a ledger: the file, its write-ahead log and whatever else stands beside it."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()))


class Crowd(NamedTuple):
    """A ledger with promises to many people, whose ids are random."""

    path: Path
    people: list[str]
    head: str


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Crowd:
    """Promises to more than 1,500 people, in batches that were requested."""
    path = tmp_path_factory.mktemp("crowd") / "promises.db"
    network, found = untrained()
    people: list[str] = []
    with vt.Ledger(path) as ledger:
        for batch in range(1 + 1_500 // int((found.status != "none").sum())):
            named = [sha256(b"%d/%d" % (batch, i)).hexdigest()[:12] for i in range(len(found))]
            request = Request(f"batch {batch}", b"rows")
            people += ledger.issue(found, network, ids=named, uncertified="promise", request=request).ids
        head = ledger.head
    assert len(set(people)) == len(people) >= 1_500
    return Crowd(path, people, head)


@pytest.fixture
def crowd(written: Crowd, tmp_path: Path) -> Crowd:
    """A copy of it, alone in its folder."""
    return written._replace(path=Path(shutil.copy(written.path, tmp_path)))


def cells_of(path: Path, people: list[str]) -> list[bytes]:
    """Return what the ledger keeps of these people and of nobody else, and what their requests were."""
    with behind(str(path)) as connection:
        records = [row for row in rows_of(connection, database.records) if row["id"].decode() in people]
        requests = rows_of(connection, database.requests)
    theirs = {min(one["seq"] for one in requests if one["seq"] > row["seq"]) for row in records}
    asked = [one[name] for one in requests for name in ("salt", "digest") if one["seq"] in theirs]
    cells = [row[name] for row in records for name in ("id", "salts")]
    assert len(cells) == 2 * len(people)
    return cells + asked


def assert_erased(path: Path, cells: list[bytes], head: str) -> None:
    stored = of(path)
    assert [cell for cell in cells if cell in stored] == []
    with vt.Ledger(path) as ledger:
        assert ledger.verify(head).ok


def test_of_many_people_erased_at_once_nothing_is_left_in_any_file(crowd: Crowd) -> None:
    path, people, head = crowd
    some = random.Random(1).sample(people, len(people) // 2)
    cells = cells_of(path, some)
    with vt.Ledger(path) as ledger:
        assert len(ledger.erase(*some)) == len(some)
        assert_erased(path, cells, head)
        assert ledger.counts().erased == len(some)
        left = {who for piece in ledger.promises() for who in piece.ids}
    assert left == set(people) - set(some)


def test_of_many_people_erased_one_by_one_nothing_is_left_in_any_file(crowd: Crowd) -> None:
    path, people, head = crowd
    some = random.Random(2).sample(people, 40)
    cells = cells_of(path, some)
    with vt.Ledger(path) as ledger:
        for who in some:
            ledger.erase(who)
            assert who.encode() not in of(path)
    assert_erased(path, cells, head)


def test_nobody_is_erased_where_one_of_them_is_unknown(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, recourse())
        with pytest.raises(NoRecordError, match="'nobody'"):
            ledger.erase(issued.ids[0], "nobody", issued.ids[1])
        with pytest.raises(NoRecordError):
            ledger.erase()
        assert ledger.erase(*issued.ids[:2], issued.ids[0]) == issued.sequence[:2].tolist()
        assert ledger.verify(issued.head).ok


@pytest.mark.parametrize("completed_by", ["the next erasure", "the next opening"])
def test_what_a_reader_held_up_is_completed(
    completed_by: str, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veritracer.ledger.connections.READERS_MAY_TAKE", 10)
    path, people, head = crowd
    some, last = people[: len(people) // 2], people[-1]
    cells = cells_of(path, some)
    with vt.Ledger(path) as ledger:
        with ledger.snapshot() as before:
            with pytest.warns(VeriTracerWarning, match="may remain in the files until the next erasure"):
                ledger.erase(*some)
            assert before.counts().erased == 0, "the reader sees the state that it began with"
            vt.Ledger(path).close()  # can do nothing about it either, and neither fails nor waits
            assert any(cell in of(path) for cell in cells)
        if completed_by == "the next erasure":
            ledger.erase(last)
            assert_erased(path, [*cells, last.encode()], head)
    vt.Ledger(path).close()
    assert_erased(path, cells, head)


KILLED = """
import os, signal, sys
import veritracer as vt
from veritracer.ledger import connections
connections.forget_traces = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
vt.Ledger(sys.argv[1]).erase(*sys.argv[2:])
"""


def test_what_a_killed_process_left_is_completed_by_the_next_opening(crowd: Crowd) -> None:
    path, people, head = crowd
    some = random.Random(3).sample(people, 20)
    cells = cells_of(path, some)
    command = [sys.executable, "-c", KILLED, str(path), *some]
    with vt.Ledger(path) as ledger, ledger.snapshot():  # a reader, or closing the file would clean it
        done = subprocess.run(command, check=False, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == -9
        assert any(cell in of(path) for cell in cells), "it was killed before it was done"
    with vt.Ledger(path) as ledger:
        assert_erased(path, cells, head)
        assert ledger.counts().erased == len(some)


def test_a_disk_without_room_for_the_new_copy_is_no_failed_erasure(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, people, head = crowd
    cells = cells_of(path, people[:3])

    def full(connection: sa.Connection) -> bool:
        raise OperationalError("VACUUM", None, sqlite3.OperationalError("database or disk is full"))

    with vt.Ledger(path) as ledger:
        with monkeypatch.context() as patched:
            patched.setattr("veritracer.ledger.connections._empty_log", full)
            with pytest.warns(VeriTracerWarning, match="got database or disk is full — the erasure is"):
                assert len(ledger.erase(*people[:3])) == 3
            vt.Ledger(path).close()  # no reason not to open it
        assert ledger.counts().erased == 3
    vt.Ledger(path).close()
    assert_erased(path, cells, head)


def test_an_erasure_meanwhile_is_not_taken_for_completed(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else erases when the file was just written anew, and is killed before it is again."""
    emptied, calls = connections._empty_log, []
    engine = connections.connect(connections.place_of(crowd.path))

    def interrupted(connection: sa.Connection) -> bool:
        calls.append(emptied(connection))
        if len(calls) == 2:
            with connections.writing(engine) as other:
                connections.expect_traces(other)
        return calls[-1]

    monkeypatch.setattr(connections, "_empty_log", interrupted)
    with vt.Ledger(crowd.path) as ledger:
        ledger.erase(crowd.people[0])
    assert calls == [True, True]
    assert connections.has_traces(engine)
    vt.Ledger(crowd.path).close()
    assert not connections.has_traces(engine)
    engine.dispose()
