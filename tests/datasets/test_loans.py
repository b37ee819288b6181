"""The synthetic lending portfolio: what a lender would check, and what a stream of it promises."""

from __future__ import annotations

import hashlib
import tracemalloc
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import veritracer as vt
from veritracer import datasets
from veritracer.datasets.loans_distributions import BLOCK, BlockNoise, Categorical, Poisson
from veritracer.datasets.loans_model import POLICY, RISK, Economy, Outcome, instalment, weight
from veritracer.encoding import Encoding
from veritracer.errors import DatasetError

THREE_PARTS = r"(?s)^expected .+, got .+ — .+"


@pytest.fixture(scope="module")
def many() -> pd.DataFrame:
    """Enough rows that a share is known to half a percentage point (three standard errors)."""
    data = datasets.loans(rows=100_000)
    return data.X.assign(approved=data.y)


# ---------------------------------------------------------------- the same rows, however they are asked for


def test_load_needs_no_file_and_is_year_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERITRACER_DATA", raising=False)
    data = vt.datasets.load("loans")
    pd.testing.assert_frame_equal(data.X, datasets.loans(year=1).X)
    assert data.X.shape == (datasets.info("loans").rows, 18)
    assert (data.schema.target, data.schema.favourable, data.schema.unfavourable) == ("approved", "yes", "no")
    assert data.X.index.equals(data.y.index)
    assert (data.licence, datasets.info("loans").path) == ("Apache-2.0", None)
    assert datasets.info("loans").how.startswith("bundled, no file needed")


def test_a_row_does_not_depend_on_how_many_are_asked_for() -> None:
    few, more = datasets.loans(rows=700), datasets.loans(rows=2 * BLOCK + 5)
    pd.testing.assert_frame_equal(few.X, more.X.head(700))
    assert few.y.equals(more.y.head(700))


@pytest.mark.parametrize("outcome", ["approved", "repaid"])
@pytest.mark.parametrize("chunk", [1000, BLOCK, BLOCK + 1, 10**6])
def test_a_row_does_not_depend_on_the_size_of_a_chunk(chunk: int, outcome: Outcome) -> None:
    rows = 2 * BLOCK + 5
    whole = datasets.loans(rows=rows, year=2, random_state=7, outcome=outcome)
    pieces = list(datasets.loans_chunks(rows, chunk, year=2, random_state=7, outcome=outcome))
    assert [len(piece) for piece in pieces[:-1]] == [chunk] * (len(pieces) - 1)
    pd.testing.assert_frame_equal(pd.concat(pieces), whole.X.assign(**{outcome: whole.y}))


def test_the_rows_are_these_on_every_machine() -> None:
    text = datasets.loans(rows=1000).X.to_csv(index=False, lineterminator="\n")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "e9af7a7f74c827b7"


@pytest.mark.parametrize(
    ("world", "digest"),
    [
        ({}, "614371b034e15b0a"),
        ({"year": 3, "drift": 2.0, "random_state": 7}, "6338f59973ce1de0"),
        ({"year": 10, "drift": 5.0, "random_state": 3}, "46ca9c4603d96445"),
    ],
)
def test_rows_and_decisions_are_those_from_before_there_was_repaid(
    world: dict[str, Any], digest: str
) -> None:
    data = datasets.loans(rows=2000, **world)
    text = data.X.assign(approved=data.y).to_csv(index=False, lineterminator="\n")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest
    pd.testing.assert_frame_equal(datasets.loans(rows=2000, outcome="repaid", **world).X, data.X)


def test_seeds_and_years_are_other_people() -> None:
    first = datasets.loans(rows=1000).X
    for other in (datasets.loans(1000, random_state=1), datasets.loans(1000, year=2, drift=0.0)):
        assert (first["income"] != other.X["income"]).mean() > 0.9


def test_year_one_knows_no_drift() -> None:
    pd.testing.assert_frame_equal(datasets.loans(500, drift=0.0).X, datasets.loans(500, drift=3.0).X)


def test_a_stream_of_any_length_holds_one_chunk_at_a_time() -> None:
    for _ in datasets.loans_chunks(10**9, 20_000):  # what is imported on first use does not count
        break
    tracemalloc.start()
    for piece in islice(datasets.loans_chunks(10**9, 20_000), 5):
        assert len(piece) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 20,000 rows are 19 columns of 8 bytes (3 MB), the noise of the blocks and intermediate results.
    assert peak < 40 * 2**20


