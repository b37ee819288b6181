"""The plan of an evaluation: its datasets, methods, tables, seeds and sizes.

A ``Subject`` is a dataset that was split once, with what comes later where there is a shift; a ``Plan`` says
which results are wanted of which subjects, and which models those need.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer import datasets as catalogue
from veritracer.errors import NotSupportedError, message, unknown_name
from veritracer.schema import Schema
from veritracer_bench.methods import (
    BY_BOUND,
    BY_KAPPA,
    BY_START,
    COMPARED,
    SECONDS,
    TIMED,
    arguments,
    resolve,
)
from veritracer_bench.results import Key

SHIFTING = ("ctg", "who", "loans")
"""Datasets with a later part."""

TITLES = {
    "heloc": "HELOC",
    "taiwan_credit": "TC",
    "oula": "OULA",
    "ctg": "CTG",
    "who": "WHO",
    "breast_cancer": "breast cancer",
    "loans": "loans",
}


def short_title(dataset: str) -> str:
    """Return the short name of a dataset in tables; one that was added has its own name."""
    return TITLES.get(dataset, dataset)


LOANS = 3000
"""Applications of each year of the synthetic portfolio: enough to learn from, and soon done."""


class Later(NamedTuple):
    """Rows to fine-tune on, and rows to test on with the group that each is of; both have old rows and new.

    No row of ``X_test`` is in ``X_train``, nor among the rows that today's model was trained on.
    """

    X_train: pd.DataFrame
    y_train: pd.Series[Any]
    X_test: pd.DataFrame
    y_test: pd.Series[Any]
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
    """Return a dataset with at most ``rows`` test rows (of each part) and ``train_rows`` training rows."""
    whole = _loans() if name == "loans" else _shifting(name, data_dir) if name in SHIFTING else None
    if whole is None:
        paper = name != "breast_cancer"
        data = catalogue.load(name, data_dir=data_dir, variant="paper" if paper else "default")
        split = data.split()
        whole = Subject(name, data.schema, split.X_train, split.y_train, split.X_test, split.y_test)
    return _cut(whole._replace(schema=whole.schema.unconstrained()), rows, train_rows)


def _shifting(name: str, data_dir: str | os.PathLike[str] | None) -> Subject:
    """Split all rows once; today's model sees the original rows of both parts."""
    data = catalogue.load(name, data_dir=data_dir, variant="paper")
    assert data.groups is not None
    split = data.split()
    before = split.X_train.index.intersection(data.original.X.index)
    original = split.X_test.index.intersection(data.original.X.index)
    named = data.groups if name == "ctg" else data.groups.lt(2012).map({True: "before 2012", False: "later"})
    named_test = named[split.X_test.index].to_numpy(dtype=str)
    later = Later(split.X_train, split.y_train, split.X_test, split.y_test, named_test)
    test = split.X_test.loc[original], split.y_test.loc[original]
    return Subject(name, data.schema, split.X_train.loc[before], split.y_train.loc[before], *test, later)


def _loans() -> Subject:
    """Return year 1 of ``loans``, with both years as the later part."""
    years = [catalogue.loans(LOANS, year=year) for year in (1, 2)]
    first, second = (year.split() for year in years)
    groups = np.repeat(["year 1", "year 2"], [len(first.X_test), len(second.X_test)])
    later = Later(
        pd.concat([first.X_train, second.X_train], ignore_index=True),
        pd.concat([first.y_train, second.y_train], ignore_index=True),
        pd.concat([first.X_test, second.X_test], ignore_index=True),
        pd.concat([first.y_test, second.y_test], ignore_index=True),
        groups,
    )
    here = first.X_train, first.y_train, first.X_test, first.y_test
    return Subject("loans", years[0].schema, *here, later)


