"""Blocks on the command line: many tables, several cores, promises and their audit, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from processes import Done, assert_refused, run, run_here

HERE = ["--workers", "1"]  # in this process
FAST = ["--no-refine", "--no-radius", "--quiet"]
BLOCKS = ["explain", "model", "in", *HERE, "--block-rows", "10", "--out", "out", *FAST]
ISSUE = ["issue", "model", "named.csv", *HERE, "--block-rows", "20", "--id-column", "id"]
ISSUE += ["--ledger", "promises.db", "--out", "issued"]
UPDATE = ["update", "model", "crunch.csv", "--epochs", "2", "--learning-rate", "0.02"]
KEEP = ["--keep", "promises.db", "--max-loss", "0", "--out", "never"]
AUDIT, BREAKING = (["audit", "--ledger", "promises.db", "--model", name] for name in ("model", "free"))

COMMANDS = {
    "one": ["explain", "model", "few.csv", "--out", "one.parquet", *FAST],
    "blocks": BLOCKS,
    "blocks again": [*BLOCKS[:-1], "--json"],
    "certify": ["certify", "model", "in", "out", *HERE, "--block-rows", "10", "--out", "proofs", "--json"],
    "issue": [*ISSUE, "--json"],
    "issue again": ISSUE,
    "free": [*UPDATE, "--no-compare", "--out", "free", "--json"],
    "audit": [*AUDIT, "--json"],
    "audit apart": [*AUDIT, *HERE, "--json"],
    "passed": AUDIT,
    "allowed": [*BREAKING, "--allow-broken", "100", "--recourse", "0", "--json"],
}
FAILS = {
    "broken": [*BREAKING, "--recourse", "1", "--out", "free.html"],
    "altered": [*AUDIT, "--head", "0" * 64, "--json"],
    "altered, in words": [*AUDIT, "--head", "0" * 64],
    "never": [*UPDATE, *KEEP],
    "never, as JSON": [*UPDATE, *KEEP, "--no-compare", "--json"],
}
BAD = {
    "a database that is not there": (
        [
            "explain",
            "model",
            "sqlite:///nowhere.db",
            "--query",
            "select 1",
            "--workers",
            "2",
            "--out",
            "other",
        ],
        "nowhere.db",
    ),
    "a pipe": (["explain", "model", "-", "--workers", "2", "--out", "other"], "read again"),
    "a file as folder": (["explain", "model", "in", "--out", "few.csv"], "few.csv"),
    "no folder": (["explain", "model", "in"], "add --out FOLDER"),
    "a folder that is gone": (["explain", "model", "in", "--out", "memory://x"], "outlasts the command"),
    "a folder in what is read": (
        ["explain", "model", "in", "--out", "in/out", *FAST],
        "a folder outside of in",
    ),
    "another question": (["explain", "model", "in", "--out", "out", "--kappa", "0.1", *FAST], "out"),
    "no table": (["explain", "model", "none/*.csv", "--out", "other"], "none/*.csv"),
    "rejects": (["certify", "model", "in", "out", "--rejects", "r.csv"], "block by block, got --rejects"),
    "no target": ([*UPDATE, "--target", "nothing", "--out", "never"], "'nothing'"),
    "a model alone": (["explain", "model"], "missing argument 'TABLE'"),
}


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bulk") / "work"
    shutil.copytree(made, place)
    people = pd.read_csv(place / "people.csv")
    people[:40].to_csv(place / "few.csv", index=False)
    (place / "in").mkdir()
    people[:25].to_csv(place / "in" / "a.csv", index=False)
    people[25:40].to_csv(place / "in" / "b.csv", index=False)
    people[:30].assign(id=[f"p{i}" for i in range(30)]).to_csv(place / "named.csv", index=False)
    crunch = pd.read_csv(place / "train.csv").head(400)  # nearly everybody is turned down
    crunch.assign(approved=["yes", *["no"] * 79] * 5).to_csv(place / "crunch.csv", index=False)
    return place


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    commands = {**COMMANDS, **FAILS, **{name: typed for name, (typed, _) in BAD.items()}}
    return dict(zip(commands, run_here(list(commands.values()), folder), strict=True))


def test_every_command_ends_as_it_should(done: dict[str, Done], folder: Path) -> None:
    codes = {name: each.returncode for name, each in done.items()}
    assert codes == dict.fromkeys(COMMANDS, 0) | dict.fromkeys(FAILS, 1) | dict.fromkeys(BAD, 2), done
    assert not [name for name in ("never", "other", "new", "r.csv") if (folder / name).exists()]


def test_blocks_say_what_one_file_says(done: dict[str, Done], folder: Path) -> None:
    told = json.loads(done["blocks again"].stdout)
    assert (told["blocks"], told["skipped"], told["rows"]) == (5, 5, 40)
    found = pa.concat_tables([pq.read_table(p) for p in sorted((folder / "out").glob("*.parquet"))])
    one = pq.read_table(folder / "one.parquet")
    bits = ["recourse.worst_logit", "recourse.probability"]  # of which the last depend on who is beside whom
    assert found.drop_columns(bits).equals(one.drop_columns(bits))
    assert json.loads(done["certify"].stdout)["certified"] == told["certified"]


def test_promises_made_in_blocks_are_made_once_and_audited_alike(done: dict[str, Done], folder: Path) -> None:
    promised = json.loads(done["issue"].stdout)["promises"]
    again = done["issue again"].stdout
    assert f"{promised} promises are issued in this run.\n" in again
    assert again.endswith("2 blocks, 2 of which were there already: issued\n")
    assert (folder / "issued" / "_run.json").exists()
    plain, apart = (json.loads(done[name].stdout) for name in ("audit", "audit apart"))
    assert plain["live"] == apart["live"] == promised > 0
    assert plain["counts"] == apart["counts"]
    assert "PASSED\nThe head, with this audit: " in done["passed"].stdout


def test_who_is_let_down_is_said(done: dict[str, Done]) -> None:
    free, promised = json.loads(done["free"].stdout), json.loads(done["issue"].stdout)["promises"]
    assert (free["model"], free["head"], free["constraints"]) == ("free", None, [])
    assert free["ways"]["free"]["accuracy"] > 0.9
    text = done["broken"].stdout
    assert f"{promised} live promises" in text
    assert "Broken promises, the worst first\nnumber  whose" in text
    assert f"FAILED: {promised} promises are broken.\nThe report: free.html\n" in text
    line = text.partition("why no proof is possible\n")[2].splitlines()[0].split()
    assert line[1:5] == ["0.2", str(promised), "0", str(promised)]
    assert float(line[6]) > 1  # a layer left its radius
    assert json.loads(done["allowed"].stdout)["counts"]["broken"] == promised


def test_an_altered_ledger_is_not_audited(done: dict[str, Done]) -> None:
    (finding,) = json.loads(done["altered"].stdout)["findings"]
    assert "the head that was noted is not in the chain" in finding
    said = f"The ledger was altered, so it was not audited:\n{finding}\n"
    assert done["altered, in words"].stdout == said


def test_an_update_that_costs_too_much_says_how_much(done: dict[str, Done]) -> None:
    promised = json.loads(done["issue"].stdout)["promises"]
    text, told = done["never"].stdout, json.loads(done["never, as JSON"].stdout)
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines() if line}
    assert lines["kept"][2:] == ["100", "%", str(promised), "0", "0"]
    assert lines["free"][-2] == lines["from scratch"][-2] == str(promised)
    assert "What keeping the promises costs in accuracy: +" in text
    assert "Nothing was written: expected a model that keeps the promises and costs at most 0" in text
    assert not told["ok"]
    assert told["report"]["cost"] > 0
    assert told["report"]["ways"]["kept"]["counts"]["kept by proof"] == promised


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(done: dict[str, Done], name: str) -> None:
    assert_refused(done[name])
    assert BAD[name][1] in done[name].stderr


@pytest.mark.long
def test_ray_is_asked_for_by_name(work: Path) -> None:
    """Where it is not installed, one sentence says how to have it."""
    done = run(
        *["explain", "model", "people.csv", "--engine", "ray", "--out", "out"],
        before="sys.modules['ray'] = None",
        cwd=work,
    )
    assert_refused(done)
    assert "veritracer[ray]" in done.stderr
