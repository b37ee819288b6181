"""``veritracer explain --letters``: a folder of letters, whole or not at all."""

from __future__ import annotations

import json
import re
import shutil
from datetime import date
from pathlib import Path

import pandas as pd
import pytest

import veritracer as vt
from optional import missing_pango, skip_without_pango
from processes import Done, assert_refused, run_many

FEATURES = vt.datasets.loans(rows=1).X.columns.tolist()
EXPLAIN = ["explain", "model", "people.csv"]
LETTERS = ["--letters", "letters", "--codes", "codes.json"]
PAGES = ["--letters", "pages", "--codes", "codes.json", "--letter-format", "html"]
COMMANDS = {
    "text": [*EXPLAIN, "--out", "text.csv", *LETTERS, "--field", "institution=A Bank, Ltd."],
    "html": [*EXPLAIN, "--out", "html.csv", "--n", "2", *PAGES],
}
ISSUE = ["issue", "model", "named.csv", "--id-column", "who", "--ledger", "a.db"]
OWN = ["--field-column", "recipient=full name", "--field-column", "address=place"]
COMMANDS["issued"] = [*ISSUE, "--out", "issued.csv", "--letters", "issued", "--codes", "codes.json", *OWN]
COMMANDS["issued again"] = [*ISSUE, "--out", "again.csv", "--letters", "again", "--codes", "codes.json", *OWN]
COMMANDS["pdf"] = [*EXPLAIN[:-1], "few.csv", "--out", "pdf.csv", "--letters", "pdf", "--codes", "codes.json"]
COMMANDS["pdf"] += ["--pdf", "--language", "de"]
BAD = {
    "a number of one's own": (
        [*ISSUE, "--letters", "new", "--field", "number=7"],
        "the ledger does not know",
    ),
    "a day of one's own": (
        [*EXPLAIN, "--letters", "new", "--codes", "codes.json", "--field", "expires=2031-05-01"],
        "the ledger does not know",
    ),
    "no such column": ([*ISSUE, "--letters", "new", "--field-column", "recipient=nmae"], "nmae"),
    "both ways": (
        [*EXPLAIN, "--letters", "new", "--field", "date=1", "--field-column", "date=age"],
        "as both",
    ),
    "no such language": (
        [*EXPLAIN, "--letters", "new", "--codes", "codes.json", "--language", "fr"],
        "a language among",
    ),
    "text as pdf": ([*EXPLAIN, "--letters", "new", "--letter-format", "text", "--pdf"], "letters in HTML"),
    "pdf alone": ([*EXPLAIN, "--pdf"], "--pdf without --letters"),
    "issued without codes": (
        [*ISSUE[:-1], "b.db", "--letters", "new", *OWN],
        "a reason code for",
    ),
    "unmapped": ([*EXPLAIN, "--letters", "new", "--codes", "few.json"], "a reason code for every changed"),
    "there already": ([*EXPLAIN, *LETTERS], "not there yet"),
    "codes alone": ([*EXPLAIN, "--codes", "codes.json"], "--codes without --letters"),
    "no such codes": ([*EXPLAIN, "--letters", "new", "--codes", "nobody.json"], "nobody.json"),
    "no such template": ([*EXPLAIN, "--letters", "new", "--template", "nobody.html"], "nobody.html"),
    "unknown format": ([*EXPLAIN, "--letters", "new", "--letter-format", "pdf"], "'pdf'"),
    "field without text": ([*EXPLAIN, "--letters", "new", "--field", "contact"], "NAME=TEXT"),
    "unknown field": (
        [*EXPLAIN, "--letters", "new", "--codes", "codes.json", "--field", "contct=us"],
        "'contact'",
    ),
    "nowhere": ([*EXPLAIN, "--letters", "no/new", "--codes", "codes.json"], "no folder no"),
}


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("letters") / "w"
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
    commands = {**COMMANDS, **{name: [*typed, "--out", "bad.csv"] for name, (typed, _) in BAD.items()}}
    return dict(zip(commands, run_many(list(commands.values()), folder), strict=True))


