"""How long people wait before anything happens: the library's import, help, refusals, and a first answer.

``python -m benchmarks.startup``. Each line is a fresh process, the best of several and their median; the
first are what Python and the packages below ask for by themselves. The files are in the page cache: the very
first start after a boot waits for the disk as well.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import save, show

TIMES = 5
COMMAND = ["-m", "veritracer"]
LINES: dict[str, tuple[list[str], float | None]] = {
    "python -c pass": (["-c", "pass"], None),
    "import torch": (["-c", "import torch"], None),
    "import torch, pandas, sklearn.base": (["-c", "import torch, pandas, sklearn.base"], None),
    "import veritracer": (["-c", "import veritracer"], 1.0),
    "veritracer --version": ([*COMMAND, "--version"], 0.5),
    "veritracer --help": ([*COMMAND, "--help"], 0.5),
    "veritracer explain --help": ([*COMMAND, "explain", "--help"], 0.5),
    "a bad argument: --kappa much": ([*COMMAND, "explain", "model", "people.csv", "--kappa", "much"], 0.5),
    "a bad path: no such model": ([*COMMAND, "explain", "nobody", "people.csv"], 0.5),
    "a bad path: no such table": ([*COMMAND, "explain", "model", "nobody.csv"], 0.5),
    "a bad path: no such ledger": ([*COMMAND, "verify", "--ledger", "nobody.db"], 0.5),
    "a bad table: explain, no such column": ([*COMMAND, "explain", "model", "lacking.csv"], 1.0),
    "a bad table: explain, ragged": ([*COMMAND, "explain", "model", "ragged.csv"], 1.0),
    "a bad table: fit, no such target": (
        [*COMMAND, "fit", "people.csv", "--target", "nothing", "--out", "new"],
        1.0,
    ),
    "the model: inspect": ([*COMMAND, "inspect", "model"], 3.0),
    "the model: certify 20 rows": ([*COMMAND, "certify", "model", "people.csv", "answers.csv"], 3.0),
    "the model: explain 20 rows": ([*COMMAND, "explain", "model", "people.csv", "--quiet"], None),
}
"""What is run, and in how many seconds it should end on a quiet machine."""


def prepare(folder: Path) -> None:
    """A small model, people, their answers, and tables that do not fit."""
    loans = ["datasets", "write", "loans", "--quiet", "--rows"]
    fit = ["fit", "train.csv", "--target", "approved", "--favourable", "yes", "--quiet"]
    fit += ["--epochs", "4", "--no-panel"]
    for command in (
        [*loans, "1000", "--out", "train.csv"],
        [*loans, "20", "--seed", "1", "--out", "people.csv"],
        [*fit, "--out", "model"],
        ["explain", "model", "people.csv", "--quiet", "--out", "answers.csv"],
    ):
        subprocess.run([sys.executable, *COMMAND, *command], check=True, cwd=folder, capture_output=True)
    rows = (folder / "people.csv").read_text().splitlines(keepends=True)
    (folder / "lacking.csv").write_text("".join(row.partition(",")[2] for row in rows))
    (folder / "ragged.csv").write_text("".join([*rows[:3], "1,2,3\n", *rows[3:]]))


def seconds(arguments: list[str], folder: Path) -> float:
    """From the start of a process to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=False)
    return time.perf_counter() - start


def main() -> None:
    results: dict[str, dict[str, float | None]] = {
        name: {"wanted": goal} for name, (_, goal) in LINES.items()
    }
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder)
        took: dict[str, list[float]] = {name: [] for name in LINES}
        for _ in range(TIMES):  # in turns, so that a busy minute is everybody's
            for name, (arguments, _) in LINES.items():
                took[name].append(seconds(arguments, folder))
    lines = []
    for name, found in took.items():
        results[name] |= {"best": min(found), "median": statistics.median(found)}
        goal = results[name]["wanted"]
        lines.append([name, min(found), statistics.median(found), "" if goal is None else f"{goal:g}"])
    header = ["what", "seconds (best of 5)", "median", "wanted below"]
    save("startup", {"results": results}, [show("From the start of a process to its end", header, lines)])


if __name__ == "__main__":
    main()
