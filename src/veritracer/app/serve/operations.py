"""Decide, explain, certify and issue: one batch of requests in, one reply per request out.

Requests of a batch have equal options and are answered by one call of the library. No answer depends on
another row, and a request that is refused is taken out of its batch, which then goes on without it.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import veritracer as vt
from veritracer import model_folder
from veritracer.app.i18n import Translator
from veritracer.app.notices import render_notice
from veritracer.app.reason_codes import ReasonCodes, as_codes
from veritracer.app.serve.models import NoticeRequest, Row, refused
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
from veritracer.ledger.issuing import prepare
from veritracer.ledger.records import Terms as PromiseTerms
from veritracer.ledger.records import promised_rows
from veritracer.ledger.requests import Issued, Request
from veritracer.models.network import from_module, threshold_logit
from veritracer.options import ExplainOptions, IssueOptions
from veritracer.search.outcomes import Outcome
from veritracer.threads import only_compute
from veritracer.times import parse_expiry

if TYPE_CHECKING:
    from veritracer.app.serve.app import Settings

Plain = dict[str, Any]
Reply = Plain | VeriTracerError
"""The answer to one request: what JSON says, or the error that refuses it."""

Operation = Literal["decide", "explain", "certify", "issue"]

REPEATED = "promised"
"""Outcome of a row that has the promise already; the search has no such outcome."""


class Kind(NamedTuple):
    """The operation and options that the requests of one batch share."""

    operation: Operation
    options: str = ""


@dataclass(frozen=True)
class Terms:
    """The additions of a request for promises: ids, terms, and the key and content that a retry must repeat.

    ``preview`` is the digest of the result that was shown before; another result is refused.
    """

    ids: Sequence[str]
    key: str
    content: str
    choose: Sequence[int] | None = None
    expires: str | None = None
    allow_duplicate: bool = IssueOptions.allow_duplicate
    preview: str | None = None


@dataclass(frozen=True)
class Job:
    """One request: rows, counterfactuals to certify, options, and what else its reply is to have."""

    rows: Sequence[Row]
    options: ExplainOptions = field(default_factory=ExplainOptions)
    others: Sequence[Row] = ()
    notice: NoticeRequest | None = None
    translate: Translator | None = None
    terms: Terms | None = None

    def kind(self, operation: Operation) -> Kind:
        """Return what the jobs have in common that are answered together."""
        return Kind(operation, repr(self.options))


class Operations:
    """A loaded model and its ledger, which answer batches of requests."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codes: ReasonCodes = as_codes(settings.codes)
        self._ledger: vt.Ledger | None = None
        self._opening = threading.Lock()
        only_compute()  # a batch is too small to share; processes share the cores
        self.model = vt.load(settings.model)
        self.recourse = self.model.recourse()
        self.description = _describe(self.model, str(settings.model))
        self.digest: str = self.description["model_digest"]

    def deploy(self) -> None:
        """Audit the model against every live promise, and record in the ledger that it is deployed."""
        found = vt.audit(self.ledger, self.model, recourse=0)
        reason, replaces = self.settings.serve_broken or "", self.settings.replace
        self.ledger.record_deployment(found, by="serve", reason=reason, replace=replaces)

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

    def example(self) -> Row:
        """Return a legal row: the middle of every range, and the first of all categories."""
        encoding = self.model.encoding_
        middle = torch.full((1, encoding.dim), 0.5, dtype=torch.float64)
        frame = encoding.decode(encoding.project(middle, middle))
        return {str(name): _json_cell(frame[name].iloc[0]) for name in frame.columns}

    # ------------------------------------------------------------ batches

    def run(self, kind: Kind, jobs: Sequence[Job], until: float) -> list[Reply]:
        """Answer the jobs of one kind; a search ends at the moment ``until`` of the monotonic clock."""
        call: Callable[[Sequence[Job], float], list[Reply]] = getattr(self, f"_{kind.operation}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VeriTracerWarning)  # they do not say whom in the batch they mean
            return self._each(jobs, lambda some: call(some, until))

    def _each(self, jobs: Sequence[Job], call: Callable[[Sequence[Job]], list[Reply]]) -> list[Reply]:
        """Answer the jobs; those whose rows cannot be encoded are refused, and the others go on."""
        try:
            return call(jobs)
        except VeriTracerError as error:
            bad = {i: why for i, job in enumerate(jobs) if (why := self._unreadable(job)) is not None}
            if len(jobs) == 1 or not bad:  # what they have in common is wrong
                return [error] * len(jobs)
        rest = [job for i, job in enumerate(jobs) if i not in bad]
        replies = iter(self._each(rest, call) if rest else [])
        return [bad[i] if i in bad else next(replies) for i in range(len(jobs))]

    def _unreadable(self, job: Job) -> VeriTracerError | None:
        """Return why the rows of a job cannot be encoded; None where they can."""
        try:
            self.model.encoding_.encode(_frame([*job.rows, *job.others]), out_of_range="ignore")
        except VeriTracerError as error:
            return error
        return None

    def _decide(self, jobs: Sequence[Job], until: float) -> list[Reply]:
        decided = self._decisions(self.model.encoding_.encode(_table(jobs), out_of_range="ignore"))
        return [{"decisions": decided[part]} for part in _parts(jobs)]

    def _explain(self, jobs: Sequence[Job], until: float) -> list[Reply]:
        found = self._search(jobs, until)
        whole = self._document(found)
        rows = whole.pop("rows")
        replies: list[Reply] = []
        for job, part in zip(jobs, _parts(jobs), strict=True):
            try:
                answers = self._answers(found, rows, part, job)
            except VeriTracerError as error:
                replies.append(error)
            else:
                replies.append({**whole, "answers": answers, "notes": self._notes(job.rows)})
        return replies

    def _certify(self, jobs: Sequence[Job], until: float) -> list[Reply]:
        encode = self.model.encoding_.encode
        x = encode(_table(jobs), out_of_range="ignore")
        x_cf = encode(_frame([row for job in jobs for row in job.others]), out_of_range="ignore")
        models = self.model.param_set(jobs[0].options.kappa)
        found = vt.certify(self.model.classifier_, x, x_cf, models)
        today, then = self._decisions(x), self._decisions(x_cf)
        changed = self.model.encoding_.changed(x_cf, x)
        cost = (x_cf - x).abs().sum(-1).tolist()
        names = self.model.schema_.names
        certificates = [
            {
                "certified": bool(found.certified[i]),
                "valid": bool(found.valid[i]),
                "radius": _finite(0.0 if found.radius is None else found.radius[i]),
                "worst_logit": _finite(found.worst_logit[i]),
                "method": str(found.method[i]),
                "conditional": bool(found.conditional[i] and found.certified[i]),
                "cost": cost[i],
                "changes": [names[k] for k in changed[i].nonzero().squeeze(-1).tolist()],
                "today": today[i],
                "then": then[i],
            }
            for i in range(len(x))
        ]
        head = {"kappa": found.kappa, "norm": found.norm, "model_digest": found.model_digest}
        return [{**head, "certificates": certificates[part]} for part in _parts(jobs)]

    def _issue(self, jobs: Sequence[Job], until: float) -> list[Reply]:
        """Issue the promises of each job: all of them or none, and only once under its key."""
        earlier = [self._earlier(job) for job in jobs]
        fresh = [job for job, before in zip(jobs, earlier, strict=True) if before is None]
        found = self._search(fresh, until) if fresh else None
        parts = iter(_parts(fresh))
        replies: list[Reply] = []
        for job, before in zip(jobs, earlier, strict=True):
            try:
                if isinstance(before, VeriTracerError):
                    replies.append(before)
                elif before is not None:
                    replies.append(self._issued(job, before))
                else:
                    assert found is not None
                    replies.append(self._promise(job, found, next(parts)))
            except VeriTracerError as error:
                replies.append(error)
        return replies

    # ------------------------------------------------------------ decisions and counterfactuals

    def _search(self, jobs: Sequence[Job], until: float) -> Counterfactuals:
        options = jobs[0].options
        budgets = [options.time_budget, self.settings.time_budget, until - time.monotonic()]
        budget = max(0.0, min(one for one in budgets if one is not None))
        chosen = {one.name: getattr(options, one.name) for one in fields(options)}
        return self.recourse.explain(_table(jobs), **{**chosen, "time_budget": budget})

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

    def _document(self, found: Counterfactuals) -> Plain:
        """Return the library's JSON document, whose rows also have their outcome and today's decision."""
        whole = document(found)
        for i, (row, today) in enumerate(zip(whole["rows"], self._decisions(found.x), strict=True)):
            row |= {"outcome": found.outcome[i].name.lower(), "today": today}
        return whole

    def _answers(self, found: Counterfactuals, rows: list[Plain], part: slice, job: Job) -> list[Plain]:
        """Return an entry for each row of a job, with the alternatives that were found."""
        answers: list[Plain] = [{"alternatives": []} for _ in range(part.stop - part.start)]
        for i in np.flatnonzero((found.row >= part.start) & (found.row < part.stop)).tolist():
            one, mine = dict(rows[i]), answers[int(found.row[i]) - part.start]
            for name in ("row", "alternative", "original"):
                del one[name]
            mine |= one.pop("today")
            one["notice"] = None if job.notice is None else self._notice(found, i, job)
            if job.translate is not None:
                one["instructions"] = self._instructions(found, i, job.translate)
                one["preview"] = self._preview(found, i)
            mine["alternatives"].append(one)
        return answers

    def _instructions(self, found: Counterfactuals, i: int, translate: Translator) -> list[str]:
        changes = found.changes_of(i)
        return [describe_change(one, translate, label=self.label(one.feature.name)) for one in changes]

    def label(self, name: str) -> str:
        """Return what people call a feature: the institution's label, or its name in words."""
        reasons = self.codes.get(name, {})
        return next((one.called(name) for one in reasons.values()), name.replace("_", " "))

    def _preview(self, found: Counterfactuals, i: int) -> str:
        """Return a digest of the model, the row and the counterfactual that a person was shown."""
        cells = {name: [_json_cell(cell[i]) for cell in pair] for name, pair in found.cells.items()}
        shown = [self.digest, str(found.status[i]), found.kappa, cells]
        return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()

    def _notice(
        self, source: Counterfactuals | vt.Ledger, number: int, job: Job, opening: bytes | None = None
    ) -> str | None:
        """Write the notice of a promise in the ledger, or a draft about a row."""
        if job.notice is None:
            return None
        words = {**self.settings.fields, **job.notice.fields}
        language = job.translate or "en"
        kind = job.notice.format
        return render_notice(
            source, number, self.codes, format=kind, language=language, opening=opening, **words
        )

    def _notes(self, rows: Sequence[Row]) -> list[str]:
        """Return a note on every number that is beyond what the model has learned from."""
        notes = []
        for one in self.description["features"]:
            low, high = one["lower"], one["upper"]
            for i, value in enumerate([row[one["name"]] for row in rows] if low is not None else []):
                if value is not None and value not in one["missing_codes"] and not low <= value <= high:
                    name, ends = one["name"], f"{low:,g} to {high:,g}"
                    notes.append(f"{name!r} in row {i} is outside {ends} and counts as the nearer end")
        return notes

    # ------------------------------------------------------------ promises

    def _earlier(self, job: Job) -> Issued | VeriTracerError | None:
        """Return what was issued for the job before, or why another one under its key is refused."""
        try:
            return self.ledger.requested(_request(job))
        except VeriTracerError as error:
            return error

    def _promise(self, job: Job, found: Counterfactuals, part: slice) -> Plain:
        assert job.terms is not None
        mine = _chosen(found, part, job.terms.choose)
        if job.terms.preview is not None and [self._preview(mine, 0)] != [job.terms.preview]:
            remedy = "look at the new result, and issue that"
            raise refused(409, "changed", "the result that was shown", "another one", remedy)
        try:
            issued = self._write(job, mine)
        except PromisedMeanwhileError:  # somebody else promised to the same application, which is known now
            issued = self._write(job, mine)
        return self._issued(job, issued)

    def _write(self, job: Job, mine: Counterfactuals) -> Issued:
        """Issue promises of counterfactuals."""
        assert job.terms is not None
        terms = PromiseTerms(
            parse_expiry(job.terms.expires or self.settings.expires),
            self.settings.original,  # type: ignore[arg-type]  # checked by the terms
            self.settings.ledger_key,
            allow_duplicate=job.terms.allow_duplicate,
        )
        model = self.model
        prepared = prepare(mine, model.classifier_, model.threshold_, terms, job.terms.ids)
        prepared = self.ledger.without_duplicates(prepared)
        request = _request(job, _response(mine, prepared.rows))
        return self.ledger.append(prepared, request, deployed=True)

    def _issued(self, job: Job, issued: Issued) -> Plain:
        """Return what was issued, read from the ledger: the same for the first answer and every retry."""
        said = issued.answer or {"rows": [], "alternatives": [], "skipped": []}
        openings = dict(zip(issued.sequence.tolist(), issued.openings, strict=False))
        promises = []
        each = zip(issued.sequence.tolist(), said["rows"], said["alternatives"], strict=True)
        for number, row, alternative in each:
            one = {"row": row, "alternative": alternative, **self.promise(number)}
            opening = openings.get(number)
            if one.get("original") is not None or opening is not None:
                one["notice"] = self._notice(self.ledger, number, job, opening)
            promises.append(one)
        skipped = [{**one, "reason": _why_skipped(one["outcome"])} for one in said["skipped"]]
        repeated = sum(one["outcome"] == REPEATED for one in skipped)
        head = {"checksum": issued.head, "again": issued.again}
        return {"promises": promises, "skipped": skipped, "repeated": repeated, **head}

    def promise(self, number: int, *, strict: bool = False) -> Plain:
        """Return everything about one promise; of an erased one its number, or an error if ``strict``."""
        try:
            shown = self.ledger.shown(number)
        except NoRecordError:
            if strict:
                raise
            return {"number": number, "erased": True}
        del shown["sequence"]
        shown["worst_logit"] = _finite(shown["worst_logit"])
        return {"number": number, "erased": False, "notice": None, **_plain(shown)}

    # ------------------------------------------------------------ the ledger

    def erase(self, *, identity: str | None = None, number: int = 0) -> list[int]:
        """Erase the records of a person, or of whoever a promise was made to; return their numbers."""
        return self.ledger.erase(self.ledger.shown(number)["id"] if identity is None else identity)

    def head(self) -> str:
        """Return the checksum of the chain."""
        return self.ledger.head

    def state(self) -> Plain:
        """Return the numbers of promises by status, and the checksum."""
        with self.ledger.snapshot() as now:
            return {**vars(now.counts()), "checksum": self.ledger.head}

    def audits(self) -> list[Plain]:
        """Return the audits and deployments that the ledger records, the newest first."""
        recorded = self.ledger.history()
        return [one for one in reversed(recorded) if one["kind"] in ("audit", "deployment")]

    def verify(self, checksum: str | None) -> Plain:
        """Check the chain, and whether it goes on from a checksum that was noted earlier."""
        found = self.ledger.verify(checksum)
        facts = {
            name: getattr(found, name) for name in ("ok", "count", "entries", "promises", "erased", "newer")
        }
        return {**facts, "checksum": found.head, "findings": [one._asdict() for one in found.findings[:100]]}


def deploy(settings: Settings) -> str:
    """Load the model, audit it if there is a ledger, and return its digest; refuse what cannot be served."""
    operations = Operations(settings)
    try:
        if settings.ledger is not None:
            operations.deploy()
        return operations.digest
    finally:
        operations.close()


# ---------------------------------------------------------------- rows


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows as a table in which every cell keeps its own type, whoever else is in the batch."""
    names = list(rows[0]) if rows else []
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in names})


def _table(jobs: Sequence[Job]) -> pd.DataFrame:
    return _frame([row for job in jobs for row in job.rows])


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
            raise DataError(message("an alternative that there is", f"{list(choose)}", remedy))
        rows &= found.alternative == wanted[found.row]
    mine = found.select(np.flatnonzero(rows))
    return replace(mine, row=mine.row - part.start)


# ---------------------------------------------------------------- requests for promises


def _request(job: Job, response: Plain | None = None) -> Request:
    assert job.terms is not None
    return Request(job.terms.key, job.terms.content.encode(), response)


def _response(mine: Counterfactuals, told: NDArray[np.intp]) -> Plain:
    """Return what a retry is told beside the promises themselves; it names nobody."""
    could, left = promised_rows(mine, IssueOptions.uncertified), np.ones(len(mine), dtype=bool)
    left[told] = False
    return {
        "rows": mine.row[told].tolist(),
        "alternatives": mine.alternative[told].tolist(),
        "skipped": [
            {"row": int(mine.row[i]), "outcome": REPEATED if could[i] else mine.outcome[i].name.lower()}
            for i in np.flatnonzero(left).tolist()
        ],
    }


def _why_skipped(name: str) -> str:
    """Return why a row has no promise, from the name of its outcome."""
    if name == REPEATED:
        return "the same application has a promise already"
    outcome = Outcome[name.upper()]
    if outcome is Outcome.CERTIFIED:
        return "certified, but most of the independent models that took no part in the search reject it"
    return str(outcome.value)


# ---------------------------------------------------------------- the model card


def _describe(model: vt.VeriTraCER, folder: str) -> Plain:
    """Return the model card in plain values."""
    network, theta = from_module(model.classifier_)
    schema = model.schema_
    content, _ = model_folder.verified(folder)
    return {
        "method": model.method,
        "kappa": model.settings_.kappa,
        "norm": model.norm,
        "radius": model.settings_.radius,
        "threshold": model.threshold_,
        "layers": [int(t.shape[0]) for t in theta[::2]],
        "inputs": int(theta[0].shape[1]),
        "panel": model.panel_ is not None,
        "rows_kept": len(model.neighbours_),
        "target": schema.target,
        "favourable": schema.favourable,
        "unfavourable": schema.unfavourable,
        "model_digest": network.digest(theta),
        "encoding_digest": model.encoding_.digest,
        "made_with": content["versions"],
        "features": [_feature(model, i) for i in range(len(schema))],
        "schema": json.loads(schema.to_json()),
    }


def _feature(model: vt.VeriTraCER, i: int) -> Plain:
    feature, fitted = model.schema_.features[i], model.encoding_.fitted[i]
    return {
        "name": feature.name,
        "kind": feature.kind,
        "action": feature.action,
        "lower": fitted.low if feature.is_numeric else None,
        "upper": fitted.high if feature.is_numeric else None,
        "step": feature.grid_step,
        "categories": list(feature.categories),
        "missing": feature.missing,
        "missing_codes": list(feature.missing_codes),
    }


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _json_cell(value: Any) -> Any:
    """Return a cell of a table as JSON has it."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if plain is None or plain is pd.NA or plain != plain else plain


def _plain(value: Any) -> Any:
    """Return the value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
