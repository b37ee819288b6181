"""The service behind both doors, the API and the page: it checks, batches, asks the host, and answers.

Audits are jobs: a candidate model against every live promise, one at a time, with progress and a report.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from veritracer import model_folder
from veritracer.app.serve.host import ModelHost
from veritracer.app.serve.keys import EVERYBODY, Caller, Keys, RateLimit, Scope
from veritracer.app.serve.messages import LetterAsked, Options
from veritracer.app.serve.observing import Log, Metrics
from veritracer.app.serve.problems import Problem, problem_of, raised, refused
from veritracer.app.serve.rows import Columns
from veritracer.app.serve.settings import Settings
from veritracer.app.serve.workers import Batcher, Observed, Pool, ProcessWorker, ThreadWorker, Worker
from veritracer.errors import VeriTracerError, VeriTracerWarning

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER
    from veritracer.ledger import Audit

T = TypeVar("T")
Plain = dict[str, Any]
DRAIN = 20.0
"""Seconds in which what waits is finished when the service ends."""

FAILURES = 20
"""Wrong keys that an address may try at once; one more every 6 seconds."""

State = Literal["waiting", "running", "done", "failed"]
MOST_WAITING, MOST_KEPT = 4, 20


class Service:
    """Everything that a running service holds; ``start`` and ``stop`` are its life."""

    host: ModelHost
    pool: Pool
    batcher: Batcher
    audits: Audits
    columns: Columns

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings.checked()
        self.log, self.metrics = log or Log(), Metrics()
        self.keys = None if settings.keys is None else Keys.read(settings.keys)
        self.rates = RateLimit(settings.rate, max(1.0, 2 * settings.rate))
        self.strangers = RateLimit(1 / 6, FAILURES)
        self.reloading = asyncio.Lock()
        self.issuing = 0
        self.ready = False

    async def start(self) -> None:
        """Load the model, audit it against the ledger, start the workers."""
        self.host = await asyncio.to_thread(ModelHost, self.settings)
        if self.settings.ledger is not None:
            await self.with_ledger(ModelHost.deploy)
        self.columns = Columns.of(self.host.description["features"])
        folder = str(self.settings.model)
        workers: list[Worker] = [ProcessWorker(self.settings, folder) for _ in range(self.settings.workers)]
        self.pool = Pool(workers or [ThreadWorker(self.host)])
        await self.pool.start()
        chosen = self.settings
        watched = Observed(self.metrics.batch, self.metrics.queued.set)
        self.batcher = Batcher(
            self.pool, chosen.window, chosen.batch_rows, chosen.queue_rows, chosen.timeout, watched
        )
        self.batcher.start()
        self.audits = Audits(self.host, self.log.failure)
        self.ready = True
        self.log.line("started", workers=self.settings.workers, model=self.host.description["model_digest"])

    async def stop(self) -> None:
        """Finish what is held, or refuse it, and end."""
        self.ready = False
        await self.batcher.close(DRAIN)
        await self.pool.stop()
        self.audits.close()
        self.host.close()
        self.log.line("stopped")

    # ------------------------------------------------------------ who may

    def admit(self, key: str | None, address: str, scope: Scope | None) -> Caller:
        """Who asks, if they may: refused with 401, 403 or 429."""
        caller = self.identify(key, address)
        if (wait := self.rates.wait(caller.name)) > 0:
            raise _too_often(wait)
        return self.check_scope(caller, scope)

    def identify(self, key: str | None, address: str) -> Caller:
        """Whose key this is; strangers are refused, and soon without being looked at."""
        if self.keys is None:
            return EVERYBODY
        if (wait := self.strangers.wait(address, spend=False)) > 0:
            raise _too_often(wait)
        caller = None if key is None else self.keys.caller(key)
        if caller is None:
            received = "none" if key is None else "one that is not known"
            if key is not None:
                self.strangers.wait(address)
            remedy = "send Authorization: Bearer KEY"
            raise refused(401, "unauthorised", "an API key of this service", received, remedy)
        return caller

    def check_scope(self, caller: Caller, scope: Scope | None) -> Caller:
        """The caller, if they have the scope."""
        if scope is not None and not caller.may(scope):
            received = f"one with {', '.join(sorted(caller.scopes))}"
            remedy = "ask the operator for another one"
            raise refused(403, "forbidden", f"a key with the scope {scope}", received, remedy)
        return caller

    # ------------------------------------------------------------ what can be asked

    async def decide(self, rows: Sequence[Plain]) -> bytes:
        """What the model decides."""
        self._check(rows)
        return await self.batcher.ask("decide", {"rows": rows}, {}, len(rows))

    async def recourse(
        self, rows: Sequence[Plain], options: Options, letter: LetterAsked | None = None
    ) -> bytes:
        """A certified counterfactual near each row."""
        payload = {"rows": rows, "notes": self._check(rows), "letter": _letter(letter)}
        return await self.batcher.ask("explain", payload, self.options(options), len(rows))

    async def certify(self, pairs: Sequence[Plain], kappa: float | None) -> bytes:
        """Certificates for pairs."""
        for part in ("row", "counterfactual"):
            self._check([pair[part] for pair in pairs])
        options = {} if kappa is None else {"kappa": kappa}
        return await self.batcher.ask("certify", {"rows": list(pairs)}, options, len(pairs))

    async def issue(self, caller: Caller, key: str, asked: Plain) -> bytes:
        """Promises; ``asked`` has rows, ids, options and so on, as ``PromisesIn`` reads them."""
        rows, ids = asked["rows"], asked["ids"]
        if len(ids) != len(rows) or (asked["choose"] is not None and len(asked["choose"]) != len(rows)):
            received = f"{len(rows)} rows and {len(ids)} ids"
            raise refused(422, "ids", "an id (and a choice) for each row", received, "give as many")
        self._check(rows)
        self._need_ledger()
        if self.reloading.locked():
            received = "one that is being exchanged"
            raise refused(503, "reloading", "a model to promise with", received, "try again", retry_after=5)
        options = self.options(Options(**asked["options"]))
        payload = {
            **{name: asked[name] for name in ("rows", "ids", "choose", "expires", "allow_duplicate")},
            "letter": _letter(None if asked["letter"] is None else LetterAsked(**asked["letter"])),
            "key": f"{caller.name}:{key}",
            "content": json.dumps(_asked(asked), sort_keys=True, ensure_ascii=False),
        }
        self.issuing += 1
        try:
            body = await self.batcher.ask("issue", payload, options, len(rows))
        finally:
            self.issuing -= 1
        told = json.loads(body)
        if not told["again"]:
            self.metrics.promises.inc(len(told["promises"]))
        return body

    def options(self, given: Options) -> Plain:
        """The options of ``explain`` that are meant: an own time budget may only be shorter."""
        chosen = given.model_dump(exclude_none=True)
        unknown = next((name for name in chosen.get("lock", []) if name not in self.columns.names), None)
        if unknown is not None:
            raise refused(
                422, "lock", "features to lock", repr(unknown)[:60], "see /v1/model for their names"
            )
        most = self.settings.time_budget
        if most is not None:
            chosen["time_budget"] = min(most, chosen.get("time_budget", most))
        return chosen

    # ------------------------------------------------------------ the ledger

    async def with_ledger(self, call: Callable[[ModelHost], T]) -> T:
        """What a question to the host's ledger is answered, in a thread; 503 where there is no answer."""
        self._need_ledger()
        return await asyncio.to_thread(_quietly, call, self.host)

    async def promise(self, number: int) -> Plain:
        """One promise."""
        return await self.with_ledger(lambda host: host.promise(number, strict=True))

    async def erase(self, identity: str) -> list[int]:
        """The numbers whose records are gone."""
        return await self.with_ledger(lambda host: host.ledger.erase(identity))

    async def erase_promise(self, number: int) -> list[int]:
        """The same for whoever a promise was made to."""
        return await self.with_ledger(lambda host: host.ledger.erase(host.ledger.shown(number)["id"]))

    async def standing(self) -> Plain:
        """How many promises there are, and the head."""

        def look(host: ModelHost) -> Plain:
            with host.ledger.snapshot() as now:
                return {**vars(now.counts()), "head": host.ledger.head}

        return await self.with_ledger(look)

    async def verify(self, head: str | None) -> Plain:
        """What checking the chain found."""
        found = await self.with_ledger(lambda host: host.ledger.verify(head))
        listed = [one._asdict() for one in found.findings[:100]]
        facts = {
            k: getattr(found, k) for k in ("ok", "count", "entries", "promises", "erased", "head", "newer")
        }
        return {**facts, "findings": listed}

    # ------------------------------------------------------------ models

    def audit_named(self, name: str) -> Job:
        """An audit of a candidate of the service."""
        self._need_ledger()
        return self.audits.submit(name, named_candidate(self.settings.candidates, name), temporary=False)

    def audit_upload(self, document: bytes, tensors: bytes) -> Job:
        """An audit of a model that was sent."""
        self._need_ledger()
        return self.audits.submit("upload", saved_upload(document, tensors), temporary=True)

    async def reload(self, name: str, by: str) -> Plain:
        """The description of the new model, if it keeps every promise; 409 with the report otherwise.

        Nothing is promised meanwhile: what is audited is all that there is. The ledger records the new model
        and ``by`` whom it was chosen, so that a restart with the old one is refused.
        """
        folder = named_candidate(self.settings.candidates, name)
        if self.reloading.locked():
            received = "one already"
            raise refused(409, "reloading", "one reload at a time", received, "wait for it", retry_after=5)
        async with self.reloading:
            while self.issuing:
                await asyncio.sleep(0.02)
            model, audit = await self.audits.gate(folder)
            if audit is not None and not audit.ok:
                self.metrics.reloads.labels("refused").inc()
                told = str(audit)
                raise refused(
                    *(
                        409,
                        "broken-promises",
                        "a model that keeps every promise",
                        told,
                        "update it with --keep",
                    ),
                    report=audit.to_plain(),
                )
            digests = model.param_set().center_digest, model.encoding_.digest
            await self.pool.load(str(folder), digests, partial(self._adopt, str(folder), audit, by))
            self.metrics.reloads.labels("loaded").inc()
            self.log.line("reloaded", model=digests[0])
            return self.host.description

    async def _adopt(self, folder: str, audit: Audit | None, by: str) -> None:
        def record() -> None:
            if audit is not None:
                self.host.ledger.record_deployment(audit, by=by, replace=True)

        await asyncio.to_thread(self.host.load, folder, record)
        self.columns = Columns.of(self.host.description["features"])

    def _check(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        if len(rows) > self.settings.most_rows:
            remedy = "send them in pieces, or use veritracer explain"
            expected = f"up to {self.settings.most_rows:,} rows at once"
            raise refused(413, "rows", expected, f"{len(rows):,}", remedy)
        return self.columns.check(rows)

    def _need_ledger(self) -> None:
        if self.settings.ledger is None:
            remedy = "start it with --ledger"
            raise refused(404, "no-ledger", "a service with a ledger", "one without", remedy)


def _asked(asked: Plain) -> Plain:
    """What a retry is compared with: the request as it was sent, whatever was added to requests since."""
    return {name: value for name, value in asked.items() if name != "allow_duplicate" or value}


def _letter(asked: LetterAsked | None) -> Plain | None:
    if asked is None:
        return None
    fields = {name: value for name in ("recipient", "reference") if (value := getattr(asked, name))}
    return {"format": asked.format, "fields": fields}


def _quietly(call: Callable[[ModelHost], T], host: ModelHost) -> T:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VeriTracerWarning)
        return call(host)


