"""Whether advice is true: judges, denominators, places among the data, the simulator, and partial results."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import truth as benchmark
from numpy.typing import NDArray
from scipy.stats import binomtest
from sklearn.neighbors import LocalOutlierFactor

import veritracer as vt
from veritracer.errors import NotSupportedError
from veritracer.search.reference import Neighbours
from veritracer_bench import judges, truth, truth_tables
from veritracer_bench.judges import (
    COUNTED,
    DISTANT,
    NAMES,
    Judge,
    Jury,
    Labelled,
    groups_of,
    halves,
    jury_of,
    quality,
)
from veritracer_bench.methods import resolve
from veritracer_bench.plan import Subject
from veritracer_bench.plots import frontier
from veritracer_bench.results import Cell, Key, read_results, where, write_results
from veritracer_bench.truth import Answers, Explained, Measured, Simulator, measured, median, summary
from veritracer_bench.truth_tables import Column, Truth, interval

SHARE, AMOUNT = Column("acceptance, forest", "", 1), Column("distance", "", -1, share=False)


def constant(value: float) -> Judge:
    return Judge("constant", (lambda x: np.full(len(x), value),))


@pytest.fixture(scope="module", autouse=True)
def small_judges() -> Iterator[None]:
    """Twenty trees and two networks: nothing here depends on how good they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judges, "TREES", 20)
        patch.setattr(judges, "MLP_SEEDS", (1000, 1001))
        yield


@pytest.fixture(scope="module")
def rows() -> Labelled:
    """120 rows of three columns; the first of them decides, nearly."""
    rng = np.random.default_rng(0)
    x = rng.random((120, 3))
    return Labelled(x, (x[:, 0] + 0.1 * rng.standard_normal(120) > 0.5).astype(np.int64))


@pytest.fixture(scope="module")
def jury(rows: Labelled) -> Jury:
    return jury_of(rows, rows.select(np.arange(60)), epochs=2)


@pytest.fixture(scope="module")
def model() -> vt.VeriTraCER:
    data = vt.datasets.load("breast_cancer")
    schema = data.schema.unconstrained()
    fitted = vt.VeriTraCER(schema, method="standard", initialisation="torch", epochs=30)
    return fitted.fit(data.X, data.y)


# ---------------------------------------------------------------- judges


def test_every_judge_answers_and_trees_have_learned(jury: Jury, rows: Labelled) -> None:
    test = rows.select(np.arange(60))
    said = jury.opinions(test.x, np.arange(60))
    assert set(NAMES) < set(said)
    assert all(p.shape[1] == 60 and (p >= 0).all() and (p <= 1).all() for p in said.values())
    assert {name: len(p) for name, p in said.items() if len(p) > 1}.keys() == {
        "MLPs",
        "MLPs, unseen rows",
        "left-out MLPs",
    }
    for name in ("boosting", "forest", "extra trees", "logistic", "neighbours"):
        assert jury.quality(test)[name]["auc"] > 0.9, name


def test_judges_are_the_same_every_time(jury: Jury, rows: Labelled) -> None:
    again = jury_of(rows, rows.select(np.arange(60)), epochs=2)
    where_to = np.arange(60)
    for name, said in jury.opinions(rows.x[:60], where_to).items():
        np.testing.assert_allclose(again.opinions(rows.x[:60], where_to)[name], said, atol=1e-6)


def test_a_judge_of_unseen_rows_did_not_see_the_person() -> None:
    """What was learned from half 0 says 0.2, from half 1 0.9: people of half 0 are judged by the latter."""
    jury = Jury((), ((constant(0.2), constant(0.9)),), np.array([0, 1, 0]))
    said = jury.opinions(np.zeros((3, 1)), np.array([2, 1, 0]))["constant"]
    assert said.tolist() == [[0.9, 0.2, 0.9]]


def test_halves_have_the_labels_in_the_same_shares() -> None:
    y = np.array([1] * 20 + [0] * 40)
    half = halves(y)
    assert [int(y[half == side].sum()) for side in (0, 1)] == [10, 10]
    assert halves(np.array([1, 0, 0, 0])).sum() == 2  # too few of a label to go round


