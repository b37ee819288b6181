"""A stranger's nasty table and its whole life: looked at, learned from, explained, promised, audited.

Identifiers, dates, ``10,257.01``, ``€ 1.200,50``, ``12%``, ``n/a``, 500 shops, one branch, and 97 of 100
people are accepted. Nothing but the target and the favourable label is ever said about it.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import veritracer as vt
from processes import Done, run_many

ROWS = 340
FIT = ["fit", "nasty.csv", "--target", "approved", "--favourable", "yes", "--epochs", "25", "--no-panel"]
FIT += ["--holdout", "0.5", "--out", "model"]


def nasty(rows: int, seed: int) -> pd.DataFrame:
    """The table, as text."""
    rng = np.random.default_rng(seed)
    income, savings = rng.lognormal(10, 0.5, rows), rng.uniform(5, 9000, rows)
    rate = rng.integers(1, 30, rows)
    score = income / 30_000 + savings / 9000 - rate / 15 + rng.normal(0, 0.1, rows)
    euros = [f"€ {s:,.2f}".translate(str.maketrans(",.", ".,")) for s in savings]
    opened = np.datetime64("2020-01-01") + rng.integers(0, 1500, rows)
    return pd.DataFrame(
        {
            "customer": np.arange(100_000, 100_000 + rows),
            "opened": opened.astype(str),
            "income": [f"{each:,.2f}" for each in income],
            "rate": [f"{each}%" for each in rate],
            "savings": ["n/a" if i % 17 == 0 else text for i, text in enumerate(euros)],
            "shop": [f"shop {k}" for k in rng.integers(0, 500, rows)],
            "owner": rng.choice(["Yes", "No"], rows),
            "branch": "main",
            "age": rng.integers(18, 80, rows),
            "approved": np.where(score > np.quantile(score, 0.03), "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table, one as UTF-16, and one with rows that nobody can read."""
    folder = tmp_path_factory.mktemp("stranger")
    table = nasty(ROWS, seed=0)
    table.to_csv(folder / "nasty.csv", index=False)
    text = (folder / "nasty.csv").read_text()
    (folder / "nasty16.csv").write_bytes(text.encode("utf-16"))
    lines = text.splitlines()
    lines[12] = lines[12].rpartition(",")[0] + ","
    lines[5] = lines[5].rpartition(",")[0]
    (folder / "unlabelled.csv").write_text("\n".join(lines) + "\n")
    lines[3] = lines[3].replace("%", " percent")
    lines[9] = lines[9].replace("shop ", "stall ")
    (folder / "rough.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def life(place: Path) -> dict[str, Done]:
    """Every verb, in one process."""
    commands = {
        "look": ["inspect", "nasty.csv", "--target", "approved"],
        "look without": ["inspect", "nasty.csv"],
        "look json": ["inspect", "nasty.csv", "--target", "approved", "--json"],
        "fit": [*FIT, "--approval-rate", "0.6", "--class-weight", "balanced"],
        "show": ["inspect", "model", "--json"],
        "fit rough": [
            "fit",
            "unlabelled.csv",
            *FIT[2:-1],
            "second",
            "--rejects",
            "no_label.csv",
            "--holdout",
            "0",
        ],
        "predict": ["predict", "model", "nasty.csv", "--id-column", "customer", "--out", "decided.csv"],
        "predict 16": [
            "predict",
            "model",
            "nasty16.csv",
            "--encoding",
            "utf-16",
            "--id-column",
            "customer",
            "--out",
            "decided16.csv",
        ],
        "explain": ["explain", "model", "nasty.csv", "--id-column", "customer", "--out", "recourse.csv"],
        "lines": ["explain", "model", "nasty.csv", "--out", "recourse.jsonl"],
        "strict": ["explain", "model", "rough.csv", "--out", "never.csv"],
        "rough": [
            "explain",
            "model",
            "rough.csv",
            "--rejects",
            "bad.csv",
            "--out",
            "most.csv",
            "--no-radius",
        ],
        "rest": ["predict", "model", "bad.csv", "--rejects", "again.csv", "--out", "rest.csv"],
        "certify": ["certify", "model", "nasty.csv", "recourse.csv", "--id-column", "customer"],
        "ignore": ["predict", "model", "nasty.csv", "--ignore", "customer,opened", "--out", "ignored.csv"],
        "issue": [
            "issue",
            "model",
            "nasty.csv",
            "--id-column",
            "customer",
            "--ledger",
            "promises.db",
            "--uncertified",
            "promise",
            "--out",
            "promised.csv",
        ],
        "report": ["report", "model", "nasty.csv", "--id-column", "customer", "--out", "report.html"],
        "update": [
            "update",
            "model",
            "nasty.csv",
            "--keep",
            "promises.db",
            "--max-loss",
            "1",
            "--epochs",
            "1",
            "--id-column",
            "customer",
            "--allow-broken",
            "999",
            "--no-compare",
            "--out",
            "next",
        ],
        "audit": ["audit", "--ledger", "promises.db", "--model", "model", "--json"],
    }
    return dict(zip(commands, run_many(list(commands.values()), place), strict=True))


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_every_verb_says_yes(life: dict[str, Done]) -> None:
    codes = {name: done.returncode for name, done in life.items()}
    assert {name for name, code in codes.items() if code} <= {"strict", "certify"}, life
    assert codes["strict"] == 2
    assert not any("Traceback" in done.stderr for done in life.values())


def test_one_page_before_any_fit(life: dict[str, Done]) -> None:
    page = life["look"].stdout
    for said in (
        "written like 1,234.5",
        "written like 1234.5%",
        "written like € 1.234,5",
        "'n/a' read as unknown",
    ):
        assert said in page
    for said in ("customer: left out: an identifier", "opened: left out: dates", "branch: always main"):
        assert said in page
    assert "categories, " in page
    assert "'no' has 3." in page
    for label in ("no", "yes"):
        assert f"veritracer fit nasty.csv --target approved --favourable {label} --out model" in page
    assert (
        "Which column is the decision? Two values have: 'approved', 'owner'." in life["look without"].stdout
    )
    told = json.loads(life["look json"].stdout)
    kinds = {f["name"]: f.get("number_format") for f in told["schema"]["features"]}
    assert kinds["savings"] == "€ 1.234,5"
    assert {finding["topic"] for finding in told["findings"]} >= {"left out", "constant", "many categories"}


def test_one_screen_after_fit(life: dict[str, Done], place: Path) -> None:
    page = life["fit"].stdout
    for said in ("this model", "base rate", "logistic regression", "gradient boosting", "95 % intervals"):
        assert said in page
    assert page.splitlines()[0].endswith("target 'approved': 'yes' is favourable, 'no' is not")
    assert "left out" in life["fit"].stderr
    worth = json.loads((place / "model" / "evaluation.json").read_text())
    assert 160 <= worth["rows"] <= 180
    facts = json.loads(life["show"].stdout)
    assert list(facts["schema"]["ignored"]) == ["customer", "opened"]
    assert facts["threshold"] != 0.5


def test_decisions_and_probabilities(life: dict[str, Done], place: Path) -> None:
    assert life["predict"].returncode == 0
    decided = read((place / "decided.csv").read_text())
    model = vt.load(place / "model")
    assert [row["customer"] for row in decided] == [str(100_000 + i) for i in range(ROWS)]
    assert sum(row["recourse.decision"] == "yes" for row in decided) == round(0.6 * ROWS)
    at = [float(row["recourse.probability"]) > model.threshold_ for row in decided]
    assert at == [row["recourse.decision"] == "yes" for row in decided]
    assert (place / "decided16.csv").read_text() == (place / "decided.csv").read_text()
    told = read((place / "recourse.csv").read_text())
    assert [row["recourse.decision"] for row in told] == [row["recourse.decision"] for row in decided]
    accepted = [row for row in told if row["recourse.decision"] == "yes"]
    assert {(row["recourse.status"], row["recourse.reason"]) for row in accepted} == {
        ("none", "already favourable")
    }


def test_recourse_is_written_as_the_table_is(life: dict[str, Done], place: Path) -> None:
    assert life["explain"].returncode == 0
    own = {row["customer"]: row for row in read((place / "nasty.csv").read_text())}
    told = read((place / "recourse.csv").read_text())
    helped = [row for row in told if row["recourse.status"] != "none"]
    assert helped
    for row in helped:
        assert row["income"].replace(",", "").replace(".", "").isdigit()
        assert row["rate"].endswith("%")
        assert row["savings"].startswith("€ ") or row["savings"] == "n/a"
        assert row["age"] == own[row["customer"]]["age"]
    lines = [json.loads(line) for line in (place / "recourse.jsonl").read_text().splitlines()]
    assert isinstance(lines[0]["income"], float)
    certified = sum(row["recourse.status"] == "certified" for row in told)
    assert f"{certified:,} certified" in life["certify"].stdout


def test_rows_that_can_not_be_read_are_put_aside(life: dict[str, Done], place: Path) -> None:
    bad = read((place / "bad.csv").read_text())
    assert sorted(row["recourse.row"] for row in bad) == ["3", "5", "9"]
    reasons = {row["recourse.row"]: row["recourse.reason"] for row in bad}
    assert "percent" in reasons["3"]
    assert "9 cells in a table of 10 columns" in reasons["5"]
    assert "stall" in reasons["9"]
    assert bad[0]["customer"]
    assert len(read((place / "most.csv").read_text())) == ROWS - 3
    assert "3 rows were rejected, see bad.csv" in life["rough"].stderr
    assert len(read((place / "again.csv").read_text())) == 2  # a label is not needed for a decision
    unlabelled = read((place / "no_label.csv").read_text())
    reasons = {row["recourse.row"]: row["recourse.reason"] for row in unlabelled}
    assert reasons == {"5": "9 cells in a table of 10 columns", "12": "no label"}


def test_promises_are_kept_and_what_that_costs_is_said(life: dict[str, Done], place: Path) -> None:
    assert json.loads(life["audit"].stdout)["passed"]
    assert "against free" in life["update"].stdout
    assert "against from scratch" in life["update"].stdout
    assert vt.load(place / "next").threshold_ == vt.load(place / "model").threshold_
    assert (place / "ignored.csv").exists()
