"""Define the causal model behind ``loans``: one equation for each variable.

The arguments of an equation are the causes of its variable, and it returns the distribution given them.
``EQUATIONS`` is therefore the causal graph, with causes before effects. Categories are positions in their
lists. *Prudence*, a trait that no table records, is a common cause of savings, debts, card use, missed
payments and, most of all, of repayment.

Actions have effects, and a person's state determines two outcomes. ``approved`` is the underwriter's decision
by plausible criteria; ``repaid`` is the repayment of the loan if it were granted. Neither depends on sex,
region or age directly. Each is a weighted sum plus logistic noise, so that its log odds are known exactly.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veritracer.datasets.loans_distributions import (
    LOG,
    LOGIT,
    PLAIN,
    Amount,
    Bernoulli,
    BlockNoise,
    Categorical,
    Codes,
    Flags,
    Floats,
    Masked,
    Poisson,
    Sampler,
    Transformed,
    ZeroInflated,
    sigmoid,
)

Columns = dict[str, NDArray[Any]]

SEXES = ("female", "male")
REGIONS = ("capital", "coast", "north", "south", "valley")
EDUCATION = ("basic", "secondary", "vocational", "bachelor", "master")
EMPLOYMENT = ("permanent", "public service", "fixed-term", "self-employed", "out of work")
HOUSING = ("rent", "mortgage", "owner", "with family")
PURPOSES = ("car", "home improvement", "debt consolidation", "education", "business", "household")
TERMS = (12, 24, 36, 48, 60, 72, 84)
CATEGORIES: dict[str, tuple[str, ...] | tuple[int, ...]] = {
    "sex": SEXES,
    "region": REGIONS,
    "education": EDUCATION,
    "employment": EMPLOYMENT,
    "housing": HOUSING,
    "purpose": PURPOSES,
    "term_months": TERMS,
}
FIXED_TERM, SELF_EMPLOYED, OUT_OF_WORK = 2, 3, 4
RENT, MORTGAGE, OWNER = 0, 1, 2
BUSINESS = 4

INCOMES, AMOUNTS = (8000.0, 100_000.0), (1000.0, 30_000.0)
MOST_SAVINGS, MOST_DEBT = 20_000.0, 1500.0
MOST_DEPENDANTS, MOST_TENURE, MOST_HISTORY, MOST_LINES, MOST_MISSED = 5, 30, 30, 10, 6

_REGION_SHARES = (0.26, 0.22, 0.16, 0.20, 0.16)
_REGION_PAY = np.array([0.16, 0.02, -0.07, -0.02, -0.05])
_REGION_JOBS = np.array([-0.20, 0.0, 0.35, 0.10, 0.0])
_SCHOOL_YEARS = np.array([0, 2, 3, 5, 7])
_JOB_PAY = np.array([0.05, 0.02, -0.15, 0.02, -0.60])
_TENURE_POWER = np.array([1.4, 1.1, 4.0, 1.7, 1.0])
_PURPOSE_SIZE = np.array([0.25, 0.30, 0.20, -0.15, 0.45, -0.55])

_PACE, _MOST_SHIFT = 0.7, 6.0


@dataclass(frozen=True)
class Economy:
    """State of one year; ``shift``, the change since year 1, is 0 there.

    Parameters
    ----------
    rate : yearly interest on a new loan.
    wages, prices : levels, 1 in year 1; prices rise faster.
    unemployment : additional log odds of being out of work.
    youth, precarity : shifts towards younger applicants and insecure jobs.
    distress : increase of the logarithm of missed payments.
    caution : additional log odds that an approval requires.
    """

    shift: float
    rate: float
    wages: float
    prices: float
    unemployment: float
    youth: float
    precarity: float
    distress: float
    caution: float

    @classmethod
    def of(cls, year: int, drift: float) -> Economy:
        """Return the economy of a year: the shift grows by 0.7 a year (times the drift), up to 6."""
        shift = _MOST_SHIFT * math.tanh(_PACE * drift * (year - 1) / _MOST_SHIFT)
        return cls(
            shift=shift,
            rate=0.060 + 0.004 * shift,
            wages=math.exp(0.01 * shift),
            prices=math.exp(0.012 * shift),
            unemployment=0.05 * shift,
            youth=0.03 * shift,
            precarity=0.05 * shift,
            distress=0.025 * shift,
            caution=0.01 * shift,
        )


# ---------------------------------------------------------------- people, work and housing


def age(economy: Economy) -> Transformed:
    """Return ages from 18 to 67, mostly in the thirties; younger in later years (a new online channel)."""

    def years(z: Floats) -> Codes:
        return (18 + np.floor(50 * sigmoid(-0.40 - economy.youth + 0.95 * z))).astype(np.int64)

    return Transformed(years)


def sex() -> Transformed:
    """Return the sex of applicants: more men than women apply."""
    return Transformed(lambda u: (u > 0.46).astype(np.int64))


def region() -> Categorical:
    """Return the region: a cause of pay and of unemployment, and of nothing else."""
    return Categorical([np.log(share) for share in _REGION_SHARES])


def education(age: Codes, region: Codes) -> Transformed:
    """Return the degree: higher for younger people and in the capital; each needs some years of school."""

    def attained(z: Floats) -> Codes:
        latent = z - 0.012 * (age - 40) + 0.35 * (region == 0)
        possible = np.searchsorted(_SCHOOL_YEARS, age - 16, side="right") - 1
        reached: Codes = np.searchsorted([-1.1, -0.2, 0.55, 1.25], latent)
        return np.minimum(reached, possible)

    return Transformed(attained)


def employment(age: Codes, education: Codes, region: Codes, economy: Economy) -> Categorical:
    """Return the job: insecure for young people, fewer jobs for the less educated and in some regions."""
    years = age - 40.0
    return Categorical(
        [
            0.0,
            -1.9 + 0.18 * education,
            -1.5 - 0.035 * years + economy.precarity,
            -1.75 + 0.012 * years + economy.precarity,
            -2.1 - 0.30 * education - 0.012 * years + _REGION_JOBS[region] + economy.unemployment,
        ]
    )


def income(
    age: Codes, sex: Codes, region: Codes, education: Codes, employment: Codes, economy: Economy
) -> Amount:
    """Return yearly gross income in steps of 100, log-normal: by education, experience, job, region and sex.

    Women earn 8 % less for the same work here, as they do in most places: recourse should show it.
    """
    experience = age - 18.0 - _SCHOOL_YEARS[education]
    log_pay = np.log(21_500 * economy.wages) + 0.13 * education + 0.024 * experience - 0.00038 * experience**2
    log_pay = log_pay + (_JOB_PAY[employment] + _REGION_PAY[region] + 0.08 * sex)
    spread = np.where(employment == SELF_EMPLOYED, 0.48, 0.29)
    return Amount(log_pay, spread, LOG, 100.0, *INCOMES)


def dependants(age: Codes) -> Poisson:
    """Return the number of dependants, from none to five, with a maximum at age 42."""
    return Poisson(0.12 + 1.15 * np.exp(-(((age - 42) / 11.0) ** 2)), MOST_DEPENDANTS)


def housing(age: Codes, income: Floats) -> Categorical:
    """Return the housing: with age and income from the parents' home to rent, a mortgage and ownership."""
    years, means = (age - 40) / 10.0, np.log(income / 32_000)
    return Categorical(
        [
            0.0,
            -0.35 + 0.25 * years - 0.15 * years**2 + 1.1 * means,
            -1.5 + 0.75 * years + 0.6 * means,
            -2.2 - 1.1 * years - 0.6 * means,
        ]
    )