# ---------------------------------------------------------------- denominators


def four() -> Measured:
    """Four people: helped, accepted already, refused all the same, and one without an answer."""
    values: dict[str, Any] = {
        "rows": [3, 5, 7, 9],
        "found": [True, True, True, False],
        "certified": [True, True, False, False],
        "claimed": [0.9, 0.8, 0.7, 0.4],
        "distance": [0.1, 0.2, 0.3, 0.0],
        "changes": [1, 2, 3, 0],
        "changed share": [0.1, 0.2, 0.3, 0.0],
        "lof": [1.0, 1.2, 2.0, 9.0],
        "nearest": [0.0, 0.1, 0.2, 9.0],
        "broken": [False, False, True, False],
        "forest at x": [[0.2, 0.6, 0.1, 0.3]],
        "forest at x'": [[0.7, 0.8, 0.4, 0.9]],
        "MLPs at x": [[0.2, 0.6, 0.1, 0.3], [0.2, 0.4, 0.1, 0.3]],
        "MLPs at x'": [[0.7, 0.8, 0.4, 0.9], [0.4, 0.8, 0.4, 0.9]],
    }
    return {name: np.array(value) for name, value in values.items()}


def test_a_missing_answer_is_refused_and_gains_nothing() -> None:
    """The judge would accept the last x′ at 0.9, but there is no answer."""
    numbers = {name: number.value for name, number in summary(four()).items()}
    assert numbers["acceptance, forest"] == 2 / 4
    assert numbers["already, forest"] == 1 / 4
    assert numbers["of declined, forest"] == 1 / 3
    assert numbers["gain, forest"] == pytest.approx((0.5 + 0.2 + 0.3 + 0.0) / 4)
    assert numbers["overclaim, forest"] == pytest.approx((0.2 + 0.0 + 0.3) / 3)
    assert numbers["certified"] == 2 / 4
    assert numbers["distance"] == pytest.approx(0.2)
    assert numbers["LOF"] == 1.2
    assert numbers["inliers"] == pytest.approx(2 / 3)


def test_several_members_have_a_mean_opinion() -> None:
    numbers = {name: number.value for name, number in summary(four()).items()}
    assert numbers["acceptance, MLPs"] == pytest.approx((0.5 + 1 + 0 + 0) / 4)
    assert numbers["of declined, MLPs"] == pytest.approx((1 + 1) / 7)
    assert numbers["RI, standard"] == pytest.approx((0.5 + 1 + 0) / 3)  # of valid answers


def test_judges_decide_at_the_threshold_of_the_model() -> None:
    assert summary(four(), threshold=0.75)["acceptance, forest"].value == 1 / 4


def test_some_rows_alone() -> None:
    keep = np.array([True, False, False, True])
    assert summary(four(), keep)["acceptance, forest"].value == 1 / 2


def test_no_valid_answer_has_no_distance() -> None:
    numbers = summary(four() | {"found": np.zeros(4, dtype=bool)})
    assert numbers["acceptance, forest"].value == 0.0
    assert math.isnan(numbers["distance"].value)
    assert math.isnan(numbers["LOF"].value)


def test_answers_that_do_not_exist_or_do_not_work_are_not_found(model: vt.VeriTraCER) -> None:
    data = vt.datasets.load("breast_cancer")
    encoded = model.encoding_.encode(data.X)
    favourable = model.predict(data.X) == model.schema_.favourable
    declined = np.flatnonzero(~favourable)[:3]
    known = data.schema.labels(data.y) == 1
    x, good = encoded[declined], encoded[np.flatnonzero(favourable & known)[0]]
    x_cf = torch.stack([good, x[1], torch.full_like(good, math.nan)])
    neighbours = Neighbours(encoded, torch.from_numpy(known))
    half = np.zeros(len(encoded), dtype=np.int64)
    judge = Jury((Judge("forest", (lambda rows: np.full(len(rows), 0.9),)),), (), half)
    values = measured(
        Explained.of(model), Answers(declined, data.X.iloc[declined], x, x_cf), judge, neighbours
    )
    assert values["found"].tolist() == [True, False, False]
    assert values["distance"][1:].tolist() == [0.0, 0.0]
    assert not values["certified"][1:].any()
    assert values["nearest"][0] == pytest.approx(0.0, abs=1e-9)
    assert summary(values)["acceptance, forest"].value == pytest.approx(1 / 3)


