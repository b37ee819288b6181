"""The truth about any table of ``loans``: the probability of an outcome, and the rows after an action.

No table records prudence, nor an income or savings that were not disclosed. Their posterior, given everything
that is visible in a person's row *before* acting, is summed over nodes. Prudence and what sets hidden amounts
apart are normal and their nodes equally spaced: where the integrand is smooth that rule is exact to many
digits, and what is left (under 0.001) comes from the kinks of the outcomes. The likelihoods are those of the
very distributions that the rows are drawn from.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.datasets.loans_distributions import Codes, Floats, sigmoid
from veritracer.datasets.loans_equations import CATEGORIES, CAUSES, Columns, Economy, distribution_of
from veritracer.datasets.loans_outcomes import Outcome, People, act, log_odds
from veritracer.datasets.loans_portfolio import FEATURES, check_outcome, economy_of
from veritracer.encoding.cells import fit, merge, read
from veritracer.errors import DataError, DataWarning, message
from veritracer.schema.tables import select

# Standard normal nodes of prudence, and of what sets a hidden income and hidden savings apart.
PRUDENCE = np.arange(-5.5, 5.51, 0.25)
INCOME_NOISE = np.arange(-5.0, 5.01, 0.125)
SAVINGS_NOISE = np.arange(-4.5, 4.51, 0.5)
_CELLS = 1_000_000  # rows times nodes that are in memory at once

# What tells of hidden things, beside savings, which may be hidden themselves: their effects.
_TELLING = tuple(
    name for name, causes in CAUSES.items() if {"income", "prudence"} & set(causes) and name != "savings"
)


def loans_truth(
    frame: Any,
    origin: Any = None,
    outcome: Outcome = "approved",
    year: int = 1,
    drift: float = 1.0,
) -> Floats:
    """The true probability of the favourable outcome for each row of ``frame``.

    Parameters
    ----------
    frame : raw rows of people who may have acted; a cell that differs from ``origin`` is what they did.
    origin : their rows before acting, in the same order; ``frame`` itself if left out. What is hidden is
        inferred from these rows and stays what it is; the effects of what was done follow (docs/loans.md).
    outcome : ``"approved"`` or ``"repaid"``.
    year, drift : those of the rows.

    >>> from veritracer.datasets import loans
    >>> people = loans(rows=12).X.tail(2)
    >>> loans_truth(people, outcome="repaid").round(2).tolist()
    [0.17, 0.61]
    >>> emptied = people.assign(missed_payments=0, card_use=0)
    >>> loans_truth(emptied, people, outcome="repaid").round(2).tolist()  # a cleaner file, the same people
    [0.19, 0.61]
    >>> loans_truth(emptied, outcome="repaid").round(2).tolist()  # others, whose file was always clean
    [0.88, 0.9]
    """
    check_outcome(outcome)
    economy = economy_of(year, drift)
    after = _read(_features(frame))
    before = after if origin is None else _same_people(_read(_features(origin)), after)
    actions = _difference(before, after)
    probability = np.empty(len(after["age"]))
    for rows in _batches(before):
        seen = {name: column[rows] for name, column in before.items()}
        known = outcome == "approved" and not np.isnan(seen["income"]).any()
        people, weights = _visible(seen, economy) if known else posterior(seen, economy)
        acted = act(people, {name: _column(value[rows]) for name, value in actions.items()}, economy)
        no_income, no_savings = (_column(np.isnan(after[name][rows])) for name in ("income", "savings"))
        shown = replace(acted, income_hidden=no_income, savings_hidden=no_savings)
        chance = sigmoid(log_odds(outcome, shown, economy))
        probability[rows] = (weights * chance).sum(axis=(1, 2, 3))
    return probability


def loans_after(frame: Any, origin: Any, year: int = 1, drift: float = 1.0) -> pd.DataFrame:
    """The rows of ``frame`` with what follows from the difference to ``origin``, the rows before acting.

    Income follows a new job or degree, years in the job start anew, and closing the last credit line pays it
    off, each where it was not changed itself; an income that is not on file stays so.

    >>> from veritracer.datasets import loans
    >>> people = loans(rows=2).X
    >>> people[["employment", "years_employed", "income"]]
      employment  years_employed   income
    0  permanent              10  55200.0
    1  permanent               6  52800.0
    >>> loans_after(people.assign(employment="public service"), people)[["years_employed", "income"]]
       years_employed   income
    0               0  53600.0
    1               0  51200.0
    """
    economy = economy_of(year, drift)
    shown = _features(frame)
    after = _read(shown)
    before = _same_people(_read(_features(origin)), after)
    people = _visible(before, economy)[0]
    acted = act(people, {name: _column(value) for name, value in _difference(before, after).items()}, economy)
    result = shown.copy()
    for name, column in acted.columns.items():
        now = column.reshape(-1)
        rows = (now != after[name]) & ~np.isnan(now) & ~np.isnan(after[name])
        new = fit(pd.Series(now[rows]), shown[name].dtype)
        result[name] = merge(shown[name], rows, new).set_axis(shown.index)
    return result


# ---------------------------------------------------------------- what is not in the table


def posterior(seen: Columns, economy: Economy) -> tuple[People, Floats]:
    """The people of rows with the same gaps, hidden things at their nodes, and each node's probability.

    Arrays are (rows, incomes, prudence, savings); an axis is 1 long where nothing is hidden along it.
    """
    columns = {name: _column(column) for name, column in seen.items()}
    known: dict[str, Any] = {**columns, "economy": economy, "prudence": PRUDENCE.reshape(1, 1, -1, 1)}
    log_weight = _log_normal(known["prudence"])
    pay = distribution_of("income", known)
    if np.isnan(seen["income"]).any():
        income_noise = INCOME_NOISE.reshape(1, -1, 1, 1)
        known["income"] = pay.sample(income_noise)
        log_weight = log_weight + _log_normal(income_noise)
    else:
        income_noise = pay.noise_of(known["income"])
    for name in _TELLING:
        log_weight = log_weight + distribution_of(name, known).log_prob(columns[name])
    saved = distribution_of("savings", known)
    if np.isnan(seen["savings"]).any():
        known["savings"], log_prior = saved.nodes(SAVINGS_NOISE, _log_normal(SAVINGS_NOISE))
        log_weight = log_weight + log_prior + distribution_of("savings_hidden", known).log_prob(np.True_)
    else:
        log_weight = log_weight + saved.log_prob(columns["savings"])
    weight = np.exp(log_weight - log_weight.max(axis=(1, 2, 3), keepdims=True))
    people = _people(seen, {name: known[name] for name in columns}, known["prudence"], income_noise)
    return people, weight / weight.sum(axis=(1, 2, 3), keepdims=True)


def _visible(seen: Columns, economy: Economy) -> tuple[People, Floats]:
    """The people as they are seen, where nothing that is hidden matters."""
    columns = {name: _column(column) for name, column in seen.items()}
    noise = distribution_of("income", {**columns, "economy": economy}).noise_of(columns["income"])
    return _people(seen, columns, np.zeros(()), noise), np.ones((1, 1, 1, 1))


def _people(seen: Columns, columns: Columns, prudence: Floats, income_noise: Floats) -> People:
    no_income, no_savings = (_column(np.isnan(seen[name])) for name in ("income", "savings"))
    return People(columns, no_income, no_savings, prudence, income_noise)


def _log_normal(z: Floats) -> Floats:
    return -0.5 * z**2


def _column(values: NDArray[Any]) -> NDArray[Any]:
    return values.reshape(-1, 1, 1, 1)


def _batches(seen: Columns) -> Iterator[Codes]:
    """Rows that lack the same amounts, so many at a time that their nodes fit into memory."""
    no_income, no_savings = np.isnan(seen["income"]), np.isnan(seen["savings"])
    for gaps in itertools.product((False, True), repeat=2):
        rows = np.flatnonzero((no_income == gaps[0]) & (no_savings == gaps[1]))
        nodes = len(PRUDENCE) * (len(INCOME_NOISE) if gaps[0] else 1) * (len(SAVINGS_NOISE) if gaps[1] else 1)
        size = max(1, _CELLS // nodes)
        yield from (rows[start : start + size] for start in range(0, len(rows), size))


# ---------------------------------------------------------------- tables


def _features(frame: Any) -> pd.DataFrame:
    """The columns of ``loans`` in their order; a column with an outcome is left out."""
    if isinstance(frame, pd.DataFrame):
        frame = frame.drop(columns=[name for name in get_args(Outcome) if name in frame.columns])
    return select(frame, [feature.name for feature in FEATURES], None)


def _read(frame: pd.DataFrame) -> Columns:
    """The cells as numbers, categories as positions; NaN where an amount is not disclosed.

    What lies outside of the legal range counts as its end, with a warning.
    """
    columns: Columns = {}
    outside = []
    for feature in FEATURES:
        cells = read(feature, frame[feature.name])
        if feature.name in CATEGORIES:
            columns[feature.name] = cells.values.astype(np.int64)
            continue
        inside = np.clip(cells.values, feature.lower, feature.upper)
        missing = np.zeros(len(frame), dtype=bool) if cells.marker is None else cells.marker >= 0
        count = int(((inside != cells.values) & ~missing).sum())
        outside += [f"{count:,} in {feature.name!r}"] if count else []
        columns[feature.name] = np.where(missing, np.nan, inside)
    if outside:
        remedy = "they were clipped: an end of a range stands for everything beyond it"
        warnings.warn(
            message("values inside of the legal ranges", ", ".join(outside), remedy),
            DataWarning,
            stacklevel=3,
        )
    return columns


def _same_people(before: Columns, after: Columns) -> Columns:
    if len(before["age"]) != len(after["age"]):
        expected = f"{len(after['age']):,} rows before acting, one for each row after it"
        remedy = "pass the same people in the same order"
        raise DataError(message(expected, f"{len(before['age']):,}", remedy))
    return before


def _difference(before: Columns, after: Columns) -> dict[str, Floats]:
    """What was done: the new number of each cell that differs, NaN elsewhere."""
    return {
        name: np.where(column != before[name], column, np.nan)
        for name, column in after.items()
        if ((column != before[name]) & ~np.isnan(column)).any()
    }
