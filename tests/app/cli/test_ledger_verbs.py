"""``veritracer issue`` and ``veritracer verify``, as people run them."""

from __future__ import annotations

import json
import re
import sqlite3
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import veritracer as vt
from processes import Done, assert_refused, run, run_many
from veritracer.ledger import new_key

ISSUE = ["issue", "model", "named.csv", "--id-column", "id"]
OUT = ["--out", "issued.csv"]


@pytest.fixture
def named(work: Path) -> Path:
    """The folder, with a table whose rows have ids that look like numbers and are none."""
    people = pd.read_csv(work / "people.csv", dtype=str, keep_default_na=False).head(40)
    people.insert(0, "id", [f"00{i}" for i in range(len(people))])
    people.to_csv(work / "named.csv", index=False)
    people.head(20).to_csv(work / "few.csv", index=False)
    people.assign(id=people["id"].where(people.index != 7, "")).to_csv(work / "nameless.csv", index=False)
    (work / "key").write_bytes(new_key() + b"\n")
    (work / "no_key").write_bytes(b"secret")
    return work


def test_promises_are_issued_and_verified(named: Path) -> None:
    head_of_nothing, sealed = "ab" * 32, ["--original", "encrypted", "--key-file", "key"]
    commands = [
        [*ISSUE, "--ledger", "a.db", "--out", "recourse.csv"],
        [*ISSUE, "--ledger", "a.db", "--json", "--allow-duplicate", *sealed, "--out", "again.csv"],
        [*ISSUE, "--ledger", "b.db", "--quiet", "--original", "commitment", "--out", "b.csv"],
        ["verify", "--ledger", "a.db"],
        ["verify", "--ledger", "a.db", "--json"],
        ["verify", "--ledger", "a.db", "--head", head_of_nothing],
    ]
    done = run_many(commands, named)
    assert [d.returncode for d in done] == [0, 0, 0, 0, 0, 1], done
    _assert_told(done, named)
    _assert_stored(named)
    _assert_a_change_fails_the_pipeline(named)


def _assert_told(done: list[Done], folder: Path) -> None:
    recourse = pd.read_csv(folder / "recourse.csv", dtype={"id": str})
    promised = recourse[recourse["recourse.status"] == "certified"]
    first, second, third, plain, verified, wrong = done
    assert (
        f"{len(promised):,} promises were issued (numbers 3 to {len(promised) + 2}); they end on "
        in first.stdout
    )
    told = json.loads(second.stdout)
    # The entry of the first request stands between the promises of both.
    assert (told["promises"], told["first"]) == (len(promised), len(promised) + 4)
    assert third.stdout == ""
    assert told["head"] in plain.stdout
    assert "without --head a missing end does not show" in plain.stdout
    found = json.loads(verified.stdout)
    assert (found["ok"], found["head"], found["promises"]) == (True, told["head"], 2 * len(promised))
    assert "the head that was noted is not in the chain" in wrong.stdout
    with vt.Ledger(folder / "a.db") as ledger:
        (promises,) = ledger.promises()
        assert promises.ids == promised["id"].tolist() * 2
        assert ledger.verify(first.stdout.split()[-1]).ok
        day = 86_400
        assert promises.expires[0] - promises.issued[0] == 365 * day


def _assert_stored(folder: Path) -> None:
    openings = pd.read_csv(folder / "b.csv")["recourse.opening"].dropna()
    with vt.Ledger(folder / "b.db") as ledger:
        assert ledger.shown(3)["original"] is None
        row = ledger.opened(3, b64decode(openings.iloc[0]))["row"]
    people = pd.read_csv(folder / "people.csv")
    first = people.iloc[openings.index[0]]
    assert all(row[name] == first[name] for name in ("income", "savings", "sex"))


def _assert_a_change_fails_the_pipeline(folder: Path) -> None:
    connection = sqlite3.connect(folder / "a.db")
    connection.execute("UPDATE veritracer_records SET public = X'7B7D' WHERE seq = 4")
    connection.commit()
    connection.close()
    done = run("verify", "--ledger", "a.db", cwd=folder)
    assert done.returncode == 1
    assert "entry 4: the part 'public' is not what was committed to" in done.stdout
    assert "NOT what was written" in done.stdout


def _far(place: str) -> list[list[str]]:
    """Commands that ask for more than can be proved: left out first, then promised at what was proved."""
    far = ["issue", "model", "few.csv", "--id-column", "id", "--ledger", place, "--kappa", "2", "--json"]
    return [[*far, "--out", "far.csv"], [*far, "--uncertified", "promise", "--out", "farther.csv"]]


