"""``vt.Client`` against a service in a process of its own, and against scripted answers."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
from serving_cases import model, people, running

import veritracer as vt
from processes import assert_refused, run
from veritracer.app.serve import client as module
from veritracer.errors import DataError, ServiceError

# The first line on stdout says where it listens; a refusal is compared without it.
QUIET = "import veritracer.app.cli.serve as s; s.say = lambda *a: None"


@pytest.fixture(scope="module")
def process(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Any, str]]:
    """A service with keys: its URL, its process, and a key."""
    folder = tmp_path_factory.mktemp("process")
    made = run("serve", "--keys", str(folder / "keys.json"), "--add-key", "all", "--scopes", "admin,decide")
    key = made.stdout.strip()
    args = [str(saved / "model"), "--ledger", str(folder / "l.db"), "--keys", str(folder / "keys.json")]
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
    assert far.table["certified"].tolist() == near.certified.tolist()
    assert client.certify(X, far.frame)["certified"].tolist() == near.certified.tolist()
    several = client.explain(X, n=2)
    assert several.frame.index.names[-1] == "alternative"
    ids = [f"client {i}" for i in range(len(X))]
    issued = client.issue(X, ids=ids, expires="1y", request_id="once")
    assert client.issue(X, ids=ids, expires="1y", request_id="once")["checksum"] == issued["checksum"]
    assert client.ledger()["live"] == len(issued["promises"])
    assert client.promise(issued["promises"][0]["number"])["id"] == "client 0"
    assert client.verify(issued["checksum"])["ok"]
    assert [one["kind"] for one in client.audits()] == ["deployment"]
    assert client.erase("client 0") == [issued["promises"][0]["number"]]


def test_what_is_refused_is_said_in_three_parts(client: vt.Client, process: tuple[str, Any, str]) -> None:
    with pytest.raises(DataError, match="expected 9 columns, got none called 'age'"):
        client.explain(frame().drop(columns="age"))
    with pytest.raises(ServiceError, match="got 'pilot' at /rows/0/job"):
        client.explain(frame().assign(job="pilot"))
    with vt.Client(process[0], "vt_no_one") as stranger, pytest.raises(ServiceError) as refused:
        stranger.model()
    assert refused.value.status == 401
    with vt.Client("http://127.0.0.1:9") as nowhere, pytest.raises(ServiceError, match="is it running"):
        nowhere.model()


@pytest.mark.long
def test_the_verb_refuses_what_cannot_be_meant(saved: Path) -> None:
    assert_refused(run("serve"))
    assert_refused(run("serve", str(saved / "nothing")))
    assert_refused(
        run(
            "serve",
            str(saved / "model"),
            "--ledger",
            "mysql://nobody/nothing",
            before=QUIET,
        )
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_refused(run("serve", str(saved / "model"), "--port", port, before=QUIET))
    done = run("serve", str(saved / "model"), "--host", "0.0.0.0")
    assert_refused(done)
    assert "API keys" in done.stderr


@pytest.mark.long
def test_ending_finishes_what_is_held(saved: Path, tmp_path: Path) -> None:
    """SIGTERM while requests wait: each is answered or refused, and the process ends by itself."""
    log = tmp_path / "log"
    answers: list[int] = []
    with running(str(saved / "model"), "--window", "1000", log=log) as (url, server):
        body = {"rows": [dict(row) for row in people()[:8]]}
        httpx.post(f"{url}/v1/recourse", json=body, timeout=30)

        def ask() -> None:
            try:
                answers.append(httpx.post(f"{url}/v1/recourse", json=body, timeout=30).status_code)
            except httpx.TransportError:
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


# ---------------------------------------------------------------- what the client makes of answers


@pytest.fixture
def near(url: str) -> Iterator[vt.Client]:
    """A client of the session's service."""
    with vt.Client(url) as made:
        yield made


def named(count: int = 3) -> pd.DataFrame:
    return pd.DataFrame(list(people()[:count])).assign(id=[f"p{i}" for i in range(count)])


def test_what_an_answer_says(near: vt.Client) -> None:
    X = named().set_index("id")
    found = near.explain(X, notice={"recipient": "Ms Doe"})
    own = model().explain(X)
    assert str(found) == repr(found)
    assert str(found).startswith(f"3 counterfactuals at kappa = {own.kappa}: ")
    for name in ("reason", "valid", "method", "n_changes"):
        assert found.table[name].tolist() == own.table[name].tolist()
    assert found.table["radius"].tolist() == pytest.approx(np.asarray(own.radius), nan_ok=True)
    assert found.table["probability"].tolist() == pytest.approx(own.probability.tolist())
    assert found.table["agreement"].isna().all()  # the model has no panel
    assert found.table["status"].tolist() == own.status.tolist()
    assert found.table.index.tolist() == X.index.tolist()
    assert "Ms Doe" in (found.notice(0) or "")
    changes = found.changes()
    assert set(changes["row"]) <= set(X.index)
    assert len(changes) == own.n_changes.sum()
    first = changes.iloc[0]
    assert (X.loc[first["row"], first["feature"]], found.frame.loc[first["row"], first["feature"]]) == (
        first["from"],
        first["to"],
    )


def test_pairs_are_pairs(near: vt.Client) -> None:
    with pytest.raises(DataError, match="expected one counterfactual for each row, got 1 for 2"):
        near.certify(named(2), named(1))


# ---------------------------------------------------------------- services that answer otherwise