@pytest.mark.parametrize(("name", "place"), [("text", "letters"), ("html", "pages")])
def test_everybody_who_was_declined_gets_a_letter(done, folder: Path, name: str, place: str) -> None:
    assert done[name].returncode == 0, done[name].stderr
    table = pd.read_csv(folder / f"{name}.csv")
    declined = table["recourse.reason"] != "already favourable"
    assert table["recourse.letter"].notna().tolist() == declined.tolist()
    named = table["recourse.letter"].dropna().tolist()
    assert sorted(path.name for path in (folder / place).iterdir()) == sorted(named)
    assert (table["recourse.status"] == "certified").any()
    for letter in named:
        text = (folder / place / letter).read_text()
        assert "was declined" in text
        assert "DRAFT" in text
        assert not re.search("what we promise|we commit|will be accepted", text, re.IGNORECASE)


def test_the_letter_is_the_one_of_its_row(done, folder: Path) -> None:
    table = pd.read_csv(folder / "text.csv")
    people = pd.read_csv(folder / "people.csv")
    k = int(table["recourse.letter"].notna().to_numpy().nonzero()[0][0])
    assert table["recourse.letter"][k] == f"{k + 1:06}.txt"
    codes = json.loads((folder / "codes.json").read_text())
    found = vt.load(folder / "model").explain(people[FEATURES][k : k + 1])
    expected = found.letter(0, codes=codes, institution="A Bank, Ltd.")
    assert (folder / "letters" / table["recourse.letter"][k]).read_text() == expected


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_leaves_nothing_behind(done, folder: Path, name: str) -> None:
    assert_refused(done[name])
    assert BAD[name][1] in done[name].stderr
    assert not [path.name for path in folder.iterdir() if path.name.startswith(("new", "bad"))]


def test_an_issued_letter_is_of_what_was_recorded(done, folder: Path) -> None:
    assert done["issued"].returncode == 0, done["issued"].stderr
    table = pd.read_csv(folder / "issued.csv", dtype={"who": str})
    promised = table[table["recourse.status"] == "certified"]
    numbers = []
    with vt.Ledger(folder / "a.db", create=False) as ledger:
        for name, who in zip(promised["recourse.letter"], promised["who"], strict=True):
            text = (folder / "issued" / name).read_text()
            assert "DRAFT" not in text
            number = int(re.search(r"Promise number: (\d+)", text)[1])
            told = ledger.shown(number)
            assert told["id"] == who
            assert f"Dear P. {who}," in text
            assert f"P. {who}\nSome Street 1\n" in text
            day = date.fromisoformat(told["expires"][:10])
            words = " ".join(text.split())
            assert f"before {day.day} {day:%B %Y}, also if we update" in words
            assert (
                f"number {number} in our ledger and ends on {told['expires'][:19].replace('T', ' ')}" in words
            )
            numbers.append(number)
        assert numbers == ledger.listing()["number"].tolist()
    assert "place" not in table.columns


def test_who_has_a_promise_gets_no_second_letter(done, folder: Path) -> None:
    assert done["issued again"].returncode == 0, done["issued again"].stderr
    table = pd.read_csv(folder / "again.csv")
    assert table["recourse.letter"][table["recourse.status"] == "certified"].isna().all()


def test_letters_as_pdf(done, folder: Path) -> None:
    if missing_pango():
        assert_refused(done["pdf"])
        assert "libraries that weasyprint needs" in done["pdf"].stderr
    skip_without_pango()
    assert done["pdf"].returncode == 0, done["pdf"].stderr
    named = pd.read_csv(folder / "pdf.csv")["recourse.letter"].dropna().tolist()
    assert named
    for name in named:
        assert (folder / "pdf" / name).read_bytes().startswith(b"%PDF-")
        assert "Ihr Antrag" in (folder / "pdf" / name).with_suffix(".html").read_text()


def test_a_letter_that_can_not_be_written_stops_the_promises(done, folder: Path) -> None:
    assert not (folder / "b.db").exists() or vt.Ledger(folder / "b.db").counts().live == 0
