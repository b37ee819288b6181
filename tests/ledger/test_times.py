"""A ledger's time does not go back: nothing that is written today changes what was true on an earlier day."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ledger_cases import behind, issue, model, prepared, recourse, rows_of

import veritracer as vt
from veritracer.errors import DataError, LedgerError
from veritracer.ledger import database as tables
from veritracer.ledger.chain import time_of
from veritracer.times import format_time, to_timestamp

START = datetime.now(UTC) + timedelta(days=1)
REFUSED = "expected a time not before the ledger's newest entry"


def days(n: float) -> datetime:
    return START + timedelta(days=n)


def times(place: str) -> list[float]:
    with behind(place) as connection:
        return [time_of(row["kind"], row["header"]) for row in rows_of(connection, tables.entries)]


@pytest.mark.parametrize("given", [datetime(1971, 1, 1, tzinfo=UTC), days(1), 0.0])
def test_an_entry_in_the_past_is_refused(given: datetime | float, place: str) -> None:
    found = recourse(rows=8)
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, found, now=days(0))
        newest = issue(ledger, found, "more", now=days(10))
        behind = rf"{REFUSED} \({re.escape(format_time(days(10).timestamp()))}\), got "
        behind += rf"{re.escape(format_time(to_timestamp(given)))} — set this clock"
        with pytest.raises(LedgerError, match=behind):
            ledger.release(issued.sequence[:2], "withdrawn", now=given)
        with pytest.raises(LedgerError, match=behind):
            issue(ledger, found, "later", now=given)
        with pytest.raises(LedgerError, match=behind):
            ledger.erase(issued.ids[0], now=given)
        assert ledger.head == newest.head
        assert ledger.verify(issued.head).ok
    assert times(place) == sorted(times(place))


def test_clocks_may_differ_by_five_minutes(place: str) -> None:
    found = recourse(rows=8)
    with vt.Ledger(place) as ledger:
        issue(ledger, found, now=days(3))
        later = issue(ledger, found, "later", now=days(3) - timedelta(minutes=4), expires=timedelta(days=7))
        shown = ledger.shown(int(later.sequence[0]))
        assert shown["issued"] == format_time(days(3).timestamp())
        assert shown["expires"] == format_time(days(10).timestamp())
        with pytest.raises(LedgerError, match=REFUSED):
            issue(ledger, found, "late", now=days(3) - timedelta(minutes=6))
    assert times(place) == sorted(times(place))


def test_a_wrong_clock_is_corrected_by_an_entry_with_a_reason(place: str) -> None:
    found = recourse(rows=8)
    with vt.Ledger(place) as ledger:
        with pytest.raises(LedgerError, match="there is nothing to correct"):
            ledger.correct_clock("no battery")
        first = issue(ledger, found, now=days(400))
        with pytest.raises(LedgerError, match=r"set this clock, or .*--correct-clock REASON"):
            ledger.release(first.sequence[:1], "withdrawn")
        with pytest.raises(LedgerError, match="got no reason — say why"):
            ledger.correct_clock(" ")
        head = ledger.correct_clock("no battery")
        assert ledger.head == head
        ledger.release(first.sequence[:1], "withdrawn")
        last = ledger.history()[-2]
        assert (last["kind"], last["reason"]) == ("clock", "no battery")
        assert last["newest"] == format_time(days(400).timestamp())
        with pytest.raises(LedgerError, match="there is nothing to correct"):
            ledger.correct_clock("again")
        checked = ledger.verify(first.head)
        assert checked.ok
        assert "the clock was wrong until here: no battery" in [note.what for note in checked.notes]


def test_an_audit_of_an_earlier_day_says_what_it_does_not_see(place: str) -> None:
    found = recourse(rows=8)
    with vt.Ledger(place) as ledger:
        assert not vt.audit(ledger, model(), recourse=0).passes()
        ledger.record_audit(vt.audit(ledger, model(), recourse=0))
        assert ledger.history()[-1]["passed"] is False
        first = issue(ledger, found, now=days(0))
        later = issue(ledger, found, "later", now=days(10))
        then = vt.audit(ledger, model(), at=days(5), recourse=0)
        assert (then.live, then.unseen) == (len(first), len(later))
        assert f"{len(later)} promises made in between, and later releases, are not seen" in then.limitation()
        before = vt.audit(ledger, model(), at=days(-0.5), recourse=0)
        assert (before.live, before.passes(), before.unseen) == (0, False, len(first) + len(later))
        assert vt.audit(ledger, model(), recourse=0).limitation() == ""
        assert vt.audit(ledger, model(), at=days(11), recourse=0).limitation() == ""


def test_clocks_of_several_writers_do_no_harm(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads a clock of its own; nobody is warned, as nobody stated a time."""
    found = recourse(rows=8)
    clock = time.time() + 1_000.0  # no earlier than what opening writes
    with vt.Ledger(place) as one, vt.Ledger(place) as other:
        for ledger, ahead in ((one, 60.0), (other, -60.0), (one, 61.0), (other, -59.0)):
            monkeypatch.setattr("veritracer.times.time.time", lambda by=ahead: clock + by)
            issued = issue(ledger, found, f"{ahead}")
        other.release(issued.sequence[:1], "withdrawn")
        assert other.verify().ok
        assert other.counts(clock + 61.0).released == 1
    assert times(place) == sorted(times(place))


def test_a_batch_that_took_long_is_dated_after_what_came_between(tmp_path: Path) -> None:
    found = recourse(rows=8)
    place = str(tmp_path / "promises.db")
    with vt.Ledger(place) as ledger, vt.Ledger(place) as other:
        slow = prepared(found, "slow")
        between = issue(other, found, "between")
        issued = ledger.append(slow)
        assert issued.sequence[0] > between.sequence[-1]
        assert ledger.verify(issued.head).ok
    assert times(place) == sorted(times(place))


@pytest.mark.parametrize("wrong", [1e300, -1e300, math.inf, True, "today"])
def test_what_is_no_moment_is_refused(wrong: object, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a moment"):
        to_timestamp(wrong)
    with vt.Ledger(tmp_path / "promises.db") as ledger, pytest.raises(DataError, match="a moment"):
        ledger.counts(wrong)


def test_an_entry_of_the_future_is_noted(tmp_path: Path) -> None:
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        issue(ledger, recourse(rows=8), now=days(30))
        found = ledger.verify()
        assert (found.ok, [note.what for note in found.notes]) == (True, ["it is dated in the future"])
