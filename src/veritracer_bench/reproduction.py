"""The paper's experiments with the paper's recipe: models trained together, results as small files.

``python -m veritracer_bench.reproduction --out FOLDER --datasets heloc --seeds 10 --workers 16``

A job is one model of one dataset, method and seed. Jobs that differ only in the seed are trained together, in
as few batches as keep all processes busy: ten models together take about twice the time of one. A batch
writes a checkpoint while it trains, so that a run that was stopped (``--stop-after SECONDS``) continues where
it was. A finished job is a JSON file of numbers and a safetensors file with the classifier and its
counterfactuals. RI and LOO, which concern several models, are computed from those files at the end, and
printed as a table.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from veritracer import metrics
from veritracer.certificate import certify
from veritracer.encoding import Encoding
from veritracer.engines import make_engine
from veritracer.errors import NotSupportedError, VeriTracerWarning, unknown_name
from veritracer.estimator import VeriTraCER
from veritracer.models.network import Network, from_module, to_module
from veritracer.models.param_sets import ParamSet
from veritracer.training.config import TrainingConfig
from veritracer.training.recipes import PANEL_FREE, settings_of
from veritracer.training.recipes import names as recipe_names
from veritracer_bench.authors import later_encoding, left_out_block, paper_subject, unclipped
from veritracer_bench.plan import Subject
from veritracer_bench.results import PAPER, Printed, where, write_json
from veritracer_bench.running import attempt

METHODS: dict[str, dict[str, Any]] = {
    "veritracer": {"method": "veritracer", "bound": "simul-crown"},
    "crown-ibp": {"method": "veritracer", "bound": "crown-ibp"},
    "ibp": {"method": "veritracer", "bound": "ibp"},
    "counternet": {"method": "counternet"},
    "standard": {"method": "standard"},
}
"""Arguments of ``VeriTraCER`` by the name of the method."""

COMPARED = ("veritracer", "crown-ibp", "ibp", "counternet")
"""The methods of a run that names none."""

EXPERIMENTS = ("ri", "loo")
"""Models with other seeds, and models of one seed without another block of rows each."""


NO_ROWS = np.array([], dtype=np.int64)
"""Positions that a model of ``ri`` does not see."""


class Job(NamedTuple):
    """One model: ``experiment`` is ``ri`` (another seed each) or ``loo`` (another block left out each)."""

    experiment: str
    dataset: str
    method: str
    seed: int

    @property
    def name(self) -> str:
        """The name of its files."""
        return ".".join(map(str, self))


class Options(NamedTuple):
    """Options of all jobs of a run; ``changes`` are settings of the recipe with other values."""

    out: str
    recipe: str = "paper"
    epochs: int | None = None
    train_rows: int | None = None
    test_rows: int | None = None
    data_dir: str | None = None
    changes: tuple[tuple[str, Any], ...] = ()


def run_jobs(jobs: Sequence[Job], options: Options) -> None:
    """Train models that differ only in the seed together, and measure each; skip those that are finished.

    The JSON file of a job is written last, and says that the job is finished.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", VeriTracerWarning)
    out = Path(options.out)
    jobs = [job for job in jobs if not (out / f"{job.name}.json").exists()]
    if not jobs:
        return
    subject = _cut(paper_subject(jobs[0].dataset, options.data_dir), options)
    checkpoint = out / f"{jobs[0].name}-{jobs[-1].seed}.checkpoint"
    start = time.process_time()
    models = _trained(jobs, options, subject, checkpoint)
    shared = {"train_seconds": (time.process_time() - start) / len(jobs), "trained_together": len(jobs)}
    for job, model in zip(jobs, models, strict=True):
        tensors, numbers = _measured(job, model, subject)
        numbers |= {**shared, "seconds_per_epoch": numbers["seconds_per_epoch"] / len(jobs)}
        save_file(tensors, out / f"{job.name}.safetensors")
        document = {
            **job._asdict(),
            "recipe": options.recipe,
            "changes": dict(options.changes),
            "commit": where()["commit"],
            "numbers": numbers,
        }
        write_json(out / f"{job.name}.json", document)
    checkpoint.unlink(missing_ok=True)


