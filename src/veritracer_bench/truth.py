"""Counterfactuals beyond their own model: independent acceptance, plausibility, and simulated outcomes.

The rows R are test rows that the method's own model declines. A counterfactual that is missing or that the
model itself does not accept counts as refused by everybody, with a gain of 0; it has no distance, no place
among the data and makes no claim, so that those are of the others. ``measured`` gives an array for each thing
that is known of a row, ``summary`` the numbers of a set of rows; nothing in between is thrown away.

A cell of the measurement is one ``npz`` file that is whole or absent: arrays by name, and ``meta``, a JSON
text. Everything that concerns several cells (rows that every model declines, models of other seeds) is
computed from these files, so that no cell waits for another one.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from veritracer import datasets, metrics
from veritracer.certificate import certify
from veritracer.datasets.loans_model import TERMS, Outcome
from veritracer.encoding import Encoding
from veritracer.errors import VeriTracerWarning
from veritracer.estimator import VeriTraCER
from veritracer.files import whole_file
from veritracer.metrics import MOVED
from veritracer.models.network import Network, from_module, threshold_logit
from veritracer.models.param_sets import ParamSet
from veritracer.search.reference import LOF_LABELLED, Neighbours
from veritracer_bench.judges import COUNTED, LEFT_OUT, MLPS, NAMES, Floats, Jury
from veritracer_bench.results import Cell, Key

INLIER = 1.5
"""A local outlier factor up to which a row counts as one among the data."""

MIDDLE = 1.959964
"""The standard normal quantile of a two-sided 95 % interval."""

Measured = dict[str, NDArray[Any]]
"""Arrays (n,), or (members, n) for what several models say, by name."""


class Answers(NamedTuple):
    """A method's counterfactuals of test rows at the positions ``rows`` (n,), all of them declined.

    ``X`` are the raw rows, ``x`` and ``x_cf`` (n, d) the encoded ones; where there is no answer ``x_cf`` is
    anything that the model declines, or not finite.
    """

    rows: NDArray[np.int64]
    X: pd.DataFrame
    x: Tensor
    x_cf: Tensor


class Explained(NamedTuple):
    """A model that is explained: its classifier, the set of its certificates, encoding and threshold."""

    classifier: nn.Module
    param_set: ParamSet
    encoding: Encoding
    threshold: float = 0.5

    @classmethod
    def of(cls, model: VeriTraCER, kappa: float = 0.2) -> Explained:
        """Return a fitted model with its set at this kappa."""
        return cls(model.classifier_, model.param_set(kappa), model.encoding_, model.threshold)

    def probability(self, x: Tensor) -> Floats:
        """Return the probability of the favourable label for encoded rows (n, d)."""
        network, theta = from_module(self.classifier)
        with torch.no_grad():
            logit = network.logit(theta, x.to(theta[0])) + threshold_logit(self.threshold)
        found: Floats = torch.sigmoid(logit).double().numpy()
        return found


class Outcomes(NamedTuple):
    """Outcomes of people who act: probabilities and outcomes before and after, and the rows after."""

    before: Floats
    after: Floats
    happened: NDArray[np.bool_]
    happened_after: NDArray[np.bool_]
    frame: pd.DataFrame


@dataclass(frozen=True)
class Simulator:
    """The causal model of ``loans``: what an action brings about, hidden traits and noise as they were."""

    outcome: Outcome = "approved"
    rows: int = 10_000

    def act(self, advised: pd.DataFrame, origin: pd.DataFrame) -> Outcomes:
        """Simulate people (rows of ``loans``, by their index) who change their rows to ``advised``.

        Terms go in whole years: advice in between is taken for the nearest one.
        """
        advised = advised.assign(term_months=_nearest_of(TERMS, advised["term_months"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VeriTracerWarning)  # what is beyond a range counts as its end
            before = datasets.loans_truth(origin, outcome=self.outcome)
            after = datasets.loans_truth(advised, origin, self.outcome)
            frame = datasets.loans_after(advised, origin)
            now = datasets.loans(self.rows, outcome=self.outcome)
            done = advised.where(advised.ne(origin))
            then = datasets.loans(self.rows, outcome=self.outcome, do=done)
        happened = [(each.y.loc[origin.index] == "yes").to_numpy() for each in (now, then)]
        return Outcomes(before, after, happened[0], happened[1], frame)


def _nearest_of(levels: Sequence[float], column: pd.Series[Any]) -> pd.Series[Any]:
    """Return the nearest level to each cell."""
    known = np.asarray(levels)
    away = np.abs(column.to_numpy(dtype=float)[:, None] - known)
    return pd.Series(known[away.argmin(-1)], index=column.index)


def measured(
    model: Explained,
    answers: Answers,
    jury: Jury,
    neighbours: Neighbours,
    *,
    simulator: Simulator | None = None,
) -> Measured:
    """Measure each counterfactual; there must be at least one.

    ``neighbours`` are the training rows with their labels.
    """
    x, x_cf = answers.x.double(), answers.x_cf.double()
    x_cf = torch.where(torch.isfinite(x_cf).all(-1, keepdim=True), x_cf, x)
    found = metrics.favourable(model.classifier, x_cf) & ~metrics.favourable(model.classifier, x)
    x_cf = torch.where(found.unsqueeze(-1), x_cf, x)
    values: Measured = {"rows": answers.rows, "found": found.numpy(), "x_cf": x_cf.numpy()}
    proofs = certify(model.classifier, x, x_cf, model.param_set, radius=False)
    values["certified"] = proofs.certified & proofs.valid
    values["claimed"] = model.probability(x_cf)
    for when, rows in (("at x", x), ("at x'", x_cf)):
        for judge, said in jury.opinions(rows.numpy(), answers.rows).items():
            values[f"{judge} {when}"] = said
    values |= _places(model, x, x_cf, neighbours)
    if simulator is not None:
        values |= _acted(model, answers, x_cf, simulator)
    return values


def _places(model: Explained, x: Tensor, x_cf: Tensor, neighbours: Neighbours) -> Measured:
    """Measure the distance of each counterfactual from its row and from accepted training rows."""
    changed = model.encoding.changed(x_cf, x, tol=MOVED)
    accepted = Neighbours(neighbours.labelled(favourable=True))
    return {
        "distance": (x_cf - x).abs().mean(-1).numpy(),
        "changes": changed.sum(-1).numpy(),
        "changed share": changed.double().mean(-1).numpy(),
        "lof": neighbours.outlier_factor(x_cf, LOF_LABELLED, favourable=True),
        "nearest": accepted.nearest(x_cf)[1],
        "broken": np.array([metrics.broken_groups(model.encoding, row[None]) > 0 for row in x_cf]),
    }


def _acted(model: Explained, answers: Answers, x_cf: Tensor, simulator: Simulator) -> Measured:
    """Simulate people who follow their counterfactual; those without one change nothing."""
    shown = model.encoding.decode(x_cf, original=answers.X, start=answers.x)
    became = simulator.act(shown, answers.X)
    after = model.encoding.encode(became.frame, out_of_range="ignore")
    return {
        "accepted after": metrics.favourable(model.classifier, after).numpy(),
        "claimed after": model.probability(after),
        "true": became.before,
        "true after": became.after,
        "happened": became.happened,
        "happened after": became.happened_after,
    }


class Number(NamedTuple):
    """A number, and its standard error as far as the rows go; nan where there are no rows."""

    value: float
    error: float


def summary(
    values: Mapping[str, NDArray[Any]],
    keep: NDArray[np.bool_] | None = None,
    *,
    threshold: float = 0.5,
) -> dict[str, Number]:
    """Return the numbers of all rows, or of those in ``keep`` (n,), by name.

    Judges decide favourably above ``threshold``; what several of them say is their mean.
    """
    if keep is not None:
        values = {name: value if name == "x_cf" else value[..., keep] for name, value in values.items()}
    found = values["found"]
    numbers = {
        "found": mean(found),
        "certified": mean(values["certified"]),
        "claimed": mean(values["claimed"][found]),
        "distance": mean(values["distance"][found]),
        "changes": mean(values["changes"][found]),
        "median changes": median(values["changes"][found]),
        "changed share": mean(values["changed share"][found]),
        "LOF": median(values["lof"][found]),
        "inliers": mean(values["lof"][found] <= INLIER),
        "nearest": mean(values["nearest"][found]),
        "broken": mean(values["broken"][found]),
    }
    for judge in (name.removesuffix(" at x") for name in values if name.endswith(" at x")):
        if judge != LEFT_OUT:
            numbers |= _judged(values, judge, threshold)
    for name, judge in (("RI, standard", MLPS), ("LOO, standard", LEFT_OUT)):
        if f"{judge} at x'" in values:
            numbers[name] = mean((values[f"{judge} at x'"] > threshold).mean(0)[found])
    counted = [numbers[f"acceptance, {judge}"] for judge in COUNTED if f"acceptance, {judge}" in numbers]
    numbers["lowest"] = min(counted, key=lambda number: number.value, default=Number(np.nan, np.nan))
    return numbers | (_true(values) if "true" in values else {})


def _judged(values: Mapping[str, NDArray[Any]], judge: str, threshold: float) -> dict[str, Number]:
    """Return one judge's numbers: acceptance, share accepted already, gain, overclaim."""
    found, at_x, at_cf = values["found"], values[f"{judge} at x"], values[f"{judge} at x'"]
    already, accepts = at_x > threshold, (at_cf > threshold) & found
    gain = np.where(found, at_cf - at_x, 0.0).mean(0)
    return {
        f"acceptance, {judge}": mean(accepts.mean(0)),
        f"already, {judge}": mean(already.mean(0)),
        f"of declined, {judge}": ratio((accepts & ~already).sum(0), (~already).sum(0)),
        f"gain, {judge}": mean(gain),
        f"overclaim, {judge}": mean((values["claimed"] - at_cf.mean(0))[found]),
    }


