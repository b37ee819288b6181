"""Results: one complete file for each, tables of all of them, and the numbers that the paper prints.

The paper's are by table, dataset and method: the mean, and the standard deviation where it has one. In its
tables of distances the block of sparsity is labelled "Proximity"; its δ-robustness on HELOC is 0.70 in the
text and 0.788 in the ablation. Times per counterfactual below 0.001 s are entered as that.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from veritracer import __version__
from veritracer.files import document_text, write_whole

FORMAT = "veritracer-bench-1"
CONDITIONS = ".conditions.json"
SQUARE = ", mean square"
"""The end of the name of a number's mean square over other models, beside its mean."""
_FIRST = ("method", "seed", "conditions", "seconds")


class Key(NamedTuple):
    """The key of a result: ``experiment`` is ``ri``, ``loo`` or ``time`` (``method`` is then a training)."""

    experiment: str
    dataset: str
    method: str
    seed: int

    @property
    def file(self) -> str:
        """Return the name of the result's file."""
        return f"{self.experiment}.{self.dataset}.{self.method.replace(':', '+')}.{self.seed}.json"


class Cell(NamedTuple):
    """A finished result: numbers by name, the time they took, and all that they depend on."""

    key: Key
    configuration: dict[str, Any]
    numbers: dict[str, float]
    seconds: float
    where: dict[str, Any]


def write(folder: Path, cell: Cell) -> None:
    """Write the result to its file, which appears only when it is complete."""
    document = {"format": FORMAT, **cell.key._asdict(), **cell._asdict()}
    del document["key"]
    write_json(folder / cell.key.file, document)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON document by renaming a finished file; nan, which JSON does not have, becomes null."""
    write_whole(path, document_text(_plain(document)) + "\n", shared=True)


def read(folder: Path, key: Key) -> Cell | None:
    """Return the result; None if it is missing or not written by this library."""
    try:
        cell = _cell(json.loads((folder / key.file).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cell if cell.key == key else None


def read_all(folder: Path) -> list[Cell]:
    """Return all results in a folder, sorted."""
    paths = folder.glob("*.json")
    return sorted((_cell(json.loads(p.read_text(encoding="utf-8"))) for p in paths), key=lambda c: c.key)


def write_results(folder: Path, cells: Iterable[Cell]) -> list[Path]:
    """Write all results as tables, a file for each dataset and experiment, and return where.

    ``DATASET.EXPERIMENT.csv`` has a line for each method and seed and a column for each number: ``nan`` where
    it is undefined, an empty cell where it was not measured. ``DATASET.conditions.json`` lists configurations
    and machines; the column ``conditions`` has the position of a result's own, from 0.
    """
    tables: dict[str, dict[str, list[Cell]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.key):
        tables.setdefault(cell.key.dataset, {}).setdefault(cell.key.experiment, []).append(cell)
    paths = []
    for dataset, experiments in tables.items():
        conditions: list[dict[str, Any]] = []
        for experiment, found in experiments.items():
            paths.append(folder / f"{dataset}.{experiment}.csv")
            write_whole(paths[-1], _table_text(found, conditions), shared=True)
        write_json(folder / f"{dataset}{CONDITIONS}", {"format": FORMAT, "conditions": conditions})
    return paths


def read_results(folder: Path) -> list[Cell]:
    """Read all results in the tables that ``write_results`` wrote."""
    return [cell for path in sorted(folder.glob("*.csv")) for cell in _cells_of(path)]


def _table_text(cells: Sequence[Cell], conditions: list[dict[str, Any]]) -> str:
    """Write one table; conditions that are not among those listed are added to the list."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.numbers))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIRST, *names])
    for cell in cells:
        depends_on = {"configuration": _plain(cell.configuration), "where": _plain(cell.where)}
        if depends_on not in conditions:
            conditions.append(depends_on)
        numbers = (f"{cell.numbers[name]:.6g}" if name in cell.numbers else "" for name in names)
        first = (cell.key.method, cell.key.seed, conditions.index(depends_on), f"{cell.seconds:.6g}")
        writer.writerow([*first, *numbers])
    return text.getvalue()


def _cells_of(path: Path) -> Iterator[Cell]:
    """Read one table, with the conditions beside it."""
    dataset, experiment = path.stem.split(".")
    beside = json.loads(path.with_name(f"{dataset}{CONDITIONS}").read_text(encoding="utf-8"))
    if beside["format"] != FORMAT:
        raise ValueError(beside["format"])
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            method, seed, number, seconds = (line.pop(name) for name in _FIRST)
            numbers = {name: float(value) for name, value in line.items() if value}
            key = Key(experiment, dataset, method, int(seed))
            yield Cell(key, numbers=numbers, seconds=float(seconds), **beside["conditions"][int(number)])


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


def settled(value: float) -> float:
    """Round off the last bits of a value, which differ between machines.

    What lies on the edge of a rounding, as the mean of ten seeds often does, is then printed alike by all.
    """
    return float(f"{round(value, 12):.9g}")


def mean_of(values: Sequence[float]) -> float:
    """Return the mean over seeds, nan if there are none."""
    return settled(math.fsum(values) / len(values)) if values else math.nan


class Printed(NamedTuple):
    """A number of the paper; ``digits`` is how many of them it prints after the point."""

    mean: float
    spread: float | None
    digits: int


def _table(name: str, datasets: str, rows: dict[str, str]) -> dict[tuple[str, str, str], Printed]:
    """Parse a printed table: for each method its columns, ``mean`` or ``mean(deviation)``."""
    found = {}
    for method, line in rows.items():
        for dataset, text in zip(datasets.split(), line.split(), strict=True):
            if text == "-":
                continue
            mean, _, spread = text.rstrip(")").partition("(")
            digits = len(mean.partition(".")[2])
            found[name, dataset, method] = Printed(float(mean), float(spread) if spread else None, digits)
    return found


