"""A small run in this process: what the verb says of it, what it leaves behind, and what goes wrong."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import typer
from torch import Tensor

from veritracer.engines import Serial
from veritracer.errors import DataError, NotSupportedError
from veritracer_bench import cli as verb
from veritracer_bench import methods, plan, plots, results, running
from veritracer_bench.baselines import Neighbour
from veritracer_bench.plan import Group, Plan, quick_plan, smoke_plan, subject_of
from veritracer_bench.results import Key, read_results
from veritracer_bench.running import Run, RunProgress
from veritracer_bench.tables import Results

SMALL = {"hidden": [8], "learning_rate": 0.1, "batch_size": 200}
ASKED: dict[str, Any] = {
    "smoke": True,
    "datasets": ["breast_cancer,loans"],
    "methods": ["neighbour,counternet"],
    "tables": ["ri", "loo", "shift", "proximity", "time"],
    "rows": 8,
    "epochs": 10,
    "workers": 1,
}


class Done(NamedTuple):
    """A folder, and what was said on stdout and on stderr while it was filled."""

    out: Path
    said: str
    noted: str


class Unlucky(Neighbour):
    """A method that fails."""

    name = "unlucky"

    def search(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"no answer to {len(x)} rows")


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Few rows, networks of eight units, and work done by this process: the way is tested here."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("standard", "counternet"):
            patch.setitem(methods.TRAINERS, name, methods.TRAINERS[name] | SMALL)
        patch.setattr(plan, "LOANS", 300)
        patch.setattr(plan, "TIMED", ("standard",))
        patch.setattr(plots, "BOXES", plots.BOXES[:1])
        subject_of.cache_clear()
        yield
    subject_of.cache_clear()


def obeyed(out: Path, **options: Any) -> Done:
    said, noted = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(noted):
        context = typer.Context(typer.main.get_group(verb.app))
        verb.bench(context, out=out, **{**ASKED, **options})
    return Done(out, said.getvalue(), noted.getvalue())


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return obeyed(tmp_path_factory.mktemp("bench") / "new" / "folder")


@pytest.fixture(scope="module")
def asked() -> Plan:
    names = {name: tuple(",".join(ASKED[name]).split(",")) for name in ("datasets", "methods", "tables")}
    return replace(smoke_plan(), rows=8, epochs=10, **names)


def test_tables_page_and_pictures_are_left_behind(done: Done, asked: Plan) -> None:
    names = {t["name"] for t in json.loads((done.out / "tables.json").read_text())["tables"]}
    assert names >= {"ri", "loo", "shift-loans", "proximity", "epoch"}
    page = (done.out / "results.md").read_text(encoding="utf-8")
    for text in (done.said, page):
        assert "### Proximity" in text
    appendix = (done.out / "appendix.md").read_text(encoding="utf-8")
    assert "- `loans`: ri: 2 seeds, 8 test rows, 4 attacked, 10 epochs." in appendix
    pictures = {path.name for path in (done.out / "plots").iterdir()}
    assert pictures == {"boxes_ri_keeps.png", "pareto.png", "paper_figures.png"}
    assert all((done.out / "plots" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    wanted = len(asked.wanted())
    assert f"{wanted} of {wanted} results, {wanted} of them new: {done.out}" in done.said
    assert f"… {wanted} of {wanted} results (" in done.noted


def test_numbers_are_possible(done: Done, asked: Plan) -> None:
    """Rates are rates, a certified row is an unbroken one, and every key has its configuration."""
    cells = read_results(done.out / "results")
    assert {cell.key for cell in cells} == set(asked.wanted())
    for cell in cells:
        assert cell.configuration == asked.configuration(cell.key)
        numbers = cell.numbers
        if cell.key.experiment == "time":
            assert set(numbers) == {"seconds_per_epoch"}
            continue
        assert numbers["rows"] == (2 if cell.key.experiment == "loo" else 8)
        assert all(not (numbers[name] < 0 or numbers[name] > 1) for name in ("validity", "keeps", "sparsity"))
        if cell.key.experiment == "ri":
            assert numbers["certified_of_attacked"] <= numbers["unbroken_of_attacked"]
            assert ("shift_keeps, year 2" in numbers) == (cell.key.dataset == "loans")
    found = Results(cells)
    assert found.values("ri", "breast_cancer", "neighbour", "validity") == [1.0, 1.0]
    assert min(found.values("ri", "breast_cancer", "neighbour", "accuracy")) > 0.8


def test_a_second_run_makes_nothing_again_and_says_what_pictures_need(
    done: Done, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    before = {path: path.stat().st_mtime_ns for path in (done.out / "plots").iterdir()}
    again = obeyed(done.out, as_json=True)
    told = json.loads(again.said)
    assert (told["measured"], told["trained"], told["failed"]) == (0, 0, {})
    assert told["results"] == told["wanted"]
    assert "note: expected matplotlib for the pictures, got an install without it" in again.noted
    assert before == {path: path.stat().st_mtime_ns for path in (done.out / "plots").iterdir()}


def test_a_damaged_result_is_made_again_with_the_same_numbers(done: Done, asked: Plan) -> None:
    key = Key("ri", "loans", "counternet", 1)
    before = results.read(done.out / "cells", key)
    (done.out / "cells" / key.file).write_text("{")
    run = Run(asked, done.out)
    assert run.go(Serial())
    assert (run.measured, run.trained) == (1, 0)
    after = results.read(done.out / "cells", key)
    assert before is not None
    assert after is not None
    same = {name: value for name, value in after.numbers.items() if not name.startswith("seconds")}
    assert {n: before.numbers[n] for n in same} == pytest.approx(same, rel=1e-5, nan_ok=True)


def test_results_of_other_sizes_are_not_taken_for_these(done: Done, asked: Plan) -> None:
    assert {cell.key.experiment for cell in Run(replace(asked, rows=4), done.out).cells()} == {"time"}
    group = Group("ri", "loans", "standard")
    assert running.is_trained(done.out, group, asked)
    assert not running.is_trained(done.out, group, replace(asked, epochs=9))
    assert not running.is_trained(done.out, group._replace(experiment="loo"), asked)


def test_a_method_that_fails_costs_no_other_result(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # nothing is drawn
    methods = ["neighbour", f"{__name__}:Unlucky"]
    with pytest.raises(typer.Exit) as ended:
        obeyed(done.out, datasets=["breast_cancer"], methods=methods, tables=["loo"], quiet=True)
    assert ended.value.exit_code == 1
    plan = replace(smoke_plan(), datasets=("breast_cancer",), methods=tuple(methods), tables=("loo",))
    run = Run(replace(plan, rows=8, epochs=10), done.out)
    assert not run.go(Serial())
    assert {cell.key.method for cell in run.cells()} == {"neighbour"}
    assert run.failed == {
        f"loo breast_cancer {methods[1]} {seed}": "RuntimeError: no answer to 2 rows" for seed in (0, 1)
    }


def test_a_run_ends_in_time(asked: Plan, tmp_path: Path) -> None:
    run = Run(asked, tmp_path)
    assert not run.go(Serial(), stop_after=0.0)
    assert (run.measured, run.trained, run.failed) == (0, 0, {})


# ---------------------------------------------------------------- plans and methods


def test_plans_of_other_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without files leaves what needs none; the whole plan is the paper's."""
    quick = quick_plan(str(tmp_path))
    assert (quick.datasets, quick.data_dir, quick.seeds) == (plan.WITHOUT_FILE, str(tmp_path), 2)
    there = SimpleNamespace(path=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(plan.catalogue, "info", lambda name, data_dir: there)
        assert quick_plan(None).datasets == ("heloc", "ctg")
    with pytest.raises(NotSupportedError, match="a dataset, a method and a table"):
        replace(smoke_plan(), tables=()).checked()
    with pytest.raises(NotSupportedError, match="did you mean 'standard'"):
        Plan().training("standart")


def test_what_takes_longer_costs_more() -> None:
    whole, few = Plan(), smoke_plan()
    group = Group("ri", "heloc", "algorithm-1")
    assert plan.cost_of_training(group, few) < plan.cost_of_training(group, whole)
    wide, narrow = (plan.cost_of(Key("ri", name, "roar", 0), whole) for name in ("oula", "heloc"))
    assert wide > narrow > plan.cost_of(Key("ri", "ctg", "roar", 0), whole)
    assert whole.rows_of(Key("loo", "oula", "roar", 0)) == 250


@pytest.mark.parametrize("name", ["algorithm-1-0.3", "veritracer[extremes=True]"])
def test_answers_of_explain(done: Done, name: str) -> None:
    """Both decisions are explained, as in the paper."""
    model = running.model_of(done.out, Group("ri", "breast_cancer", "standard"), 0)
    X = subject_of("breast_cancer", 8, 600, None).X_test
    x = model.encoding_.encode(X, out_of_range="ignore")
    nothing = torch.zeros(0)
    x_cf = methods.resolve(name).answer(methods.Problem(model, X, x, nothing, nothing, 0))
    favourable = model.classifier_(x)[:, 0] > 0
    changed = (x_cf != x).any(-1)
    assert 0 < int(favourable.sum()) < 8
    assert bool(changed[~favourable].all())
    assert bool(changed[favourable].any())


# ---------------------------------------------------------------- what the verb says meanwhile


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="a folder for --out, got the file"):
        obeyed(tmp_path / "file")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    screen = Terminal()
    with contextlib.redirect_stderr(screen), verb._progress(quiet=False) as tell:
        tell(RunProgress(3, 4, "ri loans roar 0", 125.4))
    for text in ("ri loans roar 0", "75%", "about 2:05 left"):
        assert text in screen.getvalue()


def test_lines_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with verb._progress(quiet=False) as tell:
        tell(RunProgress(1, 4, "first", 61.0))
        tell(RunProgress(2, 4, "second", 30.0))  # too soon to be told
        tell(RunProgress(4, 4, "last", 0.0))
    assert capsys.readouterr().err == "… 1 of 4 results, about 1:01 left (first)\n… 4 of 4 results (last)\n"
