"""``explain``, ``certify`` and ``predict``: read a table of applicants, write a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veritracer import tables
from veritracer.app.cli.options import (
    Applicants,
    EffortFlag,
    IdColumn,
    ModelFolder,
    ReadOptions,
    with_flags,
)
from veritracer.app.cli.output import note, percent
from veritracer.app.cli.places import model_columns, read_schema
from veritracer.app.cli.runs import TableOptions, recourse_lines
from veritracer.errors import DataError, as_typed, listing, message
from veritracer.options import ExplainOptions

if TYPE_CHECKING:
    from veritracer.tables import RunSummary

NOT_ACHIEVED = 1
Rules = Annotated[
    Path | None, typer.Option("--schema", help="Schema with other actions than the model's (JSON or TOML).")
]
Sentences = Annotated[bool, typer.Option("--sentences", help="Add a sentence for each counterfactual.")]


@with_flags
def explain(
    model: ModelFolder,
    table: Applicants,
    *,
    schema: Rules = None,
    sentences: Sentences = False,
    id_column: IdColumn = None,
    options: ExplainOptions,
    rows: TableOptions,
) -> None:
    """Find certified counterfactuals for declined rows.

    The output has a row for each row of TABLE, which may be of any size: the values of the counterfactual,
    then the decision on the row as it is and its probability (recourse.decision, recourse.probability),
    recourse.status (certified, valid or none), recourse.reason, and what was proved. Without --out it goes to
    standard output. If the command is stopped, repeat it: it continues with the missing batches.
    """
    known, keep = model_columns(model), rows.kept(id_column)
    rows.check_outputs()
    left_out: list[str] = []

    def check(source: str, columns: Sequence[str]) -> None:
        tables.check_columns(source, columns, known, keep, rows.ignored)
        gone = set(known.ignored_names).difference(keep)
        left_out[:] = [name for name in columns if name in gone]

    rules = None if schema is None else read_schema(schema)
    job = rows.job("explain", model, asdict(options), keep=keep, sentences=sentences, rules=rules)
    found = rows.run("explaining", job, rows.inputs(table, check))
    if rows.out is None:
        return
    rows.print_summary(found, [*recourse_lines(found), f"The recourse: {rows.out}"])
    if left_out:
        said = f"not in the output: {listing(left_out)}; --keep {as_typed(left_out)} adds it"
        note([said], quiet=rows.quiet)


@with_flags
def certify(
    model: ModelFolder,
    table: Applicants,
    counterfactuals: Annotated[
        str,
        typer.Argument(metavar="COUNTERFACTUALS", help="Their counterfactuals, in the same order."),
    ],
    rows: TableOptions,
    id_column: IdColumn = None,
    kappa: Annotated[
        float | None, typer.Option(min=0.0, help="Certify at this radius instead of the model's own.")
    ] = None,
    effort: EffortFlag = "fast",
    time_budget: Annotated[
        float | None, typer.Option(min=0.0, help="Seconds of --effort exact for each batch.")
    ] = None,
) -> None:
    """Certify counterfactuals from any source.

    Exits with 1 if one of them has no proof. The two tables have the same order: row 7 of COUNTERFACTUALS
    belongs to row 7 of TABLE. Pairs of equal rows are not certified. --separator, --encoding and --query
    describe TABLE; counterfactuals are in UTF-8, as explain writes them, and their separator is detected. If
    the command is stopped, repeat it: it continues with the missing batches.
    """
    if table == counterfactuals == tables.STANDARD:
        raise DataError(message("two tables", "standard input twice", "save one of them as a file"))
    known, keep = model_columns(model), rows.kept(id_column)
    rows.check_outputs()

    def check(source: str, columns: Sequence[str]) -> None:
        tables.check_columns(source, columns, known, keep, rows.ignored)

    def check_pair(source: str, columns: Sequence[str]) -> None:
        present = [[name for name in names if name in columns] for names in (keep, rows.ignored)]
        tables.check_columns(source, columns, known, *present)

    if time_budget is not None and effort == "fast":
        raise DataError(message("--effort exact for --time-budget", "--effort fast", "add --effort exact"))
    job = rows.job(
        "certify", model, {"kappa": kappa, "effort": effort, "time_budget": time_budget}, keep=keep
    )
    inputs = rows.inputs(table, check)
    written = ReadOptions(multiline_cells=rows.multiline_cells)
    pairs = rows.inputs(counterfactuals, check_pair, written)
    if counterfactuals != tables.STANDARD:
        pairs.check_first()
    found = rows.run("certifying", job, inputs, pairs)
    place = [] if rows.out is None else [f"The certificates: {rows.out}"]
    rows.print_summary(found, [_certified(found), *place])
    if found.counts["unknown"] or found.counts["broken"] or found.counts["invalid"]:
        raise typer.Exit(NOT_ACHIEVED)


def _certified(found: RunSummary) -> str:
    counts = found.counts
    return (
        f"{counts['rows']:,} pairs at {found.facts['models']}: {counts['certified']:,} certified, "
        f"{counts['unknown']:,} valid today without a proof, "
        + (f"{counts['broken']:,} valid today but broken by a model of the set, " if counts["broken"] else "")
        + f"{counts['invalid']:,} not valid, {counts['unchanged']:,} unchanged."
    )


@with_flags
def predict(model: ModelFolder, table: Applicants, rows: TableOptions, id_column: IdColumn = None) -> None:
    """Decide each row of a table.

    The output has a line for each row: its number, the decision, and the probability of the favourable label.
    Without --out it goes to standard output. If the command is stopped, repeat it: it continues with the
    missing batches.
    """
    known, keep = model_columns(model), rows.kept(id_column)
    rows.check_outputs()
    job = rows.job("predict", model, {}, keep=keep)

    def check(source: str, columns: Sequence[str]) -> None:
        tables.check_columns(source, columns, known, keep, rows.ignored)

    found = rows.run("deciding", job, rows.inputs(table, check))
    if rows.out is None:
        return
    number, favourable = found.counts["rows"], found.counts["favourable"]
    share = percent(favourable / number)
    lines = [f"{number:,} rows, {favourable:,} of them favourable, which is {share}."]
    rows.print_summary(found, [*lines, f"The decisions: {rows.out}"])
