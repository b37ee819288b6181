"""``veritracer issue``: recourse for everybody in a table, as promises in the ledger."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

import veritracer as vt
from veritracer import distributed, persistence, streaming, tablefiles
from veritracer.cli.describing import check_rejects
from veritracer.cli.options import (
    Agreement,
    Alternatives,
    Applicants,
    AsJson,
    BlockFormat,
    BlockRows,
    Bulk,
    Codes,
    Cost,
    Drift,
    EngineName,
    Extremes,
    Force,
    Ignore,
    Kappa,
    Keep,
    KeyFile,
    LedgerPlace,
    LetterColumns,
    LetterFields,
    LetterFormat,
    LetterLanguage,
    Letters,
    LetterTemplate,
    Limits,
    MaxChanges,
    ModelFolder,
    Overshoot,
    Pdf,
    Plausible,
    Quiet,
    RejectsFile,
    Rules,
    Sentences,
    Separator,
    SpreadsheetSafe,
    Workers,
    amounts,
    check_output,
    drifts,
    letter_terms,
    names,
    open_applicants,
    print_outcome,
    read_key,
    saved_model,
    schema_file,
)
from veritracer.cli.printing import note, percent, print_json, progress, say
from veritracer.defaults import BLOCK_ROWS, PROMISE_DAYS
from veritracer.errors import DataError, message
from veritracer.ledger.times import in_words, read_expiry

if TYPE_CHECKING:
    from veritracer.distributed import Question
    from veritracer.ledger import Issued
    from veritracer.schema import Schema
    from veritracer.streaming import Explained, IssueTerms, LetterTerms
    from veritracer.tablefiles import Sink


def issue(
    model: ModelFolder,
    table: Applicants,
    ledger: LedgerPlace,
    id_column: Annotated[
        str, typer.Option(metavar="NAME", help="The column that says whose each row is.", show_default=False)
    ],
    expires: Annotated[
        str, typer.Option(help="Until when promises hold: 365d, 52w, 1y, a date, or never.")
    ] = f"{PROMISE_DAYS}d",
    require_certified: Annotated[
        bool,
        typer.Option(
            "--require-certified/--advice",
            help="Leave out what is not certified, or keep it as advice, which is no promise.",
        ),
    ] = True,
    again: Annotated[
        bool, typer.Option("--again", help="Promise again what the same application was promised already.")
    ] = False,
    original: Annotated[
        Literal["plain", "encrypted", "commitment"],
        typer.Option(help="How people's own rows are kept: plain, encrypted or commitment."),
    ] = "plain",
    key_file: KeyFile = None,
    out: Annotated[
        str | None,
        typer.Option(help="Also write the recourse: CSV, Parquet or JSON lines.", show_default=False),
    ] = None,
    kappa: Kappa = None,
    max_changes: MaxChanges = None,
    cost: Cost = None,
    overshoot: Overshoot = 0.0,
    drift: Drift = None,
    agreement: Agreement = None,
    plausible: Plausible = False,
    limit: Limits = None,
    extremes: Extremes = False,
    n: Alternatives = 1,
    schema: Rules = None,
    letters: Letters = None,
    codes: Codes = None,
    template: LetterTemplate = None,
    letter_format: LetterFormat = None,
    field: LetterFields = None,
    field_column: LetterColumns = None,
    language: LetterLanguage = "en",
    pdf: Pdf = False,
    keep: Keep = None,
    ignore: Ignore = None,
    rejects: RejectsFile = None,
    sentences: Sentences = False,
    spreadsheet_safe: SpreadsheetSafe = False,
    separator: Separator = ",",
    engine: EngineName = "local",
    workers: Workers = None,
    block_rows: BlockRows = BLOCK_ROWS,
    block_format: BlockFormat = "parquet",
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Promise every declined row its closest certified counterfactual, and keep the promise in a ledger.

    All of them are issued, or none is; what is not certified becomes no promise. With --workers or --engine
    ray, or for a folder or pattern of tables, this holds for each block: --out is a folder with a file for
    each, and the same command goes on where a run was stopped, without promising anything twice. The last
    line is the head of the ledger: noted elsewhere, it shows in veritracer verify whether the ledger's end
    was cut off or rewritten.
    """
    until = read_expiry(expires)
    key = None if key_file is None else read_key(key_file)
    rules = None if schema is None else schema_file(schema)
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
    kept, unseen, known = names(keep), names(ignore), persistence.columns(model)
    uncertified: Literal["skip", "advice"] = "skip" if require_certified else "advice"
    promised = id_column, until, original, key, uncertified, again
    bulk = Bulk(engine, workers, block_rows, block_format)
    if bulk.wanted(table):
        bulk.refuse({"--letters": letters, "--rejects": rejects})
        options["drift"] = {**_yearly(rules or saved_model(model).schema_, until), **options["drift"]}
        question = bulk.question(
            model,
            options,
            keep=tuple(kept),
            ignore=tuple(unseen),
            sentences=sentences,
            rules=rules,
            spreadsheet_safe=spreadsheet_safe,
        )
        terms = streaming.IssueTerms(*promised)
        _in_blocks(bulk, question, table, separator, out, ledger, terms, quiet=quiet, as_json=as_json)
        return
    check_rejects(rejects, [table, ledger], out, force=force)
    check_output(out, [table, ledger], force=force)
    with ExitStack() as stack:
        rejected = stack.enter_context(tablefiles.open_rejects(rejects, separator))
        source = stack.enter_context(open_applicants(table, separator, rejected))
        asked = letter_terms(letters, codes, template, letter_format, field, field_column, language, pdf)
        _check_recorded(asked)
        if known is not None:
            tablefiles.check_ids(source, id_column)
            carry = [] if asked is None else list(asked.columns.values())
            tablefiles.check_columns(source, known, [id_column, *kept, *carry], unseen)
        writer = None if asked is None else stack.enter_context(streaming.letter_folder(asked))
        sink: Sink | None = None
        if out is not None:
            sink = stack.enter_context(tablefiles.open_sink(out, spreadsheet_safe=spreadsheet_safe))
        loaded = saved_model(model)
        options["drift"] = {**_yearly(rules or loaded.schema_, until), **options["drift"]}
        place = stack.enter_context(vt.Ledger(ledger))
        watch = stack.enter_context(progress("issuing", quiet=quiet))
        explained, issued = streaming.issue_table(
            loaded.recourse(rules),
            source,
            sink or streaming.NullSink(),
            place,
            streaming.IssueTerms(*promised),
            options=options,
            keep=kept,
            sentences=sentences,
            watch=watch,
            letters=writer,
            ignore=unseen,
            rejects=rejected,
        )
    told = rejected.note(str(rejects)) if rejected else []
    note([*explained.notes, *(sink.notes() if sink else []), *told], quiet=quiet)
    print_summary(explained, issued, out, quiet=quiet, as_json=as_json)
    if letters is not None and not (quiet or as_json):
        say(f"The letters: {letters}")