def test_the_life_of_promises(named: Path) -> None:
    """Issued once, listed, shown, audited, updated, released and erased; the ledger notes each of it."""
    on = ["--ledger", "a.db"]
    again_out = ["--out", "again.csv"]
    done = run_many([[*ISSUE, *on, *OUT, "--json"], [*ISSUE, *on, *again_out], *_far("c.db")], named)
    assert [d.returncode for d in done] == [0] * 4, done
    first, again = json.loads(done[0].stdout), done[1].stdout
    strict, loose = (json.loads(d.stdout) for d in done[2:])
    count, number = first["promises"], first["first"]
    assert "0 promises were issued" in again
    assert f"{count} answers were left out: the same application has a promise (--allow-duplicate)." in again
    assert loose["promises"] == strict["uncertified"] > 0
    people = pd.read_csv(named / "people.csv").head(40).assign(approved="yes")
    people.loc[people.index % 2 == 0, "approved"] = "no"
    people.to_csv(named / "new.csv", index=False)
    commands = [
        ["promises", "list", *on, "--json"],
        ["promises", "list", "--ledger", "c.db", "--all"],
        ["promises", "show", str(number), *on],
        ["promises", "show", str(number), *on, "--json"],
        ["audit", *on, "--model", "model", "--out", "audit.html", "--json"],
        ["update", "model", "new.csv", "--keep", "a.db", "--epochs", "1", "--no-compare", "--out", "next"],
        ["promises", "release", str(number), *on, "--reason", "withdrawn"],
    ]
    done = run_many(commands, named)
    assert [d.returncode for d in done] == [0] * len(done), done
    listed, text, shown, told, audited, _, released = (d.stdout for d in done)
    assert len(json.loads(listed)) == count
    assert "live" in text
    told, audited = json.loads(told), json.loads(audited)
    assert told["sentence"] in " ".join(shown.split())
    _assert_in_words(told, shown)
    assert (told["status"], told["certified"]) == ("live", True)
    assert released.splitlines()[0] == f"Promise {number} is released."
    page = (named / "audit.html").read_text()
    assert all(word in page for word in ("a.db", audited["head"], audited["model_digest"], ">model<"))
    assert audited["recorded"] != audited["head"]
    who = json.loads(listed)[-1]["id"]
    commands = [
        ["promises", "erase", who, *on],
        ["promises", "erase", who, *on, "--yes"],
        ["promises", "history", *on, "--json"],
        ["promises", "history", *on],
        ["verify", *on, "--head", audited["recorded"]],
    ]
    asked, erased, history, table, verified = run_many(commands, named)
    assert_refused(asked)
    assert "add --yes" in asked.stderr
    assert "1 records were erased" in erased.stdout
    kinds = [one["kind"] for one in json.loads(history.stdout)]
    assert kinds[-4:] == ["audit", "update", "release", "erasure"]
    assert "withdrawn" in table.stdout
    assert verified.returncode == 0, verified


def _assert_in_words(told: dict[str, Any], shown: str) -> None:
    """Nothing; numbers are shown as people write them."""
    rows = {line.split()[0]: re.split(r"  +", line)[1:] for line in shown.splitlines() if line}
    for name in ("age", "income", "savings"):
        assert rows[name] == [f"{int(told[row][name]):,}" for row in ("original", "values")]
    assert rows["sex"] == [told["original"]["sex"], told["values"]["sex"]]


def test_what_an_audit_notices_is_a_note(named: Path) -> None:
    train = pd.read_csv(named / "train.csv")
    other = train["approved"].map({"yes": "no", "no": "yes"})
    train.assign(approved=other).to_csv(named / "flipped.csv", index=False)
    people = pd.read_csv(named / "people.csv")
    people.assign(id=people.index).to_csv(named / "all.csv", index=False)
    fit = ["fit", "flipped.csv", "--target", "approved", "--favourable", "yes", "--epochs", "6", "--no-panel"]
    fit += ["--holdout", "0", "--quiet", "--immutable", "age,sex,region", "--out", "flipped"]
    issue = ["issue", "model", "all.csv", "--id-column", "id", "--ledger", "a.db", "--quiet", *OUT]
    audit = ["audit", "--ledger", "a.db", "--model", "flipped"]
    *_, plain, as_json, quiet = run_many([fit, issue, audit, [*audit, "--json"], [*audit, "--quiet"]], named)
    assert [d.returncode for d in (plain, as_json, quiet)] == [1, 1, 1], plain
    for told in (plain.stderr, as_json.stderr):
        assert " counterfactuals set 'savings' to its lowest value" in told
        assert all(line.startswith("note: ") for line in told.splitlines())
    assert json.loads(as_json.stdout)["counts"]["broken"] > 0
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_an_audit_without_live_promises_does_not_pass(named: Path) -> None:
    vt.Ledger(named / "empty.db").close()
    run_many([[*ISSUE, "--ledger", "a.db", "--quiet", *OUT]], named)
    audit = ["audit", "--model", "model", "--ledger"]
    past = ["--at", "2020-01-01"]
    commands = [
        [*audit, "empty.db"],
        [*audit, "empty.db", "--json"],
        [*audit, "a.db", *past],
        [*audit, "a.db"],
    ]
    empty, as_json, early, passed = run_many(commands, named)
    assert [d.returncode for d in (empty, as_json, early, passed)] == [1, 1, 1, 0]
    for told in (empty, early):
        assert "NOTHING TO CHECK: no promise in this ledger is live at that time." in told.stdout
        assert "PASSED" not in told.stdout
    assert "made in between, and later releases, are not seen" in " ".join(early.stdout.split())
    assert (json.loads(as_json.stdout)["passed"], json.loads(as_json.stdout)["live"]) == (False, 0)
    assert "PASSED" in passed.stdout
    (told,) = run_many([["promises", "history", "--ledger", "empty.db"]], named)
    assert "nothing to check" in " ".join(told.stdout.split())


