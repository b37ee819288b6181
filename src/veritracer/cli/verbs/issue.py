"""``veritracer issue``: recourse for everybody in a table, as promises in the ledger."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import veritracer as vt
from veritracer import persistence, streaming, tablefiles
from veritracer.cli.describing import check_rejects
from veritracer.cli.options import (
    Agreement,
    Alternatives,
    Applicants,
    AsJson,
    Cost,
    Drift,
    Extremes,
    Ignore,
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
    RejectsFile,
    Rules,
    Sentences,
    Separator,
    SpreadsheetSafe,
    amounts,
    drifts,
    names,
    open_applicants,
    read_key,
    saved_model,
    schema_file,
)
from veritracer.cli.outputs import Force, check_output
from veritracer.cli.printing import note, percent, print_json, progress, say
from veritracer.ledger.times import read_expiry

if TYPE_CHECKING:
    from veritracer.ledger import Issued
    from veritracer.streaming import Explained
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
    ignore: Ignore = None,
    rejects: RejectsFile = None,
    sentences: Sentences = False,
    spreadsheet_safe: SpreadsheetSafe = False,
    separator: Separator = ",",
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Promise every declined row its closest certified counterfactual, and keep the promise in a ledger.

    All rows become promises, or none does. The last line is the head of the ledger: noted elsewhere, it shows
    in veritracer verify whether the ledger's end was cut off or rewritten.
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
    kept, unseen, known = names(keep), names(ignore), persistence.columns(model)
    check_rejects(rejects, [table, ledger], out, force=force)
    check_output(out, [table, ledger], force=force)
    with ExitStack() as stack:
        rejected = stack.enter_context(tablefiles.open_rejects(rejects, separator))
        source = stack.enter_context(open_applicants(table, separator, rejected))
        if known is not None:
            tablefiles.check_ids(source, id_column)
            tablefiles.check_columns(source, known, [id_column, *kept], unseen)
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
            streaming.IssueTerms(id_column, loaded.threshold_, until, original, key),
            options=options,
            keep=kept,
            sentences=sentences,
            watch=watch,
            ignore=unseen,
            rejects=rejected,
        )
    told = rejected.note(str(rejects)) if rejected else []
    note([*explained.notes, *(sink.notes() if sink else []), *told], quiet=quiet)
    print_summary(explained, issued, out, quiet=quiet, as_json=as_json)


def print_summary(
    explained: Explained, issued: Issued, out: str | None, *, quiet: bool, as_json: bool
) -> None:
    """Print how the rows ended, and the head."""
    if as_json:
        numbers = {"first": int(issued.sequence[0]), "last": int(issued.sequence[-1])} if len(issued) else {}
        print_json({"promises": len(issued), **numbers, "head": issued.head, "out": out, **asdict(explained)})
    elif not quiet:
        share = percent(explained.certified / explained.asked if explained.asked else None)
        numbers_said = f" (numbers {issued.sequence[0]:,} to {issued.sequence[-1]:,})" if len(issued) else ""
        say(
            f"{explained.rows:,} rows, {explained.favourable:,} of them favourable already.",
            f"Of the other {explained.asked:,}, {explained.certified:,} are promised recourse that is "
            f"certified at {explained.models}, which is {share}; {explained.valid:,} recourse that is valid "
            f"today; {explained.none:,} have none.",
            f"{len(issued):,} promises were issued{numbers_said}.",
            *([] if out is None else [f"The recourse: {out}"]),
            f"The head, to be noted elsewhere: {issued.head}",
        )