def _cut(subject: Subject, rows: int, train_rows: int | None) -> Subject:
    """Keep random rows, always the same ones: OULA's test rows are in the order of the file."""
    taken = _some(len(subject.X_test), rows)
    subject = subject._replace(X_test=subject.X_test.iloc[taken], y_test=subject.y_test.iloc[taken])
    if subject.later is not None:
        later = subject.later
        taken = _some(len(later.X_test), rows)
        later = later._replace(
            X_test=later.X_test.iloc[taken],
            y_test=later.y_test.iloc[taken],
            groups=later.groups[taken],
        )
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


# ---------------------------------------------------------------- the plan


TABLES = {
    "ri": "ri",
    "loo": "loo",
    "shift": "ri",
    "delta": "ri",
    "proximity": "ri",
    "sparsity": "ri",
    "ddm": "ri",
    "accuracy": "ri",
    "ablation": "ri",
    "curve": "ri",
    "start": "ri",
    "time": "time",
}
"""The tables, and the experiment that each is made from."""

PAPER_DATASETS = ("heloc", "taiwan_credit", "oula", "ctg", "who")
WITHOUT_FILE = ("breast_cancer", "loans")
QUICK = ("heloc", "ctg")
THREE = ("heloc", "taiwan_credit", "oula", "breast_cancer")
"""Datasets of leave-out and of the ablation: the paper's three, and one that needs no file."""

WIDE = ("taiwan_credit", "oula")
"""Datasets with many encoded columns, where a row costs several times as much: half as many are taken."""


class Group(NamedTuple):
    """Models that are trained together: one training, dataset and experiment."""

    experiment: str
    dataset: str
    trainer: str


