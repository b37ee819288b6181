"""The rows of ``loans``: the structural equations in causal order, block by block, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.datasets import loans_decision as decision
from veritracer.datasets import loans_finances as finances
from veritracer.datasets import loans_people as people
from veritracer.datasets.loans_economy import Economy
from veritracer.datasets.loans_noise import BLOCK, Noise
from veritracer.datasets.loans_schema import FAVOURABLE, SCHEMA, TARGET, TEXT, UNFAVOURABLE
from veritracer.datasets.parts import Parts
from veritracer.errors import DatasetError, message

ROWS = 10_000
_MOST_DRIFT = 10.0

Columns = dict[str, NDArray[Any]]


def portfolio(rows: int, year: int, drift: float, random_state: int) -> Parts:
    """The table of one year with its labels and its schema."""
    frame = pd.concat(loans_chunks(rows, year=year, drift=drift, random_state=random_state))
    return Parts(frame.drop(columns=TARGET), frame[TARGET], SCHEMA, TEXT)


def loans_chunks(
    rows: int, chunk: int = 100_000, *, year: int = 1, drift: float = 1.0, random_state: int = 0
) -> Iterator[pd.DataFrame]:
    """Tables of up to ``chunk`` applications, ``rows`` in all: the features, then the target.

    Columns are in the schema's order. The rows are those of ``loans`` with the same arguments, whatever
    the size of a chunk; the index goes on.
    """
    _check(rows, chunk, year, drift, random_state)
    return _chunks(rows, chunk, Economy.of(year, drift), (random_state, year))


def _chunks(rows: int, chunk: int, economy: Economy, seed: tuple[int, int]) -> Iterator[pd.DataFrame]:
    for start in range(0, rows, chunk):
        stop = min(start + chunk, rows)
        blocks = range(start // BLOCK, (stop - 1) // BLOCK + 1)
        pieces = [_columns(Noise.of_block(*seed, block), economy) for block in blocks]
        kept = slice(start - blocks.start * BLOCK, stop - blocks.start * BLOCK)
        whole = {name: np.concatenate([piece[name] for piece in pieces])[kept] for name in pieces[0]}
        yield _table(whole, start, stop)


def _columns(noise: Noise, economy: Economy) -> Columns:
    """Every column of a block, causes before effects; categories are still positions."""
    person = _person(noise, economy)
    money = _money(noise, economy, person)
    known = {**person, **money}
    no_income = finances.hides_income(noise, person["employment"], person["years_employed"])
    no_savings = finances.hides_savings(noise, money["savings"], person["age"])
    score = decision.criteria(known, no_income, no_savings, economy)
    known[TARGET] = decision.approved(score, noise.uniform["unrecorded"], economy).astype(np.int64)
    known["income"] = np.where(no_income, np.nan, known["income"])
    known["savings"] = np.where(no_savings, np.nan, known["savings"])
    return known


def _person(noise: Noise, economy: Economy) -> Columns:
    age, sex, region = people.age(noise, economy), people.sex(noise), people.region(noise)
    education = people.education(noise, age, region)
    job = people.employment(noise, economy, age, education, region)
    income = people.income(noise, economy, age=age, sex=sex, region=region, education=education, job=job)
    return {
        "age": age,
        "sex": sex,
        "region": region,
        "education": education,
        "dependants": people.dependants(noise, age),
        "housing": people.housing(noise, age, income),
        "employment": job,
        "years_employed": people.years_employed(noise, age, education, job),
        "income": income,
    }


def _money(noise: Noise, economy: Economy, person: Mapping[str, NDArray[Any]]) -> Columns:
    age, income, job = person["age"], person["income"], person["employment"]
    children, housing = person["dependants"], person["housing"]
    history = finances.history_years(noise, age)
    lines = finances.credit_lines(noise, history, income)
    use = finances.card_use(noise, lines, income, children)
    debt = finances.monthly_debt(noise, lines, income)
    purpose = finances.purpose(noise, age, housing, job, use)
    amount = finances.loan_amount(noise, purpose, income)
    return {
        "savings": finances.savings(noise, income, age, children, housing),
        "monthly_debt": debt,
        "credit_lines": lines,
        "card_use": use,
        "history_years": history,
        "missed_payments": finances.missed_payments(
            noise, economy, lines=lines, use=use, debt=debt, income=income, job=job
        ),
        "purpose": purpose,
        "loan_amount": amount,
        "term_months": finances.term_months(noise, amount, income),
    }


def _table(columns: Columns, start: int, stop: int) -> pd.DataFrame:
    """The columns as raw values: categories by name, whole numbers as such unless some are missing."""
    raw: dict[str, Any] = {}
    for feature in SCHEMA.features:
        column = columns[feature.name]
        if feature.categories:
            raw[feature.name] = pd.Series(list(feature.categories)).array.take(column)
        else:
            raw[feature.name] = column if feature.missing == "impute" else column.astype(np.int64)
    raw[TARGET] = pd.Series([UNFAVOURABLE, FAVOURABLE]).array.take(columns[TARGET])
    return pd.DataFrame(raw, index=pd.RangeIndex(start, stop))


def _check(rows: int, chunk: int, year: int, drift: float, random_state: int) -> None:
    for name, value, least in (
        ("rows", rows, 1),
        ("chunk", chunk, 1),
        ("year", year, 1),
        ("random_state", random_state, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            remedy = f"pass a whole number from {least} on"
            raise DatasetError(message(f"{name} of at least {least}", repr(value), remedy))
    if not 0.0 <= drift <= _MOST_DRIFT:  # NaN fails too
        remedy = "0 is no drift, 1 the default, 2 and more strong"
        raise DatasetError(message(f"a drift from 0 to {_MOST_DRIFT:g}", repr(drift), remedy))
