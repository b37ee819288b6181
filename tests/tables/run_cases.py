"""One small saved model, its people, and what is compared of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from ledger_cases import undecided

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.engines import Engine, Serial
from veritracer.options import IssueOptions, Original
from veritracer.tables import (
    Job,
    RunFolder,
    RunSummary,
    TableSource,
    Verb,
    check_columns,
    check_ids,
    do_batch,
    open_output,
    paired,
    run_table,
)
from veritracer.tables.issuing import issue_table

QUICK = {"kappa": 0.05, "refine": False, "search_radius": False}
REFINED = {"kappa": 0.05, "search_radius": False}
LOGITS = ("recourse.worst_logit", "recourse.cost", "recourse.probability")
DIGIT = 1.01e-9
"""One unit of the tenth digit of a logit below 10, as in tests/soundness/test_kernels.py."""


@cache
def model(seed: int = 0) -> vt.VeriTraCER:
    """An estimator around a network of its own, without a panel: its answers take a moment."""
    frame, y = applicants(200)
    made = vt.VeriTraCER(schema=SCHEMA, method="standard", panel=None, hidden=(6,), epochs=1)
    made.fit(frame, y)
    made.classifier_ = undecided(made.encoding_, made.encoding_.encode(frame), seed)
    return made


@cache
def people(rows: int = 60) -> pd.DataFrame:
    """Applicants with an id."""
    frame, _ = applicants(rows, seed=9)
    return frame.assign(id=[f"person {i}" for i in range(rows)])


def save_all(folder: Path) -> Path:
    """A folder with a model, and its people as Parquet."""
    model().save(folder / "model")
    people().to_parquet(folder / "people.parquet", index=False)
    return folder


def job(folder: Path, verb: Verb = "explain", **more: Any) -> Job:
    """What is done with the people in the folder."""
    return Job(verb, str(folder / "model"), {**QUICK, **more}, keep=("id",))


def inputs(place: Path | str, rows: int = 25) -> TableSource:
    """Tables in batches of so many rows."""

    def check(table: str, columns: Sequence[str]) -> None:
        check_ids(table, columns, "id")
        check_columns(table, columns, SCHEMA, ["id"])

    return TableSource(str(place), batch_rows=rows, check=check)


def explained(
    folder: Path,
    out: Path | str,
    *,
    rows: int = 25,
    engine: Engine | None = None,
    place: str = "people.parquet",
    **more: Any,
) -> RunSummary:
    """Explain a table of the folder."""
    mine, tables = job(folder, **more), inputs(folder / place, rows)
    with open_output(str(out), {**mine.document(), **tables.document()}) as output:
        return run_table(partial(do_batch, mine), tables.batches, output, engine or Serial())


def certified(folder: Path, left: Path, right: Path, out: Path, rows: int = 25) -> RunSummary:
    """Certify the pairs of two tables, of which the second needs no ids."""
    mine, tables = job(folder, "certify"), inputs(left, rows)
    others = TableSource(str(right), batch_rows=rows)
    with open_output(str(out), {**mine.document(), **tables.document()}) as output:
        return run_table(
            partial(do_batch, mine),
            partial(paired, tables, others),
            output,
            Serial(),
        )


def issued(
    folder: Path,
    out: Path | str,
    ledger: Path | str,
    *,
    original: Original = "plain",
    rows: int = 25,
    engine: Engine | None = None,
    place: str = "people.parquet",
) -> RunSummary:
    """Promise recourse to the people in a table of the folder."""
    mine, tables = job(folder), inputs(folder / place, rows)
    options = IssueOptions(ids="id", ledger=str(ledger), original=original)
    with open_output(str(out), {**mine.document(), **tables.document(), "verb": "issue"}) as output:
        assert isinstance(output, RunFolder)
        return issue_table(mine, options, tables.batches, output, engine or Serial())


def written(out: Path) -> pd.DataFrame:
    """All that a run wrote, in the order of the blocks."""
    pieces = [pq.read_table(path) for path in sorted(out.rglob("*.parquet"))]
    return pa.concat_tables(pieces, promote_options="permissive").to_pandas()


def without_promises(told: pd.DataFrame) -> pd.DataFrame:
    """What ``issue`` wrote, as ``explain`` writes it."""
    return told.drop(columns=["recourse.promise", "recourse.issued", "recourse.expires"])


def assert_same(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Nothing; both have the same rows, and logits differ in their last digit at most."""
    one, other = (t.sort_values("id", ignore_index=True) for t in (one, other))
    assert list(one.columns) == list(other.columns)
    proved = [t["recourse.certified"].astype(bool) for t in (one, other)]  # of others no method is told
    one, other = (
        t.assign(**{"recourse.method": t["recourse.method"].where(c, "")})
        for t, c in zip((one, other), proved, strict=True)
    )
    logits = [name for name in LOGITS if name in one]
    for name in logits:
        apart = (one[name] - other[name]).abs()
        assert (apart.isna() | (apart <= DIGIT)).all()
        assert (one[name].isna() == other[name].isna()).all()
    pd.testing.assert_frame_equal(one.drop(columns=logits), other.drop(columns=logits), check_exact=True)
