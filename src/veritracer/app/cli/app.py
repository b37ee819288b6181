"""Register the commands of ``veritracer``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import veritracer
from veritracer.app.cli import (
    datasets,
    demo,
    explain,
    fit,
    inspect,
    issue,
    ledger,
    report,
    serve,
    update,
)
from veritracer.errors import VeriTracerError, message
from veritracer_bench.cli import app as bench

app = typer.Typer(
    name="veritracer",
    help="Counterfactual explanations that are certified for every model near the current one.",
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    pretty_exceptions_enable=False,
)
app.command(epilog="Example: veritracer demo")(demo.demo)
app.command(
    epilog="Example: veritracer fit loans.csv --target approved --favourable yes --immutable age,sex "
    "--out model"
)(fit.fit)
app.command(epilog="Example: veritracer predict model applicants.csv --id-column id --out decisions.csv")(
    explain.predict
)
app.command(epilog="Example: veritracer explain model applicants.csv --out recourse.csv")(explain.explain)
app.command(epilog="Example: veritracer certify model applicants.csv recourse.csv --out certificates.csv")(
    explain.certify
)
app.command(
    epilog="Example: veritracer issue model applicants.csv --id-column id --ledger promises.db --expires 365d"
)(issue.issue)
app.add_typer(ledger.app, name="promises", epilog="Example: veritracer promises list --ledger promises.db")
app.command(epilog="Example: veritracer verify --ledger promises.db --head 3f1c…")(ledger.verify)
app.command(
    epilog="Example: veritracer update model new.csv --keep promises.db --max-loss 0.02 --out model-2027"
)(update.update)
app.command("audit", epilog="Example: veritracer audit --ledger promises.db --model new --out audit.html")(
    ledger.audit_
)
app.command(epilog="Example: veritracer calibrate model --simulate fine-tune --table rows.csv --epochs 2")(
    update.calibrate
)
app.command(epilog="Example: veritracer inspect loans.csv --target approved")(inspect.inspect)
app.command(epilog="Example: veritracer report model test.csv --out report.html")(report.report)
app.command(epilog="Example: veritracer notices --ledger promises.db --codes codes.json --out notices")(
    report.notices
)
app.command(epilog="Example: veritracer serve model --ledger promises.db")(serve.serve)
app.add_typer(bench, name="bench", epilog="Example: veritracer bench --quick")
app.add_typer(datasets.app, name="datasets", epilog="Example: veritracer datasets list")


def run() -> int:
    """Run the command that this process was called with, and return its exit code."""
    try:
        return app(prog_name="veritracer", standalone_mode=False) or 0
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "veritracer"
        said = error.format_message().rstrip(".").replace("Value error, ", "")  # pydantic's words
        remedy = f"see {command} --help"
        raise VeriTracerError(message(f"arguments of {command}", _lowered(said), remedy)) from None
    except typer.Abort:
        raise KeyboardInterrupt from None


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
    """Counterfactual explanations that are certified for every model near the current one."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]
