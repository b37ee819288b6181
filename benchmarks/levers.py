"""Where the defaults of training come from: closeness against what other seeds make of a counterfactual.

``python -m benchmarks.levers [--workers N] [--seeds N]`` trains models of several seeds for each choice of
``weight_proximity`` and ``initialisation`` on 85 % of the training rows, and explains some of the others: no
test row plays a part. Needs the dataset files (VERITRACER_DATA).
"""

from __future__ import annotations

import argparse
import multiprocessing
import warnings
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch

import veritracer as vt
from benchmarks.record import save, show
from veritracer import metrics
from veritracer.bench.subjects import subject_of
from veritracer.errors import DataWarning

EXPLAINED = 300


class Choice(NamedTuple):
    """What is varied; everything else is the library's default."""

    dataset: str
    weight_proximity: float
    initialisation: str


CHOICES = [
    Choice(name, weight, start)
    for name in ("oula", "taiwan_credit", "heloc", "ctg", "who")
    for start in ("torch", "small")
    for weight in (16, 6, 3)
]
"""From the slowest to the fastest."""


def measure(task: tuple[Choice, int]) -> tuple[Choice, dict[str, float]]:
    """Means over the seeds; ``keeps worst seed`` is the seed whose counterfactuals the others keep least."""
    warnings.simplefilter("ignore", DataWarning)
    torch.set_num_threads(1)
    (name, proximity, start), seeds = task
    subject = subject_of(name, 1)
    order = np.random.default_rng(5).permutation(len(subject.X_train))
    aside, rest = np.split(order, [int(0.15 * len(order))])
    X, y = subject.X_train.iloc[np.sort(rest)], subject.y_train.iloc[np.sort(rest)]
    kept_X, kept_y = subject.X_train.iloc[aside], subject.y_train.iloc[aside]
    model = vt.VeriTraCER(subject.schema, weight_proximity=proximity, initialisation=start)
    models = model.fit_many(X, y, range(seeds))
    found = [_explained(models, seed, kept_X.head(EXPLAINED)) for seed in range(seeds)]
    numbers = {key: float(np.mean([each[key] for each in found])) for key in found[0]}
    numbers["keeps, worst seed"] = min(each["keeps"] for each in found)
    numbers["accuracy"] = float(np.mean([each.score(kept_X, kept_y) for each in models]))
    return task[0], numbers


def _explained(models: list[vt.VeriTraCER], seed: int, X: object) -> dict[str, float]:
    mine = models[seed]
    others = [each.classifier_ for each in models if each is not mine]
    found = mine.explain(X, only_unfavourable=False, search_radius=False)
    valid = torch.from_numpy(found.valid)
    across = metrics.cross_model_validity(mine.classifier_, others, found.x, found.x_cf)
    return {
        "certified": float(found.certified.mean()),
        "proximity": metrics.proximity(found.x, found.x_cf, valid),
        "sparsity": metrics.sparsity(mine.encoding_, found.x, found.x_cf, valid),
        "keeps": float(np.mean(across.keeps)),
        "agreement": float(np.mean(across.agreement)),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=10)
    chosen = parser.parse_args()
    found: dict[Choice, dict[str, float]] = {}
    with multiprocessing.get_context("spawn").Pool(chosen.workers, maxtasksperchild=1) as pool:
        for choice, numbers in pool.imap_unordered(measure, [(c, chosen.seeds) for c in CHOICES], 1):
            print(choice, numbers, flush=True)
            found[choice] = numbers
    header = ["weight_proximity", "initialisation", *next(iter(found.values()))]
    tables = []
    for name, choices in groupby(CHOICES, key=lambda choice: choice.dataset):
        lines = [[f"{c[1]:g}", c[2], *(f"{v:.4f}" for v in found[c].values())] for c in choices]
        title = f"{name}: mean over {chosen.seeds} seeds, {EXPLAINED} rows that were not trained on"
        tables.append(show(title, header, lines))
    save("levers", {" ".join(map(str, c)): found[c] for c in CHOICES}, tables)


if __name__ == "__main__":
    main()
