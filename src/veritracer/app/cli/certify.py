"""``veritracer certify``: what can be proved of counterfactuals from anywhere."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer

from veritracer import distributed, persistence, streaming, tables
from veritracer.app.cli import options as typed
from veritracer.app.cli.options import (
    Bulk,
    ReadOptions,
    carried,
    check_output,
    names,
    open_applicants,
    print_outcome,
    saved_model,
)
from veritracer.app.cli.output import note, print_json, progress, say
from veritracer.app.cli.schema_options import check_rejects
from veritracer.errors import DataError, message
from veritracer.options import BLOCK_ROWS

if TYPE_CHECKING:
    from veritracer.distributed import Question
    from veritracer.engines import Engine
    from veritracer.streaming import Certified

NOT_ACHIEVED = 1


def certify(
    model: typed.ModelFolder,
    table: typed.Applicants,
    counterfactuals: Annotated[
        str,
        typer.Argument(metavar="COUNTERFACTUALS", help="CSV or Parquet, row by row; - is standard input."),
    ],
    out: Annotated[
        str | None,
        typer.Option(help="CSV, Parquet or JSON lines with a line for each row.", show_default=False),
    ] = None,
    kappa: typed.Kappa = None,
    keep: typed.Keep = None,
    id_column: typed.IdColumn = None,
    ignore: typed.Ignore = None,
    rejects: typed.RejectsFile = None,
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
    """Certify counterfactuals that came from anywhere; exit with 1 if one of them has no proof.

    A row and its counterfactual are at the same place of their tables. Pairs of equal rows do not count.
    --separator, --encoding and --query are about TABLE; counterfactuals are in UTF-8, as explain writes them,
    and their separator is detected. With --workers or --engine ray, or for a folder or pattern of tables,
    work is done in blocks: --out is a folder with a file for each, and the same command goes on where a run
    was stopped.
    """
    reading = ReadOptions.of(separator, encoding, multiline_cells, query)
    if table == counterfactuals == tables.STANDARD:
        raise DataError(message("two tables", "standard input twice", "save one of them as a file"))
    kept, unseen, known = carried(keep, id_column), names(ignore), persistence.columns(model)
    bulk = Bulk(engine, workers, block_rows, block_format)
    if bulk.wanted(table, query):
        bulk.refuse({"--rejects": rejects})
        workers_of_run = bulk.engine_for()
        asked = bulk.question(
            model, {"kappa": kappa}, keep=tuple(kept), ignore=tuple(unseen), spreadsheet_safe=spreadsheet_safe
        )
        _in_blocks(
            bulk,
            workers_of_run,
            asked,
            table,
            counterfactuals,
            reading,
            out,
            quiet=quiet,
            as_json=as_json,
        )
        return
    check_output(out, [table, counterfactuals], force=force)
    check_rejects(rejects, [table, counterfactuals], out, force=force)
    with ExitStack() as stack:
        rejected = stack.enter_context(tables.open_rejects(rejects))
        partners = None if rejected is None else tables.Partners(rejected)
        originals = stack.enter_context(open_applicants(table, reading, rejected))
        answers = stack.enter_context(open_applicants(counterfactuals, reading.for_results(), partners))
        if known is not None:
            tables.check_pairs(originals, answers, known, kept, unseen)
        sink = None
        if out is not None:
            sink = stack.enter_context(tables.open_sink(out, spreadsheet_safe=spreadsheet_safe))
        loaded = saved_model(model)
        watch = stack.enter_context(progress("certifying", quiet=quiet))
        found = streaming.certify_tables(
            loaded,
            originals,
            answers,
            sink,
            kappa=kappa,
            keep=kept,
            ignore=unseen,
            watch=watch,
            rejects=partners,
        )
    told = rejected.note(str(rejects)) if rejected else []
    note([*found.notes, *(sink.notes() if sink else []), *told], quiet=quiet)
    if as_json:
        print_json({"out": out, **asdict(found)})
    elif not quiet:
        say(_told(found), *([] if out is None else [f"The certificates: {out}"]))
    if found.unknown or found.invalid:
        raise typer.Exit(NOT_ACHIEVED)


def _in_blocks(
    bulk: Bulk,
    engine: Engine,
    asked: Question,
    table: str,
    counterfactuals: str,
    reading: ReadOptions,
    out: str | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Certify many tables, or one on many cores."""
    inputs, others = bulk.inputs(table, reading), bulk.inputs(counterfactuals, reading.for_results())
    folder = bulk.folder(out, asked.asked("certify", inputs))
    args = asked, inputs, others, folder, engine
    outcome = bulk.run("certifying", distributed.certify_blocks, *args, folder=folder, quiet=quiet)
    found = cast("Certified", outcome.ended)
    print_outcome(outcome, out, [_told(found)], quiet=quiet, as_json=as_json)
    if found.unknown or found.invalid:
        raise typer.Exit(NOT_ACHIEVED)


def _told(found: Certified) -> str:
    return (
        f"{found.rows:,} pairs at {found.models}: {found.certified:,} certified, "
        f"{found.unknown:,} valid today without a proof, {found.invalid:,} not valid, "
        f"{found.unchanged:,} unchanged."
    )