def _check_recorded(asked: LetterTerms | None) -> None:
    """Refuse fields of letters that the ledger fills in: a letter says what was recorded."""
    taken = [n for n in ("number", "expires") if asked is not None and n in (*asked.fields, *asked.columns)]
    if taken:
        remedy = "leave it out: letters say what was recorded"
        raise DataError(message("fields that the ledger does not know", repr(taken[0]), remedy))


def _yearly(schema: Schema, until: timedelta | datetime | None) -> dict[str, tuple[float, float]]:
    """What changes by itself while promises hold; in one year where there is no end."""
    from veritracer.recourse.options import yearly_drift

    left = until - datetime.now(UTC) if isinstance(until, datetime) else until
    return yearly_drift(schema, 1.0 if left is None else left / timedelta(days=365))


def _in_blocks(
    bulk: Bulk,
    asked: Question,
    table: str,
    separator: str,
    out: str | None,
    ledger: str,
    terms: IssueTerms,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Issue for many tables, or for one on many cores: the promises of a block together, and once."""
    inputs = bulk.inputs(table, separator)
    said = {"ledger": ledger, "id_column": terms.id_column, "original": terms.original}
    folder = bulk.folder(out, {**asked.asked("issue", inputs), **said, "expires": str(terms.expires)})
    args = asked, inputs, folder, bulk.engine_for(), ledger, terms
    outcome = bulk.run("issuing", distributed.issue_blocks, *args, folder=folder, quiet=quiet)
    explained = cast("Explained", outcome.ended)
    with vt.Ledger(ledger) as place:
        head = place.head
    lines = [
        *_told(explained),
        f"{outcome.promises:,} promises are issued in this run.",
        f"The head, to be noted elsewhere: {head}",
    ]
    print_outcome(outcome, out, lines, quiet=quiet, as_json=as_json)


def _told(explained: Explained) -> list[str]:
    share = percent(explained.certified / explained.asked if explained.asked else None)
    return [
        f"{explained.rows:,} rows, {explained.favourable:,} of them favourable already.",
        f"Of the other {explained.asked:,}, {explained.certified:,} have recourse that is "
        f"certified at {explained.models}, which is {share}; {explained.valid:,} recourse that is valid "
        f"today; {explained.none:,} have none.",
    ]


def print_summary(
    explained: Explained, issued: Issued, out: str | None, *, quiet: bool, as_json: bool
) -> None:
    """Print how the rows ended, and the head."""
    if as_json:
        numbers = {"first": int(issued.sequence[0]), "last": int(issued.sequence[-1])} if len(issued) else {}
        counts = {name: getattr(issued, name) for name in ("advice", "uncertified", "repeated")}
        until = {"expires": in_words(issued.expires)}
        promises = len(issued) - issued.advice
        print_json(
            {"promises": promises, **counts, **numbers, **until, "head": issued.head, "out": out}
            | asdict(explained)
        )
    elif not quiet:
        say(
            *_told(explained),
            f"{_count(len(issued) - issued.advice, 'promise')} issued{_numbers(issued)}; "
            f"they end {_end(issued.expires)}.",
            *_left_out(issued),
            *([] if out is None else [f"The recourse: {out}"]),
            f"The head, to be noted elsewhere: {issued.head}",
        )


def _left_out(issued: Issued) -> list[str]:
    """What became no promise, a sentence each."""
    lines = []
    if issued.advice:
        lines.append(f"{issued.advice:,} of these entries are advice: not certified, and no promise.")
    if issued.uncertified:
        lines.append(f"{_count(issued.uncertified, 'answer')} left out: not certified, or not believed.")
    if issued.repeated:
        lines.append(
            f"{_count(issued.repeated, 'answer')} left out: the same application has a promise (--again)."
        )
    return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what} was" if number == 1 else f"{number:,} {what}s were"


def _end(expires: float) -> str:
    return "never" if math.isinf(expires) else f"on {in_words(expires)[:10]}"


def _numbers(issued: Issued) -> str:
    """The numbers of what was issued, in brackets."""
    if len(issued) < 2:
        return f" (number {issued.sequence[0]:,})" if len(issued) else ""
    return f" (numbers {issued.sequence[0]:,} to {issued.sequence[-1]:,})"