def _cut(subject: Subject, options: Options) -> Subject:
    """Return the dataset with fewer rows, to try the machinery."""
    train, test = slice(options.train_rows), slice(options.test_rows)
    subject = subject._replace(
        X_train=subject.X_train.iloc[train],
        y_train=subject.y_train.iloc[train],
        X_test=subject.X_test.iloc[test],
        y_test=subject.y_test.iloc[test],
    )
    if subject.later is None:
        return subject
    later = subject.later
    return subject._replace(
        later=later._replace(
            X_train=later.X_train.iloc[train],
            y_train=later.y_train.iloc[train],
            X_test=later.X_test.iloc[test],
            y_test=later.y_test.iloc[test],
            groups=later.groups[test],
        )
    )


def _trained(jobs: Sequence[Job], options: Options, subject: Subject, checkpoint: Path) -> list[VeriTraCER]:
    """Return the fitted model of each job; the models of leave-one-out all have seed 0."""
    experiment, dataset, method, _ = jobs[0]
    known = f"{options.recipe}:{dataset}"
    name = known if known in recipe_names() else options.recipe
    recipe: dict[str, Any] = {"recipe": name, **dict(options.changes)}
    seeds = [job.seed if experiment == "ri" else 0 for job in jobs]
    rows = len(subject.X_train)
    blocks = [left_out_block(rows, job.seed) if experiment == "loo" else NO_ROWS for job in jobs]
    model = VeriTraCER(subject.schema, recipe=recipe, epochs=options.epochs, **METHODS[method])
    return model.fit_many(subject.X_train, subject.y_train, seeds, leave_out=blocks, checkpoint=checkpoint)


def _measured(job: Job, model: VeriTraCER, subject: Subject) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Return what is kept of a model, and its numbers as the authors define them.

    NOTE[paper]: accuracy is measured on the test rows of the original data, everything else on those of the
    shifted data where there are any; WHO's have a scaler of their own.
    """
    x_test = unclipped(model.encoding_, subject.X_test)
    labels = torch.as_tensor(model.schema_.labels(subject.y_test))
    numbers = {"accuracy": metrics.accuracy(model.classifier_, x_test, labels)}
    numbers |= {"best_epoch": float(model.best_epoch_), "epochs": float(len(model.history_))}
    numbers["seconds_per_epoch"] = float(model.history_["seconds"].median())
    kept = _classifier("classifier", model)
    if model.generator_ is None:
        return kept, numbers
    later = subject.later
    X, X_train = (subject.X_test, subject.X_train) if later is None else (later.X_test, later.X_train)
    encoding = later_encoding(subject, model.encoding_)
    x = unclipped(encoding, X)
    x_cf = model.propose_encoded(x, random_state=0)
    kept |= {"x": x.float(), "x_cf": x_cf.float()}
    x_train = encoding.encode(X_train, out_of_range="ignore")
    numbers |= quality(model.classifier_, model.encoding_, model.param_set(), (x, x_cf, x_train))
    if later is not None and job.experiment == "ri":
        start = copy.copy(model)
        start.encoding_ = encoding
        tuned = start.continue_fit(later.X_train, later.y_train)
        kept |= _classifier("later", tuned)
        numbers |= after_shift(model.classifier_, tuned.classifier_, x, x_cf, later.groups)
        labels = torch.as_tensor(model.schema_.labels(later.y_test))
        numbers["accuracy_later"] = metrics.accuracy(tuned.classifier_, x, labels)
    return kept, numbers


def _classifier(name: str, model: VeriTraCER) -> dict[str, Tensor]:
    return {f"{name}.{i}": t.detach() for i, t in enumerate(from_module(model.classifier_)[1])}


def quality(
    classifier: nn.Module,
    encoding: Encoding,
    param_set: ParamSet,
    rows: tuple[Tensor, Tensor, Tensor],
) -> dict[str, float]:
    """Measure validity, certified rates and distances of counterfactuals, over a set of models.

    ``rows`` are x, x_cf and the training rows, encoded.
    """
    x, x_cf, x_train = rows
    found = certify(classifier, x, x_cf, param_set, radius=False)
    valid = metrics.valid_rows(classifier, x, x_cf)
    return {
        "validity": metrics.validity(classifier, x, x_cf),
        "certified": metrics.certified_rate(found.certified),
        "certified_of_valid": metrics.certified_rate_of_valid(found.certified, found.valid),
        "conditional": float(found.conditional.mean()),
        "proximity": metrics.proximity(x, x_cf, valid),
        "sparsity": metrics.sparsity(encoding, x, x_cf, valid),
        "ddm": metrics.manifold_distance(x_cf, x_train, valid),
    }


def after_shift(
    before: nn.Module, after: nn.Module, x: Tensor, x_cf: Tensor, groups: NDArray[np.str_]
) -> dict[str, float]:
    """Measure DS: the share of valid counterfactuals against the original decision after fine-tuning.

    Also by group of rows, with the share that was valid before.
    """
    own = metrics.favourable(before, x)
    valid = metrics.favourable(before, x_cf) != own
    kept = (metrics.favourable(after, x_cf) != own) & valid
    numbers = {"ds": _share(kept, valid)}
    for name in np.unique(groups):
        rows = torch.from_numpy(groups == name)
        numbers[f"valid, {name}"] = _share(valid & rows, rows)
        numbers[f"ds, {name}"] = _share(kept & rows, valid & rows)
    return numbers


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part.sum() / whole.sum()) if bool(whole.any()) else float("nan")


# ---------------------------------------------------------------- all models of an experiment


class Pairs(NamedTuple):
    """Ordered pairs of models: j's valid counterfactuals judged by i, one number for each pair."""

    differs: NDArray[np.float64]
    keeps: NDArray[np.float64]


