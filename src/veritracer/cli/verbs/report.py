"""``veritracer report``: one HTML file about a model and its recourse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veritracer.cli.options import AsJson, ModelFolder, Quiet, Separator
from veritracer.cli.printing import note, patience, print_json, say
from veritracer.saved import load
from veritracer.streaming.pieces import Notes
from veritracer.tablefiles import read_table
from veritracer.tablefiles.sinks import writable


def report(
    model: ModelFolder,
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Test rows: CSV or Parquet; - is standard input.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Its title.", show_default=False)] = None,
    separator: Separator = ",",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Write a self-contained HTML report: how good the model is, what it asks of people, what is proved."""
    from veritracer.report.html import write_report

    loaded = load(model)
    schema = loaded.schema_
    notes = Notes()
    with writable(out), patience("writing the report", quiet=quiet), notes.taken():
        frame = read_table(table, schema=schema, separator=separator)
        y = frame[schema.target] if schema.target in frame.columns else None
        X = frame.drop(columns=[schema.target] if y is not None else [])
        path = write_report(out, loaded, X, y, title=title)
    note(notes.sentences(), quiet=quiet)
    if as_json:
        print_json({"report": str(path), "rows": len(X)})
    elif not quiet:
        say(f"The report: {path}")
