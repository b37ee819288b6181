"""The lender's decision in ``loans``: criteria that an underwriter would name, weighed by the year's policy.

It never reads sex, region or age; those act only through what they cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veritracer.datasets.loans_economy import Economy
from veritracer.datasets.loans_finances import BUSINESS, TERMS, Flags
from veritracer.datasets.loans_noise import Floats
from veritracer.datasets.loans_people import FIXED_TERM, MORTGAGE, OUT_OF_WORK, OWNER, SELF_EMPLOYED, Codes

_CUTOFF = -0.65
_TAKE_HOME = 0.74
_HOME_COST = np.array([520.0, 560.0, 210.0, 170.0])  # a month, by housing: allowances, not the real rent
_LIVING, _EACH_DEPENDANT = 480.0, 190.0
_UNPROVED_INCOME = 0.85  # what a bank statement shows of an income without accounts


def instalment(amount: Floats, term: Codes, rate: float) -> Floats:
    """The monthly payment of an annuity loan; ``term`` is a position in ``TERMS``."""
    months, monthly = np.array(TERMS)[term], rate / 12.0
    return amount * monthly / (1.0 - (1.0 + monthly) ** -months)


def criteria(
    people: Mapping[str, NDArray[Any]], income_hidden: Flags, savings_hidden: Flags, economy: Economy
) -> dict[str, Floats]:
    """Each criterion of the policy for each row; savings that are not disclosed do not count."""
    income = np.where(income_hidden, _UNPROVED_INCOME, 1.0) * people["income"]
    net = _TAKE_HOME * income / 12.0
    living = _HOME_COST[people["housing"]] + _LIVING + _EACH_DEPENDANT * people["dependants"]
    living = living * economy.prices
    due = people["monthly_debt"] + instalment(people["loan_amount"], people["term_months"], economy.rate)
    reserve = np.where(savings_hidden, 0.0, people["savings"]) / living
    job, home = people["employment"], people["housing"]
    return {
        "room": np.clip((net - living - due) / net, -0.6, 0.6),
        "buffer": np.log1p(np.minimum(reserve, 12.0)),
        "missed": np.minimum(people["missed_payments"], 4.0),
        "card_use": np.maximum(people["card_use"] - 20.0, 0.0) / 80.0,
        "history": np.minimum(people["history_years"], 15.0) / 15.0,
        "thin_file": (people["credit_lines"] == 0) * 1.0,
        "tenure": np.minimum(people["years_employed"], 10.0) / 10.0,
        "insecure_job": ((job == FIXED_TERM) | (job == SELF_EMPLOYED)) * 1.0,
        "no_job": (job == OUT_OF_WORK) * 1.0,
        "debt_to_income": np.minimum(people["monthly_debt"] / net, 0.6),
        "loan_to_income": np.minimum(people["loan_amount"] / income, 1.0),
        "home": ((home == OWNER) | (home == MORTGAGE)) * 1.0,
        "education": people["education"] / 4.0,
        "business": (people["purpose"] == BUSINESS) * 1.0,
    }


def approved(score: dict[str, Floats], unrecorded: Floats, economy: Economy) -> Flags:
    """True where the weighted criteria and what only the underwriter saw exceed the cutoff."""
    total = sum((economy.weight(name) * value for name, value in score.items()), start=np.zeros(()))
    seen = np.log(unrecorded / (1.0 - unrecorded))  # logistic: the log odds of approval are the total
    return total + seen > _CUTOFF + economy.caution
