"""``veritracer datasets``: list, fetch and write the datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from veritracer import tables
from veritracer.app.cli.options import AsJson, DataDir, Force, Quiet, Seed, SpreadsheetSafe
from veritracer.app.cli.output import note, print_json, print_table, say, show_help, spinner
from veritracer.app.cli.places import check_new
from veritracer.errors import DatasetError, message

app = typer.Typer(help="List, fetch and write the datasets.")

app.callback(invoke_without_command=True)(show_help)


@app.command("list", epilog="Example: veritracer datasets list --data-dir data")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every dataset with its rows, its licence, and where it is or how to get it."""
    from veritracer import datasets

    known = [datasets.info(name, data_dir=data_dir) for name in datasets.names()]
    if as_json:
        print_json([{**vars(info), "path": info.path and str(info.path)} for info in known])
        return
    header = ("name", "rows", "licence", "where it is, or how to get it")
    rows = [[i.name, f"{i.rows:,}", i.licence, str(i.path) if i.path else i.how] for i in known]
    print_table("Datasets", header, rows)


@app.command(epilog="Example: veritracer datasets fetch ctg taiwan_credit --data-dir data")
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Datasets to download.")],
    data_dir: DataDir = None,
    url: Annotated[str | None, typer.Option(help="Mirror of the file.")] = None,
) -> None:
    """Download datasets that need no login; a file is kept only if its checksum is right."""
    from veritracer import datasets

    if url is not None and len(names) != 1:
        raise DatasetError(message("one NAME with --url", f"{len(names)}", "fetch them one by one"))
    for name in names:
        datasets.info(name)  # refuses an unknown name before anything is downloaded
    folder = data_dir or Path("data")
    for name in names:
        with spinner(f"downloading {name}"):
            path = datasets.fetch(name, data_dir=folder, url=url)
        say(f"{name}: {path}")
    if data_dir is None:
        say(f"To load it: export VERITRACER_DATA={folder.resolve()}")


@app.command(epilog="Example: veritracer datasets write loans --rows 5000 --year 2 --out loans.csv")
def write(
    name: Annotated[str, typer.Argument(help="Name of the dataset.")],
    out: Annotated[
        str | None, typer.Option(help="New CSV or Parquet file instead of standard output.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Number of rows (loans only).")] = 10_000,
    year: Annotated[int, typer.Option(min=1, help="Year (loans only).")] = 1,
    drift: Annotated[float, typer.Option(help="How strongly years differ (loans only).")] = 1.0,
    seed: Seed = 0,
    id_column: Annotated[
        str | None, typer.Option(help="Add a column of this name that numbers the rows.")
    ] = None,
    data_dir: DataDir = None,
    spreadsheet_safe: SpreadsheetSafe = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write a dataset as a table that the other commands can read."""
    import pyarrow as pa

    from veritracer import datasets

    check_new(out, force=force)
    if name == "loans":
        pieces = datasets.loans_chunks(rows, 50_000, year=year, drift=drift, random_state=seed)
    else:
        data = datasets.load(name, data_dir=data_dir)
        pieces = iter([data.X.assign(**{str(data.schema.target or "target"): data.y})])
    count = 0
    opened = tables.open_sink(out, spreadsheet_safe=spreadsheet_safe)
    with spinner(f"writing {name}", quiet=quiet), opened as sink:
        for piece in pieces:
            if id_column is not None:
                piece.insert(0, id_column, range(count, count + len(piece)))
            sink.write(pa.Table.from_pandas(piece, preserve_index=False).replace_schema_metadata())
            count += len(piece)
    note(tables.altered_note(sink.altered), quiet=quiet)
    if out is not None and not quiet:
        say(f"{name}: {count:,} rows in {out}")
