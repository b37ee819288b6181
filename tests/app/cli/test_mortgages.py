"""A table like HMDA's on the command line: ``deny`` is yes or no, and nobody guesses which people want."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import veritracer as vt
from processes import Done, run, run_many

QUICK = ["--epochs", "2", "--no-panel", "--holdout", "0", "--force"]


def mortgages(labels: tuple[object, object], rows: int = 120) -> pd.DataFrame:
    """A table whose last column says whether an application was denied."""
    rng = np.random.default_rng(0)
    income, debt = rng.lognormal(10, 0.4, rows).round(), rng.uniform(0, 1, rows).round(3)
    denied = debt - income / 60_000 + rng.normal(0, 0.1, rows) > 0.35
    return pd.DataFrame({"income": income, "debt_ratio": debt, "deny": np.where(denied, *labels)})


TABLES = {
    "hmda.csv": ("yes", "no"),
    "zero one.csv": (1, 0),
    "signs.csv": (-1, 1),
    "spaces.csv": ("it's so", "not so"),
    "case.csv": ("YES", "yes"),
    "known.csv": ("Denied", "Approved"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mortgages")
    for name, labels in TABLES.items():
        mortgages(labels).to_csv(folder / name, index=False)
    return folder


@pytest.fixture(scope="module")
def pages(place: Path) -> dict[str, Done]:
    """What inspect says of each table."""
    done = run_many([["inspect", name, "--target", "deny"] for name in TABLES], place)
    return dict(zip(TABLES, done, strict=True))


def printed(page: str) -> list[list[str]]:
    """The commands that a page shows, each on one line."""
    return [shlex.split(line)[1:] for line in page.splitlines() if line.strip().startswith("veritracer fit")]


OPEN = [name for name in TABLES if name != "known.csv"]


def test_fit_refuses_to_guess(place: Path) -> None:
    for name, done in zip(
        OPEN, run_many([["fit", n, "--target", "deny", "--out", "m"] for n in OPEN], place), strict=True
    ):
        assert done.returncode == 2, done
        assert "expected" in done.stderr
        assert "got" in done.stderr
        for label in TABLES[name]:
            assert f"--favourable {shlex.quote(str(label))}" in done.stderr
    assert not (place / "m").exists()


@pytest.mark.parametrize("name", OPEN)
def test_inspect_prints_two_commands_that_run(name: str, place: Path, pages: dict[str, Done]) -> None:
    page = pages[name].stdout
    y = mortgages(TABLES[name])["deny"]
    commands = printed(page)
    assert [command[command.index("--favourable") + 1] for command in commands] == sorted(
        map(str, TABLES[name])
    )
    for label in TABLES[name]:
        share = f"{100 * (y == label).mean():.1f} %"
        assert any(str(label) in line and share in line for line in page.splitlines()), page
    for done, command in zip(run_many([[*c, *QUICK] for c in commands], place), commands, strict=True):
        assert done.returncode == 0, done
        said = command[command.index("--favourable") + 1]
        (label,) = (label for label in TABLES[name] if str(label) == said)
        assert f"{label!r} is favourable" in done.stdout.splitlines()[0]


def test_both_labels_are_in_the_document(place: Path) -> None:
    done = run("inspect", "hmda.csv", "--target", "deny", "--json", cwd=place)
    told = json.loads(done.stdout)
    y = mortgages(("yes", "no"))["deny"]
    assert told["schema"]["favourable"] is None
    assert told["labels"] == [
        {"label": label, "share": pytest.approx((y == label).mean())} for label in ("no", "yes")
    ]


def test_a_well_known_pair_is_not_asked_about(place: Path, pages: dict[str, Done]) -> None:
    page = pages["known.csv"].stdout
    assert "'Approved' is favourable, 'Denied' is not (a well-known pair of labels)" in page
    (command,) = printed(page)
    done = run(*command, *QUICK, cwd=place)
    assert done.returncode == 0, done
    assert "'Approved' is favourable" in done.stdout.splitlines()[0]


def test_without_a_target_the_next_step_is_to_name_it(place: Path) -> None:
    page = run("inspect", "hmda.csv", cwd=place).stdout
    assert "veritracer inspect hmda.csv --target deny" in page
    assert not printed(page)


def test_a_schema_and_an_option_agree_or_are_refused(place: Path) -> None:
    schema = vt.Schema.infer(mortgages(("yes", "no")), target="deny")
    (place / "open.json").write_text(schema.to_json())
    stated = vt.Schema.infer(mortgages(("yes", "no")), target="deny", favourable="no")
    (place / "stated.json").write_text(stated.to_json())
    fit = ["fit", "hmda.csv", *QUICK, "--schema"]
    asked, agreed, differing, told = run_many(
        [
            [*fit, "open.json", "--out", "one"],
            [*fit, "stated.json", "--favourable", "no", "--out", "two"],
            [*fit, "stated.json", "--favourable", "yes", "--out", "three"],
            [*fit, "open.json", "--favourable", "no", "--out", "four"],
        ],
        place,
    )
    assert asked.returncode == 2
    assert "--favourable no" in asked.stderr
    assert differing.returncode == 2
    assert "one favourable label" in differing.stderr
    assert (agreed.returncode, told.returncode) == (0, 0)
    for name in ("two", "four"):
        assert vt.load(place / name).schema_.favourable == "no"


def test_a_saved_model_says_what_is_favourable(place: Path) -> None:
    fit = ["fit", "hmda.csv", "--target", "deny", "--favourable", "no", *QUICK, "--out", "said"]
    assert run(*fit, cwd=place).returncode == 0
    shown, document = run_many([["inspect", "said"], ["inspect", "said", "--json"]], place)
    assert "'no' is favourable, 'yes' is not" in shown.stdout
    facts = json.loads(document.stdout)
    assert (facts["target"], facts["favourable"], facts["unfavourable"]) == ("deny", "no", "yes")