def pairs_of(out: Path, jobs: Sequence[Job]) -> Pairs:
    """Measure RI or LOO of the finished jobs in both definitions of the paper."""
    found = [load_file(out / f"{job.name}.safetensors") for job in jobs]
    answers = [(tensors["x"], tensors["x_cf"]) for tensors in found]
    return judged_pairs([module_of(tensors) for tensors in found], answers)


def judged_pairs(modules: Sequence[nn.Module], answers: Sequence[tuple[Tensor, Tensor]]) -> Pairs:
    """Judge the rows and counterfactuals of each model by every other model.

    NOTE[paper]: the text compares with the original decision (``keeps``); the code compares with the other
    model's own decision of the row.
    """
    each: list[tuple[float, float]] = []
    for j, (x, x_cf) in enumerate(answers):
        others = [module for i, module in enumerate(modules) if i != j]
        judged = metrics.cross_model_validity(modules[j], others, x, x_cf)
        each += zip(judged.differs.tolist(), judged.keeps.tolist(), strict=True)
    return Pairs(*(np.array(numbers) for numbers in zip(*each, strict=True)))


def module_of(tensors: dict[str, Tensor], which: str = "classifier") -> nn.Sequential:
    """Build a classifier of a job's file: that of the job, or the ``later`` one after fine-tuning.

    The paper's networks have LeakyReLU and two logits.
    """
    count = sum(name.startswith(f"{which}.") for name in tensors)
    theta = tuple(tensors[f"{which}.{i}"] for i in range(count))
    slope = TrainingConfig(**settings_of("paper", "veritracer")).slope
    network = Network((slope,) * (len(theta) // 2 - 1), (-1.0, 1.0))
    return to_module(network, theta).eval()


SHOWN = {
    "accuracy": "accuracy",
    "valid": "validity",
    "δ-robust": "certified_of_valid",
    "proximity": "proximity",
    "sparsity": "sparsity",
    "DDM": "ddm",
    "DS": "ds",
    "accuracy after": "accuracy_later",
    "seconds per epoch": "seconds_per_epoch",
}
"""Columns of the summary, and the numbers in them."""

ACROSS = ("RI or LOO, f_m(x′) ≠ f_m(x)", "f_m(x′) = f(x′)")
"""Columns of the summary that concern pairs of models."""

BY_MODEL = tuple(f"{column}, by model" for column in ACROSS)
"""The same numbers as means of each model over all others, so that their deviation is one over models."""

PRINTED = {"δ-robust": "delta", "proximity": "proximity", "sparsity": "sparsity", "DDM": "ddm", "DS": "shift"}
ABLATION = {"veritracer": "generator", "crown-ibp": "generator-crown-ibp", "ibp": "generator-ibp"}
"""Names of the paper's tables by column, and of the methods in its ablation."""

IN_ABLATION = {
    "δ-robust": "certified",
    ACROSS[0]: "keeps",
    "accuracy": "accuracy",
    "proximity": "proximity",
    "sparsity": "sparsity",
    "DDM": "ddm",
}
"""Names of the numbers in the paper's ablation, by column."""


class Summary(NamedTuple):
    """Numbers of one method on one dataset by column: mean, deviation (ddof 0), how many; and the paper's."""

    experiment: str
    dataset: str
    method: str
    models: int
    numbers: dict[str, tuple[float, float, int]]
    paper: dict[str, Printed]


def summaries(out: Path) -> list[Summary]:
    """Summarise all finished jobs, over models and, for RI and LOO, over ordered pairs of models."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for document in documents_of(out):
        key = document["experiment"], document["dataset"], document["method"]
        groups.setdefault(key, []).append(document)
    found = []
    for key, same in groups.items():
        compared = len(same) > 1 and key[2] != "standard"
        pairs = pairs_of(out, [Job(*key, document["seed"]) for document in same]) if compared else None
        found.append(summary_of(key, [document["numbers"] for document in same], pairs))
    return found


def documents_of(out: Path) -> list[dict[str, Any]]:
    """Read the JSON files of all finished jobs, sorted by name."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.*.*.*.json"))]


