"""``veritracer explain --letters``: a folder of letters, whole or not at all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

import veritracer as vt
from processes import Done, assert_refused, run_many

FEATURES = vt.datasets.loans(rows=1).X.columns.tolist()
EXPLAIN = ["explain", "model", "people.csv"]
LETTERS = ["--letters", "letters", "--codes", "codes.json"]
PAGES = ["--letters", "pages", "--codes", "codes.json", "--letter-format", "html"]
COMMANDS = {
    "text": [*EXPLAIN, "--out", "text.csv", *LETTERS, "--field", "institution=A Bank, Ltd."],
    "html": [*EXPLAIN, "--out", "html.csv", "--n", "2", *PAGES],
}
BAD = {
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
    for letter, status in zip(named, table["recourse.status"][declined], strict=True):
        text = (folder / place / letter).read_text()
        assert "was declined" in text
        assert ("What we promise".casefold() in text.casefold()) == (status == "certified")


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
