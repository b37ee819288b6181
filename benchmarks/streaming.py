"""Long tables through ``veritracer explain``: rows per second, and the memory of the process at its peak.

``python -m benchmarks.streaming``; with ``--rows 200000`` a shorter one that is not saved.

A model of ``loans`` explains another portfolio, as a CSV file: in bulk (the generator's answer with its
certificate, ``--no-refine --no-radius``), in bulk with the search for the radius, and refined. Each run is a
process of its own, torch included. Seconds are those of the process from its start to its end.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import save, show

BULK, REFINED = 5_000_000, 20_000
COMMAND = [sys.executable, "-m", "veritracer"]


def measured(*arguments: str) -> dict[str, float]:
    """Wall seconds, CPU seconds and peak MiB of one process."""
    start = time.perf_counter()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mib": used.ru_maxrss / 1024,
    }


def prepare(folder: Path, rows: dict[str, int]) -> None:
    """A fitted model, and the tables to explain."""
    write = [*COMMAND, "datasets", "write", "loans", "--quiet"]
    subprocess.run([*write, "--out", folder / "train.csv"], check=True)
    for name, count in rows.items():
        command = [*write, "--rows", str(count), "--seed", "1", "--out", folder / f"{name}.csv"]
        subprocess.run(command, check=True)
    fit = ["fit", folder / "train.csv", "--target", "approved", "--favourable", "yes", "--quiet"]
    fit += ["--immutable", "age,sex,region,dependants,housing,purpose", "--epochs", "20"]
    fit += ["--increase-only", "years_employed,history_years", "--out", folder / "model"]
    subprocess.run([*COMMAND, *fit], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=BULK)
    bulk = parser.parse_args().rows
    medium = min(bulk, 200_000)
    runs = {
        "bulk, without radius": ("bulk", bulk, ["--no-refine", "--no-radius"]),
        "bulk, with radius": ("medium", medium, ["--no-refine"]),
        "refined": ("refined", REFINED, []),
    }
    results: dict[str, dict[str, float]] = {}
    lines = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare(folder, {table: count for table, count, _ in runs.values()})
        for name, (table, count, options) in runs.items():
            out = str(folder / f"{table}_out.csv")
            found = measured(
                "explain",
                str(folder / "model"),
                str(folder / f"{table}.csv"),
                "--out",
                out,
                "--quiet",
                *options,
            )
            found |= {"rows": count, "rows_per_second": count / found["seconds"]}
            results[name] = found
            numbers = [found[k] for k in ("seconds", "cpu_seconds", "rows_per_second", "peak_mib")]
            lines.append([name, f"{count:,}", *numbers])
    header = ["run", "rows", "seconds", "CPU seconds", "rows/s", "peak MiB"]
    table_text = show("loans through veritracer explain, CSV to CSV, one thread", header, lines)
    if bulk == BULK:
        save("streaming", {"results": results}, [table_text])


if __name__ == "__main__":
    main()
