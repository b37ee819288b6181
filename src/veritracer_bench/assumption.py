"""What the paper assumes and does not measure: where later models are, and what Simul-CROWN's condition adds.

A certificate covers the models in a box around today's parameters. For the later models of an experiment this
module measures how far each tensor is from today's, in radii of the box, how many of the models are inside,
and how many valid counterfactuals keep their decision although the model is outside.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn

from veritracer import metrics
from veritracer.certificate import certify
from veritracer.files import write_whole
from veritracer.models.param_sets import ParamSet
from veritracer.training.recipes import names as recipe_names
from veritracer.training.recipes import settings_of
from veritracer_bench.reproduction import documents_of, module_of

UNCONDITIONAL = ("ibp", "crown-ibp")
"""The bounds that do not use the condition on x."""

SHIFT = "ds"
"""The experiment in which a model is fine-tuned on later rows."""


class Later(NamedTuple):
    """Later models: displacement of each tensor (m, tensors) in radii, whether inside, and survivors (m,).

    A counterfactual survives if a later model gives it the decision that today's model gives it.
    """

    displacement: NDArray[np.float64]
    inside: NDArray[np.bool_]
    survives: NDArray[np.float64]


def later_models(
    param_set: ParamSet, today: nn.Module, later: Sequence[nn.Module], x: Tensor, x_cf: Tensor
) -> Later:
    """Compare later models with the set around today's, and with today's valid counterfactuals."""
    valid = metrics.valid_rows(today, x, x_cf)
    decided = metrics.favourable(today, x_cf)
    kept = [(metrics.favourable(each, x_cf) == decided)[valid].double().mean().item() for each in later]
    return Later(
        np.array([param_set.displacements(each) for each in later]),
        np.array([param_set.contains(each) for each in later]),
        np.array(kept),
    )


class Condition(NamedTuple):
    """Shares of counterfactuals: their proof needs the condition on x; certified only because of it."""

    binds: float
    adds: float


def condition_of(param_set: ParamSet, today: nn.Module, x: Tensor, x_cf: Tensor) -> Condition:
    """Measure what the constraint of Simul-CROWN brings beyond CROWN-IBP and IBP."""
    every = certify(today, x, x_cf, param_set, radius=False)
    free = certify(today, x, x_cf, param_set, methods=UNCONDITIONAL, radius=False)
    return Condition(float(every.conditional.mean()), float((every.certified & ~free.certified).mean()))


# ---------------------------------------------------------------- the stored models of an experiment


class Row(NamedTuple):
    """One line of the table: later models of an experiment, over all models of a dataset and method.

    ``displacement`` has the mean of each tensor, W1, b1, W2, ...; the condition is that of today's models.
    """

    experiment: str
    dataset: str
    method: str
    models: int
    later: int
    displacement: tuple[float, ...]
    inside: float
    survives: float
    survives_outside: float
    binds: float
    adds: float


class Models(NamedTuple):
    """Models of one experiment by seed: today's, rows and counterfactuals (x, x_cf), and κ of their sets.

    ``later`` has other models by the name of their experiment and by the seed of today's model.
    """

    today: dict[int, nn.Module]
    answers: dict[int, tuple[Tensor, Tensor]]
    kappa: float
    later: dict[str, dict[int, list[nn.Module]]]


def rows_for(dataset: str, method: str, models: Models) -> Iterator[Row]:
    """Yield a line for each experiment that has later models."""
    sets = {seed: ParamSet.around(module, models.kappa) for seed, module in models.today.items()}
    conditions = [condition_of(sets[s], module, *models.answers[s]) for s, module in models.today.items()]
    for experiment, later in models.later.items():
        found = [
            later_models(sets[s], models.today[s], others, *models.answers[s])
            for s, others in later.items()
            if others
        ]
        if found:
            yield _row((experiment, dataset, method), found, conditions)


def others_of(today: dict[int, nn.Module]) -> dict[int, list[nn.Module]]:
    """Return for each model all others, as its later ones."""
    return {seed: [each for i, each in today.items() if i != seed] for seed in today}


def kappa_of(dataset: str) -> float:
    """Return the κ of the paper's recipe for a dataset; that of HELOC if it has none."""
    name = f"paper:{dataset}"
    kappa: float = settings_of(name if name in recipe_names() else "paper", "veritracer")["kappa"]
    return kappa


