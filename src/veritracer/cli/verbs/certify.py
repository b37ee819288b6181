"""``veritracer certify``: what can be proved of counterfactuals from anywhere."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

import typer

from veritracer import persistence, streaming, tablefiles
from veritracer.cli.options import (
    Applicants,
    AsJson,
    IdColumn,
    Ignore,
    Kappa,
    Keep,
    ModelFolder,
    Quiet,
    Separator,
    SpreadsheetSafe,
    carried,
    names,
    saved_model,
)
from veritracer.cli.outputs import Force, check_output
from veritracer.cli.printing import note, print_json, progress, say
from veritracer.errors import DataError, message

NOT_ACHIEVED = 1


def certify(
    model: ModelFolder,
    table: Applicants,
    counterfactuals: Annotated[
        str,
        typer.Argument(metavar="COUNTERFACTUALS", help="CSV or Parquet, row by row; - is standard input."),
    ],
    out: Annotated[
        str | None,
        typer.Option(help="CSV, Parquet or JSON lines with a line for each row.", show_default=False),
    ] = None,
    kappa: Kappa = None,
    keep: Keep = None,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    spreadsheet_safe: SpreadsheetSafe = False,
    separator: Separator = ",",
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Certify counterfactuals that came from anywhere; exit with 1 if one of them has no proof.

    A row and its counterfactual are at the same place of their tables. Pairs of equal rows do not count. The
    counterfactuals may also be separated by commas, as explain writes them.
    """
    if table == counterfactuals == tablefiles.STANDARD:
        raise DataError(message("two tables", "standard input twice", "save one of them as a file"))
    kept, unseen, known = carried(keep, id_column), names(ignore), persistence.columns(model)
    check_output(out, [table, counterfactuals], force=force)
    with ExitStack() as stack:
        originals = stack.enter_context(tablefiles.open_table(table, separator=separator))
        answers = stack.enter_context(
            tablefiles.open_table(counterfactuals, separator=separator, or_comma=True)
        )
        if known is not None:
            tablefiles.check_pairs(originals, answers, known, kept, unseen)
        sink = None
        if out is not None:
            sink = stack.enter_context(tablefiles.open_sink(out, spreadsheet_safe=spreadsheet_safe))
        loaded = saved_model(model)
        watch = stack.enter_context(progress("certifying", quiet=quiet))
        found = streaming.certify_tables(
            loaded, originals, answers, sink, kappa=kappa, keep=kept, ignore=unseen, watch=watch
        )
    note([*found.notes, *(sink.notes() if sink else [])], quiet=quiet)
    if as_json:
        print_json({"out": out, **asdict(found)})
    elif not quiet:
        say(
            f"{found.rows:,} pairs at {found.models}: {found.certified:,} certified, "
            f"{found.unknown:,} valid today without a proof, {found.invalid:,} not valid, "
            f"{found.unchanged:,} unchanged.",
            *([] if out is None else [f"The certificates: {out}"]),
        )
    if found.unknown or found.invalid:
        raise typer.Exit(NOT_ACHIEVED)
