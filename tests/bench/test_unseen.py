"""Independent models that share no row with the model: parts, judges, what counts, and the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from benchmarks import unseen as benchmark

from veritracer.errors import NotSupportedError
from veritracer_bench import judges, unseen, unseen_tables
from veritracer_bench.judges import MLPS, UNSEEN, Labelled, halves
from veritracer_bench.methods import arguments, resolve
from veritracer_bench.results import Cell, Key
from veritracer_bench.truth import ERROR
from veritracer_bench.unseen import Standing, acceptance, counts, jury_of_parts, parts_of, standings


@pytest.fixture(scope="module", autouse=True)
def small_judges() -> Iterator[None]:
    """Twenty trees and no optional package: nothing here depends on how good a judge is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judges, "TREES", 20)
        patch.setattr(unseen, "OPTIONAL", dict.fromkeys(unseen.OPTIONAL, "no_such_package"))
        yield


@pytest.fixture(scope="module")
def rows() -> Labelled:
    """300 rows of three columns; the first of them decides, nearly."""
    rng = np.random.default_rng(0)
    x = rng.random((300, 3))
    return Labelled(x, (x[:, 0] + 0.1 * rng.standard_normal(300) > 0.5).astype(np.int64))


def cell(split: int, method: str = "veritracer", seed: int = 0, **numbers: float) -> Cell:
    return Cell(Key(f"split-{split}", "heloc", method, seed), {}, numbers, 1.0, {})


def test_the_parts_share_no_row_and_have_the_labels_in_the_same_shares(rows: Labelled) -> None:
    parts = parts_of(rows.y, 3)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(300))
    assert [len(part) for part in parts] == [135, 135, 30]
    assert np.ptp([rows.y[part].mean() for part in parts]) < 0.03
    assert not np.array_equal(parts.people, parts_of(rows.y, 4).people)


def test_judges_of_unseen_rows_do_not_depend_on_the_rows_of_the_model(rows: Labelled) -> None:
    model, own, people = (rows.select(part) for part in parts_of(rows.y, 0))
    wrong = Labelled(model.x, 1 - model.y)
    one, other = (jury_of_parts(each, own, len(people.y), epochs=2) for each in (model, wrong))
    everybody = np.arange(len(people.y))
    said, again = (jury.opinions(people.x, everybody) for jury in (one, other))
    assert {name for name in said if name.endswith(UNSEEN)} == {
        judge + UNSEEN for judge in unseen.KINDS if judge not in unseen.OPTIONAL
    }
    for name in said:
        same = np.allclose(said[name], again[name])
        assert same == name.endswith(UNSEEN), name