def summary_of(key: tuple[str, str, str], models: Sequence[dict[str, float]], pairs: Pairs | None) -> Summary:
    """Summarise the numbers of models of one experiment, dataset and method."""
    numbers = {}
    for column, name in SHOWN.items():
        values = [model[name] for model in models if model.get(name) is not None]
        if values:
            numbers[column] = _spread(values)
    if pairs is not None:
        numbers |= {column: _spread(each) for column, each in zip(ACROSS, pairs, strict=True)}
        by_model = (each.reshape(len(models), -1) for each in pairs)
        numbers |= {column: _spread(each.mean(1)) for column, each in zip(BY_MODEL, by_model, strict=True)}
    return Summary(*key, len(models), numbers, printed_of(*key))


def printed_of(experiment: str, dataset: str, method: str) -> dict[str, Printed]:
    """Return what the paper prints of a method: its main tables, and its ablation for single bounds."""
    tables = {**PRINTED, ACROSS[0]: experiment, "accuracy": "accuracy"}
    found = {column: PAPER.get((table, dataset, method)) for column, table in tables.items()}
    for column, name in IN_ABLATION.items():
        if found[column] is None and method in ABLATION and experiment == "ri":
            found[column] = PAPER.get((f"ablation {name}", dataset, ABLATION[method]))
    return {column: printed for column, printed in found.items() if printed is not None}


def _spread(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float, int]:
    known = np.asarray(values)[np.isfinite(values)]  # a model without a valid counterfactual has no rates
    return (float(known.mean()), float(known.std()), len(known)) if len(known) else (math.nan, math.nan, 0)


