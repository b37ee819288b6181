"""Beyond one core: speed by workers, Ray's overhead, memory, kills, and what a row costs by stage.

``python -m benchmarks.scale`` runs small, in a minute or two an item; ``--full`` takes an
idle machine and about an hour. ``--only speed,ray,memory,kill,cost`` chooses.

* ``speed``: one table, refined, by 1 and by 2 workers (``--workers``), local and Ray: the ratio; and that of
  as many commands at once that share nothing, which is what the machine gives.
* ``ray``: the same rows without refinement, local and Ray with one worker each: what Ray costs.
* ``memory``: the peak of each worker.
* ``kill``: a run whose worker, driver or (Ray) raylet is killed with SIGKILL in the middle, then run again:
  rows lost, promises twice, and whether what was written is what an undisturbed run writes.
* ``large``: a folder of many files through Ray, not refined, undisturbed and then with a worker, the raylet
  and the driver killed one after the other; and one of the files refined. Only where it is asked for.
* ``cost``: seconds a row for each stage, by features and hidden units; a model fitted to them, and its error
  on a measurement that it did not see.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import veritracer as vt
from benchmarks.record import save, show
from veritracer.bounds.methods import BoundMethod
from veritracer.proving import CASCADE, ProofBatch, prove

COMMAND = [sys.executable, "-m", "veritracer"]
ITEMS = ("speed", "ray", "memory", "kill", "cost")
KILLS = ("local-worker", "local-driver", "ray-worker", "ray-driver", "ray-raylet")
SAME = ("id", "recourse.status", "recourse.certified", "recourse.radius")


def prepare(folder: Path, rows: int, *, panel: bool) -> None:
    """A model of ``loans``, and a portfolio with ids as Parquet."""
    data = vt.datasets.loans(rows=4_000, random_state=0)
    model = vt.VeriTraCER(schema=data.schema, epochs=5, random_state=0, **({} if panel else {"panel": None}))
    model.fit(data.X, data.y)
    model.save(folder / "model")
    people = vt.datasets.loans(rows=rows, random_state=1).X
    people.insert(0, "id", [f"p{i}" for i in range(rows)])
    pq.write_table(pa.Table.from_pandas(people, preserve_index=False), folder / "people.parquet")


def run(folder: Path, out: str, *more: str, **how: Any) -> Any:
    """Seconds of one command, or the process of it."""
    shutil.rmtree(folder / out, ignore_errors=True)
    return go_on(folder, out, *more, **how)


def go_on(
    folder: Path,
    out: str,
    *more: str,
    verb: str = "explain",
    wait: bool = True,
    table: str = "people",
) -> Any:
    command = [*COMMAND, verb, str(folder / "model"), str(folder / f"{table}.parquet")]
    command += ["--out", str(folder / out), "--quiet", *more]
    command += ["--id-column", "id"] if verb == "issue" else ["--keep", "id"]
    start = time.perf_counter()
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE)
    if not wait:
        return process
    _, said = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {said.decode()}")
    return time.perf_counter() - start


def speed(folder: Path, rows: dict[int, int], block: int, engines: list[str]) -> list[list[Any]]:
    """Rows a second by workers, refined; start and model are part of the time, as for any user.

    ``rows`` are how many each number of workers gets: many workers are done with few rows before all of them
    have started.
    """
    lines = []
    for engine in engines:
        rates = {}
        for count, most in rows.items():
            asked = ["--engine", engine, "--workers", str(count), "--batch-rows", str(block)]
            took = run(folder, f"{engine}{count}", *asked, table=f"people-{most}")
            rates[count] = most / took
            lines.append([engine, count, most, took, rates[count], rates[count] / rates[1]])
        if engine == "local":
            count = max(rows)
            took = apart(folder, count, f"people-{rows[1]}", block)
            rate = count * rows[1] / took
            lines.append(["commands apart", count, count * rows[1], took, rate, rate / rates[1]])
    return lines


def apart(folder: Path, count: int, table: str, block: int) -> float:
    """Seconds of so many commands at once, of one worker and a table each, which share nothing.

    What the machine itself gives to that many processes: no engine can do better.
    """
    start, asked = time.perf_counter(), ["--workers", "1", "--batch-rows", str(block)]
    running = [run(folder, f"apart{i}", *asked, table=table, wait=False) for i in range(count)]
    for process in running:
        process.communicate()
    return time.perf_counter() - start


def overhead(folder: Path, block: int) -> list[list[Any]]:
    """Ray against the local engine, one worker each, without refinement."""
    asked = ["--workers", "1", "--batch-rows", str(block), "--no-refine", "--no-radius"]
    local = run(folder, "plain", *asked)
    ray = run(folder, "rayed", *asked, "--engine", "ray")
    return [["local", local, 0.0], ["ray", ray, 1 - local / ray]]


def memory(folder: Path, block: int) -> list[list[Any]]:
    """The peak MiB of each worker of a run."""
    lines = []
    for engine in ("local", "ray"):
        asked = ["--engine", engine, "--workers", "2", "--batch-rows", str(block), "--no-refine"]
        process = run(folder, f"memory-{engine}", *asked, wait=False)
        peak: dict[int, float] = {}
        while process.poll() is None:
            for pid in workers_of(process.pid, engine):
                peak[pid] = max(peak.get(pid, 0.0), high_water(pid))
            time.sleep(0.2)
        lines += [[engine, f"worker {i}", mib] for i, mib in enumerate(sorted(peak.values())[-2:], 1)]
    return lines


def children(pid: int) -> list[int]:
    """All processes below one that this script started."""
    found, waiting = [], [pid]
    while waiting:
        threads = Path(f"/proc/{waiting.pop()}/task").glob("*/children")
        try:
            below = [child for thread in threads for child in thread.read_text().split()]
        except OSError:
            continue
        found += [int(child) for child in below]
        waiting += [int(child) for child in below]
    return found


def workers_of(pid: int, engine: str) -> list[int]:
    if engine == "ray":
        return [child for child in children(pid) if "ray::Worker" in command_of(child)]
    servers = [child for child in children(pid) if "forkserver" in command_of(child)]
    return [child for child in servers if not children(child)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def high_water(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) / 1024 if found else 0.0


# ---------------------------------------------------------------- kills


def kill(folder: Path, block: int, kills: list[str]) -> list[list[Any]]:
    """Runs of ``issue`` with something killed in the middle, and then run again."""
    lines = []
    for name in kills:
        engine, victim = name.split("-")
        ledger = folder / f"{name}.db"
        ledger.unlink(missing_ok=True)
        asked = ["--engine", engine, "--workers", "2", "--batch-rows", str(block), "--ledger", str(ledger)]
        process = run(folder, name, *asked, verb="issue", wait=False)
        before = wait_for_blocks(folder / name, 2, process)
        killed = strike(process, engine, victim)
        process.communicate()
        if engine == "ray" and victim == "driver":
            sweep(process.pid)
        after = len(list((folder / name / "_batches").glob("*.json")))
        go_on(folder, name, *asked, verb="issue")
        lines.append([name, killed, before, after, process.returncode, *compared(folder, name, ledger)])
        print(lines[-1], flush=True)
    return lines


def wait_for_blocks(out: Path, count: int, process: subprocess.Popen[bytes]) -> int:
    while process.poll() is None:
        done = len(list((out / "_batches").glob("*.json"))) if out.exists() else 0
        if done >= count:
            return done
        time.sleep(0.05)
    return len(list((out / "_batches").glob("*.json")))


def strike(process: subprocess.Popen[bytes], engine: str, victim: str) -> int:
    """How many processes were killed."""
    if victim == "driver":
        chosen = [process.pid]
    elif victim == "worker":
        chosen = workers_of(process.pid, engine)[:1]
    else:
        chosen = [child for child in children(process.pid) if "raylet/raylet" in command_of(child)][:1]
    for pid in chosen:
        os.kill(pid, signal.SIGKILL)
    return len(chosen)


def sweep(group: int) -> None:
    """What Ray leaves of a driver that was killed: processes of the session that this script began."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def compared(folder: Path, name: str, ledger: Path) -> list[Any]:
    """Rows lost, promises twice, whether the chain holds, and rows that differ from an undisturbed run's."""
    found, wanted = written(folder / name), written(folder / "undisturbed")
    both = found.merge(wanted, on="id", how="outer", suffixes=("", "_wanted"), indicator=True)
    lost = int((both["_merge"] != "both").sum()) + int(found["id"].duplicated().sum())
    columns = [c for c in wanted.columns if c in SAME[1:] or (not c.startswith("recourse.") and c != "id")]
    pairs = [(both[c], both[f"{c}_wanted"]) for c in columns]
    other = sum(int(((a != b) & ~(a.isna() & b.isna())).sum()) for a, b in pairs)
    with vt.Ledger(ledger) as place:
        ids = [one for piece in place.promises() for one in piece.ids]
        holds = place.verify().ok
    promised = int((found["recourse.status"] == "certified").sum())  # issue leaves out what is not
    return [lost, len(ids) - len(set(ids)), len(ids) - promised, holds, other]


