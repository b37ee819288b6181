"""A service that is killed while it issues: nothing acknowledged is lost, nothing is issued twice.

``python -m benchmarks.serve_kill [--kills 100]``. Clients issue promises, each request under a key of its
own, and retry a request under the same key until it is acknowledged. At random moments the service gets
SIGKILL and is started anew; for PostgreSQL every fifth moment crashes the database's server instead, while
the service goes on (it has to answer 503, and to recover by itself). Afterwards every acknowledged promise
has to be in the ledger under its number, no person may have two, and the chain has to verify.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

import veritracer as vt
from benchmarks.record import save, show

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "app" / "serve"), str(TESTS / "ledger")]

KILLS = 100


class Issuers:
    """Clients that issue promises to people of their own, and remember what was acknowledged."""

    def __init__(self, port: int, count: int, rows: list[dict[str, Any]]) -> None:
        self.url, self.rows = f"http://127.0.0.1:{port}", rows
        self.acknowledged: dict[str, int] = {}
        self.statuses: Counter[str] = Counter()
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._live, args=(i,)) for i in range(count)]

    def start(self) -> None:
        """Begin."""
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """End, after what is under way."""
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def _live(self, number: int) -> None:
        round_ = 0
        with httpx.Client(base_url=self.url, timeout=30) as client:
            while not self.stopping.is_set():
                round_ += 1
                person = f"client {number} person {round_}"
                body = {"rows": [self.rows[(number + round_) % len(self.rows)]], "ids": [person]}
                self._until_acknowledged(client, person, body, str(uuid.uuid4()))

    def _until_acknowledged(self, client: httpx.Client, person: str, body: Any, key: str) -> None:
        """Retry until the service says that it is done; whoever gives up first does so with the run."""
        while True:
            try:
                answer = client.post("/v1/promises", json=body, headers={"Idempotency-Key": key})
                said = str(answer.status_code)
            except httpx.TransportError as error:
                answer, said = None, type(error).__name__
            with self.lock:
                self.statuses[said] += 1
            if answer is not None and answer.status_code in (200, 201):
                (promise,) = answer.json()["promises"]
                with self.lock:
                    self.acknowledged[person] = promise["number"]
                return
            if answer is not None and answer.status_code not in (429, 503, 504):
                raise AssertionError(answer.text)
            if self.stopping.is_set():
                return
            time.sleep(
                0.05 if answer is not None else 0.5
            )  # while nobody listens: the cores are for starting


def run(
    place: str,
    folder: Path,
    kills: int,
    *,
    crash: Callable[[], None] | None = None,
    clients: int = 4,
    seed: int = 0,
) -> dict[str, Any]:
    """What became of the ledger after so many kills."""
    from serving_cases import people, start_service, wait_until_ready

    rng, start = random.Random(seed), time.perf_counter()
    port, process = start_service(str(folder / "model"), "--ledger", place)
    rows = [dict(row) for row in people()[:-1]]
    issuers, crashes, done = Issuers(port, clients, rows), 0, 0
    wait_until_ready(f"http://127.0.0.1:{port}", process)
    issuers.start()
    try:
        for moment in range(1, kills + 1):
            before = len(issuers.acknowledged)
            deadline = time.monotonic() + 60
            while len(issuers.acknowledged) <= before and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(rng.uniform(0.0, 0.4))
            if crash is not None and moment % 5 == 0:
                crash()
                crashes += 1
                wait_until_ready(f"http://127.0.0.1:{port}", process)  # by itself
                continue
            process.kill()
            process.wait()
            done += 1
            _, process = start_service(str(folder / "model"), "--ledger", place, port=port)
            wait_until_ready(f"http://127.0.0.1:{port}", process)
            print(
                f"kill {moment}: {len(issuers.acknowledged)} acknowledged, {dict(issuers.statuses)}",
                flush=True,
            )
        issuers.stop()
    finally:
        issuers.stopping.set()
        process.terminate()
        process.wait()
    return {
        **check(place, issuers.acknowledged),
        "kills": done,
        "database crashed": crashes,
        "answers": dict(issuers.statuses),
        "seconds": round(time.perf_counter() - start, 1),
    }


def check(place: str, acknowledged: dict[str, int]) -> dict[str, Any]:
    """The ledger against what the clients were told."""
    with vt.Ledger(place) as ledger:
        found: Counter[str] = Counter()
        numbers: dict[str, int] = {}
        for piece in ledger.promises():
            for who, number in zip(piece.ids, piece.sequence.tolist(), strict=True):
                found[who] += 1
                numbers[who] = number
        verified = ledger.verify()
    return {
        "acknowledged": len(acknowledged),
        "in the ledger": sum(found.values()),
        "lost": sum(numbers.get(who) != number for who, number in acknowledged.items()),
        "twice": sum(count > 1 for count in found.values()),
        "findings": verified.count,
    }


def main() -> None:
    from postgres_server import Server, binaries
    from serving_cases import save_all

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--only", choices=["sqlite", "postgresql"])
    asked = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = save_all(Path(place))
        if asked.only != "postgresql":
            results["SQLite"] = run(str(folder / "promises.db"), folder, asked.kills)
            print(results["SQLite"], flush=True)
        programs = binaries() if asked.only != "sqlite" else None
        if programs is None:
            print("PostgreSQL is left out")
        else:
            server = Server(programs, durable=True)
            try:
                results["PostgreSQL"] = run(server.new(), folder, asked.kills, crash=server.crash)
                print(results["PostgreSQL"], flush=True)
            finally:
                server.stop()
    columns = [
        "kills",
        "database crashed",
        "acknowledged",
        "in the ledger",
        "lost",
        "twice",
        "findings",
        "seconds",
    ]
    lines = [[name, *(told[column] for column in columns)] for name, told in results.items()]
    table = show("A service killed while it issues", ["database", *columns], lines)
    harmed = [name for name, told in results.items() if told["lost"] or told["twice"] or told["findings"]]
    if asked.kills >= KILLS and len(results) == 2:
        save("serve_kill", {"results": results}, [table])
    sys.exit(f"harmed: {', '.join(harmed)}" if harmed else 0)


if __name__ == "__main__":
    main()
