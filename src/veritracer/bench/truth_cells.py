"""Cells of the measurement of truth as files: what is known of every row, and the numbers that come of it.

A cell is one ``npz`` file that is whole or absent: arrays by name, and ``meta``, a JSON text. Everything that
concerns several cells (rows that every model declines, models of other seeds) is computed from these files,
so that no cell waits for another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from veritracer.bench.cells import Cell, Key
from veritracer.bench.judges import NAMES
from veritracer.bench.truth import Number, summary
from veritracer.files import whole_file
from veritracer.network import Network

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


def write(out: Path, name: Name, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Put a cell into its file, which appears only when it is whole."""
    path = _path(out, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"meta": np.array(json.dumps({"name": name, **meta})), **arrays}
    with whole_file(path, shared=True) as file:
        np.savez_compressed(file, **content)


def read(path: Path) -> File:
    """The cell in a file."""
    with np.load(path, allow_pickle=False) as content:
        arrays = {name: content[name] for name in content.files if name != "meta"}
        meta = json.loads(str(content["meta"]))
    kind, dataset, which, seed = meta.pop("name")
    return File((kind, dataset, which, seed), meta, arrays)


def read_meta(out: Path, name: Name) -> dict[str, Any] | None:
    """What a cell says of itself; None where it is not there or is damaged."""
    try:
        found = read(_path(out, name))
    except (OSError, ValueError, KeyError, EOFError):
        return None
    return found.meta if found.name == name else None


def _path(out: Path, name: Name) -> Path:
    kind, dataset, which, seed = name
    plain = which.replace(":", "+").replace("/", "_")
    return out / "cells" / f"{kind.replace(' ', '_')}.{dataset}.{plain}.{seed}.npz"


def decides(arrays: Mapping[str, NDArray[Any]], x: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The decisions (n,) of a kept classifier on encoded rows (n, d)."""
    count = sum(name.startswith("theta.") for name in arrays)
    theta = tuple(torch.from_numpy(arrays[f"theta.{i}"]) for i in range(count))
    network = Network(tuple(map(float, arrays["slopes"])))
    found: NDArray[np.bool_] = (network.logit(theta, torch.from_numpy(x)) > 0).numpy()
    return found


def summarised(out: Path) -> list[Cell]:
    """The numbers of all cells in a folder, sorted."""
    files = [read(path) for path in sorted((out / "cells").glob("*.npz"))]
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
    """The numbers of one method and seed; with no declined row there are none."""
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
    """The test rows that were asked about by every method on this dataset and seed."""
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
