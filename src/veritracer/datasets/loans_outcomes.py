"""What follows in ``loans``: from an action its effects, and from a person's state the two outcomes.

``approved`` is the underwriter's decision, by criteria that an underwriter would name; ``repaid`` is whether
the loan, if it were granted, would be repaid. Neither reads sex, region or age; those act only through what
they cause. Each is a weighted sum plus logistic noise, so that its log odds are known exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from veritracer.datasets.loans_distributions import Codes, Flags, Floats
from veritracer.datasets.loans_equations import (
    BUSINESS,
    CATEGORIES,
    CAUSES,
    FIXED_TERM,
    MORTGAGE,
    OUT_OF_WORK,
    OWNER,
    SELF_EMPLOYED,
    TERMS,
    Columns,
    Economy,
    distribution_of,
)

Outcome = Literal["approved", "repaid"]

# What each counts in year 1, in log odds, and by which share that changes for each unit of shift.
POLICY = {
    "room": (2.0, 0.03),
    "buffer": (0.65, -0.05),
    "missed": (-0.65, 0.03),
    "card_use": (-2.5, 0.04),
    "history": (0.9, 0.02),
    "thin_file": (-0.6, 0.04),
    "tenure": (0.7, 0.02),
    "insecure_job": (-0.5, 0.06),
    "no_job": (-0.9, 0.04),
    "debt_to_income": (-3.6, 0.04),
    "loan_to_income": (-3.2, 0.03),
    "home": (0.35, -0.04),
    "education": (0.35, -0.10),
    "business": (-0.4, 0.04),
}
RISK = {
    "prudence": (1.1, 0.0),
    "room": (2.6, 0.03),
    "buffer": (0.4, 0.0),
    "debt_to_income": (-2.0, 0.03),
    "loan_to_income": (-2.0, 0.03),
    "term": (-0.6, 0.03),
    "card_use": (-0.4, 0.0),
    "tenure": (0.4, 0.0),
    "insecure_job": (-0.5, 0.06),
    "no_job": (-1.0, 0.04),
    "business": (-0.4, 0.04),
}
_CUTOFF, _RESILIENCE, _HARDSHIP = -0.65, 1.2, 2.0

_TAKE_HOME = 0.74
_HOME_COST = np.array([520.0, 560.0, 210.0, 170.0])  # a month, by housing: allowances, not the real rent
_LIVING, _EACH_DEPENDANT = 480.0, 190.0
_UNPROVED_INCOME = 0.85  # what a bank statement shows of an income without accounts


@dataclass(frozen=True)
class People:
    """A person's state in each row: true values of every column, what is not disclosed, and hidden traits.

    ``income_noise`` is what sets a person's pay apart from that of others with the same job and degree.
    """

    columns: Columns
    income_hidden: Flags
    savings_hidden: Flags
    prudence: Floats
    income_noise: Floats


# ---------------------------------------------------------------- actions


def act(before: People, actions: Mapping[str, Floats], economy: Economy) -> People:
    """The people after an action and its effects; NaN in ``actions`` is a cell that is not set.

    What is set is set, and is disclosed. Pay follows what causes it; a new job begins with no years in it;
    closing the last credit line means that it was paid off. Stocks and records (savings, debts, the file),
    life (age, home, children), the request, and what a person is like stay as they are.
    """
    given = {name: ~np.isnan(value) for name, value in actions.items()}
    now = dict(before.columns)
    for name, value in actions.items():
        mixed = np.where(given[name], value, now[name])
        now[name] = mixed.astype(np.int64) if name in CATEGORIES else mixed
    for name, followed in _effects(before, now, economy).items():
        now[name] = np.where(given[name], now[name], followed) if name in given else followed
    return replace(
        before,
        columns=now,
        income_hidden=before.income_hidden & ~given.get("income", np.False_),
        savings_hidden=before.savings_hidden & ~given.get("savings", np.False_),
    )


def _effects(before: People, now: Columns, economy: Economy) -> Columns:
    """Each variable that follows within an application's horizon, as if it were not set itself."""
    old = before.columns
    causes = [name for name in CAUSES["income"] if name != "economy"]
    paid_by_other_causes = np.logical_or.reduce([now[name] != old[name] for name in causes])
    pay = distribution_of("income", {**now, "economy": economy}).sample(before.income_noise)
    paid_off = (now["credit_lines"] == 0) & (old["credit_lines"] != 0)
    return {
        "income": np.where(paid_by_other_causes, pay, old["income"]),
        "years_employed": np.where(now["employment"] != old["employment"], 0, old["years_employed"]),
        "card_use": np.where(paid_off, 0.0, old["card_use"]),
        "monthly_debt": np.where(paid_off, 0.0, old["monthly_debt"]),
    }


