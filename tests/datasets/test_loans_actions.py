"""What people do in ``loans``, and what comes of it: the same people, the same noise, another row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from veritracer import datasets
from veritracer.datasets.loans import people_of
from veritracer.datasets.loans_model import CAUSES, Economy, act, distribution_of, log_odds
from veritracer.errors import DataError, DatasetError

ROWS = 3000
THREE_PARTS = r"(?s)^expected .+, got .+ — .+"
EFFECTS = {"income", "years_employed", "card_use", "monthly_debt"}


@pytest.fixture(scope="module")
def before() -> pd.DataFrame:
    """People as they are, with both of their outcomes."""
    return everything()


def everything(do: Any = None) -> pd.DataFrame:
    approved, repaid = (datasets.loans(ROWS, outcome=name, do=do) for name in ("approved", "repaid"))
    pd.testing.assert_frame_equal(approved.X, repaid.X)
    return approved.X.assign(approved=approved.y, repaid=repaid.y)


def changed(one: pd.DataFrame, other: pd.DataFrame) -> set[str]:
    """The columns in which some row differs; two empty cells are the same."""
    return {name for name in one if not one[name].equals(other[name].astype(one[name].dtype))}


# ---------------------------------------------------------------- nothing done, nothing changed


@pytest.mark.parametrize(
    "nothing",
    [
        {},
        {"savings": None, "employment": np.nan},
        {"card_use": [None] * ROWS},
        pd.DataFrame({"monthly_debt": []}, index=[]),
        lambda people: {},
    ],
)
def test_who_does_nothing_stays_the_same(before: pd.DataFrame, nothing: Any) -> None:
    pd.testing.assert_frame_equal(everything(nothing), before)


@pytest.mark.parametrize("name", list(datasets.loans(1).X.columns))
def test_setting_a_column_to_what_it_is_changes_nothing(before: pd.DataFrame, name: str) -> None:
    assert changed(before, everything({name: before[name]})) == set()


def test_setting_every_column_to_what_it_is_changes_nothing(before: pd.DataFrame) -> None:
    assert changed(before, everything(lambda people: people)) == set()
    assert changed(before, everything(before.drop(columns=["approved", "repaid"]))) == set()


# ---------------------------------------------------------------- the ways to say it


def test_a_value_a_list_a_series_a_table_and_a_function_say_the_same() -> None:
    forms = [
        {"monthly_debt": 50, "employment": "permanent"},
        {"monthly_debt": [50] * ROWS, "employment": np.full(ROWS, "permanent")},
        {"monthly_debt": pd.Series(50, index=range(ROWS)), "employment": "permanent"},
        pd.DataFrame({"monthly_debt": 50, "employment": "permanent"}, index=range(ROWS)),
        lambda people: people.assign(monthly_debt=50, employment="permanent")[["monthly_debt", "employment"]],
    ]
    first = everything(forms[0])
    assert (first["monthly_debt"] == 50).all()
    for form in forms[1:]:
        pd.testing.assert_frame_equal(everything(form), first)


def test_a_table_sets_its_own_rows_and_no_others(before: pd.DataFrame) -> None:
    rows = before.index[before["card_use"] > 50][:40]
    after = everything(pd.DataFrame({"card_use": 10}, index=rows[::-1]))
    assert (after.loc[rows, "card_use"] == 10).all()
    pd.testing.assert_frame_equal(after.drop(rows), before.drop(rows))


def test_an_empty_cell_of_a_table_sets_nothing(before: pd.DataFrame) -> None:
    after = everything({"savings": [5000.0] + [np.nan] * (ROWS - 1)})
    assert after.loc[0, "savings"] == 5000
    pd.testing.assert_frame_equal(after[1:], before[1:])


@pytest.mark.parametrize("chunk", [700, 10**6])
def test_what_is_done_does_not_depend_on_the_size_of_a_chunk(chunk: int) -> None:
    def halved(people: pd.DataFrame) -> dict[str, pd.Series]:
        return {"monthly_debt": people["monthly_debt"] // 2}

    whole = datasets.loans(ROWS)
    for do in (halved, halved(whole.X), halved(whole.X)["monthly_debt"].to_frame()):
        done = datasets.loans(ROWS, outcome="repaid", do=do)
        pieces = datasets.loans_chunks(ROWS, chunk, outcome="repaid", do=do)
        pd.testing.assert_frame_equal(pd.concat(pieces), done.X.assign(repaid=done.y))


def test_a_value_between_two_steps_stays_what_it_is() -> None:
    data = datasets.loans(50, do={"years_employed": 2.5, "savings": 1234.5, "card_use": 30})
    assert (data.X["years_employed"] == 2.5).all()
    assert (data.X["savings"] == 1234.5).all()
    assert data.X["card_use"].dtype == np.int64


# ---------------------------------------------------------------- effects


@pytest.mark.parametrize(
    ("do", "follows"),
    [
        ({"age": 50}, {"income"}),
        ({"sex": "male"}, {"income"}),
        ({"region": "north"}, {"income"}),
        ({"education": "master"}, {"income"}),
        ({"employment": "self-employed"}, {"income", "years_employed"}),
        ({"credit_lines": 0}, {"card_use", "monthly_debt"}),
        ({"credit_lines": 3}, set()),
        ({"dependants": 0}, set()),
        ({"housing": "owner"}, set()),
        ({"years_employed": 4}, set()),
        ({"income": 40_000}, set()),
        ({"savings": 4000}, set()),
        ({"monthly_debt": 0}, set()),
        ({"card_use": 0}, set()),
        ({"history_years": 9}, set()),
        ({"missed_payments": 0}, set()),
        ({"purpose": "car"}, set()),
        ({"loan_amount": 2000}, set()),
        ({"term_months": 24}, set()),
    ],
)
def test_what_follows_from_an_action_and_what_does_not(
    before: pd.DataFrame, do: dict[str, Any], follows: set[str]
) -> None:
    after = everything(do)
    (name,) = do
    assert changed(before, after) - {"approved", "repaid"} == {name} | follows
    assert follows <= EFFECTS
    for effect in follows:  # what is not history follows only along the arrows of the causal graph
        assert name in CAUSES[effect]


def test_pay_follows_the_job_by_what_such_jobs_pay(before: pd.DataFrame) -> None:
    after = everything({"employment": "permanent"})
    out = before["employment"] == "out of work"
    ratio = after.loc[out, "income"] / before.loc[out, "income"]
    inside = before.loc[out, "income"].between(8100, 50_000)
    assert np.allclose(np.log(ratio[inside]), 0.05 + 0.60, atol=0.013)  # steps of 100, twice
    assert (after.loc[out, "repaid"] == "yes").mean() > (before.loc[out, "repaid"] == "yes").mean() + 0.1


def test_a_new_job_starts_anew_unless_its_years_are_set(before: pd.DataFrame) -> None:
    moved = before["employment"] != "public service"
    after = everything({"employment": "public service"})
    assert (after.loc[moved, "years_employed"] == 0).all()
    assert after.loc[~moved, "years_employed"].equals(before.loc[~moved, "years_employed"])
    stayed = everything({"employment": "public service", "years_employed": 3, "income": 30_000})
    assert (stayed["years_employed"] == 3).all()
    assert (stayed["income"] == 30_000).all()


def test_the_last_line_is_closed_by_paying_it_off_and_the_file_stays(before: pd.DataFrame) -> None:
    after = everything({"credit_lines": 0})
    assert (after[["card_use", "monthly_debt"]] == 0).all().all()
    assert after["missed_payments"].equals(before["missed_payments"])
    kept = everything({"credit_lines": 0, "monthly_debt": 100})
    assert (kept["monthly_debt"] == 100).all()


def test_what_is_set_is_disclosed_and_what_is_kept_to_oneself_stays_so(before: pd.DataFrame) -> None:
    assert before["savings"].isna().any()
    assert not everything({"savings": 3000})["savings"].isna().any()
    hidden = before["income"].isna()
    assert hidden.any()
    moved = everything({"employment": "permanent"})
    assert moved["income"].isna().equals(hidden)
    assert not everything({"income": 30_000})["income"].isna().any()


# ---------------------------------------------------------------- symptoms and causes


@pytest.mark.parametrize("symptom", [{"missed_payments": 0}, {"credit_lines": 5}, {"history_years": 30}])
def test_symptoms_change_the_decision_and_no_repayment(before: pd.DataFrame, symptom: dict[str, Any]) -> None:
    people = before[before["credit_lines"] > 0].index  # nobody's line is opened anew
    after = everything(pd.DataFrame(symptom, index=people))
    assert after["repaid"].equals(before["repaid"])
    if "credit_lines" not in symptom:
        assert (after["approved"] == "yes").sum() > (before["approved"] == "yes").sum()


@pytest.mark.parametrize(
    "cause", [{"monthly_debt": 0}, {"loan_amount": 1000}, {"savings": 20_000}, {"employment": "permanent"}]
)
def test_causes_change_repayment(before: pd.DataFrame, cause: dict[str, Any]) -> None:
    assert (everything(cause)["repaid"] == "yes").mean() > (before["repaid"] == "yes").mean() + 0.02


def test_prudence_is_not_bought_by_saving_once() -> None:
    """Whoever is given savings gains what the buffer is worth; those who saved so much repay far more."""
    people, _ = people_of(pd.RangeIndex(20_000), Economy.of(1, 1.0), (0, 1), "shock")
    economy = Economy.of(1, 1.0)
    saved = act(people, {"savings": np.full(20_000, 10_000.0)}, economy)
    assert saved.prudence is people.prudence
    poor = (people.columns["savings"] < 1000) & ~people.savings_hidden
    rich = people.columns["savings"] == 10_000
    gained = (log_odds("repaid", saved, economy) - log_odds("repaid", people, economy))[poor]
    assert 0.2 < gained.mean() < 0.9
    native = (
        log_odds("repaid", people, economy)[rich].mean() - log_odds("repaid", people, economy)[poor].mean()
    )
    assert native > 2.5 * gained.mean()


def test_the_order_of_equations_is_a_causal_order() -> None:
    known = {"economy", "prudence"}
    for name, causes in CAUSES.items():
        assert set(causes) <= known, name
        known.add(name)
    assert known - {"economy", "prudence", "income_hidden", "savings_hidden"} == set(datasets.loans(1).X)


def test_noise_comes_back_from_a_value() -> None:
    people, _ = people_of(pd.RangeIndex(5000), Economy.of(2, 1.0), (0, 2), "shock")
    pay = distribution_of("income", {**people.columns, "economy": Economy.of(2, 1.0)})
    inside = (people.columns["income"] > 8000) & (people.columns["income"] < 100_000)
    error = (pay.noise_of(people.columns["income"]) - people.income_noise)[inside]
    assert np.abs(error).max() < 50 / 8000 / 0.29  # half a step of the smallest income, in its noise


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("do", "words"),
    [
        ({"monthly_dept": 0}, "did you mean 'monthly_debt'"),
        ({3: 0}, "columns of loans"),
        ({"approved": "yes"}, "columns of loans"),
        ({"employment": "permanently"}, "spelling"),
        ({"savings": 30_000}, "from 0 to 20000"),
        ({"savings": -1}, "from 0 to 20000"),
        ({"savings": "much"}, "numbers"),
        ({"savings": float("inf")}, "finite"),
        ({"card_use": [1, 2]}, "each of 10 rows"),
        ({"card_use": pd.Series(1, index=[3, 10])}, "row numbers from 0 to 9"),
        ({"card_use": pd.Series(1, index=[3, 3])}, "more than once"),
        (pd.DataFrame({"card_use": 1}, index=["a"]), "row numbers"),
        ([("savings", 1)], "mapping"),
        (7, "mapping"),
    ],
)
def test_what_nobody_can_do(do: Any, words: str) -> None:
    makes: list[Callable[[], Any]] = [
        lambda: datasets.loans(10, do=do),
        lambda: datasets.loans_chunks(10, do=do),  # at once, not at the first chunk
        lambda: datasets.loans(10, do=lambda people: do),
    ]
    for make in makes:
        with pytest.raises((DatasetError, DataError), match=THREE_PARTS) as caught:
            make()
        assert words in str(caught.value)
