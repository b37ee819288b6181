"""The paper's experiments with the paper's recipe: one process for each model, results as small files.

``python -m veritracer_bench.reproduction --out FOLDER --datasets heloc --seeds 10 --workers 16``

A job trains one model of one dataset, method, bound and seed, and measures it. It writes a checkpoint while
it trains, so that a run that was stopped (``--stop-after SECONDS``) continues where it was; a finished job is
a JSON file of numbers and a safetensors file with the classifier and its counterfactuals. What concerns
several models (RI, LOO) is computed from those files at the end, and printed as a table.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from veritracer import metrics
from veritracer.certificate import certify
from veritracer.errors import VeriTracerWarning
from veritracer.model import VeriTraCER
from veritracer.models.network import Network, from_module, to_module
from veritracer.training.config import TrainingConfig
from veritracer.training.recipes import PANEL_FREE, settings_of
from veritracer_bench.authors import later_encoding, left_out_block, paper_subject, unclipped
from veritracer_bench.plan import Later, Subject
from veritracer_bench.results import write_json

METHODS: dict[str, dict[str, Any]] = {
    "veritracer": {"method": "veritracer", "bound": "simul-crown"},
    "crown-ibp": {"method": "veritracer", "bound": "crown-ibp"},
    "ibp": {"method": "veritracer", "bound": "ibp"},
    "counternet": {"method": "counternet"},
    "standard": {"method": "standard"},
}
"""Arguments of ``VeriTraCER`` by the name of the method."""


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
    """What all jobs of a run share; ``changes`` are other values for settings of the recipe."""

    out: str
    recipe: str
    epochs: int | None
    train_rows: int | None
    test_rows: int | None
    data_dir: str | None
    changes: dict[str, Any]


def run_job(job: Job, options: Options) -> None:
    """Train and measure one model, unless that was done; the JSON file says that it was."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", VeriTracerWarning)
    out = Path(options.out)
    if (out / f"{job.name}.json").exists():
        return
    start = time.process_time()
    subject = _cut(paper_subject(job.dataset, options.data_dir), options)
    model = _trained(job, options, subject)
    trained = time.process_time() - start
    tensors, numbers = _measured(job, model, subject)
    numbers |= {"train_seconds": trained, "seconds": time.process_time() - start}
    save_file(tensors, out / f"{job.name}.safetensors")
    document = {**job._asdict(), "recipe": options.recipe, "changes": options.changes, "numbers": numbers}
    write_json(out / f"{job.name}.json", document)
    (out / f"{job.name}.checkpoint").unlink(missing_ok=True)


def _cut(subject: Subject, options: Options) -> Subject:
    """Fewer rows, to try the machinery."""
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
            groups=later.groups[test],
        )
    )


def _trained(job: Job, options: Options, subject: Subject) -> VeriTraCER:
    recipe: dict[str, Any] = {"recipe": f"{options.recipe}:{job.dataset}", **options.changes}
    seed = job.seed if job.experiment == "ri" else 0
    block = left_out_block(len(subject.X_train), job.seed) if job.experiment == "loo" else []
    model = VeriTraCER(subject.schema, recipe=recipe, epochs=options.epochs, **METHODS[job.method])
    checkpoint = Path(options.out) / f"{job.name}.checkpoint"
    return model.fit_many(subject.X_train, subject.y_train, [seed], leave_out=[block], checkpoint=checkpoint)[
        0
    ]


