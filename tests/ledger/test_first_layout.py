"""A ledger that the first release wrote opens, verifies, and is audited no better than it deserves."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sqlalchemy as sa
import torch
from data.write_first_layout import KEY, PLACE, SCHEMA
from ledger_cases import TABLES, behind, rows_of
from raw_cases import explained, linear, narrow, person, wider

import veritracer as vt
from processes import run_many
from veritracer.ledger import audit
from veritracer.ledger import database as tables
from veritracer.ledger.database import connect, place_of
from veritracer.ledger.snapshot import raw_needed
from veritracer.ledger.verdicts import VERDICTS, AuditedModel, Unchecked

SECOND = PLACE.with_name("second_layout.db")
HEAD = "25683454200157b67e3b08019bbd7b0279d0ba92a78451ed7c13e55b87387ce1"


@pytest.fixture
def old(place: str, tmp_path: Path) -> str:
    """The stored ledger, in a place where it can be opened: a file, or a schema of PostgreSQL."""
    if not place.startswith("postgresql"):
        shutil.copy(PLACE, place)
        return place
    copy = tmp_path / "copy.db"
    shutil.copy(PLACE, copy)
    source = sa.create_engine(f"sqlite:///{copy}")
    target = connect(place_of(place))
    with source.begin() as theirs, target.begin() as ours:
        tables.metadata.create_all(ours)
        for table in TABLES:
            ours.execute(table.insert(), rows_of(theirs, table))
    source.dispose()
    target.dispose()
    return place


def verdicts(ledger: vt.Ledger, model: Any, encoding: vt.Encoding) -> dict[str, str]:
    """The verdict on each person's promise."""
    judge, said = AuditedModel.of(model, encoding), {}
    with ledger.snapshot() as view:
        for piece in view.promises(raw_for=raw_needed(view, encoding.digest)):
            judged = judge.judge(piece, view.models()[piece.model])
            said |= zip(piece.ids, (VERDICTS[k] for k in judged.verdict), strict=True)
    return said


def test_it_opens_and_verifies_with_notes(old: str) -> None:
    for _ in range(2):
        with vt.Ledger(old, create=False) as ledger:
            found = ledger.verify(HEAD)
    assert found.ok, found.findings
    assert (found.entries, found.promises, found.erased, found.newer) == (24, 19, 1, 1)
    assert [tuple(note) for note in found.notes] == [
        (2, "it is dated before the entry before it"),  # promised in March, by a ledger made in November
        (22, "it is dated before the entry before it"),
        (21, "'shown' is not the row that was certified"),
    ]
    with behind(old) as connection:
        entries = rows_of(connection, tables.entries)
    assert [(row["seq"], row["kind"]) for row in entries][-1] == (24, "migration")
    assert {row["header"][0] for row in entries if row["kind"] == "promise"} == {1}
    assert entries[22]["link"].hex() == HEAD


def test_everything_of_it_can_be_read(old: str) -> None:
    with vt.Ledger(old, key=KEY) as ledger:
        counts = ledger.counts()
        assert (counts.live, counts.released, counts.erased) == (17, 1, 1)
        (limit,) = ledger.requirements()
        assert (limit.count, limit.conditional) == (17, 4)
        for piece in ledger.promises():
            for number, name in zip(piece.sequence.tolist(), piece.ids, strict=True):
                told = ledger.shown(number)
                assert told["id"] == name
                assert (told["original"] is None) == name.startswith("hidden")
        assert ledger.erase("point 2") == [5]
        ledger.release([6], "withdrawn")
        assert ledger.verify(HEAD).ok


def test_its_own_encoding_judges_what_was_certified(old: str) -> None:
    module, encoding = narrow()
    for key, proved in ((None, 13), (KEY, 15)):  # two conditional ones need the key, two were never kept
        with vt.Ledger(old, key=key) as ledger:
            found = audit(ledger, module, encoding=encoding)
        assert found.counts["kept by proof"] == proved
        assert found.counts["kept, checked"] == 17 - proved
        assert found.ok


