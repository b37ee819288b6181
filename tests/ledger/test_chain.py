"""No change to a ledger goes unseen: any cell, any byte, any row, and its end where a head was noted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_cases import KEY, TABLES, issue, recourse, rows_of

import veritracer as vt
from veritracer.errors import LedgerError
from veritracer.ledger import Verification, chain
from veritracer.ledger import database as tables
from veritracer.ledger.connections import place_of
from veritracer.ledger.requests import Request

Cell = tuple[sa.Table, Any, str]  # table, key of the row, column


class Victim:
    """A ledger with every kind of entry and rows kept in every way, to be changed and put right again."""

    def __init__(self, place: str) -> None:
        self.ledger = vt.Ledger(place)
        first = issue(
            self.ledger, recourse(rows=7), "plain", request=Request("first", b"plain", {"rows": []})
        )
        issue(self.ledger, recourse(rows=7), "locked", original="encrypted", key=KEY)
        issue(self.ledger, recourse(rows=7, overshoot=0.02), "hidden", original="commitment")
        self.ledger.release(first.sequence[:1], "withdrawn")
        self.ledger.erase(first.ids[1])
        issue(self.ledger, recourse(rows=7), "last", request=Request("last", b"last"))
        self.head = self.ledger.head
        self.engine = sa.create_engine(place_of(place))
        if self.engine.dialect.name == "sqlite":  # our damage need not survive a crash
            sa.event.listen(self.engine, "connect", lambda c, _: c.execute("PRAGMA synchronous = OFF"))
        with self.behind() as connection:
            self.content = {table: rows_of(connection, table) for table in TABLES}

    def behind(self) -> AbstractContextManager[sa.Connection]:
        """A connection that obeys no rule but the database's own."""
        return self.engine.begin()

    def verified(self, head: str | None = None) -> Verification:
        """What verify says; it never changes anything."""
        return self.ledger.verify(head)

    def put_right(self) -> None:
        """Nothing; every table is as it was."""
        with self.behind() as connection:
            for table, rows in self.content.items():
                connection.execute(sa.delete(table))
                connection.execute(table.insert(), rows)

    def close(self) -> None:
        self.ledger.close()
        self.engine.dispose()


@pytest.fixture(scope="module")
def module_victim(shared_place: str) -> Iterator[Victim]:
    made = Victim(shared_place)
    assert made.verified(made.head).ok
    yield made
    made.close()


@pytest.fixture
def victim(module_victim: Victim) -> Iterator[Victim]:
    yield module_victim
    module_victim.put_right()
    assert module_victim.verified(module_victim.head).ok, "everything is as before"


def cells(connection: sa.Connection) -> list[Cell]:
    found = []
    for table in TABLES:
        key = key_of(table).name
        found += [(table, row[key], name) for row in rows_of(connection, table) for name in row]
    return found


def get(connection: sa.Connection, cell: Cell) -> Any:
    """What is in the cell."""
    table, key, name = cell
    return connection.scalar(sa.select(table.c[name]).where(key_of(table) == key))


def put(connection: sa.Connection, cell: Cell, value: Any) -> None:
    """Nothing; ``value`` is in the cell."""
    table, key, name = cell
    connection.execute(sa.update(table).where(key_of(table) == key).values({name: value}))


def key_of(table: sa.Table) -> sa.Column[Any]:
    return next(iter(table.primary_key.columns))


def others(value: Any) -> Any:
    """Another value for a cell, of the same type."""
    if value is None:
        return b"\x00" * 8
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:] if value else b"\x00"
    return value + 1_000 if isinstance(value, int) else value + "x"


def test_any_changed_cell_is_found(victim: Victim) -> None:
    with victim.behind() as connection:
        every = cells(connection)
    assert len({(table.name, name) for table, _, name in every}) == sum(len(t.columns) for t in TABLES)
    for cell in every:
        table, key, name = cell
        moved = (table, key + 1_000, name) if name == key_of(table).name else cell
        with victim.behind() as connection:
            before = get(connection, cell)
            put(connection, cell, others(before))
        assert not victim.verified().ok, cell
        with victim.behind() as connection:
            put(connection, moved, before)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_flipped_bit_is_found(victim: Victim, data: st.DataObject) -> None:
    blobs = [
        (table, row["seq"], name, value)
        for table in TABLES
        for row in victim.content[table]
        for name, value in row.items()
        if isinstance(value, bytes) and value
    ]
    table, key, name, value = data.draw(st.sampled_from(blobs))
    at, bit = data.draw(st.integers(0, len(value) - 1)), data.draw(st.integers(0, 7))
    changed = value[:at] + bytes([value[at] ^ 1 << bit]) + value[at + 1 :]
    with victim.behind() as connection:
        put(connection, (table, key, name), changed)
    found = victim.verified()
    with victim.behind() as connection:
        put(connection, (table, key, name), value)
    assert not found.ok, (table.name, key, name, at)
    assert key in {finding.sequence for finding in found.findings}