def _too_often(wait: float) -> VeriTracerError:
    seconds = max(1, round(wait + 0.5))
    remedy = f"try again in {seconds} seconds"
    return raised(
        Problem(429, "rate", "fewer requests", "more than are allowed", remedy, retry_after=seconds)
    )


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

    def _report(self, audit: Audit, candidate: str) -> bytes:
        from veritracer.app.report import write_audit_page

        with tempfile.TemporaryDirectory() as place:
            title = f"Audit of promises: {candidate}"
            return write_audit_page(Path(place) / "audit.html", audit, title=title).read_bytes()


def saved_upload(document: bytes, tensors: bytes) -> Path:
    """A temporary folder with an uploaded model; what is wrong with it will be seen when it is loaded."""
    folder = Path(tempfile.mkdtemp(prefix="veritracer-candidate-"))
    (folder / model_folder.DOCUMENT).write_bytes(document)
    (folder / model_folder.TENSORS).write_bytes(tensors)
    return folder


def named_candidate(candidates: Path | None, name: str) -> Path:
    """The folder of a candidate; a name never leads out of the folder of candidates."""
    if candidates is None:
        remedy = "start the service with --candidates, or upload the model"
        raise refused(422, "no-candidates", "a folder of candidates", "a service without one", remedy)
    place = candidates / name
    if place.resolve().parent != candidates.resolve() or not (place / model_folder.DOCUMENT).is_file():
        remedy = "save the model into the folder of candidates"
        raise refused(404, "no-candidate", "a candidate of this service", "no such name", remedy)
    return place
