"""The numbers in captions, computed a second time and by other means than the report's."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from report_cases import Case
from sklearn.metrics import roc_auc_score

import veritracer as vt
from edited_results import edited
from html_pages import Page
from veritracer.app.report import write_report
from veritracer.app.report.context import report_context
from veritracer.app.report.groups import groups_of
from veritracer.app.report.people import cards
from veritracer.app.report.quality import reliability
from veritracer.app.report.robustness import agreement_figure, agreement_figures, limits, path_figure
from veritracer.schema import Feature


@pytest.fixture(scope="module")
def page(lending_report: Path) -> Page:
    return Page.read(lending_report)


def shown(share: float) -> str:
    """One decimal, rounded to nearest."""
    tenths = Decimal(repr(float(share))).scaleb(2).quantize(Decimal("0.1"), ROUND_HALF_EVEN)
    return f"{tenths}".removesuffix(".0") + " %"


def turned_down(case: Case) -> np.ndarray:
    return np.asarray(case.model.predict(case.X) == "no")


def test_quality_is_scikit_learn_s(lending: Case, page: Page) -> None:
    model, X, y, _ = lending
    chance = model.predict_proba(X)[:, list(model.classes_).index("yes")]
    words = page.by_id["model"].replace("\u00a0", " ")
    assert f"AUC is {roc_auc_score(y == 'yes', chance):.3f}" in words
    assert f"The accuracy is {shown(model.score(X, y))} on 375 rows" in words


def test_the_first_screen_counts_people(lending: Case, page: Page) -> None:
    asked = turned_down(lending)
    sure = int(lending.recourse.certified[asked].sum())
    said = [f"of {len(asked):,} applications declined{asked.sum():,}"]
    said += [f"of them get advice with a certificate{sure:,} ({shown(sure / asked.sum())})"]
    start = page.text.partition("Versions and digests")[0].replace("\u00a0", " ").replace("\n", "")
    assert all(tile in start for tile in said)
    assert "A certificate is a proof that" in start


def test_certified_shares_are_those_of_certify(lending: Case, page: Page) -> None:
    model, X, _, recourse = lending
    asked = turned_down(lending)
    found = limits(report_context(model, X, None, recourse))
    for kappa, share in zip(found.kappa, found.certified, strict=True):
        # The shown rows, proved anew at this kappa. radius is searched on a grid with steps of 2.2 %, so a
        # direct proof may reach a little further than it says, and never less far.
        direct = model.certify(X[asked], recourse.frame[asked], kappa=float(kappa)).certified.mean()
        assert direct >= share - 1e-12, kappa
    at = model.certify(X[asked], recourse.frame[asked]).certified.mean()
    said = f"At κ = 0.05 (linf, mean-abs), {shown(at)} of {asked.sum()} applicants"
    assert said in page.caption("robustness")


def test_attack_and_certificate_bracket_the_truth(lending: Case) -> None:
    model, X, _, recourse = lending
    found = limits(report_context(model, X, None, recourse))
    assert (found.unbroken >= found.certified).all()
    assert (np.diff(found.unbroken) <= 0).all()
    assert (np.diff(found.certified) <= 0).all()
    assert (np.diff(found.broken) >= 0).all()
    assert found.unbroken[-1] < 1, "the attack must break something to be a limit"


def test_a_broken_certificate_stops_the_report(lending: Case, tmp_path: Path) -> None:
    model, X, y, recourse = lending
    boasting = edited(recourse, radius=recourse.radius * 20)
    with pytest.raises(AssertionError, match="an attack broke a certificate"):
        write_report(tmp_path / "r.html", model, X, y, recourse=boasting)
    assert not list(tmp_path.iterdir())


def test_cost_is_the_distance_in_scaled_units(lending: Case, page: Page) -> None:
    model, X, _, recourse = lending
    asked = turned_down(lending)
    moved = model.encoding_.encode(recourse.frame[asked]) - model.encoding_.encode(X[asked])
    distance = moved.abs().sum(-1).numpy()
    pattern = r"cost is ([\d.]+); nine in ten applicants need at most ([\d.]+)"
    numbers = re.findall(pattern, page.caption("cost"))[0]
    # Two significant digits fewer than float64: captions show three.
    assert [float(n) for n in numbers] == pytest.approx(np.quantile(distance, [0.5, 0.9]), rel=5e-3)


def test_number_of_changes_counts_cells_that_differ(lending: Case, page: Page) -> None:
    _, X, _, recourse = lending
    asked = turned_down(lending)
    before, after = X[asked], recourse.frame[asked]
    differs = (before != after) & ~(before.isna() & after.isna())
    changes = differs.sum(axis=1)
    assert f"the mean {changes.mean():.2f} and the maximum {changes.max()}" in page.caption("changes")
    assert page.caption("changes").startswith(shown((changes <= 3).mean()))


def test_the_first_lever_is_the_one_in_the_table_of_changes(lending: Case, page: Page) -> None:
    asked = turned_down(lending)
    table = lending.recourse.changes()
    often = table["feature"].value_counts()
    caption = page.caption("features")
    share = shown(often.iloc[0] / asked.sum())
    assert f"frequent change is {often.index[0]}: {share} of the counterfactuals" in caption
    assert f"{18 - len(often)} feature" in caption
    mine = table[table["feature"] == often.index[0]].dropna()
    moves = mine["to"].astype(float) - mine["from"].astype(float)
    for sign, part in (("+", moves[moves > 0]), ("−", -moves[moves < 0])):
        if len(part):
            assert f"{sign}{float(f'{part.median():.3g}'):,.12g}" in caption


def test_group_means_are_those_of_pandas(lending: Case, page: Page) -> None:
    asked = turned_down(lending)
    table = pd.DataFrame({"sex": lending.X["sex"], "cost": lending.recourse.cost})[asked]
    section = page.by_id["costs"]
    for sex, cost in table.groupby("sex")["cost"].mean().items():
        line = re.search(rf"\n{sex}([\d,]+).*", section.replace("\u00a0", " "))
        assert line, sex
        assert f"{cost:.3g}" in line.group(0), (sex, line.group(0))


def test_reliability_of_a_true_model_is_on_the_diagonal() -> None:
    draw = np.random.default_rng(0)
    chance = draw.uniform(size=40_000)
    happened = (draw.uniform(size=40_000) < chance).astype(np.int64)
    found = reliability(chance, happened)
    assert found["rows"].sum() == 40_000
    # 4,000 rows in a bin: a standard error of at most 0.008, and 0.03 is almost four of them.
    assert (found["predicted"] - found["observed"]).abs().max() < 0.03


def test_wilson_s_interval_knows_the_ends() -> None:
    cases = [np.zeros(10, dtype=int), np.ones(10, dtype=int), np.arange(100) % 2]
    none, all_, half = (reliability(np.full(len(y), 0.5), y, bins=1).iloc[0] for y in cases)
    assert none["low"] == 0
    assert all_["high"] == 1
    assert none["high"] > 0.2  # none of ten does not mean never
    assert [half["low"], half["high"]] == pytest.approx([0.404, 0.596], abs=5e-4)  # textbook values


def test_groups_part_the_people() -> None:
    column = pd.Series([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, np.nan, -9])
    feature = Feature("age", "integer", missing="impute", missing_codes=[-9])
    found = groups_of(feature, column)
    assert [g.name for g in found] == ["1–3", "4–6", "7–9", "10–12", "missing"]
    assert np.array_equal(np.sum([g.rows for g in found], axis=0), np.ones(14))
    many = pd.Series([f"c{k % 11}" for k in range(110)] + ["c0"] * 5)
    wide = Feature("job", "categorical", categories=[f"c{k}" for k in range(11)])
    named = groups_of(wide, many)
    assert len(named) == 8
    assert named[-1].name == "all others"
    assert int(sum(g.rows.sum() for g in named)) == len(many)


def test_a_model_without_generator_is_reported_too(lending: Case, tmp_path: Path) -> None:
    _, X, y, _ = lending
    model = vt.VeriTraCER(schema=lending.model.schema, method="standard", epochs=15, kappa=0.01)
    model.fit(X, y)
    page = Page.read(write_report(tmp_path / "r.html", model, X, y))
    assert page.unbalanced == []
    assert "accuracy" in page.caption("rates")
    assert torch.get_default_dtype() == torch.float32  # nothing global was changed on the way


# ---------------------------------------------------------------- acceptance by independent models


@pytest.mark.parametrize(
    ("panel", "verdict"),
    [(0.7, "The probabilities rise together."), (0.3, "Only this model's probability rises")],
)
def test_a_model_specific_counterfactual_is_reported(panel: float, verdict: str) -> None:
    """At x′ the model says 0.8: others at 0.7 agree, others at 0.3 do not."""
    steps = np.linspace(0, 1.2, 7)
    opinions = {"model": 0.2 + 0.6 * steps, "panel": 0.2 + (panel - 0.2) * steps, "truth": np.full(7, panel)}
    figure = path_figure(pd.DataFrame(opinions, index=steps), "somebody")
    other = shown(panel)
    assert f"At x′, for somebody: this model 80 %, its panel {other}, true probability {other}." in (
        figure.caption.replace("\u00a0", " ")
    )
    assert verdict in figure.caption
    for name in ("this model", "its panel", "true probability"):
        assert f">{name}</text>" in figure.picture
    assert [row["position"] for row in figure.table] == ["0", "0.25", "0.5", "0.75", "1"]


def test_without_a_panel_nobody_is_asked(lending: Case) -> None:
    model, X, _, recourse = lending
    assert agreement_figures(report_context(model, X, None, recourse)) == []


def test_a_card_says_why_nothing_is_proved(lending: Case) -> None:
    """Asked at a kappa that is out of reach, people have a reason instead of a certificate."""
    model, X, _, _ = lending
    found = model.explain(X[:40], kappa=3.0)
    last = cards(report_context(model, X[:40], None, found))[-1]
    assert last["status"] == "valid"
    assert list(last["certificate"]) == ["reason", "certified radius"]
    assert last["certificate"]["reason"] in {str(reason) for reason in found.reason[found.status == "valid"]}


def test_a_certified_card_has_a_bound_below_zero(lending: Case) -> None:
    """One sign everywhere: a proof is a bound below 0, as in the result itself."""
    model, X, _, recourse = lending
    first = cards(report_context(model, X, None, recourse))[0]
    assert first["status"] == "certified"
    assert first["certificate"]["worst logit"].startswith("−")
    assert (recourse.worst_logit[recourse.certified] < 0).all()


def test_no_warning_where_all_counterfactuals_are_accepted() -> None:
    assert "Do not hand out the others." in agreement_figure(np.array([1.0, 0.2])).caption
    assert "Do not hand out" not in agreement_figure(np.array([1.0, 0.5])).caption