def written(out: Path) -> pd.DataFrame:
    return pa.concat_tables([pq.read_table(p) for p in sorted(out.glob("*.parquet"))]).to_pandas()


# ---------------------------------------------------------------- many rows


def large(folder: Path, rows: int, workers: int, block: int) -> list[list[Any]]:
    """Seconds, rows a second and the largest worker of a run through many files, left alone and disturbed."""
    many = folder / "many"
    many.mkdir()
    files, each = 2 * workers, rows // (2 * workers)
    places = [many / f"{number:03}.parquet" for number in range(files)]
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(write_people, places, [each] * files, range(files)))
    asked = ["--engine", "ray", "--workers", str(workers), "--batch-rows", str(block)]
    plain = [*asked, "--no-refine", "--no-radius"]
    lines = []
    for name, how, table in (("plain", plain, many), ("refined", asked, many / "000.parquet")):
        seconds, peak, _ = watched(folder, name, how, table, [])
        count = each if table.suffix else files * each
        lines.append([name, count, seconds, count / seconds, peak, 0, ""])
        print(lines[-1], flush=True)
    seconds, peak, ended = watched(folder, "disturbed", plain, many, ["worker", "raylet", "driver"])
    differs = unlike(folder / "plain", folder / "disturbed")
    lines.append(["disturbed", files * each, seconds, files * each / seconds, peak, differs, ended])
    return lines


