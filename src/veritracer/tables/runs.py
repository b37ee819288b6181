"""Run a job over tables: do the batches that are missing, and write their results.

A run can end at any moment and continues when the same command is repeated. In everything that is declared
invariant (docs/explanation/architecture.md) the rows are the same for every engine and every size of batches.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from veritracer.engines import Engine
from veritracer.errors import DataError, message
from veritracer.tables.jobs import Batch, BatchResult, Job, Reject
from veritracer.tables.outputs import Output
from veritracer.tables.writing import open_rejects

Progress = Callable[[int, float | None], None]
"""Called with the number of rows done, and the share of all tables that was read."""


@dataclass(frozen=True)
class RunSummary:
    """The outcome of a run.

    Attributes
    ----------
    results
        The results of all batches, without their rows.
    done_before
        How many of the batches an earlier run had done.
    """

    results: tuple[BatchResult, ...]
    done_before: int = 0

    @cached_property
    def counts(self) -> Counter[str]:
        """Return how many rows ended how."""
        counts: Counter[str] = Counter()
        for result in self.results:
            counts.update(result.counts)
        return counts

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Return what is the same for all batches, such as the set of models."""
        return {name: value for result in self.results for name, value in result.facts.items()}

    @cached_property
    def notes(self) -> list[str]:
        """Return what was noticed in the data: a sentence for each kind of warning."""
        sentences: dict[str, list[str]] = defaultdict(list)
        for result in self.results:
            for kind, sentence in result.warnings.items():
                sentences[kind].append(sentence)
        return [
            texts[0] + (f" (and {len(texts) - 1:,} more batches like it)" if len(texts) > 1 else "")
            for texts in sentences.values()
        ]

    @cached_property
    def rejects(self) -> list[Reject]:
        """Return the rows that could not be read, table by table."""
        return [reject for result in self.results for reject in sorted(result.rejects, key=_row_number)]

    @property
    def altered(self) -> int:
        """Return how many cells were changed to be safe for spreadsheets."""
        return sum(result.altered for result in self.results)


def _row_number(reject: Reject) -> int:
    return reject.number


def do_batch(job: Job, batch: Batch) -> BatchResult:
    """Do a batch; torch is imported for the first one."""
    from veritracer.tables import batches
    from veritracer.threads import only_compute

    only_compute()
    return batches.VERBS[job.verb](job, batch)


def run_table(
    task: Callable[[Batch], BatchResult],
    batches: Callable[[], Iterator[Batch]],
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
        for _ in missing_batches(batches, out):
            pass
    results: dict[str, BatchResult | None] = {}  # in the order of the batches
    rows = done_before = 0
    share: float | None = None

    def missing() -> Iterator[Batch]:
        nonlocal rows, done_before, share
        for batch in batches():
            results[batch.name] = record = out.done(batch)
            share = batch.share
            if record is None:
                yield batch
            else:
                rows, done_before = rows + record.counts["rows"], done_before + 1

    with open_rejects(rejects) as rejected:
        waiting = missing()
        first = next(waiting, None)  # before the engine starts: most mistakes are noticed here
        for result in engine.map(task, () if first is None else chain([first], waiting)):
            results[result.name] = out.write(result)
            rows += result.counts["rows"]
            if progress is not None:
                progress(rows, share)
        out.check_exact(results)
        summary = RunSummary(tuple(result for result in results.values() if result), done_before)
        if summary.rejects and not summary.counts["rows"]:
            received = f"none of {len(summary.rejects):,}; the first: {summary.rejects[0].reason}"
            raise DataError(message("at least one row that can be read", received, "correct them"))
        if rejected is not None:
            rejected += summary.rejects
    out.finish(summary.results)
    return summary


def missing_batches(batches: Callable[[], Iterator[Batch]], out: Output) -> Iterator[Batch]:
    """Yield the batches that are not done; refuse results of other batches than these at the end."""
    names = []
    for batch in batches():
        names.append(batch.name)
        if out.done(batch) is None:
            yield batch
    out.check_exact(names)
