"""Decide, explain, certify and issue: one batch of jobs in, one reply per job out.

Jobs of a batch have equal options and are answered by one call of the library. No answer depends on another
row, and a job that is refused is taken out of its batch, which then goes on without it.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import veritracer as vt
from veritracer import model_folder
from veritracer.app.i18n import Translator
from veritracer.app.notices import render_notice
from veritracer.app.reason_codes import ReasonCodes, as_codes
from veritracer.app.serve.models import NoticeOptions, Row, refused
from veritracer.changes import describe_change
from veritracer.counterfactuals import Counterfactuals, document
from veritracer.errors import (
    DataError,
    NoRecordError,
    PromisedMeanwhileError,
    VeriTracerError,
    VeriTracerWarning,
    message,
)
from veritracer.formatting import is_missing, to_python
from veritracer.ledger.issuing import prepare
from veritracer.ledger.records import LeftOut, Terms, left_out
from veritracer.ledger.requests import Issued, Request
from veritracer.models.network import threshold_logit
from veritracer.options import Expires, ExplainOptions, IssueOptions, promise_end
from veritracer.search.outcomes import Outcome
from veritracer.threads import only_compute
from veritracer.times import parse_expiry

if TYPE_CHECKING:
    from veritracer.app.serve.app import Settings

Plain = dict[str, Any]
Reply = Plain | VeriTracerError
"""The answer to one job: what JSON says, or the error that refuses it."""

Operation = Literal["decide", "explain", "certify", "issue"]

REPEATED = "promised"
"""Outcome of a row that has the promise already; the search has no such outcome."""


@dataclass(frozen=True)
class Job:
    """One request: rows, counterfactuals to certify, options, and what else its reply is to have."""

    operation: Operation
    rows: Sequence[Row]
    options: ExplainOptions = field(default_factory=ExplainOptions)
    counterfactuals: Sequence[Row] = ()
    notice: NoticeOptions | None = None
    translate: Translator | None = None

    @property
    def cost(self) -> int:
        """Return the number of counterfactuals to search, or of rows where nothing is searched."""
        return len(self.rows) * self.options.n

    @property
    def kind(self) -> tuple[str, str]:
        """Return what the jobs have in common that are answered together."""
        return self.operation, repr(self.options)


def expiry_of(text: str) -> Expires:
    """Parse the end of promises: ``term``, or what ``parse_expiry`` reads."""
    return "term" if text == "term" else parse_expiry(text)


@dataclass(frozen=True, kw_only=True)
class PromiseJob(Job):
    """A request for promises: ids, terms, and the key and content that a retry must repeat.

    ``preview`` is the digest of the result that was shown before; another result is refused.
    """

    operation: Operation = field(default="issue", init=False)
    ids: Sequence[str]
    key: str
    content: str
    choose: Sequence[int] | None = None
    expires: str | None = None
    allow_duplicate: bool = IssueOptions.allow_duplicate
    preview: str | None = None

    def request(self, response: Plain | None = None) -> Request:
        """Return the request as the ledger knows it, with what a retry is told."""
        return Request(self.key, self.content.encode(), response)


class Operations:
    """A loaded model and its ledger, which answer batches of jobs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codes: ReasonCodes = as_codes(settings.codes)
        self._ledger: vt.Ledger | None = None
        self._opening = threading.Lock()
        only_compute()  # a batch is too small to share; processes share the cores
        self.model = vt.load(settings.model)
        self.encoding = self.model.encoding_
        self.recourse = self.model.recourse()
        self.digest = self.model.param_set().center_digest

    @property
    def ledger(self) -> vt.Ledger:
        """The ledger, opened when it is first needed."""
        if self.settings.ledger is None:
            remedy = "start it with --ledger"
            raise refused(404, "no-ledger", "a service with a ledger", "one without", remedy)
        with self._opening:
            if self._ledger is None:
                self._ledger = vt.Ledger(self.settings.ledger, key=self.settings.ledger_key)
            return self._ledger

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()

    # ------------------------------------------------------------ batches

    def run(self, jobs: Sequence[Job], until: float) -> list[Reply]:
        """Reply to jobs of one kind; a search ends at the moment ``until`` of the monotonic clock."""
        reply: Callable[[Sequence[Job], float], list[Reply]] = getattr(self, f"_{jobs[0].operation}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VeriTracerWarning)  # they do not say which job they mean
            try:
                return reply(jobs, until)
            except VeriTracerError as error:
                bad = {i: why for i, job in enumerate(jobs) if (why := self._unreadable(job)) is not None}
                if len(jobs) == 1 or not bad:  # what the jobs have in common is wrong
                    return [error] * len(jobs)
        rest = [job for i, job in enumerate(jobs) if i not in bad]
        replies = iter(self.run(rest, until) if rest else [])
        return [bad[i] if i in bad else next(replies) for i in range(len(jobs))]

    def _unreadable(self, job: Job) -> VeriTracerError | None:
        """Return why the rows of a job cannot be encoded; None where they can."""
        try:
            self._encode([*job.rows, *job.counterfactuals])
        except VeriTracerError as error:
            return error
        return None

    def _decide(self, jobs: Sequence[Job], until: float) -> list[Reply]:
        decided = self._decisions(self._encode(_rows(jobs)))
        return [{"decisions": decided[part]} for part in _parts(jobs)]

    def _explain(self, jobs: Sequence[Job], until: float) -> list[Reply]:
        found = self._search(jobs, until)
        head = document(found)
        rows = head.pop("rows")
        for i, today in enumerate(self._decisions(found.x)):
            rows[i] |= {"outcome": found.outcome[i].name.lower(), "today": today}
        return [
            _attempt(self._answers, job, part, found, head, rows)
            for job, part in zip(jobs, _parts(jobs), strict=True)
        ]

    def _certify(self, jobs: Sequence[Job], until: float) -> list[Reply]:
        x = self._encode(_rows(jobs))
        x_cf = self._encode([row for job in jobs for row in job.counterfactuals])
        found = vt.certify(self.model.classifier_, x, x_cf, self.model.param_set(jobs[0].options.kappa))
        today, then = self._decisions(x), self._decisions(x_cf)
        changed, cost = self.encoding.changed(x_cf, x), (x_cf - x).abs().sum(-1).tolist()
        names = self.model.schema_.names
        numbers = ("certified", "valid", "radius", "worst_logit", "method")
        certificates = [
            {
                **{name: _json(getattr(one, name)) for name in numbers},
                "conditional": one.conditional and one.certified,
                "cost": cost[i],
                "changes": [names[k] for k in changed[i].nonzero().squeeze(-1).tolist()],
                "today": today[i],
                "then": then[i],
            }
            for i, one in enumerate(found[i] for i in range(len(x)))
        ]
        head = {"kappa": found.kappa, "norm": found.norm, "model_digest": found.model_digest}
        return [{**head, "certificates": certificates[part]} for part in _parts(jobs)]

    def _issue(self, jobs: Sequence[PromiseJob], until: float) -> list[Reply]:
        """Issue the promises of each job: all of them or none, and only once under its key."""
        earlier = [_attempt(self._earlier, job) for job in jobs]
        fresh = [job for job, before in zip(jobs, earlier, strict=True) if before is None]
        found = self._search(fresh, until) if fresh else None
        parts = iter(_parts(fresh))
        return [
            _attempt(self._promise, job, found, next(parts)) if before is None else before
            for job, before in zip(jobs, earlier, strict=True)
        ]

    # ------------------------------------------------------------ decisions and counterfactuals

    def _encode(self, rows: Sequence[Row]) -> torch.Tensor:
        return self.encoding.encode(_frame(rows))  # warnings are ignored: the reply has notes

    def _search(self, jobs: Sequence[Job], until: float) -> Counterfactuals:
        options = jobs[0].options
        budgets = [options.time_budget, self.settings.time_budget, until - time.monotonic()]
        budget = max(0.0, min(one for one in budgets if one is not None))
        chosen = {one.name: getattr(options, one.name) for one in fields(options)}
        return self.recourse.explain(_frame(_rows(jobs)), **{**chosen, "time_budget": budget})

    def _decisions(self, x: torch.Tensor) -> list[Plain]:
        """Return decision and probability of encoded rows."""
        logit = self.model.logits(x)
        probability = torch.sigmoid(logit + threshold_logit(self.model.threshold_)).tolist()
        schema = self.model.schema_
        labels = {True: schema.favourable, False: schema.unfavourable}
        return [
            {"decision": labels[yes], "favourable": yes, "probability": p}
            for yes, p in zip((logit > 0).tolist(), probability, strict=True)
        ]

    def _answers(
        self, job: Job, part: slice, found: Counterfactuals, head: Plain, rows: Sequence[Plain]
    ) -> Plain:
        """Return an answer for each row of a job, with the alternatives that were found, and notes."""
        answers: list[Plain] = [{"alternatives": []} for _ in job.rows]
        for i in np.flatnonzero((found.row >= part.start) & (found.row < part.stop)).tolist():
            answer = answers[int(found.row[i]) - part.start]
            answer |= rows[i]["today"]
            shown = {**rows[i], "notice": None if job.notice is None else self._notice(job, found, i)}
            if job.translate is not None:
                shown |= {
                    "instructions": self._instructions(found, i, job.translate),
                    "preview": self._preview(found, i),
                }
            answer["alternatives"].append(shown)
        return {**head, "answers": answers, "notes": self._notes(job.rows)}

    def _instructions(self, found: Counterfactuals, i: int, translate: Translator) -> list[str]:
        changes = found.changes_of(i)
        return [describe_change(one, translate, label=self.label(one.feature.name)) for one in changes]

    def label(self, name: str) -> str:
        """Return what people call a feature: the institution's label, or its name in words."""
        reasons = self.codes.get(name, {})
        return next((one.called(name) for one in reasons.values()), name.replace("_", " "))

    def _preview(self, found: Counterfactuals, i: int) -> str:
        """Return a digest of the model, the row and the counterfactual that a person was shown."""
        cells = {name: [_json(cell[i]) for cell in pair] for name, pair in found.cells.items()}
        shown = [self.digest, str(found.status[i]), found.kappa, cells]
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()

    def _notice(
        self, job: Job, source: Counterfactuals | vt.Ledger, number: int, opening: bytes | None = None
    ) -> str:
        """Write the notice of a promise in the ledger, or a draft about a row."""
        assert job.notice is not None
        fields = {**self.settings.fields, **job.notice.model_dump(exclude={"format"}, exclude_none=True)}
        language, form = job.translate or "en", job.notice.format
        return render_notice(
            source, number, self.codes, format=form, language=language, opening=opening, **fields
        )

    def _notes(self, rows: Sequence[Row]) -> list[str]:
        """Return a note on every number that is beyond what the model has learned from."""
        notes = []
        for feature in self.model.schema_.features:
            low, high = self.ranges.get(feature.name, (None, None))
            for i, value in enumerate([] if low is None else [row[feature.name] for row in rows]):
                if value is not None and value not in feature.missing_codes and not low <= value <= high:
                    where = f"in row {i} is outside {low:,g} to {high:,g}"
                    notes.append(f"{feature.name!r} {where} and counts as the nearer end")
        return notes

    # ------------------------------------------------------------ promises

    def _earlier(self, job: PromiseJob) -> Plain | None:
        """Return what was issued for the job before; refuse another one under its key."""
        issued = self.ledger.requested(job.request())
        return None if issued is None else self._issued(job, issued)

    def _promise(self, job: PromiseJob, found: Counterfactuals, part: slice) -> Plain:
        chosen = _chosen(found, part, job.choose)
        if job.preview is not None and [self._preview(chosen, 0)] != [job.preview]:
            remedy = "look at the new result, and issue that"
            raise refused(409, "changed", "the result that was shown", "another one", remedy)
        try:
            issued = self._write(job, chosen)
        except PromisedMeanwhileError:  # to the same application, by another writer: it is known now
            issued = self._write(job, chosen)
        return self._issued(job, issued)

    def _write(self, job: PromiseJob, chosen: Counterfactuals) -> Issued:
        """Issue promises of counterfactuals."""
        terms = Terms(
            self._end(job),
            self.settings.original,  # type: ignore[arg-type]  # checked by the terms
            self.settings.ledger_key,
            allow_duplicate=job.allow_duplicate,
        )
        model = self.model
        prepared = prepare(chosen, model.classifier_, model.threshold_, terms, job.ids)
        prepared = self.ledger.without_duplicates(prepared)
        response = _response(chosen, terms, prepared.rows)
        return self.ledger.append(prepared, job.request(response), deployed=True)

    def _end(self, job: PromiseJob) -> timedelta | datetime | None:
        """Return when the promises of a job end: with the service's terms, a shorter term ends them."""
        expires = expiry_of(job.expires or self.settings.expires)
        if job.expires is None and isinstance(expires, timedelta) and job.options.term is not None:
            return min(expires, job.options.duration)
        return promise_end(expires, job.options.term)

    def _issued(self, job: PromiseJob, issued: Issued) -> Plain:
        """Return what was issued, read from the ledger: the same for the first answer and every retry."""
        response = issued.answer or {"rows": [], "alternatives": [], "skipped": []}
        numbers = issued.sequence.tolist()
        openings = dict(zip(numbers, issued.openings, strict=False))
        promises = []
        for number, row, alternative in zip(numbers, response["rows"], response["alternatives"], strict=True):
            promise = {"row": row, "alternative": alternative, **self.promise(number, erased=True)}
            opening = openings.get(number)
            if job.notice is not None and (promise.get("original") is not None or opening is not None):
                promise["notice"] = self._notice(job, self.ledger, number, opening)
            promises.append(promise)
        skipped = [{**one, "reason": _why_skipped(one["outcome"])} for one in response["skipped"]]
        repeated = sum(one["outcome"] == REPEATED for one in skipped)
        head = {"checksum": issued.head, "again": issued.again}
        return {"promises": promises, "skipped": skipped, "repeated": repeated, **head}

    def promise(self, number: int, *, erased: bool = False) -> Plain:
        """Return everything about one promise; of an erased one its number, if ``erased`` ones may be."""
        try:
            shown = self.ledger.shown(number)
        except NoRecordError:
            if not erased:
                raise
            return {"number": number, "erased": True}
        return {**shown, "number": number, "erased": False, "worst_logit": _json(shown["worst_logit"])}

    # ------------------------------------------------------------ the ledger

    def deploy(self) -> None:
        """Audit the model against live promises, and record in the ledger that it is deployed.

        If the ledger says that this model is deployed and kept every promise, only later ones are audited.
        """
        last = next((one for one in self.audits() if one["kind"] == "deployment"), None)
        model = {"model": self.digest, "encoding": self.encoding.digest, "threshold": self.model.threshold_}
        passed = {**model, "broken": 0, "not_checkable": 0}
        since = 0 if last is None or {**last, **passed} != last else last["number"]
        found = vt.audit(self.ledger, self.model, recourse=0, since=since)
        reason, replaces = self.settings.serve_broken or "", self.settings.replace
        self.ledger.record_deployment(found, by="serve", reason=reason, replace=replaces)

    def erase(self, *, identity: str | None = None, number: int = 0) -> list[int]:
        """Erase the records of a person, or of whoever a promise was made to; return their numbers."""
        return self.ledger.erase(self.ledger.shown(number)["id"] if identity is None else identity)

    def state(self) -> Plain:
        """Return the numbers of promises by status, and the checksum."""
        with self.ledger.snapshot() as now:
            return {**vars(now.counts()), "checksum": now.head}

    def audits(self) -> list[Plain]:
        """Return the audits and deployments that the ledger records, the newest first."""
        return [one for one in reversed(self.ledger.history()) if one["kind"] in ("audit", "deployment")]

    # ------------------------------------------------------------ the model

    @cached_property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The range of each number in the training data."""
        pairs = zip(self.model.schema_.features, self.encoding.fitted, strict=True)
        return {feature.name: (fitted.low, fitted.high) for feature, fitted in pairs if feature.is_numeric}

    @cached_property
    def card(self) -> Plain:
        """What the model is and what it reads, in plain values."""
        return {
            "method": self.model.method,
            "kappa": self.model.settings_.kappa,
            "norm": self.model.norm,
            "radius": self.model.settings_.radius,
            "threshold": self.model.threshold_,
            "layers": [int(t.shape[0]) for t in self.model.param_set().center[::2]],
            "panel": self.model.panel_ is not None,
            "model_digest": self.digest,
            "encoding_digest": self.encoding.digest,
            "made_with": model_folder.verified(str(self.settings.model))[0]["versions"],
            "ranges": self.ranges,
            "schema": json.loads(self.model.schema_.to_json()),
        }

    def example(self) -> Row:
        """Return a legal row: the middle of every range, and the first of all categories."""
        middle = torch.full((1, self.encoding.dim), 0.5, dtype=torch.float64)
        frame = self.encoding.decode(self.encoding.project(middle, middle))
        return {str(name): _json(frame[name].iloc[0]) for name in frame.columns}


def deploy(settings: Settings) -> str:
    """Load the model, audit it if there is a ledger, and return its digest; refuse what cannot be served."""
    operations = Operations(settings)
    try:
        if settings.ledger is not None:
            operations.deploy()
        return operations.digest
    finally:
        operations.close()


# ---------------------------------------------------------------- jobs and rows


def _attempt(call: Callable[..., Any], *given: Any) -> Any:
    """Return the result of a call, or the error that refuses this job alone."""
    try:
        return call(*given)
    except VeriTracerError as error:
        return error


def _rows(jobs: Sequence[Job]) -> list[Row]:
    return [row for job in jobs for row in job.rows]


def _frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the rows as a table in which every cell keeps its own type, whoever else is in the batch."""
    names = list(rows[0]) if rows else []
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in names})


