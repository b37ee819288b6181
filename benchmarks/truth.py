"""Whether advice is true: what judges of other classes, the data and (on ``loans``) the simulator say of it.

``python -m benchmarks.truth`` measures, ``python -m benchmarks.truth --table`` makes tables, the page's data
and the picture of what is there. Every finished cell (dataset, seed, method) is a file under ``--out``; a run
can be stopped at any time and goes on where it was. The first seeds of all datasets come first, so many
``--together`` at a time; leave-out models last. Judges are fitted once for a dataset in each process and stay
the same for all seeds. A cell is measured again where what it was asked differs, not where the code does: for
another commit give another ``--out``.

Datasets: the paper's five in the paper's setting, ``loans`` (target ``approved``) and ``loans-repaid``, both
without constraints; any of them with ``-people`` has its grids and what people can change. Methods are those
of ``veritracer_bench``: ``veritracer`` is what the library does when nothing is said, in training and
in ``explain``, whatever that is; ``veritracer[plausibility=0.5]`` asks ``explain`` with options.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from veritracer import VeriTraCER, datasets
from veritracer.datasets.loans_model import Outcome
from veritracer.encoding import Encoding
from veritracer.engines import make_engine
from veritracer.errors import VeriTracerWarning
from veritracer.models.network import from_module
from veritracer.search.reference import Neighbours
from veritracer_bench import truth, truth_tables
from veritracer_bench.judges import COUNTED, Jury, Labelled, groups_of, jury_of, labelled, quality
from veritracer_bench.methods import Problem, arguments, resolve
from veritracer_bench.plan import Subject, subject_of
from veritracer_bench.results import read_results, where, write_results
from veritracer_bench.running import attempt
from veritracer_bench.shifts import LEFT_OUT
from veritracer_bench.truth import Answers, Explained, Simulator, measured
from veritracer_bench.truth_tables import Truth

DATASETS = ("heloc", "taiwan_credit", "oula", "ctg", "who", "loans", "loans-repaid")
PULLS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""How strongly ``explain`` is asked to stay near the data, for the curve."""

METHODS = (
    "veritracer",
    *(f"veritracer[plausibility={pull}]" for pull in PULLS),
    "algorithm-1",
    "counternet",
    "roar",
    "sns",
    "wachter",
    "neighbour",
    *(("dice",) if find_spec("dice_ml") else ()),
)
ORDER = ("standard", "counternet", "veritracer", "algorithm-1")
"""What is trained first: standard models are soon done, and five methods explain them."""

LOANS = 10_000
OUT = Path("out/truth")
STORED = Path(__file__).parent / "results" / "truth"


class Asked(NamedTuple):
    """What a run measures, besides which cells."""

    out: Path
    rows: int
    epochs: int | None
    train_rows: int | None

    def configuration(self, trainer: str) -> dict[str, Any]:
        """All that a cell depends on besides its key."""
        return {
            "rows": self.rows,
            "epochs": self.epochs,
            "train_rows": self.train_rows,
            "training": arguments(trainer),
        }


class Stage(NamedTuple):
    """A dataset with everything that does not depend on the seed of a model."""

    subject: Subject
    encoding: Encoding
    train: Labelled
    test: Labelled
    jury: Jury
    neighbours: Neighbours
    groups: dict[str, np.ndarray]
    opinions: dict[str, np.ndarray]
    simulator: Simulator | None


def subject_for(dataset: str) -> Subject:
    """All training and test rows of a dataset."""
    name, people = dataset.removesuffix("-people"), dataset.endswith("-people")
    if not people and not name.startswith("loans"):
        return subject_of(name, sys.maxsize)
    if name.startswith("loans"):
        data = datasets.loans(LOANS, outcome="repaid" if name == "loans-repaid" else "approved")
    else:
        data = datasets.load(name)
        data = data.original if name in ("ctg", "who") else data
    schema = data.schema if people else data.schema.unconstrained()
    split = data.split()
    return Subject(dataset, schema, split.X_train, split.y_train, split.X_test, split.y_test)


def shortened(dataset: str, train_rows: int | None) -> Subject:
    """The dataset with at most so many training rows."""
    subject = subject_for(dataset)
    rows = len(subject.X_train) if train_rows is None else train_rows
    return subject._replace(X_train=subject.X_train.head(rows), y_train=subject.y_train.head(rows))


@cache
def stage_for(dataset: str, epochs: int | None, train_rows: int | None) -> Stage:
    """The dataset, its judges and its neighbours; made once in a process."""
    subject = shortened(dataset, train_rows)
    encoding = Encoding.fit(subject.schema, subject.X_train)
    pairs = ((subject.X_train, subject.y_train), (subject.X_test, subject.y_test))
    train, test = (
        labelled(encoding.encode(X, out_of_range="ignore"), subject.schema.labels(y)) for X, y in pairs
    )
    jury = jury_of(train, test, epochs=epochs)
    neighbours = Neighbours(torch.from_numpy(train.x), torch.from_numpy(train.y == 1))
    outcome: Outcome = "repaid" if dataset.startswith("loans-repaid") else "approved"
    return Stage(
        subject,
        encoding,
        train,
        test,
        jury,
        neighbours,
        groups_of(subject, train, test),
        jury.opinions(test.x, np.arange(len(test.y))),
        Simulator(outcome, LOANS) if dataset.startswith("loans") else None,
    )


