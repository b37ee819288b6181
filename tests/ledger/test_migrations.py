"""A ledger has a version from its first day on, and a way from each version to the next."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from ledger_cases import behind, issue, recourse, rows_of

import veritracer as vt
from veritracer.errors import LedgerError
from veritracer.ledger import database as tables
from veritracer.ledger import store
from veritracer.ledger.store import MIGRATIONS, Migration


def _remarks(connection: sa.Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE veritracer_remarks (seq INTEGER, remark TEXT)")


def _failing(connection: sa.Connection) -> None:
    _remarks(connection)
    raise KeyboardInterrupt


NEXT = Migration(4, "remarks", _remarks)


def test_versions_count_up_from_one() -> None:
    assert [step.version for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_a_migration_is_applied_once_and_is_in_the_chain(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, recourse())
    monkeypatch.setattr(store, "MIGRATIONS", (*MIGRATIONS, NEXT))
    for _ in range(2):
        with vt.Ledger(place) as ledger:
            assert ledger.verify(issued.head).ok
            assert ledger.counts().live == len(issued)
    with behind(place) as connection:
        versions = [(row["version"], row["name"]) for row in rows_of(connection, tables.migrations)]
        newest = rows_of(connection, tables.entries)[-1]
    assert versions == [*((step.version, step.name) for step in MIGRATIONS), (4, "remarks")]
    header = json.loads(newest["header"])
    assert (newest["kind"], header["version"], header["name"]) == ("migration", 4, "remarks")


def test_a_newer_ledger_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(store, "MIGRATIONS", (*MIGRATIONS, NEXT))
        vt.Ledger(place).close()
    with pytest.raises(LedgerError, match=r"expected a ledger of version 3 or older .+, got version 4 — .+"):
        vt.Ledger(place)


def test_a_migration_that_fails_leaves_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with vt.Ledger(place) as ledger:
        head = ledger.head
    with monkeypatch.context() as patched:
        patched.setattr(store, "MIGRATIONS", (*MIGRATIONS, NEXT._replace(apply=_failing)))
        with pytest.raises(KeyboardInterrupt):
            vt.Ledger(place)
    with vt.Ledger(place) as ledger, behind(place) as connection:
        assert ledger.head == head
        assert not sa.inspect(connection).has_table("veritracer_remarks")


def test_many_may_create_it_at_once(place: str) -> None:
    def opened(_: int) -> str:
        with vt.Ledger(place) as ledger:
            return ledger.head

    with ThreadPoolExecutor(8) as pool:
        heads = list(pool.map(opened, range(8)))
    assert len(set(heads)) == 1
    with vt.Ledger(place) as ledger:
        assert (ledger.verify().ok, ledger.verify().entries) == (
            True,
            sum(not step.waits for step in MIGRATIONS),
        )


def test_no_two_ledgers_share_a_chain(place: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with vt.Ledger(place) as one, vt.Ledger(tmp_path_factory.mktemp("other") / "promises.db") as other:
        assert one.head != other.head
