"""What is to be measured: datasets, methods, tables, seeds and sizes, and the results that they need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from veritracer import datasets as catalogue
from veritracer.bench.cells import Key
from veritracer.bench.methods import BY_BOUND, BY_KAPPA, BY_START, COMPARED, resolve
from veritracer.bench.subjects import SHIFTING
from veritracer.bench.trainers import SECONDS, TIMED, arguments
from veritracer.errors import NotSupportedError, message, unknown_name

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
"""The tables, and which experiment each is made from."""

PAPER = ("heloc", "taiwan_credit", "oula", "ctg", "who")
WITHOUT_FILE = ("breast_cancer", "loans")
THREE = ("heloc", "taiwan_credit", "oula", "breast_cancer")
"""Datasets of leave-out and of the ablation: the paper's three, and one that needs no file."""

WIDE = ("taiwan_credit", "oula")
"""Datasets with many encoded columns, where a row costs several times as much: half as many are taken."""


class Group(NamedTuple):
    """Models that are trained together: by one training, on one dataset, for one experiment."""

    experiment: str
    dataset: str
    trainer: str


@dataclass(frozen=True)
class Plan:
    """What to measure.

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

    datasets: tuple[str, ...] = PAPER
    methods: tuple[str, ...] = COMPARED
    tables: tuple[str, ...] = tuple(TABLES)
    seeds: int = 10
    rows: int = 2000
    attacked: int = 200
    epochs: int | None = None
    train_rows: int | None = None
    data_dir: str | None = None

    def checked(self) -> Plan:
        """The same plan, or an error that says which name does not exist."""
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
        """The results that the tables need."""
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
        """The tables with methods of their own: those methods, and the datasets that they are asked about."""
        bounds = [name for pair in BY_BOUND.values() for name in pair]
        yield "ablation", bounds, [name for name in self.datasets if name in THREE]
        yield "curve", list(BY_KAPPA.values()), list(self.datasets)
        yield "start", list(BY_START.values()), list(self.datasets)

    def configuration(self, key: Key) -> dict[str, Any]:
        """All that a result depends on besides its key; a stored result with another one is measured anew."""
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
        """All that the models of a group depend on."""
        sizes = {"seeds": self.seeds, "epochs": self.epochs, "train_rows": self.train_rows}
        return {**sizes, "training": self.training(group.trainer)}

    def rows_of(self, key: Key) -> int:
        """How many test rows a result has at most."""
        rows = self.rows // 2 if key.dataset in WIDE else self.rows
        return max(1, rows // 4) if key.experiment == "loo" else rows

    def training(self, trainer: str) -> dict[str, Any]:
        """The arguments of ``VeriTraCER`` for this training.

        A cut to a few epochs tries the machinery, without a panel that would take longer than all the rest.
        """
        return arguments(trainer) if self.epochs is None else {**arguments(trainer), "panel": None}

    def attacked_of(self, key: Key) -> int:
        """How many of them are attacked: none where no table asks for it."""
        return self.attacked if key.experiment == "ri" and key.method in self.methods else 0


def group_of(key: Key) -> Group | None:
    """The models that a result needs; None where it trains its own."""
    return (
        None if key.experiment == "time" else Group(key.experiment, key.dataset, resolve(key.method).trainer)
    )


def cost_of(key: Key, plan: Plan) -> float:
    """Seconds that a result takes on one core, about."""
    if key.experiment == "time":
        return 8.0
    rows = plan.rows_of(key) * (0.25 if key.dataset in SHIFTING else 1.0) / 1000
    times = 4.0 if key.dataset in WIDE else 1.0
    return 0.5 + times * (rows * resolve(key.method).seconds + plan.attacked_of(key) / 1000 * 7.0)


def cost_of_training(group: Group, plan: Plan) -> float:
    """Seconds that the models of a group take on one core, about; few small epochs are some share of that."""
    share = 1.0 if plan.epochs is None else plan.epochs / 40
    return SECONDS[group.trainer] * share * max(0.3, plan.seeds / 10)


def quick(data_dir: str | None, *, has_files: bool) -> Plan:
    """Under five minutes on two cores: HELOC and CTG where their files are, else what needs none."""
    named = ("heloc", "ctg") if has_files else WITHOUT_FILE
    tables = tuple(name for name in TABLES if name not in ("ablation", "start"))
    return Plan(named, tables=tables, seeds=2, rows=200, attacked=50, data_dir=data_dir)


def smoke() -> Plan:
    """What CI can afford: data that needs no file, few rows, and a minute of one core."""
    methods = tuple(name for name in COMPARED if name != "wachter")
    tables = tuple(name for name in TABLES if name not in ("curve", "start"))
    return Plan(WITHOUT_FILE, methods, tables, seeds=2, rows=16, attacked=4, epochs=30, train_rows=600)