def declined_rows(model: VeriTraCER, stage: Stage, most: int) -> np.ndarray:
    """Positions of test rows that the model declines: the first so many in an order that all models share."""
    with torch.no_grad():
        declined = model.classifier_(torch.from_numpy(stage.test.x))[:, 0].numpy() <= 0
    order = np.random.default_rng(0).permutation(len(declined))
    chosen = order[declined[order]]
    return np.sort(chosen[:most] if most else chosen)


def fitted(
    subject: Subject, trainer: str, seeds: list[int], asked: Asked, leave_out: int | None = None
) -> list[VeriTraCER]:
    """Models of one training; with ``leave_out`` they miss the hundredth of the rows that this draws."""
    model = VeriTraCER(subject.schema, epochs=asked.epochs, **arguments(trainer))
    X, y = subject.X_train, subject.y_train
    if leave_out is None:
        return model.fit_many(X, y, seeds)
    count = max(1, round(LEFT_OUT * len(X)))
    missed = np.sort(np.random.default_rng(leave_out).choice(len(X), count, replace=False))
    return model.fit_many(X, y, seeds, leave_out=[missed] * len(seeds))


def parameters(model: VeriTraCER) -> dict[str, np.ndarray]:
    """The classifier as arrays, from which ``truth_cells.decides`` makes it again."""
    network, theta = from_module(model.classifier_)
    named = {f"theta.{i}": t.detach().double().numpy() for i, t in enumerate(theta)}
    return named | {"slopes": np.array(network.slopes)}


def model_cells(dataset: str, trainer: str, seeds: list[int], asked: Asked) -> dict[int, VeriTraCER]:
    """The models of some seeds, trained side by side, after what each is worth was written."""
    stage = stage_for(dataset, asked.epochs, asked.train_rows)
    start = time.process_time()
    models = dict(zip(seeds, fitted(stage.subject, trainer, seeds, asked), strict=True))
    seconds = (time.process_time() - start) / len(seeds)
    for seed, model in models.items():
        model_cell(dataset, trainer, seed, model, seconds, asked)
    return models


def model_cell(
    dataset: str, trainer: str, seed: int, model: VeriTraCER, seconds: float, asked: Asked
) -> None:
    """What a model is worth, written."""
    stage = stage_for(dataset, asked.epochs, asked.train_rows)
    probability = Explained.of(model).probability(torch.from_numpy(stage.test.x))
    counted = {name: stage.opinions[name] for name in COUNTED}
    numbers = quality(probability, stage.test, stage.groups, counted, threshold=model.threshold)
    meta = {"numbers": numbers, "seconds": seconds, "where": where()}
    meta["configuration"] = asked.configuration(trainer)
    arrays = parameters(model) | {"probability": probability.astype(np.float32)}
    truth.write_file(asked.out, ("model", dataset, trainer, seed), meta, arrays)


def answer_cell(dataset: str, name: str, seed: int, model: VeriTraCER, asked: Asked) -> None:
    """Ask one method, measure what it says, and write it."""
    stage, method = stage_for(dataset, asked.epochs, asked.train_rows), resolve(name)
    assert model.encoding_.digest == stage.encoding.digest  # judges see rows as the model does
    rows = declined_rows(model, stage, asked.rows)
    x, X = torch.from_numpy(stage.test.x[rows]), stage.subject.X_test.iloc[rows]
    train = torch.from_numpy(stage.train.x), torch.from_numpy(stage.train.y).double()
    start = time.process_time()
    x_cf = method.answer(Problem(model, X, x, *train, seed)) if len(rows) else x
    seconds = time.process_time() - start
    if dataset.endswith("-people") and len(rows):
        x_cf = stage.encoding.project(x_cf, x)
    arrays = {}
    if len(rows):
        answers = Answers(rows, X, x, x_cf)
        explained = Explained.of(model)
        arrays = measured(explained, answers, stage.jury, stage.neighbours, simulator=stage.simulator)
    meta = {"seconds": seconds, "where": where(), "trainer": method.trainer, "threshold": model.threshold}
    meta["configuration"] = asked.configuration(method.trainer)
    truth.write_file(asked.out, ("truth", dataset, name, seed), meta, arrays)


def judges_cell(dataset: str, asked: Asked) -> None:
    stage = stage_for(dataset, asked.epochs, asked.train_rows)
    meta = {"judges": stage.jury.quality(stage.test), "where": where(), "seconds": 0.0}
    meta["configuration"] = asked.configuration("standard")
    truth.write_file(asked.out, ("judges", dataset, "judges", 0), meta, {})


