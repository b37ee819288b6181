"""What surrounds every request, how the process starts, and the verb that starts it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from serving_cases import logged

from veritracer.app.cli import serve as verb
from veritracer.app.serve import app as module
from veritracer.app.serve.app import RequestMiddleware, create_app, serve
from veritracer.app.serve.auth import Guard, add_key
from veritracer.app.serve.settings import Settings
from veritracer.errors import DataError, LedgerError, ModelFileError, ServiceError


def asked(app: Any, path: str = "/", *, told: bool = True) -> httpx.Response:
    """What an application answers, asked in this process."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=told)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    return asyncio.run(ask())


async def breaks(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("somebody-4711")


async def breaks_late(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise RuntimeError("somebody-4711")


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_an_error_of_ours_tells_nothing_and_is_logged_without_its_message(settings: Settings) -> None:
    with logged(log := io.StringIO()):
        answer = asked(RequestMiddleware(breaks, settings))
    assert (answer.status_code, answer.json()["received"]) == (500, "an error of the service")
    failure, request = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (failure["error"], request["status"]) == ("RuntimeError", 500)
    assert failure["request_id"] == answer.headers["x-request-id"]
    assert failure["where"][-1].startswith("test_app.py:")
    assert "somebody-4711" not in log.getvalue() + answer.text


def test_an_error_after_the_head_ends_the_connection(settings: Settings) -> None:
    with logged(log := io.StringIO()), pytest.raises(RuntimeError):
        asked(RequestMiddleware(breaks_late, settings))
    assert [json.loads(line)["event"] for line in log.getvalue().splitlines()] == ["failure", "request"]


def test_after_the_body_only_the_end_of_the_connection_is_waited_for(settings: Settings) -> None:
    sent = [{"type": "http.request", "body": b"a"}, {"type": "http.disconnect"}]
    read: list[Any] = []

    async def receive() -> Any:
        return sent.pop(0)

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        read.extend([await receive(), await receive()])

    scope = {"type": "http", "method": "GET", "scheme": "http", "headers": [(b"host", b"localhost")]}
    asyncio.run(RequestMiddleware(reads, settings)(scope, receive, answers))
    assert [piece["type"] for piece in read] == ["http.request", "http.disconnect"]
    assert read[0]["body"] == b"a"


def test_a_service_that_completes_no_batch_is_not_ready(settings: Settings) -> None:
    app = create_app(replace(settings, timeout=0.1))
    assert asked(app, "/readyz").json() == {"status": "ready"}
    app.state.service.batcher._idle_since = time.monotonic() - 1.0
    answer = asked(app, "/readyz")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert asked(app, "/healthz").json()["status"] == "alive"


def test_a_process_refuses_another_model_than_the_audited_one(settings: Settings) -> None:
    with pytest.raises(ServiceError, match="expected the model 12ab, got"):
        create_app(settings, digest="12ab")


def test_limits_that_make_no_sense(saved: Path) -> None:
    for name, value, least in [("batch_rows", 0, "1"), ("timeout", 0.0, "0.1"), ("workers", 0, "1")]:
        with pytest.raises(DataError, match=f"{name} to be greater than or equal to {least}, got {value}"):
            Settings(model=saved / "model", **{name: value})


def test_names_of_a_public_service(saved: Path) -> None:
    public = Settings(model=saved / "model", host="0.0.0.0")
    assert public.hosts == {"*"}
    assert replace(public, allowed_hosts=("bank.example",)).hosts == {"0.0.0.0", "bank.example"}


# ---------------------------------------------------------------- how it starts


def test_what_ends_the_start_is_said_in_one_sentence(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "uvicorn.error")  # serve() silences it; here that ends with the test
    with pytest.raises(LedgerError, match="expected SQLite or PostgreSQL, got mysql"):
        serve(replace(settings, port=0, ledger="mysql://nobody/nothing"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ServiceError, match=f"expected to listen on 127.0.0.1:{port}, got Address already"
        ):
            serve(replace(settings, port=port))


def test_the_verb_says_what_is_to_be_served(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Settings] = []
    monkeypatch.setattr(module, "serve", lambda settings: given.append(settings) or 0)
    (tmp_path / "key").write_text("secret\n")
    folder, options = str(saved / "model"), {"window": 7.0, "batch_rows": 3, "fields": ["institution=Bank"]}
    with pytest.raises(typer.Exit) as ended:
        verb.serve(
            model=folder, ledger="l.db", **options, key_file=tmp_path / "key", allowed_hosts=["bank.example"]
        )
    assert ended.value.exit_code == 0
    assert given == [
        Settings(
            model=Path(folder),
            ledger="l.db",
            window=7.0,
            batch_rows=3,
            fields={"institution": "Bank"},
            ledger_key="secret",
            allowed_hosts=("bank.example",),
        )
    ]
    assert f"Serving {folder} on http://127.0.0.1:8080" in capsys.readouterr().out


def test_the_verb_refuses_what_cannot_be_served(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="expected a model to serve, got none"):
        verb.serve()
    with pytest.raises(ServiceError, match="expected API keys where others can reach the service"):
        verb.serve(model=str(saved / "model"), host="0.0.0.0")
    with pytest.raises(ModelFileError, match="nothing"):
        verb.serve(model=str(saved / "nothing"))
    with pytest.raises(ServiceError, match="expected a file for the key, got none"):
        verb.serve(add_key="desk", scopes=["decide"])


def test_the_verb_makes_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verb.serve(keys=tmp_path / "keys.json", add_key="desk", scopes=["decide,issue"])
    found = Guard(tmp_path / "keys.json").find(capsys.readouterr().out.strip())
    assert found is not None
    assert found.scopes == {"decide", "issue"}
    assert add_key(tmp_path / "keys.json", "other", ["audit"]).startswith("vt_other_")
