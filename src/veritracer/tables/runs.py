"""Run a job over tables: do the batches that are missing, and write their results.

A run can end at any moment and continues when the same command is repeated. In everything that is declared
invariant (docs/explanation/architecture.md) the rows are the same for every engine and every size of batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from veritracer.engines import Engine
from veritracer.errors import DataError, message
from veritracer.tables.inputs import Tell
from veritracer.tables.jobs import Batch, BatchResult, Job
from veritracer.tables.notes import Notes
from veritracer.tables.outputs import Output
from veritracer.tables.rejects import Reject, Rejects, rejects_file
from veritracer.tables.run_folder import Record

Progress = Callable[[int, float | None], None]
"""Called with the number of rows done, and the share of all tables that was read."""


@dataclass(frozen=True)
class RunSummary:
    """The outcome of a run.

    Attributes
    ----------
    batches, done_before
        The batches, and how many of them an earlier run had done.
    counts
        How many rows ended how.
    facts
        What is the same for all of them, such as the set of models.
    notes
        What was noticed in the data, in sentences.
    rejected
        How many rows could not be read, and the reason of the first.
    altered
        Cells that were changed to be safe for spreadsheets.
    records
        The records of all batches.
    """

    batches: int
    done_before: int
    counts: Counter[str]
    facts: dict[str, Any]
    notes: tuple[str, ...]
    rejected: tuple[int, str] = (0, "")
    altered: int = 0
    records: tuple[Record, ...] = ()

    @classmethod
    def of(cls, records: Sequence[Record], done_before: int) -> RunSummary:
        """Put the records of all batches together."""
        counts: Counter[str] = Counter()
        facts: dict[str, Any] = {}
        notes = Notes()
        for record in records:
            counts.update(record.counts)
            facts |= record.facts
            notes.merge(Notes({kind: (text, count) for kind, (text, count) in record.notes.items()}))
        rejected = [reason for record in records for _, reason, _ in record.rejects[1]]
        first = len(rejected), rejected[0] if rejected else ""
        altered = sum(record.altered for record in records)
        return cls(
            len(records), done_before, counts, facts, tuple(notes.sentences()), first, altered, tuple(records)
        )


def do_batch(job: Job, batch: Batch) -> BatchResult:
    """Do a batch; torch is imported for the first one."""
    from veritracer.tables import batches
    from veritracer.threads import only_compute

    only_compute()
    return batches.VERBS[job.verb](job, batch)


def run_table(
    task: Callable[[Batch], BatchResult],
    batches: Callable[[Tell], Iterator[Batch]],
    out: Output,
    engine: Engine,
    *,
    rejects: Path | None = None,
    progress: Progress | None = None,
) -> RunSummary:
    """Do all batches that are not done yet, and return how all of them ended.

    Parameters
    ----------
    task
        What is done with a batch, such as ``partial(do_batch, job)``.
    batches
        Returns the batches of all tables; called twice for a run that continues.
    out
        Where results go, such as ``open_output`` returns.
    engine
        Where batches are done.
    rejects
        The file for rows that could not be read.
    progress
        Called after each batch.
    """
    if out.is_begun:
        check_begun(batches, out)
    places: dict[str, int] = {}
    records: list[Record] = []
    share: list[float | None] = [None]
    done = before = 0

    def missing() -> Iterator[Batch]:
        nonlocal done, before
        for batch in batches(lambda read: share.__setitem__(0, read)):
            places[batch.name] = len(places)
            record = out.done(batch)
            if record is None:
                yield batch
            else:
                records.append(record)
                done, before = done + record.counts["rows"], before + 1

    with ExitStack() as stack:
        found = None if rejects is None else stack.enter_context(rejects_file(rejects))
        todo = missing()
        first = next(todo, None)  # before the engine starts: most mistakes are noticed here
        for result in engine.map(task, () if first is None else chain([first], todo)):
            records.append(out.write(result))
            done += result.counts["rows"]
            if progress is not None:
                progress(done, share[0])
        records.sort(key=lambda record: places[record.name])
        out.check_exact(list(places))
        summary = RunSummary.of(records, before)
        _check_readable(summary)
        if found is not None:
            found += [_rejects_of(record) for record in records]
    out.finish(records)
    return summary


def check_begun(batches: Callable[[Tell], Iterator[Batch]], out: Output) -> None:
    """Refuse to continue a run with other tables, before anything is done."""
    names = []
    for batch in batches(lambda share: None):
        out.done(batch)
        names.append(batch.name)
    out.check_exact(names)


def _check_readable(summary: RunSummary) -> None:
    count, reason = summary.rejected
    if count and not summary.counts["rows"]:
        received = f"none of {count:,}; the first: {reason}"
        raise DataError(message("at least one row that can be read", received, "correct them"))


def _rejects_of(record: Record) -> Rejects:
    columns, rows = record.rejects
    return Rejects(columns, sorted(Reject(*row) for row in rows))