def years_employed(age: Codes, education: Codes, employment: Codes) -> Transformed:
    """Return whole years in the present job: a share of the years since school, 0 without a job."""
    since_school = np.maximum(age - 16 - _SCHOOL_YEARS[education], 0)

    def years(u: Floats) -> Codes:
        some = np.floor(u ** _TENURE_POWER[employment] * (since_school + 0.999))
        return np.where(employment == OUT_OF_WORK, 0, np.minimum(some, MOST_TENURE)).astype(np.int64)

    return Transformed(years)


# ---------------------------------------------------------------- money and request


def history_years(age: Codes) -> Transformed:
    """Return whole years since the first credit, at 18 or later."""

    def years(u: Floats) -> Codes:
        return np.minimum(np.floor(u**0.7 * (age - 18 + 0.999)), MOST_HISTORY).astype(np.int64)

    return Transformed(years)


def credit_lines(history_years: Codes, income: Floats) -> Poisson:
    """Return the number of open cards and loans, which grows with time and income."""
    return Poisson(np.exp(-0.1 + 0.55 * np.log1p(history_years) + 0.35 * np.log(income / 32_000)), MOST_LINES)


def savings(income: Floats, age: Codes, dependants: Codes, housing: Codes, prudence: Floats) -> ZeroInflated:
    """Return savings in steps of 100: more with prudence, age and income, fewer with dependants."""
    months = 0.25 + 0.75 * prudence + 0.018 * (age - 40) - 0.12 * dependants
    months = months + (0.25 * (housing == OWNER) - 0.15 * (housing == RENT)) + 0.35 * np.log(income / 32_000)
    saved = Amount(months, 0.65, LOG, 100.0, 0.0, MOST_SAVINGS, unit=income / 12.0)
    return ZeroInflated(saved, sigmoid(-2.2 - 0.9 * prudence))


