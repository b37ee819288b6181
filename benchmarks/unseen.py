"""Acceptance by independent models that share no row with the model: ``veritracer_bench.unseen``.

``python -m benchmarks.unseen`` measures what is missing and writes the tables, ``--table`` only writes them.
A cell is one dataset, split, method and seed, and one small JSON file under ``--out``; a run can be stopped
at any time and continues where it was. The first split of all datasets comes before the second of any.

``VERITRACER_REFERENCE=FOLDER`` adds the counterfactuals of the authors' own runs: their models saw all of
their training rows, so that judges are fitted on one half of the test rows for the people of the other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from benchmarks.paper import classifier_of, seeds_of
from benchmarks.record import RESULTS
from benchmarks.truth import subject_for
from veritracer.encoding import Encoding
from veritracer.errors import VeriTracerWarning
from veritracer.estimator import VeriTraCER
from veritracer.models.param_sets import ParamSet
from veritracer.persistence import load
from veritracer.search.reference import Neighbours
from veritracer.training.recipes import settings_of
from veritracer_bench import unseen_tables
from veritracer_bench.authors import later_encoding, paper_subject
from veritracer_bench.curves import STRENGTHS, sweep
from veritracer_bench.judges import Jury, Labelled, labelled
from veritracer_bench.methods import Problem, arguments, resolve
from veritracer_bench.plan import Subject
from veritracer_bench.results import Cell, Key, read, read_all, read_results, where, write, write_results
from veritracer_bench.truth import Answers, Explained, measured
from veritracer_bench.unseen import (
    accuracies,
    jury_of_halves,
    jury_of_parts,
    missing_judges,
    numbers_of,
    parts_of,
)

DATASETS = ("heloc", "loans", "ctg", "who", "taiwan_credit", "oula")
OUT = Path("out/unseen")
STORED = RESULTS / "unseen"


class Sizes(NamedTuple):
    """Sizes of a run: people that are explained at most (0: all), epochs, and rows (None: all)."""

    people: int = 0
    epochs: int | None = None
    rows: int | None = None


class Stage(NamedTuple):
    """One split of a dataset, with everything that does not depend on the seed of a model."""

    subject: Subject
    encoding: Encoding
    train: Labelled
    people: Labelled
    jury: Jury


@cache
def stage_of(dataset: str, split: int, sizes: Sizes) -> Stage:
    """Draw the parts of a split, and fit its judges; once in a process."""
    subject = subject_for(dataset)
    X = pd.concat([subject.X_train, subject.X_test], ignore_index=True).head(sizes.rows or sys.maxsize)
    y = pd.concat([subject.y_train, subject.y_test], ignore_index=True).head(sizes.rows or sys.maxsize)
    labels = np.asarray(subject.schema.labels(y)).astype(np.int64)
    parts = parts_of(labels, split)
    encoding = Encoding.fit(subject.schema, X.iloc[parts.model])
    model, judges, people = (
        labelled(encoding.encode(X.iloc[rows], out_of_range="ignore"), labels[rows]) for rows in parts
    )
    subject = subject._replace(
        X_train=X.iloc[parts.model],
        y_train=y.iloc[parts.model],
        X_test=X.iloc[parts.people],
        y_test=y.iloc[parts.people],
    )
    jury = jury_of_parts(model, judges, len(people.y), epochs=sizes.epochs)
    return Stage(subject, encoding, model, people, jury)


def judges_cell(out: Path, dataset: str, split: int, sizes: Sizes) -> None:
    """Measure the judges themselves, always on all people."""
    sizes = sizes._replace(people=0)
    key = Key(f"split-{split}", dataset, "judges", 0)
    if not done(out, key, sizes):
        start = time.perf_counter()
        stage = stage_of(dataset, split, sizes._replace(people=0))
        numbers = accuracies(stage.jury, stage.people)
        numbers |= {"people": float(len(stage.people.y))}
        finish(out, key, sizes, numbers, time.perf_counter() - start)


def answers_cells(
    out: Path, dataset: str, split: int, trainer: str, wanted: list[tuple[str, int]], sizes: Sizes
) -> None:
    """Train the models of some seeds together, ask the methods and measure their counterfactuals."""
    stage = stage_of(dataset, split, sizes._replace(people=0))
    subject, x_people = stage.subject, torch.from_numpy(stage.people.x)
    seeds = sorted({seed for _, seed in wanted})
    models = models_of(out, stage, split, trainer, seeds, sizes)
    train = torch.from_numpy(stage.train.x), torch.from_numpy(stage.train.y).double()
    neighbours = Neighbours(train[0], train[1] == 1)
    for name, seed in wanted:
        start, model = time.perf_counter(), models[seed]
        assert model.encoding_.digest == stage.encoding.digest  # judges see rows as the model does
        decided = (model.logits(x_people) > 0).numpy()
        rows = np.flatnonzero(~decided)
        rows = rows[: sizes.people or None]
        numbers = {"accuracy": float(np.mean(decided == stage.people.y))}
        if len(rows):
            X, x = subject.X_test.iloc[rows], x_people[rows]
            x_cf = resolve(name).answer(Problem(model, X, x, *train, seed))
            if dataset.endswith("-people"):
                x_cf = stage.encoding.project(x_cf, x)
            explained = Explained.of(model)
            numbers |= numbers_of(measured(explained, Answers(rows, X, x, x_cf), stage.jury, neighbours))
        finish(out, Key(f"split-{split}", dataset, name, seed), sizes, numbers, time.perf_counter() - start)


def models_of(
    out: Path, stage: Stage, split: int, trainer: str, seeds: list[int], sizes: Sizes
) -> dict[int, VeriTraCER]:
    """Return the models of some seeds; those that are not stored yet are trained together, and stored."""
    subject, names = stage.subject, ("split", split, trainer, sizes.epochs, sizes.rows)
    folder = out / "models" / subject.name / "-".join(map(str, names))
    missing = [seed for seed in seeds if not (folder / str(seed)).exists()]
    if missing:
        template = VeriTraCER(subject.schema, epochs=sizes.epochs, **arguments(trainer))
        for seed, model in zip(
            missing, template.fit_many(subject.X_train, subject.y_train, missing), strict=True
        ):
            model.save(folder / str(seed))
    return {seed: load(folder / str(seed)) for seed in seeds}


def finish(out: Path, key: Key, sizes: Sizes, numbers: dict[str, float], seconds: float) -> None:
    """Write a cell, and say so."""
    write(out, Cell(key, sizes._asdict(), numbers, seconds, where()))
    print(f"{time.strftime('%H:%M:%S')} {' '.join(map(str, key))}: {seconds:.0f} s", flush=True)


def done(out: Path, key: Key, sizes: Sizes) -> bool:
    """Return whether the cell is there, with these sizes."""
    cell = read(out, key)
    return cell is not None and cell.configuration == sizes._asdict()


def measure(out: Path, dataset: str, split: int, methods: list[str], seeds: list[int], sizes: Sizes) -> None:
    """Measure the missing cells of one split of a dataset."""
    judges_cell(out, dataset, split, sizes)
    by_trainer: dict[str, list[tuple[str, int]]] = {}
    for name in methods:
        for seed in seeds:
            if not done(out, Key(f"split-{split}", dataset, name, seed), sizes):
                by_trainer.setdefault(resolve(name).trainer, []).append((name, seed))
    for trainer, wanted in by_trainer.items():
        answers_cells(out, dataset, split, trainer, wanted, sizes)


# ---------------------------------------------------------------- the authors' own counterfactuals


def authors_cells(out: Path, path: Path, sizes: Sizes) -> None:
    """Judge the counterfactuals in one file of the authors' runs, those of rows that their model declines."""
    dataset, _, method = path.stem.partition("-")
    run = np.load(path)
    keys = {seed: Key("authors", dataset, f"authors-{method}", seed) for seed in seeds_of(run)}
    if all(done(out, key, sizes) for key in keys.values()):
        return
    encoding, train, test = authors_rows(dataset)
    jury = authors_jury(dataset, sizes)
    key = Key("authors", dataset, "judges", 0)
    if not done(out, key, sizes._replace(people=0)):
        finish(out, key, sizes._replace(people=0), accuracies(jury, test), 0.0)
    neighbours = Neighbours(torch.from_numpy(train.x), torch.from_numpy(train.y == 1))
    kappa = settings_of(f"paper:{dataset}", "veritracer")["kappa"]
    for seed, key in keys.items():
        start = time.perf_counter()
        module = favourable_last(classifier_of(run, seed), dataset)
        x, x_cf = (torch.from_numpy(run[name]).double() for name in ("x", f"{seed}/x_cf"))
        explained = Explained(module, ParamSet.around(module, kappa), encoding)
        rows = np.flatnonzero(explained.probability(x) <= explained.threshold)[: sizes.people or None]
        answers = Answers(rows, pd.DataFrame(index=rows), x[rows], x_cf[rows])
        numbers = numbers_of(measured(explained, answers, jury, neighbours)) if len(rows) else {}
        finish(out, key, sizes, numbers, time.perf_counter() - start)


