"""``issue``: promise recourse to everybody in a table, and keep the promises in a ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import veritracer as vt
from veritracer import distributed, model_folder, streaming, tables
from veritracer.app.cli.checks import check_openings
from veritracer.app.cli.options import (
    Applicants,
    KeyFile,
    ModelFolder,
    RecourseTableOptions,
    RunOptions,
    print_outcome,
    read_key,
    saved_model,
    with_flags,
)
from veritracer.app.cli.output import note, outcome_lines, print_json, progress, say
from veritracer.options import ExplainOptions, IssueOptions, yearly_drift
from veritracer.times import format_time

if TYPE_CHECKING:
    from veritracer.ledger import Issued
    from veritracer.schema import Schema
    from veritracer.streaming import Explained, IssueTerms, PendingOutputs


class IssueRequest(NamedTuple):
    """The arguments of one command."""

    model: str
    table: str
    options: IssueOptions
    rows: RecourseTableOptions
    key: str | None

    def terms(self) -> IssueTerms:
        """Return the terms of the promises; torch is imported for it."""
        given = self.options
        return streaming.IssueTerms(
            given.ids, given.expires, given.original, self.key, given.uncertified, given.allow_duplicate
        )

    def explain_options(self, schema: Schema) -> dict[str, Any]:
        """Return the options of ``explain``, with the drift that the schema states until promises end."""
        until = self.options.expires
        left = until - datetime.now(UTC) if isinstance(until, datetime) else until
        drift = yearly_drift(schema, 1.0 if left is None else left / timedelta(days=365))
        given = {field.name: getattr(self.options, field.name) for field in fields(ExplainOptions)}
        return {**given, "drift": {**drift, **self.options.drift}}


@with_flags
def issue(
    model: ModelFolder,
    table: Applicants,
    options: IssueOptions,
    rows: RecourseTableOptions,
    run: RunOptions,
    key_file: KeyFile = None,
) -> None:
    """Promise every declined row a certified counterfactual near it, and keep the promise in a ledger.

    Either all promises are issued or none; by default a counterfactual that is not certified becomes no
    promise. If the command is interrupted, repeat it: it completes the files of promises that were issued, or
    starts again. With --workers or --engine ray, or for a folder or pattern of tables, this holds for each
    block: --out is a folder with a file for each, and the same command continues a run that was stopped,
    without promising anything twice. The last line is the head of the ledger: with a copy kept elsewhere,
    veritracer verify detects whether the end of the ledger was cut off or rewritten.
    """
    key = None if key_file is None else read_key(key_file)
    asked = IssueRequest(model, table, options, rows, key)
    if run.wanted(table, rows.query):
        run.refuse({"--rejects": rows.rejects})
        _issue_in_blocks(asked, run)
        return
    outputs = {"out": rows.out, "rejects": rows.rejects}
    pending = streaming.PendingOutputs(outputs, lambda: _identified(asked))
    if not (pending.is_left and _finished(asked, pending)):
        rows.check(table, options.ledger)
        check_openings(rows.out, force=rows.force)
        pending.check(allow_duplicate=options.allow_duplicate, original=options.original)
        _issue_table(asked, pending)


def _identified(asked: IssueRequest) -> dict[str, Any]:
    """Return what a repetition of the command has to repeat."""
    rows = asked.rows
    rules = None if rows.rules is None else rows.rules.to_json()
    given: dict[str, Any] = {"model": distributed.model_digest(asked.model), "rules": rules}
    options = asdict(asked.options) | {"expires": str(asked.options.expires)}
    del options["ledger"]  # its URL may contain a password
    given |= {"options": options}
    given |= {"keep": rows.kept(), "ignore": rows.ignored, "sentences": rows.sentences}
    return given | {
        "query": rows.query,
        "csv": asdict(rows.csv),
        "spreadsheet_safe": rows.spreadsheet_safe,
    }


def _finished(asked: IssueRequest, pending: PendingOutputs) -> bool:
    """Complete the files of an earlier command that had issued all promises; return whether it had."""
    rows = asked.rows

    def digest() -> str:
        ragged = None if rows.rejects is None else (lambda *_: None)
        with tables.open_table(asked.table, rows.query, csv=rows.csv, ragged=ragged) as table:
            return streaming.table_digest(table)

    model_folder.verified(asked.model)
    with vt.Ledger(asked.options.ledger, create=False) as place:
        found = pending.resume(place, digest)
    if found is None:
        return False
    said = "an earlier command had issued these promises: its files were completed, and nothing was issued"
    note([said, *found.notes], quiet=rows.quiet)
    print_summary(found.explained, found.issued, rows)
    return True


def _issue_table(asked: IssueRequest, pending: PendingOutputs) -> None:
    """Issue for one table in this process."""
    rows, keep = asked.rows, asked.rows.kept()
    known = model_folder.columns(asked.model)
    with ExitStack() as stack:
        stack.enter_context(pending)
        opened = stack.enter_context(
            rows.opened(asked.table, known, keep, ids=[asked.options.ids], pending=pending)
        )
        loaded = saved_model(asked.model)
        place = stack.enter_context(vt.Ledger(asked.options.ledger))
        explained, issued = streaming.issue_table(
            loaded.recourse(rows.rules),
            pending.watched(opened.source),
            opened.sink,
            place,
            asked.terms(),
            request=pending.request(
                place, lambda found: rows.notes(found.notes, opened.sink, opened.rejected)
            ),
            numbered=pending.numbered,
            options=asked.explain_options(rows.rules or loaded.schema_),
            keep=keep,
            sentences=rows.sentences,
            watch=stack.enter_context(progress("issuing", quiet=rows.quiet)),
            ignore=rows.ignored,
            rejects=opened.rejected,
        )
        pending.publish()
    note(rows.notes(explained.notes, opened.sink, opened.rejected), quiet=rows.quiet)
    print_summary(explained, issued, rows)


def _issue_in_blocks(asked: IssueRequest, run: RunOptions) -> None:
    """Issue for many tables, or for one on many cores: the promises of a block together, and once."""
    rows, options = asked.rows, asked.options
    engine = run.engine_for()
    question = run.question(
        asked.model,
        asked.explain_options(rows.rules or saved_model(asked.model).schema_),
        keep=tuple(rows.kept()),
        ignore=tuple(rows.ignored),
        sentences=rows.sentences,
        rules=rows.rules,
        spreadsheet_safe=rows.spreadsheet_safe,
    )
    inputs = run.inputs(asked.table, rows)
    given = {"ledger": options.ledger, "id_column": options.ids, "original": options.original}
    folder = run.folder(
        rows.out, {**question.asked("issue", inputs), **given, "expires": str(options.expires)}
    )
    args = question, inputs, folder, engine, options.ledger, asked.terms()
    outcome = run.run("issuing", distributed.issue_blocks, *args, folder=folder, quiet=rows.quiet)
    with vt.Ledger(options.ledger) as place:
        head = place.head
    lines = [
        *outcome_lines(cast("Explained", outcome.ended)),
        f"{outcome.promises:,} promises are issued in this run.",
        *_left_out(outcome.left_out),
        f"The head, to be noted elsewhere: {head}",
    ]
    print_outcome(outcome, rows, lines)


def print_summary(explained: Explained, issued: Issued, rows: RecourseTableOptions) -> None:
    """Print how the rows ended, and the head."""
    if rows.as_json:
        numbers = {"first": int(issued.sequence[0]), "last": int(issued.sequence[-1])} if len(issued) else {}
        until = {"expires": format_time(issued.expires)}
        print_json(
            {
                "promises": len(issued),
                **issued.left_out,
                **numbers,
                **until,
                "head": issued.head,
                "out": rows.out,
            }
            | asdict(explained)
        )
    elif not rows.quiet:
        say(
            *outcome_lines(explained),
            f"{_count(len(issued), 'promise')} issued{_numbers(issued)}"
            + (f"; they end {_end(issued.expires)}." if len(issued) else "."),
            *_left_out(issued.left_out),
            *([] if rows.out is None else [f"The recourse: {rows.out}"]),
            f"The head, to be noted elsewhere: {issued.head}",
        )


def _left_out(counts: Mapping[str, int]) -> list[str]:
    """Say what became no promise, in a sentence for each reason but that there is no recourse."""
    lines = []
    if uncertified := counts["uncertified"]:
        lines.append(f"{_count(uncertified, 'answer')} left out: not certified, or not believed.")
    if repeated := counts["repeated"]:
        lines.append(
            f"{_count(repeated, 'answer')} left out: the same application has a promise (--allow-duplicate)."
        )
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what} was" if number == 1 else f"{number:,} {what}s were"


def _end(expires: float) -> str:
    return "never" if math.isinf(expires) else f"on {format_time(expires)[:10]}"


def _numbers(issued: Issued) -> str:
    """The numbers of what was issued, in brackets."""
    if len(issued) < 2:
        return f" (number {issued.sequence[0]:,})" if len(issued) else ""
    return f" (numbers {issued.sequence[0]:,} to {issued.sequence[-1]:,})"
