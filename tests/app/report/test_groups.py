"""Approval rates by group, small groups, what most people are told, and how training ended."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_cases import Case
from scipy.stats import norm

from veritracer.app.report import write_report
from veritracer.app.report.context import report_context
from veritracer.app.report.groups import (
    FEWEST,
    FOUR_FIFTHS,
    approval_caption,
    approvals,
    callouts,
    chance,
    compare,
    cost_caption,
)
from veritracer.app.report.quality import overfitting


@pytest.fixture(scope="module")
def page(lending_report: Path) -> str:
    return lending_report.read_text().replace("\u00a0", " ")


def tables_of(page: str, title: str) -> pd.DataFrame:
    """The table below a heading."""
    part = page.partition(f"<h3>{title}</h3>")[2].partition("</table>")[0]
    assert part, title
    rows = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", line) for line in re.findall(r"<tr>(.*?)</tr>", part, re.S)
    ]
    return pd.DataFrame(rows[1:], columns=rows[0])


def test_approval_rates_are_those_of_predict(lending: Case, page: str) -> None:
    model, X, _, _ = lending
    accepted = pd.Series(model.predict(X) == "yes")
    table = tables_of(page, "Approved, by sex")
    sex = X["sex"].reset_index(drop=True)
    for line in table.itertuples(index=False):
        rows = sex == line[0]
        assert int(line[1]) == rows.sum()
        share = accepted[rows].mean()
        assert float(line[2].removesuffix(" %")) == pytest.approx(100 * share, abs=0.05)
    assert set(table.iloc[:, 0]) == set(sex)
    assert (table["ratio"] == "highest").sum() == 1


def test_ratios_and_their_intervals_are_katz_s(lending: Case) -> None:
    model, X, y, recourse = lending
    accepted = np.asarray(model.predict(X) == "yes")
    for feature in approvals(report_context(model, X, y, recourse)):
        for one in feature.compared:
            a, b = (one.accepted, one.people), (feature.best.accepted, feature.best.people)
            ratio, low, high = one.ratio
            assert ratio == pytest.approx(a[0] / a[1] / (b[0] / b[1]))
            if one.people < FEWEST or one.accepted == 0:
                assert (low, high) == pytest.approx(tuple(end / feature.best.rate[0] for end in one.rate[1:]))
                continue
            spread = math.sqrt(1 / a[0] - 1 / a[1] + 1 / b[0] - 1 / b[1])
            z = norm.ppf(0.975)
            assert (math.log(low), math.log(high)) == pytest.approx(
                (math.log(ratio) - z * spread, math.log(ratio) + z * spread)
            )
    accepted_rows = sum(one.accepted for one in approvals(report_context(model, X, y, recourse))[0].groups)
    assert accepted_rows == accepted.sum()


def test_groups_below_four_fifths_are_called_out_with_their_interval(lending: Case, page: str) -> None:
    figure = page.partition('<figure id="approvals">')[2].partition("</figure>")[0]
    assert ">four fifths</text>" in figure
    model, X, y, recourse = lending
    found = approvals(report_context(model, X, y, recourse))
    below = sorted(
        (one.ratio[0], feature.feature, one.name)
        for feature in found
        for one in feature.compared
        if one.ratio[0] < FOUR_FIFTHS
    )
    assert below
    said = [sentence.replace("\u00a0", " ") for sentence in callouts(found)]
    assert re.match(rf"{len(below)} of \d+ groups ha", said[0])
    assert said[1].startswith(f"{below[0][1]} {below[0][2]}: ")
    assert all(re.search(r"; 95 % interval [\d.]+ to [\d.]+", sentence) for sentence in said[1:])
    assert all(f'<p class="warning">{sentence}</p>' in page for sentence in said)
    assert said[0] in page.partition("<nav")[0]  # on the first screen
    assert approval_caption(found).replace("\u00a0", " ") in page


def test_small_groups_are_compared_by_permutation(lending: Case, tmp_path: Path) -> None:
    """A group of three is compared, and nothing is left out."""
    model, X, y, _ = lending
    few = X.head(60).copy()
    few["sex"] = np.where(np.arange(60) < 3, "male", "female")
    path = write_report(tmp_path / "report.html", model, few, y.head(60))
    page = path.read_text().replace("\u00a0", " ")
    table = tables_of(page, "Approved, by sex").set_index("group")
    assert table.loc["male", "people"] == "3"
    assert re.search(r"\(p [=&]", table.loc["male"].iloc[-1])
    context = report_context(model, few, y.head(60), None)
    for comparison in compare(context):
        title = f"By {comparison.feature.name} ({comparison.feature.action.replace('_', ' ')})"
        cells = dict(zip(tables_of(page, title)["group"], tables_of(page, title)["mean cost"], strict=True))
        for group, cost in zip(comparison.groups, comparison.costs, strict=True):
            assert ("(of" in cells[group.name]) == (len(cost) < FEWEST)
        for name in comparison.left_out:
            assert cells[name] == "–"


def test_a_small_group_with_another_cost_is_significant() -> None:
    """The test that dropped it said that chance could explain every gap."""
    rng = np.random.default_rng(0)
    large, small = rng.normal(1.0, 0.1, 300), rng.normal(2.0, 0.1, 9)
    assert chance([large, small]) < 0.001
    assert chance([large, rng.normal(1.0, 0.1, 9)]) > 0.01
    assert chance([np.ones(30), np.ones(4)]) == 1.0


def test_p_values_of_the_permutation_test_are_uniform_under_the_null() -> None:
    rng = np.random.default_rng(1)
    values = [chance([rng.normal(size=25), rng.normal(size=6)]) for _ in range(60)]
    # Of 60 uniform values between 15 and 45 are below 0.5 but once in 10,000 draws.
    assert 15 < sum(value < 0.5 for value in values) < 45
    assert min(values) > 0.0005


def test_the_sentence_on_costs_names_who_is_compared_and_who_is_left_out(lending: Case, page: str) -> None:
    model, X, y, recourse = lending
    context = report_context(model, X, y, recourse)
    found = compare(context)
    said = cost_caption(context, found)
    for k, group in enumerate(found[0].groups):
        assert found[0].sized(k) in said, group.name
    assert all(name in said for c in found[:1] for name in c.left_out)
    assert said.replace("\u00a0", " ").replace("<", "&lt;") in page
    assert [c.chance for c in found] == sorted(c.chance for c in found)


def test_a_change_that_most_counterfactuals_share_is_a_warning(lending: Case, page: str) -> None:
    notes = lending.recourse.notes
    assert notes
    assert page.count('<p class="warning">') >= len(notes)
    for sentence in notes:
        assert re.match(r"[\d.]+ % of [\d,]+ counterfactuals ", sentence)


def test_overfitting_is_called_that() -> None:
    epochs = list(range(1, 6))
    rising = pd.DataFrame({"epoch": epochs, "log_loss": [0.7, 0.5, 0.45, 0.5, 0.6]})
    assert overfitting(rising) == (0.45, 3, 0.6)
    falling = pd.DataFrame({"epoch": epochs, "log_loss": [0.7, 0.5, 0.45, 0.44, 0.44]})
    assert overfitting(falling) is None
    assert overfitting(pd.DataFrame({"epoch": epochs, "log_loss": [np.nan] * 5})) is None
    assert overfitting(pd.DataFrame({"epoch": epochs})) is None


def test_no_word_is_broken_inside_of_a_table(page: str) -> None:
    style = page.partition("<style>")[2].partition("</style>")[0]
    for rule in re.findall(r"[^{}]*\b(?:td|th)\b[^{}]*\{[^}]*\}", style):
        assert "anywhere" not in rule, rule
        assert "break-word" not in rule, rule
    assert ".scroll { overflow-x: auto; }" in style
