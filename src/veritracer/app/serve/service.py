"""The service behind both doors, the API and the page: it checks, batches, asks the host, and answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from veritracer.app.serve.host import ModelHost
from veritracer.app.serve.keys import EVERYBODY, Caller, Keys, RateLimit, Scope
from veritracer.app.serve.messages import LetterAsked, Options
from veritracer.app.serve.observing import Log, Metrics
from veritracer.app.serve.problems import Problem, raised, refused
from veritracer.app.serve.rows import Columns
from veritracer.app.serve.settings import Settings
from veritracer.app.serve.workers import Batcher, Observed, Pool, ProcessWorker, ThreadWorker, Worker
from veritracer.errors import VeriTracerError, VeriTracerWarning

T = TypeVar("T")
Plain = dict[str, Any]
DRAIN = 20.0
"""Seconds in which what waits is finished when the service ends."""

FAILURES = 20
"""Wrong keys that an address may try at once; one more every 6 seconds."""


class Service:
    """Everything that a running service holds; ``start`` and ``stop`` are its life."""

    host: ModelHost
    pool: Pool
    batcher: Batcher
    columns: Columns

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings.checked()
        self.log, self.metrics = log or Log(), Metrics()
        self.keys = None if settings.keys is None else Keys.read(settings.keys)
        self.strangers = RateLimit(1 / 6, FAILURES)
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
        self.ready = True
        self.log.line("started", workers=self.settings.workers, model=self.host.description["model_digest"])

    async def stop(self) -> None:
        """Finish what is held, or refuse it, and end."""
        self.ready = False
        await self.batcher.close(DRAIN)
        await self.pool.stop()
        self.host.close()
        self.log.line("stopped")

    # ------------------------------------------------------------ who may

    def admit(self, key: str | None, address: str, scope: Scope | None) -> Caller:
        """Return who asks; refuse a missing scope with 403, an unknown key with 401, and soon with 429."""
        return self.check_scope(self.identify(key, address), scope)

    def identify(self, key: str | None, address: str) -> Caller:
        """Return whose key this is; a valid key is never delayed by the failures of others."""
        if self.keys is None:
            return EVERYBODY
        caller = None if key is None else self.keys.caller(key)
        if caller is None:
            received = "none" if key is None else "one that is not known"
            if key is not None and (wait := self.strangers.wait(address)) > 0:
                raise _too_often(wait)
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
        options = self.options(Options(**asked["options"]))
        payload = {
            **{name: asked[name] for name in ("rows", "ids", "choose", "expires", "allow_duplicate")},
            "letter": _letter(None if asked["letter"] is None else LetterAsked(**asked["letter"])),
            "key": f"{caller.name}:{key}",
            "content": json.dumps(_asked(asked), sort_keys=True, ensure_ascii=False),
        }
        body = await self.batcher.ask("issue", payload, options, len(rows))
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

    async def recorded_audits(self) -> list[Plain]:
        """Return the audits and deployments that the ledger records, the newest first."""
        recorded = await self.with_ledger(lambda host: host.ledger.history())
        return [one for one in reversed(recorded) if one["kind"] in ("audit", "deployment")]

    async def verify(self, head: str | None) -> Plain:
        """What checking the chain found."""
        found = await self.with_ledger(lambda host: host.ledger.verify(head))
        listed = [one._asdict() for one in found.findings[:100]]
        facts = {
            k: getattr(found, k) for k in ("ok", "count", "entries", "promises", "erased", "head", "newer")
        }
        return {**facts, "findings": listed}

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
