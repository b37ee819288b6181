"""The money of the people behind ``loans``, what they ask for, and what they keep to themselves.

One trait that no table records, prudence, is a common cause of savings, debts, card use and missed payments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from veritracer.datasets.loans_economy import Economy
from veritracer.datasets.loans_noise import Floats, Noise
from veritracer.datasets.loans_people import (
    MORTGAGE,
    OUT_OF_WORK,
    OWNER,
    RENT,
    SELF_EMPLOYED,
    Codes,
    choose,
    poisson,
    sigmoid,
    stepped,
)

Flags = NDArray[np.bool_]

PURPOSES = ("car", "home improvement", "debt consolidation", "education", "business", "household")
TERMS = (12, 24, 36, 48, 60, 72, 84)
BUSINESS = 4

MOST_SAVINGS, MOST_DEBT, MOST_LINES, MOST_MISSED, MOST_HISTORY = 20_000.0, 1500.0, 10, 6, 30
AMOUNTS = (1000.0, 30_000.0)
_PURPOSE_SIZE = np.array([0.25, 0.30, 0.20, -0.15, 0.45, -0.55])


def savings(noise: Noise, income: Floats, age: Codes, dependants: Codes, housing: Codes) -> Floats:
    """Some months of income in steps of 100: more for the prudent, the older, and those without children."""
    months = 0.25 + 0.75 * noise.normal["prudence"] + 0.018 * (age - 40) - 0.12 * dependants
    months += 0.25 * (housing == OWNER) - 0.15 * (housing == RENT) + 0.65 * noise.normal["savings"]
    saved = income / 12.0 * np.exp(months + 0.35 * np.log(income / 32_000))
    nothing = noise.uniform["no_savings"] < sigmoid(-2.2 - 0.9 * noise.normal["prudence"])
    return np.where(nothing, 0.0, stepped(saved, 100.0, 0.0, MOST_SAVINGS))


def history_years(noise: Noise, age: Codes) -> Codes:
    """Whole years since the first credit; it can not begin before 18."""
    years = np.floor(noise.uniform["history"] ** 0.7 * (age - 18 + 0.999))
    return np.minimum(years, MOST_HISTORY).astype(np.int64)


def credit_lines(noise: Noise, history: Codes, income: Floats) -> Codes:
    """Open cards and loans: they gather with time and with income."""
    rate = np.exp(-0.1 + 0.55 * np.log1p(history) + 0.35 * np.log(income / 32_000))
    return poisson(noise.uniform["lines"], rate, MOST_LINES)


def card_use(noise: Noise, lines: Codes, income: Floats, dependants: Codes) -> Floats:
    """The percentage of the card limits in use, 0 without a credit line."""
    logit = -0.55 - 0.85 * noise.normal["prudence"] - 0.5 * np.log(income / 32_000) + 0.12 * dependants
    used = np.rint(100.0 * sigmoid(logit + 0.75 * noise.normal["card_use"]))
    return np.where(lines == 0, 0.0, used)


def monthly_debt(noise: Noise, lines: Codes, income: Floats) -> Floats:
    """Payments a month on what is owed already, without the home, in steps of 10; none without a line."""
    logit = -2.9 + 0.13 * lines - 0.35 * noise.normal["prudence"] + 0.60 * noise.normal["debt"]
    paid = stepped(income / 12.0 * sigmoid(logit), 10.0, 0.0, MOST_DEBT)
    return np.where(lines == 0, 0.0, paid)


def missed_payments(
    noise: Noise, economy: Economy, *, lines: Codes, use: Floats, debt: Floats, income: Floats, job: Codes
) -> Codes:
    """Payments missed in 24 months: debts and full cards cause them, prudence prevents them."""
    strain = 3.0 * debt / (income / 12.0) + 1.2 * use / 100.0 + 0.5 * (job == OUT_OF_WORK)
    rate = np.exp(-1.75 + strain - 0.65 * noise.normal["prudence"] + economy.distress)
    return np.where(lines == 0, 0, poisson(noise.uniform["missed"], np.minimum(rate, 6.0), MOST_MISSED))


def purpose(noise: Noise, age: Codes, housing: Codes, job: Codes, use: Floats) -> Codes:
    """Owners improve homes, the young study, the self-employed invest, full cards are consolidated."""
    home = (housing == OWNER) | (housing == MORTGAGE)
    utilities = [
        np.zeros(len(age)),
        np.where(home, -0.2, -2.5),
        -1.2 + 0.022 * use,
        -1.3 - 0.06 * (age - 30),
        np.where(job == SELF_EMPLOYED, 0.2, -3.0),
        np.full(len(age), -0.4),
    ]
    return choose(noise.uniform["purpose"], utilities)


def loan_amount(noise: Noise, purpose: Codes, income: Floats) -> Floats:
    """What is asked for, in steps of 100: by purpose and, less than in proportion, by income."""
    log_amount = np.log(8500) + _PURPOSE_SIZE[purpose] + 0.45 * np.log(income / 32_000)
    return stepped(np.exp(log_amount + 0.50 * noise.normal["amount"]), 100.0, *AMOUNTS)


def term_months(noise: Noise, amount: Floats, income: Floats) -> Codes:
    """The position in ``TERMS``: larger loans for the income are spread over more years."""
    latent = 2.6 + 1.5 * np.log(amount / 8500) - 0.8 * np.log(income / 32_000) + noise.normal["term"]
    return np.clip(np.rint(latent), 0, len(TERMS) - 1).astype(np.int64)


def hides_income(noise: Noise, job: Codes, tenure: Codes) -> Flags:
    """True where no income is on file: a self-employed person without audited accounts, at first mostly."""
    share = np.where(tenure < 3, 0.30, 0.06) * (job == SELF_EMPLOYED)
    hidden: Flags = noise.uniform["income_hidden"] < share
    return hidden


def hides_savings(noise: Noise, savings: Floats, age: Codes) -> Flags:
    """True where the applicant does not disclose savings: more often who has little to show."""
    logit = -2.3 - 0.8 * np.log1p(savings / 2000.0) + 0.01 * (age - 40)
    hidden: Flags = noise.uniform["savings_hidden"] < sigmoid(logit)
    return hidden
