"""Under one key promises are issued once, whoever tries again; the chain stays one chain."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from ledger_cases import behind, ids, model, recourse

import veritracer as vt
from veritracer.errors import LedgerError
from veritracer.ledger import Issued
from veritracer.ledger import database as tables


def issue_once(ledger: vt.Ledger, once: str, found: vt.Counterfactuals, receipt: str = "") -> Issued:
    with ledger.issuing(model().classifier_, once=once) as batch:
        batch.add(found, ids(found))
        batch.receipt = receipt
    return batch.issued


def test_a_key_issues_once_and_says_what_it_issued(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        first = issue_once(ledger, "run/1", found, "digest")
        again = issue_once(ledger, "run/1", found, "another")
        other = issue_once(ledger, "run/2", found)
        assert (first.again, again.again, other.again) == (False, True, False)
        assert again.sequence.tolist() == first.sequence.tolist()
        assert (first.receipt, again.receipt) == ("digest", "digest")
        assert ledger.counts().live == 2 * len(first)
        assert ledger.issued_under("run/1") == (range(first.sequence[0], first.sequence[-1] + 1), "digest")
        assert ledger.issued_under("run/3") is None
        assert ledger.verify(first.head).ok


def test_many_who_try_at_once_issue_once(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(lambda _: issue_once(ledger, "block", found), range(4)))
        assert sorted(one.again for one in done) == [False, True, True, True]
        assert len({tuple(one.sequence.tolist()) for one in done}) == 1
        assert (ledger.counts().live, ledger.verify().ok) == (len(done[0]), True)


def test_a_failed_batch_leaves_no_key(place: str) -> None:
    found = recourse()

    def interrupted() -> None:
        with ledger.issuing(model().classifier_, once="block") as batch:
            batch.add(found, ids(found))
            raise KeyboardInterrupt

    with vt.Ledger(place) as ledger:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert ledger.issued_under("block") is None
        assert not issue_once(ledger, "block", found).again


def test_a_key_is_not_for_other_promises(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issue_once(ledger, "block", recourse())
        with pytest.raises(LedgerError, match=r"expected the \d+ promises that were issued as 'block', got"):
            issue_once(ledger, "block", recourse(rows=20))


def test_a_key_that_the_chain_does_not_bear_out_is_refused(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issue_once(ledger, "block", recourse())
        with behind(place) as connection:
            connection.execute(tables.batches.update().values(last=1, first=1))
        with pytest.raises(LedgerError, match="run veritracer verify"):
            ledger.issued_under("block")
