"""Schemathesis over the whole OpenAPI document of a running service: no 500, nothing that is not documented.

``python -m benchmarks.serve_fuzz [--requests 20000]`` runs its phases (examples, coverage, fuzzing, stateful)
with growing numbers of cases until the service has counted that many requests. The search has a small time
budget, so that the requests and not the answers are what is tried.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.record import save, show

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "app" / "serve")]

REQUESTS = 20_000
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance"),
)


def counted(url: str) -> dict[str, int]:
    """Requests that the service has answered, by their status."""
    found: dict[str, int] = {}
    for status, count in re.findall(
        r'requests_total\{.*status="(\d+)"\} ([\d.e+]+)', httpx.get(f"{url}/metrics").text
    ):
        found[status] = found.get(status, 0) + int(float(count))
    return found


def fuzz(url: str, cases: int, seed: int) -> subprocess.CompletedProcess[str]:
    """One run of schemathesis."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--seed", str(seed)]
    command += ["--checks", ",".join(CHECKS), "--max-examples", str(cases), "--suppress-health-check", "all"]
    command += ["--continue-on-failure", "--warnings", "off", "--request-timeout", "60", "--no-color"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main() -> None:
    from serving_cases import running, save_all

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--cases", type=int, default=200)
    asked = parser.parse_args()
    start, seed, failed = time.perf_counter(), 0, []
    with tempfile.TemporaryDirectory() as place:
        folder = save_all(Path(place))
        args = [str(folder / "model"), "--ledger", str(folder / "l.db")]
        args += ["--time-budget", "0.01"]
        with running(*args, log=folder / "log") as (url, _):
            while sum(counted(url).values()) < asked.requests:
                done = fuzz(url, asked.cases, seed)
                seed += 1
                if done.returncode:
                    failed.append(done.stdout)
                    print(done.stdout[-6000:], flush=True)
                    break
            told = counted(url)
            alive = httpx.get(f"{url}/readyz").status_code
        errors = (folder / "log").read_text().count('"event": "failure"')
    lines = [[status, told[status]] for status in sorted(told)]
    table = show("Schemathesis", ["status", "requests"], [*lines, ["all", sum(told.values())]])
    seconds = round(time.perf_counter() - start, 1)
    print(f"{seed} runs, {seconds} s, {len(failed)} failed, {errors} errors in the log, ready: {alive}")
    if asked.requests >= REQUESTS and not failed:
        save("serve_fuzz", {"statuses": told, "runs": seed, "seconds": seconds, "errors": errors}, [table])
    sys.exit(bool(failed or errors or alive != 200))


if __name__ == "__main__":
    main()
