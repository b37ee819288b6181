"""A dataset as the evaluation sees it: split once, with what comes later where there is a shift."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer import datasets
from veritracer.schema import Schema

SHIFTING = ("ctg", "who", "loans")
"""Datasets that have a later part."""

TITLES = {
    "heloc": "HELOC",
    "taiwan_credit": "TC",
    "oula": "OULA",
    "ctg": "CTG",
    "who": "WHO",
    "breast_cancer": "breast cancer",
    "loans": "loans",
}

LOANS = 3000
"""Applications of each year of the synthetic portfolio: enough to learn from, and soon done."""


class Later(NamedTuple):
    """Rows to fine-tune on, and rows to test on with the group that each is of; both have old rows and new.

    No row of ``X_test`` is in ``X_train``, nor among the rows that today's model was trained on.
    """

    X_train: pd.DataFrame
    y_train: pd.Series[Any]
    X_test: pd.DataFrame
    groups: NDArray[np.str_]


class Subject(NamedTuple):
    """Rows to learn from and to test on, in the paper's setting: no actionability, no grids."""

    name: str
    schema: Schema
    X_train: pd.DataFrame
    y_train: pd.Series[Any]
    X_test: pd.DataFrame
    y_test: pd.Series[Any]
    later: Later | None = None


@lru_cache(maxsize=8)
def subject_of(
    name: str, rows: int, train_rows: int | None = None, data_dir: str | os.PathLike[str] | None = None
) -> Subject:
    """The dataset with at most ``rows`` test rows (of each part) and ``train_rows`` training rows."""
    whole = _loans() if name == "loans" else _shifting(name, data_dir) if name in SHIFTING else None
    if whole is None:
        paper = name != "breast_cancer"
        data = datasets.load(name, data_dir=data_dir, variant="paper" if paper else "default")
        split = data.split()
        whole = Subject(name, data.schema, split.X_train, split.y_train, split.X_test, split.y_test)
    return _cut(whole._replace(schema=whole.schema.unconstrained()), rows, train_rows)


def _shifting(name: str, data_dir: str | os.PathLike[str] | None) -> Subject:
    """One split of all rows; the original part of its halves is what today's model sees."""
    data = datasets.load(name, data_dir=data_dir, variant="paper")
    assert data.groups is not None
    split = data.split()
    before = split.X_train.index.intersection(data.original.X.index)
    original = split.X_test.index.intersection(data.original.X.index)
    named = data.groups if name == "ctg" else data.groups.lt(2012).map({True: "before 2012", False: "later"})
    later = Later(split.X_train, split.y_train, split.X_test, named[split.X_test.index].to_numpy(dtype=str))
    test = split.X_test.loc[original], split.y_test.loc[original]
    return Subject(name, data.schema, split.X_train.loc[before], split.y_train.loc[before], *test, later)


def _loans() -> Subject:
    """Year 1, and both years later."""
    years = [datasets.loans(LOANS, year=year) for year in (1, 2)]
    first, second = (year.split() for year in years)
    groups = np.repeat(["year 1", "year 2"], [len(first.X_test), len(second.X_test)])
    later = Later(
        pd.concat([first.X_train, second.X_train], ignore_index=True),
        pd.concat([first.y_train, second.y_train], ignore_index=True),
        pd.concat([first.X_test, second.X_test], ignore_index=True),
        groups,
    )
    here = first.X_train, first.y_train, first.X_test, first.y_test
    return Subject("loans", years[0].schema, *here, later)


def _cut(subject: Subject, rows: int, train_rows: int | None) -> Subject:
    """Random rows, the same ones every time: OULA's test rows are in the order of the file."""
    taken = _some(len(subject.X_test), rows)
    subject = subject._replace(X_test=subject.X_test.iloc[taken], y_test=subject.y_test.iloc[taken])
    if subject.later is not None:
        later = subject.later
        taken = _some(len(later.X_test), rows)
        later = later._replace(X_test=later.X_test.iloc[taken], groups=later.groups[taken])
        if train_rows is not None:
            fewer = _some(len(later.X_train), train_rows)
            later = later._replace(X_train=later.X_train.iloc[fewer], y_train=later.y_train.iloc[fewer])
        subject = subject._replace(later=later)
    if train_rows is None:
        return subject
    taken = _some(len(subject.X_train), train_rows)
    return subject._replace(X_train=subject.X_train.iloc[taken], y_train=subject.y_train.iloc[taken])


def _some(count: int, most: int) -> NDArray[np.int64]:
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))
