"""``vt.Client`` against a service in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest
from serving_cases import model, people, running

import veritracer as vt
from processes import assert_refused, run
from veritracer.errors import DataError, ServiceError

# The first line on stdout says where it listens; a refusal is compared without it.
QUIET = "import veritracer.app.cli.serve as s; s.say = lambda *a: None"


@pytest.fixture(scope="module")
def process(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, str]]:
    """A service with one worker process and keys: its URL, its process, and a key."""
    folder = tmp_path_factory.mktemp("process")
    made = run("serve", "--keys", str(folder / "keys.json"), "--add-key", "all", "--scopes", "admin,decide")
    key = made.stdout.strip()
    args = [str(saved / "model"), "--ledger", str(folder / "l.db"), "--keys", str(folder / "keys.json")]
    args += ["--candidates", str(saved / "candidates"), "--rate", "0"]
    with running(*args, log=folder / "log") as (url, server):
        yield url, server, key


@pytest.fixture
def client(process: tuple[str, Any, str]) -> Iterator[vt.Client]:
    with vt.Client(process[0], process[2]) as made:
        yield made


def frame(count: int = 8) -> pd.DataFrame:
    return pd.DataFrame(list(people()[:count]), index=[f"p{i}" for i in range(count)])


def test_the_verbs_of_the_library(client: vt.Client, saved: Path) -> None:
    X = frame()
    assert client.predict(X).tolist() == model().predict(X).tolist()
    far, near = client.explain(X), model().explain(X)
    pd.testing.assert_frame_equal(far.frame, near.frame)
    assert far.status.tolist() == near.status.tolist()
    assert [far.sentence(i) for i in range(len(far))] == [near.sentence(i) for i in range(len(near))]
    assert far.certified.tolist() == near.certified.tolist()
    assert client.certify(X, far.frame)["certified"].tolist() == near.certified.tolist()
    several = client.explain(X, n=2)
    assert several.frame.index.names[-1] == "alternative"
    ids = [f"client {i}" for i in range(len(X))]
    issued = client.issue(X, ids=ids, expires="1y", request="once")
    assert client.issue(X, ids=ids, expires="1y", request="once")["head"] == issued["head"]
    assert client.ledger()["live"] == len(issued["promises"])
    assert client.promise(issued["promises"][0]["number"])["id"] == "client 0"
    assert client.verify(issued["head"])["ok"]
    assert client.audit(saved / "candidates" / "same", pause=0.02)["ok"]
    assert not client.audit(saved / "candidates" / "harsh", pause=0.02)["ok"]
    with pytest.raises(ServiceError, match="keeps every promise") as refused:
        client.reload("harsh")
    assert refused.value.status == 409
    assert client.reload("same")["model_digest"] == client.model()["model_digest"]
    assert client.erase("client 0") == [issued["promises"][0]["number"]]


def test_what_is_refused_is_said_in_three_parts(client: vt.Client, process: tuple[str, Any, str]) -> None:
    with pytest.raises(DataError, match="expected 9 columns, got none called 'age'"):
        client.explain(frame().drop(columns="age"))
    with pytest.raises(ServiceError, match="expected a value of 'job', got 'pilot' in row 0"):
        client.explain(frame().assign(job="pilot"))
    with vt.Client(process[0], "vt_no_one") as stranger, pytest.raises(ServiceError) as refused:
        stranger.model()
    assert refused.value.status == 401
    with vt.Client("http://127.0.0.1:9") as nowhere, pytest.raises(ServiceError, match="is it running"):
        nowhere.model()


@pytest.mark.long
def test_the_verb_refuses_what_can_not_be_meant(saved: Path) -> None:
    assert_refused(run("serve"))
    assert_refused(run("serve", str(saved / "nothing")))
    assert_refused(
        run(
            "serve",
            str(saved / "model"),
            "--workers",
            "0",
            "--ledger",
            "mysql://nobody/nothing",
            before=QUIET,
        )
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_refused(run("serve", str(saved / "model"), "--workers", "0", "--port", port, before=QUIET))
    done = run("serve", str(saved / "model"), "--host", "0.0.0.0")
    assert_refused(done)
    assert "API keys" in done.stderr


def workers_of(server: Any) -> list[int]:
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server.pid)], capture_output=True, text=True)
    return [int(pid) for pid in done.stdout.split()]


@pytest.mark.long
def test_a_worker_that_dies_is_replaced(process: tuple[str, Any, str], client: vt.Client) -> None:
    server = process[1]
    before = workers_of(server)
    os.kill(before[0], signal.SIGKILL)
    assert len(client.explain(frame(2))) == 2  # 503, and tried again
    assert workers_of(server) != before


@pytest.mark.long
def test_ending_finishes_what_is_held(saved: Path, tmp_path: Path) -> None:
    """SIGTERM while requests wait: each is answered or refused, and the process ends by itself."""
    log = tmp_path / "log"
    answers: list[int] = []
    with running(str(saved / "model"), "--rate", "0", "--workers", "0", "--window", "1000", log=log) as (
        url,
        server,
    ):
        body = {"rows": [dict(row) for row in people()[:8]]}
        httpx.post(f"{url}/v1/recourse", json=body, timeout=30)

        def ask() -> None:
            try:
                answers.append(httpx.post(f"{url}/v1/recourse", json=body, timeout=30).status_code)
            except httpx.ConnectError:
                answers.append(0)  # it came when nobody listened any more

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 30
        while "veritracer_queued_rows 0.0" in httpx.get(f"{url}/metrics", timeout=30).text:
            assert time.monotonic() < deadline
        server.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert server.wait(30) in (0, -signal.SIGTERM)
    assert len(answers) == 6
    assert set(answers) <= {200, 503, 0}
    assert 200 in answers
    assert '"event": "stopped"' in log.read_text()
    assert "Traceback" not in log.read_text()
