"""The evaluation run: what is not there yet is measured, on every core, and can be stopped at any time.

The work is done by processes of one thread each; none of them outlives the run that started it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from veritracer.distributed.engines import Name, processes, ray_tasks
from veritracer.errors import TrainingError, message
from veritracer_bench import measuring
from veritracer_bench.cells import Cell, Key, read
from veritracer_bench.measuring import measure
from veritracer_bench.plan import Group, Plan, cost_of, cost_of_training, group_of


class Pool(Protocol):
    """What work is handed to."""

    def submit(self, call: Any, /, *args: Any) -> Future[Any]:
        """A promise of the call's result."""
        ...


class SerialExecutor:
    """A pool without processes: work is done when it is submitted."""

    def submit(self, call: Any, /, *args: Any) -> Future[Any]:
        """The call's result, or its error, at once."""
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args))
        except Exception as error:  # whoever asks for the result gets it
            future.set_exception(error)
        return future


@contextmanager
def pool_of(count: int, engine: Name = "local") -> Iterator[Pool]:
    """A pool of so many processes (0: this one), or of a cluster's tasks; at the end all of them are stopped.

    Whatever they were doing is lost, and nothing else: each result is a file that is whole or absent.
    """
    if count == 0:
        yield SerialExecutor()
        return
    with ray_tasks(count) if engine == "ray" else processes(count) as pool:
        yield pool


# ---------------------------------------------------------------- the run


Task = Key | Group


class Standing(NamedTuple):
    """How far a run is: results that are there and that are wanted, and the seconds left, about."""

    done: int
    wanted: int
    last: str
    seconds_left: float | None


@dataclass
class Run:
    """A plan being carried out in a folder.

    ``failed`` has the sentence of each task that raised; ``measured`` counts the results that this run made,
    ``trained`` the groups of models.
    """

    plan: Plan
    out: Path
    tell: Callable[[Standing], None] = lambda _: None
    failed: dict[str, str] = field(default_factory=dict)
    measured: int = 0
    trained: int = 0

    def __post_init__(self) -> None:
        self.plan.checked()
        self.keys = self.plan.wanted()
        self._started = time.monotonic()
        self._spent = self._left = 0.0

    def cells(self) -> list[Cell]:
        """The results of the plan that are there."""
        found = (read(self.out / "cells", key) for key in self.keys)
        return [cell for cell in found if cell and cell.configuration == self.plan.configuration(cell.key)]

    def go(self, workers: int, *, stop_after: float | None = None, engine: Name = "local") -> bool:
        """Measure what is missing; whether nothing is missing now.

        With ``stop_after`` the run ends after so many seconds, whatever is then being done.
        """
        there = {cell.key for cell in self.cells()}
        todo = [key for key in self.keys if key not in there]
        waiting: dict[Group, list[Key]] = {}
        ready: list[Task] = []
        for key in todo:
            group = group_of(key)
            if group is None or measuring.is_trained(self.out, group, self.plan):
                ready.append(key)
            else:
                waiting.setdefault(group, []).append(key)
        tasks: list[Task] = [*waiting, *ready]
        self._left = sum(map(self._cost, todo)) + sum(map(self._cost, waiting))
        if tasks:
            with pool_of(workers, engine) as pool:
                self._work(pool, sorted(tasks, key=self._cost, reverse=True), waiting, stop_after)
        return len(self.cells()) == len(self.keys)

    def _work(
        self,
        pool: Pool,
        tasks: list[Task],
        waiting: dict[Group, list[Key]],
        stop_after: float | None,
    ) -> None:
        """Hand out tasks, the longest first; models that are ready set free what waits for them."""
        running = {self._submit(pool, task): task for task in tasks}
        while running:
            spent = time.monotonic() - self._started
            if stop_after is not None and spent > stop_after:
                return
            done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                self._finish(task, future)
                if isinstance(task, Group) and _label(task) not in self.failed:
                    freed = sorted(waiting[task], key=self._cost, reverse=True)
                    running |= {self._submit(pool, key): key for key in freed}

    def _submit(self, pool: Pool, task: Task) -> Future[object]:
        call = measuring.train if isinstance(task, Group) else measure
        return pool.submit(call, self.out, task, self.plan)

    def _finish(self, task: Task, future: Future[object]) -> None:
        try:
            future.result()
        except BrokenProcessPool:
            remedy = "was it short of memory? Run the same command again, with fewer --workers"
            raise TrainingError(message("workers that go on", "one that was killed", remedy)) from None
        except Exception as error:  # one result less must not cost all the others
            self.failed[_label(task)] = f"{type(error).__name__}: {error}"
        else:
            self.measured += isinstance(task, Key)
            self.trained += isinstance(task, Group)
        self._spent += self._cost(task)
        self._left -= self._cost(task)
        elapsed = time.monotonic() - self._started
        left = self._left * elapsed / self._spent if self._spent else None
        self.tell(Standing(len(self.keys) - self._missing(), len(self.keys), _label(task), left))

    def _missing(self) -> int:
        folder = self.out / "cells"
        return sum(not (folder / key.file).exists() for key in self.keys)

    def _cost(self, task: Task) -> float:
        return cost_of_training(task, self.plan) if isinstance(task, Group) else cost_of(task, self.plan)


def _label(task: Task) -> str:
    return " ".join(map(str, task))
