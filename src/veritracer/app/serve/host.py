"""A loaded model and its ledger, asked in plain values: what a worker process, or a thread, runs.

Requests with the same options are answered as one batch. Nobody is harmed by the company: no answer depends
on another row, and a request that is refused is taken out of its batch, which then goes on without it.
"""

from __future__ import annotations

import json
import math
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import veritracer as vt
from veritracer import model_folder
from veritracer.app.notices import render_notice
from veritracer.app.reason_codes import ReasonCodes, as_codes
from veritracer.app.serve.problems import Problem, problem_of
from veritracer.app.serve.settings import Settings
from veritracer.counterfactuals import Counterfactuals, document
from veritracer.errors import (
    LedgerError,
    PromisedMeanwhileError,
    VeriTracerError,
    VeriTracerWarning,
    message,
)
from veritracer.ledger.records import kept_rows
from veritracer.ledger.requests import Kept, Request
from veritracer.models.network import from_module, threshold_logit
from veritracer.options import IssueOptions
from veritracer.search.outcomes import Outcome
from veritracer.threads import only_compute
from veritracer.times import parse_expiry

if TYPE_CHECKING:
    from veritracer.ledger.issuing import Issued

Plain = dict[str, Any]

REPEATED = "promised"
"""How somebody ends who has the promise already: no outcome of the search."""


class Answer(NamedTuple):
    """What one request of a batch is answered: a JSON document, or a problem."""

    body: bytes
    problem: Problem | None = None

    @classmethod
    def of(cls, content: Plain) -> Answer:
        """The document."""
        return cls(json.dumps(content, ensure_ascii=False, allow_nan=False).encode())

    @classmethod
    def refused(cls, error: Exception) -> Answer:
        """The problem that an error is."""
        return cls(b"", problem_of(error))


