"""``veritracer report``: one HTML file on a model and its counterfactuals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veritracer import model_folder, streaming, tables
from veritracer.app.cli.checks import check_output, check_table
from veritracer.app.cli.options import (
    AsJson,
    Force,
    IdColumn,
    Ignore,
    ModelFolder,
    Quiet,
    ReadOptions,
    saved_model,
    with_flags,
)
from veritracer.app.cli.output import note, print_json, say, spinner
from veritracer.app.cli.schema_options import ignored
from veritracer.files import writable


@with_flags
def report(
    model: ModelFolder,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Test rows: CSV or Parquet; - is standard input.")
    ],
    reading: ReadOptions,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Its title.", show_default=False)] = None,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML report on a model: quality, counterfactuals, certificates and groups."""
    model_folder.verified(model)
    check_table(table, reading)
    check_output(out, [table], force=force)
    with writable(out), spinner("writing the report", quiet=quiet):
        from veritracer.app.report import write_report

        loaded, notes = saved_model(model), streaming.Notes()
        schema = loaded.schema_
        with notes.taken():
            unseen = list(ignored(ignore, id_column))
            frame = tables.read_table(table, reading.query, schema=schema, ignore=unseen, csv=reading.csv)
            y = frame[schema.target] if schema.target in frame.columns else None
            X = frame.drop(columns=[schema.target] if y is not None else [])
            path = write_report(out, loaded, X, y, title=title)
    note(notes.sentences(), quiet=quiet)
    if as_json:
        print_json({"report": str(path), "rows": len(X)})
    elif not quiet:
        say(f"The report: {path}")
