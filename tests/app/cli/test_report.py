"""``veritracer notices``: a folder of notices, whole or not at all."""

from __future__ import annotations

import json
import re
import shutil
from datetime import datetime
from pathlib import Path

import pandas as pd
import pytest

import veritracer as vt
from optional import missing_pango, skip_without_pango
from processes import Done, assert_refused, run_many
from veritracer.app.i18n import Translator
from veritracer.app.notices import render_notice

FEATURES = vt.datasets.loans(rows=1).X.columns.tolist()
ISSUE = ["issue", "model", "named.csv", "--id-column", "who", "--ignore", "full name,place"]
CODES = ["--codes", "codes.json"]
BOOK = ["notices", "--ledger", "a.db", *CODES]
OWN = ["--table", "named.csv", "--id-column", "who", "--field-column", "recipient=full name"]
OWN += ["--field-column", "address=place"]
OPENED = ["notices", "--ledger", "c.db", *CODES, "--out", "opened"]
DRAFTS = ["notices", "--model", "model", *CODES, "--table"]
FIRST = [
    [*ISSUE, "--out", "issued.csv", "--ledger", "a.db"],
    [*ISSUE, "--out", "committed.csv", "--ledger", "c.db", "--original", "commitment"],
]
COMMANDS = {
    "all": [*BOOK, "--out", "all", "--field", "institution=A Bank, Ltd."],
    "again": [*BOOK, "--out", "again", "--field", "institution=A Bank, Ltd."],
    "own": [*BOOK, "--out", "own", *OWN, "--language", "de"],
    "plain": [*BOOK[:3], "--out", "plain"],
    "some": [*BOOK, "--out", "some", "--format", "html", "--json"],
    "opened": [*OPENED, "--table", "committed.csv", "--id-column", "who"],
    "drafts": [*DRAFTS, "people.csv", "--out", "drafts", "--field", "institution=A Bank, Ltd."],
    "pages": [*DRAFTS, "people.csv", "--out", "pages", "--n", "2", "--format", "html"],
    "pdf": [*DRAFTS, "few.csv", "--out", "pdf", "--pdf", "--language", "de"],
}
BAD = {
    "a number of one's own": ([*BOOK, "--field", "number=7"], "the ledger does not know"),
    "a day of one's own": (
        [*DRAFTS, "people.csv", "--field", "expires=2031-05-01"],
        "the ledger does not know",
    ),
    "no such column": ([*BOOK, *OWN[:-2], "--field-column", "address=nmae"], "a column 'nmae'"),
    "both ways": ([*BOOK, *OWN, "--field", "address=x"], "'address' as both"),
    "no such language": ([*BOOK, "--language", "fr"], "a locale among en, de"),
    "no such folder": ([*BOOK, "--language", "fr", "--locale-dir", "nowhere"], "a catalogue fr/LC_MESSAGES"),
    "text as pdf": ([*BOOK, "--format", "text", "--pdf"], "notices in HTML"),
    "unmapped": ([*BOOK[:3], "--codes", "few.json"], "a reason code for every changed"),
    "there already": ([*BOOK], "not there yet"),
    "no such codes": ([*BOOK[:3], "--codes", "nobody.json"], "nobody.json"),
    "no such template": ([*BOOK, "--template", "nobody.html"], "nobody.html"),
    "unknown format": ([*BOOK, "--format", "pdf"], "'pdf'"),
    "field without text": ([*BOOK, "--field", "contact"], "NAME=TEXT"),
    "unknown field": ([*BOOK, "--field", "contct=us"], "'contact'"),
    "nowhere": ([*BOOK], "no folder no"),
    "neither": (["notices"], "either --ledger or --model, got neither"),
    "both": ([*BOOK, "--model", "model"], "either --ledger or --model, got both"),
    "a model alone": (["notices", "--model", "model"], "--model with --table"),
    "a table without ids": ([*BOOK, "--table", "named.csv"], "--table together with --id-column"),
    "columns of no table": ([*BOOK, "--field-column", "address=place"], "--field-column with --table"),
    "other options": ([*BOOK, "--kappa", "0.1"], "--ledger without options of explain"),
    "no such ledger": (["notices", "--ledger", "nobody.db"], "nobody.db"),
    "no such promise": ([*BOOK, "--number", "9999"], "9999"),
    "commitments alone": (["notices", "--ledger", "c.db", *CODES], "the person's own row in the ledger"),
}
OUT = {"there already": "all", "nowhere": "no/new"}


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("notices") / "w"
    shutil.copytree(made, place)
    codes = {name: [f"R{k:02}", f"About {name}"] for k, name in enumerate(FEATURES)}
    (place / "codes.json").write_text(json.dumps(codes))
    people = pd.read_csv(place / "people.csv")
    people[people["approved"] == "no"].head(3).to_csv(place / "few.csv", index=False)
    who = [f"00{k}" for k in range(20)]
    named = people.head(20).assign(who=who, place="Some Street 1", **{"full name": [f"P. {k}" for k in who]})
    named.to_csv(place / "named.csv", index=False)
    (place / "few.json").write_text(json.dumps({"age": ["R01", "Age"]}))
    return place


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    for first in run_many(FIRST, folder):
        assert first.returncode == 0, first.stderr
    numbers = [word for number in two_promises(folder) for word in ("--number", str(number))]
    bad = {name: [*typed, "--out", OUT.get(name, "new")] for name, (typed, _) in BAD.items()}
    commands = {**COMMANDS, "some": [*COMMANDS["some"], *numbers], **bad}
    return dict(zip(commands, run_many(list(commands.values()), folder), strict=True))


