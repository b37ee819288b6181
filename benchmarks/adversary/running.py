"""Jobs on several cores, remembered when they end: stopping costs what was under way, and no more."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).parents[2]
STATE = ROOT / "out" / "adversary"

Result = dict[str, Any]
"""What one job found: numbers that are added up, and ``violations``, a list of what was broken and how."""


class Line(NamedTuple):
    """A line of the table: what was tried, how often, how often something broke, and what else was seen."""

    tried: str
    count: int
    violations: int
    seen: str


@dataclass(frozen=True)
class Part:
    """One kind of attack.

    ``jobs`` is how many a full run has and ``quick`` how many a quick one; job k is the same in both. ``run``
    does one of them, ``lines`` is what the table says of all their results.
    """

    name: str
    jobs: int
    quick: int
    run: Callable[[int], Result]
    lines: Callable[[Sequence[Result]], list[Line]]

    def wanted(self, share: float | None) -> int:
        """How many jobs this share of a full run is; None is a quick run, and less than that is none."""
        return self.quick if share is None else max(self.quick, round(self.jobs * share))


def code_digest() -> str:
    """The SHA-256 of the library and of these scripts: results of other code are not gone on from."""
    sha = hashlib.sha256()
    for folder in (ROOT / "src" / "veritracer", Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            sha.update(str(path.relative_to(ROOT)).encode() + b"\n" + path.read_bytes())
    return sha.hexdigest()[:16]


def remembered(part: Part, code: str, folder: Path = STATE) -> dict[int, Result]:
    """The results of the jobs that this code has done before."""
    path = folder / f"{part.name}.jsonl"
    found: dict[int, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = _entry(line)
        if entry is not None and entry["code"] == code:
            found[entry["job"]] = entry["result"]
    return found


def whole(part: Part, code: str, folder: Path = STATE) -> tuple[str, list[Result]] | None:
    """The last full run of a part that is remembered (of this code, if there is one), and its code."""
    path = folder / f"{part.name}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    codes = [entry["code"] for entry in map(_entry, lines) if entry is not None]
    for known in dict.fromkeys([code, *reversed(codes)]):
        done = remembered(part, known, folder)
        if all(job in done for job in range(part.jobs)):
            return known, [done[job] for job in range(part.jobs)]
    return None


def _entry(line: str) -> dict[str, Any] | None:
    """What a line of the file holds; None where it was cut short when the run was stopped."""
    try:
        entry: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return entry


def run_part(part: Part, share: float | None, workers: int, code: str, folder: Path = STATE) -> list[Result]:
    """The results of all jobs that are asked for, in their order; a job that crashed is not remembered."""
    count, done = part.wanted(share), remembered(part, code, folder)
    todo = [job for job in range(count) if job not in done]
    print(f"{part.name}: {count} jobs, {count - len(todo)} of them done before", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    start, said = time.monotonic(), time.monotonic()
    with (folder / f"{part.name}.jsonl").open("a") as file:
        file.write("\n" * (file.tell() > 0))  # a line may have been cut short
        for at, (job, result) in enumerate(_finished(part, todo, workers), 1):
            done[job] = result
            if "crash" not in result:
                file.write(json.dumps({"code": code, "job": job, "result": result}) + "\n")
                file.flush()
            if time.monotonic() - said > 30:
                said = time.monotonic()
                left = (said - start) / at * (len(todo) - at)
                print(f"{part.name}: {at} of {len(todo)} jobs, {left:,.0f} s to go", flush=True)
    return [done[job] for job in range(count)]


def timed(part: Part, job: int) -> Result:
    """The result of one job, with its processor's seconds; or the traceback of what stopped it."""
    torch.set_num_threads(1)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensors of zeros and clipped cells are part of the plan
        try:
            result = part.run(job)
        except Exception:  # the run goes on; the crash is reported and counted
            result = {"crash": traceback.format_exc(), "violations": []}
    return {**result, "seconds": time.process_time() - start, "torch": torch.__version__}


def _finished(part: Part, jobs: Sequence[int], workers: int) -> Iterator[tuple[int, Result]]:
    """Each job with its result, as they end."""
    if workers == 1 or len(jobs) < 2:
        yield from ((job, timed(part, job)) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context) as pool:
        open_: dict[Future[Result], int] = {pool.submit(timed, part, job): job for job in jobs}
        while open_:
            for future in wait(open_, return_when=FIRST_COMPLETED).done:
                yield open_.pop(future), future.result()


def total(results: Sequence[Result], name: str) -> int:
    """The sum of a number over all jobs."""
    return int(sum(result.get(name, 0) for result in results))


def violations(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Everything that was broken, with the job that can be repeated."""
    found = []
    for job, result in enumerate(results):
        found += [{"job": job, **one} for one in result["violations"]]
        if "crash" in result:
            found.append({"job": job, "crash": result["crash"].splitlines()[-1]})
    return found
