"""A database that others use too: waited for, and given up in one sentence."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import veritracer as vt
from veritracer.errors import LedgerError, LedgerUnavailableError
from veritracer.ledger import connections
from veritracer.ledger.connections import connect, place_of, writing

Hold = Callable[[Path], sqlite3.Connection]


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    """Makes somebody else the one who writes to a file; SQLite itself does not wait for them."""
    monkeypatch.setattr(connections, "PATIENCE", 0.0)
    held: list[sqlite3.Connection] = []

    def lock(path: Path) -> sqlite3.Connection:
        held.append(sqlite3.connect(path, isolation_level=None))
        held[-1].execute("BEGIN IMMEDIATE")
        return held[-1]

    yield lock
    for one in held:
        one.close()


def test_who_writes_for_too_long_is_not_waited_for(tmp_path: Path, hold: Hold) -> None:
    with vt.Ledger(tmp_path / "l.db") as ledger:
        hold(tmp_path / "l.db")
        with pytest.raises(LedgerUnavailableError, match=r"l\.db to be free, got database is locked") as busy:
            ledger.release([1], "none")
    assert "another process writes for too long" in str(busy.value)


def test_a_transaction_begins_when_the_other_ends(
    tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    vt.Ledger(tmp_path / "l.db").close()
    engine = connect(place_of(tmp_path / "l.db"))
    other = hold(tmp_path / "l.db")
    monkeypatch.setattr(connections, "PATIENCE", 60.0)
    monkeypatch.setattr(connections.time, "sleep", lambda seconds: other.rollback())
    with writing(engine) as connection:
        assert connection.exec_driver_sql("select 1").scalar() == 1
    assert not other.in_transaction


def test_a_new_file_is_prepared_when_the_other_is_done_with_it(
    tmp_path: Path, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = connect(place_of(tmp_path / "new.db"))
    other = hold(tmp_path / "new.db")
    with pytest.raises(LedgerUnavailableError, match="to be free"), writing(engine):
        pass
    monkeypatch.setattr(connections, "PATIENCE", 60.0)
    monkeypatch.setattr(connections.time, "sleep", lambda seconds: other.rollback())
    with writing(engine) as connection:
        assert connection.exec_driver_sql("pragma journal_mode").scalar() == "wal"


def test_an_install_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError, match=r"expected the package psycopg.*veritracer\[postgres\]"):
        connect(place_of("postgresql://me@host/name"))


def test_a_ledger_says_where_it_is(tmp_path: Path) -> None:
    with vt.Ledger(tmp_path / "l.db") as ledger:
        assert repr(ledger).startswith("Ledger(")
        assert "l.db" in repr(ledger)
