"""The ledger at scale: writing, verifying and reading promises, and how these grow with their number.

``python -m benchmarks.ledger``; ``--promises 100000`` for a shorter run that is not saved, ``--url`` for a
PostgreSQL database (emptied first) instead of a SQLite file.

A model of ``loans`` explains some people; their promises are issued over and over, each time with new ids and
salts, until there are enough. Every measurement is a process of its own, one thread. Seconds are those of the
processor, system calls included, imports not: other programs on the machine play little part in them. Memory
is that of the whole process, some 400 MiB of it for torch and the like.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sa
import torch

import veritracer as vt
from benchmarks.record import save, show
from veritracer.ledger.connections import place_of
from veritracer.ledger.issuing import prepare
from veritracer.ledger.records import Record, to_record
from veritracer.options import Terms

PROMISES, PEOPLE, AT_ONCE = 1_000_000, 8_000, 100_000


def likenesses(records: list[Record], start: int, stop: int, terms: Terms) -> list[Record]:
    """Records like these, each with an id and salts of its own."""
    likes = ((k, records[k % len(records)]) for k in range(start, stop))
    return [to_record(like.header, (f"person {k}".encode(), *like[4:]), terms)[0] for k, like in likes]


def write(place: str, count: int) -> dict[str, float]:
    """Seconds to put the promises into words and bytes (from a sample), and to commit them."""
    data = vt.datasets.load("loans")
    model = vt.VeriTraCER(schema=data.schema, epochs=3).fit(data.X, data.y)
    found = model.explain(data.X.head(PEOPLE), refine=False, search_radius=False)
    terms = Terms(uncertified="promise", allow_duplicate=True)
    start = time.process_time()
    base = prepare(found, model.classifier_, model.threshold, terms, list(range(len(found))))
    prepared, committed = (time.process_time() - start) / len(base.records), 0.0
    with vt.Ledger(place) as ledger:
        for at in range(0, count, AT_ONCE):
            batch = replace(base, records=likenesses(base.records, at, min(at + AT_ONCE, count), terms))
            start = time.process_time()
            ledger.append(batch)
            committed += time.process_time() - start
    return {"prepared": prepared * count, "committed": committed}


def verify(place: str, count: int) -> dict[str, float]:
    with vt.Ledger(place) as ledger:
        head = ledger.head
        start, clock = time.process_time(), time.perf_counter()
        found = ledger.verify(head)
        assert found.ok, found.findings[:3]
        assert found.promises == count
    return {"seconds": time.process_time() - start, "wall": time.perf_counter() - clock}


def read(place: str, count: int) -> dict[str, float]:
    start, clock, seen = time.process_time(), time.perf_counter(), 0
    with vt.Ledger(place) as ledger:
        for promises in ledger.promises():
            seen += len(promises)
    assert seen == count
    return {"seconds": time.process_time() - start, "wall": time.perf_counter() - clock}


def limits(place: str, count: int) -> dict[str, float]:
    start, clock = time.process_time(), time.perf_counter()
    with vt.Ledger(place) as ledger:
        assert ledger.counts().live == count
        assert sum(one.count for one in ledger.requirements()) == count
    return {"seconds": time.process_time() - start, "wall": time.perf_counter() - clock}


STEPS: dict[str, Callable[[str, int], dict[str, float]]] = {
    "write": write,
    "verify": verify,
    "read": read,
    "limits": limits,
}


def measured(step: str, place: str, count: int) -> dict[str, float]:
    """What the step says of itself, run as a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ledger", "--step", step, "--place", place]
    done = subprocess.run(
        [*command, "--promises", str(count)], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def empty(url: str) -> None:
    """Nothing; the ledger's tables are gone from that database."""
    engine = sa.create_engine(place_of(url))
    names = ("entries", "records", "models", "requests")
    with engine.begin() as connection:
        for name in names:
            connection.execute(sa.text(f"DROP TABLE IF EXISTS veritracer_{name}"))
    engine.dispose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--promises", type=int, default=PROMISES)
    parser.add_argument("--url")
    parser.add_argument("--step", choices=STEPS)
    parser.add_argument("--place")
    asked = parser.parse_args()
    if asked.step:
        torch.set_num_threads(1)
        found = STEPS[asked.step](asked.place, asked.promises)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**found, "peak_mib": peak}))
        return
    results: dict[str, dict[str, float]] = {}
    lines = []
    for count in (asked.promises // 10, asked.promises // 3, asked.promises):
        with tempfile.TemporaryDirectory() as folder:
            place = asked.url or str(Path(folder) / "promises.db")
            if asked.url:
                empty(asked.url)
            found = {step: measured(step, place, count) for step in STEPS}
            size = 0.0 if asked.url else Path(place).stat().st_size / 2**20
        seconds = [
            found["write"]["committed"],
            *(found[step]["seconds"] for step in ("verify", "read", "limits")),
        ]
        peaks = [found[step]["peak_mib"] for step in ("verify", "read")]
        results[str(count)] = {**{f"{s}.{k}": v for s, m in found.items() for k, v in m.items()}, "mib": size}
        lines.append([f"{count:,}", found["write"]["prepared"], *seconds, *peaks, size])
    header = ["promises", "into words, s", "commit, s", "verify, s", "read, s", "counts + limits, s"]
    header += ["verify, peak MiB", "read, peak MiB", "file, MiB"]
    kind = "PostgreSQL" if asked.url else "SQLite"
    table = show(
        f"Ledger of loans in {kind}, {AT_ONCE:,} promises to a transaction; seconds of the processor",
        header,
        lines,
    )
    if asked.promises == PROMISES:
        save("ledger_postgres" if asked.url else "ledger", {"results": results}, [table])


if __name__ == "__main__":
    main()
