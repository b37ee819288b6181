"""The evaluation as a user runs it: the smallest cut, a run that is killed, a method from elsewhere."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from processes import CLEAN, assert_refused, run, run_many
from veritracer_bench import results, running
from veritracer_bench.plan import Group, smoke_plan
from veritracer_bench.results import Key, read_results
from veritracer_bench.running import Run, measure
from veritracer_bench.tables import Results

DOCS = Path(__file__).parents[2] / "docs"
SMALL = ["--smoke", "--datasets", "breast_cancer", "--methods", "neighbour,counternet", "--tables", "ri,loo"]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the smallest cut."""
    out = tmp_path_factory.mktemp("smoke")
    done = run("bench", "--smoke", "--out", str(out), "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "left" in done.stderr
    (out / "printed.md").write_text(done.stdout)
    return out


@pytest.mark.long
def test_the_smallest_cut_has_every_table(smoke: Path) -> None:
    names = {t["name"] for t in json.loads((smoke / "tables.json").read_text())["tables"]}
    assert names >= {"ri", "ri-code", "loo", "shift", "shift-loans", "delta", "delta-valid", "attacked"}
    assert names >= {"proximity", "sparsity", "ddm", "accuracy", "ablation-breast_cancer", "seconds", "epoch"}
    printed, page = (smoke / "printed.md").read_text(), (smoke / "results.md").read_text()
    assert "### Proximity" in printed
    assert "### Proximity" in page
    assert "## Departures from the paper" in page


@pytest.mark.long
def test_the_smallest_cut_has_pictures(smoke: Path) -> None:
    names = {path.name for path in (smoke / "plots").iterdir()}
    assert names >= {"pareto.png", "boxes_ri_keeps.png", "boxes_ri_shift_keeps.png", "paper_figures.png"}


@pytest.mark.long
def test_every_result_says_what_it_depends_on(smoke: Path) -> None:
    found = read_results(smoke / "results")
    assert len(found) == len(list((smoke / "cells").iterdir())) == len(smoke_plan().wanted())
    for cell in found:
        assert {"veritracer", "torch", "commit", "python"} <= set(cell.where)
        assert "training" in cell.configuration
        assert cell.seconds > 0


@pytest.mark.long
def test_numbers_are_possible_and_the_bracket_is_one(smoke: Path) -> None:
    """Rates are rates, a certified row is an unbroken one, and epochs take time."""
    for cell in read_results(smoke / "results"):
        numbers = cell.numbers
        if cell.key.experiment == "time":
            assert numbers["seconds_per_epoch"] > 0, cell.key
            continue
        for name in ("validity", "keeps", "differs", "agreement", "sparsity"):
            assert not numbers[name] < 0, cell.key
            assert not numbers[name] > 1, cell.key
        if cell.configuration["attacked"]:
            assert numbers["certified_of_attacked"] <= numbers["unbroken_of_attacked"], cell.key
        if cell.key.experiment == "ri":
            assert numbers["certified"] <= numbers["validity"], cell.key


@pytest.mark.long
def test_refinement_is_closer_and_no_less_certified_than_the_generator(smoke: Path) -> None:
    results = Results(read_results(smoke / "results"))
    for name in ("breast_cancer", "loans"):
        for seed in (0, 1):
            mine, alone = (results.values("ri", name, m, "certified") for m in ("veritracer", "generator"))
            assert mine[seed] >= alone[seed]


@pytest.mark.long
def test_a_second_run_makes_nothing_again(smoke: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (smoke / "cells").iterdir()}
    done = run("bench", "--smoke", "--out", str(smoke), "--json")
    assert done.returncode == 0
    assert (json.loads(done.stdout)["measured"], json.loads(done.stdout)["trained"]) == (0, 0)
    assert {path.name: path.stat().st_mtime_ns for path in (smoke / "cells").iterdir()} == before


@pytest.mark.long
def test_a_damaged_result_is_made_again_with_the_same_numbers(smoke: Path, tmp_path: Path) -> None:
    """All but the times, which are never the same."""
    key, plan = Key("loo", "breast_cancer", "neighbour", 1), smoke_plan()
    before = results.read(smoke / "cells", key)
    (smoke / "cells" / key.file).write_text("{")
    assert len(Run(plan, smoke).cells()) == len(plan.wanted()) - 1
    after = measure(smoke, key, plan)
    assert before is not None
    same = {n: v for n, v in after.numbers.items() if not n.startswith("seconds")}
    assert {n: v for n, v in before.numbers.items() if n in same} == pytest.approx(
        same, rel=1e-5, nan_ok=True
    )


@pytest.mark.long
def test_results_of_other_sizes_are_not_taken_for_these(smoke: Path) -> None:
    kept = {cell.key.experiment for cell in Run(replace(smoke_plan(), rows=8), smoke).cells()}
    assert kept == {"time"}
    group = Group("ri", "loans", "standard")
    assert running.is_trained(smoke, group, smoke_plan())
    assert not running.is_trained(smoke, group, replace(smoke_plan(), epochs=9))


def children_of(pid: int) -> list[int]:
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:  # it has ended since
            continue
        if f"\nPPid:\t{pid}\n" in text:
            found.append(int(status.parent.name))
    return found


def ended(pid: int) -> bool:
    """Whether a process is gone; one that nobody has collected yet is."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.long
def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "veritracer", "bench", *SMALL, "--out", str(tmp_path), "--workers", "2"]
    started = subprocess.Popen(command, env=CLEAN, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    cells = tmp_path / "cells"
    while started.poll() is None and len(list(cells.glob("[!.]*.json"))) < 2:
        time.sleep(0.02)
    workers = children_of(started.pid)
    started.send_signal(signal.SIGKILL)
    started.wait()
    deadline = time.monotonic() + 30
    while not all(map(ended, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(map(ended, workers)), "workers outlive a run that was killed"

    before = {path.name: path.stat().st_mtime_ns for path in cells.glob("[!.]*.json")}
    assert 2 <= len(before) < 8, "not killed half-way"
    for name in before:
        json.loads((cells / name).read_text())
    done = run("bench", *SMALL, "--out", str(tmp_path), "--workers", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["measured"] == 8 - len(before)
    after = {path.name: path.stat().st_mtime_ns for path in cells.glob("[!.]*.json")}
    assert {name: after[name] for name in before} == before
    assert len(after) == 8


@pytest.mark.long
def test_a_run_that_is_out_of_time_says_so(tmp_path: Path) -> None:
    done = run("bench", *SMALL, "--out", str(tmp_path), "--stop-after", "0", "--json", "--quiet")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["results"] == 0


@pytest.mark.long
def test_the_method_of_the_documentation_works(tmp_path: Path) -> None:
    """The page's module and its command, as they are written there."""
    page = (DOCS / "how-to/add-a-baseline.md").read_text(encoding="utf-8")
    [code], [command] = (re.findall(rf"```{kind}\n(.*?)```", page, re.S) for kind in ("python", "sh"))
    (tmp_path / "halfway.py").write_text(code, encoding="utf-8")
    setting, program, *args = command.split()
    assert (setting, program) == ("PYTHONPATH=.", "veritracer")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = run(*args, "--out", str(tmp_path / "out"), env={"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert "| Halfway | **" in done.stdout
    results = Results(read_results(tmp_path / "out" / "results"))
    mine, floor = (
        results.values("ri", "breast_cancer", m, "proximity") for m in ("halfway:Halfway", "neighbour")
    )
    assert all(ours < far for ours, far in zip(mine, floor, strict=True))
    assert results.values("ri", "breast_cancer", "halfway:Halfway", "validity") == [1.0, 1.0]


def test_wrong_choices_are_refused_in_one_sentence(tmp_path: Path) -> None:
    wrong = [
        ["--datasets", "helok"],
        ["--methods", "raor"],
        ["--tables", "rii"],
        ["--seeds", "1"],
        ["--datasets", "heloc"],
        ["--workers", "0"],
    ]
    for done in run_many([["bench", "--smoke", *args, "--out", "out"] for args in wrong], tmp_path):
        assert_refused(done)
    assert not (tmp_path / "out").exists()