# ---------------------------------------------------------------- a lender would not laugh


def test_what_can_not_be_is_not(many: pd.DataFrame) -> None:
    assert many["age"].between(18, 67).all()
    assert (many["years_employed"] <= many["age"] - 16).all()
    assert (many["history_years"] <= many["age"] - 18).all()
    assert (many.loc[many["employment"] == "out of work", "years_employed"] == 0).all()
    without = many["credit_lines"] == 0
    assert (many.loc[without, ["monthly_debt", "missed_payments", "card_use"]] == 0).all().all()
    assert (many.loc[many["income"].isna(), "employment"] == "self-employed").all()
    assert (many.loc[many["education"] == "master", "age"] >= 23).all()


def test_every_value_is_legal_and_comes_back() -> None:
    for year in (1, 10):
        data = datasets.loans(20_000, year=year, drift=2.0)
        encoding = Encoding.fit(data.schema, data.X)
        x = encoding.encode(data.X, out_of_range="refuse")
        pd.testing.assert_frame_equal(encoding.decode(x, original=data.X), data.X)
        pd.testing.assert_frame_equal(encoding.decode(x), data.X)


def test_every_feature_says_what_it_is_and_what_may_change() -> None:
    schema = datasets.load("loans").schema
    assert all(feature.note for feature in schema.features)
    assert all(f.lower is not None and f.upper is not None for f in schema.features if f.is_numeric)
    actions = {feature.name: feature.action for feature in schema.features}
    assert {actions[name] for name in ("age", "sex", "region", "income")} == {"immutable"}
    assert {actions[name] for name in ("education", "years_employed", "history_years")} == {"increase_only"}
    assert actions["missed_payments"] == "decrease_only"
    assert [f.name for f in schema.features if f.missing == "impute"] == ["income", "savings"]
    assert {f.kind for f in schema.features} == {"integer", "binary", "categorical", "ordinal"}
    assert vt.Schema.from_json(schema.to_json()) == schema


def test_shares_and_amounts_are_those_of_a_lender(many: pd.DataFrame) -> None:
    assert 0.45 < (many["approved"] == "yes").mean() < 0.65
    log_income = np.log(many["income"].dropna())
    assert abs(log_income.skew()) < 0.5  # log-normal: income itself leans far to the right
    assert many["income"].skew() > 0.8
    to_income = (many["monthly_debt"] / (many["income"] / 12)).dropna()
    assert 0.04 < to_income.median() < 0.20
    assert to_income.quantile(0.99) < 0.60
    assert 0.01 < many["income"].isna().mean() < 0.05
    assert 0.03 < many["savings"].isna().mean() < 0.10
    assert 0.02 < (many["employment"] == "out of work").mean() < 0.10


@pytest.mark.parametrize(
    ("one", "other", "sign"),
    [
        ("age", "income", 1),
        ("age", "history_years", 1),
        ("income", "savings", 1),
        ("income", "loan_amount", 1),
        ("credit_lines", "monthly_debt", 1),
        ("loan_amount", "term_months", 1),
        ("card_use", "savings", -1),
        ("card_use", "missed_payments", 1),
        ("savings", "missed_payments", -1),
        ("dependants", "savings", -1),
    ],
)
def test_relations_have_the_right_sign(many: pd.DataFrame, one: str, other: str, sign: int) -> None:
    assert sign * many[one].corr(many[other]) > 0.01  # three standard errors of 100,000 rows


@pytest.mark.parametrize(
    ("name", "sign"),
    [
        ("income", 1),
        ("savings", 1),
        ("years_employed", 1),
        ("history_years", 1),
        ("missed_payments", -1),
        ("card_use", -1),
        ("dependants", -1),
    ],
)
def test_approval_follows_what_a_lender_looks_at(many: pd.DataFrame, name: str, sign: int) -> None:
    assert sign * many[name].corr((many["approved"] == "yes").astype(float)) > 0.03