def favourable_last(module: nn.Sequential, dataset: str) -> nn.Sequential:
    """Return the classifier with its favourable logit last; the last one of the authors' CTG is suspect."""
    if dataset == "ctg":
        last = module[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.copy_(last.weight.flip(0))
            last.bias.copy_(last.bias.flip(0))
    return module


@cache
def authors_rows(dataset: str) -> tuple[Encoding, Labelled, Labelled]:
    """Return the encoding, training rows and test rows of the authors; the shifted ones of CTG and WHO."""
    subject = paper_subject(dataset)
    encoding = later_encoding(subject, Encoding.fit(subject.schema, subject.X_train))
    later = subject if subject.later is None else subject.later
    pairs = ((later.X_train, later.y_train), (later.X_test, later.y_test))
    train, test = (
        labelled(encoding.encode(X, out_of_range="ignore"), subject.schema.labels(y)) for X, y in pairs
    )
    return encoding, train, test


@cache
def authors_jury(dataset: str, sizes: Sizes) -> Jury:
    """Return the judges of the authors' test rows."""
    _, train, test = authors_rows(dataset)
    return jury_of_halves(train, test, epochs=sizes.epochs)


# ---------------------------------------------------------------- the command


def tables(out: Path, stored: Path) -> None:
    """Write the numbers of all cells by dataset, and the tables."""
    if cells := read_all(out):
        write_results(stored, cells)
    text = unseen_tables.page(read_results(stored))
    stored.with_suffix(".md").write_text(text, encoding="utf-8")
    if find_spec("matplotlib") is not None:
        from veritracer_bench.plots import acceptance_curves

        acceptance_curves(read_results(stored), stored / "curves.png")
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--methods", nargs="+", default=["veritracer"])
    parser.add_argument(
        "--sweep", nargs="*", metavar="METHOD", help="also each strength; without a name: all"
    )
    parser.add_argument("--splits", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(3)), help="trained side by side")
    parser.add_argument("--people", type=int, default=0, help="declined people that are explained; 0: all")
    parser.add_argument("--epochs", type=int, help="of every training, to try things out")
    parser.add_argument("--rows", type=int, help="the first so many of a dataset, to try things out")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--stored", type=Path, default=STORED, help="folder of the tables")
    parser.add_argument("--table", action="store_true", help="only write the tables of what is there")
    chosen = parser.parse_args()
    methods = [*chosen.methods, *([] if chosen.sweep is None else sweep(chosen.sweep or list(STRENGTHS)))]
    sizes = Sizes(chosen.people, chosen.epochs, chosen.rows)
    for name in methods:
        resolve(name)  # refuses an unknown method before anything is trained
    if not chosen.table:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore", VeriTracerWarning)  # values beyond the model's rows are clipped
        warnings.simplefilter("ignore", UserWarning)  # bins of a binary column are narrow
        if missing := missing_judges():
            print(f"left out, not installed: {', '.join(missing)}", file=sys.stderr)
        for split in chosen.splits:
            for dataset in chosen.datasets:
                measure(chosen.out, dataset, split, methods, chosen.seeds, sizes)
        if reference := os.environ.get("VERITRACER_REFERENCE"):
            for path in sorted((Path(reference) / "authors_runs").glob("*.npz")):
                if path.stem.partition("-")[0] in chosen.datasets:
                    authors_cells(chosen.out, path, sizes)
    tables(chosen.out, chosen.stored)


if __name__ == "__main__":
    main()
