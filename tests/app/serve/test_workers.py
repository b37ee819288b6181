"""Workers that are processes: what they say over their pipes, and what becomes of those that fail or die."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from serving_cases import people

from veritracer.app.serve import workers
from veritracer.app.serve.settings import Settings
from veritracer.app.serve.workers import LENGTH, Pool, ProcessWorker, Reply, answer_frames
from veritracer.errors import ServiceError

PROBLEM = {"status": 422, "kind": "k", "expected": "a model", "received": "none", "remedy": "save one"}

STAND_IN = """#!{python} -SE
import json, os, signal, sys
def write(head, body=b""):
    data = json.dumps({{"number": frame["number"], **head}}).encode()
    sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data + body)
    sys.stdout.buffer.flush()
while length := sys.stdin.buffer.read(4):
    frame = json.loads(sys.stdin.buffer.read(int.from_bytes(length, "little")))
    if "settings" in frame:
        write({{"problem": {problem}}} if frame["settings"]["model"] == "none" else {{"ready": True}})
    elif frame["operation"] == "issue":
        sys.exit()
    elif frame["operation"] == "certify":
        write({{"failed": True}})
    else:
        write({{"answers": [{{"size": 3, "problem": None}}, {{"size": 0, "problem": {problem}}}]}}, b"one")
if os.environ.get("STAYS"):
    signal.pause()
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are processes that speak as ours do, and load nothing."""
    program = tmp_path / "python"
    program.write_text(STAND_IN.format(python=sys.executable, problem=PROBLEM))
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))


def worker(folder: str = "model") -> ProcessWorker:
    return ProcessWorker(Settings(Path(folder)), folder)


def with_worker(use: Callable[[ProcessWorker], Coroutine[Any, Any, Any]]) -> Any:
    """What is made of a worker that was started, and is stopped afterwards."""

    async def life() -> Any:
        one = worker()
        await one.start()
        try:
            return await use(one)
        finally:
            await one.stop()
            assert one.process is not None
            assert one.process.returncode is not None

    return asyncio.run(life())


@pytest.mark.usefixtures("stand_in")
def test_bodies_and_problems_of_a_batch_are_told_apart() -> None:
    replies = with_worker(lambda one: one.run("decide", [{}, {}], {}))
    assert [reply.body for reply in replies] == [b"one", b""]
    assert [reply.problem and reply.problem.remedy for reply in replies] == [None, "save one"]


@pytest.mark.usefixtures("stand_in")
def test_a_worker_that_can_not_load_is_refused_in_its_own_words() -> None:
    async def start() -> None:
        pool = Pool([worker(), worker("none")])
        try:
            await pool.start()
        finally:
            assert all(one.process.returncode is not None for one in pool.workers)  # type: ignore[attr-defined]

    with pytest.raises(ServiceError, match="expected a model, got none — save one"):
        asyncio.run(start())


@pytest.mark.usefixtures("stand_in")
def test_a_failure_and_an_end_are_different_things() -> None:
    with pytest.raises(RuntimeError, match="its log says where"):
        with_worker(lambda one: one.run("certify", [{}], {}))
    with pytest.raises(ServiceError, match="got one that ended while it worked") as refused:
        with_worker(lambda one: one.run("issue", [{}], {}))
    assert refused.value.status == 503


@pytest.mark.usefixtures("stand_in")
def test_a_worker_that_ends_is_replaced() -> None:
    async def used() -> list[Reply]:
        pool = Pool([worker()])
        await pool.start()
        one: Any = await pool.idle.get()
        first = one.process
        with pytest.raises(ServiceError, match="try again"):
            await pool.run(one, "issue", [{}], {})
        replies = await pool.run(await pool.idle.get(), "decide", [{}, {}], {})
        assert one.process is not first
        await pool.stop()
        return replies

    assert asyncio.run(used())[0] == Reply(b"one")


@pytest.mark.usefixtures("stand_in")
def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAYS", "1")
    monkeypatch.setattr(workers, "ENDING", 0.05)

    async def ended() -> int | None:
        one = worker()
        await one.stop()  # nothing: it was never started
        await one.start()
        await one.stop()
        assert one.process is not None
        return one.process.returncode

    assert asyncio.run(ended()) == -9


def frames(*asked: dict[str, Any]) -> io.BytesIO:
    texts = [json.dumps({"number": k, **one}).encode() for k, one in enumerate(asked)]
    return io.BytesIO(b"".join(LENGTH.pack(len(text)) + text for text in texts))


def answered(source: io.BytesIO) -> list[tuple[dict[str, Any], bytes]]:
    """The heads that a worker writes, each with the bodies behind it; each has the number of its frame."""
    out = io.BytesIO()
    answer_frames(source, out)
    told, found = io.BytesIO(out.getvalue()), []
    while length := told.read(LENGTH.size):
        head = json.loads(told.read(LENGTH.unpack(length)[0]))
        assert head.pop("number") == len(found)
        found.append((head, told.read(sum(one["size"] for one in head.get("answers", ())))))
    return found


def asked_of(folder: Path) -> dict[str, Any]:
    plain: dict[str, Any] = dict.fromkeys(("keys", "codes"))
    return {"settings": {"model": str(folder), **plain}}


def test_what_a_worker_answers(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows: Sequence[Any] = [dict(people()[0])]
    decide = {"operation": "decide", "requests": [{"rows": rows}], "options": {}}
    (
        (ready, _),
        (answers, body),
        (failed, _),
        (again, same),
    ) = answered(
        frames(
            asked_of(saved / "model"),
            decide,
            {"operation": "sing", "requests": [], "options": {}},
            decide,
        )
    )
    assert ready == {"ready": True}
    assert json.loads(body)["decisions"][0]["decision"] == "no"
    assert answers["answers"][0]["problem"] is None
    assert failed == {"failed": True}  # it goes on, and where it was is in the log
    assert json.loads(capsys.readouterr().err.splitlines()[-1])["error"] == "AttributeError"
    assert same == body
    assert again["answers"][0]["size"] == len(same)


def test_a_worker_without_a_model_says_so_and_half_a_frame_ends_it(saved: Path) -> None:
    cut = io.BytesIO(frames(asked_of(saved / "nothing")).getvalue() + LENGTH.pack(100) + b"{")
    ((head, _),) = answered(cut)
    assert "nothing" in head["problem"]["received"]


def test_a_worker_ends_when_nobody_reads(saved: Path) -> None:
    class Gone(io.BytesIO):
        def write(self, _: Any) -> int:
            raise BrokenPipeError

    with pytest.raises(SystemExit) as ended:
        answer_frames(frames(asked_of(saved / "model")), Gone())
    assert ended.value.code == 0
