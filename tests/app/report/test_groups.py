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
from veritracer.app.report.groups import FEWEST, FOUR_FIFTHS, approval_caption, approvals, compare
from veritracer.app.report.quality import overfitting

CELL = re.compile(r"([\d.]+)(?: \(of (\d+)\))?")


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
        assert float(line[2].removesuffix(" %")) == pytest.approx(math.floor(1000 * share) / 10)
    assert set(table.iloc[:, 0]) == set(sex)
    assert (table.iloc[:, 5] == "the highest").sum() == 1


def test_ratios_and_their_intervals_are_katz_s(lending: Case) -> None:
    model, X, y, recourse = lending
    accepted = np.asarray(model.predict(X) == "yes")
    for feature in approvals(report_context(model, X, y, recourse)):
        top = feature.highest
        for one in feature.groups:
            ratio, low, high = feature.ratio(one)
            if math.isnan(ratio) or one.accepted == 0:
                continue
            a, b = accepted[one.group.rows], accepted[top.group.rows]
            assert ratio == pytest.approx(a.mean() / b.mean())
            spread = math.sqrt(1 / a.sum() - 1 / len(a) + 1 / b.sum() - 1 / len(b))
            z = norm.ppf(0.975)
            assert (math.log(low), math.log(high)) == pytest.approx(
                (math.log(ratio) - z * spread, math.log(ratio) + z * spread)
            )
            assert ratio <= 1


def test_the_four_fifths_line_is_drawn_and_named(lending: Case, page: str) -> None:
    figure = page.partition('<figure id="approvals">')[2].partition("</figure>")[0]
    assert ">four fifths</text>" in figure
    model, X, y, recourse = lending
    found = approvals(report_context(model, X, y, recourse))
    below = sum(feature.ratio(one)[0] < FOUR_FIFTHS for feature in found for one in feature.groups)
    said = approval_caption(found)
    assert said.startswith(f"{below} of " if below else "None of ")
    assert said.replace("\u00a0", " ") in page


def test_small_groups_are_shown_as_such(lending: Case, tmp_path: Path) -> None:
    """Of three people in a group nothing is compared, and nothing is left out."""
    model, X, y, _ = lending
    few = X.head(60).copy()
    few["sex"] = np.where(np.arange(60) < 3, "male", "female")
    path = write_report(tmp_path / "report.html", model, few, y.head(60))
    page = path.read_text().replace("\u00a0", " ")
    table = tables_of(page, "Approved, by sex").set_index("group")
    assert table.loc["male", "people"] == "3"
    assert table.loc["male"].iloc[-1] == f"fewer than {FEWEST}"
    context = report_context(model, few, y.head(60), None)
    for comparison in compare(context) if context.has_cf.any() else []:
        table = tables_of(
            page, f"By {comparison.feature.name} ({comparison.feature.action.replace('_', ' ')})"
        )
        for group, cell in zip(comparison.groups, table["mean cost"], strict=True):
            given = int((group.rows & context.has_cf).sum())
            assert ("(of" in cell) == (0 < given < FEWEST)


def test_the_widest_gap_of_the_text_is_that_of_the_tables(lending: Case, page: str) -> None:
    found = re.search(r"The largest difference is by (\w+): .*?, a ratio of ([\d.]+)\.", page)
    ratios = {}
    for name, words in re.findall(r"<h3>By (\w+) \(([a-z ]+)\)</h3>", page):
        cells = [CELL.fullmatch(cell) for cell in tables_of(page, f"By {name} ({words})")["mean cost"]]
        costs = [float(cell[1]) for cell in cells if cell and not cell[2]]
        if len(costs) > 1:
            ratios[name] = max(costs) / min(costs)
    widest = max(ratios, key=ratios.get)
    assert ratios[found[1]] == pytest.approx(ratios[widest], rel=0.01)
    assert float(found[2]) == pytest.approx(ratios[widest], rel=0.01)


def test_a_change_that_most_counterfactuals_share_is_a_warning(lending: Case, page: str) -> None:
    notes = lending.recourse.notes
    assert notes
    assert page.count('<p class="warning">') == len(notes)
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
