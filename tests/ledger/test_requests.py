"""A request is granted once, on both databases: a retry gets what was issued then."""

from __future__ import annotations

import threading

import pytest
from ledger_cases import EVERYTHING, behind, ids, model, recourse, rows_of

import veritracer as vt
from veritracer.errors import LedgerError, RequestReusedError
from veritracer.ledger import database as tables
from veritracer.ledger.store import Request

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
        kept = ledger.requested(ASKED)
        assert kept is not None
        assert ledger.verify(first.head).ok
        assert ledger.counts().live == len(first) > 0
    assert (first.again, again.again) == (False, True)
    assert again.sequence.tolist() == first.sequence.tolist() == list(kept.sequence)
    assert (again.head, kept.head.hex()) == (first.head, first.head)
    assert kept.answer == {"rows": [0]}


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
        ledger.erase(first.ids[0])
        with behind(place) as connection:
            (row,) = rows_of(connection, tables.requests)
        assert (row["digest"], row["salt"]) == (b"", b"")
        assert issue(ledger).again
        assert ledger.verify().ok


def test_a_batch_that_failed_leaves_no_key(place: str) -> None:
    found = recourse(rows=6)

    def interrupted() -> None:
        with ledger.issuing(model().classifier_, request=ASKED) as batch:
            batch.add(found, ids(found))
            raise KeyboardInterrupt

    with vt.Ledger(place) as ledger:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert ledger.requested(ASKED) is None
        assert not issue(ledger).again


def test_an_answer_that_the_chain_does_not_bear_out_is_refused(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issue(ledger)
        with behind(place) as connection:
            connection.execute(tables.requests.update().values(first=1, count=1))
        with pytest.raises(LedgerError, match="run veritracer verify"):
            ledger.requested(ASKED)
