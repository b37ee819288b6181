"""Engines by their names, and Ray's part of them with a stand-in that runs in this process."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deadly import Deadly
from veritracer import engines
from veritracer.engines import LocalEngine, RayEngine, make_engine, prepare, ray_tasks
from veritracer.errors import DataError, VeriTracerError
from veritracer.threads import cores


def test_without_a_fork_server_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []
    monkeypatch.setattr(engines.forkserver, "ensure_running", lambda: started.append(True))
    prepare("local", 1)  # one worker is this process itself
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    prepare("local", 2)
    assert started == []


def test_engines_by_name() -> None:
    assert make_engine("local", 3).workers == 3
    assert make_engine("local").workers == cores()
    assert isinstance(make_engine("local"), LocalEngine)


class TaskError(Exception):
    """As Ray's, which has what was raised as its cause."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"task failed: {cause!r}")
        self.cause = cause


class ActorError(Exception):
    """As Ray's."""


class Ray(SimpleNamespace):
    """A cluster in this process: whoever asks an actor gets what it says when they look."""

    exceptions = SimpleNamespace(RayTaskError=TaskError, RayActorError=ActorError)

    def __init__(self) -> None:
        super().__init__(said=[], running=False)

    def is_initialized(self) -> bool:
        return bool(self.running)

    def init(self, **options: Any) -> None:
        if options.get("num_cpus") == 99:
            raise ConnectionError("no cluster")
        self.running = True
        self.said.append(f"init {options.get('num_cpus')}")

    def shutdown(self) -> None:
        self.running = False
        self.said.append("shutdown")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, value: Any) -> Any:
        return value

    def remote(self, **options: Any) -> Callable[[type], Any]:
        def decorate(kind: type) -> Any:
            return SimpleNamespace(remote=lambda: Actor(kind()))

        return decorate

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[:num_returns], references[num_returns:]

    def get(self, reference: Any) -> Any:
        return reference()

    def kill(self, actor: Any) -> None:
        self.said.append("kill")


class Actor:
    """What is asked of it is done when somebody looks."""

    def __init__(self, inner: Any) -> None:
        self.do = SimpleNamespace(remote=lambda *args: lambda: self._done(inner, *args))

    def _done(self, inner: Any, job: Any, item: Any) -> Any:
        if item == "dies":
            raise ActorError("the actor died\nkilled by the system")
        try:
            return inner.do(job, item)
        except Exception as error:
            raise TaskError(error) from None


class Picky:
    """A job that refuses some items."""

    def open(self) -> Callable[[Any], Any]:
        def do(item: Any) -> Any:
            if isinstance(item, Exception):
                raise item
            return item

        return do


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    made = Ray()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(engines, "only_compute", lambda: None)  # this process is nobody's worker
    with warnings.catch_warnings():  # of which a worker ignores some
        yield made
    assert engines._ahead is None


def test_actors_are_started_while_others_load(stand_in: Ray, tmp_path: Path) -> None:
    prepare("ray", 2)
    engine = make_engine("ray", 2)
    assert isinstance(engine, RayEngine)
    assert sorted(engine.map(Deadly(tmp_path, 0), range(6))) == [n * n for n in range(6)]
    assert stand_in.said == ["init 2", "shutdown"]


def test_a_cluster_that_is_there_is_used_and_left(stand_in: Ray, tmp_path: Path) -> None:
    stand_in.running = True
    prepare("ray")
    engine = RayEngine()
    assert sorted(engine.map(Deadly(tmp_path, 0), range(3))) == [0, 1, 4]
    assert engine.workers == 2  # the cores of the cluster
    assert stand_in.said == ["kill", "kill"]


def test_whoever_waits_is_told_that_there_is_no_cluster(stand_in: Ray) -> None:
    prepare("ray", 99)
    with pytest.raises(ConnectionError, match="no cluster"):
        list(RayEngine(99).map(Picky(), [1]))


def test_errors_of_ours_are_ours_and_others_stay_rays(stand_in: Ray) -> None:
    with pytest.raises(DataError, match="a bad row"):
        list(RayEngine(1).map(Picky(), [1, DataError("a bad row")]))
    with pytest.raises(TaskError, match="task failed: KeyError"):
        list(RayEngine(1).map(Picky(), [KeyError("x")]))
    with pytest.raises(VeriTracerError, match=r"got 3 in a row that were killed \(killed by the system\)"):
        list(RayEngine(1).map(Picky(), ["dies"]))
    assert stand_in.said == ["init 1", "kill", "shutdown"] * 3


def test_an_install_without_ray_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DataError, match=r"expected the package ray, got an install without it — pip install"):
        make_engine("ray")
    with pytest.raises(DataError, match="or use --engine local"), ray_tasks(1):
        pass