def test_repeated_rows_count_once() -> None:
    """Forty copies of a row have no distance to each other: a factor among them would mean nothing."""
    rng = np.random.default_rng(1)
    once, asked = rng.random((30, 2)), rng.random((5, 2))
    often = np.concatenate([once, np.repeat(once[:1], 40, axis=0), rng.random((20, 2))])
    labels = torch.arange(len(often)) < 70
    found = Neighbours(torch.from_numpy(often), labels).outlier_factor(
        torch.from_numpy(asked), 10, favourable=True
    )
    expected = LocalOutlierFactor(10, metric="manhattan", novelty=True).fit(once)
    np.testing.assert_allclose(found, -expected.score_samples(asked), rtol=1e-9)


def test_a_median_has_an_error_from_its_neighbours_in_order() -> None:
    """Of 0 to 99 the order statistics 40 and 60 enclose it: 20 / 3.92."""
    assert median(np.arange(100)).value == 49.5
    assert median(np.arange(100)).error == pytest.approx(20 / 3.92, rel=1e-3)


# ---------------------------------------------------------------- the simulator


def people() -> Any:
    return vt.datasets.loans(300).X.iloc[200:260]


@pytest.mark.parametrize("outcome", ["approved", "repaid"])
def test_who_does_nothing_stays_who_they_are(outcome: Any) -> None:
    became = Simulator(outcome, 300).act(people(), people())
    np.testing.assert_array_equal(became.before, became.after)
    np.testing.assert_array_equal(became.happened, became.happened_after)


def test_a_cleaner_file_is_approved_and_not_repaid() -> None:
    advised = people().assign(missed_payments=0)
    approved, repaid = (Simulator(outcome, 300).act(advised, people()) for outcome in ("approved", "repaid"))
    assert (approved.after - approved.before).mean() > 0.02
    np.testing.assert_allclose(repaid.after, repaid.before, atol=1e-9)
    assert approved.happened_after.sum() >= approved.happened.sum()
    np.testing.assert_array_equal(repaid.happened_after, repaid.happened)


def test_a_term_between_two_years_is_the_nearest() -> None:
    advised = people().assign(term_months=people()["term_months"] + 5.9)
    became = Simulator("approved", 300).act(advised, people())
    np.testing.assert_array_equal(became.before, became.after)


def test_answers_are_acted_on_before_they_are_counted() -> None:
    """Somebody is told of fewer missed payments: approved more often, and where no answer is, as before."""
    data = vt.datasets.loans(300)
    sizes = {"hidden": (8,), "learning_rate": 0.05, "epochs": 15}
    model = vt.VeriTraCER(data.schema.unconstrained(), method="standard", **sizes).fit(
        data.X[:200], data.y[:200]
    )
    x = model.encoding_.encode(people(), out_of_range="ignore")
    rows = np.flatnonzero(model.decision_function(model.encoding_.decode(x)) <= 0)
    X, x = people().iloc[rows], x[rows]
    wished = X.assign(missed_payments=0, savings=X["savings"] + 20_000, loan_amount=5_000)
    answers = Answers(rows, X, x, model.encoding_.encode(wished, out_of_range="ignore"))
    answers.x_cf[0] = math.nan
    known = torch.from_numpy(data.schema.labels(data.y) == 1)
    neighbours = Neighbours(model.encoding_.encode(data.X, out_of_range="ignore"), known)
    jury = Jury((), (), np.zeros(300, dtype=np.int64))
    values = measured(Explained.of(model), answers, jury, neighbours, simulator=Simulator("approved", 300))
    found = values["found"]
    assert not found[0]
    assert found.sum() > 2
    np.testing.assert_array_equal(values["true"][~found], values["true after"][~found])
    assert (values["true after"] - values["true"])[found].mean() > 0.02
    numbers = {name: number.value for name, number in summary(values).items()}
    assert numbers["true gain"] == pytest.approx(float((values["true after"] - values["true"]).mean()))
    accepted = values["accepted after"] & found
    assert numbers["acceptance after acting"] == pytest.approx(accepted.mean())
    assert numbers["gaming gap"] == pytest.approx(accepted.mean() - values["happened after"].mean())
    assert numbers["truly cross"] == pytest.approx(((values["true after"] > 0.5) & found).mean())
    assert math.isnan(numbers["lowest"])  # nobody judged