def card_use(credit_lines: Codes, income: Floats, dependants: Codes, prudence: Floats) -> Masked:
    """Return the percentage of the card limits in use, 0 without a credit line."""
    logit = -0.55 - 0.85 * prudence - 0.5 * np.log(income / 32_000) + 0.12 * dependants
    return Masked(Amount(logit, 0.75, LOGIT, 1.0, 0.0, 100.0, unit=100.0), credit_lines > 0)


def monthly_debt(credit_lines: Codes, income: Floats, prudence: Floats) -> Masked:
    """Return monthly payments on debts without the home, in steps of 10; 0 without a credit line."""
    logit = -2.9 + 0.13 * credit_lines - 0.35 * prudence
    return Masked(Amount(logit, 0.60, LOGIT, 10.0, 0.0, MOST_DEBT, unit=income / 12.0), credit_lines > 0)


def missed_payments(
    credit_lines: Codes,
    card_use: Floats,
    monthly_debt: Floats,
    income: Floats,
    employment: Codes,
    prudence: Floats,
    economy: Economy,
) -> Masked:
    """Return payments missed in 24 months: more with debts and full cards, fewer with prudence."""
    strain = 3.0 * monthly_debt / (income / 12.0) + 1.2 * card_use / 100.0 + 0.5 * (employment == OUT_OF_WORK)
    rate = np.exp(-1.75 + strain - 0.65 * prudence + economy.distress)
    return Masked(Poisson(np.minimum(rate, 6.0), MOST_MISSED), credit_lines > 0)


def purpose(age: Codes, housing: Codes, employment: Codes, card_use: Floats) -> Categorical:
    """Return the purpose, which depends on age, housing, job and card use."""
    home = (housing == OWNER) | (housing == MORTGAGE)
    return Categorical(
        [
            0.0,
            np.where(home, -0.2, -2.5),
            -1.2 + 0.022 * card_use,
            -1.3 - 0.06 * (age - 30),
            np.where(employment == SELF_EMPLOYED, 0.2, -3.0),
            -0.4,
        ]
    )


def loan_amount(purpose: Codes, income: Floats) -> Amount:
    """Return the amount in steps of 100: by purpose and, less than in proportion, by income."""
    log_amount = np.log(8500) + _PURPOSE_SIZE[purpose] + 0.45 * np.log(income / 32_000)
    return Amount(log_amount, 0.50, LOG, 100.0, *AMOUNTS)


def term_months(loan_amount: Floats, income: Floats) -> Amount:
    """Return the position in ``TERMS``: longer for loans that are large for the income."""
    latent = 2.6 + 1.5 * np.log(loan_amount / 8500) - 0.8 * np.log(income / 32_000)
    return Amount(latent, 1.0, PLAIN, 1.0, 0.0, len(TERMS) - 1.0)


def income_hidden(employment: Codes, years_employed: Codes) -> Bernoulli:
    """Return True for undisclosed income: self-employed people without audited accounts."""
    return Bernoulli(np.where(years_employed < 3, 0.30, 0.06) * (employment == SELF_EMPLOYED))