def write_people(place: Path, rows: int, seed: int) -> None:
    people = vt.datasets.loans(rows=rows, random_state=100 + seed).X
    people.insert(0, "id", [f"p{seed}-{i}" for i in range(rows)])
    pq.write_table(pa.Table.from_pandas(people, preserve_index=False), place)


def watched(
    folder: Path, name: str, asked: list[str], table: Path, victims: list[str]
) -> tuple[float, float, str]:
    """Seconds until the run is through, the peak MiB of a worker, and how it ended each time.

    Each victim is killed after another part of the blocks; a run that ends by that is asked for again.
    """
    out, start, peak, ends, victims = folder / name, time.perf_counter(), 0.0, [], list(victims)
    blocks = 0 if not victims else len(list((folder / "plain" / "_batches").glob("*.json")))
    share = blocks // (len(victims) + 1) if victims else 0
    wanted = share
    while True:
        command = [*COMMAND, "explain", str(folder / "model"), str(table), "--out", str(out), "--quiet"]
        process = subprocess.Popen([*command, "--keep", "id", *asked], start_new_session=True)
        while process.poll() is None:
            for pid in workers_of(process.pid, "ray"):
                peak = max(peak, high_water(pid))
            if victims and len(list((out / "_batches").glob("*.json"))) >= wanted:
                strike(process, "ray", victims[0])
                if victims.pop(0) == "driver":
                    process.wait()
                    sweep(process.pid)
                wanted += share
            time.sleep(0.5)
        ends.append(str(process.returncode))
        if process.returncode == 0:
            return time.perf_counter() - start, peak, ", ".join(ends)


