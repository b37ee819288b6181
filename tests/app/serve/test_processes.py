"""The processes of a service: killed, hung, or left behind, they answer nobody wrongly and none survives."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving_cases import free_port, people, running, wait_until_ready

import veritracer as vt

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc"
)

HANGS = """
import sys, time
from veritracer.app.serve import batching
from veritracer.app.serve.operations import Operations

batching.GRACE = 1.0  # instead of 10 s: the test waits for it

def hang(self, jobs, until):
    if any(row["age"] == 77 for job in jobs for row in job.rows):
        time.sleep(3600)
    return decide(self, jobs, until)

decide, Operations._decide = Operations._decide, hang
if __name__ == "__main__":
    from veritracer.app.cli import main
    main()
"""


def children(pid: int) -> list[int]:
    """Return the processes of a service: its children that Python's multiprocessing started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # it has ended since
            continue
        if parent == pid and b"spawn_main" in command:
            found.append(int(folder.name))
    return sorted(found)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def replaced(parent: int, victim: int) -> bool:
    """Return whether the service has two processes again, without the one that was killed."""
    return len(children(parent)) == 2 and victim not in children(parent)


def within(seconds: float, holds: Any) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def decide(url: str, row: dict[str, Any], seconds: float = 300.0) -> httpx.Response:
    """Ask until somebody answers: a process that is replaced accepts nothing for a while."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return httpx.post(f"{url}/v1/decisions", json={"rows": [row]}, timeout=20)
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_no_process_survives_its_killed_parent(saved: Path, tmp_path: Path) -> None:
    with running(str(saved / "model"), log=tmp_path / "log") as (url, parent):
        workers = children(parent.pid)
        assert len(workers) == 1
        assert decide(url, dict(people()[0])).status_code == 200
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert within(10, lambda: not any(map(is_alive, workers)))
    assert '"why": "parent gone"' in (tmp_path / "log").read_text()


def test_a_killed_process_is_replaced_and_promises_are_neither_lost_nor_doubled(
    saved: Path, tmp_path: Path
) -> None:
    ledger, told = tmp_path / "l.db", dict[str, int]()
    args = [str(saved / "model"), "--ledger", str(ledger), "--workers", "2"]
    stop, rows = threading.Event(), [dict(one) for one in people()[:-1]]

    def client(number: int) -> None:
        """Issue to one person after the other; repeat each request until it is acknowledged."""
        for k in range(1000):
            person, key = f"{number} {k}", {"Idempotency-Key": f"{number}-{k}"}
            body = {"rows": [rows[(number + k) % len(rows)]], "ids": [person]}
            while True:
                try:
                    answer = httpx.post(f"{url}/v1/promises", json=body, headers=key, timeout=30)
                except httpx.TransportError:
                    time.sleep(0.05)
                    continue
                if answer.status_code in (200, 201):
                    (promise,) = answer.json()["promises"]
                    told[person] = promise["number"]
                    break
                assert answer.status_code in (429, 503), answer.text
            if stop.is_set():
                return

    def reached(count: int) -> bool:
        return len(told) >= count

    with running(*args, log=tmp_path / "log") as (url, parent):
        assert within(300, lambda: len(children(parent.pid)) == 2)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            wanted, victim = len(told) + 4, children(parent.pid)[0]
            assert within(200, partial(reached, wanted))
            os.kill(victim, signal.SIGKILL)
            assert within(300, partial(replaced, parent.pid, victim))
        stop.set()
        for thread in threads:
            thread.join(200)
        text = httpx.get(f"{url}/metrics", timeout=20).text
        assert 'veritracer_requests_total{method="POST",route="/v1/promises",status="201"}' in text
    assert (tmp_path / "log").read_text().count('"event": "replaced"') == 2
    with vt.Ledger(ledger, create=False) as opened:
        listed = opened.listing()
        assert opened.verify().ok
    assert max(Counter(listed["id"]).values()) == 1
    numbers = dict(zip(listed["id"], listed["number"], strict=True))
    assert {person: numbers[person] for person in told} == told
    assert len(told) > 8


def test_a_hung_process_ends_past_its_deadline_and_is_replaced(saved: Path, tmp_path: Path) -> None:
    program, port = tmp_path / "hangs.py", free_port()
    program.write_text(HANGS)
    command = [sys.executable, str(program), "serve", str(saved / "model"), "--timeout", "2"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        parent = subprocess.Popen([*command, "--port", str(port)], stdout=out, stderr=out)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, parent)
        (before,) = children(parent.pid)
        answer = decide(url, {**people()[0], "age": 77})
        assert answer.status_code == 504
        assert httpx.get(f"{url}/readyz", timeout=20).status_code == 503
        assert within(10, lambda: not is_alive(before))
        assert decide(url, dict(people()[0])).json()["decisions"][0]["decision"] == "no"
        assert "Timeout (" in log.read_text()
        assert "in hang" in log.read_text()  # where it hung
    finally:
        parent.terminate()
        parent.wait(100)
    assert parent.returncode == 0


def test_answers_during_kills_are_those_of_a_fresh_process(saved: Path, tmp_path: Path) -> None:
    """Every answer with status 200 belongs to its row, whatever happens to the processes meanwhile."""
    rows = [{**people()[0], "income": float(income)} for income in range(20_000, 60_000, 200)]

    async def ask(url: str, disturb: Any = None) -> list[Any]:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:

            async def one(i: int) -> Any:
                if disturb is not None and i in (60, 120):
                    disturb()
                try:
                    async with asyncio.timeout(0.001 if disturb is not None and i % 7 == 0 else 30):
                        answer = await client.post("/v1/decisions", json={"rows": [rows[i]]})
                except (httpx.TransportError, TimeoutError):
                    return None
                return answer.json()["decisions"][0] if answer.status_code == 200 else None

            found = []
            for start in range(0, len(rows), 10):
                found += await asyncio.gather(*(one(i) for i in range(start, start + 10)))
            return found

    with running(str(saved / "model"), "--workers", "2", log=tmp_path / "log") as (url, parent):
        assert within(300, lambda: len(children(parent.pid)) == 2)
        fresh = asyncio.run(ask(url))
        assert len({one["probability"] for one in fresh}) == len(rows) == 200
        after = asyncio.run(ask(url, lambda: os.kill(children(parent.pid)[0], signal.SIGKILL)))
    told = [(one, other) for one, other in zip(after, fresh, strict=True) if one is not None]
    assert len(told) > 100
    for one, other in told:
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-12)
