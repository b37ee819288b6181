"""One small saved model, its people, and what is compared of two runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from ledger_cases import undecided

import veritracer as vt
from recourse_tables import SCHEMA, applicants
from veritracer.distributed import Inputs, Outcome, Question, RunFolder, explain_blocks
from veritracer.engines import Engine, Serial

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


def question(folder: Path, **more: Any) -> Question:
    """What is asked of the people in the folder."""
    return Question(str(folder / "model"), {**QUICK, **more}, keep=("id",))


def explained(
    folder: Path,
    out: Path | str,
    *,
    rows: int = 25,
    engine: Engine | None = None,
    place: str = "people.parquet",
    **more: Any,
) -> Outcome:
    """The outcome of a run over a table of the folder, in blocks."""
    asked, inputs = question(folder, **more), Inputs(str(folder / place), rows=rows)
    run = RunFolder.open(out, asked.asked("explain", inputs), "parquet")
    return explain_blocks(asked, inputs, run, engine or Serial())


def written(out: Path) -> pd.DataFrame:
    """All that a run wrote, in the order of the blocks."""
    pieces = [pq.read_table(path) for path in sorted(out.rglob("*.parquet"))]
    return pa.concat_tables(pieces, promote_options="permissive").to_pandas()


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