def test_a_value_of_another_type_is_found(tmp_path: Path) -> None:
    victim = Victim(str(tmp_path / "promises.db"))  # PostgreSQL refuses such values itself
    with victim.behind() as connection:
        every = [cell for cell in cells(connection) if not cell[0].c[cell[2]].primary_key]
    choices = itertools.cycle(["text", 7, 1.5, b"", None])
    for table, key, name in every:
        value = next(choice for choice in choices if choice is not None or table.c[name].nullable)
        update = f"UPDATE {table.name} SET {name} = ? WHERE {key_of(table).name} = ?"  # past SQLAlchemy
        with victim.behind() as connection:
            kept = get(connection, (table, key, name))
            connection.exec_driver_sql(update, (value, key))
        assert kept == value or not victim.verified().ok, (table.name, key, name)
        with victim.behind() as connection:
            connection.exec_driver_sql(update, (kept, key))
    assert victim.verified(victim.head).ok
    victim.close()


def _delete(connection: sa.Connection, table: sa.Table, seq: int) -> None:
    connection.execute(sa.delete(table).where(table.c.seq == seq))


def _copy(connection: sa.Connection, table: sa.Table, seq: int, to: int) -> None:
    row = connection.execute(sa.select(table).where(table.c.seq == seq)).one()._mapping
    connection.execute(table.insert(), {**row, "seq": to})


def _swap(connection: sa.Connection, table: sa.Table, one: int, other: int) -> None:
    for old, new in ((one, 9_999), (other, one), (9_999, other)):
        connection.execute(sa.update(table).where(table.c.seq == old).values(seq=new))


def _clear(connection: sa.Connection, table: sa.Table) -> None:
    connection.execute(sa.delete(table))


# Each change is a list of steps: what to do, to which table, and the rest of its arguments. Entry 2 is the
# model, 3 and after are promises, of which 4 was erased.
ROWS: dict[str, list[Any]] = {
    "an entry deleted": [(_delete, tables.entries, 5)],
    "an entry inserted at the end": [(_copy, tables.entries, 5, 10_000)],
    "two entries exchanged": [(_swap, tables.entries, 3, 5)],
    "two records exchanged": [(_swap, tables.records, 3, 5)],
    "a record deleted": [(_delete, tables.records, 3)],
    "a model deleted": [(_delete, tables.models, 2)],
    "a record added": [(_copy, tables.records, 3, 9_000)],
    "a model added": [(_copy, tables.models, 2, 9_000)],
    "an erased record put back": [(_copy, tables.records, 3, 4)],
    "a promise with the content of a model": [(_copy, tables.models, 2, 3)],
    "a model with the record of a promise": [(_copy, tables.records, 3, 2)],
    "the first entry deleted": [(_delete, tables.entries, 1)],
    "all entries deleted": [(_clear, tables.entries)],
    "all records deleted": [(_clear, tables.records)],
    "all requests deleted": [(_clear, tables.requests)],
}


@pytest.mark.parametrize("change", ROWS)
def test_any_changed_row_is_found(change: str, victim: Victim) -> None:
    with victim.behind() as connection:
        for step, table, *rest in ROWS[change]:
            step(connection, table, *rest)
    assert not victim.verified().ok


def test_a_missing_end_is_found_with_a_head(victim: Victim) -> None:
    newest = issue(victim.ledger, recourse(rows=7), "newest")
    assert victim.verified(victim.head).ok, "an older head is still in the chain"
    with victim.behind() as connection:  # the newest promise is gone, from every table
        for table in TABLES:
            connection.execute(sa.delete(table).where(table.c.seq > int(newest.sequence[-1]) - 1))
    assert victim.verified().ok, "nothing shows without a head"
    assert victim.verified(victim.head).ok
    assert [finding.what for finding in victim.verified(newest.head).findings] == [
        "the head that was noted is not in the chain: its end was cut off or rewritten"
    ]