def _parts(jobs: Sequence[Job]) -> list[slice]:
    """Return where the rows of each job are among those of all."""
    ends = np.cumsum([0, *(len(job.rows) for job in jobs)]).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def _chosen(found: Counterfactuals, part: slice, choose: Sequence[int] | None) -> Counterfactuals:
    """Return the counterfactuals of the rows in ``part``, counted from 0; of each the chosen alternative."""
    rows = (found.row >= part.start) & (found.row < part.stop)
    if choose is not None:
        wanted = np.full(int(found.row.max()) + 1, -1)
        wanted[part] = choose
        last = np.zeros_like(wanted)
        np.maximum.at(last, found.row, found.alternative)
        if (wanted[part] > last[part]).any():
            remedy = "choose among those that recourse shows, counted from 0"
            raise DataError(message("an alternative that exists", f"{list(choose)}", remedy))
        rows &= found.alternative == wanted[found.row]
    chosen = found.select(np.flatnonzero(rows))
    return replace(chosen, row=chosen.row - part.start)


def _skipped(why: str, outcome: Outcome) -> str:
    """Return the name of what prevented a promise."""
    if why == LeftOut.NO:
        return REPEATED
    named = why in (LeftOut.OUTGROWN, LeftOut.OUT_OF_RANGE)
    return str(why) if named else outcome.name.lower()


