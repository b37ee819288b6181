"""A ledger's time does not go back: nothing that is written today changes what was true on an earlier day."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ledger_cases import behind, issue, prepared, recourse, rows_of

import veritracer as vt
from veritracer.errors import DataError, VeriTracerWarning
from veritracer.ledger import database as tables
from veritracer.ledger.chain import time_of
from veritracer.times import format_time, to_timestamp

START = datetime.now(UTC) + timedelta(days=1)
LIFTED = "expected a moment that is not before the ledger's newest entry"


def days(n: float) -> datetime:
    return START + timedelta(days=n)


def times(place: str) -> list[float]:
    with behind(place) as connection:
        return [time_of(row["kind"], row["header"]) for row in rows_of(connection, tables.entries)]


@pytest.mark.parametrize("given", [datetime(1971, 1, 1, tzinfo=UTC), days(1), 0.0])
def test_a_release_in_the_past_changes_nothing_of_the_past(given: datetime | float, place: str) -> None:
    found = recourse(rows=8)
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, found, now=days(0))
        issue(ledger, found, "more", now=days(10))
        before = [ledger.counts(days(n)) for n in (0, 1, 5, 9.9)]
        with pytest.warns(VeriTracerWarning, match=LIFTED):
            ledger.release(issued.sequence[:2], "withdrawn", now=given)
        assert [ledger.counts(days(n)) for n in (0, 1, 5, 9.9)] == before
        assert ledger.counts(days(10)).released == 2
        assert ledger.verify(issued.head).ok
    assert times(place) == sorted(times(place))


def test_promises_and_erasures_are_not_dated_back_either(place: str) -> None:
    found = recourse(rows=8)
    with vt.Ledger(place) as ledger:
        first = issue(ledger, found, now=days(3))
        with pytest.warns(VeriTracerWarning, match=LIFTED):
            later = issue(ledger, found, "later", now=days(1), expires=timedelta(days=7))
        with pytest.warns(VeriTracerWarning, match=LIFTED):
            ledger.erase(first.ids[0], now=days(2))
        assert ledger.counts(days(2.9)).live == 0
        assert ledger.shown(int(later.sequence[0]))["issued"] == format_time(days(3).timestamp())
        assert ledger.shown(int(later.sequence[0]))["expires"] == format_time(days(10).timestamp())
        head = ledger.head
        with (
            pytest.warns(VeriTracerWarning, match=LIFTED),
            pytest.raises(DataError, match="after the day of"),
        ):
            issue(ledger, found, "never", now=days(1), expires=days(2))
        assert (ledger.head, ledger.verify().ok) == (head, True)
    assert times(place) == sorted(times(place))


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
