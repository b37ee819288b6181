"""Promise recourse to everybody in a table, batch by batch, in an order that survives a crash.

The driver is the only writer; workers return counterfactuals and promises that were proved again. Before the
first promise every cell of the input is read once. Then, for each batch:

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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from veritracer.engines import Engine
from veritracer.errors import LedgerError, PromisedMeanwhileError, message
from veritracer.files import remove, write_whole
from veritracer.ledger import Ledger
from veritracer.ledger.issuing import Prepared, names_of, prepare
from veritracer.ledger.records import Terms
from veritracer.ledger.requests import Issued, Request
from veritracer.tables.batches import (
    count_outcomes,
    describe_models,
    explained,
    load_model,
    naming,
    nothing,
    typed_rows,
)
from veritracer.tables.exact_columns import counterfactual_table
from veritracer.tables.inputs import Tell
from veritracer.tables.jobs import Batch, BatchResult, Job
from veritracer.tables.notes import Notes
from veritracer.tables.outputs import FileOutput, FolderOutput
from veritracer.tables.reading import ADDED
from veritracer.tables.rejects import Reject, Rejects
from veritracer.tables.run_folder import PREPARED, Record, continuable, flat
from veritracer.tables.runs import Progress, RunSummary, check_begun, run_table
from veritracer.times import format_time

PROMISE, OPENING = f"{ADDED}promise", f"{ADDED}opening"
"""The number of a promise, and what opens the commitment to the row that it was made about."""

ISSUED, EXPIRES = f"{ADDED}issued", f"{ADDED}expires"

DRAFT = b"veritracer.draft"
"""Metadata of a draft: everything besides the rows that the part and the record need."""


def prepare_batch(job: Job, id_column: str, terms: Terms, batch: Batch) -> BatchResult:
    """Explain a batch and prepare its promises, as no ledger has them yet."""
    recourse = load_model(job.model, job.digest).recourse(job.rules)
    encoding, collect = recourse.encoding, job.collect_rejects
    frame, rejects = typed_rows(batch.rows, encoding.schema, encoding, job.keep, collect=collect)
    if not len(frame):
        return nothing(batch, rejects)
    found, notes = explained(recourse, job.options, batch.rows.table, frame)
    threshold = 0.5 if recourse.threshold is None else recourse.threshold
    promised = prepare(found, recourse.module, threshold, terms, frame[id_column].tolist())
    return BatchResult(
        batch.name,
        batch.digest,
        counterfactual_table(found, frame[list(job.keep)], sentences=job.sentences),
        count_outcomes(found, job.options),
        describe_models(recourse.param_set(job.options.get("kappa"))),
        notes,
        rejects,
        promised,
    )


def check_batch(job: Job, id_column: str, batch: Batch) -> None:
    """Read every cell of a batch: rows that cannot be read, and people without an id, are refused."""
    encoding, collect = load_model(job.model, job.digest).recourse(job.rules).encoding, job.collect_rejects
    frame, _ = typed_rows(batch.rows, encoding.schema, encoding, [id_column], collect=collect)
    if len(frame):
        with Notes().taken(), naming(batch.rows.table):
            encoding.encode(frame[list(encoding.schema.names)], out_of_range="ignore")
            names_of(frame[id_column].tolist())


def issue_table(
    job: Job,
    id_column: str,
    terms: Terms,
    batches: Callable[[Tell], Iterator[Batch]],
    out: FolderOutput | FileOutput,
    ledger: str,
    engine: Engine,
    *,
    rejects: Path | None = None,
    progress: Progress | None = None,
) -> RunSummary:
    """Promise recourse to everybody in a table, and return how the rows ended.

    Parameters
    ----------
    job
        How rows are explained; it keeps the column of ids, ``id_column``.
    terms
        What is promised.
    batches, engine, rejects, progress
        As for ``run_table``.
    out
        A local folder or file.
    ledger
        The place of the ledger; a new one is made when all rows were read.
    """
    begun = out.is_begun
    if begun:
        check_begun(batches, out)
    missing = (batch for batch in batches(lambda share: None) if out.done(batch) is None)
    for _ in engine.map(partial(check_batch, job, id_column), missing):
        pass
    with Ledger(ledger, key=terms.key, create=not begun) as opened:
        target = _IssuingOutput(out, opened)
        task = partial(prepare_batch, job, id_column, terms)
        return run_table(task, batches, target, engine, rejects=rejects, progress=progress)


class _IssuingOutput:
    """An output that issues the promises of a batch before it writes the part."""

    def __init__(self, out: FolderOutput | FileOutput, ledger: Ledger) -> None:
        self.out, self.ledger = out, ledger
        self.identity = ledger.identity
        assert out.files.local is not None, "results of promises are written on this machine"
        self.folder: Path = out.files.local

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: whoever opened the folder closes it."""

    @property
    def is_begun(self) -> bool:
        """Return False: ``issue_table`` has compared the tables already."""
        return False

    is_stream = False

    def count(self) -> int:
        """Return how many batches are issued."""
        return self.out.count()

    def check_exact(self, names: Sequence[str]) -> None:
        """Refuse parts and drafts of other batches than these."""
        self.out.check_exact(names)

    def finish(self, records: Sequence[Record]) -> None:
        """Put the results of all batches in their place."""
        remove(self.folder / PREPARED)
        self.out.finish(records)

    def done(self, batch: Batch) -> Record | None:
        """Return the record of a batch that is issued, after its part was written (step 0)."""
        drafts = self._drafts(batch.name)
        for draft in drafts:
            self._check_ledger(_facts_in(draft)["ledger"] == self.identity, batch.name)
        record = self.out.done(batch)
        request = self._request(batch.name, batch.digest)
        if record is not None:
            known = not record.promises[1] or self.ledger.requested(request) is not None
            self._check_ledger(known, batch.name)
            self._discard(batch.name)  # the process was killed before it did
            return record
        # Whoever was cut off from the database may not know whether it has committed: wait for its end.
        issued = self.ledger.settled(request) if drafts else self.ledger.requested(request)
        return None if issued is None else self._publish(batch.name, batch.digest, issued)

    def write(self, result: BatchResult) -> Record:
        """Issue the promises of a batch and write its part (steps 2 to 4)."""
        if result.rows is None:
            return self.out.write(result)
        request = self._request(result.batch, result.digest)
        while True:
            try:
                issued = self._issue(result, request)
            except PromisedMeanwhileError:
                continue
            return self._publish(result.batch, result.digest, issued)

    def _issue(self, result: BatchResult, request: Request) -> Issued | None:
        """Write the draft, then commit the promises; None where there are none (steps 2 and 3)."""
        self._discard(result.batch)
        promised = self.ledger.without_duplicates(result.promised)
        draft = self._draft(result, promised)
        if not promised.records:
            return None
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
        facts = {
            "ledger": self.identity,
            "counts": {**result.counts, **promised.left_out, "promises": len(promised.rows)},
            "facts": dict(result.facts),
            "notes": result.notes.seen,
            "rejects": [result.rejects.columns, result.rejects.rows],
        }
        content = pa.BufferOutputStream()
        with pa.ipc.new_file(content, rows.schema.with_metadata({DRAFT: json.dumps(facts)})) as writer:
            writer.write_table(rows)
        data = content.getvalue().to_pybytes()
        digest = hashlib.sha256(data).hexdigest()
        with continuable():
            write_whole(self._place(result.batch, digest), data)
        return digest

    def _publish(self, name: str, digest: str, issued: Issued | None) -> Record:
        """Write the part of a batch from its draft and its request, and its record (step 4)."""
        drafts = self._drafts(name)
        place = drafts[0] if issued is None else self._place(name, (issued.answer or {})["draft"])
        if not place.exists():
            received = f"no {place}"
            remedy = "restore the file: the results of this batch are written nowhere else"
            raise LedgerError(message("the results of promises that were issued", received, remedy))
        with pa.OSFile(str(place)) as file:
            rows = pa.ipc.open_file(file).read_all()
        facts = json.loads(rows.schema.metadata[DRAFT])
        rows = _numbered(rows.replace_schema_metadata(None), issued)
        about = facts["facts"] | ({} if issued is None else {"expires": format_time(issued.expires)})
        columns, rejected = facts["rejects"]
        result = BatchResult(
            name,
            digest,
            rows,
            Counter(facts["counts"]),
            about,
            Notes({kind: (text, count) for kind, (text, count) in facts["notes"].items()}),
            Rejects(columns, [Reject(*row) for row in rejected]),
        )
        promises = (0, 0) if issued is None else (int(issued.sequence[0]), len(issued))
        record = self.out.write(result, promises)
        self._discard(name)
        return record

    def _request(self, name: str, digest: str) -> Request:
        """Return the request of a batch: under its key promises are issued once, whoever tries again."""
        return Request(f"{self.out.name}/{name}", digest.encode())

    def _check_ledger(self, known: bool, name: str) -> None:
        if not known:
            expected = f"the ledger that the run in {self.out} issued to"
            received = f"one without the promises to {name}"
            raise LedgerError(message(expected, received, "name that ledger, or another output"))

    def _place(self, name: str, digest: str) -> Path:
        return self.folder / PREPARED / f"{flat(name)}.{digest}"

    def _drafts(self, name: str) -> list[Path]:
        return [place for place in (self.folder / PREPARED).glob("*") if place.stem == flat(name)]

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


def _facts_in(draft: Path) -> dict[str, Any]:
    with pa.OSFile(str(draft)) as file:
        found: dict[str, Any] = json.loads(pa.ipc.open_file(file).schema.metadata[DRAFT])
    return found
