"""The same on Ray: workers that are killed are replaced, and results agree row by row."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from run_cases import assert_same, explained, issued, people, without_promises, written

import veritracer as vt
from deadly import Deadly
from veritracer.engines import Ray
from veritracer.errors import DataError

pytestmark = pytest.mark.usefixtures("ray")


def test_workers_say_what_one_process_says_and_promise_once(folder: Path, tmp_path: Path) -> None:
    explained(folder, tmp_path / "alone", rows=1000)
    ledger = str(tmp_path / "promises.db")
    for attempt in range(2):
        done = issued(folder, tmp_path / "out", ledger, rows=7, engine=Ray(2))
        assert (done.batches, done.done_before) == (9, 9 * attempt)
        assert_same(without_promises(written(tmp_path / "out")), written(tmp_path / "alone"))
    with vt.Ledger(ledger) as place:
        ids = [one for piece in place.promises() for one in piece.ids]
        assert place.verify().ok
    assert len(ids) == len(set(ids)) == done.counts["promises"] > 10


@pytest.mark.long
def test_a_killed_worker_is_replaced_and_errors_are_ours(folder: Path, tmp_path: Path) -> None:
    assert sorted(Ray(2).map(Deadly(tmp_path, 1), range(6))) == [n * n for n in range(6)]
    frame = people().head(2).astype({"savings": object})
    frame.loc[1, "savings"] = "a lot"
    frame.to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(DataError, match="row 2"):
        explained(folder, tmp_path / "out", place=str(tmp_path / "bad.csv"), engine=Ray(1))


@pytest.mark.long
def test_the_command_has_a_cluster_of_its_own_while_it_loads(folder: Path, tmp_path: Path) -> None:
    explained(folder, tmp_path / "alone", rows=1000)
    command = [sys.executable, "-m", "veritracer", "explain", str(folder / "model")]
    command += [str(folder / "people.parquet"), "--engine", "ray", "--workers", "1", "--batch-rows", "20"]
    command += ["--keep", "id", "--out", str(tmp_path / "out")]
    command += ["--kappa", "0.05", "--no-refine", "--no-radius"]  # as beside it
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_same(written(tmp_path / "out"), written(tmp_path / "alone"))
