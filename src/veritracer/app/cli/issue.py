"""``veritracer issue``: recourse for everybody in a table, as promises in the ledger."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

import veritracer as vt
from veritracer import distributed, model_folder, streaming, tables
from veritracer.app.cli import options as typed
from veritracer.app.cli.asking import Asked
from veritracer.app.cli.options import (
    Bulk,
    ReadOptions,
    amounts,
    check_openings,
    drifts,
    letter_terms,
    names,
    print_outcome,
    read_key,
    saved_model,
    schema_file,
)
from veritracer.app.cli.output import note, outcome_lines, print_json, progress, say
from veritracer.options import BLOCK_ROWS, PROMISE_TERM, IssueOptions
from veritracer.times import format_time, parse_expiry

if TYPE_CHECKING:
    from veritracer.ledger import Issued
    from veritracer.schema import Schema
    from veritracer.streaming import Explained, IssueTerms, LetterTerms, PendingOutputs


def issue(
    model: typed.ModelFolder,
    table: typed.Applicants,
    ledger: typed.LedgerPlace,
    id_column: Annotated[
        str, typer.Option(metavar="NAME", help="The column that says whose each row is.", show_default=False)
    ],
    expires: Annotated[
        str, typer.Option(help="Until when promises hold: 365d, 52w, 1y, a date, or never.")
    ] = f"{PROMISE_TERM.days}d",
    require_certified: Annotated[
        bool,
        typer.Option(
            "--require-certified/--advice",
            help="Leave out what is not certified, or keep it as advice, which is no promise.",
        ),
    ] = IssueOptions.uncertified == "skip",
    allow_duplicate: Annotated[
        bool,
        typer.Option(
            "--allow-duplicate", help="Promise again what the same application was promised already."
        ),
    ] = IssueOptions.allow_duplicate,
    original: Annotated[
        Literal["plain", "encrypted", "commitment"],
        typer.Option(help="How people's own rows are kept: plain, encrypted or commitment."),
    ] = "plain",
    key_file: typed.KeyFile = None,
    out: Annotated[
        str | None,
        typer.Option(help="Also write the recourse: CSV, Parquet or JSON lines.", show_default=False),
    ] = None,
    kappa: typed.Kappa = None,
    max_changes: typed.MaxChanges = None,
    cost: typed.Cost = None,
    overshoot: typed.Overshoot = 0.0,
    drift: typed.Drift = None,
    agreement: typed.Agreement = None,
    plausible: typed.Plausible = False,
    limit: typed.Limits = None,
    extremes: typed.Extremes = False,
    n: typed.Alternatives = 1,
    schema: typed.Rules = None,
    letters: typed.Letters = None,
    codes: typed.Codes = None,
    template: typed.LetterTemplate = None,
    letter_format: typed.LetterFormat = None,
    field: typed.LetterFields = None,
    field_column: typed.LetterColumns = None,
    language: typed.LetterLanguage = "en",
    pdf: typed.Pdf = False,
    keep: typed.Keep = None,
    ignore: typed.Ignore = None,
    rejects: typed.RejectsFile = None,
    sentences: typed.Sentences = False,
    spreadsheet_safe: typed.SpreadsheetSafe = False,
    separator: typed.Separator = None,
    encoding: typed.TextEncoding = "utf-8",
    multiline_cells: typed.MultilineCells = False,
    query: typed.Query = None,
    engine: typed.EngineName = "local",
    workers: typed.Workers = None,
    block_rows: typed.BlockRows = BLOCK_ROWS,
    block_format: typed.BlockFormat = "parquet",
    force: typed.Force = False,
    quiet: typed.Quiet = False,
    as_json: typed.AsJson = False,
) -> None:
    """Promise every declined row a certified counterfactual near it, and keep the promise in a ledger.

    All of them are issued, or none is; what is not certified becomes no promise. If the command is
    interrupted, repeat it: it completes the files of promises that were issued, or begins anew. With
    --workers or --engine ray, or for a folder or pattern of tables, this holds for each block: --out is a
    folder with a file for each, and the same command goes on where a run was stopped, without promising
    anything twice. The last line is the head of the ledger: noted elsewhere, it shows in veritracer verify
    whether the ledger's end was cut off or rewritten.
    """
    until = parse_expiry(expires)
    key = None if key_file is None else read_key(key_file)
    options: dict[str, Any] = {
        "kappa": kappa,
        "max_changes": max_changes,
        "cost": amounts("--cost", cost),
        "overshoot": overshoot,
        "drift": drifts("--drift", drift),
        "agreement": agreement,
        "plausible": plausible,
        "limits": amounts("--limit", limit),
        "extremes": extremes,
        "n": n,
    }
    asked = Asked(
        table=table,
        out=out,
        options=options,
        keep=names(keep),
        ignore=names(ignore),
        rules=None if schema is None else schema_file(schema),
        sentences=sentences,
        rejects=rejects,
        spreadsheet_safe=spreadsheet_safe,
        reading=ReadOptions.of(separator, encoding, multiline_cells, query),
        quiet=quiet,
        as_json=as_json,
    )
    uncertified: Literal["skip", "advice"] = "skip" if require_certified else "advice"

    def terms() -> IssueTerms:  # torch comes with it: not before the table is looked at
        return streaming.IssueTerms(id_column, until, original, key, uncertified, allow_duplicate)

    bulk = Bulk(engine, workers, block_rows, block_format)
    if bulk.wanted(table, query):
        bulk.refuse({"--letters": letters, "--rejects": rejects})
        _in_blocks(asked, model, bulk, ledger, terms())
        return
    own = {
        "id_column": id_column,
        "expires": expires,
        "original": original,
        "allow_duplicate": allow_duplicate,
    }
    own |= {"uncertified": uncertified, "language": language, "pdf": pdf}
    own |= {"codes": codes, "template": template, "letter_format": letter_format}
    own |= {"field": field, "field_column": field_column}
    outputs = {"out": out, "rejects": rejects, "letters": letters}
    pending = streaming.PendingOutputs(outputs, lambda: {**_identified(asked, model), **own})
    if not (pending.is_left and _finished(asked, pending, model, ledger)):
        asked.check(ledger, force=force)
        check_openings(out, force=force)
        pending.check(allow_duplicate=allow_duplicate, original=original)
        wanted = letter_terms(letters, codes, template, letter_format, field, field_column, language, pdf)
        _at_hand(asked, model, ledger, id_column, terms, wanted, pending)
    if letters is not None and not (quiet or as_json):
        say(f"The letters: {letters}")


def _identified(asked: Asked, model: str) -> dict[str, Any]:
    """What was asked about the rows, of which model: what a repetition has to ask too."""
    rules = None if asked.rules is None else asked.rules.to_json()
    said = {name: getattr(asked, name) for name in ("options", "keep", "ignore", "sentences")}
    said |= {"query": asked.reading.query, "csv": asdict(asked.reading.csv)}
    said["spreadsheet_safe"] = asked.spreadsheet_safe
    return {"model": distributed.model_digest(model), "rules": rules, **said}


def _finished(asked: Asked, pending: PendingOutputs, model: str, ledger: str) -> bool:
    """Whether an earlier command had issued all this: then its files are in their places now."""

    def rows() -> str:
        ragged = None if asked.rejects is None else (lambda *_: None)
        with tables.open_table(
            asked.table, asked.reading.query, csv=asked.reading.csv, ragged=ragged
        ) as table:
            return streaming.table_digest(table)

    model_folder.verified(model)
    with vt.Ledger(ledger, create=False) as place:
        found = pending.resume(place, rows)
    if found is None:
        return False
    said = "an earlier command had issued these promises: its files were completed, and nothing was issued"
    note([said, *found.notes], quiet=asked.quiet)
    print_summary(found.explained, found.issued, asked.out, quiet=asked.quiet, as_json=asked.as_json)
    return True


def _at_hand(
    asked: Asked,
    model: str,
    ledger: str,
    id_column: str,
    terms: Callable[[], IssueTerms],
    letters: LetterTerms | None,
    pending: PendingOutputs,
) -> None:
    """Issue for one table in this process."""
    known = model_folder.columns(model)
    with ExitStack() as stack:
        stack.enter_context(pending)
        opened = stack.enter_context(asked.opened(known, letters, ids=[id_column], pending=pending))
        loaded = saved_model(model)
        promised = terms()
        drifting = _drifting(asked, asked.rules or loaded.schema_, promised)
        place = stack.enter_context(vt.Ledger(ledger))
        explained, issued = streaming.issue_table(
            loaded.recourse(asked.rules),
            pending.watched(opened.source),
            opened.sink,
            place,
            promised,
            request=pending.request(place, lambda found: asked.notes(found.notes, opened)),
            numbered=pending.numbered,
            options=drifting.options,
            keep=asked.keep,
            sentences=asked.sentences,
            watch=stack.enter_context(progress("issuing", quiet=asked.quiet)),
            letters=opened.letters,
            ignore=asked.ignore,
            rejects=opened.rejected,
        )
        pending.publish()
    asked.tell(explained.notes, opened)
    print_summary(explained, issued, asked.out, quiet=asked.quiet, as_json=asked.as_json)


def _yearly(schema: Schema, until: timedelta | datetime | None) -> dict[str, tuple[float, float]]:
    """What changes by itself while promises hold; in one year where there is no end."""
    from veritracer.options import yearly_drift

    left = until - datetime.now(UTC) if isinstance(until, datetime) else until
    return yearly_drift(schema, 1.0 if left is None else left / timedelta(days=365))


def _drifting(asked: Asked, schema: Schema, promised: IssueTerms) -> Asked:
    """The same question, with what changes by itself until promises end."""
    drift = {**_yearly(schema, promised.expires), **asked.options["drift"]}
    return asked._replace(options={**asked.options, "drift": drift})


def _in_blocks(asked: Asked, model: str, bulk: Bulk, ledger: str, promised: IssueTerms) -> None:
    """Issue for many tables, or for one on many cores: the promises of a block together, and once."""
    engine = bulk.engine_for()
    asked = _drifting(asked, asked.rules or saved_model(model).schema_, promised)
    question, inputs = asked.question(model, bulk), bulk.inputs(asked.table, asked.reading)
    said = {"ledger": ledger, "id_column": promised.id_column, "original": promised.original}
    folder = bulk.folder(
        asked.out, {**question.asked("issue", inputs), **said, "expires": str(promised.expires)}
    )
    args = question, inputs, folder, engine, ledger, promised
    outcome = bulk.run("issuing", distributed.issue_blocks, *args, folder=folder, quiet=asked.quiet)
    with vt.Ledger(ledger) as place:
        head = place.head
    lines = [
        *outcome_lines(cast("Explained", outcome.ended)),
        f"{outcome.promises:,} promises are issued in this run.",
        *_left_out(outcome.left_out),
        f"The head, to be noted elsewhere: {head}",
    ]
    print_outcome(outcome, asked.out, lines, quiet=asked.quiet, as_json=asked.as_json)


def print_summary(
    explained: Explained, issued: Issued, out: str | None, *, quiet: bool, as_json: bool
) -> None:
    """Print how the rows ended, and the head."""
    if as_json:
        numbers = {"first": int(issued.sequence[0]), "last": int(issued.sequence[-1])} if len(issued) else {}
        until = {"expires": format_time(issued.expires)}
        promises = len(issued) - issued.advice
        print_json(
            {"promises": promises, **issued.left_out, **numbers, **until, "head": issued.head, "out": out}
            | asdict(explained)
        )
    elif not quiet:
        say(
            *outcome_lines(explained),
            f"{_count(len(issued) - issued.advice, 'promise')} issued{_numbers(issued)}"
            + (f"; they end {_end(issued.expires)}." if len(issued) else "."),
            *_left_out(issued.left_out),
            *([] if out is None else [f"The recourse: {out}"]),
            f"The head, to be noted elsewhere: {issued.head}",
        )


def _left_out(counts: Mapping[str, int]) -> list[str]:
    """Say what became no promise, in a sentence for each reason but that there is no recourse."""
    lines = []
    if advice := counts["advice"]:
        lines.append(f"{advice:,} of these entries are advice: not certified, and no promise.")
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