def unlike(wanted: Path, found: Path) -> int:
    """Files that one run has and the other has not, and cells in which they differ."""
    names = [{p.relative_to(out) for p in out.rglob("*.parquet")} for out in (wanted, found)]
    apart = len(names[0] ^ names[1])
    for name in names[0] & names[1]:
        a, b = (pq.read_table(out / name).to_pandas() for out in (wanted, found))
        columns = [c for c in a.columns if c in SAME or not c.startswith("recourse.")]
        apart += int((~((a[columns] == b[columns]) | (a[columns].isna() & b[columns].isna()))).sum().sum())
    return apart


# ---------------------------------------------------------------- cost of a row


def cost(rows: int) -> tuple[list[list[Any]], dict[str, Any]]:
    """Seconds a row by stage, for tables and networks of several sizes; and a model of them.

    How many proofs ``certify`` looks for, and in how many calls, depends on the model and not on its size:
    both are counted, and its cost is that of so many proofs and calls.
    """
    cases = [(8, 16), (8, 64), (24, 16), (24, 64), (48, 32), (16, 32)]
    both = {case: stages(*case, rows) for case in cases}
    measured, (proofs, calls) = {case: found for case, (found, _) in both.items()}, both[cases[-1]][1]
    held_out = cases[-1]
    lines, fitted = [], {}
    for stage in measured[cases[0]]:
        design = np.array([[1.0, d, h, d * h] for d, h in cases[:-1]])
        seconds = np.array([measured[case][stage] for case in cases[:-1]])
        parameters, *_ = np.linalg.lstsq(design / seconds[:, None], np.ones(len(seconds)), rcond=None)
        said = float(np.array([1.0, held_out[0], held_out[1], held_out[0] * held_out[1]]) @ parameters)
        fitted[stage] = {"parameters": parameters.tolist(), "predicted": said}
    said = {stage: each["predicted"] for stage, each in fitted.items()}
    said["certify"] = 2 * said["encode"] + proofs * said["proof"] + calls * said["call"]
    for stage in said:
        true = measured[held_out][stage]
        fitted[stage] |= {"predicted": said[stage], "held_out": true}
        numbers = (1e6 * measured[case][stage] for case in cases)
        lines.append([stage, *numbers, 1e6 * said[stage], said[stage] / true - 1])
    counts = {str(case): found for case, (_, found) in both.items()}
    return lines, {"cases": cases, "fitted": fitted, "proofs and calls of certify a row": counts}


