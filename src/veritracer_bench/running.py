"""The evaluation run: what is not there yet is measured, on every core, and can be stopped at any time.

One result is a method that answers for test rows, and everything that the tables say of it. Models that are
trained together are used by many results: they are trained once, and kept as files of the run.
"""

from __future__ import annotations

import copy
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from veritracer import metrics
from veritracer.certificate import certify
from veritracer.engines import Engine
from veritracer.errors import DataWarning, TrainingError, message
from veritracer.estimator import VeriTraCER
from veritracer.models.network import from_module, to_module
from veritracer.persistence import load
from veritracer.search.reference import Neighbours, subsample
from veritracer.training.fine_tuning import fine_tune
from veritracer_bench import shifts
from veritracer_bench.methods import Problem, resolve
from veritracer_bench.plan import Group, Plan, Subject, cost_of, cost_of_training, group_of, subject_of
from veritracer_bench.results import SQUARE, Cell, Key, read, where, write, write_json

CLASSIFIERS, DONE = "classifiers.safetensors", "training.json"


def folder_of(out: Path, group: Group) -> Path:
    """Return the folder of the models of a group."""
    return out / "models" / group.dataset / group.experiment / group.trainer


def is_trained(out: Path, group: Group, plan: Plan) -> bool:
    """Return True if the models are stored, complete, and of this plan."""
    try:
        document = json.loads((folder_of(out, group) / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(document["configuration"] == plan.group_configuration(group))


def train(out: Path, group: Group, plan: Plan) -> None:
    """Train the models of a group in one batched run, and write them; the last file marks them complete."""
    start = time.process_time()
    subject = subject_of(group.dataset, plan.rows, plan.train_rows, plan.data_dir)
    models = _fit(group, plan, subject)
    if any(model.interrupted_ for model in models):
        raise TrainingError(message("a whole run", models[0].stopped_, "run the same command again"))
    folder = folder_of(out, group)
    (folder / DONE).unlink(missing_ok=True)
    kept: dict[str, nn.Module] = {f"today.{i}": model.classifier_ for i, model in enumerate(models)}
    if subject.later is not None and group.experiment == "ri":
        kept |= {f"later.{i}": module for i, module in enumerate(_fine_tuned(models, subject))}
    for index, model in enumerate(models):
        slim = copy.copy(model)
        slim.neighbours_ = Neighbours(torch.empty(0, model.encoding_.dim))  # all models have the same rows
        slim.save(folder / str(index))
    tensors = {
        f"{name}.{i}": t for name, module in kept.items() for i, t in enumerate(from_module(module)[1])
    }
    save_file({name: t.detach().contiguous() for name, t in tensors.items()}, folder / CLASSIFIERS)
    document: dict[str, Any] = {"configuration": plan.group_configuration(group)}
    document |= {"seconds": time.process_time() - start, "epochs": len(models[0].history_)}
    write_json(folder / DONE, document)


def _fit(group: Group, plan: Plan, subject: Subject) -> list[VeriTraCER]:
    model = VeriTraCER(subject.schema, epochs=plan.epochs, **plan.training(group.trainer))
    kind = shifts.leave_out if group.experiment == "loo" else shifts.random_initialisation
    return kind(model, subject.X_train, subject.y_train, models=plan.seeds)


def _fine_tuned(models: list[VeriTraCER], subject: Subject) -> list[nn.Sequential]:
    """Fine-tune each classifier on the later rows, as ``shifts.distribution_shift`` does."""
    assert subject.later is not None
    x = models[0].encoding_.encode(subject.later.X_train)
    y = torch.as_tensor(models[0].schema_.labels(subject.later.y_train), dtype=x.dtype)
    return [
        fine_tune(
            model.classifier_,
            x,
            y,
            **model.fine_tuning(random_state=seed),
        )
        for seed, model in enumerate(models)
    ]


def model_of(out: Path, group: Group, seed: int, x_train: torch.Tensor | None = None) -> VeriTraCER:
    """Load one model of a group; with ``x_train`` it has its training rows again."""
    model = load(folder_of(out, group) / str(seed))
    if x_train is not None:
        model.neighbours_ = Neighbours(subsample(x_train, model.keep_rows))
    return model


def classifiers_of(out: Path, group: Group, model: VeriTraCER, when: str) -> list[nn.Sequential]:
    """Return the classifiers of a group, ``today`` or ``later``, in the order of their seeds."""
    tensors = load_file(folder_of(out, group) / CLASSIFIERS)
    network, theta = from_module(model.classifier_)
    found: list[nn.Sequential] = []
    while f"{when}.{len(found)}.0" in tensors:
        prefix = f"{when}.{len(found)}"
        found.append(to_module(network, tuple(tensors[f"{prefix}.{i}"] for i in range(len(theta)))).eval())
    return found


# ---------------------------------------------------------------- one result


TIMED_EPOCHS = (1, 1, 3)
"""An epoch takes half of what the third run takes longer than the second; the first only warms up."""


def measure(out: Path, key: Key, plan: Plan) -> Cell:
    """Measure a result, and write it to its file."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # test values beyond the training rows are clipped
        numbers = _epochs(key, plan) if key.experiment == "time" else _answers(out, key, plan)
    seconds = time.perf_counter() - start
    cell = Cell(key, plan.configuration(key), numbers, seconds, where())
    write(out / "cells", cell)
    return cell


def _epochs(key: Key, plan: Plan) -> dict[str, float]:
    """Measure the seconds of one epoch of one model, with the full set of models from the start."""
    subject = subject_of(key.dataset, plan.rows, plan.train_rows, plan.data_dir)
    took = []
    for epochs in TIMED_EPOCHS:
        model = VeriTraCER(subject.schema, epochs=epochs, warmup=0.0, ramp=0.0, **plan.training(key.method))
        start = time.process_time()
        model.fit(subject.X_train, subject.y_train)
        took.append(time.process_time() - start)
    return {"seconds_per_epoch": (took[2] - took[1]) / (TIMED_EPOCHS[2] - TIMED_EPOCHS[1])}


def _answers(out: Path, key: Key, plan: Plan) -> dict[str, float]:
    """Measure the counterfactuals of the test rows, on their own model and on others."""
    subject = subject_of(key.dataset, plan.rows_of(key), plan.train_rows, plan.data_dir)
    group = group_of(key)
    assert group is not None
    model = model_of(out, group, key.seed)
    x_train = model.encoding_.encode(subject.X_train)
    model = model_of(out, group, key.seed, x_train)
    x = model.encoding_.encode(subject.X_test)
    start = time.process_time()
    x_cf = _ask(key, model, subject, subject.X_test, x_train)
    seconds = time.process_time() - start
    numbers = {"rows": float(len(x)), "seconds_per_counterfactual": seconds / len(x)}
    numbers |= _quality(model, x, x_cf, x_train)
    if key.experiment == "ri":
        numbers["accuracy"] = _accuracy(key, model, plan)
        numbers |= _robustness(model, x, x_cf, plan.attacked_of(key))
    today = classifiers_of(out, group, model, "today")
    others = [each for i, each in enumerate(today) if i != key.seed]
    numbers |= _across(model.classifier_, others, x, x_cf)
    if subject.later is not None and key.experiment == "ri":
        later = classifiers_of(out, group, model, "later")[key.seed]
        numbers |= _after_shift(key, model, subject, later, x_train)
    return numbers


def _accuracy(key: Key, model: VeriTraCER, plan: Plan) -> float:
    """Return the accuracy on all test rows, which takes little time."""
    everybody = subject_of(key.dataset, sys.maxsize, plan.train_rows, plan.data_dir)
    labels = torch.as_tensor(model.schema_.labels(everybody.y_test))
    return metrics.accuracy(model.classifier_, model.encoding_.encode(everybody.X_test), labels)


def _ask(key: Key, model: VeriTraCER, subject: Subject, X: pd.DataFrame, x_train: Tensor) -> Tensor:
    y_train = torch.as_tensor(model.schema_.labels(subject.y_train), dtype=torch.float64)
    problem = Problem(model, X, model.encoding_.encode(X), x_train, y_train, key.seed)
    return resolve(key.method).answer(problem)


def _quality(model: VeriTraCER, x: Tensor, x_cf: Tensor, x_train: Tensor) -> dict[str, float]:
    valid = metrics.valid_rows(model.classifier_, x, x_cf)
    return {
        "validity": metrics.validity(model.classifier_, x, x_cf),
        "proximity": metrics.proximity(x, x_cf, valid),
        "sparsity": metrics.sparsity(model.encoding_, x, x_cf, valid),
        "ddm": metrics.manifold_distance(x_cf, x_train, valid),
        "broken_groups": metrics.broken_groups(model.encoding_, x_cf),
    }


def _robustness(model: VeriTraCER, x: Tensor, x_cf: Tensor, attacked: int) -> dict[str, float]:
    """Measure the certified share of all rows and of valid ones, and the unbroken share under attack."""
    param_set = model.param_set()
    found = certify(model.classifier_, x, x_cf, param_set, radius=False)
    numbers = {
        "certified": metrics.certified_rate(found.certified),
        "certified_of_valid": metrics.certified_rate_of_valid(found.certified, found.valid),
    }
    if attacked:
        some = slice(0, attacked)
        numbers["certified_of_attacked"] = metrics.certified_rate(found.certified[some])
        numbers["unbroken_of_attacked"] = metrics.unbroken_rate(param_set, x[some], x_cf[some])
    return numbers


def _across(
    module: nn.Module, others: list[nn.Sequential], x: Tensor, x_cf: Tensor, prefix: str = ""
) -> dict[str, float]:
    found = metrics.cross_model_validity(module, others, x, x_cf)._asdict()
    numbers = {f"{prefix}{name}": float(np.mean(each)) for name, each in found.items()}
    if len(others) > 1:
        numbers |= {f"{prefix}{name}{SQUARE}": float(np.mean(np.square(v))) for name, v in found.items()}
    return numbers


def _after_shift(
    key: Key, model: VeriTraCER, subject: Subject, later: nn.Sequential, x_train: Tensor
) -> dict[str, float]:
    """Measure the counterfactuals of today's model after its fine-tuning, for all rows and by group."""
    assert subject.later is not None
    x = model.encoding_.encode(subject.later.X_test)
    x_cf = _ask(key, model, subject, subject.later.X_test, x_train)
    numbers = _across(model.classifier_, [later], x, x_cf, "shift_")
    numbers["shift_rows"] = float(len(x))
    for name in np.unique(subject.later.groups):
        rows = torch.from_numpy(subject.later.groups == name)
        part = _across(model.classifier_, [later], x[rows], x_cf[rows], "")
        numbers[f"shift_keeps, {name}"] = part["keeps"] if bool(rows.any()) else math.nan
    return numbers


# ---------------------------------------------------------------- the run


Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


class Attempt(NamedTuple):
    """The outcome of a call: its result, or a sentence about its failure."""

    args: tuple[Any, ...]
    result: Any
    failure: str | None


def attempt(call: Call) -> Attempt:
    """Call a function; return an error as text, because one failure must not cost the other results."""
    function, args = call
    try:
        return Attempt(args, function(*args), None)
    except Exception as error:
        return Attempt(args, None, f"{type(error).__name__}: {error}")


Task = Key | Group


class RunProgress(NamedTuple):
    """Progress of a run: results finished and wanted, the last task, and an estimate of the seconds left."""

    done: int
    wanted: int
    last: str
    seconds_left: float | None


@dataclass
class Run:
    """An evaluation in a folder.

    ``failed`` has the sentence of each task that raised; ``measured`` counts the results that this run made,
    ``trained`` the groups of models.
    """

    plan: Plan
    out: Path
    on_progress: Callable[[RunProgress], None] = lambda _: None
    failed: dict[str, str] = field(default_factory=dict)
    measured: int = 0
    trained: int = 0

    def __post_init__(self) -> None:
        self.plan.checked()
        self.keys = self.plan.wanted()
        self._started = time.monotonic()
        self._spent = self._left = 0.0

    def cells(self) -> list[Cell]:
        """Return the stored results of the plan."""
        found = (read(self.out / "cells", key) for key in self.keys)
        return [cell for cell in found if cell and cell.configuration == self.plan.configuration(cell.key)]

    def go(self, engine: Engine, *, stop_after: float | None = None) -> bool:
        """Measure what is missing; return whether nothing is missing now.

        With ``stop_after`` nothing is begun after so many seconds; what was begun is finished. Models that
        results wait for are trained first, beside the results that wait for none; the longest task is first.
        """
        there = {cell.key for cell in self.cells()}
        todo = [key for key in self.keys if key not in there]
        waiting: dict[Group, list[Key]] = {}
        ready: list[Task] = []
        for key in todo:
            group = group_of(key)
            if group is None or is_trained(self.out, group, self.plan):
                ready.append(key)
            else:
                waiting.setdefault(group, []).append(key)
        self._left = sum(map(self._cost, todo)) + sum(map(self._cost, waiting))
        self._work(engine, [*waiting, *ready], stop_after)
        freed = [key for group, keys in waiting.items() if self._is_free(group) for key in keys]
        self._work(engine, list(freed), stop_after)
        return len(self.cells()) == len(self.keys)

    def _is_free(self, group: Group) -> bool:
        return _label(group) not in self.failed and is_trained(self.out, group, self.plan)

    def _work(self, engine: Engine, tasks: list[Task], stop_after: float | None) -> None:
        def in_time() -> Iterator[Call]:
            for task in sorted(tasks, key=self._cost, reverse=True):
                if stop_after is not None and time.monotonic() - self._started >= stop_after:
                    return
                yield train if isinstance(task, Group) else measure, (self.out, task, self.plan)

        for done in engine.map(attempt, in_time()):
            self._finish(done.args[1], done.failure)

    def _finish(self, task: Task, failure: str | None) -> None:
        if failure is not None:
            self.failed[_label(task)] = failure
        else:
            self.measured += isinstance(task, Key)
            self.trained += isinstance(task, Group)
        self._spent += self._cost(task)
        self._left -= self._cost(task)
        elapsed = time.monotonic() - self._started
        left = self._left * elapsed / self._spent if self._spent else None
        self.on_progress(RunProgress(len(self.keys) - self._missing(), len(self.keys), _label(task), left))

    def _missing(self) -> int:
        folder = self.out / "cells"
        return sum(not (folder / key.file).exists() for key in self.keys)

    def _cost(self, task: Task) -> float:
        return cost_of_training(task, self.plan) if isinstance(task, Group) else cost_of(task, self.plan)


def _label(task: Task) -> str:
    return " ".join(map(str, task))