def _measured(job: Job, model: VeriTraCER, subject: Subject) -> tuple[dict[str, Tensor], dict[str, float]]:
    """What is kept of a model, and its numbers as the authors define them.

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
    kept |= {"x": x, "x_cf": x_cf}
    numbers |= quality(model, x, x_cf, encoding.encode(X_train, out_of_range="ignore"))
    if later is not None and job.experiment == "ri":
        start = copy.copy(model)
        start.encoding_ = encoding
        tuned = start.continue_fit(later.X_train, later.y_train)
        kept |= _classifier("later", tuned)
        numbers |= _after_shift(model, tuned, later, x, x_cf)
    return kept, numbers


def _classifier(name: str, model: VeriTraCER) -> dict[str, Tensor]:
    return {f"{name}.{i}": t.detach() for i, t in enumerate(from_module(model.classifier_)[1])}


def quality(model: VeriTraCER, x: Tensor, x_cf: Tensor, x_train: Tensor) -> dict[str, float]:
    """Validity, certified rates and distances of counterfactuals, at the κ of the recipe."""
    found = certify(model.classifier_, x, x_cf, model.param_set(), radius=False)
    valid = metrics.valid_rows(model.classifier_, x, x_cf)
    return {
        "validity": metrics.validity(model.classifier_, x, x_cf),
        "certified": metrics.certified_rate(found.certified),
        "certified_of_valid": metrics.certified_rate_of_valid(found.certified, found.valid),
        "conditional": float(found.conditional.mean()),
        "proximity": metrics.proximity(x, x_cf, valid),
        "sparsity": metrics.sparsity(model.encoding_, x, x_cf, valid),
        "ddm": metrics.manifold_distance(x_cf, x_train, valid),
    }


def _after_shift(
    model: VeriTraCER, tuned: VeriTraCER, later: Later, x: Tensor, x_cf: Tensor
) -> dict[str, float]:
    """DS: the share of valid counterfactuals that the fine-tuned model decides against the original decision.

    Also by group, and which were valid before.
    """
    own = metrics.favourable(model.classifier_, x)
    valid = metrics.favourable(model.classifier_, x_cf) != own
    kept = (metrics.favourable(tuned.classifier_, x_cf) != own) & valid
    labels = torch.as_tensor(model.schema_.labels(later.y_test))
    numbers = {"ds": _share(kept, valid), "accuracy_later": metrics.accuracy(tuned.classifier_, x, labels)}
    for name in np.unique(later.groups):
        rows = torch.from_numpy(later.groups == name)
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
    """RI or LOO of the finished jobs, as the authors define it (``differs``) and as the paper's text does.

    NOTE[paper]: the text compares with the original decision (``keeps``); the code compares with the other
    model's own decision of the row.
    """
    found = [load_file(out / f"{job.name}.safetensors") for job in jobs]
    modules = [_module(tensors) for tensors in found]
    each: list[tuple[float, float]] = []
    for j, tensors in enumerate(found):
        others = [module for i, module in enumerate(modules) if i != j]
        judged = metrics.cross_model_validity(modules[j], others, tensors["x"], tensors["x_cf"])
        each += zip(judged.differs.tolist(), judged.keeps.tolist(), strict=True)
    return Pairs(*(np.array(numbers) for numbers in zip(*each, strict=True)))


def _module(tensors: dict[str, Tensor]) -> nn.Sequential:
    """The classifier of a job's file; the paper's networks have LeakyReLU and two logits."""
    theta = tuple(
        tensors[f"classifier.{i}"] for i in range(sum(n.startswith("classifier.") for n in tensors))
    )
    slope = TrainingConfig(**settings_of("paper", "veritracer")).slope
    network = Network((slope,) * (len(theta) // 2 - 1), (-1.0, 1.0))
    return to_module(network, theta).eval()


SHOWN = ("accuracy", "validity", "certified_of_valid", "proximity", "sparsity", "ddm", "ds", "accuracy_later")
"""Numbers of the summary, in its order."""


def summary(out: Path) -> str:
    """A table of all finished jobs: means over models, with standard deviations (ddof 0) in parentheses."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.json"))]
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for document in documents:
        groups.setdefault((document["experiment"], document["dataset"], document["method"]), []).append(
            document
        )
    lines = ["experiment dataset method models " + " ".join(SHOWN) + " differs keeps seconds/epoch"]
    for (experiment, dataset, method), found in groups.items():
        columns = [
            _spread([d["numbers"][name] for d in found if d["numbers"].get(name) is not None])
            for name in SHOWN
        ]
        jobs = [Job(experiment, dataset, method, d["seed"]) for d in found]
        across = ["–", "–"]
        if len(jobs) > 1 and method != "standard":
            across = [_spread(each.tolist()) for each in pairs_of(out, jobs)]
        seconds = f"{np.median([d['numbers']['seconds_per_epoch'] for d in found]):.2f}"
        lines.append(" ".join([experiment, dataset, method, str(len(found)), *columns, *across, seconds]))
    return "\n".join(lines)


def _spread(numbers: Sequence[float]) -> str:
    return f"{np.mean(numbers):.3f}({np.std(numbers):.3f})" if numbers else "–"


# ---------------------------------------------------------------- the run


def run(jobs: Iterable[Job], options: Options, workers: int, stop_after: float) -> int:
    """Run jobs in processes of their own until all are done or the time is over; return how many are open.

    A process that is stopped leaves a checkpoint, and the next run continues from there.
    """
    end = time.monotonic() + stop_after
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs if not (out / f"{job.name}.json").exists()]
    context = multiprocessing.get_context("spawn")
    running: list[multiprocessing.process.BaseProcess] = []
    while (waiting or running) and time.monotonic() < end:
        running = [process for process in running if process.is_alive()]
        while waiting and len(running) < workers:
            process = context.Process(target=run_job, args=(waiting.pop(0), options), daemon=True)
            process.start()
            running.append(process)
        time.sleep(0.2)
    for process in running:
        process.terminate()
    for process in running:
        process.join()
    return sum(not (out / f"{job.name}.json").exists() for job in jobs)


def main() -> None:
    """Parse the options, run what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--recipe", default="paper", choices=PANEL_FREE)
    parser.add_argument("--datasets", default="heloc")
    parser.add_argument("--methods", default="veritracer,crown-ibp,ibp,counternet")
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
    changes = {name: json.loads(value) for name, value in pairs}
    options = Options(
        given.out, given.recipe, given.epochs, given.train_rows, given.test_rows, given.data_dir, changes
    )
    names = (given.experiments, given.datasets, given.methods)
    experiments, datasets, methods = (text.split(",") for text in names)
    jobs = [
        Job(experiment, dataset, method, seed)
        for experiment in experiments
        for dataset in datasets
        for seed in range(given.seeds)
        for method in methods
    ]
    left = run(jobs, options, given.workers, given.stop_after)
    print(summary(Path(given.out)))
    print(f"{len(jobs) - left} of {len(jobs)} models are done")


if __name__ == "__main__":
    main()
