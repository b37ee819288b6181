"""``veritracer calibrate``: a history, simulated updates, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from processes import Done, assert_refused, run_here

QUICK = ["--runs", "6", "--epochs", "1", "--rows", "4", "--no-refit"]
SIMULATE = ["calibrate", "model", "--simulate", "fine-tune", "--table", "people.csv"]
COMMANDS = {
    "second": ["update", "model", "people.csv", "--epochs", "1", "--no-compare", "--out", "second", "-q"],
    "other": [
        "fit",
        "people.csv",
        "--target",
        "approved",
        "--favourable",
        "yes",
        "--epochs",
        "1",
        "--no-panel",
        "--holdout",
        "0",
        "--out",
        "other",
        "-q",
    ],
    "simulated": [*SIMULATE, *QUICK],
    "json": [*SIMULATE, *QUICK, "--json"],
    "again": [*SIMULATE, *QUICK, "--json"],
    "next": ["calibrate", "model", "--simulate", "next", "--next-table", "people.parquet", *QUICK, "--json"],
    "history": ["calibrate", "model", "--history", "second,model", "--json"],
    "quiet": ["calibrate", "model", "--history", "second", "--quiet"],
    "cover": ["calibrate", "model", "--history", "second", "--cover", "0.25,0.75", "--json"],
}
BAD = {
    "neither": (["calibrate", "model"], "neither"),
    "both": ([*SIMULATE, "--history", "second"], "both"),
    "unknown kind": (["calibrate", "model", "--simulate", "magic", "--table", "people.csv"], "'fine-tune'"),
    "no rows": (["calibrate", "model", "--simulate", "seeds"], "rows to simulate"),
    "no next rows": (
        ["calibrate", "model", "--simulate", "next", "--table", "people.csv"],
        "X_new and y_new",
    ),
    "no decisions": (["calibrate", "model", "--simulate", "seeds", "--table", "undecided.csv"], "'approved'"),
    "other encoding": (["calibrate", "model", "--history", "second,other"], "another one in 'other'"),
    "no such model": (["calibrate", "model", "--history", "nobody"], "nobody"),
    "all of them": (["calibrate", "model", "--history", "second", "--cover", "1"], "between 0 and 1"),
    "no number": (["calibrate", "model", "--history", "second", "--cover", "most"], "'most'"),
    "no runs": ([*SIMULATE, "--runs", "0"], "greater than or equal to 1"),
    "standing still": ([*SIMULATE, "--learning-rate", "0"], "above 0"),
}


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("calibrate") / "w"
    shutil.copytree(made, place)
    header, *rows = (place / "people.csv").read_text().splitlines()
    assert header.endswith(",approved")
    (place / "undecided.csv").write_text("\n".join(line.rpartition(",")[0] for line in (header, *rows)))
    return place


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    commands = {**COMMANDS, **{name: typed for name, (typed, _) in BAD.items()}}
    return dict(zip(commands, run_here(list(commands.values()), folder), strict=True))


def test_every_command_ends_well(done: dict[str, Done]) -> None:
    assert {name: done[name].returncode for name in COMMANDS} == dict.fromkeys(COMMANDS, 0)


def test_what_is_printed(done: dict[str, Done]) -> None:
    text = done["simulated"].stdout
    assert text.startswith("6 simulated (fine-tune) updates")
    assert "\n50 % of updates: kappa = " in text
    assert "not known: 29 updates are needed to tell" in text
    assert "certified" in text  # the costs
    assert "\nRecommended: None: these updates are too few to tell about 90 %; at least 29" in text
    assert done["quiet"].stdout == ""


def test_json_is_one_document_and_the_same_again(done: dict[str, Done]) -> None:
    content = json.loads(done["json"].stdout)
    assert content["format"] == "veritracer-calibration"
    assert len(content["moves"]) == 6
    assert content["costs"]
    assert content["recommendation"]["kappa"] is None  # six updates are too few for 90 %
    assert done["again"].stdout == done["json"].stdout


def test_the_next_period_and_a_history_need_no_table(done: dict[str, Done]) -> None:
    later, history, cover = (json.loads(done[name].stdout) for name in ("next", "history", "cover"))
    assert (later["source"], later["costs"]) == ("next", [])
    assert [move["name"] for move in history["moves"]] == ["second to model", "model to today's model"]
    assert history["moves"][1]["needed"] == 0
    assert [each["share"] for each in cover["coverage"]] == [0.25, 0.75]


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(done: dict[str, Done], name: str) -> None:
    assert_refused(done[name])
    assert BAD[name][1] in done[name].stderr
