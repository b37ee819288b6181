"""The service under load: refined certified recourse a second for 1, 16, 64 and 256 clients at once.

``python -m benchmarks.serve_load [--seconds 300] [--workers 2] [--dataset loans]``. The service is
``veritracer serve`` on a loopback port, the clients are one process of their own (plain asyncio, one
connection each, the next request when the last one was answered), and both share the machine's cores. Each
number of clients is measured with micro-batching and, right after it and for the same model, without
(``--batch 1``). Every request is one declined row that nobody asked for before, refined, with the radius
searched. On a larger machine ``--cores 2`` gives each measurement, client included, so many cores of its own,
and makes as many at a time as there are cores for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pandas as pd

import veritracer as vt
from benchmarks.record import save, show

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "app" / "serve")]

CLIENTS = (1, 16, 64, 256)
HOW: dict[str, list[str]] = {"batched": [], "one by one": ["--batch", "1"]}
Cell = tuple[int, str]
SECONDS = 300
MODELS = Path("out/serve_models")


def trained(name: str) -> tuple[Path, list[dict[str, Any]]]:
    """The folder of a default model of the dataset, trained once, and rows that it declines."""
    data = vt.datasets.load(name)
    split = data.split()
    folder = MODELS / name
    if not folder.exists():
        vt.VeriTraCER(schema=data.schema).fit(split.X_train, split.y_train).save(folder)
    model = vt.load(folder)
    rows = pd.concat([split.X_test, split.X_train])
    declined = rows[model.predict(rows) != data.schema.favourable].astype(object)
    cells = declined.where(declined.notna(), None).to_dict("records")
    return folder, cells


# ---------------------------------------------------------------- the clients, in a process of their own


async def one_client(
    address: tuple[str, int], bodies: list[bytes], number: int, step: int, until: float, found: list[Any]
) -> None:
    """Ask again and again; note how long each answer took, its status, and whether it is certified."""
    reader, writer = await asyncio.open_connection(*address)
    at = number
    while (start := time.perf_counter()) < until:
        body = bodies[at % len(bodies)]
        at += step
        head = f"POST /v1/recourse HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        told = await reader.readuntil(b"\r\n\r\n")
        size = int(told.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(size)
        status = int(told[9:12])
        found.append((time.perf_counter() - start, status, b'"status": "certified"' in answer))
    writer.close()


async def clients(port: int, count: int, seconds: float, bodies: list[bytes]) -> dict[str, Any]:
    """What so many clients saw."""
    found: list[Any] = []
    start = time.perf_counter()
    until = start + seconds
    address = ("127.0.0.1", port)
    await asyncio.gather(*(one_client(address, bodies, i, count, until, found) for i in range(count)))
    took = time.perf_counter() - start
    times = np.array([t for t, status, _ in found if status == 200])
    p50, p95, p99 = np.quantile(times, [0.5, 0.95, 0.99]).tolist() if len(times) else (np.nan,) * 3
    certified = sum(ok for _, status, ok in found if status == 200)
    return {
        "answers": len(times),
        "refused": len(found) - len(times),
        "rate": len(times) / took,
        "certified rate": certified / took,
        "certified": certified / max(len(times), 1),
        "p50": p50,
        "p95": p95,
        "p99": p99,
    }


# ---------------------------------------------------------------- the service


def memory(pid: int) -> float:
    """Resident megabytes of a process and its children."""
    done = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False
    )
    total = 0
    for one in [pid, *map(int, done.stdout.split())]:
        status = Path(f"/proc/{one}/status").read_text()
        total += int(status.partition("VmRSS:")[2].split()[0])
    return total / 1024


def measured(folder: Path, rows: Path, count: int, seconds: float, *args: str) -> dict[str, Any]:
    """One service, asked by so many clients; some seconds to warm up are not counted."""
    from serving_cases import running

    with running(str(folder), "--timeout", "120", *args) as (url, process):
        port = int(url.rpartition(":")[2])
        client = [sys.executable, "-m", "benchmarks.serve_load", "--client", str(port), "--rows", str(rows)]
        client += ["--clients", str(count), "--seconds"]
        subprocess.run([*client, str(min(5.0, seconds))], check=True, capture_output=True)
        before = memory(process.pid)
        done = subprocess.run([*client, str(seconds)], check=True, capture_output=True, text=True)
        return {**json.loads(done.stdout), "MB before": before, "MB after": memory(process.pid)}


def all_measured(ask: Callable[..., dict[str, Any]], cells: list[Cell], cores: int | None) -> list[Any]:
    """Each measurement, one after the other, or side by side on cores of their own.

    Processes have the cores of the thread that starts them.
    """
    if cores is None:
        return [ask(*cell) for cell in cells]
    mine = sorted(os.sched_getaffinity(0))
    free: SimpleQueue[list[int]] = SimpleQueue()
    for first in range(0, len(mine) - cores + 1, cores):
        free.put(mine[first : first + cores])

    def on_its_own(cell: Cell) -> dict[str, Any]:
        some = free.get()
        os.sched_setaffinity(0, some)
        try:
            return ask(*cell)
        finally:
            free.put(some)

    with ThreadPoolExecutor(len(mine) // cores) as pool:
        return list(pool.map(on_its_own, cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--clients", type=int, nargs="*", default=list(CLIENTS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dataset", default="loans")
    parser.add_argument("--cores", type=int)
    parser.add_argument("--client", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        bodies = [json.dumps({"rows": [row]}).encode() for row in json.loads(asked.rows.read_text())]
        print(json.dumps(asyncio.run(clients(asked.client, asked.clients[0], asked.seconds, bodies))))
        return
    folder, declined = trained(asked.dataset)
    cells = [(count, how) for count in asked.clients for how in HOW]
    lines = []
    with tempfile.TemporaryDirectory() as place:
        rows = Path(place) / "rows.json"
        rows.write_text(json.dumps(declined))

        def ask(count: int, how: str) -> dict[str, Any]:
            args = ["--workers", str(asked.workers), *HOW[how]]
            told = {"clients": count, "how": how, **measured(folder, rows, count, asked.seconds, *args)}
            print(told, flush=True)
            return told

        results = all_measured(ask, cells, asked.cores)
    for pair in zip(results[::2], results[1::2], strict=True):
        for told in pair:
            ratio = f"{pair[0]['rate'] / pair[1]['rate']:.1f}×" if told is pair[0] else ""
            numbers = [f"{told[k]:.1f}" for k in ("rate", "certified rate")]
            times = [f"{1000 * told[k]:.0f}" for k in ("p50", "p95", "p99")]
            sizes = [f"{told[k]:.0f}" for k in ("MB before", "MB after")]
            lines.append([told["clients"], told["how"], *numbers, ratio, *times, told["refused"], *sizes])
    header = ["clients", "how", "answers/s", "certified/s", "ratio", "p50 ms", "p95 ms", "p99 ms", "refused"]
    title = f"Recourse under load: {asked.dataset}, {asked.workers} workers, {asked.seconds:g} s each"
    title += "" if asked.cores is None else f", {asked.cores} cores each"
    table = show(title, [*header, "MB before", "MB after"], lines)
    if asked.seconds >= SECONDS and tuple(asked.clients) == CLIENTS:
        how = {name: getattr(asked, name) for name in ("dataset", "seconds", "workers", "cores")}
        save("serve_load", {**how, "results": results}, [table])


if __name__ == "__main__":
    main()
