"""``veritracer predict``: applicants in, decisions and probabilities out."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated

import typer

from veritracer import model_folder, streaming, tables
from veritracer.app.cli.options import (
    AsJson,
    Force,
    IdColumn,
    Ignore,
    Keep,
    ModelFolder,
    MultilineCells,
    OneTable,
    Query,
    Quiet,
    ReadOptions,
    RejectsFile,
    Separator,
    SpreadsheetSafe,
    TextEncoding,
    carried,
    check_output,
    names,
    open_applicants,
    saved_model,
)
from veritracer.app.cli.output import note, percent, print_json, progress, say
from veritracer.app.cli.schema_options import check_rejects


def predict(
    model: ModelFolder,
    table: OneTable,
    out: Annotated[
        str | None,
        typer.Option(help="CSV, Parquet or JSON lines (.jsonl); standard output if left out."),
    ] = None,
    keep: Keep = None,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    rejects: RejectsFile = None,
    spreadsheet_safe: SpreadsheetSafe = False,
    separator: Separator = None,
    encoding: TextEncoding = "utf-8",
    multiline_cells: MultilineCells = False,
    query: Query = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Decide every row of a table: its number, the decision, and the probability of the favourable label."""
    reading = ReadOptions.of(separator, encoding, multiline_cells, query)
    known = model_folder.columns(model)
    kept, unseen = carried(keep, id_column), names(ignore)
    check_output(out, [table], force=force)
    check_rejects(rejects, [table], out, force=force)
    with ExitStack() as stack:
        rejected = stack.enter_context(tables.open_rejects(rejects))
        source = stack.enter_context(open_applicants(table, reading, rejected))
        if known is not None:
            tables.check_columns(source, known, kept, unseen)
        sink = stack.enter_context(
            tables.open_sink(
                out, kind="jsonl" if as_json and out is None else None, spreadsheet_safe=spreadsheet_safe
            )
        )
        loaded = saved_model(model)
        watch = stack.enter_context(progress("deciding", quiet=quiet))
        found = streaming.predict_table(
            loaded, source, sink, keep=kept, ignore=unseen, rejects=rejected, watch=watch
        )
    told = rejected.note(str(rejects)) if rejected else []
    note([*found.notes, *sink.notes(), *told], quiet=quiet)
    if out is not None and as_json:
        print_json({"out": out, **asdict(found)})
    elif out is not None and not quiet:
        share = percent(found.favourable / found.rows)
        say(
            f"{found.rows:,} rows, {found.favourable:,} of them favourable, which is {share}.",
            f"The decisions: {out}",
        )
