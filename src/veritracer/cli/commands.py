"""The verbs of the command line. Each one parses, calls the library, and prints.

On a terminal they print with colour and frames, into a pipe plain text without a line that is cut or
wrapped, and with ``--json`` one JSON document.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import veritracer
from veritracer import datasets
from veritracer.certificate import Certificate
from veritracer.errors import DatasetError, VeriTracerError, message
from veritracer.report import paper_figures
from veritracer.report.paper_figures import Example

ON_TERMINAL = sys.stdout.isatty()

DataDir = Annotated[
    Path | None,
    typer.Option(envvar="VERITRACER_DATA", help="The folder of the files.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]

app = typer.Typer(
    name="veritracer",
    help="Counterfactual explanations whose promises are provable.",
    rich_markup_mode="rich" if ON_TERMINAL else None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
datasets_app = typer.Typer(help="List and fetch the paper's datasets.")
app.add_typer(datasets_app, name="datasets", epilog="Example: veritracer datasets list")


def run() -> int:
    """The exit code, after the arguments of this process were obeyed; a wrong one is a VeriTracerError."""
    try:
        return app(prog_name="veritracer", standalone_mode=False) or 0
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "veritracer"
        said = error.format_message().rstrip(".")
        remedy = f"see {command} --help"
        raise VeriTracerError(message(f"arguments of {command}", _lowered(said), remedy)) from None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"veritracer {veritracer.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True, epilog="Example: veritracer demo")
def top(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Counterfactual explanations whose promises are provable."""
    _help_if_alone(context)


@datasets_app.callback(invoke_without_command=True)
def datasets_group(context: typer.Context) -> None:
    """List and fetch the paper's datasets."""
    _help_if_alone(context)


def _help_if_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog="Example: veritracer demo --out pictures")
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the picture.")] = Path("out"),
    as_json: AsJson = False,
) -> None:
    """Certify and draw the paper's two-dimensional examples."""
    with _patience("drawing"):
        found = paper_figures.certificates()
        try:
            picture = paper_figures.draw(out / "paper_examples.png")
        except OSError as error:
            remedy = "pass another one with --out"
            raise VeriTracerError(
                message(f"a folder that can be written, {out}", str(error), remedy)
            ) from None
    if as_json:
        examples = [_example_fields(*pair) for pair in found]
        _print_json({"delta": paper_figures.DELTA, "picture": str(picture), "examples": examples})
        return
    header = ("model", "x′", "certified", "method", "worst logit", "radius / δ")
    _print_table(f"x = (4, 1), δ = {paper_figures.DELTA:g}", header, [_example_cells(*p) for p in found])
    _print(*paper_figures.CONCLUSIONS, f"The picture: {picture}")


def _example_fields(example: Example, certificate: Certificate | None) -> dict[str, Any]:
    kept = ("certified", "method", "conditional", "worst_logit", "radius")
    known = {name: getattr(certificate, name) for name in kept} if certificate else None
    return {"model": example.name, "counterfactual": example.counterfactual, "certificate": known}


def _example_cells(example: Example, certificate: Certificate | None) -> list[str]:
    if example.counterfactual is None or certificate is None:
        return [example.name, "none exists", "", "", "", ""]
    at = "({:g}, {:g})".format(*example.counterfactual)
    numbers = [f"{certificate.worst_logit:.3f}", f"{certificate.radius or 0:.3f}"]
    return [example.name, at, "yes" if certificate.certified else "unknown", certificate.method, *numbers]


@datasets_app.command("list", epilog="Example: veritracer datasets list --data-dir data")
def list_(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show every dataset: its rows, its licence, and where it is or how to get it."""
    known = [datasets.info(name, data_dir=data_dir) for name in datasets.names()]
    if as_json:
        _print_json([{**vars(info), "path": info.path and str(info.path)} for info in known])
        return
    header = ("name", "rows", "licence", "where it is, or how to get it")
    rows = [[i.name, f"{i.rows:,}", i.licence, str(i.path) if i.path else i.how] for i in known]
    _print_table("Datasets", header, rows)


@datasets_app.command(epilog="Example: veritracer datasets fetch ctg taiwan_credit --data-dir data")
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="What to download.")],
    data_dir: DataDir = None,
    url: Annotated[str | None, typer.Option(help="A mirror of the one file.", show_default=False)] = None,
) -> None:
    """Download datasets that need no login; a file is kept only if its checksum is right."""
    if url is not None and len(names) != 1:
        raise DatasetError(message("one NAME with --url", f"{len(names)}", "fetch them one by one"))
    for name in names:
        datasets.info(name)  # refuses an unknown name before anything is downloaded
    folder = data_dir or Path("data")
    for name in names:
        with _patience(f"downloading {name}"):
            path = datasets.fetch(name, data_dir=folder, url=url)
        _print(f"{name}: {path}")
    if data_dir is None:
        _print(f"To load it: export VERITRACER_DATA={folder.resolve()}")


def _console() -> Console:
    return Console(force_terminal=ON_TERMINAL, highlight=False)


def _patience(text: str) -> Any:
    """A spinner on stderr while the block runs, if somebody is watching."""
    return Console(stderr=True, force_terminal=sys.stderr.isatty(), quiet=not sys.stderr.isatty()).status(
        text
    )


def _print(*lines: str) -> None:
    for line in lines:
        _console().print(line, markup=False, soft_wrap=not ON_TERMINAL)


def _print_json(content: object) -> None:
    typer.echo(json.dumps(content, ensure_ascii=False, indent=1))


def _print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if ON_TERMINAL:
        table = Table(title=title, title_justify="left", box=box.ROUNDED)
        for column in header:  # fold, not cut: an address must be whole to be of use
            table.add_column(column, overflow="fold", no_wrap=column == header[0])
        for row in rows:
            table.add_row(*map(Text, row))
        _console().print(table)
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *rows)]
    _print(title, *lines, "")


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