def stages(features: int, hidden: int, rows: int) -> tuple[dict[str, float], tuple[float, float]]:
    """CPU seconds a row of each stage, one thread, the best of three; proofs and calls of certify a row."""
    rng = np.random.default_rng(features)
    frame = pd.DataFrame(rng.normal(size=(rows, features)), columns=[f"x{i}" for i in range(features)])
    labels = np.where(frame.iloc[:, :4].sum(axis=1) + rng.normal(0, 0.3, rows) > 0, "yes", "no")
    schema = vt.Schema.infer(frame.assign(y=labels), target="y", favourable="yes")
    sizes = {"hidden": (hidden, hidden), "generator_hidden": (hidden,), "epochs": 2, "panel": None}
    model = vt.VeriTraCER(schema=schema, **sizes).fit(frame, labels)
    recourse, some = model.recourse(), frame.head(max(200, rows // 8))
    table = pa.Table.from_pandas(frame, preserve_index=False)
    mirrored = frame.iloc[::-1].reset_index(drop=True)
    sign = torch.from_numpy(np.sign(model.decision_function(frame)))
    asked = ProofBatch(*(model.encoding_.encode(each) for each in (frame, mirrored)), sign)
    alone, wide = asked.select(torch.zeros(1, dtype=torch.long)), model.param_set(50.0)  # nothing is proved
    counts = counted(lambda: model.certify(frame, mirrored))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "t.parquet"
        pq.write_table(table, place)
        calls = {
            "read": (lambda: pq.read_table(place), rows),
            "encode": (lambda: model.encoding_.encode(frame), rows),
            "predict": (lambda: model.predict(frame), rows),
            "proof": (lambda: prove(wide, asked, CASCADE, sign_only=True), rows),
            "call": (lambda: [prove(wide.at(50 + i), alone, CASCADE, sign_only=True) for i in range(60)], 60),
            "certify": (lambda: model.certify(frame, mirrored), rows),
            "bulk": (lambda: recourse.explain(frame, refine=False, search_radius=False), rows),
            "refined": (lambda: recourse.explain(some, search_radius=False), len(some)),
        }
        found = {name: min(timed(call) for _ in range(3)) / count for name, (call, count) in calls.items()}
    return found, (counts[0] / rows, counts[1] / rows)


def counted(call: Any) -> tuple[int, int]:
    """How many rows the cascade was asked about, and how often it was."""
    seen: list[int] = []
    real = BoundMethod.bound

    def bound(self: BoundMethod, asked: Any) -> Any:
        if self.name == CASCADE[0]:
            seen.append(len(asked.sign))
        return real(self, asked)

    with patch.object(BoundMethod, "bound", bound):
        call()
    return sum(seen), len(seen)


def timed(call: Any) -> float:
    """CPU seconds of this process, which has one thread: what others do on the machine plays little part."""
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", default=",".join(ITEMS))
    parser.add_argument("--kills", default=",".join(KILLS))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows-of-one", type=int, help="of one worker in speed, which takes longer")
    parser.add_argument("--block", type=int, help="rows of a block")
    parser.add_argument("--engines", default="local,ray", help="for speed")
    asked = parser.parse_args()
    items, rows = asked.only.split(","), asked.rows or (100_000 if asked.full else 3_000)
    block = asked.block or (4_096 if asked.full else max(50, rows // 16))
    torch.set_num_threads(1)
    results: dict[str, Any] = {"rows": rows, "workers": asked.workers}
    tables: list[str] = []

    def tell(name: str, title: str, header: list[str], lines: list[list[Any]]) -> None:
        results[name] = [dict(zip(header, line, strict=True)) for line in lines]
        tables.append(show(title, header, lines))

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if set(items) - {"cost"}:
            prepare(folder, 1_000 if items == ["large"] else rows, panel=asked.full)
        if "speed" in items:
            header = ["engine", "workers", "rows", "seconds", "rows/s", "of one worker's"]
            counts = {1: asked.rows_of_one or rows, asked.workers: rows}
            people = pq.read_table(folder / "people.parquet")
            for count in set(counts.values()):
                pq.write_table(people.slice(0, count), folder / f"people-{count}.parquet")
            lines = speed(folder, counts, block, asked.engines.split(","))
            tell("speed", "Rows of loans, refined", header, lines)
        if "ray" in items:
            header = ["engine", "seconds", "share that is Ray's"]
            tell("ray", f"{rows:,} rows, not refined, one worker", header, overhead(folder, block))
        if "memory" in items:
            tell("memory", "Peak memory of workers", ["engine", "worker", "MiB"], memory(folder, block))
        if "kill" in items:
            run(folder, "undisturbed", "--workers", "1", "--batch-rows", str(block))
            header = ["killed", "processes", "blocks before", "blocks after", "exit", "rows lost"]
            header += ["promises twice", "promises too many", "chain holds", "cells that differ"]
            found = kill(folder, block, asked.kills.split(","))
            tell("kill", "SIGKILL in the middle of issue, then the same command", header, found)
        if "large" in items:
            header = ["run", "rows", "seconds", "rows/s", "MiB of a worker", "cells that differ", "ended"]
            tell("large", "Many files through Ray", header, large(folder, rows, asked.workers, block))
    if "cost" in items:
        lines, results["cost_model"] = cost(20_000 if asked.full else 2_000)
        cases = [f"{d}×{h}" for d, h in results["cost_model"]["cases"]]
        header = ["stage", *cases[:-1], f"{cases[-1]} (held out)", "predicted", "error"]
        tell("cost", "Microseconds a row, by features × hidden units, one core", header, lines)
    if asked.full and set(items) == set(ITEMS):
        save("scale", results, tables)
    else:
        print(json.dumps(results)[:2_000])


if __name__ == "__main__":
    main()
