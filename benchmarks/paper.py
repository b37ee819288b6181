"""Summaries of the paper's recipe and of the authors' runs, for docs/reference/paper-results.md.

``VERITRACER_REFERENCE=FOLDER python -m benchmarks.paper --runs FOLDER``

``--runs`` is the folder of ``veritracer bench --recipe paper``. Its models replace the stored numbers of the
same experiment, dataset and method; all other stored numbers stay. Without ``VERITRACER_REFERENCE`` the
summary of the authors' runs stays as it is. ``--retrained`` names folders of runs with other settings, for
the distance of retrained models. ``python docs/write_paper.py`` then writes the page.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping
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
from veritracer_bench.agreement import merged, read_summaries, write_summaries
from veritracer_bench.assumption import (
    SHIFT,
    Models,
    Row,
    kappa_of,
    others_of,
    rows_for,
    rows_of,
    write_rows,
)
from veritracer_bench.authors import later_encoding, paper_subject, unclipped
from veritracer_bench.plan import Subject
from veritracer_bench.reproduction import (
    Job,
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

MODEL_KEY = Job._fields


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


def authors_rows(path: Path) -> Iterator[Row]:
    """Measure where the later models of one file of the authors' runs are."""
    dataset, _, method = path.stem.partition("-")
    run = np.load(path)
    x = torch.from_numpy(run["x"]).double()
    today: dict[int, nn.Module] = {seed: classifier_of(run, seed) for seed in seeds_of(run)}
    answers = {seed: (x, torch.from_numpy(run[f"{seed}/x_cf"]).double()) for seed in today}
    later = {"ri": others_of(today)}
    if all(f"{seed}/finetuned_weight0" in run for seed in today):
        later[SHIFT] = {seed: [classifier_of(run, seed, "finetuned_")] for seed in today}
    yield from rows_for(dataset, f"authors' {method}", Models(today, answers, kappa_of(dataset), later))


def _accuracy(module: nn.Module, encoding: Encoding, subject: Subject) -> float:
    """Return the accuracy on the test rows of the original data; the authors' 1 is suspect on CTG."""
    x: Tensor = unclipped(encoding, subject.X_test)
    labels = torch.as_tensor(subject.schema.labels(subject.y_test))
    return metrics.accuracy(module, x, 1 - labels.int() if subject.name == "ctg" else labels)


def model_line(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the line of a finished job in the table of models."""
    numbers = {n: "" if v is None else f"{v:.5g}" for n, v in document["numbers"].items()}
    return {name: str(document[name]) for name in MODEL_KEY} | numbers


def read_models(path: Path) -> list[dict[str, str]]:
    """Return the lines of the stored table of models."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_models(path: Path, lines: Iterable[Mapping[str, str]]) -> None:
    """Write a line for each model; a number that a model does not have is an empty cell."""
    lines = sorted(lines, key=lambda line: (*(line[name] for name in MODEL_KEY[:3]), int(line["seed"])))
    names = dict.fromkeys([*MODEL_KEY, *(name for line in lines for name in line)])
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(names), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def merge(runs: Path, stored: Path) -> None:
    """Put the summaries of the models in a folder in place of the stored ones of the same groups.

    A group is an experiment, a dataset and a method. A group that is not in the folder keeps its numbers.
    """
    documents = documents_of(runs)
    groups = {tuple(document[name] for name in MODEL_KEY[:3]) for document in documents}
    ours, models, conditions = stored / "ours.csv", stored / "models.csv", stored / f"ours{CONDITIONS}"
    before = read_summaries(ours) if ours.exists() else []
    write_summaries(ours, merged(before, summaries(runs)))
    lines = read_models(models) if models.exists() else []
    lines = [line for line in lines if tuple(line[name] for name in MODEL_KEY[:3]) not in groups]
    write_models(models, [*lines, *map(model_line, documents)])
    known = json.loads(conditions.read_text(encoding="utf-8")) if conditions.exists() else {}
    trained = {".".join(d[name] for name in MODEL_KEY[:3]): d.get("commit") for d in documents}
    known |= {name: {"trained": commit, "summarised": where()} for name, commit in trained.items()}
    write_json(conditions, dict(sorted(known.items())))


def main() -> None:
    """Merge the summary of our runs with the stored one, and write that of the authors' runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--retrained", type=Path, nargs="*", default=[], help="folders of other settings")
    given = parser.parse_args()
    torch.set_num_threads(1)
    STORED.mkdir(parents=True, exist_ok=True)
    merge(given.runs, STORED)
    write_rows(STORED / "assumption.csv", rows_of(given.runs, given.retrained))
    if reference := os.environ.get("VERITRACER_REFERENCE"):
        files = sorted((Path(reference) / "authors_runs").glob("*.npz"))
        write_summaries(STORED / "authors.csv", [authors_summary(path) for path in files])
        write_rows(STORED / "assumption.csv", (row for path in files for row in authors_rows(path)))


if __name__ == "__main__":
    main()