INSIDE = {"point 2", "point 3", "point 4", "region 0", "locked 0", "hidden 0"}
"""Of these the old ledger says all that another encoding has to know."""

WITH_KEY = {"locked 1", "locked 2", "locked 3"}
"""And of these with the key: a condition, and sentences that speak of no drift."""


@pytest.mark.parametrize("key", [None, KEY])
def test_another_encoding_judges_what_was_shown_as_far_as_it_is_known(old: str, key: str | None) -> None:
    later = linear(wider(), -1.0, savings=0.0002)  # 5,000 are enough: all that were promised, but one
    with vt.Ledger(old, key=key) as ledger:
        said = verdicts(ledger, later, wider())
        found = audit(ledger, later, encoding=wider(), recourse=0)
    kept = INSIDE | (WITH_KEY if key else set())
    assert {name for name, verdict in said.items() if verdict == "kept, checked"} == kept
    assert {name for name, verdict in said.items() if verdict == "broken"} == {"edited 0"}, "2,900 were shown"
    assert {v for n, v in said.items() if n not in kept | {"edited 0"}} == {"not checkable"}
    reasons = dict(zip(found.unchecked["id"], found.unchecked["reason"], strict=True))
    assert {n for n in reasons if n.startswith("region")} == {f"region {i}" for i in (1, 2, 3, 4)}
    assert set(reasons.values()) == {Unchecked.CUT}
    assert (found.ok, found.passes(allow_broken=1)) == (False, False)
    assert found.passes(allow_broken=1, allow_unchecked=len(reasons))


def test_nobody_is_judged_by_the_end_of_the_old_range(old: str) -> None:
    with vt.Ledger(old) as ledger:
        young = verdicts(ledger, linear(wider(), 8.0, age=-0.1), wider())  # up to 80
        poor = verdicts(ledger, linear(wider(), 4.0, debt=-0.001), wider())  # up to 4,000
    assert {n for n, v in young.items() if v == "broken"} == {"point 2", "region 2", "locked 2", "hidden 2"}
    assert {n for n, v in poor.items() if v == "broken"} == {"point 3", "region 3", "locked 3", "hidden 3"}


def test_new_recourse_starts_from_what_was_kept(old: str) -> None:
    with vt.Ledger(old) as ledger:
        found = audit(ledger, linear(wider(), 4.0, debt=-0.001), encoding=wider(), recourse=None)
    told = {one.id: one for one in found.recourse}
    assert [(name, start) for name, start, _ in told["point 3"].changes] == [("debt", 5_000)]
    assert (told["point 3"].start, told["hidden 3"].start) == ("original row", "promised row")


@pytest.mark.filterwarnings("ignore::veritracer.errors.DataWarning")
def test_new_promises_stand_beside_old_ones(old: str) -> None:
    found = explained(person(age=58), drift={"age": 5.0})
    with vt.Ledger(old, key=KEY) as ledger:
        ledger.issue(found, narrow()[0], ids=["new"])
        assert len(ledger.models()) == 1
        verified = ledger.verify(HEAD)
        assert (verified.ok, verified.noted, verified.newer) == (True, 3, 2)
        said = verdicts(ledger, linear(wider(), 6.15, age=-0.1), wider())
        assert audit(ledger, narrow()[0], encoding=narrow()[1]).counts["kept by proof"] == 16
    assert said["new"] == "broken"  # at 62
    assert said["region 4"] == "not checkable"  # at 60 as far as is known
    with behind(old) as connection:
        layouts = [r["header"][0] for r in rows_of(connection, tables.entries) if r["kind"] == "promise"]
    assert layouts == [1] * 19 + [2]