# ---------------------------------------------------------------- outcomes


def log_odds(outcome: Outcome, people: People, economy: Economy) -> Floats:
    """The true log odds of the favourable outcome.

    The underwriter counts 85 % of an income without accounts, and no savings that are not disclosed; what
    people can bear depends on what they have, disclosed or not.
    """
    income, savings = people.columns["income"], people.columns["savings"]
    if outcome == "approved":
        counted = np.where(people.income_hidden, _UNPROVED_INCOME, 1.0) * income
        disclosed = np.where(people.savings_hidden, 0.0, savings)
        score = _weighted(POLICY, criteria(people, counted, disclosed, economy), economy)
        return score - (_CUTOFF + economy.caution)
    score = _weighted(RISK, criteria(people, income, savings, economy), economy)
    return score + (_RESILIENCE - _HARDSHIP * economy.distress)


def happens(log_odds: Floats, u: Floats) -> Flags:
    """Whether the outcome is favourable, by uniform noise: logistic, so that the log odds are exact."""
    flags: Flags = log_odds + np.log(u / (1.0 - u)) > 0.0
    return flags


def weight(table: Mapping[str, tuple[float, float]], name: str, economy: Economy) -> float:
    """What the criterion counts this year; it may vanish, but never turns into its opposite."""
    first, change = table[name]
    return first * max(0.0, 1.0 + change * economy.shift)


def _weighted(
    table: Mapping[str, tuple[float, float]], values: Mapping[str, Floats], economy: Economy
) -> Floats:
    return sum((weight(table, name, economy) * values[name] for name in table), start=np.zeros(()))


def criteria(people: People, income: Floats, savings: Floats, economy: Economy) -> dict[str, Floats]:
    """Everything that an outcome may depend on, with the income and the savings that count for it."""
    c = people.columns
    job, home = c["employment"], c["housing"]
    net = _TAKE_HOME * income / 12.0
    living = _HOME_COST[home] + _LIVING + _EACH_DEPENDANT * c["dependants"]
    living = living * economy.prices
    due = c["monthly_debt"] + instalment(c["loan_amount"], c["term_months"], economy.rate)
    return {
        "prudence": people.prudence,
        "room": np.clip((net - living - due) / net, -0.6, 0.6),
        "buffer": np.log1p(np.minimum(savings / living, 12.0)),
        "missed": np.minimum(c["missed_payments"], 4.0),
        "card_use": np.maximum(c["card_use"] - 20.0, 0.0) / 80.0,
        "history": np.minimum(c["history_years"], 15.0) / 15.0,
        "thin_file": (c["credit_lines"] == 0) * 1.0,
        "tenure": np.minimum(c["years_employed"], 10.0) / 10.0,
        "insecure_job": ((job == FIXED_TERM) | (job == SELF_EMPLOYED)) * 1.0,
        "no_job": (job == OUT_OF_WORK) * 1.0,
        "debt_to_income": np.minimum(c["monthly_debt"] / net, 0.6),
        "loan_to_income": np.minimum(c["loan_amount"] / income, 1.0),
        "term": np.array(TERMS)[c["term_months"]] / TERMS[-1],
        "home": ((home == OWNER) | (home == MORTGAGE)) * 1.0,
        "education": c["education"] / 4.0,
        "business": (c["purpose"] == BUSINESS) * 1.0,
    }


def instalment(amount: Floats, term: Codes, rate: float) -> Floats:
    """The monthly payment of an annuity loan; ``term`` is a position in ``TERMS``."""
    months, monthly = np.array(TERMS)[term], rate / 12.0
    return amount * monthly / (1.0 - (1.0 + monthly) ** -months)