def test_a_wrong_clock_is_corrected_with_a_reason(tmp_path: Path) -> None:
    with vt.Ledger(tmp_path / "a.db") as ledger:
        year = datetime.now(UTC) + timedelta(days=365)
        ledger.record_update("0" * 64, "1" * 64, {}, now=year)
    correct = ["verify", "--ledger", "a.db", "--correct-clock", "no battery"]
    done, again, told = run_many([correct, correct, ["promises", "history", "--ledger", "a.db"]], tmp_path)
    assert done.returncode == 0
    assert "the clock was wrong until here: no battery" in " ".join(done.stdout.split())
    assert (again.returncode, "there is nothing to correct" in again.stderr) == (2, True)
    assert "no battery" in told.stdout


BAD: dict[str, tuple[list[str], str]] = {
    "no id column": ([*ISSUE[:-1], "name", *OUT, "--ledger", "new.db"], "no 'name' in named.csv"),
    "somebody without an id": (
        ["issue", "model", "nameless.csv", "--id-column", "id", "--ledger", "new.db", *OUT],
        "1 that are empty or missing",
    ),
    "a strange duration": ([*ISSUE, *OUT, "--ledger", "new.db", "--expires", "soon"], "365d, 52w, 1y"),
    "in the past": (
        [*ISSUE, *OUT, "--ledger", "new.db", "--expires", "2020-01-01"],
        "after the day of issue",
    ),
    "no key": ([*ISSUE, *OUT, "--ledger", "new.db", "--original", "encrypted"], "a key to encrypt"),
    "no such key": (
        [*ISSUE, *OUT, "--ledger", "new.db", "--original", "encrypted", "--key-file", "no_key"],
        "32 bytes",
    ),
    "no key file": ([*ISSUE, *OUT, "--ledger", "new.db", "--key-file", "nowhere"], "a file with a key"),
    "unknown keeping": ([*ISSUE, *OUT, "--ledger", "new.db", "--original", "hidden"], "'commitment'"),
    "unknown database": ([*ISSUE, *OUT, "--ledger", "mysql://x/y"], "SQLite or PostgreSQL"),
    "a ledger that is a table": ([*ISSUE, *OUT, "--ledger", "people.csv"], "file is not a database"),
    "no ledger": (["verify", "--ledger", "nothing.db"], "a ledger that exists"),
    "no promise to release": (
        ["promises", "release", "99", "--ledger", "model.db", "--reason", "x"],
        "promises to release",
    ),
    "no reason to release": (["promises", "release", "1", "--ledger", "model.db"], "--reason"),
    "nobody to erase": (["promises", "erase", "nobody", "--ledger", "model.db"], "people with a record"),
    "no promise to show": (["promises", "show", "7", "--ledger", "model.db"], "a record of promise 7"),
    "no ledger to list": (["promises", "list", "--ledger", "nothing.db"], "a ledger that exists"),
    "no head": (["verify", "--ledger", "model.db", "--head", "abc"], "64 hexadecimal digits"),
}


def test_bad_input_is_one_sentence(named: Path) -> None:
    vt.Ledger(named / "model.db").close()
    before = (named / "people.csv").read_bytes()
    for (case, (_, part)), done in zip(
        BAD.items(), run_many([args for args, _ in BAD.values()], named), strict=True
    ):
        assert_refused(done)
        assert part in done.stderr, (case, done.stderr)
    assert (named / "people.csv").read_bytes() == before
    assert not list(named.glob("issued.csv*"))
    if (named / "new.db").exists():
        with vt.Ledger(named / "new.db") as ledger:
            assert ledger.counts().live == 0


def test_a_base_install_says_what_is_missing(named: Path) -> None:
    done = run(*ISSUE, *OUT, "--ledger", "a.db", before="sys.modules['sqlalchemy'] = None", cwd=named)
    assert_refused(done)
    assert "veritracer[ledger]" in done.stderr
