"""``issue``: promise recourse to everybody in a table, and keep the promises in a ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import veritracer as vt
from veritracer import tables
from veritracer.app.cli.explain import Rules, Sentences
from veritracer.app.cli.options import Applicants, KeyFile, ModelFolder, with_flags
from veritracer.app.cli.places import model_columns, read_key, read_schema
from veritracer.app.cli.runs import TableOptions, recourse_lines
from veritracer.errors import DataError, message
from veritracer.options import IssueOptions

if TYPE_CHECKING:
    from veritracer.tables import RunSummary

LEFT_OUT = {
    "uncertified": "{} left out: not certified, or not accepted by the panel.",
    "outgrown": "{} left out: not certified until the promise would end (--term, --expires).",
    "out_of_range": "{} left out: a number is far outside the range of the training rows.",
    "repeated": "{} left out: the same application has a promise (--allow-duplicate).",
}


@with_flags
def issue(
    model: ModelFolder,
    table: Applicants,
    *,
    options: IssueOptions,
    schema: Rules = None,
    sentences: Sentences = False,
    key_file: KeyFile = None,
    rows: TableOptions,
) -> None:
    """Promise certified counterfactuals, and record them in a ledger.

    --out is required: a file or a folder on this machine for the counterfactuals and the numbers of their
    promises. By default only certified counterfactuals are promised. All rows are read before the first
    promise; promises are then issued batch by batch. If the command is stopped, repeat it: it continues, and
    promises nothing twice. The last line is the head of the ledger: with a copy kept elsewhere, veritracer
    verify detects whether the end of the ledger was cut off or rewritten.
    """
    from veritracer.tables.issuing import issue_table, terms_of  # here: it imports torch

    if key_file is not None:
        options = replace(options, key=read_key(key_file))
    terms_of(options)  # refused before the output is opened
    _check_places(table, rows.out)
    assert rows.out is not None
    known, keep = model_columns(model), rows.kept(options.ids)
    rows.check_outputs()

    def check(source: str, columns: Sequence[str]) -> None:
        tables.check_ids(source, columns, options.ids)
        tables.check_columns(source, columns, known, keep, rows.ignored)

    inputs = rows.inputs(table, check)
    inputs.check_first()
    rules = None if schema is None else read_schema(schema)
    job = rows.job(
        "explain", model, asdict(options.of_explain()), keep=keep, sentences=sentences, rules=rules
    )
    out = rows.open_output({**job.document(), **_document(options)}, inputs)
    if not isinstance(out, tables.RunFolder):
        raise DataError(message("a file or folder for the results", f"{rows.out}", "name a regular file"))
    is_finished = out.is_finished
    with rows.running("issuing", out) as watch:
        engine = rows.engine_for(inputs, in_order=False)
        found = issue_table(job, options, inputs.batches, out, engine, rejects=rows.rejects, progress=watch)
    rows.print_notes(found)
    with vt.Ledger(options.ledger) as ledger:
        _print_issued(found, rows, ledger.head, is_finished=is_finished)


def _check_places(table: str, out: str | None) -> None:
    """Refuse tables that cannot be read again, and results that are not on this machine's disk."""
    if table == tables.STANDARD:
        remedy = "save it as a file first"
        raise DataError(message("tables that can be read again", "standard input", remedy))
    if out is None or out == tables.STANDARD:
        remedy = "add --out FILE: what the promises say is written nowhere else"
        raise DataError(message("a file or folder for the results", "none", remedy))
    if tables.is_url(out):
        remedy = "name one: promises are issued when their results are on this machine's disk"
        raise DataError(message("a local file or folder", tables.without_password(out), remedy))


def _document(options: IssueOptions) -> dict[str, Any]:
    """Return what a repetition has to repeat; a digest stands for the ledger's URL, and no key is in it."""
    given = asdict(options)
    del given["key"]
    ledger = given.pop("ledger")
    place = ledger if tables.is_url(ledger) else str(Path(ledger).absolute())
    digest = hashlib.sha256(tables.without_password(place).encode()).hexdigest()
    return {"verb": "issue", "expires": str(given.pop("expires")), "options": given, "ledger": digest}


def _print_issued(found: RunSummary, rows: TableOptions, head: str, *, is_finished: bool) -> None:
    counts = found.counts
    numbers = _numbers(found)
    ends = dict(zip(("first", "last"), numbers, strict=False))
    lines = [
        *recourse_lines(found),
        _promised(counts["promises"], numbers, found.facts.get("expires")),
        *_left_out(counts),
        f"The recourse: {rows.out}" + (", complete before and left as it is" if is_finished else ""),
    ]
    rows.print_summary(found, [*lines, f"The head, to be noted elsewhere: {head}"], **ends, head=head)


def _numbers(found: RunSummary) -> list[int]:
    """Return the first and the last number of what was issued."""
    issued = sorted(record.promises for record in found.results if record.promises[1])
    return [issued[0][0], sum(issued[-1]) - 1] if issued else []


def _promised(count: int, numbers: list[int], expires: str | None) -> str:
    said = f"{_count(count, 'promise')} issued"
    if not numbers:
        return f"{said}."
    first, last = numbers
    said += f" (number {first:,})" if first == last else f" (numbers {first:,} to {last:,})"
    end = "never" if expires == "never" else f"on {str(expires)[:10]}"
    return f"{said}; they end {end}."


def _left_out(counts: Mapping[str, int]) -> list[str]:
    """Say what became no promise, in a sentence for each reason but that there is no recourse."""
    return [text.format(_count(counts[name], "answer")) for name, text in LEFT_OUT.items() if counts[name]]


def _count(number: int, what: str) -> str:
    return f"{number:,} {what} was" if number == 1 else f"{number:,} {what}s were"
