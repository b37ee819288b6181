"""The truth about ``loans``: does the probability that is said come true, row by row and after acting?"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri
from scipy.stats import kstest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from veritracer import datasets
from veritracer.datasets import loans_after, loans_truth
from veritracer.datasets.loans import FEATURES, people_of
from veritracer.datasets.loans_distributions import (
    LOG,
    LOGIT,
    PLAIN,
    Amount,
    Bernoulli,
    Categorical,
    Distribution,
    Floats,
    Masked,
    Poisson,
    ZeroInflated,
    sigmoid,
)
from veritracer.datasets.loans_model import Economy, Outcome, People, distribution_of, log_odds
from veritracer.encoding import Encoding
from veritracer.errors import DataError, DatasetError, DataWarning

tables: Any = import_module("veritracer.datasets.loans")  # the name in the package is the function

THREE_PARTS = r"(?s)^expected .+, got .+ — .+"
OUTCOMES: tuple[Outcome, ...] = ("approved", "repaid")
WORLDS: list[dict[str, Any]] = [{}, {"year": 4, "drift": 2.0}]
ROWS = 100_000
Z = 4.0  # standard errors; the draws are fixed, so that it cannot fail by chance


CASES = [
    pytest.param((outcome, world), marks=[pytest.mark.long] * bool(world), id=str((outcome, world)))
    for outcome in OUTCOMES
    for world in WORLDS
]


@pytest.fixture(scope="module", params=CASES)
def known(request: pytest.FixtureRequest) -> tuple[pd.DataFrame, Floats, Floats]:
    """Rows, what came of them (0 or 1), and the probability that is said to be true."""
    outcome, world = request.param
    data = datasets.loans(ROWS, outcome=outcome, random_state=5, **world)
    return data.X, (data.y == "yes").to_numpy(float), loans_truth(data.X, outcome=outcome, **world)


def excess(y: Floats, p: Floats) -> float:
    """How many standard errors more came true than was said."""
    return float((y - p).sum() / np.sqrt((p * (1 - p)).sum()))


# ---------------------------------------------------------------- it comes true


def test_what_is_said_comes_true_in_every_tenth(known: tuple[pd.DataFrame, Floats, Floats]) -> None:
    _, y, p = known
    assert ((p > 0) & (p < 1)).all()
    tenth = np.argsort(np.argsort(p)) * 10 // len(p)
    assert max(abs(excess(y[tenth == k], p[tenth == k])) for k in range(10)) < Z


def test_what_is_said_comes_true_for_every_kind_of_row(known: tuple[pd.DataFrame, Floats, Floats]) -> None:
    X, y, p = known
    kinds = {
        "income hidden": X["income"].isna(),
        "savings hidden": X["savings"].isna(),
        "both hidden": X["income"].isna() & X["savings"].isna(),
        "no savings": X["savings"] == 0,
        "savings at the end": X["savings"] == 20_000,
        "no lines": X["credit_lines"] == 0,
        "cards full": X["card_use"] >= 80,
        "cards empty": (X["card_use"] <= 5) & (X["credit_lines"] > 0),
        "many missed": X["missed_payments"] >= 3,
        "debts at the end": X["monthly_debt"] == 1500,
        "out of work": X["employment"] == "out of work",
        "young": X["age"] < 22,
        "women": X["sex"] == "female",
        "poor": X["income"] < 12_000,
    }
    for name, rows in kinds.items():
        assert rows.sum() > 50, name
        assert abs(excess(y[rows.to_numpy()], p[rows.to_numpy()])) < Z, name


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_no_model_knows_better(outcome: Outcome) -> None:
    data = datasets.loans(30_000, outcome=outcome)
    parts = data.split(test_size=0.5)
    encoding = Encoding.fit(data.schema, parts.X_train)
    train, test = (encoding.encode(X).numpy() for X in (parts.X_train, parts.X_test))
    y, p = parts.y_test == "yes", loans_truth(parts.X_test, outcome=outcome)
    boosted = HistGradientBoostingClassifier(max_iter=80, max_leaf_nodes=12, random_state=0)
    for model in (boosted, LogisticRegression(max_iter=2000)):
        said = model.fit(train, parts.y_train == "yes").predict_proba(test)[:, 1]
        assert log_loss(y, p) < log_loss(y, said)
        assert roc_auc_score(y, p) > roc_auc_score(y, said)
    assert 0.78 < roc_auc_score(y, p) < 0.90


def test_approval_is_exact_where_income_is_on_file() -> None:
    economy, rows = Economy.of(3, 1.0), pd.RangeIndex(2000)
    people, _ = people_of(rows, economy, (0, 3), "unrecorded")
    X = datasets.loans(2000, year=3).X
    shown = ~people.income_hidden
    exact = sigmoid(log_odds("approved", people, economy))
    assert loans_truth(X, year=3)[shown] == pytest.approx(exact[shown], rel=1e-12)
    # Of a hidden income only the distribution is known: right on average, and not row by row.
    assert 0.01 < np.abs(loans_truth(X, year=3) - exact)[~shown].mean() < 0.15


# ---------------------------------------------------------------- what is hidden


def shape_of(distribution: Distribution, rows: int) -> Floats:
    """Noise that covers the distribution evenly: uniform, or normal for amounts."""
    u = (np.arange(rows) + 0.5) / rows
    return ndtri(u) if isinstance(distribution, Amount) else u


@pytest.mark.parametrize(
    ("distribution", "values"),
    [
        (Amount(9.0, 0.4, LOG, 100.0, 8000.0, 20_000.0), np.arange(8000, 20_001, 100.0)),
        (Amount(0.3, 0.6, LOG, 100.0, 0.0, 5000.0, unit=800.0), np.arange(0, 5001, 100.0)),
        (Amount(-0.5, 0.8, LOGIT, 1.0, 0.0, 100.0, unit=100.0), np.arange(101.0)),
        (Amount(-1.0, 0.6, LOGIT, 10.0, 0.0, 300.0, unit=900.0), np.arange(0, 301, 10.0)),
        (Amount(2.6, 1.0, PLAIN, 1.0, 0.0, 6.0), np.arange(7.0)),
        (Poisson(np.array(0.7), 3), np.arange(4)),
        (Poisson(np.array(6.0), 6), np.arange(7)),
        (Categorical([0.0, 1.2, -0.4]), np.arange(3)),
        (Bernoulli(np.array(0.3)), np.array([False, True])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_scored_as_often_as_they_are_drawn(distribution: Distribution, values: Any) -> None:
    rows = 200_000
    said = np.exp(distribution.log_prob(values))
    assert said.sum() == pytest.approx(1.0, abs=1e-12)
    drawn = distribution.sample(shape_of(distribution, rows))
    counted = np.array([(drawn == value).mean() for value in values])
    assert counted == pytest.approx(said, abs=2 / rows)  # both ends of each interval of the noise


def test_nothing_and_masks_are_scored_as_often_as_they_are_drawn() -> None:
    rng = np.random.default_rng(0)
    saved = ZeroInflated(Amount(0.0, 0.6, LOG, 100.0, 0.0, 500.0, unit=200.0), np.array(0.2))
    values = np.arange(0, 501, 100.0)
    said = np.exp(saved.log_prob(values))
    drawn = saved.sample(rng.standard_normal(200_000), rng.random(200_000))
    assert said.sum() == pytest.approx(1.0)
    assert [(drawn == value).mean() for value in values] == pytest.approx(
        said, abs=4 * 0.5 / np.sqrt(200_000)
    )
    z = np.arange(-5, 5.1, 0.1)
    nodes, log_share = saved.nodes(z, -0.5 * z**2)
    weighted = [np.exp(log_share)[nodes == value].sum() for value in values]
    assert weighted == pytest.approx(said, abs=0.03)  # a node falls on one side of a step or the other
    masked = Masked(Poisson(np.full(2, 0.7), 3), np.array([True, False]))
    assert masked.sample(np.full(2, 0.999)).tolist() == [3, 0]
    assert masked.log_prob(np.array([1, 1]))[1] == 0.0


def hidden(rows: int, year: int) -> tuple[People, dict[str, Any], Economy]:
    """The people, the columns as they are seen, and the economy."""
    economy = Economy.of(year, 1.0)
    people, _ = people_of(pd.RangeIndex(rows), economy, (11, year), "shock")
    X = datasets.loans(rows, year=year, random_state=11).X
    return people, tables._read(X), economy


@pytest.mark.parametrize("year", [1, 6])
def test_prudence_is_where_its_posterior_says(year: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nodes that lie so close that a cumulative sum is a distribution function.
    monkeypatch.setattr(tables, "PRUDENCE", np.arange(-6, 6.01, 0.05))
    people, seen, economy = hidden(20_000, year)
    rows = ~(people.income_hidden | people.savings_hidden)
    ranks, means = [], []
    for part in np.array_split(np.flatnonzero(rows), 20):
        at, weights = tables.posterior({n: c[part] for n, c in seen.items()}, economy)
        weights, nodes = weights[:, 0, :, 0], at.prudence[0, 0, :, 0]
        below = weights * (nodes < people.prudence[part, None])
        ranks.append(below.sum(axis=1))
        means.append(weights @ nodes)
    truth = people.prudence[rows]
    assert kstest(np.concatenate(ranks), "uniform").statistic < 1.63 / np.sqrt(rows.sum()) + 0.01  # + a node
    mean = np.concatenate(means)
    assert np.corrcoef(mean, truth)[0, 1] > 0.8
    assert np.polyfit(mean, truth, 1) == pytest.approx([1.0, 0.0], abs=0.03)


@pytest.mark.long
def test_hidden_incomes_are_where_their_posterior_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "INCOME_NOISE", np.arange(-5, 5.01, 0.05))
    people, seen, economy = hidden(100_000, 1)
    rows = np.flatnonzero(people.income_hidden & ~people.savings_hidden)
    ranks = []
    for part in np.array_split(rows, 100):
        at, weights = tables.posterior({n: c[part] for n, c in seen.items()}, economy)
        below = at.income_noise[0, :, 0, 0] < people.income_noise[part, None]
        ranks.append((weights.sum(axis=(2, 3)) * below).sum(axis=1))
    assert len(rows) > 1000
    assert kstest(np.concatenate(ranks), "uniform").statistic < 1.63 / np.sqrt(len(rows)) + 0.01


@pytest.mark.long
def test_nodes_are_close_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    X = datasets.loans(20_000, year=2).X
    gaps = X["income"].isna() | X["savings"].isna()
    some = pd.concat([X[~gaps].head(500), X[gaps].head(300), X[X["income"].isna() & X["savings"].isna()]])
    usual = {outcome: loans_truth(some, outcome=outcome, year=2) for outcome in OUTCOMES}
    monkeypatch.setattr(tables, "PRUDENCE", np.arange(-7, 7.01, 0.1))
    monkeypatch.setattr(tables, "INCOME_NOISE", np.arange(-6, 6.01, 0.06))
    monkeypatch.setattr(tables, "SAVINGS_NOISE", np.arange(-5, 5.01, 0.2))
    for outcome, p in usual.items():
        closer = loans_truth(some, outcome=outcome, year=2)
        assert np.abs(closer - p).max() < 1e-3
        assert abs((closer - p).mean()) < 1e-5


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_integrals_agree_with_monte_carlo(outcome: Outcome) -> None:
    """Draws from the prior, weighted by how well they explain the row, for rows with each kind of gap."""
    X, economy = datasets.loans(20_000).X, Economy.of(1, 1.0)
    no_income, no_savings = X["income"].isna(), X["savings"].isna()
    rows = pd.concat(
        [
            X[no_income & ~no_savings].head(4),
            X[no_savings & ~no_income].head(2),
            X[no_income & no_savings].head(2),
        ]
    )
    seen, said = tables._read(rows), loans_truth(rows, outcome=outcome)
    for i in range(len(rows)):
        p, error = monte_carlo({n: c[i] for n, c in seen.items()}, outcome, economy)
        assert error < 0.005
        assert abs(said[i] - p) < 4 * error + 0.001


def monte_carlo(row: dict[str, Any], outcome: Outcome, economy: Economy) -> tuple[float, float]:
    rng, draws = np.random.default_rng(3), 200_000
    noise = {name: rng.standard_normal(draws) for name in ("prudence", "income", "savings")}
    known: dict[str, Any] = {n: np.full(draws, value) for n, value in row.items()}
    known |= {"economy": economy, "prudence": noise["prudence"]}
    if np.isnan(row["income"]):
        known["income"] = distribution_of("income", known).sample(noise["income"])
    told = (
        "housing",
        "credit_lines",
        "card_use",
        "monthly_debt",
        "missed_payments",
        "loan_amount",
        "term_months",
    )
    log_weight = sum(distribution_of(name, known).log_prob(known[name]) for name in told)
    saved = distribution_of("savings", known)
    if np.isnan(row["savings"]):
        known["savings"] = saved.sample(noise["savings"], rng.random(draws))
        log_weight = log_weight + distribution_of("savings_hidden", known).log_prob(True)
    else:
        log_weight = log_weight + saved.log_prob(known["savings"])
    flags = {n: np.full(draws, np.isnan(row[n])) for n in ("income", "savings")}
    people = People(
        {n: known[n] for n in row}, flags["income"], flags["savings"], known["prudence"], noise["income"]
    )
    chance, weight = sigmoid(log_odds(outcome, people, economy)), np.exp(log_weight - log_weight.max())
    weight = weight / weight.sum()
    mean = float(weight @ chance)
    return mean, float(np.sqrt((weight**2 * (chance - mean) ** 2).sum()))


# ---------------------------------------------------------------- after acting


def advised(people: pd.DataFrame) -> pd.DataFrame:
    """Advice of many kinds, some of it for everybody."""
    turn = np.arange(len(people)) % 4
    return people.assign(
        monthly_debt=np.where(turn == 0, people["monthly_debt"] // 20 * 10, people["monthly_debt"]),
        card_use=np.minimum(people["card_use"], 20),
        missed_payments=np.where(turn == 1, 0, people["missed_payments"]),
        employment=people["employment"].where(turn != 2, "permanent"),
        education=people["education"].where(turn != 3, "master"),
        savings=people["savings"].where(turn == 0, 6000.0),
        credit_lines=np.where(people.index % 7 == 0, 0, people["credit_lines"]),
    )


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_is_said_of_people_who_act_comes_true(outcome: Outcome) -> None:
    people = datasets.loans(60_000, year=2).X
    goal = advised(people)
    done = datasets.loans(60_000, year=2, outcome=outcome, do=goal.where(goal.ne(people)))
    y, p = (done.y == "yes").to_numpy(float), loans_truth(goal, people, outcome, year=2)
    tenth = np.argsort(np.argsort(p)) * 10 // len(p)
    assert max(abs(excess(y[tenth == k], p[tenth == k])) for k in range(10)) < Z
    for rows in (
        goal[name].ne(people[name]).to_numpy() for name in people if goal[name].ne(people[name]).any()
    ):
        assert abs(excess(y[rows], p[rows])) < Z


@pytest.mark.long
def test_rows_after_acting_are_those_of_the_simulator() -> None:
    people = datasets.loans(20_000, year=2).X
    goal = advised(people)
    done = datasets.loans(20_000, year=2, do=goal.where(goal.ne(people))).X
    after = loans_after(goal, people, year=2)
    pd.testing.assert_frame_equal(after.drop(columns="income"), done.drop(columns="income"))
    assert after["income"].isna().equals(done["income"].isna())
    # A person's pay is known to half a step, or only that it lies beyond the end of the range.
    inside = people["income"].between(8100, 99_900) & done["income"].between(8100, 99_900)
    assert (after["income"] - done["income"])[inside].abs().max() <= 200
    # Whoever acts twice, or says all of it at once, ends the same.
    pd.testing.assert_frame_equal(loans_after(after, people, year=2), after)
    for outcome in OUTCOMES:
        said = loans_truth(after, people, outcome, year=2)
        assert said == pytest.approx(loans_truth(goal, people, outcome, year=2), abs=1e-12)


def test_who_did_nothing_is_the_person_of_the_row() -> None:
    people = datasets.loans(3000).X
    pd.testing.assert_frame_equal(loans_after(people, people), people)
    for outcome in OUTCOMES:
        assert loans_truth(people, people, outcome) == pytest.approx(
            loans_truth(people, outcome=outcome), abs=1e-12
        )


def test_a_clean_file_is_no_better_risk_and_a_better_one_is() -> None:
    """Emptied cards and forgotten misses: others who always had such a file are good risks, these are not."""
    people = datasets.loans(3000).X
    people = people[people["missed_payments"] > 0]
    cleaned = people.assign(missed_payments=0)
    base = loans_truth(people, outcome="repaid")
    assert loans_truth(cleaned, people, "repaid") == pytest.approx(base, abs=1e-12)
    assert (loans_truth(cleaned, outcome="repaid") > base + 0.01).mean() > 0.9
    assert (loans_truth(cleaned, people, "approved") > loans_truth(people)).all()
    relieved = people.assign(monthly_debt=0)
    owing = (people["monthly_debt"] > 200).to_numpy()
    assert (loans_truth(relieved, people, "repaid") > base + 0.01)[owing].mean() > 0.9


def test_saving_buys_a_buffer_and_no_prudence() -> None:
    people = datasets.loans(3000).X
    # For the highest incomes, 10,000 is little: it tells less of prudence than no savings at all.
    people = people[(people["savings"] < 1000) & (people["income"] < 50_000)]
    saved = people.assign(savings=10_000.0)
    base, acted = loans_truth(people, outcome="repaid"), loans_truth(saved, people, "repaid")
    native = loans_truth(saved, outcome="repaid")
    assert (acted > base).all()
    assert (native > acted).all()
    assert (native - base).mean() > 2 * (acted - base).mean()


def test_a_good_model_of_repayment_can_be_gamed() -> None:
    """It reads symptoms as what they tell of people; for whoever only cleans the file they tell no more."""
    data = datasets.loans(20_000, outcome="repaid")
    parts = data.split()
    encoding = Encoding.fit(data.schema, parts.X_train)
    boosted = HistGradientBoostingClassifier(max_iter=80, max_leaf_nodes=12, random_state=0)
    boosted.fit(encoding.encode(parts.X_train).numpy(), parts.y_train == "yes")

    def claimed(X: pd.DataFrame) -> Floats:
        return boosted.predict_proba(encoding.encode(X).numpy())[:, 1]

    people = parts.X_test[claimed(parts.X_test) < 0.5]
    cleaned = people.assign(missed_payments=0, card_use=np.minimum(people["card_use"], 20))
    relieved = people.assign(monthly_debt=people["monthly_debt"] // 20 * 10)
    base = loans_truth(people, outcome="repaid")
    gain = {
        name: ((claimed(X) - claimed(people)).mean(), (loans_truth(X, people, "repaid") - base).mean())
        for name, X in (("symptoms", cleaned), ("debts", relieved))
    }
    assert gain["symptoms"][0] > 0.15 > 0.05 > gain["symptoms"][1]
    assert gain["debts"][1] > 0.05
    assert gain["debts"][0] < 1.5 * gain["debts"][1]


def test_hiding_savings_takes_them_from_the_file_and_not_from_the_person() -> None:
    people = datasets.loans(3000).X
    people = people[people["savings"] > 3000]
    silent = people.assign(savings=np.nan)
    assert (loans_truth(silent, people) < loans_truth(people)).all()
    base = loans_truth(people, outcome="repaid")
    assert loans_truth(silent, people, "repaid") == pytest.approx(base, abs=1e-12)


# ---------------------------------------------------------------- any table


def any_rows(count: int, seed: int) -> pd.DataFrame:
    """Legal cells in any combination, likely or not, ends and gaps among them."""
    rng = np.random.default_rng(seed)
    raw: dict[str, Any] = {}
    for feature in FEATURES:
        if feature.categories:
            raw[feature.name] = rng.choice(np.array(feature.categories, dtype=object), count)
            continue
        column = rng.uniform(feature.lower, feature.upper, count)
        column[rng.random(count) < 0.2] = feature.lower
        column[rng.random(count) < 0.2] = feature.upper
        if feature.missing == "impute":
            column[rng.random(count) < 0.2] = np.nan
        raw[feature.name] = column
    return pd.DataFrame(raw)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_any_legal_row_has_a_truth_wherever_it_came_from(outcome: Outcome) -> None:
    origin, frame = any_rows(400, 1), any_rows(400, 2)
    for rows in ((origin,), (frame, origin)):
        p = loans_truth(*rows, outcome=outcome, year=9, drift=10.0)
        assert np.isfinite(p).all()
        assert ((p > 0) & (p < 1)).all()
    after = loans_after(frame, origin)
    assert after.columns.tolist() == frame.columns.tolist()
    assert after["income"].isna().equals(frame["income"].isna())


def test_a_row_does_not_depend_on_its_neighbours_its_index_or_the_order_of_columns() -> None:
    people = datasets.loans(3000).X
    p = loans_truth(people, outcome="repaid")
    part = people.iloc[500:600].sample(frac=1.0, random_state=0)
    assert loans_truth(part, outcome="repaid") == pytest.approx(p[part.index], abs=1e-12)
    other = people[people.columns[::-1]].set_axis([f"r{i}" for i in range(len(people))])
    with_labels = other.assign(approved="yes", repaid="no")
    assert loans_truth(with_labels, people, "repaid") == pytest.approx(p, abs=1e-12)
    assert loans_after(with_labels, people).index.equals(other.index)


def test_a_row_after_acting_keeps_its_dtypes_and_what_was_not_touched() -> None:
    people = datasets.loans(200).X.astype({"years_employed": "int32", "card_use": "float64"})
    people.loc[3, "card_use"] = 12.5
    after = loans_after(people.assign(employment="fixed-term"), people)
    assert after["years_employed"].dtype == np.int32
    assert after.loc[3, "card_use"] == 12.5
    same = people["employment"] == "fixed-term"
    pd.testing.assert_frame_equal(after[same], people[same])


def test_values_beyond_the_range_count_as_its_end_with_a_warning() -> None:
    people = datasets.loans(20).X
    rich, richest = people.assign(savings=50_000.0, age=80), people.assign(savings=20_000.0, age=67)
    with pytest.warns(DataWarning, match=r"20 in 'age', 20 in 'savings'"):
        said = loans_truth(rich, outcome="repaid")
    assert said == pytest.approx(loans_truth(richest, outcome="repaid"))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda X: X.drop(columns="age"),
        lambda X: X.assign(shoe_size=43),
        lambda X: X.assign(employment="pirate"),
        lambda X: X.assign(age=np.nan),
        lambda X: X.assign(term_months=30),
        lambda X: X.assign(savings="much"),
        lambda X: X.assign(savings=np.inf),
        lambda X: X.head(0),
        lambda X: X.to_numpy()[:, :3],
        lambda X: 7,
    ],
)
def test_tables_that_are_none_of_loans(wrong: Any) -> None:
    people = datasets.loans(5).X
    for ask in (
        lambda: loans_truth(wrong(people)),
        lambda: loans_truth(people, wrong(people)),
        lambda: loans_after(wrong(people), people),
        lambda: loans_after(people, wrong(people)),
    ):
        with pytest.raises(DataError, match=THREE_PARTS):
            ask()


def test_other_people_and_other_questions_are_refused() -> None:
    people = datasets.loans(5).X
    for ask in (loans_truth, loans_after):
        with pytest.raises(DataError, match="5 rows before acting"):
            ask(people, people.head(4))
        with pytest.raises(DatasetError, match=THREE_PARTS):
            ask(people, people, year=0)
        with pytest.raises(DatasetError, match=THREE_PARTS):
            ask(people, people, drift=-1.0)
    with pytest.raises(DatasetError, match=THREE_PARTS):
        loans_truth(people, outcome="granted")