@dataclass(frozen=True)
class Plan:
    """A plan of what to measure.

    Attributes
    ----------
    datasets, methods, tables
        Names; a method may be ``module:Class``.
    seeds
        Models of each kind; the first so many seeds.
    rows, attacked
        Test rows, at most (half as many of wide tables, and a quarter of that where training rows are left
        out), and how many of them are attacked.
    epochs, train_rows
        Of training; ``None`` is the library's own number, and all rows.
    data_dir
        The folder of the datasets' files.
    """

    datasets: tuple[str, ...] = PAPER_DATASETS
    methods: tuple[str, ...] = COMPARED
    tables: tuple[str, ...] = tuple(TABLES)
    seeds: int = 10
    rows: int = 2000
    attacked: int = 200
    epochs: int | None = None
    train_rows: int | None = None
    data_dir: str | None = None

    def checked(self) -> Plan:
        """Return the same plan; raise an error if a name does not exist."""
        for name in self.datasets:
            if name not in WITHOUT_FILE and catalogue.info(name, data_dir=self.data_dir).path is None:
                catalogue.load(name, data_dir=self.data_dir)  # says which file is missing
        for name in self.methods:
            resolve(name)
        for name in self.tables:
            if name not in TABLES:
                raise NotSupportedError(unknown_name("the name of a table", name, TABLES))
        if self.seeds < 2:
            remedy = "a model is compared with those of the other seeds"
            raise NotSupportedError(message("2 seeds or more", repr(self.seeds), remedy))
        if not (self.datasets and self.methods and self.tables):
            raise NotSupportedError(message("a dataset, a method and a table", "none", "name one of each"))
        return self

    def wanted(self) -> list[Key]:
        """Return the results that the tables need."""
        return list(dict.fromkeys(self._keys()))

    def _keys(self) -> Iterator[Key]:
        experiments = dict.fromkeys(TABLES[name] for name in self.tables)
        if set(self.tables) <= {"ablation", "curve", "start"}:
            experiments = {}
        for experiment in experiments:
            for dataset in self.datasets:
                if experiment == "loo" and dataset not in THREE:
                    continue
                names: Sequence[str] = list(TIMED) if experiment == "time" else self.methods
                seeds = 1 if experiment == "time" else self.seeds
                yield from (Key(experiment, dataset, name, seed) for name in names for seed in range(seeds))
        for table, names, some in self._extra():
            if table in self.tables:
                yield from (Key("ri", d, name, i) for d in some for name in names for i in range(self.seeds))

    def _extra(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield the tables with methods of their own, those methods, and their datasets."""
        bounds = [name for pair in BY_BOUND.values() for name in pair]
        yield "ablation", bounds, [name for name in self.datasets if name in THREE]
        yield "curve", list(BY_KAPPA.values()), list(self.datasets)
        yield "start", list(BY_START.values()), list(self.datasets)

    def configuration(self, key: Key) -> dict[str, Any]:
        """Return all that a result depends on besides its key; it is measured again if this has changed."""
        shared = {"epochs": self.epochs, "train_rows": self.train_rows}
        if key.experiment == "time":
            return {"training": self.training(key.method), "train_rows": self.train_rows}
        sizes = {"seeds": self.seeds, "rows": self.rows_of(key), **shared}
        return {
            **sizes,
            "attacked": self.attacked_of(key),
            "training": self.training(resolve(key.method).trainer),
        }

    def group_configuration(self, group: Group) -> dict[str, Any]:
        """Return all that the models of a group depend on."""
        sizes = {"seeds": self.seeds, "epochs": self.epochs, "train_rows": self.train_rows}
        return {**sizes, "training": self.training(group.trainer)}

    def rows_of(self, key: Key) -> int:
        """Return the largest number of test rows of a result."""
        rows = self.rows // 2 if key.dataset in WIDE else self.rows
        return max(1, rows // 4) if key.experiment == "loo" else rows

    def training(self, trainer: str) -> dict[str, Any]:
        """Return the arguments of ``VeriTraCER`` for a training.

        A cut to a few epochs tries the machinery, without a panel that would take longer than all the rest.
        """
        return arguments(trainer) if self.epochs is None else {**arguments(trainer), "panel": None}

    def attacked_of(self, key: Key) -> int:
        """Return the number of attacked rows: 0 if no table needs it."""
        return self.attacked if key.experiment == "ri" and key.method in self.methods else 0


def group_of(key: Key) -> Group | None:
    """Return the models that a result needs; None if it trains its own."""
    return (
        None if key.experiment == "time" else Group(key.experiment, key.dataset, resolve(key.method).trainer)
    )


def cost_of(key: Key, plan: Plan) -> float:
    """Estimate the seconds that a result takes on one core."""
    if key.experiment == "time":
        return 8.0
    rows = plan.rows_of(key) * (0.25 if key.dataset in SHIFTING else 1.0) / 1000
    times = 4.0 if key.dataset in WIDE else 1.0
    return 0.5 + times * (rows * resolve(key.method).seconds + plan.attacked_of(key) / 1000 * 7.0)


def cost_of_training(group: Group, plan: Plan) -> float:
    """Estimate the seconds that the models of a group take on one core."""
    share = 1.0 if plan.epochs is None else plan.epochs / 40
    return SECONDS[group.trainer] * share * max(0.3, plan.seeds / 10)


def quick_plan(data_dir: str | None) -> Plan:
    """Return a plan of under five minutes on two cores: HELOC and CTG, or two datasets without files."""
    has_files = all(catalogue.info(name, data_dir=data_dir).path for name in QUICK)
    tables = tuple(name for name in TABLES if name not in ("ablation", "start"))
    return Plan(
        QUICK if has_files else WITHOUT_FILE, tables=tables, seeds=2, rows=200, attacked=50, data_dir=data_dir
    )


def smoke_plan(data_dir: str | None = None) -> Plan:
    """Return a plan that CI can afford: data that need no file, few rows, and a minute of one core."""
    methods = tuple(name for name in COMPARED if name != "wachter")
    tables = tuple(name for name in TABLES if name not in ("curve", "start"))
    return Plan(WITHOUT_FILE, methods, tables, 2, 16, 4, 30, train_rows=600, data_dir=data_dir)
