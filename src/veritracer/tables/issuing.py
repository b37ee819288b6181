"""Promise recourse to everybody in a table, batch by batch, in an order that survives a crash.

One process writes; workers return counterfactuals and promises that were proved again. Before the first
promise every cell of the input is read once. Then, for each batch:

0. If the ledger knows the request of the batch, its promises are issued: go on with step 4.
1. Explain and prove (``prepare_batch``).
2. Write the draft ``_prepared/BATCH.DIGEST``, which has no numbers and dates; wait until the disk has it.
3. In one transaction issue the promises and the request, which names the draft. If somebody has been promised
   the same since step 1, begin again with what is left.
4. Write the part from draft and request, then the record; remove the draft.

So nothing is ever issued whose results are not on the disk, and step 4, a function of draft and request, can
be repeated. Drafts are no part of the result: whoever reads the folder never counts anybody twice.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from veritracer.engines import Engine
from veritracer.errors import LedgerError, PromisedMeanwhileError, message
from veritracer.files import make_folders, remove, writable, write_whole
from veritracer.ledger import Ledger
from veritracer.ledger.issuing import Prepared, names_of, prepare
from veritracer.ledger.records import Terms
from veritracer.ledger.requests import Issued, Request
from veritracer.options import IssueOptions
from veritracer.recourse import Recourse
from veritracer.tables.batches import explained, load_model, naming, typed_rows
from veritracer.tables.jobs import ADDED, Batch, BatchResult, Job, collect_warnings
from veritracer.tables.outputs import PREPARED, Output, RunFolder, flat
from veritracer.tables.run_files import CONTINUES
from veritracer.tables.runs import Progress, RunSummary, missing_batches, run_table
from veritracer.times import format_time

PROMISE, OPENING = f"{ADDED}promise", f"{ADDED}opening"
"""The number of a promise, and what opens the commitment to the row that it was made about."""

ISSUED, EXPIRES = f"{ADDED}issued", f"{ADDED}expires"

DRAFT = b"veritracer.draft"
"""Metadata of a draft: the ledger, and everything of the result besides the rows."""


def prepare_batch(job: Job, options: IssueOptions, batch: Batch) -> BatchResult:
    """Explain a batch and prepare its promises, as no ledger has them yet."""
    result, found, frame = explained(job, batch)
    if found is None:
        return result
    recourse, ids = _recourse(job), frame[options.ids].tolist()
    threshold = 0.5 if recourse.threshold is None else recourse.threshold
    return replace(result, prepared=prepare(found, recourse.module, threshold, terms_of(options), ids))


def terms_of(options: IssueOptions) -> Terms:
    """Return the terms of the promises; bad ones are refused."""
    return Terms(options.end, options.original, options.key, options.uncertified, options.allow_duplicate)


def check_batch(job: Job, options: IssueOptions, batch: Batch) -> None:
    """Read every cell of a batch: rows that cannot be read, and people without an id, are refused."""
    encoding = _recourse(job).encoding
    frame, _ = typed_rows(batch, encoding.schema, encoding, [options.ids], collect=job.collect_rejects)
    if len(frame):
        with collect_warnings(), naming(batch.table):
            encoding.encode(frame[list(encoding.schema.names)])
            names_of(frame[options.ids].tolist())


def issue_table(
    job: Job,
    options: IssueOptions,
    batches: Callable[[], Iterator[Batch]],
    out: RunFolder,
    engine: Engine,
    *,
    rejects: Path | None = None,
    progress: Progress | None = None,
) -> RunSummary:
    """Promise recourse to everybody in a table, and return how the rows ended.

    Parameters
    ----------
    job
        How rows are explained; it keeps the column of identities.
    options
        The terms of the promises, the name of the column of identities, and the place of the ledger; a new
        ledger is made when all rows were read.
    batches, engine, rejects, progress
        As for ``run_table``.
    out
        A local folder or file.
    """
    terms_of(options)  # refused before anything is read
    is_begun = out.is_begun
    for _ in engine.map(partial(check_batch, job, options), missing_batches(batches, out)):
        pass
    with Ledger(options.ledger, key=options.key, create=not is_begun) as ledger:
        task = partial(prepare_batch, job, options)
        issuing = _IssuingOutput(out, ledger)
        return run_table(task, batches, issuing, engine, rejects=rejects, progress=progress)


class _IssuingOutput(Output):
    """A folder of results that issues the promises of a batch before it writes the part.

    It does not count as begun: ``issue_table`` has compared the tables already.
    """

    def __init__(self, out: RunFolder, ledger: Ledger) -> None:
        self.out, self.ledger = out, ledger
        self.identity = ledger.identity
        assert out.files.local is not None, "results of promises are written on this machine"
        self.drafts: Path = out.files.local / PREPARED

    def check_exact(self, names: Collection[str]) -> None:
        """Refuse parts and drafts of other batches than these."""
        self.out.check_exact(names)

    def finish(self, results: Sequence[BatchResult]) -> None:
        """Put the file together, and keep the records: a repetition has nothing left to do."""
        remove(self.drafts)
        self.out.finish(results, keep_records=True)

    def done(self, batch: Batch) -> BatchResult | None:
        """Return the record of a batch that is issued, after its part was written (step 0)."""
        drafts = self._drafts(batch.name)
        for draft in drafts:
            self._check_ledger(_read_draft(draft)[1]["ledger"] == self.identity, batch.name)
        record = self.out.done(batch)
        request = self._request(batch.name, batch.digest)
        if record is not None:
            known = not record.promises[1] or self.ledger.requested(request) is not None
            self._check_ledger(known, batch.name)
            self._discard(batch.name)  # the process was killed before it did
            return record
        # Whoever was cut off from the database may not know whether it has committed: wait for its end.
        issued = self.ledger.settled(request) if drafts else self.ledger.requested(request)
        return None if issued is None else self._publish(batch.name, issued)

    def write(self, result: BatchResult) -> BatchResult:
        """Issue the promises of a batch and write its part (steps 2 to 4)."""
        if result.rows is None:
            return result
        while True:
            try:
                return self._publish(result.name, self._issue(result))
            except PromisedMeanwhileError:
                continue

    def _issue(self, result: BatchResult) -> Issued | None:
        """Write the draft, then commit the promises; None where there are none (steps 2 and 3)."""
        self._discard(result.name)
        promised = self.ledger.without_duplicates(result.prepared)
        counts = Counter({**result.counts, **promised.left_out, "promises": len(promised.rows)})
        draft = self._draft(replace(result, counts=counts), promised)
        if not promised.records:
            return None
        request = self._request(result.name, result.digest)
        return self.ledger.append(promised, request._replace(answer={"draft": draft}))

    def _draft(self, result: BatchResult, promised: Prepared) -> str:
        """Write the draft of a batch, and return its digest when the disk has it."""
        assert result.rows is not None
        ranks: list[int | None] = [None] * result.rows.num_rows
        openings: list[str | None] = [None] * result.rows.num_rows
        for rank, row in enumerate(promised.rows.tolist()):
            ranks[row] = rank
            openings[row] = b64encode(promised.openings[rank]).decode() if promised.openings else None
        rows = result.rows.append_column(PROMISE, pa.array(ranks, pa.int64()))
        if promised.terms.original == "commitment":
            rows = rows.append_column(OPENING, pa.array(openings, pa.string()))
        document = json.dumps({"ledger": self.identity, "result": result.to_document()})
        content = pa.BufferOutputStream()
        with pa.ipc.new_file(content, rows.schema.with_metadata({DRAFT: document})) as writer:
            writer.write_table(rows)
        data = content.getvalue().to_pybytes()
        digest = hashlib.sha256(data).hexdigest()
        make_folders(self.drafts)
        place = self._place(result.name, digest)
        with writable(place, CONTINUES):
            write_whole(place, data)
        return digest

    def _publish(self, name: str, issued: Issued | None) -> BatchResult:
        """Write the part of a batch from its draft and its request, and its record (step 4)."""
        place = self._drafts(name)[0] if issued is None else self._place(name, (issued.answer or {})["draft"])
        if not place.exists():
            received = f"no {place}"
            remedy = "restore the file: the results of this batch are written nowhere else"
            raise LedgerError(message("the results of promises that were issued", received, remedy))
        rows, document = _read_draft(place)
        result = BatchResult.from_document(document["result"], _numbered(rows, issued))
        if issued is not None:
            facts = {**result.facts, "expires": format_time(issued.expires)}
            result = replace(result, facts=facts, promises=(int(issued.sequence[0]), len(issued)))
        record = self.out.write(result)
        self._discard(name)
        return record

    def _request(self, name: str, digest: str) -> Request:
        """Return the request of a batch: under its key promises are issued once, whoever tries again."""
        return Request(f"{self.out.run}/{name}", digest.encode())

    def _check_ledger(self, known: bool, name: str) -> None:
        if not known:
            expected = f"the ledger that the run in {self.out} issued to"
            received = f"one without the promises to {name}"
            raise LedgerError(message(expected, received, "name that ledger, or another output"))

    def _place(self, name: str, digest: str) -> Path:
        return self.drafts / f"{flat(name)}.{digest}"

    def _drafts(self, name: str) -> list[Path]:
        return [place for place in self.drafts.glob("*") if place.stem == flat(name)]

    def _discard(self, name: str) -> None:
        for place in self._drafts(name):
            remove(place)


def _numbered(rows: pa.Table, issued: Issued | None) -> pa.Table:
    """Return the rows of a draft with the numbers and dates of their promises; null where there is none."""
    ranks = rows.column(PROMISE).to_pylist()
    first, times = 0, (0.0, 0.0)
    if issued is not None:
        first, times = int(issued.sequence[0]), (issued.issued, issued.expires)
    numbers = [None if rank is None else first + rank for rank in ranks]
    rows = rows.set_column(rows.schema.get_field_index(PROMISE), PROMISE, pa.array(numbers, pa.int64()))
    for name, time in zip((ISSUED, EXPIRES), times, strict=True):
        dates = [None if number is None else format_time(time) for number in numbers]
        rows = rows.append_column(name, pa.array(dates, pa.string()))
    return rows


def _read_draft(place: Path) -> tuple[pa.Table, dict[str, Any]]:
    """Return the rows of a draft, and what its metadata say."""
    with pa.OSFile(str(place)) as file:
        rows = pa.ipc.open_file(file).read_all()
    return rows.replace_schema_metadata(None), json.loads(rows.schema.metadata[DRAFT])


def _recourse(job: Job) -> Recourse:
    return load_model(job.model, job.digest).recourse(job.rules)