def lines_of(found: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Return the summaries as a header and rows of text; the paper's numbers stand in brackets."""
    columns = [c for c in (*SHOWN, *ACROSS) if any(c in s.numbers for s in found)]
    rows = [
        [each.experiment, each.dataset, each.method, str(each.models), *(_text(each, c) for c in columns)]
        for each in found
    ]
    return ["experiment", "dataset", "method", "models", *columns], rows


def plain(found: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return the summaries as plain values, for JSON."""
    return [
        {**each._asdict(), "paper": {column: printed._asdict() for column, printed in each.paper.items()}}
        for each in found
    ]


def _text(summary: Summary, column: str) -> str:
    if column not in summary.numbers:
        return "–"
    mean, spread, count = summary.numbers[column]
    own = f"{mean:.3f}" if count == 1 else f"{mean:.3f} ({spread:.3f})"
    printed = summary.paper.get(column)
    return own if printed is None else f"{own} [{printed.mean:g}]"


# ---------------------------------------------------------------- the run


class _TimeIsOver(BaseException):
    """Raised when a run has to stop; nothing that handles the errors of a task may hold it up."""


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Leave the block after so many seconds (more than 0), wherever it is; in the main thread only."""

    def stop(*_: object) -> None:
        raise _TimeIsOver

    before = signal.signal(signal.SIGALRM, stop)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0 if math.isinf(seconds) else seconds)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    except _TimeIsOver:  # also if it comes while the timer is switched off
        pass
    finally:
        signal.signal(signal.SIGALRM, before)


def run(jobs: Sequence[Job], options: Options, workers: int, stop_after: float) -> int:
    """Run jobs in other processes until all are done or the time is over; return how many are open.

    Training that is stopped leaves a checkpoint, and the next run continues from there if it has as many
    processes, which decide how the jobs are divided.
    """
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    open_jobs = [job for job in jobs if not (out / f"{job.name}.json").exists()]
    if stop_after <= 0:
        return len(open_jobs)
    calls = ((run_jobs, (batch, options)) for batch in batches_of(open_jobs, workers))
    with _time_limit(stop_after):
        for done in make_engine("local", workers).map(attempt, calls):
            if done.failure is not None:
                print(f"{done.args[0][0].name} failed: {done.failure}", file=sys.stderr, flush=True)
    return sum(not (out / f"{job.name}.json").exists() for job in jobs)


def batches_of(jobs: Sequence[Job], workers: int) -> list[list[Job]]:
    """Divide jobs into few batches that differ only in the seed, but at least one for each process."""
    kinds: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        kinds.setdefault(job[:-1], []).append(job)
    parts = math.ceil(workers / max(len(kinds), 1))
    batches = []
    for same in kinds.values():
        size = math.ceil(len(same) / parts)
        batches += [same[start : start + size] for start in range(0, len(same), size)]
    return batches


def jobs_of(
    experiments: Sequence[str], datasets: Sequence[str], methods: Sequence[str], seeds: int
) -> list[Job]:
    """Return a job for each model, seed by seed, and refuse unknown names."""
    for names, known, what in ((experiments, EXPERIMENTS, "an experiment"), (methods, METHODS, "a method")):
        for name in names:
            if name not in known:
                raise NotSupportedError(unknown_name(f"{what} of the recipe", name, known))
    return [Job(*key, seed) for seed in range(seeds) for key in product(experiments, datasets, methods)]


def main() -> None:
    """Parse the options, run what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--recipe", default="paper", choices=PANEL_FREE)
    parser.add_argument("--datasets", default="heloc")
    parser.add_argument("--methods", default=",".join(COMPARED))
    parser.add_argument("--experiments", default="ri")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--train-rows", type=int)
    parser.add_argument("--test-rows", type=int)
    parser.add_argument("--data-dir")
    parser.add_argument("--change", action="append", default=[], metavar="SETTING=JSON")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    given = parser.parse_args()
    pairs = (change.split("=", 1) for change in given.change)
    changes = tuple((name, json.loads(value)) for name, value in pairs)
    options = Options(
        given.out, given.recipe, given.epochs, given.train_rows, given.test_rows, given.data_dir, changes
    )
    experiments, datasets, methods = (
        text.split(",") for text in (given.experiments, given.datasets, given.methods)
    )
    jobs = jobs_of(experiments, datasets, methods, given.seeds)
    left = run(jobs, options, given.workers, given.stop_after)
    header, rows = lines_of(summaries(Path(given.out)))
    print("\n".join(" | ".join(row) for row in (header, *rows)))
    print(f"{len(jobs) - left} of {len(jobs)} models are done")


if __name__ == "__main__":
    main()
