"""``veritracer issue``: recourse for everybody in a table, as promises in the ledger."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

import veritracer as vt
from veritracer import distributed, persistence, streaming, tablefiles
from veritracer.cli.bulk import Bulk, print_outcome
from veritracer.cli.options import (
    Agreement,
    Alternatives,
    Applicants,
    AsJson,
    BlockFormat,
    BlockRows,
    Cost,
    Drift,
    EngineName,
    Extremes,
    Kappa,
    Keep,
    KeyFile,
    LedgerPlace,
    Limits,
    MaxChanges,
    ModelFolder,
    Overshoot,
    Plausible,
    Quiet,
    Rules,
    Sentences,
    Separator,
    SpreadsheetSafe,
    Workers,
    amounts,
    drifts,
    names,
    read_key,
    saved_model,
    schema_file,
)
from veritracer.cli.outputs import Force, check_output
from veritracer.cli.printing import note, percent, print_json, progress, say
from veritracer.defaults import BLOCK_ROWS
from veritracer.ledger.times import read_expiry

if TYPE_CHECKING:
    from veritracer.distributed import Question
    from veritracer.ledger import Issued
    from veritracer.streaming import Explained, IssueTerms
    from veritracer.tablefiles import Sink


def issue(
    model: ModelFolder,
    table: Applicants,
    ledger: LedgerPlace,
    id_column: Annotated[
        str, typer.Option(metavar="NAME", help="The column that says whose each row is.", show_default=False)
    ],
    expires: Annotated[
        str | None,
        typer.Option(help="Until when: 365d, 52w, 1y, or a date. Never, if left out.", show_default=False),
    ] = None,
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
    keep: Keep = None,
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

    All rows become promises, or none does. With --workers or --engine ray, or for a folder or pattern of
    tables, this holds for each block: --out is a folder with a file for each, and the same command goes on
    where a run was stopped, without promising anything twice. The last line is the head of the ledger: noted
    elsewhere, it shows in veritracer verify whether the ledger's end was cut off or rewritten.
    """
    until = None if expires is None else read_expiry(expires)
    key = None if key_file is None else read_key(key_file)
    rules = None if schema is None else schema_file(schema)
    options = {
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
    kept, known = names(keep), persistence.columns(model)
    bulk = Bulk(engine, workers, block_rows, block_format)
    if bulk.wanted(table):
        asked = bulk.question(
            model,
            options,
            keep=tuple(kept),
            sentences=sentences,
            rules=rules,
            spreadsheet_safe=spreadsheet_safe,
        )
        terms = streaming.IssueTerms(id_column, 0.5, until, original, key)
        _in_blocks(bulk, asked, table, separator, out, ledger, terms, quiet=quiet, as_json=as_json)
        return
    check_output(out, [table, ledger], force=force)
    with ExitStack() as stack:
        source = stack.enter_context(tablefiles.open_table(table, separator=separator))
        if known is not None:
            tablefiles.check_ids(source, id_column)
            tablefiles.check_columns(source, known, [id_column, *kept])
        sink: Sink | None = None
        if out is not None:
            sink = stack.enter_context(tablefiles.open_sink(out, spreadsheet_safe=spreadsheet_safe))
        loaded = saved_model(model)
        place = stack.enter_context(vt.Ledger(ledger))
        watch = stack.enter_context(progress("issuing", quiet=quiet))
        explained, issued = streaming.issue_table(
            loaded.recourse(rules),
            source,
            sink or streaming.NullSink(),
            place,
            streaming.IssueTerms(id_column, loaded.threshold, until, original, key),
            options=options,
            keep=kept,
            sentences=sentences,
            watch=watch,
        )
    note([*explained.notes, *(sink.notes() if sink else [])], quiet=quiet)
    print_summary(explained, issued, out, quiet=quiet, as_json=as_json)


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
    outcome = bulk.run("issuing", distributed.issue_blocks, *args, quiet=quiet)
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
        f"Of the other {explained.asked:,}, {explained.certified:,} are promised recourse that is "
        f"certified at {explained.models}, which is {share}; {explained.valid:,} recourse that is valid "
        f"today; {explained.none:,} have none.",
    ]


def print_summary(
    explained: Explained, issued: Issued, out: str | None, *, quiet: bool, as_json: bool
) -> None:
    """Print how the rows ended, and the head."""
    if as_json:
        numbers = {"first": int(issued.sequence[0]), "last": int(issued.sequence[-1])} if len(issued) else {}
        print_json({"promises": len(issued), **numbers, "head": issued.head, "out": out, **asdict(explained)})
    elif not quiet:
        numbers_said = f" (numbers {issued.sequence[0]:,} to {issued.sequence[-1]:,})" if len(issued) else ""
        say(
            *_told(explained),
            f"{len(issued):,} promises were issued{numbers_said}.",
            *([] if out is None else [f"The recourse: {out}"]),
            f"The head, to be noted elsewhere: {issued.head}",
        )
