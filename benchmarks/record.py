"""Print tables, keep them in ``benchmarks/results``, and write raw results to ``out``, which git ignores."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
RAW = Path("out/benchmarks")


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, also printed."""
    cells = [[_cell(c) for c in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    text = f"### {title}\n\n" + "\n".join(lines) + "\n"
    print(text)
    return text


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def save(name: str, results: Mapping[str, object], tables: Sequence[str]) -> None:
    """Write the tables to ``results/NAME.md`` and everything to ``out/benchmarks/NAME.json``.

    Both say what they were measured on.
    """
    RESULTS.mkdir(exist_ok=True)
    RAW.mkdir(parents=True, exist_ok=True)
    where = {
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    (RAW / f"{name}.json").write_text(json.dumps({"where": where, **results}, indent=1) + "\n")
    head = (
        f"<!-- python -m benchmarks.{name} -->\n\n"
        + " · ".join(f"{k} {v}" for k, v in where.items())
        + "\n\n"
    )
    (RESULTS / f"{name}.md").write_text(head + "\n".join(tables))
    print(f"saved {RESULTS / name}.md and {RAW / name}.json")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """What a run that was stopped has measured so far: the lines of ``path``, none where it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(path: Path, lines: Iterable[Mapping[str, object]]) -> None:
    """Add lines to what ``lines_of`` finds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def _commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"