def job(dataset: str, seeds: tuple[int, ...], methods: tuple[str, ...], asked: Asked) -> str:
    """All missing cells of one dataset and some seeds, each written when it is done."""
    start = time.perf_counter()
    warnings.simplefilter("ignore", VeriTracerWarning)  # test values beyond the training rows are clipped
    missing: dict[str, list[tuple[int, str]]] = {}
    for name in methods:
        trainer = resolve(name).trainer
        wanted = [s for s in seeds if not _done(("truth", dataset, name, s), trainer, asked)]
        missing.setdefault(trainer, []).extend((seed, name) for seed in wanted)
    trained = {
        trainer: sorted({s for s, _ in cells} | set(_untrained(dataset, trainer, seeds, asked)))
        for trainer, cells in {"standard": [], **missing}.items()
    }
    if any(trained.values()) and not _done(("judges", dataset, "judges", 0), "standard", asked):
        judges_cell(dataset, asked)
    for trainer in sorted(trained, key=lambda each: (ORDER.index(each) if each in ORDER else 99, each)):
        models = model_cells(dataset, trainer, trained[trainer], asked) if trained[trainer] else {}
        for seed, name in missing.get(trainer, []):
            answer_cell(dataset, name, seed, models[seed], asked)
    count = sum(map(len, missing.values()))
    return f"{dataset} {', '.join(map(str, seeds))}: {count} cells, {time.perf_counter() - start:.0f} s"


def _untrained(dataset: str, trainer: str, seeds: tuple[int, ...], asked: Asked) -> list[int]:
    return [seed for seed in seeds if not _done(("model", dataset, trainer, seed), trainer, asked)]


def leave_out_job(dataset: str, trainer: str, number: int, asked: Asked) -> str:
    """A model of seed 0 that misses a hundredth of the rows."""
    key = ("left out", dataset, trainer, number)
    if _done(key, trainer, asked):
        return f"{dataset} {trainer}, left out {number}: done before"
    warnings.simplefilter("ignore", VeriTracerWarning)
    start = time.perf_counter()
    # Not the stage: its judges are not needed here, and take longer than the model.
    (model,) = fitted(shortened(dataset, asked.train_rows), trainer, [0], asked, leave_out=number)
    meta = {"seconds": time.perf_counter() - start, "where": where()}
    meta["configuration"] = asked.configuration(trainer)
    truth.write_file(asked.out, key, meta, parameters(model))
    return f"{dataset} {trainer}, left out {number}: {time.perf_counter() - start:.0f} s"


def _done(key: truth.Name, trainer: str, asked: Asked) -> bool:
    cell = truth.read_meta(asked.out, key)
    return cell is not None and cell["configuration"] == json.loads(json.dumps(asked.configuration(trainer)))


def run(chosen: argparse.Namespace, asked: Asked) -> None:
    """Measure what is missing, seed by seed."""
    methods = tuple(chosen.methods)
    trainers = list(dict.fromkeys(resolve(name).trainer for name in methods))
    blocks = [
        tuple(chosen.seeds[at : at + chosen.together]) for at in range(0, len(chosen.seeds), chosen.together)
    ]
    tasks: list[tuple[Any, tuple[Any, ...]]] = [
        (job, (name, block, methods, asked)) for block in blocks for name in chosen.datasets
    ]
    tasks += [
        (leave_out_job, (name, trainer, number, asked))
        for number in range(chosen.left_out)
        for name in chosen.datasets
        for trainer in trainers
    ]
    for each in make_engine("local", chosen.processes).map(attempt, tasks):
        if each.failure is None:
            print(each.result, flush=True)
        else:
            print(*each.args[:2], f"failed: {each.failure}", file=sys.stderr, flush=True)


def tables(asked: Asked, stored: Path) -> None:
    """Write the numbers of all cells by dataset, the tables and the picture."""
    write_results(stored, truth.summarised(asked.out))
    cells = read_results(stored)
    text = truth_tables.page(cells)
    if find_spec("matplotlib") is not None:
        from veritracer_bench.plots import frontier

        frontier(Truth(cells), stored / "frontier.png")
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)), help="for example 0 1 2")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--rows", type=int, default=200, help="declined test rows of a cell; 0: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--together", type=int, default=5, help="seeds that are trained side by side")
    parser.add_argument("--left-out", type=int, default=2, help="leave-out models of each training")
    parser.add_argument("--epochs", type=int, help="of every training, to try things out")
    parser.add_argument("--train-rows", type=int, help="the first so many, to try things out")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--stored", type=Path, default=STORED, help="where --table writes")
    parser.add_argument("--table", action="store_true", help="only make tables of what is there")
    chosen = parser.parse_args()
    asked = Asked(chosen.out, chosen.rows, chosen.epochs, chosen.train_rows)
    for name in chosen.methods:
        resolve(name)  # refuses what does not exist before anything is trained
    if not chosen.table:
        try:
            run(chosen, asked)
        except KeyboardInterrupt:
            print("stopped; the same command goes on, --table shows what is there", file=sys.stderr)
            sys.exit(130)
    tables(asked, chosen.stored)


if __name__ == "__main__":
    main()
