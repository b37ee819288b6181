"""Audits at scale: seconds and memory for a million promises, and how they grow with their number.

``python -m benchmarks.audit``; ``--promises 100000`` for a shorter run that is not saved. ``--folder`` keeps
the ledgers, and finds them there the next time.

The ledger is that of ``benchmarks.ledger``: a SQLite file of promises of one model of ``loans``. Three models
are held against it: one inside the promised set (everything is proved), one outside of it (everything is
checked, x and x′), and one trained anew on the next year's rows, with another encoding (every row is decoded
and encoded again). Each is a process of its own, one thread; verifying the chain, which ``veritracer audit``
does first, is counted apart. On a busy machine the seconds of the processor say more than those of the clock.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import veritracer as vt
from benchmarks.ledger import PROMISES, write
from benchmarks.record import save, show
from veritracer.ledger.auditing import audit
from veritracer.ledger.verdicts import AuditedModel
from veritracer.models.network import to_module

KINDS = ("inside", "outside", "another encoding")


def candidate(ledger: vt.Ledger, kind: str) -> AuditedModel:
    """The model that is held against the ledger."""
    (issuing,) = ledger.models().values()
    if kind == "another encoding":
        later = vt.datasets.loans(rows=3000, year=2)
        model = vt.VeriTraCER(schema=later.schema, method="standard", epochs=3).fit(later.X, later.y)
        return AuditedModel.of(model)
    share = 0.9 if kind == "inside" else 3.0
    moved = issuing.param_set(0.2 * share).sample(1, torch.Generator().manual_seed(0), corners=True)
    return AuditedModel.of(to_module(issuing.network, [t[0] for t in moved]), issuing.encoding)


def measure(place: str, count: int, kind: str) -> dict[str, float]:
    """Seconds of the audit, and its verdicts."""
    with vt.Ledger(place) as ledger:
        model = candidate(ledger, kind)
        clock, processor = time.perf_counter(), time.process_time()
        found = audit(ledger, model)
        seconds = {"seconds": time.perf_counter() - clock, "processor": time.process_time() - processor}
    assert found.live == count
    return {**seconds, **found.counts}


def verify(place: str) -> dict[str, float]:
    with vt.Ledger(place) as ledger:
        clock, processor = time.perf_counter(), time.process_time()
        assert ledger.verify().ok
    return {"seconds": time.perf_counter() - clock, "processor": time.process_time() - processor}


def measured(step: str, place: str, count: int) -> dict[str, float]:
    """What the step says of itself, run as a process of its own."""
    command = [sys.executable, "-m", "benchmarks.audit", "--step", step, "--place", place]
    done = subprocess.run([*command, "--promises", str(count)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--promises", type=int, default=PROMISES)
    parser.add_argument("--step", choices=("write", "verify", *KINDS))
    parser.add_argument("--place")
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    if asked.step:
        torch.set_num_threads(1)
        if asked.step == "write":
            found = write(asked.place, asked.promises)
        elif asked.step == "verify":
            found = verify(asked.place)
        else:
            found = measure(asked.place, asked.promises, asked.step)
        print(json.dumps({**found, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
        return
    results: dict[str, dict[str, dict[str, float]]] = {}
    lines = []
    for count in (asked.promises // 10, asked.promises // 3, asked.promises):
        with tempfile.TemporaryDirectory() as folder:
            place = str((asked.folder or Path(folder)) / f"promises-{count}.db")
            if not Path(place).exists():
                measured("write", place, count)
            results[str(count)] = {step: measured(step, place, count) for step in ("verify", *KINDS)}
        for step, found in results[str(count)].items():
            proved, broken = found.get("kept by proof", "–"), found.get("broken", "–")
            used = found["processor"]
            times = [found["seconds"], used, count / used]
            lines.append([f"{count:,}", step, *times, found["peak_mib"], proved, broken])
    header = ["promises", "model", "seconds", "of the processor", "promises per second of it", "peak MiB"]
    header += ["kept by proof", "broken"]
    table = show("Audit of a ledger of loans in SQLite, one thread", header, lines)
    if asked.promises == PROMISES:
        save("audit", {"results": results}, [table])


if __name__ == "__main__":
    main()