def _true(values: Mapping[str, NDArray[Any]]) -> dict[str, Number]:
    """Return the simulator's numbers; the gaming gap is acceptance less improvement."""
    found, before, after = values["found"], values["true"], values["true after"]
    accepted, improved = values["accepted after"] & found, values["happened after"]
    return {
        "acceptance after acting": mean(accepted),
        "improvement": mean(improved),
        "favourable at x": mean(values["happened"]),
        "gaming gap": mean(accepted.astype(float) - improved),
        "true gain": mean(np.where(found, after - before, 0.0)),
        "true at x": mean(before),
        "true after": mean(np.where(found, after, before)),
        "true overclaim": mean((values["claimed after"] - after)[found]),
        "truly cross": mean((after > 0.5) & found),
    }


def mean(values: NDArray[Any]) -> Number:
    """Return the mean with its standard error."""
    count = len(values)
    if count == 0:
        return Number(np.nan, np.nan)
    return Number(float(np.mean(values)), float(np.std(np.asarray(values, dtype=float)) / np.sqrt(count)))


def median(values: NDArray[Any]) -> Number:
    """Return the median, and a standard error from the order statistics that enclose it at 95 %."""
    count = len(values)
    if count == 0:
        return Number(np.nan, np.nan)
    ordered = np.sort(np.asarray(values, dtype=float))
    half = MIDDLE * np.sqrt(count) / 2
    low, high = (int(np.clip(round(count / 2 + way * half), 0, count - 1)) for way in (-1, 1))
    return Number(float(np.median(ordered)), float(ordered[high] - ordered[low]) / (2 * MIDDLE))