# ---------------------------------------------------------------- what a model is worth


def test_groups_are_the_rare_and_the_distant(rows: Labelled) -> None:
    data = vt.datasets.loans(600)
    split = data.split(test_size=0.5)
    subject = Subject("loans", data.schema, split.X_train, split.y_train, split.X_test, split.y_test)
    encoding = vt.Encoding.fit(data.schema, split.X_train)
    train, test = (
        Labelled(encoding.encode(X, out_of_range="ignore").numpy(), data.schema.labels(y).astype(np.int64))
        for X, y in ((split.X_train, split.y_train), (split.X_test, split.y_test))
    )
    groups = groups_of(subject, train, test)
    assert groups[DISTANT].sum() == 30
    assert all(inside.sum() >= 30 for inside in groups.values())
    rare = [name for name in groups if " = " in name]
    assert rare
    assert not any(name.startswith("sex") for name in rare)
    sure = np.where(test.y == 1, 0.9, 0.2)
    numbers = quality(sure, test, groups, {"forest": sure[None]})
    assert (numbers["accuracy"], numbers["auc"], numbers["agreement, all"]) == (1.0, 1.0, 1.0)
    share = test.y[groups[DISTANT]].mean()
    assert numbers[f"approval, {DISTANT}"] == pytest.approx(share)
    assert numbers[f"Brier, {DISTANT}"] == pytest.approx(share * 0.01 + (1 - share) * 0.04)


# ---------------------------------------------------------------- intervals and tables


