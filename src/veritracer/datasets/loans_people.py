"""The people behind ``loans``: who they are, what they do, what they earn, how they live.

Each function is one structural equation (or a few that belong together): it names the causes as its
arguments, and adds the noise of its own variable. Categories are positions in the lists below.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from veritracer.datasets.loans_economy import Economy
from veritracer.datasets.loans_noise import Floats, Noise

Codes = NDArray[np.int64]

SEXES = ("female", "male")
REGIONS = ("capital", "coast", "north", "south", "valley")
EDUCATION = ("basic", "secondary", "vocational", "bachelor", "master")
EMPLOYMENT = ("permanent", "public service", "fixed-term", "self-employed", "out of work")
HOUSING = ("rent", "mortgage", "owner", "with family")
FIXED_TERM, SELF_EMPLOYED, OUT_OF_WORK = 2, 3, 4
RENT, MORTGAGE, OWNER = 0, 1, 2

_REGION_SHARES = (0.26, 0.22, 0.16, 0.20, 0.16)
_REGION_PAY = np.array([0.16, 0.02, -0.07, -0.02, -0.05])
_REGION_JOBS = np.array([-0.20, 0.0, 0.35, 0.10, 0.0])
_SCHOOL_YEARS = np.array([0, 2, 3, 5, 7])
_JOB_PAY = np.array([0.05, 0.02, -0.15, 0.02, -0.60])
_TENURE_POWER = np.array([1.4, 1.1, 4.0, 1.7, 1.0])
INCOMES, MOST_DEPENDANTS, MOST_TENURE = (8000.0, 100_000.0), 5, 30


def sigmoid(logit: Floats) -> Floats:
    """The probability with these log odds."""
    return 1.0 / (1.0 + np.exp(-logit))


def choose(u: Floats, utilities: list[Floats]) -> Codes:
    """The category of each row by its noise: shares are proportional to the exponential of the utilities."""
    shares = np.cumsum(np.exp(np.stack(utilities)), axis=0)
    passed: Codes = (u * shares[-1] > shares[:-1]).sum(axis=0)
    return passed


def poisson(u: Floats, rate: Floats, most: int) -> Codes:
    """The Poisson count of each row by its noise, at most ``most``."""
    term = np.exp(-rate)
    below, count = term.copy(), np.zeros(len(u), dtype=np.int64)
    for k in range(1, most + 1):
        count += u > below
        term = term * rate / k
        below += term
    return count


def stepped(money: Floats, step: float, lowest: float, highest: float) -> Floats:
    """The amounts on a grid of ``step``, cut to the legal range."""
    return np.clip(np.rint(money / step) * step, lowest, highest)


def age(noise: Noise, economy: Economy) -> Codes:
    """18 to 67, most of them in their thirties; younger as years pass (a new online channel)."""
    share = sigmoid(-0.40 - economy.youth + 0.95 * noise.normal["age"])
    return (18 + np.floor(50 * share)).astype(np.int64)


def sex(noise: Noise) -> Codes:
    """More men than women apply."""
    return (noise.uniform["sex"] > 0.46).astype(np.int64)


def region(noise: Noise) -> Codes:
    """Where they live: a cause of pay and of unemployment, and of nothing else."""
    u = noise.uniform["region"]
    return choose(u, [np.full(len(u), np.log(share)) for share in _REGION_SHARES])


def education(noise: Noise, age: Codes, region: Codes) -> Codes:
    """Younger people and those in the capital stayed at school longer; a degree needs its years."""
    latent = noise.normal["education"] - 0.012 * (age - 40) + 0.35 * (region == 0)
    reached = np.searchsorted([-1.1, -0.2, 0.55, 1.25], latent)
    possible = np.searchsorted(_SCHOOL_YEARS, age - 16, side="right") - 1
    attained: Codes = np.minimum(reached, possible)
    return attained


def employment(noise: Noise, economy: Economy, age: Codes, education: Codes, region: Codes) -> Codes:
    """The young have insecure jobs, the less educated and some regions fewer jobs."""
    years = age - 40.0
    utilities = [
        np.zeros(len(age)),
        -1.9 + 0.18 * education,
        -1.5 - 0.035 * years + economy.precarity,
        -1.75 + 0.012 * years + economy.precarity,
        -2.1 - 0.30 * education - 0.012 * years + _REGION_JOBS[region] + economy.unemployment,
    ]
    return choose(noise.uniform["employment"], utilities)


def years_employed(noise: Noise, age: Codes, education: Codes, employment: Codes) -> Codes:
    """Whole years in the present job: some share of the years since school, none for those out of work."""
    since_school = np.maximum(age - 16 - _SCHOOL_YEARS[education], 0)
    years = np.floor(noise.uniform["tenure"] ** _TENURE_POWER[employment] * (since_school + 0.999))
    return np.where(employment == OUT_OF_WORK, 0, np.minimum(years, MOST_TENURE)).astype(np.int64)


def income(
    noise: Noise, economy: Economy, *, age: Codes, sex: Codes, region: Codes, education: Codes, job: Codes
) -> Floats:
    """Gross income of a year in steps of 100: log-normal around education, experience, job, region and sex.

    Women earn 8 % less for the same work here, as they do in most places: recourse should show it.
    """
    experience = age - 18.0 - _SCHOOL_YEARS[education]
    log_pay = np.log(21_500 * economy.wages) + 0.13 * education + 0.024 * experience - 0.00038 * experience**2
    log_pay += _JOB_PAY[job] + _REGION_PAY[region] + 0.08 * sex
    spread = np.where(job == SELF_EMPLOYED, 0.48, 0.29)
    return stepped(np.exp(log_pay + spread * noise.normal["income"]), 100.0, *INCOMES)


def housing(noise: Noise, age: Codes, income: Floats) -> Codes:
    """Age and income lead from the parents' home to rent, a mortgage, and a home that is paid for."""
    years, means = (age - 40) / 10.0, np.log(income / 32_000)
    utilities = [
        np.zeros(len(age)),
        -0.35 + 0.25 * years - 0.15 * years**2 + 1.1 * means,
        -1.5 + 0.75 * years + 0.6 * means,
        -2.2 - 1.1 * years - 0.6 * means,
    ]
    return choose(noise.uniform["housing"], utilities)


def dependants(noise: Noise, age: Codes) -> Codes:
    """Most often there around 42; none to five."""
    rate = 0.12 + 1.15 * np.exp(-(((age - 42) / 11.0) ** 2))
    return poisson(noise.uniform["dependants"], rate, MOST_DEPENDANTS)