def rows_of(out: Path, retrained: Iterable[Path] = ()) -> Iterator[Row]:
    """Yield a line for each group of finished jobs in a folder, for DS, and for each retrained folder.

    A folder of ``retrained`` has jobs with other settings; the sets are those of the jobs in ``out``, and
    every job is compared with all retrained ones of other seeds.
    """
    for (experiment, dataset, method), seeds in _groups(out).items():
        files = {
            seed: load_file(out / f"{experiment}.{dataset}.{method}.{seed}.safetensors") for seed in seeds
        }
        if any("x_cf" not in tensors for tensors in files.values()):
            continue  # a standard model has no generator
        today: dict[int, nn.Module] = {seed: module_of(tensors) for seed, tensors in files.items()}
        answers = {seed: (tensors["x"].double(), tensors["x_cf"].double()) for seed, tensors in files.items()}
        later = {experiment: others_of(today)}
        if all("later.0" in tensors for tensors in files.values()):
            later[SHIFT] = {seed: [module_of(tensors, "later")] for seed, tensors in files.items()}
        for folder in retrained:
            key = experiment, dataset, method
            if key in (there := _groups(folder)):
                paths = {i: folder / f"{'.'.join(key)}.{i}.safetensors" for i in there[key]}
                again = {i: module_of(load_file(path)) for i, path in paths.items()}
                later[_changed(folder)] = {s: [m for i, m in again.items() if i != s] for s in seeds}
        yield from rows_for(dataset, method, Models(today, answers, kappa_of(dataset), later))


def _groups(out: Path) -> dict[tuple[str, str, str], list[int]]:
    groups: dict[tuple[str, str, str], list[int]] = {}
    for document in documents_of(out):
        key = document["experiment"], document["dataset"], document["method"]
        groups.setdefault(key, []).append(document["seed"])
    return {key: sorted(seeds) for key, seeds in groups.items()}


def _changed(folder: Path) -> str:
    """Return the settings that the jobs of a folder have other values of, as the name of an experiment."""
    changes = documents_of(folder)[0]["changes"]
    return "retrained, " + ", ".join(f"{name} {value}" for name, value in changes.items())


def _row(key: tuple[str, str, str], found: Sequence[Later], conditions: Sequence[Condition]) -> Row:
    displacement, inside, survives = (np.concatenate(each) for each in zip(*found, strict=True))
    return Row(
        *key,
        len(found),
        len(inside),
        tuple(displacement.mean(0).tolist()),
        float(inside.mean()),
        _mean(survives),
        _mean(survives[~inside]),
        float(np.mean([each.binds for each in conditions])),
        float(np.mean([each.adds for each in conditions])),
    )


def _mean(values: NDArray[np.float64]) -> float:
    """Return the mean; a model without a valid counterfactual has no share."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write lines to a table, in place of those of the same group; all others stay."""
    stored = read_rows(path) if path.exists() else []
    merged = {row[:3]: row for row in (*stored, *rows)}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    for row in sorted(merged.values()):
        steps = " ".join(f"{value:.4g}" for value in row.displacement)
        numbers = (f"{value:.5g}" for value in row[6:])
        writer.writerow([*row[:5], steps, *numbers])
    write_whole(path, text.getvalue(), shared=True)


def read_rows(path: Path) -> list[Row]:
    """Read the lines of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_read(line) for line in csv.DictReader(file)]


def _read(line: dict[str, str]) -> Row:
    return Row(
        experiment=line["experiment"],
        dataset=line["dataset"],
        method=line["method"],
        models=int(line["models"]),
        later=int(line["later"]),
        displacement=tuple(map(float, line["displacement"].split())),
        inside=float(line["inside"]),
        survives=float(line["survives"]),
        survives_outside=float(line["survives_outside"]),
        binds=float(line["binds"]),
        adds=float(line["adds"]),
    )


def table(rows: Iterable[Row]) -> list[str]:
    """Return the lines of a Markdown table."""
    header = ["dataset", "method", "later models", "pairs", "displacement of W1, b1, W2, …", "inside"]
    header += ["survive", "survive outside", "condition binds", "condition adds"]
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    for row in rows:
        steps = ", ".join(f"{value:.1f}" for value in row.displacement)
        shares = (f"{value:.4g}" for value in (row.survives, row.survives_outside, row.binds, row.adds))
        cells = [
            row.dataset,
            row.method,
            row.experiment.upper() if len(row.experiment) < 4 else row.experiment,
        ]
        lines.append("| " + " | ".join([*cells, str(row.later), steps, f"{row.inside:.4g}", *shares]) + " |")
    return lines