def ratio(parts: NDArray[Any], wholes: NDArray[Any]) -> Number:
    """Return the sum of the parts over that of the wholes, with the standard error of a ratio over rows."""
    total = float(np.sum(wholes))
    if total == 0:
        return Number(np.nan, np.nan)
    value = float(np.sum(parts)) / total
    return Number(value, float(np.sqrt(np.sum((parts - value * wholes) ** 2)) / total))


# ---------------------------------------------------------------- cells as files


Name = tuple[str, str, str, int]
"""Kind (``truth``, ``model``, ``left out`` or ``judges``), dataset, method or training, seed."""

ERROR = " ±"
"""The end of the name of a number's standard error."""

COMMON = ", common rows"
"""The end of the name of a number of the rows that every compared model declines."""

OF_COMMON = ("found", "certified", "distance", "LOF", "lowest", *(f"acceptance, {name}" for name in NAMES))


class File(NamedTuple):
    """A cell as it was read."""

    name: Name
    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def write_file(out: Path, name: Name, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a cell to its file, which appears only when it is complete."""
    path = _path(out, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"meta": np.array(json.dumps({"name": name, **meta})), **arrays}
    with whole_file(path, shared=True) as file:
        np.savez_compressed(file, **content)


def read_file(path: Path) -> File:
    """Read the cell in a file."""
    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files if name != "meta"}
        meta = json.loads(str(content["meta"]))
    kind, dataset, which, seed = meta.pop("name")
    return File((kind, dataset, which, seed), meta, arrays)


def read_meta(out: Path, name: Name) -> dict[str, Any] | None:
    """Return the metadata of a cell; None if it is missing or damaged."""
    try:
        found = read_file(_path(out, name))
    except (OSError, ValueError, KeyError, EOFError):
        return None
    return found.meta if found.name == name else None


def _path(out: Path, name: Name) -> Path:
    kind, dataset, which, seed = name
    plain = which.replace(":", "+").replace("/", "_")
    return out / "cells" / f"{kind.replace(' ', '_')}.{dataset}.{plain}.{seed}.npz"


def decides(arrays: Mapping[str, NDArray[Any]], x: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the decisions (n,) of a stored classifier on encoded rows (n, d)."""
    count = sum(name.startswith("theta.") for name in arrays)
    theta = tuple(torch.from_numpy(arrays[f"theta.{i}"]) for i in range(count))
    network = Network(tuple(map(float, arrays["slopes"])))
    found: NDArray[np.bool_] = (network.logit(theta, torch.from_numpy(x)) > 0).numpy()
    return found


def summarised(out: Path) -> list[Cell]:
    """Return the numbers of all cells in a folder, sorted."""
    files = [read_file(path) for path in sorted((out / "cells").glob("*.npz"))]
    models = {file.name: file for file in files if file.name[0] in ("model", "left out")}
    cells = [_of_model(file) for file in files if file.name[0] == "model"]
    cells += [cell for file in files if file.name[0] == "judges" for cell in _of_judges(file)]
    answers = [file for file in files if file.name[0] == "truth"]
    for file in answers:
        cells.append(_of_answers(file, _common(file, answers), models))
    return sorted(cells, key=lambda cell: cell.key)


def _of_model(file: File) -> Cell:
    numbers = {**file.meta["numbers"], "fit seconds": float(file.meta["seconds"])}
    return _cell(file, file.name, numbers)


def _of_judges(file: File) -> Iterator[Cell]:
    for judge, numbers in file.meta["judges"].items():
        yield _cell(file, ("judges", file.name[1], judge, 0), numbers)


def _of_answers(file: File, common: NDArray[np.int64], models: Mapping[Name, File]) -> Cell:
    """Return the numbers of one method and seed; without a declined row there are none."""
    values = file.arrays
    numbers: dict[str, float] = {"rows": float(len(values.get("rows", ())))}
    numbers["explain seconds"] = float(file.meta["seconds"])
    if values:
        everybody = summary(values, threshold=file.meta["threshold"])
        some = np.isin(values["rows"], common)
        numbers["rows" + COMMON] = float(some.sum())
        shared = summary(values, some, threshold=file.meta["threshold"])
        everybody |= {name + COMMON: shared[name] for name in OF_COMMON}
        everybody |= _other_models(file, models)
        for name, (value, error) in everybody.items():
            numbers |= {name: value, name + ERROR: error}
    return _cell(file, file.name, numbers)


def _common(file: File, answers: Iterable[File]) -> NDArray[np.int64]:
    """Return the test rows that every method explained on this dataset and seed."""
    same = [o for o in answers if o.name[1] == file.name[1] and o.name[3] == file.name[3]]
    rows = [set(o.arrays["rows"].tolist() if o.arrays else []) for o in same]
    return np.array(sorted(set.intersection(*rows)), dtype=np.int64)


def _other_models(file: File, models: Mapping[Name, File]) -> dict[str, Number]:
    """f_m(x′) = f(x′) among valid answers: models of the same training with other seeds, or fewer rows.

    Models that miss rows have the seed 0, and answers of that seed are held against them.
    """
    _, dataset, _, seed = file.name
    trainer, found = file.meta["trainer"], file.arrays["found"]
    x_cf = file.arrays["x_cf"][found]
    numbers = {}
    for title, kind in (("RI, same training", "model"), ("LOO, same training", "left out")):
        others = [
            each
            for name, each in models.items()
            if name[:3] == (kind, dataset, trainer) and (name[3] != seed if kind == "model" else seed == 0)
        ]
        if others and len(x_cf):
            kept = np.mean([decides(each.arrays, x_cf) for each in others], axis=0)
            numbers[title] = Number(float(kept.mean()), float(kept.std() / np.sqrt(len(kept))))
    return numbers


def _cell(file: File, name: Name, numbers: Mapping[str, float]) -> Cell:
    configuration = {**file.meta["configuration"]}
    return Cell(Key(*name), configuration, dict(numbers), float(file.meta["seconds"]), file.meta["where"])
