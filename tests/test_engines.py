"""Every engine gives each result once; Ray's part is tested with a stand-in that runs in this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deadly import Deadly
from optional import posix
from veritracer import engines
from veritracer.engines import Processes, Ray, Serial, make_engine
from veritracer.errors import DataError, VeriTracerError
from veritracer.threads import cores

ENGINES = {"serial": Serial, "processes": lambda: Processes(2)}


@pytest.mark.parametrize("name", ENGINES)
def test_every_item_has_one_result(name: str) -> None:
    engine = ENGINES[name]()
    assert sorted(engine.map(abs, range(-7, 0))) == list(range(1, 8))
    assert list(engine.map(abs, [])) == []
    with pytest.raises(DataError, match="a bad row"):
        list(engine.map(refuse, [1, DataError("a bad row"), 2]))


@pytest.mark.parametrize("name", ENGINES)
def test_items_are_taken_when_they_are_needed(name: str) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for n in range(100):
            taken.append(n)
            yield n

    results = ENGINES[name]().map(abs, items())
    next(results)
    assert len(taken) <= 2 * engines.AHEAD + 1
    results.close()


def refuse(item: Any) -> Any:
    """Return the item, or raise it."""
    if isinstance(item, Exception):
        raise item
    return item


def test_without_a_fork_server_nothing_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []
    monkeypatch.setattr(engines.forkserver, "ensure_running", lambda: started.append(True))
    make_engine("local", 1)  # one worker is this process itself
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    make_engine("local", 2)
    assert started == []


def test_engines_by_name() -> None:
    assert isinstance(make_engine("local", 1), Serial)
    engine = make_engine("local", 3)
    assert isinstance(engine, Processes)
    assert engine.workers == 3
    assert isinstance(make_engine("local"), Processes if cores() > 1 else Serial)


# ---------------------------------------------------------------- processes


@posix
@pytest.mark.parametrize("victim", [0, 3, 7])
def test_a_killed_worker_is_replaced_and_no_item_is_lost(victim: int, tmp_path: Path) -> None:
    found = sorted(Processes(2).map(Deadly(tmp_path, 1, victim), range(8)))
    assert found == [n * n for n in range(8)]


@posix
def test_a_task_that_kills_every_worker_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(VeriTracerError, match="3 in a row that were killed"):
        list(Processes(2).map(Deadly(tmp_path, 99), [3]))


def test_a_worker_has_one_thread_and_ignores_the_keyboard() -> None:
    assert list(Processes(1).map(signal.getsignal, [signal.SIGINT])) == [signal.SIG_IGN]
    assert list(Processes(1).map(threads, [None])) == [1]


def threads(_: None) -> int:
    """Return the number of threads of this process."""
    return torch.get_num_threads()


def test_no_worker_outlives_the_map() -> None:
    (pid,) = Processes(1).map(own_pid, [None])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def own_pid(_: None) -> int:
    """Return the number of this process."""
    return os.getpid()


# ---------------------------------------------------------------- Ray


class RayError(Exception):
    """As Ray's."""


class RayTaskError(RayError):
    """As Ray's: the task raised something."""


class WorkerCrashedError(RayError):
    """As Ray's."""


class Cluster(SimpleNamespace):
    """A cluster in this process: a task runs when its result is asked for."""

    exceptions = SimpleNamespace(RayTaskError=RayTaskError, RayError=RayError)

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

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        return lambda call: SimpleNamespace(remote=lambda *args: (call, args))

    def wait(self, references: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return references[:num_returns], references[num_returns:]

    def get(self, reference: Any) -> Any:
        call, (task, item) = reference
        if item == "dies":
            raise WorkerCrashedError("the worker died\nkilled by the system")
        try:
            return call(task, item)
        except Exception as error:
            raise RayTaskError(f"task failed: {error!r}") from None


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(engines, "only_compute", lambda: None)  # this process is nobody's worker
    with warnings.catch_warnings():  # of which a worker ignores some
        yield made
    engines._tune_ray_worker.cache_clear()


def test_a_cluster_is_started_for_the_run(cluster: Cluster) -> None:
    engine = make_engine("ray", 2)
    assert isinstance(engine, Ray)
    assert sorted(engine.map(abs, range(-9, 0))) == list(range(1, 10))
    assert cluster.said == ["init 2", "shutdown"]


def test_a_cluster_that_is_there_is_used_and_left(cluster: Cluster) -> None:
    cluster.running = True
    assert sorted(Ray().map(abs, range(9))) == list(range(9))
    assert cluster.said == []


def test_a_cluster_that_cannot_be_reached_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(ConnectionError, match="no cluster"):
        list(Ray(99).map(abs, [1]))


def test_our_errors_arrive_as_such_and_others_as_those_of_ray(cluster: Cluster) -> None:
    with pytest.raises(DataError, match="a bad row"):
        list(Ray(1).map(refuse, [1, DataError("a bad row")]))
    with pytest.raises(RayTaskError, match="task failed: KeyError"):
        list(Ray(1).map(refuse, [KeyError("x")]))
    with pytest.raises(VeriTracerError, match=r"got 3 in a row that were killed \(killed by the system\)"):
        list(Ray(1).map(refuse, ["dies"]))
    assert cluster.said == ["init 1", "shutdown"] * 3


def test_an_install_without_ray_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DataError, match=r"expected the package ray, got an install without it — pip install"):
        make_engine("ray")