def two_promises(folder: Path) -> list[int]:
    with vt.Ledger(folder / "a.db", create=False) as ledger:
        return ledger.listing()["number"].tolist()[1:3]


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_every_live_promise_has_a_notice_of_what_was_recorded(done, folder: Path) -> None:
    assert done["all"].returncode == 0, done["all"].stderr
    written = texts(folder / "all")
    with vt.Ledger(folder / "a.db", create=False) as ledger:
        numbers = ledger.listing()["number"].tolist()
        assert list(written) == [f"{number:06}.txt" for number in numbers]
        assert done["all"].stdout == f"{len(numbers)} notices: all\n"
        for number, text in zip(numbers, written.values(), strict=True):
            assert "DRAFT" not in text
            assert f"Promise number: {number}\n" in text
            shown = ledger.shown(number)
            words = " ".join(text.split())
            moment = Translator("en").format_moment(datetime.fromisoformat(shown["expires"]))
            assert f"before {' '.join(moment.split())}, also if we update" in words
            end = shown["expires"][:19].replace("T", " ")
            assert f"number {number} in our ledger and ends on {end}" in words
            codes = folder / "codes.json"
            assert text == render_notice(ledger, number, codes, institution="A Bank, Ltd.")


def test_the_same_command_writes_the_same_notices(done, folder: Path) -> None:
    assert texts(folder / "again") == texts(folder / "all")


def test_codes_are_not_needed(done, folder: Path) -> None:
    assert done["plain"].returncode == 0, done["plain"].stderr
    assert texts(folder / "plain").keys() == texts(folder / "all").keys()
    assert all("of accepted applications" in text for text in texts(folder / "plain").values())


def test_people_have_their_own_fields(done, folder: Path) -> None:
    assert done["own"].returncode == 0, done["own"].stderr
    with vt.Ledger(folder / "a.db", create=False) as ledger:
        for name, text in texts(folder / "own").items():
            who = ledger.shown(int(name[:6]))["id"]
            assert f"Guten Tag P. {who}," in text
            assert f"P. {who}\nSome Street 1\n" in text


def test_single_promises(done, folder: Path) -> None:
    assert json.loads(done["some"].stdout) == {"out": "some", "notices": 2}
    assert list(texts(folder / "some")) == [f"{number:06}.html" for number in two_promises(folder)]


def test_commitments_are_opened_by_the_results(done, folder: Path) -> None:
    assert done["opened"].returncode == 0, done["opened"].stderr
    plain, opened = texts(folder / "all"), texts(folder / "opened")
    assert opened.keys() == plain.keys()
    for name in plain:
        mine, theirs = (re.findall(r"^- (?:Raise|Reduce|Change) .*", t[name], re.M) for t in (plain, opened))
        assert mine == theirs != []


@pytest.mark.parametrize("name", ["drafts", "pages"])
def test_everybody_who_was_declined_gets_a_draft(done, folder: Path, name: str) -> None:
    assert done[name].returncode == 0, done[name].stderr
    people = pd.read_csv(folder / "people.csv")
    declined = ~vt.load(folder / "model").explain(people[FEATURES], refine=False).favourable
    written = texts(folder / name)
    assert {int(file[:6]) - 1 for file in written} == set(declined.nonzero()[0].tolist())
    for text in written.values():
        assert "was declined" in text
        assert "DRAFT" in text
        assert not re.search("what we promise|we commit|will be accepted", text, re.IGNORECASE)


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_leaves_nothing_behind(done, folder: Path, name: str) -> None:
    assert_refused(done[name])
    assert BAD[name][1] in done[name].stderr
    assert not [path.name for path in folder.iterdir() if path.name.startswith("new")]


def test_notices_as_pdf(done, folder: Path) -> None:
    if missing_pango():
        assert_refused(done["pdf"])
        assert "libraries that weasyprint needs" in done["pdf"].stderr
    skip_without_pango()
    assert done["pdf"].returncode == 0, done["pdf"].stderr
    pages = sorted((folder / "pdf").glob("*.pdf"))
    assert pages
    for page in pages:
        assert page.read_bytes().startswith(b"%PDF-")
        assert "Ihr Antrag" in page.with_suffix(".html").read_text()
