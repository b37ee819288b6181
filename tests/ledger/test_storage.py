"""What goes into a ledger comes out of it, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from ledger_cases import EVERYTHING, KEY, behind, ids, issue, model, recourse, rows_of

import veritracer as vt
from veritracer.errors import DataError, LedgerError
from veritracer.ledger import IssuingModel, new_key
from veritracer.ledger import database as tables
from veritracer.ledger.promises import encoded_rows

DAY = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)  # an entry is not dated before its ledger
LATER = DAY + timedelta(days=400)


def test_promises_come_back_as_they_were_made(place: str) -> None:
    found = recourse()
    rows = np.flatnonzero(found.status != "none")
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, found, expires=timedelta(days=365), now=DAY)
        (promises,) = ledger.promises(DAY)
    assert 0 < len(rows) < len(found), "some rows need no recourse"
    assert issued.sequence.tolist() == promises.sequence.tolist() == list(range(3, 3 + len(rows)))
    assert issued.ids == promises.ids == [f"person {i}" for i in rows]
    assert issued.skipped == len(found) - len(rows)
    for name in ("x", "x_cf"):
        assert torch.equal(getattr(promises, name), getattr(found, name)[rows]), name
    assert not promises.region.wide.any()
    for name in ("radius", "worst_logit", "favourable", "conditional"):
        assert np.array_equal(getattr(promises, name), getattr(found, name)[rows]), name
    assert promises.kappa.tolist() == [found.kappa if found.certified[i] else found.radius[i] for i in rows]
    assert set(promises.issued) == {DAY.timestamp()}
    assert set(promises.expires) == {(DAY + timedelta(days=365)).timestamp()}


def test_the_issuing_model_comes_back_bit_by_bit(place: str) -> None:
    found, made = recourse(), model()
    with vt.Ledger(place) as ledger:
        first = issue(ledger, found)
        issue(ledger, found, "another")
        models = ledger.models()
        digest = ledger.requirements()[0].model
        told = ledger.shown(int(first.sequence[0]))
    (kept,) = models.values()  # the same model is kept once
    assert kept.digest == digest == next(iter(models))
    wanted = made.param_set(found.kappa)
    assert kept.param_set(found.kappa).contains(made.classifier_)
    assert kept.model_digest == found.model_digest == kept.network.digest(kept.theta)
    assert kept.encoding.digest == found.encoding_digest
    assert kept.threshold == made.threshold
    assert [float(r) for r in kept.param_set(found.kappa).radii] == [float(r) for r in wanted.radii]
    assert told["radii"] == {
        k: pytest.approx(v * told["kappa"] / found.kappa) for k, v in wanted.named_radii.items()
    }
    assert told["center_digest"] == found.param_set.center_digest


def test_what_was_shown_can_be_read(place: str) -> None:
    found = recourse()
    first = int(np.flatnonzero(found.status != "none")[0])
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, found, now=DAY)
        told = ledger.shown(int(issued.sequence[0]))
        assert ledger.sequences_of(f"person {first}") == [int(issued.sequence[0])]
        for number in (1, 10**30):
            with pytest.raises(LedgerError, match=f"expected a record of promise {number}, got none — "):
                ledger.shown(number)
    assert told["id"] == f"person {first}"
    assert told["sentence"] == found.sentence(first)
    assert (told["issued"], told["expires"]) == (DAY.isoformat(), "never")
    for name, frame in (("values", found.frame), ("original", found.original)):
        row = frame.iloc[first]
        for column, value in told[name].items():
            same = value == row[column] or (value is None and row[[column]].isna().all())
            assert same, (name, column)


def test_regions_and_alternatives(place: str) -> None:
    found = recourse(rows=20, overshoot=0.02, n=2)
    rows = np.flatnonzero(found.status != "none")
    with vt.Ledger(place) as ledger:
        issue(ledger, found)
        (promises,) = ledger.promises()
    assert promises.ids == [f"person {i}" for i in found.row[rows]]
    assert len(set(promises.ids)) < len(promises.ids), "somebody has two alternatives"
    proved = (found.certified | (found.radius > 0))[rows]
    _, _, again, _ = encoded_rows(found.encoding, promises, IssuingModel.from_bytes(*_stored_model(place)))
    lower, upper = (end[torch.from_numpy(proved)] for end in again)
    region = found.region.select(torch.from_numpy(rows[proved]))
    assert bool((lower <= region.lower).all())
    assert bool((upper >= region.upper).all())
    assert torch.allclose(lower, region.lower, rtol=0, atol=1e-9)
    assert torch.allclose(upper, region.upper, rtol=0, atol=1e-9)
    assert not (promises.region.wide & ~proved).any()


def _stored_model(place: str) -> tuple[bytes, bytes]:
    with behind(place) as connection:
        (row,) = rows_of(connection, tables.models)
    return row["document"], row["tensors"]


def test_chunks_hold_promises_of_one_model_each(place: str) -> None:
    with vt.Ledger(place) as ledger:
        counts = {}
        for round_ in range(2):
            for seed in (0, 1):
                found = recourse(seed)
                named = ids(found, f"{round_}")
                issued = ledger.issue(found, model(seed).classifier_, ids=named, **EVERYTHING)
                counts[seed] = counts.get(seed, 0) + len(issued)
        pieces = list(ledger.promises(chunk=7))
        assert len(ledger.models()) == 2
        assert all(0 < len(piece) <= 7 for piece in pieces)
        by_model = {m: sum(len(p) for p in pieces if p.model == m) for m in ledger.models()}
        assert list(by_model.values()) == list(counts.values())
        limits = ledger.requirements()
        assert sum(one.count for one in limits) == sum(counts.values())
        assert {limit.model for limit in limits} == set(by_model)


def test_what_is_live_depends_on_the_day(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        first = issue(ledger, found, "first", expires=timedelta(days=365), now=DAY)
        issue(ledger, found, "second", now=DAY + timedelta(days=10))
        n = len(first)
        counts = ledger.counts(DAY)
        assert (counts.live, counts.expired) == (n, 0)
        assert (ledger.counts(LATER).live, ledger.counts(LATER).expired) == (n, n)
        ledger.release(first.sequence[:2], "the applicant withdrew", now=DAY + timedelta(days=20))
        assert ledger.erase(first.ids[5], now=DAY + timedelta(days=30)) == [int(first.sequence[5])]
        counts = ledger.counts(DAY + timedelta(days=21))
        assert (counts.live, counts.released, counts.erased) == (2 * n - 3, 2, 1)
        assert ledger.counts(DAY + timedelta(days=1)).released == 0
        live = [s for p in ledger.promises(DAY + timedelta(days=21)) for s in p.sequence]
        assert len(live) == counts.live
        assert not {*first.sequence[:2], first.sequence[5]} & set(live)
        assert [len(p) for p in ledger.promises(LATER)] == [n]
        assert [len(p) for p in ledger.promises(LATER, expired=True)] == [2 * n - 3]
        assert sum(one.count for one in ledger.requirements(LATER)) == n
        assert ledger.verify(first.head).ok


@pytest.mark.parametrize("original", ["encrypted", "commitment"])
def test_original_rows_need_not_be_readable(place: str, original: str) -> None:
    found = recourse()
    rows = np.flatnonzero(found.status != "none")
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, found, original=original, key=KEY)
        (promises,) = ledger.promises()
        assert torch.equal(promises.x_cf, found.x_cf[rows])
        assert bool(promises.x.isnan().all())
        told = ledger.shown(int(issued.sequence[0]))
        assert (told["original"], told["sentence"]) == (None, None)
        assert told["values"]
        assert ledger.verify(issued.head).ok
    # What a person is told to change is not what they have; the rest of their row stands in x' too.
    row, secret = next(
        (i, c) for i in rows.tolist() for c in found.changes_of(i) if c.feature.name == "income"
    )
    with behind(place) as connection:
        stored = b"".join(
            bytes(cell)
            for row in rows_of(connection, tables.records)
            for cell in row.values()
            if isinstance(cell, bytes)
        )
    assert str(secret.before).encode() not in stored
    assert found.x[row][2].numpy().tobytes() not in stored
    number = int(issued.sequence[rows.tolist().index(row)])
    with vt.Ledger(place, key=KEY) as ledger:
        (promises,) = ledger.promises()
        told = ledger.shown(number)
    if original == "encrypted":
        assert torch.equal(promises.x, found.x[rows])
        assert told["original"]["income"] == secret.before
        with vt.Ledger(place, key=new_key()) as ledger, pytest.raises(LedgerError, match="another one"):
            next(ledger.promises())
    else:
        assert bool(promises.x.isnan().all())
        assert len(issued.openings) == len(issued)


def test_nothing_is_issued_without_anything_to_issue(place: str) -> None:
    found = recourse()
    nobody = np.flatnonzero(found.status == "none")[:1]
    frame = found.original.iloc[nobody]
    with vt.Ledger(place) as ledger:
        head = ledger.head
        issued = model().issue(frame, ids=["x"], ledger=ledger, kappa=0.05)
        assert (len(issued), issued.skipped, issued.head, ledger.head) == (0, 1, head, head)
        assert not list(ledger.promises())
        assert ledger.models() == {}


def test_all_promises_of_a_batch_or_none(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, flush = recourse(), tables.Writer.flush

    def interrupted(writer: tables.Writer) -> None:
        flush(writer)
        raise KeyboardInterrupt

    with vt.Ledger(place) as ledger:
        head = ledger.head
        monkeypatch.setattr(tables.Writer, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            issue(ledger, found)
        monkeypatch.undo()
        assert ledger.head == head
        issued = issue(ledger, found)
        assert ledger.counts().live == len(issued) == int((found.status != "none").sum())


def test_model_issue_takes_a_path_and_gives_the_recourse(tmp_path: Path) -> None:
    frame = recourse().original
    path = tmp_path / "promises.db"
    issued = model().issue(frame, ids=range(len(frame)), ledger=path, kappa=0.05)
    assert isinstance(issued.recourse, vt.Counterfactuals)
    assert str(issued).startswith(f"{len(issued)} promises (entries 3 to {len(issued) + 2}); ")
    assert f"{issued.uncertified} skipped, not certified; 0 skipped, promised already; " in str(issued)
    assert str(issued).endswith(f"{issued.skipped} without a counterfactual; head {issued.head}")
    with vt.Ledger(path, create=False) as ledger:
        assert ledger.head == issued.head
        assert next(ledger.promises()).ids == issued.ids


BAD_TERMS = {
    "too few ids": ({"ids": ["a"]}, DataError, "an id for each row"),
    "a text for ids": ({"ids": "person"}, DataError, "an id for each row"),
    "no model of theirs": ({"module": 1}, LedgerError, "the model that the certificates speak of"),
    "expired at once": ({"expires": DAY - timedelta(days=1)}, DataError, "an expiry after the day of issue"),
    "no time zone": ({"now": DAY.replace(tzinfo=None)}, DataError, "a time with its time zone"),
    "no moment": ({"now": math.nan}, DataError, "a moment"),
    "unknown keeping": ({"original": "hidden"}, DataError, "'plain', 'encrypted' or 'commitment'"),
    "no key": ({"original": "encrypted"}, LedgerError, "a key to encrypt"),
    "no such key": ({"original": "encrypted", "key": "secret"}, LedgerError, "32 bytes"),
}


@pytest.mark.parametrize("case", BAD_TERMS)
def test_bad_terms_are_refused_and_leave_nothing(case: str, tmp_path: Path) -> None:
    terms, error, sentence = BAD_TERMS[case]
    found = recourse()
    given = {"now": DAY, "ids": ids(found), **terms}
    module = model(1).classifier_ if given.pop("module", None) else model().classifier_
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        head = ledger.head
        with pytest.raises(error, match=f"expected .*{sentence}.*, got .+ — .+"):
            ledger.issue(found, module, **given)
        assert ledger.head == head


@pytest.mark.parametrize("name", ["", "  ", None, math.nan])
def test_everybody_has_an_id(name: object, tmp_path: Path) -> None:
    found = recourse()
    with vt.Ledger(tmp_path / "promises.db") as ledger, pytest.raises(DataError, match="1 that are empty"):
        ledger.issue(found, model().classifier_, ids=[name, *ids(found)[1:]])


def test_half_a_character_is_refused(place: str) -> None:
    found, half = recourse(), "Jos\ud800"
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, found)
        for ask in (
            lambda: ledger.issue(found, model().classifier_, ids=[half, *ids(found)[1:]]),
            lambda: ledger.erase(half),
            lambda: ledger.sequences_of(half),
            lambda: ledger.release(issued.sequence[:1], half),
        ):
            with pytest.raises(DataError, match=r"expected .+ of whole characters, got 'Jos\\ud800' — .+"):
                ask()
        assert ledger.head == issued.head


def test_only_promises_can_be_released(place: str) -> None:
    with vt.Ledger(place) as ledger:
        issued = issue(ledger, recourse())
        wrong = ([1], "why"), ([10**9], "why"), ([10**30], "why"), ([], "why"), (issued.sequence[:1], " ")
        for numbers, reason in wrong:
            with pytest.raises(LedgerError, match=r"expected promises to release, and a reason, got .+ — .+"):
                ledger.release(numbers, reason)
        with pytest.raises(LedgerError, match=r"expected people with a record, got 'nobody' — .+"):
            ledger.erase("nobody")
        assert ledger.head == issued.head


BAD_PLACES = {
    "mysql://x/y": "expected SQLite or PostgreSQL, got mysql — .+",
    "sqlite://": "expected a file for the ledger, got none — .+",
    "://": "expected a path or a database's URL, got .+ — .+",
    "/no/such/folder/a.db": "expected a ledger in .+, got unable to open database file — .+",
    "postgresql://nobody@127.0.0.1:1/none": "expected a ledger in .+, got .*connection.* — .+",
}


@pytest.mark.parametrize("where", BAD_PLACES)
def test_bad_places_are_refused(where: str) -> None:
    with pytest.raises(LedgerError, match=BAD_PLACES[where]):
        vt.Ledger(where)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, and long enough to be read as a header of one" * 20)
    with pytest.raises(LedgerError, match="file is not a database"):
        vt.Ledger(text)
    with pytest.raises(LedgerError, match="a ledger that exists, got no file"):
        vt.Ledger(tmp_path / "none.db", create=False)
    assert not (tmp_path / "none.db").exists()


def test_a_password_is_not_told() -> None:
    with pytest.raises(LedgerError) as refused:
        vt.Ledger("postgresql://me:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(refused.value)


def test_issuing_models_with_other_weights_are_refused() -> None:
    made, other = (
        IssuingModel.of(one.classifier_, model().encoding_, 0.5, vt.ParamSet.around(one.classifier_))
        for one in (model(), model(1))
    )
    document, _ = made.to_bytes()
    _, tensors = other.to_bytes()
    with pytest.raises(LedgerError, match="the weights that an issuing model's digest names, got others"):
        IssuingModel.from_bytes(document, tensors)
    with pytest.raises(LedgerError, match="version 1 of veritracer-issuing-model"):
        IssuingModel.from_bytes(document.replace(b'"version": 1}', b'"version": 2}'), tensors)