def test_a_rewritten_chain_is_found_with_a_head(victim: Victim) -> None:
    link = chain.BEGINNING
    with victim.behind() as connection:
        for row in victim.content[tables.entries]:  # by somebody who knows how links are made
            header = row["header"].replace(b"withdrawn", b"forgotten")
            link = chain.link(link, row["seq"], row["kind"], row["model"], header, row["commitments"])
            at = tables.entries.c.seq == row["seq"]
            connection.execute(sa.update(tables.entries).where(at).values(header=header, link=link))
    assert victim.verified().ok, "nothing shows without a head"
    assert not victim.verified(victim.head).ok


def test_the_chain_can_be_checked_with_nothing_but_sha256(victim: Victim) -> None:
    """As docs/explanation/ledger-threat-model.md describes it, without a line of the library's code."""
    link, erased, promises = bytes(32), 0, 0
    records = {row["seq"]: row for row in victim.content[tables.records]}
    requests = {row["seq"]: row for row in victim.content[tables.requests]}
    for row in victim.content[tables.entries]:
        about = "{seq}\n{kind}\n{model}\n{0}\n".format(len(row["header"]), **row).encode()
        link = sha256(link + about + row["header"] + row["commitments"]).digest()
        assert link == row["link"]
        if row["kind"] == "promise" and row["seq"] not in records:
            erased += 1
        elif row["kind"] == "promise":
            one = records[row["seq"]]
            parts = [one["id"]]
            for numbers, text in (("x_cf", "public"), ("x", "private")):
                if one[text] is not None:
                    parts.append(str(len(one[numbers])).encode() + b"\n" + one[numbers] + one[text])
            assert len(parts) == len(one["salts"]) // 16
            for k, part in enumerate(parts):
                salt = one["salts"][16 * k : 16 * k + 16]
                assert sha256(salt + part).digest() == row["commitments"][32 * k : 32 * k + 32]
            promises += 1
        elif row["kind"] == "request":
            asked, seen = requests.pop(row["seq"]), row["commitments"]
            assert sha256(asked["response"]).digest() == seen[32:]
            whole = sha256(asked["salt"] + asked["digest"]).digest() == seen[:32]
            assert whole != (asked["salt"] == asked["digest"] == b"")
    assert (link.hex(), erased, requests) == (victim.head, 1, {})
    assert promises == len(records)


def test_a_head_is_checked_before_it_is_looked_for(victim: Victim) -> None:
    for head in ("", "abc", "zz" * 32, "00" * 31):
        with pytest.raises(LedgerError, match=r"expected a head of 64 hexadecimal digits, got .+ — .+"):
            victim.verified(head)


def test_findings_are_counted_beyond_those_that_are_told(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veritracer.ledger.verification.MAX_FINDINGS", 3)
    with victim.behind() as connection:
        connection.execute(sa.update(tables.records).values(public=b"{}"))
    found = victim.verified()
    assert (len(found.findings), found.count, found.ok) == (3, len(victim.content[tables.records]), False)


@pytest.mark.parametrize("change", ["no first entry", "another kind", "another version"])
def test_a_ledger_of_another_layout_is_not_opened(change: str, tmp_path: Path) -> None:
    victim = Victim(str(tmp_path / "promises.db"))
    first = tables.entries.c.seq == 1
    header = victim.content[tables.entries][0]["header"].replace(b'"version": 1', b'"version": 2')
    with victim.behind() as connection:
        if change == "no first entry":
            connection.execute(sa.delete(tables.entries).where(first))
        else:
            other = {"kind": "migration"} if change == "another kind" else {"header": header}
            connection.execute(sa.update(tables.entries).where(first).values(**other))
    with pytest.raises(LedgerError, match=r"expected a ledger of layout 1, got .+ — .+"):
        vt.Ledger(tmp_path / "promises.db")
    victim.close()


def test_many_may_create_it_at_once(place: str) -> None:
    def opened(_: int) -> str:
        with vt.Ledger(place) as ledger:
            return ledger.head

    with ThreadPoolExecutor(8) as pool:
        heads = list(pool.map(opened, range(8)))
    assert len(set(heads)) == 1
    with vt.Ledger(place) as ledger:
        assert (ledger.verify().ok, ledger.verify().entries) == (True, 1)


def test_no_two_ledgers_share_a_chain(place: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with vt.Ledger(place) as one, vt.Ledger(tmp_path_factory.mktemp("other") / "promises.db") as other:
        assert one.head != other.head
        assert one.identity != other.identity