Handler = Callable[[httpx.Request], httpx.Response]
BUSY = {"expected": "room", "received": "none", "remedy": "wait"}


def scripted(monkeypatch: pytest.MonkeyPatch, handler: Handler) -> vt.Client:
    """A client of a service that answers so; nobody sleeps."""
    monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(handler)))
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    return vt.Client("http://service")


def answers_of(other: dict[str, Any], schema: dict[str, Any] | None = None) -> Handler:
    """A service that gives everybody their own row, with some values exchanged."""
    schema = schema or json.loads(model().schema_.to_json())
    plain = ("sentence", "notice", *module.TABLE)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"schema": schema})
        answers = [
            {
                "decision": "no",
                "favourable": False,
                "probability": 0.1,
                "alternatives": [
                    {
                        **dict.fromkeys(plain),
                        "status": "none",
                        "counterfactual": {**row, **other},
                        "changes": [{"feature": k, "from": row[k], "to": v} for k, v in other.items()],
                    }
                ],
            }
            for row in json.loads(request.content)["rows"]
        ]
        return httpx.Response(200, json={"answers": answers, "notes": ["a note"]})

    return answer


def test_numbers_that_are_text_travel_as_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come back as the column writes them."""
    schema = json.loads(model().schema_.to_json())
    for feature in schema["features"]:
        feature |= {"number_format": "1.234,5 €"} if feature["name"] == "income" else {}
    answer, seen = answers_of({"income": 15880.5}, schema), []

    def watched(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            seen.extend(row["income"] for row in json.loads(request.content)["rows"])
        return answer(request)

    near, X = scripted(monkeypatch, watched), named().drop(columns="id")
    X["income"] = ["1.234,5 €", "983 €", "20.000 €"]
    assert near.explain(X).frame["income"].tolist() == ["15.880,5 €"] * 3
    assert seen == [1234.5, 983.0, 20000.0]


def test_cells_travel_as_people_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The float32 next to 0.1 is 0.1, as it is to the library itself; whatever is missing is null."""
    sent: list[Any] = []

    def decide(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"schema": json.loads(schema.to_json())})
        sent.extend(json.loads(request.content)["rows"])
        return httpx.Response(200, json={"decisions": [{"decision": "no"}] * 2})

    columns: dict[str, Any] = {
        "narrow": np.array([0.1, np.nan], dtype=np.float32),
        "masked": pd.array([0.1, pd.NA], dtype="Float32"),
        "whole": pd.array([3, pd.NA], dtype="Int64"),
        "object": pd.Series([np.float32(0.3), None], dtype=object),
        "truth": np.array([True, False]),
        "text": ["a", None],
    }
    schema = vt.Schema([vt.Feature(name, "continuous") for name in columns])
    assert scripted(monkeypatch, decide).predict(pd.DataFrame(columns)).tolist() == ["no", "no"]
    first, second = sent
    assert first == {"narrow": 0.1, "masked": 0.1, "whole": 3, "object": 0.3, "truth": True, "text": "a"}
    assert second == {**dict.fromkeys(columns), "truth": False}


def test_a_whole_number_may_become_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service whose grid is finer than the table's own type."""
    found = scripted(monkeypatch, answers_of({"debts": 2.5})).explain(named().drop(columns="id"))
    assert found.frame["debts"].dtype == float
    assert found.frame["debts"].tolist() == [2.5] * 3
    assert found.frame["age"].dtype == int
    assert found.notes == ["(from row 0) a note"]


def test_busy_services_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    answers = [
        httpx.Response(429, json=BUSY, headers={"Retry-After": "3"}),
        httpx.Response(503, json=BUSY, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        httpx.Response(503, json=BUSY, headers={"Retry-After": "3600"}),
        httpx.Response(200, json={"live": 3}),
    ]
    client = scripted(monkeypatch, lambda request: answers.pop(0))
    monkeypatch.setattr(module.time, "sleep", slept.append)
    assert client.ledger() == {"live": 3}
    assert slept == [3.0, 1.0, 10.0]


def test_a_service_that_stays_busy_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def busy(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(503, json=BUSY)

    with pytest.raises(ServiceError, match="expected room, got none — wait") as refused:
        scripted(monkeypatch, busy).ledger()
    assert (refused.value.status, asked) == (503, ["/v1/ledger"] * module.RETRIES)


def test_a_lost_answer_is_asked_for_again_where_that_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def once(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            schema = vt.Schema([vt.Feature("age", "integer")])
            return httpx.Response(200, json={"schema": json.loads(schema.to_json())})
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise httpx.ReadTimeout("lost")
        return httpx.Response(200, json={"promises": []})

    client = scripted(monkeypatch, once)
    asked = {"ids": ["a"], "choose": [0], "notice": {}, "allow_duplicate": True}
    assert client.issue(pd.DataFrame({"age": [1]}), **asked) == {"promises": []}
    assert keys == [keys[0]] * 2

    def lost(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("lost")

    with pytest.raises(ServiceError, match="got ReadTimeout from http://service"):
        scripted(monkeypatch, lost).ledger()


def test_strangers_are_no_services(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ServiceError, match="expected the URL of a service, got 'http://a:b'"):
        vt.Client("http://a:b")
    with pytest.raises(ServiceError, match="got status 200 and no JSON — check the URL"):
        scripted(monkeypatch, lambda request: httpx.Response(200, text="<html>")).model()
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ModuleNotFoundError, match=r"expected the package httpx.*veritracer\[serve\]"):
        vt.Client("http://service")