_THREE, _FIVE = "heloc taiwan_credit oula", "ctg who heloc taiwan_credit oula"
_BOUNDS = {"ibp": "generator-ibp", "crown": "generator-crown-ibp", "simul": "generator"}


def _ablation(dataset: str, ibp: str, crown: str, simul: str) -> dict[tuple[str, str, str], Printed]:
    names = "certified keeps accuracy proximity sparsity ddm"
    lines = {"ibp": ibp, "crown": crown, "simul": simul}
    found = {}
    for bound, line in lines.items():
        for (_, number, method), printed in _table("", names, {_BOUNDS[bound]: line}).items():
            found[f"ablation {number}", dataset, method] = printed
    return found


PAPER: dict[tuple[str, str, str], Printed] = {
    **_table(
        "ri",
        _THREE,
        {
            "veritracer": "0.93(0.03) 0.88(0.14) 0.94(0.05)",
            "counternet": "0.92(0.07) 0.82(0.26) 0.92(0.07)",
            "roar": "0.88(0.02) 0.44(0.25) 0.93(0.05)",
            "sns": "0.90(0.04) 0.98(0.02) 0.80(0.11)",
        },
    ),
    **_table(
        "loo",
        _THREE,
        {
            "veritracer": "0.86(0.14) 0.97(0.01) 0.96(0.05)",
            "counternet": "0.91(0.07) 0.96(0.02) 0.97(0.01)",
            "roar": "0.88(0.02) 0.88(0.01) 0.95(0.04)",
            "sns": "0.94(0.05) 1.00(0.00) 0.90(0.06)",
        },
    ),
    **_table(
        "shift",
        "ctg who",
        {
            "veritracer": "0.987(0.010) 0.995(0.027)",
            "counternet": "0.981(0.019) 0.967(0.030)",
            "roar": "0.570(0.104) 0.884(0.078)",
            "sns": "0.407(0.024) 0.846(0.050)",
        },
    ),
    **_table("shift, suspect", "ctg", {"veritracer": "0.959"}),
    **_table("shift, pathological", "ctg", {"veritracer": "0.968"}),
    **_table(
        "delta",
        _THREE,
        {
            "veritracer": "0.7024(0.1741) 0.8108(0.0451) 0.9696(0.0096)",
            "counternet": "0.2629(0.1829) 0.00 0.00",
            "roar": "0.00 0.00 0.00",
            "sns": "0.00 0.00 0.00",
        },
    ),
    **_table(
        "proximity",
        _FIVE,
        {
            "veritracer": "0.250 0.216 0.099 0.244 0.179",
            "counternet": "0.220 0.164 0.107 0.234 0.169",
            "roar": "0.189 0.031 0.032 0.018 0.015",
            "sns": "0.038 0.031 0.041 0.015 0.013",
        },
    ),
    **_table(
        "sparsity",
        _FIVE,
        {
            "veritracer": "0.780 0.758 0.817 0.758 0.424",
            "counternet": "0.765 0.718 0.791 0.751 0.403",
            "roar": "0.900 0.326 0.286 0.166 0.399",
            "sns": "0.585 0.338 0.541 0.210 0.292",
        },
    ),
    **_table(
        "ddm",
        _FIVE,
        {
            "veritracer": "0.130 0.103 0.050 0.123 0.051",
            "counternet": "0.109 0.064 0.049 0.108 0.039",
            "roar": "0.072 0.042 0.048 0.020 0.028",
            "sns": "0.052 0.040 0.054 0.015 0.024",
        },
    ),
    **_table("accuracy", _THREE, {"veritracer": "0.738 0.806 0.929"}),
    **_ablation(
        "heloc",
        ibp="0.746 0.920(0.079) 0.742 0.10(0.03) 0.82(0.08) 0.05(0.01)",
        crown="0.721 0.918(0.064) 0.742 0.10(0.03) 0.82(0.08) 0.05(0.01)",
        simul="0.788 0.932(0.028) 0.738 0.10(0.03) 0.82(0.08) 0.05(0.01)",
    ),
    **_ablation(
        "taiwan_credit",
        ibp="0.902 0.862(0.187) 0.812 0.22(0.06) 0.74(0.09) 0.10(0.03)",
        crown="0.872 0.900(0.120) 0.813 0.22(0.06) 0.75(0.09) 0.10(0.03)",
        simul="0.813 0.884(0.141) 0.806 0.24(0.05) 0.76(0.09) 0.12(0.03)",
    ),
    **_ablation(
        "oula",
        ibp="0.880 0.922(0.079) 0.929 0.19(0.04) 0.45(0.12) 0.06(0.02)",
        crown="0.968 0.941(0.055) 0.930 0.18(0.04) 0.43(0.12) 0.05(0.02)",
        simul="0.970 0.941(0.054) 0.929 0.18(0.04) 0.42(0.12) 0.05(0.02)",
    ),
    **_table(
        "seconds",
        "heloc oula taiwan_credit",
        {
            "veritracer": "0.001 0.001 0.001",
            "roar": "3.25(0.72) 2.75(0.52) 3.33(0.40)",
            "sns": "5.25(0.21) 5.92(0.21) 5.89(0.20)",
        },
    ),
    **_table(
        "epoch",
        "heloc oula taiwan_credit",
        {"veritracer": "8.24(0.14) 126.61(1.92) 27.66(0.36)", "standard": "0.55(0.01) 5.39(0.06) 1.80(0.01)"},
    ),
}
"""Every number that the tables can be compared with."""