def test_a_good_model_is_good_and_looks_at_the_right_columns() -> None:
    parts = datasets.loans(rows=20_000).split()
    encoding = Encoding.fit(datasets.loans(10).schema, parts.X_train)
    train, test = (encoding.encode(X).numpy() for X in (parts.X_train, parts.X_test))
    boosted = HistGradientBoostingClassifier(max_iter=80, max_leaf_nodes=12, random_state=0)
    for model in (boosted, LogisticRegression(max_iter=2000)):
        model.fit(train, parts.y_train)
        assert 0.80 < _auc(model, test, parts.y_test) < 0.88
    base, rng, lost = _auc(boosted, test, parts.y_test), np.random.default_rng(0), {}
    for name in parts.X_test.columns:
        shuffled = parts.X_test.assign(**{name: rng.permutation(parts.X_test[name])})
        lost[name] = base - _auc(boosted, encoding.encode(shuffled).numpy(), parts.y_test)
    best = sorted(lost, key=lambda name: -lost[name])
    assert set(best[:5]) <= {
        *("income", "savings", "missed_payments", "card_use", "monthly_debt", "loan_amount"),
    }
    assert max(lost[name] for name in ("sex", "region", "age")) < 0.005


def test_repayment_can_be_learned_and_is_another_question(many: pd.DataFrame) -> None:
    data = datasets.loans(rows=20_000, outcome="repaid")
    assert (data.schema.target, data.y.name, data.schema.favourable) == ("repaid", "repaid", "yes")
    assert "would be repaid" in data.description
    assert 0.60 < (data.y == "yes").mean() < 0.75
    same = data.y.to_numpy() == many["approved"].head(20_000).to_numpy()
    assert 0.6 < same.mean() < 0.8
    parts = data.split()
    encoding = Encoding.fit(data.schema, parts.X_train)
    train, test = (encoding.encode(X).numpy() for X in (parts.X_train, parts.X_test))
    boosted = HistGradientBoostingClassifier(max_iter=80, max_leaf_nodes=12, random_state=0)
    for model in (boosted, LogisticRegression(max_iter=2000)):
        assert 0.78 < _auc(model.fit(train, parts.y_train), test, parts.y_test) < 0.88


def _auc(model: HistGradientBoostingClassifier | LogisticRegression, x: np.ndarray, y: pd.Series) -> float:
    return float(roc_auc_score(y == "yes", model.predict_proba(x)[:, 1]))


def test_groups_differ_only_through_what_causes_the_decision(many: pd.DataFrame) -> None:
    """Women are approved less often, and no longer so among people with about the same income."""
    rate = (many["approved"] == "yes").groupby(many["sex"]).mean()
    assert rate["male"] - rate["female"] > 0.01
    band = many[many["income"].between(35_000, 36_000)]
    alike = (band["approved"] == "yes").groupby(band["sex"]).mean()
    assert abs(alike["male"] - alike["female"]) < 0.055  # three standard errors of some 3,000 rows


# ---------------------------------------------------------------- years


def test_the_economy_gets_harder_and_levels_off() -> None:
    years = [Economy.of(year, 1.0) for year in range(1, 40)]
    assert years[0] == Economy.of(1, 5.0) == Economy.of(9, 0.0)
    for name in ("shift", "rate", "prices", "unemployment", "caution"):
        values = [getattr(economy, name) for economy in years]
        assert values == sorted(values)
    assert years[-1].shift == pytest.approx(years[-2].shift, abs=0.01)
    assert years[-1].rate < 0.12
    for table in (POLICY, RISK):
        for name, (first, _) in table.items():
            assert np.sign(weight(table, name, years[-1])) in (0.0, np.sign(first))


@pytest.mark.parametrize("outcome", ["approved", "repaid"])
def test_outcomes_get_worse_with_the_years_and_with_the_knob(outcome: Outcome) -> None:
    by_year = [_favourable(outcome, year=year) for year in (1, 2, 3, 5)]
    assert by_year == sorted(by_year, reverse=True)
    by_drift = [_favourable(outcome, year=2, drift=drift) for drift in (0.0, 1.0, 2.0, 4.0)]
    assert by_drift == sorted(by_drift, reverse=True)
    assert abs(by_drift[0] - by_year[0]) < 0.015  # other people, the same world: three standard errors


def _favourable(outcome: Outcome, year: int, drift: float = 1.0) -> float:
    data = datasets.loans(20_000, year=year, drift=drift, outcome=outcome)
    return float((data.y == "yes").mean())