def test_an_old_ledger_whose_end_can_not_be_read_is_still_verified(tmp_path: Path) -> None:
    place = tmp_path / "old.db"
    shutil.copy(PLACE, place)
    with sqlite3.connect(place) as database:
        database.execute("UPDATE veritracer_entries SET header = X'00' WHERE seq = 23")
    database.close()
    with vt.Ledger(place) as ledger:
        assert not ledger.verify().ok


def save_a_model_that_reads_more(folder: Path) -> None:
    """Nothing; an estimator whose encoding reaches further accepts savings from 5,000 on."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": rng.integers(18, 101, 80),
            "debt": rng.integers(0, 20_001, 80),
            "savings": rng.integers(0, 101, 80) * 100,
            "education": rng.choice(["none", "school", "degree"], 80),
            "rating": np.where(rng.random(80) < 0.2, np.nan, rng.random(80)),
        }
    )
    labels = np.where(table["savings"] >= 5_000, "yes", "no")
    made = vt.VeriTraCER(schema=SCHEMA, method="standard", hidden=(1,), epochs=1).fit(table, labels)
    only = linear(made.encoding_, 0.0, savings=0.0002)
    with torch.no_grad():
        for weight, value in zip(
            made.classifier_.parameters(), (only.weight, only.bias, 1.0, -1.0), strict=True
        ):
            weight.copy_(torch.as_tensor(value, dtype=torch.float64))
    made.save(folder)


def test_a_ledger_from_before_the_modules_were_merged_opens_and_verifies(tmp_path: Path) -> None:
    place = tmp_path / "second.db"
    shutil.copy(SECOND, place)
    head = "52c184df3dd546d53f180ab1151cfc29daa947604c99c111c8061f81517ae657"
    with vt.Ledger(place, key=KEY, create=False) as ledger:
        assert (ledger.head, ledger.verify(head).ok, ledger.verify(head).noted) == (head, True, 0)
        counts = ledger.counts()
        assert (counts.live, counts.released, counts.erased) == (14, 1, 1)
        told = [ledger.shown(number) for piece in ledger.promises() for number in piece.sequence.tolist()]
        assert {one["method"] for one in told} == {"ibp"}
        assert [one["id"] for one in told if one["original"] is None] == [f"hidden {i}" for i in range(4)]
        assert vt.audit(ledger, narrow()[0], encoding=narrow()[1]).counts["kept by proof"] == 14


@pytest.mark.long
def test_a_pipeline_stops_where_promises_can_not_be_checked(tmp_path: Path) -> None:
    shutil.copy(PLACE, tmp_path / "old.db")
    save_a_model_that_reads_more(tmp_path / "model")
    audited = ["audit", "--ledger", "old.db", "--model", "model", "--recourse", "0"]
    commands = [
        ["verify", "--ledger", "old.db", "--head", HEAD],
        ["verify", "--ledger", "old.db", "--json"],
        [*audited, "--allow-broken", "1"],
        [*audited, "--allow-broken", "1", "--json", "--out", "audit.html"],
        [*audited, "--allow-broken", "1", "--allow-unchecked", "10"],
        [*audited, "--allow-unchecked", "10"],
    ]
    done = run_many(commands, tmp_path)
    assert [d.returncode for d in done] == [0, 0, 1, 1, 0, 1], done
    verified, plain, words, told, allowed, broken = (d.stdout for d in done)
    assert "Noted, and no fault: entry 22: it is dated before the entry before it" in verified
    assert "and the head is in it; 1 entries are newer, and not covered by it" in verified
    assert (json.loads(plain)["ok"], json.loads(plain)["noted"]) == (True, 3)
    assert "FAILED: 1 promises are broken, 10 cannot be checked (--allow-unchecked)." in words
    assert "Promises that cannot be checked" in words
    found = json.loads(told)
    assert (found["passed"], found["ok"], found["counts"]["not checkable"]) == (False, False, 10)
    assert len(found["unchecked"]) == 10
    assert "cannot be checked" in (tmp_path / "audit.html").read_text()
    assert "PASSED" in allowed
    assert "FAILED" in broken
