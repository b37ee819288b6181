"""A request is granted once, on both databases: a retry gets what was issued then."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from ledger_cases import EVERYTHING, behind, ids, model, prepared, recourse, rows_of

import veritracer as vt
from veritracer.errors import LedgerError, RequestReusedError
from veritracer.ledger import database as tables
from veritracer.ledger.requests import Request

ASKED = Request("key-1", b"what was asked", {"rows": [0]})


def issue(ledger: vt.Ledger, request: Request | None = ASKED) -> vt.ledger.Issued:
    found = recourse(rows=6)
    return ledger.issue(found, model().classifier_, ids=ids(found), request=request, **EVERYTHING)


def test_a_retry_gets_what_was_issued_then(place: str) -> None:
    with vt.Ledger(place) as ledger:
        assert ledger.requested(ASKED) is None
        first = issue(ledger)
    with vt.Ledger(place) as ledger:
        again = issue(ledger)
        known = ledger.requested(ASKED)
        assert known is not None
        assert ledger.verify(first.head).ok
        assert ledger.counts().live == len(first) > 0
    assert (first.again, again.again) == (False, True)
    assert again.sequence.tolist() == first.sequence.tolist() == known.sequence.tolist()
    assert (again.head, known.head) == (first.head, first.head)
    assert known.answer == {"rows": [0]}


def test_a_key_is_not_for_another_request(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issue(ledger)
        with pytest.raises(RequestReusedError, match="expected the request that this key"):
            issue(ledger, ASKED._replace(content=b"something else"))
        with pytest.raises(RequestReusedError):
            ledger.requested(ASKED._replace(content=b"something else"))
        assert not issue(ledger, ASKED._replace(key="key-2")).again


def test_two_at_once_issue_once(place: str) -> None:
    recourse(rows=6), model()
    done: list[vt.ledger.Issued] = []

    def run() -> None:
        with vt.Ledger(place) as ledger:
            done.append(issue(ledger))

    vt.Ledger(place).close()
    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.again for one in done) == [False, True, True, True]
    assert len({tuple(one.sequence.tolist()) for one in done}) == 1


def test_an_erasure_leaves_nothing_that_speaks_of_the_person(place: str) -> None:
    with vt.Ledger(place) as ledger:
        first = issue(ledger)
        other = issue(ledger, ASKED._replace(key="key-2"))
        ledger.erase(first.ids[0])
        with behind(place) as connection:
            cleared = [(row["digest"], row["salt"]) for row in rows_of(connection, tables.requests)]
        assert cleared == [(b"", b"")] * 2, "the same person, twice"
        assert issue(ledger).again
        assert ledger.verify(other.head).ok


def test_only_the_requests_of_an_erased_promise_are_cleared(place: str) -> None:
    found = recourse(rows=6)
    with vt.Ledger(place) as ledger:
        first = issue(ledger)
        named = ids(found, "somebody else")
        second = ledger.issue(
            found, model().classifier_, ids=named, request=ASKED._replace(key="key-2", content=b"more")
        )
        ledger.erase(first.ids[0])
        with behind(place) as connection:
            assert [row["digest"] == b"" for row in rows_of(connection, tables.requests)] == [True, False]
        with pytest.raises(RequestReusedError):
            ledger.requested(ASKED._replace(key="key-2"))
        assert ledger.verify(second.head).ok


def test_a_batch_that_failed_leaves_no_key(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = tables.Writer.flush

    def interrupted(writer: tables.Writer) -> None:
        flush(writer)
        raise KeyboardInterrupt

    with vt.Ledger(place) as ledger:
        monkeypatch.setattr(tables.Writer, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            issue(ledger)
        monkeypatch.undo()
        assert ledger.requested(ASKED) is None
        assert not issue(ledger).again


def test_a_retry_is_told_the_dates_of_then(place: str) -> None:
    with vt.Ledger(place) as ledger:
        first, again = issue(ledger), issue(ledger)
    assert (again.issued, again.expires) == (first.issued, first.expires)


def test_a_request_without_promises_is_kept(place: str) -> None:
    with vt.Ledger(place) as ledger:
        found = recourse(rows=6)
        nobody = found.select(np.flatnonzero(found.status == "none"))
        for again in (False, True):
            issued = ledger.append(prepared(nobody), ASKED)
            assert (len(issued), issued.again) == (0, again)
        assert ledger.verify(issued.head).ok


Change = Callable[[sa.Connection, sa.Table, list[dict[str, Any]]], Any]


def put(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Write these rows in the place of those that are there."""
    connection.execute(sa.delete(table))
    connection.execute(table.insert(), rows)