def savings_hidden(savings: Floats, age: Codes) -> Bernoulli:
    """Return True for undisclosed savings: more frequent for small amounts."""
    return Bernoulli(sigmoid(-2.3 - 0.8 * np.log1p(savings / 2000.0) + 0.01 * (age - 40)))


EQUATIONS: dict[str, Callable[..., Sampler]] = {
    equation.__name__: equation
    for equation in (
        *(age, sex, region, education, employment, income, dependants, housing, years_employed),
        *(history_years, credit_lines, savings, card_use, monthly_debt, missed_payments),
        *(purpose, loan_amount, term_months, income_hidden, savings_hidden),
    )
}
CAUSES = {name: tuple(inspect.signature(equation).parameters) for name, equation in EQUATIONS.items()}
_EXTRA_NOISE = {"savings": ("no_savings",)}


def distribution_of(name: str, known: Mapping[str, Any]) -> Any:
    """Return the distribution of the variable, given its causes among ``known``."""
    return EQUATIONS[name](**{cause: known[cause] for cause in CAUSES[name]})


def sampled(noise: BlockNoise, economy: Economy) -> Columns:
    """Sample all variables of a block of people, including prudence, with causes before effects."""
    known: dict[str, Any] = {"economy": economy, "prudence": noise["prudence"]}
    for name in EQUATIONS:
        sources = (name, *_EXTRA_NOISE.get(name, ()))
        drawn = distribution_of(name, known).sample(*(noise[source] for source in sources))
        known[name] = drawn.astype(np.int64) if name in CATEGORIES else drawn
    del known["economy"]
    return known


# ------------------------------------------------------------- criteria of the outcomes


Outcome = Literal["approved", "repaid"]
"""Outcomes that can be the label."""

# Weight of each criterion in log odds in year 1, and its relative change for each unit of shift.
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
_UNPROVED_INCOME = 0.85  # share of an income without accounts that a bank statement shows


@dataclass(frozen=True)
class People:
    """State of a person in each row: true values of all columns, undisclosed ones, and hidden traits.

    ``income_noise`` is the deviation of a person's pay from that of others with the same job and degree.
    """

    columns: Columns
    income_hidden: Flags
    savings_hidden: Flags
    prudence: Floats
    income_noise: Floats


# ---------------------------------------------------------------- actions


def act(before: People, actions: Mapping[str, Floats], economy: Economy) -> People:
    """Return the people after an action and its effects; NaN in ``actions`` is a cell that is not set.

    Cells that are set are disclosed. Pay follows its causes, a new job begins with zero years, and closing
    the last credit line pays it off. Savings, debts and records, age, home and children, the request, and
    hidden traits stay the same.
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
    """Return the variables that change as an effect of others, as if they were not set themselves."""
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
    """Return the true log odds of the favourable outcome.

    The underwriter counts 85 % of an income without accounts, and no undisclosed savings; repayment depends
    on income and savings whether they are disclosed or not.
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
    """Return the outcomes for uniform noise, which becomes logistic so that the log odds are exact."""
    flags: Flags = log_odds + np.log(u / (1.0 - u)) > 0.0
    return flags


def weight(table: Mapping[str, tuple[float, float]], name: str, economy: Economy) -> float:
    """Return the weight of a criterion this year; it may vanish, but never changes its sign."""
    first, change = table[name]
    return first * max(0.0, 1.0 + change * economy.shift)


def _weighted(
    table: Mapping[str, tuple[float, float]], values: Mapping[str, Floats], economy: Economy
) -> Floats:
    return sum((weight(table, name, economy) * values[name] for name in table), start=np.zeros(()))


def criteria(people: People, income: Floats, savings: Floats, economy: Economy) -> dict[str, Floats]:
    """Return the criteria of an outcome, given the income and savings that count for it."""
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
    """Return the monthly payment of an annuity loan; ``term`` is a position in ``TERMS``."""
    months, monthly = np.array(TERMS)[term], rate / 12.0
    return amount * monthly / (1.0 - (1.0 + monthly) ** -months)
