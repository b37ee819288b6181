"""Models that are trained together and used by many results: trained once, kept as files of the run."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from veritracer import shifts
from veritracer.bench.cells import write_json
from veritracer.bench.plan import Group, Plan
from veritracer.bench.subjects import Subject, subject_of
from veritracer.errors import TrainingError, message
from veritracer.fine_tuning import fine_tune
from veritracer.model import VeriTraCER
from veritracer.network import from_module, to_module
from veritracer.recourse.evidence import Neighbours, thinned
from veritracer.saved import load

CLASSIFIERS, DONE = "classifiers.safetensors", "training.json"


def folder_of(out: Path, group: Group) -> Path:
    """Where the models of a group are."""
    return out / "models" / group.dataset / group.experiment / group.trainer


def is_trained(out: Path, group: Group, plan: Plan) -> bool:
    """Whether the models are there, whole, and of this plan."""
    try:
        document = json.loads((folder_of(out, group) / DONE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(document["configuration"] == plan.group_configuration(group))


def train(out: Path, group: Group, plan: Plan) -> None:
    """Train the models of a group in one batched run, and write them; the last file says that all are."""
    start = time.process_time()
    subject = subject_of(group.dataset, plan.rows, plan.train_rows, plan.data_dir)
    models = _fit(group, plan, subject)
    if any(model.stopped_.startswith("interrupted") for model in models):
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
    """What each classifier becomes on the rows that come later, as ``shifts.distribution_shift`` does it."""
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
    """One model of a group; with ``x_train`` it has its training rows again."""
    model = load(folder_of(out, group) / str(seed))
    if x_train is not None:
        model.neighbours_ = Neighbours(thinned(x_train, model.keep_rows))
    return model


def classifiers_of(out: Path, group: Group, model: VeriTraCER, when: str) -> list[nn.Sequential]:
    """The classifiers of all models of a group, ``today`` or ``later``, in the order of their seeds."""
    tensors = load_file(folder_of(out, group) / CLASSIFIERS)
    network, theta = from_module(model.classifier_)
    found: list[nn.Sequential] = []
    while f"{when}.{len(found)}.0" in tensors:
        prefix = f"{when}.{len(found)}"
        found.append(to_module(network, tuple(tensors[f"{prefix}.{i}"] for i in range(len(theta)))).eval())
    return found