class ModelHost:
    """A model that answers requests."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.codes: ReasonCodes = as_codes(settings.codes)
        self._ledger: vt.Ledger | None = None
        self._opening = threading.Lock()
        only_compute()  # a batch is too small to share; processes share the cores
        self.model = vt.load(settings.model)
        self.recourse = self.model.recourse()
        self.description = _describe(self.model, str(settings.model))

    def deploy(self) -> None:
        """Audit the model against every live promise, and record in the ledger that it is deployed."""
        found = vt.audit(self.ledger, self.model, recourse=0)
        reason, replace = self.settings.serve_broken or "", self.settings.replace
        self.ledger.record_deployment(found, by="serve", reason=reason, replace=replace)

    @property
    def ledger(self) -> vt.Ledger:
        """The ledger, opened when it is first needed."""
        if self.settings.ledger is None:
            remedy = "start the service with --ledger"
            raise LedgerError(message("a ledger", "a service without one", remedy))
        with self._opening:
            if self._ledger is None:
                self._ledger = vt.Ledger(self.settings.ledger, key=self.settings.ledger_key)
            return self._ledger

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()

    # ------------------------------------------------------------ answers to batches

    def decide(self, requests: Sequence[Plain], options: Plain) -> list[Answer]:
        """What the model decides today about the rows of each request."""

        def answer(some: list[Plain]) -> list[Answer]:
            decided = self._decisions(self.model.encoding_.encode(_table(some), out_of_range="ignore"))
            return [Answer.of({"decisions": decided[part]}) for part in _parts(some)]

        return self._each(requests, answer)

    def explain(self, requests: Sequence[Plain], options: Plain) -> list[Answer]:
        """Recourse for the rows of each request, with letters where they are asked for."""

        def answer(some: list[Plain]) -> list[Answer]:
            found = self._explain(some, options)
            whole = self._documents(found)
            head = {k: v for k, v in whole.items() if k not in ("rows", "format", "version")}
            answers = []
            for request, part in zip(some, _parts(some), strict=True):
                try:
                    rows = self._answers(found, whole["rows"], part, request.get("letter"))
                except VeriTracerError as error:
                    answers.append(Answer.refused(error))
                else:
                    answers.append(Answer.of({**head, "answers": rows, "notes": request.get("notes", [])}))
            return answers

        return self._each(requests, answer)

    def certify(self, requests: Sequence[Plain], options: Plain) -> list[Answer]:
        """Certificates for pairs of rows, with today's decisions and what the change costs."""

        def answer(some: list[Plain]) -> list[Answer]:
            rows = [pair["row"] for request in some for pair in request["rows"]]
            others = [pair["counterfactual"] for request in some for pair in request["rows"]]
            x, x_cf = (
                self.model.encoding_.encode(_frame(part), out_of_range="ignore") for part in (rows, others)
            )
            found = vt.certify(self.model.classifier_, x, x_cf, self.model.param_set(options.get("kappa")))
            today, then = self._decisions(x), self._decisions(x_cf)
            changed = self.model.encoding_.changed(x_cf, x)
            cost = (x_cf - x).abs().sum(-1).tolist()
            names = self.model.schema_.names
            told = [
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
            return [Answer.of({**head, "certificates": told[part]}) for part in _parts(some)]

        return self._each(requests, answer)

    def issue(self, requests: Sequence[Plain], options: Plain) -> list[Answer]:
        """Promises for the rows of each request, each request all or nothing and only once."""

        def answer(some: list[Plain]) -> list[Answer]:
            known = [self._earlier(request) for request in some]
            fresh = [r for r, before in zip(some, known, strict=True) if before is None]
            found = self._explain(fresh, options) if fresh else None
            parts = iter(_parts(fresh))
            answers = []
            for request, before in zip(some, known, strict=True):
                try:
                    if isinstance(before, Answer):
                        answers.append(before)
                    elif before is not None:
                        answers.append(self._repeat(before))
                    else:
                        assert found is not None
                        answers.append(self._issue(request, found, next(parts)))
                except VeriTracerError as error:
                    answers.append(Answer.refused(error))
            return answers

        return self._each(requests, answer)

    # ------------------------------------------------------------ how

    def _each(self, requests: Sequence[Plain], answer: Any) -> list[Answer]:
        """The answers, after requests that cannot be read were taken out and answered apart."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VeriTracerWarning)  # of whom in the batch they speak is not said
            try:
                return list(answer(list(requests)))
            except VeriTracerError as error:
                if len(requests) == 1:
                    return [Answer.refused(error)]
                wrong = {i: bad for i, one in enumerate(requests) if (bad := self._unreadable(one))}
                rest = [one for i, one in enumerate(requests) if i not in wrong]
                if not wrong:  # what they have in common is wrong
                    return [Answer.refused(error)] * len(requests)
        answered = iter(self._each(rest, answer) if rest else [])
        return [wrong[i] if i in wrong else next(answered) for i in range(len(requests))]

    def _unreadable(self, request: Plain) -> Answer | None:
        """Why these rows cannot be encoded; None where they can."""
        rows = [cell for row in request["rows"] for cell in _rows_in(row)]
        try:
            self.model.encoding_.encode(_frame(rows), out_of_range="ignore")
        except VeriTracerError as error:
            return Answer.refused(error)
        return None

    def _explain(self, requests: list[Plain], options: Plain) -> Counterfactuals:
        chosen = {k: v for k, v in options.items() if k != "lock"}
        if options.get("lock"):
            chosen["cost"] = {**chosen.get("cost", {}), **dict.fromkeys(options["lock"], math.inf)}
        return self.recourse.explain(_table(requests), **chosen)

    def _decisions(self, x: torch.Tensor) -> list[Plain]:
        """Decision and probability of encoded rows."""
        logit = self.model.logits(x)
        chance = torch.sigmoid(logit + threshold_logit(self.model.threshold_)).tolist()
        schema = self.model.schema_
        labels = {True: schema.favourable, False: schema.unfavourable}
        return [
            {"decision": labels[yes], "favourable": yes, "probability": p}
            for yes, p in zip((logit > 0).tolist(), chance, strict=True)
        ]

    def _documents(self, found: Counterfactuals) -> Plain:
        """The library's JSON document, whose rows also say how they ended and how they are decided today."""
        whole = document(found)
        for i, (row, today) in enumerate(zip(whole["rows"], self._decisions(found.x), strict=True)):
            row["outcome"] = found.outcome[i].name.lower()
            row["today"] = today
        return whole

    def _answers(
        self, found: Counterfactuals, rows: list[Plain], part: slice, letter: Plain | None
    ) -> list[Plain]:
        """One entry for each person of a request, with the alternatives that were found."""
        answers: list[Plain] = [{"alternatives": []} for _ in range(part.stop - part.start)]
        for i in np.flatnonzero((found.row >= part.start) & (found.row < part.stop)).tolist():
            row, mine = dict(rows[i]), answers[int(found.row[i]) - part.start]
            for name in ("row", "alternative", "original"):
                del row[name]
            mine |= row.pop("today")
            row["letter"] = None if letter is None else self._letter(found, i, letter)
            mine["alternatives"].append(row)
        return answers

    def _letter(
        self, source: Counterfactuals | vt.Ledger, number: int, asked: Plain, opening: bytes | None = None
    ) -> str:
        """The notice of a promise in the ledger, or a draft about a row."""
        given = {**self.settings.fields, **asked.get("fields", {})}
        kind = asked.get("format", "text")
        return render_notice(source, number, self.codes, format=kind, opening=opening, **given)

    def _earlier(self, request: Plain) -> Kept | Answer | None:
        """What was issued for the request before, or the refusal of another one under its key."""
        try:
            return self.ledger.requested(_request(request))
        except VeriTracerError as error:
            return Answer.refused(error)

    def _issue(self, request: Plain, found: Counterfactuals, part: slice) -> Answer:
        mine = _chosen(found, part, request.get("choose"))
        try:
            issued, told = self._promise(request, mine)
        except PromisedMeanwhileError:  # to the same application, by somebody else, which is known now
            issued, told = self._promise(request, mine)
        kept = self.ledger.requested(_request(request))
        assert kept is not None
        body = self._issued(kept, again=issued.again)
        if request.get("letter") is not None and not issued.again:
            for k in range(len(told)):
                number, opening = int(issued.sequence[k]), issued.openings[k] if issued.openings else None
                letter = self._letter(self.ledger, number, request["letter"], opening)
                body["promises"][k]["letter"] = letter
        return Answer.of(body)

    def _promise(self, request: Plain, mine: Counterfactuals) -> tuple[Issued, NDArray[np.intp]]:
        """What was issued, and which counterfactuals that is."""
        expires = request.get("expires") or self.settings.expires
        with self.ledger.issuing(
            self.model.classifier_,
            threshold=self.model.threshold_,
            expires=parse_expiry(expires),
            original=self.settings.original,  # type: ignore[arg-type]  # checked by the ledger
            allow_duplicate=bool(request.get("allow_duplicate", IssueOptions.allow_duplicate)),
            deployed=True,
        ) as batch:
            told = batch.add(mine, request["ids"]).rows
            batch.request = _request(request, _answer(mine, told))
        return batch.issued, told

    def _repeat(self, kept: Kept) -> Answer:
        return Answer.of(self._issued(kept, again=True))

    def _issued(self, kept: Kept, *, again: bool) -> Plain:
        """What was issued, read from the ledger: the same for the first answer and for every retry."""
        said = kept.answer or {"rows": [], "alternatives": [], "skipped": []}
        told = zip(kept.sequence, said["rows"], said["alternatives"], strict=True)
        promises = [{"row": row, "alternative": other, **self.promise(n)} for n, row, other in told]
        skipped = [{**one, "reason": _why_skipped(one["outcome"])} for one in said["skipped"]]
        counts = {"repeated": sum(one["outcome"] == REPEATED for one in skipped)}
        head = {"head": kept.head.hex(), "again": again}
        return {"promises": promises, "skipped": skipped, **counts, **head}

    def promise(self, number: int, *, strict: bool = False) -> Plain:
        """Everything about one promise; of one that was erased only that, unless ``strict``."""
        try:
            shown = self.ledger.shown(number)
        except vt.errors.NoRecordError:
            if strict:
                raise
            return {"number": number, "erased": True}
        del shown["sequence"]
        shown["worst_logit"] = _finite(shown["worst_logit"])
        return {"number": number, "erased": False, "letter": None, **_plain(shown)}


def _describe(model: vt.VeriTraCER, folder: str) -> Plain:
    """The model's card in plain values: what it is, what it reads, what its certificates speak of."""
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


def _rows_in(entry: Plain) -> list[Plain]:
    """A row, or both of a pair."""
    return [entry["row"], entry["counterfactual"]] if set(entry) == {"row", "counterfactual"} else [entry]


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows as a table in which every cell keeps the type that it came with, whoever else is there."""
    names = list(rows[0]) if rows else []
    return pd.DataFrame({name: pd.Series([row[name] for row in rows], dtype=object) for name in names})


def _table(requests: Sequence[Plain]) -> pd.DataFrame:
    return _frame([row for request in requests for row in request["rows"]])


def _parts(requests: Sequence[Plain]) -> list[slice]:
    """Where the rows of each request are among those of all."""
    ends = np.cumsum([0, *(len(request["rows"]) for request in requests)]).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def _request(request: Plain, answer: Plain | None = None) -> Request:
    return Request(request["key"], request["content"].encode(), answer)


def _answer(mine: Counterfactuals, told: NDArray[np.intp]) -> Plain:
    """What a retry is told beside the promises themselves, without anybody's name."""
    could, left = kept_rows(mine, IssueOptions.uncertified), np.ones(len(mine), dtype=bool)
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
    """Why somebody was promised nothing, from the name of the outcome."""
    if name == REPEATED:
        return "the same application has a promise already"
    outcome = Outcome[name.upper()]
    if outcome is Outcome.CERTIFIED:
        return "certified, and most of the models that took no part in finding it do not believe it"
    return str(outcome.value)


def _chosen(found: Counterfactuals, part: slice, choose: Sequence[int] | None) -> Counterfactuals:
    """The counterfactuals of the people in ``part``, counted from 0; of each only the chosen alternative."""
    rows = (found.row >= part.start) & (found.row < part.stop)
    if choose is not None:
        wanted = np.full(int(found.row.max()) + 1, -1)
        wanted[part] = choose
        last = np.zeros_like(wanted)
        np.maximum.at(last, found.row, found.alternative)
        if (wanted[part] > last[part]).any():
            remedy = "choose among those that recourse shows, counted from 0"
            raise vt.errors.DataError(message("an alternative that there is", f"{list(choose)}", remedy))
        rows &= found.alternative == wanted[found.row]
    mine = found.select(np.flatnonzero(rows))
    return replace(mine, row=mine.row - part.start)


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
