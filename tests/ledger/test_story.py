"""The whole story through the command line: promises are made, a year passes, the model must change."""

from __future__ import annotations

import json
import shutil
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import veritracer as vt
from processes import Done, assert_refused, run_many

pytestmark = pytest.mark.long  # minutes of training and of processes

FIT = [
    "fit",
    "train.csv",
    "--target",
    "approved",
    "--favourable",
    "yes",
    "--epochs",
    "10",
    "--no-panel",
    "--out",
    "model",
]
ISSUE = ["issue", "model", "people.csv", "--id-column", "id", "--ledger", "promises.db", "--expires", "365d"]
UPDATE = [
    "update",
    "model",
    "crunch.csv",
    "--no-compare",
    "--epochs",
    "12",
    "--learning-rate",
    "0.001",
    "--json",
]
AUDIT = ["audit", "--ledger", "promises.db", "--json"]

TODAY = datetime.now(UTC)
LATER = [(TODAY + timedelta(days=days)).date().isoformat() for days in (360, 370)]

STORY = {
    "fit": [*FIT, "--immutable", "age,sex,region", "--quiet"],
    "issue": [*ISSUE, "--json"],
    "verify": ["verify", "--ledger", "promises.db"],
    "audit today": [*AUDIT, "--model", "model"],
    "update free": [*UPDATE, "--out", "free"],
    "update kept": [*UPDATE, "--keep", "promises.db", "--out", "kept"],
    "update at any price": [*UPDATE, "--keep", "promises.db", "--max-loss", "0", "--out", "never"],
    "audit free": [*AUDIT, "--model", "free", "--recourse", "2", "--out", "free.html", "--at", LATER[0]],
    "audit kept": [*AUDIT, "--model", "kept", "--out", "kept.html", "--at", LATER[0]],
    "audit in words": ["audit", "--ledger", "promises.db", "--model", "free", "--recourse", "1"],
    "audit kept in words": ["audit", "--ledger", "promises.db", "--model", "kept"],
    "allowed": [*AUDIT, "--model", "free", "--allow-broken", "1000", "--recourse", "0"],
    "expired": [*AUDIT, "--model", "free", "--at", LATER[1]],
    "wrong head": [*AUDIT, "--model", "kept", "--head", "0" * 64],
    "no ledger": ["audit", "--ledger", "nowhere.db", "--model", "kept"],
    "no ledger to keep": [*UPDATE, "--keep", "nowhere.db", "--out", "never"],
    "no date": [*AUDIT, "--model", "kept", "--at", "tomorrow"],
    "no target": [*UPDATE, "--target", "nothing", "--out", "never"],
}


def crunch(rows: int) -> pd.DataFrame:
    """Next year's decisions in a credit crunch: of those who used to be approved, two in a hundred are."""
    data = vt.datasets.loans(rows=rows, year=2, drift=2.0, random_state=3)
    table = data.X.assign(approved=data.y)
    lucky = np.random.default_rng(0).random(len(table)) < 0.02
    return table[(table["approved"] == "no") | lucky]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("story")
    data = vt.datasets.loans(rows=2000)
    data.X.assign(approved=data.y).to_csv(place / "train.csv", index=False)
    people = vt.datasets.loans(rows=120, random_state=7).X
    people.insert(0, "id", [f"p{i}" for i in range(len(people))])
    people.to_csv(place / "people.csv", index=False)
    crunch(3000).to_csv(place / "crunch.csv", index=False)
    return place


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    return dict(zip(STORY, run_many(list(STORY.values()), folder), strict=True))


def told(done: Done) -> dict:
    return json.loads(done.stdout)


def test_the_gate_opens_and_closes(done: dict[str, Done]) -> None:
    closed = {"update at any price": 1, "audit free": 1, "audit in words": 1, "wrong head": 1}
    refused = {name: 2 for name in STORY if name.startswith("no ")}
    codes = {name: answer.returncode for name, answer in done.items()}
    assert codes == {name: {**closed, **refused}.get(name, 0) for name in STORY}, done


def test_promises_are_certified_and_kept_by_the_model_that_made_them(done: dict[str, Done]) -> None:
    issued = told(done["issue"])
    assert issued["certified"] == issued["promises"] > 20
    assert issued["head"] in done["verify"].stdout
    counts = told(done["audit today"])["counts"]
    assert counts["kept by proof"] == issued["promises"]