def test_people_of_one_half_are_judged_by_what_was_fitted_on_the_other(
    rows: Labelled, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = rows.select(np.arange(200)), rows.select(np.arange(200, 300))
    half = halves(test.y)
    monkeypatch.setattr(unseen, "halves", lambda _: half)
    misleading = Labelled(test.x, np.where(half == 1, 1 - test.y, test.y))
    juries = [unseen.jury_of_halves(train, each, epochs=2) for each in (test, misleading)]
    ours, theirs = (jury.opinions(test.x, np.arange(100)) for jury in juries)
    for name in (judge + UNSEEN for judge in unseen.KINDS if judge not in (*unseen.OPTIONAL, MLPS)):
        changed = np.abs(ours[name] - theirs[name])[0]
        assert changed[half == 0].max() > 0.1, name
        assert changed[half == 1].max() < 1e-9, name


def test_a_judge_qualifies_up_to_two_points_below_the_standard_network() -> None:
    numbers = {f"accuracy, {MLPS}": 0.75, f"accuracy, {MLPS}{UNSEEN}": 0.75}
    numbers |= {f"accuracy, forest{UNSEEN}": 0.731, "accuracy, forest": 0.8}
    numbers |= {f"accuracy, logistic{UNSEEN}": 0.729, "accuracy, logistic": 0.8}
    found = {each.judge: each for each in standings([cell(0, "judges", **numbers)])}
    assert {name: each.qualifies for name, each in found.items()} == {
        "forest": True,
        "logistic": False,
        MLPS: True,
    }
    assert found["forest"].control == 0.8


def test_a_dataset_counts_with_six_judges_of_five_kinds() -> None:
    def of(*names: str) -> list[Standing]:
        return [Standing(name, 0.8, 0.8, name in names) for name in unseen.KINDS]

    five = ("boosting", "forest", "extra trees", "logistic", "RBF SVM")
    assert not counts(of(*five, "LightGBM"))  # six judges of four kinds
    assert not counts(of("boosting", "forest", "logistic", "RBF SVM", MLPS))  # five of five
    assert counts(of(*five, MLPS))


def test_the_interval_has_the_larger_of_two_errors() -> None:
    name = f"acceptance, forest{UNSEEN}"
    same = [cell(split, **{name: 0.9, name + ERROR: 0.02}) for split in range(4)]
    found = acceptance(same, "forest" + UNSEEN)
    assert found.mean == pytest.approx(0.9)
    assert found.half_width == pytest.approx(1.96 * 0.02 / 2)
    apart = [cell(split, **{name: value, name + ERROR: 0.0}) for split, value in enumerate((0.8, 1.0))]
    assert acceptance(apart, "forest" + UNSEEN).half_width == pytest.approx(1.96 * 0.1)
    assert np.isnan(acceptance([], "forest").mean)


def test_the_page_names_the_judges_that_accept_too_little() -> None:
    names = ("boosting", "forest", "logistic", "RBF SVM", "neighbours", MLPS)
    accurate = {f"accuracy, {n}{end}": 0.8 for n in names for end in ("", UNSEEN)}
    said = {f"acceptance, {n}{UNSEEN}": 0.95 for n in names} | {f"acceptance, {n}": 0.99 for n in names}
    cells = [cell(0, "judges", **accurate), cell(0, rows=10.0, distance=0.05, LOF=1.0, **said)]
    assert "HELOC: reached; the lowest of 6 is" in unseen_tables.page(cells)
    low = [
        cells[0],
        cell(0, rows=10.0, distance=0.05, LOF=1.0, **{**said, f"acceptance, RBF SVM{UNSEEN}": 0.85}),
    ]
    assert "HELOC: missed by RBF SVM 0.850" in unseen_tables.page(low)
    assert "- HELOC: missed by RBF SVM" in unseen_tables.section(low, "results/unseen")
    assert unseen_tables.section([], "results/unseen") == ""
    few = [cell(0, "judges", **{f"accuracy, {MLPS}{e}": 0.8 for e in ("", UNSEEN)}), cells[1]]
    assert "HELOC: missed, only 1 judges of 1 kinds qualify" in unseen_tables.page(few)


def test_a_run_continues_where_it_was_and_writes_its_tables(tmp_path: Path) -> None:
    sizes = benchmark.Sizes(people=8, epochs=2)
    benchmark.measure(tmp_path / "out", "breast_cancer", 0, ["veritracer"], [0], sizes)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.json")}
    assert sorted(before) == [
        "split-0.breast_cancer.judges.0.json",
        "split-0.breast_cancer.veritracer.0.json",
    ]
    benchmark.measure(tmp_path / "out", "breast_cancer", 0, ["veritracer", "neighbour"], [0], sizes)
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.json")}
    assert before.items() < after.items()
    assert set(after) - set(before) == {"split-0.breast_cancer.neighbour.0.json"}
    benchmark.tables(tmp_path / "out", tmp_path / "stored")
    assert "breast cancer: acceptance (control)" in (tmp_path / "stored.md").read_text(encoding="utf-8")


def test_baselines_and_trainings_take_options_in_brackets() -> None:
    method = resolve("roar[delta_max=0.3]")
    assert (method.trainer, method.title) == ("standard", "ROAR, delta_max 0.3")
    weighted = resolve("counternet[weight_proximity=0.3]")
    assert arguments(weighted.trainer)["weight_proximity"] == 0.3
    assert arguments(weighted.trainer)["method"] == "counternet"
    with pytest.raises(NotSupportedError, match=r"expected options of 'roar'.*it has .*delta_max"):
        resolve("roar[delta=0.3]")
