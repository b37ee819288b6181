"""Blocks on the command line: many tables, several cores, and refusals in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from processes import assert_refused, run, run_many


@pytest.mark.long
def test_blocks_say_what_one_file_says(work: Path) -> None:
    (work / "in").mkdir()
    people = pd.read_csv(work / "people.csv").head(40)
    people.to_csv(work / "few.csv", index=False)
    people.head(25).to_csv(work / "in" / "a.csv", index=False)
    people.tail(15).to_csv(work / "in" / "b.csv", index=False)
    fast = ["--no-refine", "--no-radius", "--quiet"]
    blocks = ["explain", "model", "in", "--block-rows", "10", "--out", "out", *fast]
    done = run_many(
        [
            ["explain", "model", "few.csv", "--out", "one.parquet", *fast],
            blocks,
            [*blocks[:-1], "--json"],
            ["certify", "model", "in", "out", "--block-rows", "10", "--out", "proofs", "--json"],
            ["explain", "model", "duckdb:nowhere.db?t", "--workers", "2", "--out", "other"],
            ["explain", "model", "-", "--workers", "2", "--out", "other"],
            ["explain", "model", "in", "--out", "few.csv"],
            ["explain", "model", "in"],
            ["explain", "model", "in", "--out", "out", "--kappa", "0.1", *fast],
            ["explain", "model", "none/*.csv", "--out", "other"],
        ],
        work,
    )
    assert [d.returncode for d in done[:3]] == [0, 0, 0], done
    told = json.loads(done[2].stdout)
    assert (told["blocks"], told["skipped"], told["rows"]) == (5, 5, 40)
    found = pa.concat_tables([pq.read_table(p) for p in sorted((work / "out").glob("*.parquet"))])
    one = pq.read_table(work / "one.parquet")
    bits = ["recourse.worst_logit", "recourse.probability"]  # of which the last depend on who is beside whom
    assert found.drop_columns(bits).equals(one.drop_columns(bits))
    assert done[3].returncode in (0, 1)
    assert json.loads(done[3].stdout)["certified"] == told["certified"]
    for refused in done[4:]:
        assert_refused(refused)


@pytest.mark.long
def test_the_audit_takes_workers(work: Path) -> None:
    people = pd.read_csv(work / "people.csv").head(30)
    people.insert(0, "id", [f"p{i}" for i in range(30)])
    people.to_csv(work / "people.csv", index=False)
    ledger = ["--ledger", "promises.db"]
    issue = ["issue", "model", "people.csv", "--workers", "1", "--block-rows", "12", "--id-column", "id"]
    audit = ["audit", *ledger, "--model", "model", "--json"]
    done = run_many([[*issue, *ledger, "--out", "out", "--json"], audit, [*audit, "--workers", "1"]], work)
    assert [d.returncode for d in done] == [0, 0, 0], done
    promised = json.loads(done[0].stdout)["promises"]
    plain, apart = (json.loads(d.stdout) for d in done[1:])
    assert plain["live"] == apart["live"] == promised > 0
    assert plain["counts"] == apart["counts"]
    assert (work / "out" / "_run.json").exists()


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
