"""A person's record can go: from the tables, from the files, and without breaking the chain."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ledger_cases import issue, model, recourse

import veritracer as vt
from veritracer.errors import LedgerError
from veritracer.ledger.layout import SALT


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
        with pytest.raises(LedgerError, match="a person with a record"):
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
    monkeypatch.setattr("veritracer.ledger.database.READERS_MAY_TAKE", 10)
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        issued = issue(ledger, recourse())
        reading = ledger.promises(chunk=2)
        next(reading)
        with pytest.warns(vt.errors.VeriTracerWarning, match="not yet from the write-ahead log"):
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
    assert len(issued.openings[0]) > 2 * SALT + 8 * model().encoding_.dim