def exchanged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give each of two rows the content of the other."""
    one, other = ({k: v for k, v in row.items() if k != next(iter(row))} for row in rows)
    return [rows[0] | other, rows[1] | one]


def rewritten(column: int) -> Change:
    """Another value in a column of the first request."""

    def change(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
        name = list(rows[0])[column]
        value = rows[0][name]
        other = value + 1 if isinstance(value, int) else bytes([value[0] ^ 1]) + value[1:]
        put(connection, table, [rows[0] | {name: other}, rows[1]])

    return change


def another_answer(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Rewrite what a retry is told; it can be read as before."""
    put(connection, table, [rows[0] | {list(rows[0])[-1]: b'{"rows": [7]}'}, rows[1]])


def cleared(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    """Clear what was asked, as an erasure does."""
    put(connection, table, [rows[0] | {"salt": b"", "digest": b""}, rows[1]])


TAMPERED: dict[str, Change] = {
    "a row rewritten, second column": rewritten(1),
    "a row rewritten, third column": rewritten(2),
    "a row rewritten, last column": rewritten(-1),
    "another answer": another_answer,
    "cleared without an erasure": cleared,
    "rows exchanged": lambda c, t, rows: put(c, t, exchanged(rows)),
    "a row deleted": lambda c, t, rows: put(c, t, rows[1:]),
    "all rows deleted": lambda c, t, rows: c.execute(sa.delete(t)),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_what_is_done_to_a_row_is_found_by_verifying_and_by_reading(case: str, place: str) -> None:
    with vt.Ledger(place) as ledger:
        issue(ledger)
        last = issue(ledger, ASKED._replace(key="key-2", content=b"something else"))
        with behind(place) as connection:
            TAMPERED[case](connection, tables.requests, rows_of(connection, tables.requests))
        found = ledger.verify(last.head)
        assert not found.ok
        assert ledger.head == last.head
        for read in (ledger.requested, lambda asked: issue(ledger, asked)):
            with pytest.raises(LedgerError, match="run veritracer verify"):
                read(ASKED)
        assert ledger.head == last.head, "nothing was issued again"


def test_without_its_table_nothing_is_issued_again(place: str) -> None:
    with vt.Ledger(place) as ledger:
        head = issue(ledger).head
        with behind(place) as connection:
            tables.requests.drop(connection)
        for use in (ledger.verify, lambda: ledger.requested(ASKED), lambda: issue(ledger)):
            with pytest.raises(LedgerError):
                use()
        assert ledger.head == head


def test_a_row_that_nobody_asked_for_is_found_and_answers_nobody(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issue(ledger)
        with behind(place) as connection:
            (row,) = rows_of(connection, tables.requests)
            key = next(iter(row))
            connection.execute(tables.requests.insert(), row | {key: row[key] + 1})
        assert [finding.what for finding in ledger.verify().findings] == [
            "veritracer_requests has 1 rows that belong to no entry"
        ]
        assert ledger.requested(ASKED._replace(key="key-2")) is None


def test_what_an_erasure_cleared_cannot_be_put_back(place: str) -> None:
    with vt.Ledger(place) as ledger:
        first = issue(ledger)
        with behind(place) as connection:
            before = rows_of(connection, tables.requests)
        ledger.erase(first.ids[0])
        assert ledger.verify().ok
        with behind(place) as connection:
            put(connection, tables.requests, before)
        (finding,) = ledger.verify().findings
        assert "still there" in finding.what


def test_an_entry_that_was_changed_tells_nobody_other_numbers(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issue(ledger)
        with behind(place) as connection:
            entry = rows_of(connection, tables.entries)[-1]
            header = (
                entry["header"].replace(b'"first": 3', b'"first": 4').replace(b'"count": ', b'"count": -')
            )
            assert (entry["kind"], header != entry["header"]) == ("request", True)
            changed = tables.entries.update().where(tables.entries.c.seq == entry["seq"])
            connection.execute(changed.values(header=header))
        assert not ledger.verify().ok
        with pytest.raises(LedgerError, match="run veritracer verify"):
            ledger.requested(ASKED)
