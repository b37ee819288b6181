"""One result of the evaluation: what was measured and how, as one file that is whole or absent."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from veritracer.files import document_text, write_whole
from veritracer.version import __version__

FORMAT = "veritracer-bench-1"


class Key(NamedTuple):
    """Which result: ``experiment`` is ``ri``, ``loo`` or ``time`` (``method`` is then a training)."""

    experiment: str
    dataset: str
    method: str
    seed: int

    @property
    def file(self) -> str:
        """The name of the result's file."""
        return f"{self.experiment}.{self.dataset}.{self.method.replace(':', '+')}.{self.seed}.json"


class Cell(NamedTuple):
    """A finished result: numbers by name, what they took, and all that they depend on."""

    key: Key
    configuration: dict[str, Any]
    numbers: dict[str, float]
    seconds: float
    where: dict[str, Any]


def write(folder: Path, cell: Cell) -> None:
    """Put the result into its file, which appears only when it is whole."""
    document = {"format": FORMAT, **cell.key._asdict(), **cell._asdict()}
    del document["key"]
    write_json(folder / cell.key.file, document)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document by renaming a finished file; nan, which JSON does not have, becomes null."""
    write_whole(path, document_text(_plain(document)) + "\n", shared=True)


def read(folder: Path, key: Key) -> Cell | None:
    """The result, or None: not there, or not what this library writes."""
    try:
        cell = _cell(json.loads((folder / key.file).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cell if cell.key == key else None


def write_results(folder: Path, cells: Iterable[Cell]) -> list[Path]:
    """One file for each dataset with all of its results; returns where."""
    by_dataset: dict[str, list[Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.key):
        by_dataset.setdefault(cell.key.dataset, []).append(cell)
    paths = []
    for dataset, found in by_dataset.items():
        content = [
            {**cell.key._asdict(), **{k: v for k, v in cell._asdict().items() if k != "key"}}
            for cell in found
        ]
        write_json(folder / f"{dataset}.json", {"format": FORMAT, "cells": content})
        paths.append(folder / f"{dataset}.json")
    return paths


def read_results(folder: Path) -> list[Cell]:
    """All results in the files that ``write_results`` wrote."""
    found: list[Cell] = []
    for path in sorted(folder.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        found += [_cell({"format": document["format"], **each}) for each in document["cells"]]
    return found


@lru_cache(maxsize=1)
def where() -> dict[str, Any]:
    """Versions, commit and machine of this process."""
    return {
        "veritracer": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "scikit-learn")},
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cell(document: dict[str, Any]) -> Cell:
    if document["format"] != FORMAT:
        raise ValueError(document["format"])
    key = Key(*(document[name] for name in Key._fields))
    numbers = {name: math.nan if v is None else float(v) for name, v in document["numbers"].items()}
    return Cell(key, document["configuration"], numbers, float(document["seconds"]), document["where"])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
