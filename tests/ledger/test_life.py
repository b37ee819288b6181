"""Promises in a ledger: made once, listed, noted, and read where nobody can write."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledger_cases import KEY, ids, issue, model, prepared, recourse

import veritracer as vt
from processes import CLEAN
from veritracer.errors import DataError, LedgerError
from veritracer.ledger import audit, connections, digest_of

DAY = 86_400.0


def mixed() -> vt.Counterfactuals:
    """Counterfactuals of which some are certified and some are not."""
    found = recourse(kappa=0.1)
    counts = dict(zip(*np.unique(found.status, return_counts=True), strict=True))
    assert counts["certified"] > 0, counts
    assert counts["valid"] > 0, counts
    return found


# --------------------------------------------------------------------------------- not promised twice


def test_an_application_is_promised_once_unless_asked(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        first = issue(ledger, found, allow_duplicate=False)
        second = issue(ledger, found, allow_duplicate=False)
        third = issue(ledger, found)
        assert (len(second), second.repeated) == (0, len(first))
        assert second.head == first.head
        assert (len(third), third.repeated) == (len(first), 0)
        assert ledger.verify().ok


def test_the_same_person_may_apply_with_another_row(place: str) -> None:
    found, other = recourse(), recourse(rows=30)
    with vt.Ledger(place) as ledger:
        issue(ledger, found, allow_duplicate=False)
        names = [f"person {i + 5}" for i in range(30)]  # everybody has somebody else's row
        made = ledger.issue(other, model().classifier_, ids=names, uncertified="promise")
        assert len(made) == int((other.status != "none").sum())
        assert made.repeated == 0


def test_within_one_batch_too_but_not_for_alternatives(place: str) -> None:
    found, several = recourse(), recourse(rows=12, n=2)
    with vt.Ledger(place) as ledger:
        twice = found.select(np.tile(np.arange(len(found)), 2))
        twice = replace(twice, row=np.arange(len(twice)))
        names = ids(found) * 2
        made = ledger.issue(twice, model().classifier_, ids=names, uncertified="promise")
        assert made.repeated == len(made) > 0
        made = issue(ledger, several, "somebody", allow_duplicate=False)
        assert len(made) == int((several.status != "none").sum()) > len(np.unique(several.row))


def test_duplicates_are_left_out_when_nobody_did_it_before(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        first = ledger.append(prepared(found, allow_duplicate=False))
        second = ledger.append(prepared(found, allow_duplicate=False))
        assert (len(second), second.repeated) == (0, len(first))


@pytest.mark.parametrize("terms", [{"original": "commitment"}, {"original": "encrypted", "key": KEY}])
def test_where_the_row_can_not_be_read_the_id_decides(tmp_path: Path, terms: dict[str, Any]) -> None:
    found, place = recourse(), tmp_path / "promises.db"
    with vt.Ledger(place) as ledger:
        first = issue(ledger, found, allow_duplicate=False, **terms)
        assert issue(ledger, recourse(rows=30), allow_duplicate=False).repeated > 0
        if "key" in terms:  # with the key the rows are compared
            assert issue(ledger, found, allow_duplicate=False, **terms).repeated == len(first)


def test_what_is_over_may_be_promised_again(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        first = issue(ledger, found, allow_duplicate=False, expires=timedelta(days=1))
        later = time.time() + 2 * DAY
        assert issue(ledger, found, "person", allow_duplicate=False, now=later).repeated == 0
        everybody = [n for n in ledger.listing()["number"] if n not in first.sequence]
        ledger.release(everybody, "withdrawn", now=later)
        assert issue(ledger, found, allow_duplicate=False, now=later).repeated == 0


def test_a_promise_that_somebody_else_made_meanwhile_stops_the_batch(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        waiting = ledger.without_duplicates(prepared(found, allow_duplicate=False))
        other = issue(ledger, found)
        with pytest.raises(LedgerError, match="nobody to promise the same meanwhile"):
            ledger.append(waiting)
        assert ledger.counts().live == len(other)


# ----------------------------------------------------------------------------- without a certificate


def test_what_is_not_certified_is_left_out_unless_it_is_to_be_promised(place: str) -> None:
    found = mixed()
    certified, valid = (int((found.status == word).sum()) for word in ("certified", "valid"))
    with vt.Ledger(place) as ledger:
        strict = issue(ledger, found, "a", uncertified="skip")
        assert (len(strict), strict.uncertified) == (certified, valid)
        loose = issue(ledger, found, "b", uncertified="promise")
        assert (len(loose), loose.uncertified) == (certified + valid, 0)
        assert ledger.counts().live == len(strict) + len(loose)
        said = [ledger.shown(n) for n in loose.sequence.tolist()]
        assert sum(one["certified"] for one in said) == certified
        assert all(one["kappa"] == one["radius"] for one in said if not one["certified"])
        assert ledger.verify().ok


def test_a_proof_for_todays_model_alone_is_not_certified(tmp_path: Path) -> None:
    with vt.Ledger(tmp_path / "promises.db") as ledger:
        assert len(issue(ledger, recourse(kappa=0.0), uncertified="skip")) == 0


@pytest.mark.parametrize("word", ["keep", "advice"])
def test_what_to_do_with_them_is_one_of_two(word: str, tmp_path: Path) -> None:
    with vt.Ledger(tmp_path / "promises.db") as ledger, pytest.raises(DataError, match="'promise' or 'skip'"):
        issue(ledger, recourse(), uncertified=word)


# ------------------------------------------------------------------------ audits, updates and releases


def test_audits_updates_and_releases_are_entries(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        first = issue(ledger, found)
        told = audit(ledger, model(), recourse=0)
        heads = [first.head, ledger.record_audit(told)]
        digest = digest_of(model().classifier_)
        heads.append(ledger.record_update(digest, digest, told.counts))
        heads.append(ledger.release([int(first.sequence[0])], "withdrawn"))
        assert len({*heads}) == 4
        assert all(ledger.verify(head).ok for head in heads)
        assert [one["kind"] for one in ledger.history()] == ["ledger", "model", "audit", "update", "release"]
        noted = ledger.history()[-3]
        assert (noted["model"], noted["passed"], noted["proved"]) == (digest, True, len(first))
        assert told.ledger
        assert told.head == first.head


def test_every_promise_is_listed_with_what_has_become_of_it(place: str) -> None:
    found = recourse()
    with vt.Ledger(place) as ledger:
        over = issue(ledger, found, "old", expires=timedelta(days=1)).sequence.tolist()
        made = issue(ledger, found, expires=timedelta(days=30)).sequence.tolist()
        ledger.release(made[:1], "withdrawn")
        who = ledger.shown(made[1])["id"]
        assert ledger.erase(who) == made[1:2]
        later = time.time() + 2 * DAY
        table = ledger.listing(later).set_index("number")
        expected = ["released", "erased", *["live"] * (len(made) - 2)]
        assert table.loc[made, "status"].tolist() == expected
        assert set(table.loc[over, "status"]) == {"expired"}
        assert table.loc[made[1], "id"] is None or math.isnan(table.loc[made[1], "id"])
        name = table.loc[made[2], "id"]
        assert ledger.listing(identity=name)["number"].tolist() == made[2:3]
        counts = ledger.counts(later)
        assert table["status"].value_counts().to_dict() == {
            word: n for word in ("live", "expired", "released", "erased") if (n := getattr(counts, word))
        }


# ----------------------------------------------------------------------------------- read-only media


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A folder that everybody can enter, to be made read-only."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


READ = """
import json, sys, torch
import veritracer as vt
from veritracer.ledger import audit
from veritracer.models.network import to_module
torch.set_num_threads(1)
answers = []
for place, head in json.loads(sys.argv[1]):
    with vt.Ledger(place, create=False) as ledger:
        said = {"read_only": ledger.read_only, "ok": ledger.verify(head).ok}
        issuing = next(iter(ledger.models().values()))
        module = to_module(issuing.network, issuing.theta)
        told = audit(ledger, module, encoding=issuing.encoding, threshold=issuing.threshold, recourse=0)
        said |= {"live": told.live, "head": told.head, "listed": len(ledger.listing())}
        try:
            ledger.release([4], "withdrawn")
        except vt.errors.LedgerError as error:
            said["refused"] = str(error)
    answers.append(said)