def _response(chosen: Counterfactuals, terms: Terms, promised: NDArray[np.intp]) -> Plain:
    """Return what a retry is told beside the promises themselves; it names nobody."""
    left = np.ones(len(chosen), dtype=bool)
    left[promised] = False
    why = left_out(chosen, terms)
    return {
        "rows": chosen.row[promised].tolist(),
        "alternatives": chosen.alternative[promised].tolist(),
        "skipped": [
            {"row": int(chosen.row[i]), "outcome": _skipped(why[i], chosen.outcome[i])}
            for i in np.flatnonzero(left).tolist()
        ],
    }


def _why_skipped(name: str) -> str:
    """Return why a row has no promise, from the name of its outcome."""
    if name == REPEATED:
        return "the same application has a promise already"
    if name == LeftOut.OUTGROWN:
        return "it is not certified until the promise would end; state a shorter term"
    if name == LeftOut.OUT_OF_RANGE:
        return "a number is far outside the range of the training rows: such rows are explained only"
    outcome = Outcome[name.upper()]
    if outcome is Outcome.CERTIFIED:
        return "certified, but most of the independent models that took no part in the search reject it"
    return str(outcome.value)


def _json(value: Any) -> Any:
    """Return a cell or a number as JSON has it: None where it is missing or infinite."""
    plain = to_python(value)
    return None if is_missing(plain) or plain in (np.inf, -np.inf) else plain