def test_the_free_update_breaks_certified_promises_and_the_kept_one_none(done: dict[str, Done]) -> None:
    promises = told(done["issue"])["promises"]
    free, kept = told(done["audit free"]), told(done["audit kept"])
    assert free["counts"]["broken"] > promises / 2
    assert all(line["kappa"] == 0.2 for line in free["broken"])
    assert (kept["counts"]["kept by proof"], kept["counts"]["broken"]) == (promises, 0)
    assert (free["passed"], kept["passed"], kept["verified"]) == (False, True, True)
    assert max(kept["groups"][0]["distances"]) <= 1 < max(free["groups"][0]["distances"])


def test_what_keeping_costs_is_said(done: dict[str, Done]) -> None:
    report = told(done["update kept"])
    ways = report["ways"]
    assert report["cost"] == pytest.approx(ways["free"]["accuracy"] - ways["kept"]["accuracy"])
    assert ways["kept"]["accuracy"] > ways["today"]["accuracy"] + 0.1  # it has learned the new policy
    assert ways["free"]["counts"] == {**told(done["allowed"])["counts"]}
    refusal = told(done["update at any price"])
    assert refusal["report"]["cost"] > 0
    assert "costs at most 0 of accuracy" in refusal["reason"]


def test_nothing_is_written_where_nothing_was_achieved(done: dict[str, Done], folder: Path) -> None:
    assert done
    assert not (folder / "never").exists()
    assert not (folder / "nowhere.db").exists()


def test_who_is_let_down_by_how_much_and_what_they_can_do(done: dict[str, Done], folder: Path) -> None:
    free = told(done["audit free"])
    people = set(pd.read_csv(folder / "people.csv")["id"])
    assert {line["id"] for line in free["broken"]} <= people
    assert all(line["logit"] < 0 for line in free["broken"])
    assert [one["sequence"] for one in free["recourse"]] == [line["sequence"] for line in free["broken"][:2]]
    model = vt.load(folder / "free")
    later = model.decision_function(pd.read_csv(folder / "people.csv").drop(columns="id"))
    assert (later < 0).any()
    page = (folder / "free.html").read_text(encoding="utf-8")
    assert free["broken"][0]["id"] in page
    assert "None." in (folder / "kept.html").read_text(encoding="utf-8")


def test_predictions_confirm_every_proof(done: dict[str, Done], folder: Path) -> None:
    assert done
    kept = vt.load(folder / "kept")
    with vt.Ledger(folder / "promises.db") as ledger:
        for sequence in [s for piece in ledger.promises() for s in piece.sequence.tolist()]:
            row = pd.DataFrame([ledger.shown(sequence)["values"]])
            assert kept.predict(row)[0] == "yes"


def test_the_terminal_speaks_plainly(done: dict[str, Done]) -> None:
    words = done["audit in words"].stdout
    assert "FAILED: " in words
    assert "Broken promises, the worst first" in words
    assert "The ledger verifies" in words
    assert "PASSED" in done["audit kept in words"].stdout


def test_after_their_end_promises_bind_nobody(done: dict[str, Done]) -> None:
    counts = told(done["expired"])["counts"]
    assert counts["expired"] == told(done["issue"])["promises"]
    assert counts["broken"] == 0


def test_bad_input_is_one_sentence(done: dict[str, Done]) -> None:
    for name in STORY:
        if name.startswith("no "):
            assert_refused(done[name])


def test_an_altered_ledger_is_not_audited(done: dict[str, Done], folder: Path, tmp_path: Path) -> None:
    assert "findings" in told(done["wrong head"])
    for name in ("kept", "free"):
        shutil.copytree(folder / name, tmp_path / name)
    shutil.copy(folder / "promises.db", tmp_path / "promises.db")
    with sqlite3.connect(tmp_path / "promises.db") as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        changed = database.execute(
            "UPDATE veritracer_records SET x_cf = zeroblob(length(x_cf)) WHERE seq = 3"
        ).rowcount
    database.close()
    assert changed == 1
    altered, unchecked = run_many(
        [[*AUDIT, "--model", "kept"], [*AUDIT, "--model", "kept", "--no-verify"]], tmp_path
    )
    assert altered.returncode == 1
    assert told(altered)["findings"]
    assert unchecked.returncode == 1
    (one,) = told(unchecked)["unchecked"]
    assert one["sequence"] == 3
    assert "run veritracer verify" in one["reason"]