def test_a_share_of_one_still_has_an_interval() -> None:
    found = interval([1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [200, 200, 200], SHARE)
    assert (found.mean, found.worst) == (1.0, 1.0)
    assert found.high == pytest.approx(1.0)
    assert found.low == pytest.approx(200 / (200 + 1.96**2), abs=1e-3)


@pytest.mark.parametrize(("positive", "rows"), [(0, 300), (37, 250), (299, 300)])
def test_the_interval_of_one_seed_is_wilsons(positive: int, rows: int) -> None:
    share = positive / rows
    found = interval([share], [math.sqrt(share * (1 - share) / rows)], [rows], SHARE)
    assert (found.low, found.high) == pytest.approx(
        tuple(binomtest(positive, rows).proportion_ci(method="wilson")), abs=1e-6
    )


def test_seeds_and_rows_both_widen_an_interval() -> None:
    """With a spread of 0.1 between two seeds t is 12.7; with none, the rows alone count."""
    rows_alone = interval([0.5, 0.5], [0.02, 0.02], [600, 600], AMOUNT)
    assert rows_alone.high - rows_alone.mean == pytest.approx(1.96 * 0.02, rel=1e-3)
    both = interval([0.45, 0.55], [0.02, 0.02], [600, 600], AMOUNT)
    assert both.high - both.mean == pytest.approx(math.hypot(1.96 * 0.02, 12.706 * 0.05), rel=1e-3)
    assert both.worst == 0.55


def test_small_seeds_are_pooled() -> None:
    assert interval([0.0, 1.0], [0.0, 0.0], [30, 90], SHARE).mean == 0.75
    assert interval([0.0, 1.0], [0.0, 0.0], [300, 900], SHARE).mean == 0.5


def cell(dataset: str, method: str, seed: int = 0, **numbers: float) -> Cell:
    full = {"rows": 200.0} | {name.replace("_", " "): value for name, value in numbers.items()}
    full |= {f"acceptance, {judge}": 0.9 - 0.1 * i for i, judge in enumerate(COUNTED)}
    return Cell(Key("truth", dataset, method, seed), {"rows": 200}, full, 1.0, where())


def test_tables_are_made_of_what_is_there(tmp_path: Path) -> None:
    """One method with a cell, another with two seeds on another dataset; nothing about models or judges."""
    assert truth_tables.page([]) == ""
    some = [cell("heloc", "roar", distance=0.04, certified=0.0)]
    some += [cell("loans", "veritracer[plausibility=0.5]", seed, distance=0.05) for seed in (0, 1)]
    write_results(tmp_path, some)
    text = truth_tables.page(read_results(tmp_path))
    assert "### HELOC: acceptance by judge" in text
    assert "| ROAR | – | 0.900 [0.85, 0.93] |" in text
    assert "VeriTraCER (default), plausibility 0.5" in text
    some.append(cell("loans", "veritracer", distance=0.04))
    assert frontier(Truth(some), tmp_path / "frontier.png") is not None
    assert frontier(Truth([]), tmp_path / "none.png") is None
    assert [path.name for path in tmp_path.glob("*.png")] == ["frontier.png"]


def test_the_lowest_judge_is_one_that_counts() -> None:
    one = cell("heloc", "roar")
    one.numbers["acceptance, neighbours"] = 0.0
    one.numbers["acceptance, boosting"] = 0.0
    lowest = Truth([one]).lowest("heloc", "roar")
    assert lowest is not None
    assert lowest.mean == pytest.approx(0.5)


def test_who_lies_above_our_curve() -> None:
    """A point counts where one of our settings is as near: ROAR at 0.04 does not, SNS at 0.06 does."""

    def at(method: str, distance: float, more: float) -> Cell:
        one = cell("heloc", method, distance=distance)
        one.numbers.update({f"acceptance, {judge}": more for judge in COUNTED})
        return one

    some = [at("veritracer", 0.05, 0.8), at("veritracer[plausibility=2.0]", 0.09, 0.9)]
    some += [at("roar", 0.04, 0.95), at("sns", 0.06, 0.85), at("wachter", 0.1, 0.89)]
    assert Truth(some).above_ours("heloc") == ["sns"]
    assert Truth(some[2:]).above_ours("heloc") is None


def test_a_method_takes_options_of_explain() -> None:
    method = resolve("veritracer[plausibility=0.5,max_changes=4]")
    assert method.title == "VeriTraCER (default), plausibility 0.5, max_changes 4"
    assert method.trainer == "veritracer"
    for wrong in (
        "veritracer[plausibility]",
        "veritracer[plausibility=many]",
        "nothing[kappa=1]",
    ):
        with pytest.raises(NotSupportedError):
            resolve(wrong)


# ---------------------------------------------------------------- a run


def above(limit: float) -> dict[str, NDArray[Any]]:
    """A classifier of one column that is favourable above the limit."""
    return {"theta.0": np.array([[1.0]]), "theta.1": np.array([-limit]), "slopes": np.zeros(0)}


def test_cells_are_counted_over_models_and_methods(tmp_path: Path) -> None:
    """Two methods on one seed share the rows 3 and 7; answers at 0.2, 0.4 and 0.6 meet other models."""
    meta: dict[str, Any] = {"configuration": {"rows": 4}, "seconds": 2.0, "where": {"torch": "2"}}
    said = {f"{name} {when}": four()[f"forest {when}"] for name in NAMES for when in ("at x", "at x'")}
    mine = four() | said | {"x_cf": np.array([[0.2], [0.4], [0.6], [0.0]])}
    asked = meta | {"trainer": "standard", "threshold": 0.5}
    truth.write_file(tmp_path, ("truth", "heloc", "roar", 0), asked, mine)
    truth.write_file(
        tmp_path, ("truth", "heloc", "module:Class", 0), asked, mine | {"rows": np.array([3, 7, 8, 1])}
    )
    truth.write_file(tmp_path, ("truth", "heloc", "sns", 1), asked, {})  # nobody was declined
    for seed, limit in enumerate((0.0, 0.3, 0.5)):
        worth = meta | {"numbers": {"accuracy": 0.8}}
        truth.write_file(tmp_path, ("model", "heloc", "standard", seed), worth, above(limit))
    truth.write_file(tmp_path, ("left out", "heloc", "standard", 7), meta, above(0.5))
    truth.write_file(
        tmp_path, ("judges", "heloc", "judges", 0), meta | {"judges": {"forest": {"auc": 0.7}}}, {}
    )
    cells = truth.summarised(tmp_path)
    assert [cell.key for cell in cells] == sorted(cell.key for cell in cells)
    numbers = {cell.key: cell.numbers for cell in cells}
    roar = numbers[Key("truth", "heloc", "roar", 0)]
    assert roar["RI, same training"] == pytest.approx((2 / 3 + 1 / 3) / 2)  # above 0.3: two, above 0.5: one
    assert roar["LOO, same training"] == pytest.approx(1 / 3)
    assert (roar["rows"], roar["rows, common rows"]) == (4.0, 2.0)
    assert roar["acceptance, forest, common rows"] == 1 / 2
    assert roar["distance"] == pytest.approx(0.2)
    assert roar["distance ±"] == pytest.approx(np.std([0.1, 0.2, 0.3]) / math.sqrt(3))
    assert numbers[Key("truth", "heloc", "sns", 1)] == {"rows": 0.0, "explain seconds": 2.0}
    assert numbers[Key("model", "heloc", "standard", 2)] == {"accuracy": 0.8, "fit seconds": 2.0}
    assert numbers[Key("judges", "heloc", "forest", 0)] == {"auc": 0.7}
    assert Key("truth", "heloc", "module:Class", 0) in numbers


def test_a_damaged_or_renamed_cell_is_none(tmp_path: Path) -> None:
    name: truth.Name = ("judges", "heloc", "judges", 0)
    assert truth.read_meta(tmp_path, name) is None
    truth.write_file(tmp_path, name, {"seconds": 1.0}, {})
    assert truth.read_meta(tmp_path, name) == {"seconds": 1.0}
    (path,) = (tmp_path / "cells").iterdir()
    path.rename(path.with_name("judges.who.judges.0.npz"))
    assert truth.read_meta(tmp_path, ("judges", "who", "judges", 0)) is None
    path.write_bytes(b"half")
    assert truth.read_meta(tmp_path, name) is None


@pytest.mark.long
def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished cells are left alone; a damaged one is measured again, and so is what was asked otherwise."""
    monkeypatch.setattr(benchmark, "LOANS", 800)
    asked = benchmark.Asked(tmp_path, rows=8, epochs=15, train_rows=400)
    first = benchmark.job("loans", (0,), ("neighbour",), asked)
    assert first.startswith("loans 0: 1 cells")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert {path.name for path in files} == {
        "judges.loans.judges.0.npz",
        "model.loans.standard.0.npz",
        "truth.loans.neighbour.0.npz",
    }
    assert benchmark.job("loans", (0,), ("neighbour",), asked).startswith("loans 0: 0 cells")
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    (tmp_path / "cells" / "truth.loans.neighbour.0.npz").write_bytes(b"half")
    assert benchmark.job("loans", (0,), ("neighbour",), asked).startswith("loans 0: 1 cells")
    assert benchmark.job("loans", (0,), ("neighbour",), asked._replace(rows=4)).startswith("loans 0: 1 cells")
    numbers: dict[Key, dict[str, float]] = {c.key: c.numbers for c in truth.summarised(tmp_path)}
    found = numbers[Key("truth", "loans", "neighbour", 0)]
    assert found["rows"] <= 4
    assert found.get("nearest", 0.0) < 0.2
    assert "accuracy" in numbers[Key("model", "loans", "standard", 0)]


def test_a_kept_classifier_decides_as_it_did(model: vt.VeriTraCER) -> None:
    x: NDArray[np.float64] = np.random.default_rng(0).random((20, model.encoding_.dim))
    again = truth.decides(benchmark.parameters(model), x)
    with torch.no_grad():
        np.testing.assert_array_equal(again, (model.classifier_(torch.from_numpy(x))[:, 0] > 0).numpy())
