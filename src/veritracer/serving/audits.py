"""Audits as jobs: a candidate model against every live promise, one at a time, with progress and a report."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from veritracer import persistence
from veritracer.serving.problems import Problem, problem_of, refused

if TYPE_CHECKING:
    from veritracer.ledger import Audit
    from veritracer.model import VeriTraCER
    from veritracer.serving.host import ModelHost

State = Literal["waiting", "running", "done", "failed"]
MOST_WAITING, MOST_KEPT = 4, 20


@dataclass
class Job:
    """One audit: of which candidate, how far it is, and what came of it."""

    id: str
    candidate: str
    created: float
    state: State = "waiting"
    progress: float = 0.0
    audit: Audit | None = None
    report: bytes = b""
    problem: Problem | None = None

    def plain(self) -> dict[str, Any]:
        """What is told of it."""
        return {
            "id": self.id,
            "state": self.state,
            "candidate": self.candidate,
            "progress": round(self.progress, 4),
            "passes": None if self.audit is None else self.audit.ok,
            "counts": None if self.audit is None else self.audit.counts,
            "problem": None if self.problem is None else self.problem.document(self.id),
        }


@dataclass
class Audits:
    """The audits of a service; the last ones are remembered, in memory."""

    host: ModelHost
    failed: Callable[[BaseException], None]
    jobs: OrderedDict[str, Job] = field(default_factory=OrderedDict)
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "audit"))

    def submit(self, candidate: str, folder: Path, *, temporary: bool) -> Job:
        """The job, which waits for those before it; ``temporary`` folders are gone after it."""
        if sum(job.state in ("waiting", "running") for job in self.jobs.values()) >= MOST_WAITING:
            received = "more"
            raise refused(
                *(429, "audits", f"up to {MOST_WAITING} audits at once", received, "wait for one"),
                retry_after=10,
            )
        job = Job(secrets.token_hex(12), candidate, time.time())
        self.jobs[job.id] = job
        while len(self.jobs) > MOST_KEPT:
            self.jobs.popitem(last=False)
        self.executor.submit(self._run, job, folder, temporary)
        return job

    def job(self, number: str) -> Job:
        """The job of this id."""
        if number not in self.jobs:
            remedy = "start one: POST /v1/audits"
            raise refused(404, "no-audit", "an audit of this service", "no such id", remedy)
        return self.jobs[number]

    async def gate(self, folder: Path) -> tuple[VeriTraCER, Audit | None]:
        """A candidate, and the audit that it has to pass (None without a ledger): computed now."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.executor, self._audited, folder, lambda done, share: None)

    def close(self) -> None:
        """Start no more of them."""
        self.executor.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Job, folder: Path, temporary: bool) -> None:
        job.state = "running"
        try:
            _, audit = self._audited(folder, lambda _, share: setattr(job, "progress", share or 0.0))
            job.report = self._report(audit, job.candidate)
            job.audit, job.progress, job.state = audit, 1.0, "done"
        except Exception as error:
            job.problem, job.state = problem_of(error), "failed"
            if job.problem.status == 500:
                self.failed(error)
        finally:
            if temporary:
                shutil.rmtree(folder, ignore_errors=True)

    def _audited(self, folder: Path, watch: Callable[[int, float | None], None]) -> tuple[Any, Any]:
        import veritracer as vt

        model = vt.load(folder)
        if self.host.settings.ledger is None:
            return model, None
        return model, vt.audit(self.host.ledger, model, watch=watch)

    def _report(self, audit: Audit | None, candidate: str) -> bytes:
        from veritracer.report.html import write_audit

        if audit is None:
            return b""
        with tempfile.TemporaryDirectory() as place:
            title = f"Audit of promises: {candidate}"
            return write_audit(Path(place) / "audit.html", audit, title=title).read_bytes()


def saved_upload(document: bytes, tensors: bytes) -> Path:
    """A temporary folder with an uploaded model; what is wrong with it will be seen when it is loaded."""
    folder = Path(tempfile.mkdtemp(prefix="veritracer-candidate-"))
    (folder / persistence.DOCUMENT).write_bytes(document)
    (folder / persistence.TENSORS).write_bytes(tensors)
    return folder


def named_candidate(candidates: Path | None, name: str) -> Path:
    """The folder of a candidate; a name never leads out of the folder of candidates."""
    if candidates is None:
        remedy = "start the service with --candidates, or upload the model"
        raise refused(422, "no-candidates", "a folder of candidates", "a service without one", remedy)
    place = candidates / name
    if place.resolve().parent != candidates.resolve() or not (place / persistence.DOCUMENT).is_file():
        remedy = "save the model into the folder of candidates"
        raise refused(404, "no-candidate", "a candidate of this service", "no such name", remedy)
    return place
