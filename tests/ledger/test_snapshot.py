"""An audit reads one state of a ledger, whatever is written meanwhile; so does an update."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from ledger_cases import EVERYTHING, behind, ids, issue, model, recourse, rows_of

import veritracer as vt
from recourse_tables import applicants
from veritracer.errors import LedgerError
from veritracer.ledger import IssuingModel, audit, chain
from veritracer.ledger import database as tables
from veritracer.ledger.constraints import SetConstraints, unprotected
from veritracer.ledger.verdicts import AuditedModel


@pytest.fixture
def interrupted(place: str, monkeypatch: pytest.MonkeyPatch) -> vt.Ledger:
    """A ledger in which another model makes its first promises as soon as anybody reads the models."""
    with vt.Ledger(place) as ledger:
        issue(ledger, recourse())
    plain, meanwhile = IssuingModel.from_bytes, [True]

    def from_bytes(*given: Any) -> Any:
        if meanwhile and meanwhile.pop():
            other = recourse(1)
            with vt.Ledger(place) as writer:
                writer.issue(other, model(1).classifier_, ids=ids(other, "meanwhile"), **EVERYTHING)
        return plain(*given)

    monkeypatch.setattr(IssuingModel, "from_bytes", from_bytes)
    return vt.Ledger(place)


def test_an_audit_does_not_see_what_is_issued_meanwhile(interrupted: vt.Ledger) -> None:
    many = int((recourse().status != "none").sum())
    with interrupted as ledger:
        found = audit(ledger, model())
        assert found.counts["kept by proof"] == found.live == many
        again = audit(ledger, model(), recourse=0)
    assert again.live > many, "and then it does"
    assert len(again.groups) > len(found.groups)


def test_an_update_reads_demands_and_rows_of_one_state(interrupted: vt.Ledger) -> None:
    candidate = AuditedModel.of(model())
    with interrupted as ledger:
        with ledger.snapshot() as view:
            demands = SetConstraints.of(view, candidate)
            rows = unprotected(view, candidate, demands)
        assert len({demand.requirement.model for demand in (*demands.provable, *demands.others)}) == 1
        assert len(rows) <= int((recourse().status != "none").sum())


def test_an_update_goes_on_while_promises_are_made(interrupted: vt.Ledger) -> None:
    frame, y = applicants(200, seed=6)
    with interrupted as ledger:
        kept = model().update(frame, y, keep=ledger, epochs=2, compare=False, allow_broken=1_000)
    assert kept.update_.constraints


def test_a_snapshot_is_one_state_on_any_day(place: str) -> None:
    with vt.Ledger(place) as ledger:
        first = issue(ledger, recourse())
        with ledger.snapshot() as state:
            issue(ledger, recourse(), "later")
            ledger.release(first.sequence[:1], "withdrawn")
            with state.snapshot() as same:
                for view in (state, same):
                    assert view.counts().live == len(first)
                    assert sum(map(len, view.promises())) == len(first)
                    assert sum(one.count for one in view.requirements()) == len(first)
                    assert view.verify(bytes.fromhex(first.head)).newer == 0
                    assert audit(view, model(), recourse=0).live == len(first)
        assert ledger.counts().live == 2 * len(first) - 1


def test_raw_values_come_for_those_who_ask(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issue(ledger, recourse())
        (digest,) = ledger.models()
        with ledger.snapshot() as state:
            assert all(piece.shown is piece.original is None for piece in state.promises())
            (piece,) = state.promises(raw_for=[digest])
            raw = [state.shown(number) for number in piece.sequence.tolist()]
    assert len(piece.shown) == len(piece.original) == len(piece)
    assert [row["values"]["income"] for row in raw] == piece.shown["income"].tolist()
    assert [row["original"]["income"] for row in raw] == piece.original["income"].tolist()


TAMPERED = {
    "the values shown": (tables.records, "public"),
    "the encoded values": (tables.records, "x_cf"),
    "the original row": (tables.records, "private"),
    "whose it is": (tables.records, "id"),
    "the salts": (tables.records, "salts"),
    "what was proved": (tables.entries, "header"),
    "the commitments": (tables.entries, "commitments"),
    "its link": (tables.entries, "link"),
}


@pytest.mark.parametrize("case", TAMPERED)
def test_a_promise_that_was_tampered_with_cannot_be_looked_up(case: str, place: str) -> None:
    table, column = TAMPERED[case]
    with vt.Ledger(place) as ledger:
        number, other = (int(n) for n in issue(ledger, recourse()).sequence[[3, -1]])
        with behind(place) as connection:
            value = connection.scalar(sa.select(table.c[column]).where(table.c.seq == number))
            other_value = value[:-2] + bytes([value[-2] ^ 1]) + value[-1:]
            changed = sa.update(table).where(table.c.seq == number).values({column: other_value})
            connection.execute(changed)
        with pytest.raises(LedgerError, match="run veritracer verify"):
            ledger.shown(number)
        assert ledger.shown(other)["sequence"] == other


def test_an_entry_that_was_linked_again_does_not_fit_the_next_one(place: str) -> None:
    with vt.Ledger(place) as ledger:
        number = int(issue(ledger, recourse()).sequence[3])
        with behind(place) as connection:
            before, entry = rows_of(connection, tables.entries)[number - 2 : number]
            entry["header"] = entry["header"].replace(b'"favourable": false', b'"favourable": true')
            entry["link"] = chain.link(before["link"], *(entry[k] for k in list(entry)[:5]))
            connection.execute(sa.update(tables.entries).where(tables.entries.c.seq == number).values(entry))
        with pytest.raises(LedgerError, match="a link that follows"):
            ledger.shown(number)


def test_a_promise_of_an_exchanged_model_cannot_be_looked_up(place: str) -> None:
    with vt.Ledger(place) as ledger:
        number = int(issue(ledger, recourse()).sequence[0])
        other = IssuingModel.of(model(1).classifier_, model(1).encoding_, 0.5, recourse(1).param_set)
        document, tensors = other.to_bytes()
        with behind(place) as connection:
            connection.execute(sa.update(tables.models).values(document=document, tensors=tensors))
    with vt.Ledger(place) as ledger, pytest.raises(LedgerError, match="issuing model"):
        ledger.shown(number)