print(json.dumps(answers))
"""


def read_as_anybody(asked: list[tuple[str, str | None]]) -> list[dict[str, Any]]:
    """What a process without any right to write makes of ledgers, each with a head that was noted."""
    command = [sys.executable, "-c", READ, json.dumps(asked)]
    if os.geteuid() == 0:  # to root nothing is read-only, unless it gives that up
        command = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-all", *command]
    done = subprocess.run(command, capture_output=True, text=True, env=CLEAN, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def test_ledgers_on_read_only_media_are_verified_and_audited(shelf: Path) -> None:
    place = shelf / "it's 100 % new?.db"
    with vt.Ledger(place) as ledger:
        head = issue(ledger, recourse()).head
        live = ledger.counts().live
    before = {path.name: path.read_bytes() for path in shelf.iterdir()}
    for path in shelf.iterdir():
        path.chmod(0o444)
    shelf.chmod(0o555)
    (said,) = read_as_anybody([(str(place), head)])
    assert (said["read_only"], said["ok"]) == (True, True)
    assert said["listed"] > 0
    assert "read-only" in said["refused"]
    assert (said["live"], said["head"]) == (live, head)
    assert {path.name: path.read_bytes() for path in shelf.iterdir()} == before


def test_a_log_that_was_not_folded_in_is_not_passed_over(tmp_path: Path, monkeypatch) -> None:
    place = tmp_path / "promises.db"
    with vt.Ledger(place) as ledger:
        issue(ledger, recourse())
    place.with_name("promises.db-wal").write_bytes(b"something")
    monkeypatch.setattr(connections.os, "access", lambda *_: False)
    with pytest.raises(LedgerError, match="a ledger that was closed"):
        vt.Ledger(place, create=False)
