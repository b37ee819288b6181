"""Summaries of the paper's recipe and of the authors' runs, for docs/reference/paper-results.md.

``VERITRACER_REFERENCE=FOLDER python -m benchmarks.paper --runs FOLDER``

``--runs`` is the folder of ``veritracer bench --recipe paper``. Without ``VERITRACER_REFERENCE`` the summary
of the authors' runs stays as it is. ``python docs/write_paper.py`` then writes the page.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.record import RESULTS
from veritracer import metrics
from veritracer.encoding import Encoding
from veritracer.models.network import Network, to_module
from veritracer.models.param_sets import ParamSet
from veritracer.training.recipes import settings_of
from veritracer_bench.agreement import write_summaries
from veritracer_bench.authors import later_encoding, paper_subject, unclipped
from veritracer_bench.plan import Subject
from veritracer_bench.reproduction import (
    Summary,
    after_shift,
    documents_of,
    judged_pairs,
    quality,
    summaries,
    summary_of,
)
from veritracer_bench.results import CONDITIONS, where, write_json

STORED = RESULTS / "paper"
OWN_RADII = "δ-robust, radii of the stored weights"
"""A number of the authors' models that we measure: their flags have the radii of the last epoch."""


def classifier_of(run: np.lib.npyio.NpzFile, seed: int, prefix: str = "") -> nn.Sequential:
    """Return a classifier of the authors' runs, in float64."""
    pairs = [(run[f"{seed}/{prefix}weight{k}"], run[f"{seed}/{prefix}bias{k}"]) for k in range(4)]
    theta = tuple(torch.from_numpy(t).double() for pair in pairs for t in pair)
    return to_module(Network((0.01,) * 3, (-1.0, 1.0)), theta).eval()


def seeds_of(run: np.lib.npyio.NpzFile) -> list[int]:
    """Return the seeds of a file of the authors' runs."""
    return sorted({int(name.partition("/")[0]) for name in run if "/" in name})


def authors_summary(path: Path) -> Summary:
    """Measure the models of one file of the authors' runs as our own are measured."""
    dataset, _, method = path.stem.partition("-")
    run, subject = np.load(path), paper_subject(dataset)
    first = Encoding.fit(subject.schema, subject.X_train)
    encoding = later_encoding(subject, first)
    later = subject.later
    x_train = encoding.encode((subject if later is None else later).X_train, out_of_range="ignore")
    x, kappa = torch.from_numpy(run["x"]).double(), settings_of(f"paper:{dataset}", "veritracer")["kappa"]
    numbers, modules, answers = [], [], []
    for seed in seeds_of(run):
        module, x_cf = classifier_of(run, seed), torch.from_numpy(run[f"{seed}/x_cf"]).double()
        found = quality(module, encoding, ParamSet.around(module, kappa), (x, x_cf, x_train))
        found |= {"own_radii": found["certified_of_valid"], "accuracy": _accuracy(module, first, subject)}
        found["certified_of_valid"] = float(run[f"{seed}/certified"].sum() / run[f"{seed}/valid"].sum())
        if later is not None:
            tuned = classifier_of(run, seed, "finetuned_")
            found |= after_shift(module, tuned, x, x_cf, later.groups)
            found["accuracy_later"] = metrics.accuracy(tuned, x, torch.from_numpy(run["y"]))
        numbers.append(found)
        modules.append(module)
        answers.append((x, x_cf))
    summary = summary_of(("ri", dataset, method), numbers, judged_pairs(modules, answers))
    own = np.array([each["own_radii"] for each in numbers])
    summary.numbers[OWN_RADII] = (float(own.mean()), float(own.std()), len(own))
    return summary


def _accuracy(module: nn.Module, encoding: Encoding, subject: Subject) -> float:
    """Return the accuracy on the test rows of the original data; the authors' 1 is suspect on CTG."""
    x: Tensor = unclipped(encoding, subject.X_test)
    labels = torch.as_tensor(subject.schema.labels(subject.y_test))
    return metrics.accuracy(module, x, 1 - labels.int() if subject.name == "ctg" else labels)


def write_models(path: Path, documents: list[dict[str, Any]]) -> None:
    """Write a line for each model of our runs."""
    names = list(dict.fromkeys(name for document in documents for name in document["numbers"]))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["experiment", "dataset", "method", "seed", *names])
        for document in documents:
            numbers = (document["numbers"].get(name) for name in names)
            cells = ("" if value is None else f"{value:.5g}" for value in numbers)
            key = (document[name] for name in ("experiment", "dataset", "method", "seed"))
            writer.writerow([*key, *cells])


def main() -> None:
    """Write both summaries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    runs: Path = parser.parse_args().runs
    torch.set_num_threads(1)
    STORED.mkdir(parents=True, exist_ok=True)
    write_summaries(STORED / "ours.csv", summaries(runs))
    write_json(STORED / f"ours{CONDITIONS}", where())
    write_models(STORED / "models.csv", documents_of(runs))
    if reference := os.environ.get("VERITRACER_REFERENCE"):
        files = sorted((Path(reference) / "authors_runs").glob("*.npz"))
        write_summaries(STORED / "authors.csv", [authors_summary(path) for path in files])


if __name__ == "__main__":
    main()