def test_the_estimator_trains_on_it_and_proposes_what_a_person_may_do() -> None:
    """Warnings are errors here: none may come from fitting, from year 2, or from a proposal."""
    data = datasets.loans(rows=2000)
    model = vt.VeriTraCER(schema=data.schema, panel=None, epochs=2, random_state=0).fit(data.X, data.y)
    later = datasets.loans(rows=300, year=2, drift=3.0).X
    proposed = model.propose(later)
    fixed = [feature.name for feature in data.schema.features if feature.action == "immutable"]
    pd.testing.assert_frame_equal(proposed[fixed], later[fixed])
    assert (proposed["missed_payments"] <= later["missed_payments"]).all()
    assert (proposed["history_years"] >= later["history_years"]).all()
    assert len(model.certify(later, proposed).certified) == 300


# ---------------------------------------------------------------- the parts


def test_noise_is_uniform_normal_and_unrelated() -> None:
    noise = BlockNoise.draw(0, 1, 0)
    columns = np.stack([*noise.uniform.values(), *noise.normal.values()])
    related = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(related).max() < 5 / np.sqrt(BLOCK)  # five standard errors, for 300 pairs
    for u in noise.uniform.values():
        assert 0.0 < u.min() < 0.01
        assert 0.99 < u.max() < 1.0
    for z in noise.normal.values():
        assert abs(z.mean()) < 5 / np.sqrt(BLOCK)
        assert abs((z**4).mean() - 3.0) < 5 * np.sqrt(96 / BLOCK)  # the variance of z**4 is 96


def test_categories_and_counts_have_the_shares_that_they_should() -> None:
    u = (np.arange(10_000) + 0.5) / 10_000
    picked = Categorical([np.log(share) for share in (0.5, 0.2, 0.3)]).sample(u)
    assert np.bincount(picked).tolist() == [5000, 2000, 3000]
    counts = np.bincount(Poisson(np.full(10_000, 0.7), 3).sample(u))
    wanted = [np.exp(-0.7), 0.7 * np.exp(-0.7), 0.245 * np.exp(-0.7)]
    assert counts[:3] / 10_000 == pytest.approx(wanted, abs=1e-4)  # the spacing of u
    assert counts.sum() == 10_000


def test_the_page_has_the_weights_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/loans.md").read_text(encoding="utf-8")
    found: dict[str, dict[str, tuple[float, float]]] = {"approved": {}, "repaid": {}}
    rows = page.partition("| criterion |")[2].partition("\n\n")[0].splitlines()[2:]
    for row in rows:
        names, *numbers, _ = (cell.strip().replace("−", "-") for cell in row.strip("|").split("|"))
        for outcome, weights, changes in (("approved", *numbers[:2]), ("repaid", *numbers[2:])):
            both = zip(names.split(", "), weights.split(", "), (changes or "0 %").split(", "), strict=False)
            for name, value, change in both:
                if value:
                    found[outcome][name.strip("`")] = (float(value), float(change.strip(" %")) / 100)
    for outcome, table in (("approved", POLICY), ("repaid", RISK)):
        assert {n: pytest.approx(v) for n, v in found[outcome].items()} == table


def test_an_instalment_repays_the_loan() -> None:
    owed, paid = 9000.0, float(instalment(np.array([9000.0]), np.array([1]), 0.06)[0])
    for _ in range(24):
        owed = owed * 1.005 - paid
    assert owed == pytest.approx(0.0, abs=1e-8)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 0},
        {"rows": 2.5},
        {"rows": True},
        {"year": 0},
        {"drift": -0.1},
        {"drift": float("nan")},
        {"drift": 11.0},
        {"random_state": -1},
        {"random_state": None},
        {"outcome": "granted"},
    ],
)
def test_wrong_arguments(wrong: dict[str, object]) -> None:
    with pytest.raises(DatasetError, match=THREE_PARTS):
        datasets.loans(**{"rows": 10, **wrong})
    with pytest.raises(DatasetError, match=THREE_PARTS):  # at once, not at the first chunk
        datasets.loans_chunks(**{"rows": 10, **wrong})


def test_no_variant_of_the_paper_no_chunk_of_nothing_no_download() -> None:
    with pytest.raises(DatasetError, match=THREE_PARTS):
        datasets.load("loans", variant="paper")
    with pytest.raises(DatasetError, match="chunk"):
        datasets.loans_chunks(10, 0)
    with pytest.raises(DatasetError, match="no file needed"):
        datasets.fetch("loans", data_dir=".")
