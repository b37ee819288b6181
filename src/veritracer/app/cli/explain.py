"""``explain``, ``certify`` and ``predict``: read a table of applicants, write a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from veritracer import tables
from veritracer.app.cli.options import (
    Applicants,
    EffortFlag,
    IdColumn,
    Kappa,
    ModelFolder,
    RecourseTableOptions,
    TableOptions,
    model_columns,
    with_flags,
)
from veritracer.app.cli.output import note, outcome_lines, percent
from veritracer.errors import DataError, as_typed, listing, message
from veritracer.options import ExplainOptions

if TYPE_CHECKING:
    from veritracer.tables import RunSummary

NOT_ACHIEVED = 1


@with_flags
def explain(
    model: ModelFolder,
    table: Applicants,
    options: ExplainOptions,
    rows: RecourseTableOptions,
    id_column: IdColumn = None,
) -> None:
    """Find a certified counterfactual near each declined row, in tables of any size.

    The output has the values of the counterfactual, then the decision and the probability of the row as it is
    (recourse.decision, recourse.probability), its recourse.status (certified, valid or none), recourse.reason
    and what was proved. Without --out it goes to standard output. If the command is stopped, the same command
    continues with the batches that are missing.
    """
    known, keep = model_columns(model), tuple(rows.kept(id_column))
    rows.check(table)
    left_out: list[str] = []

    def check(source: str, columns: Sequence[str]) -> None:
        tables.check_columns(source, columns, known, keep, rows.ignored)
        gone = set(known.ignored_names).difference(keep)
        left_out[:] = [name for name in columns if name in gone]

    job = rows.job("explain", model, asdict(options), keep=keep, sentences=rows.sentences, rules=rows.rules)
    inputs = rows.inputs(table, check)
    out = rows.open_output(job.document(), inputs)
    with rows.running("explaining", out) as watch:
        task, engine = partial(tables.do_batch, job), rows.engine_for(inputs, out)
        found = tables.run_table(task, inputs.batches, out, engine, rejects=rows.rejects, progress=watch)
    rows.print_notes(found)
    if rows.out is None:
        return
    rows.print_summary(found, [*outcome_lines(found), f"The recourse: {rows.out}"])
    if left_out:
        said = f"not in the output: {listing(left_out)}; --keep {as_typed(left_out)} adds it"
        note([said], quiet=rows.quiet)


@with_flags
def certify(
    model: ModelFolder,
    table: Applicants,
    counterfactuals: Annotated[
        str,
        typer.Argument(metavar="COUNTERFACTUALS", help="CSV or Parquet, row by row; - reads standard input."),
    ],
    rows: TableOptions,
    id_column: IdColumn = None,
    kappa: Kappa = None,
    effort: EffortFlag = "fast",
    time_budget: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds of --effort exact for each batch.", show_default=False),
    ] = None,
) -> None:
    """Certify counterfactuals from any source; exit with 1 if one of them has no proof.

    A row and its counterfactual are in the same place of their tables. Pairs of equal rows do not count.
    --separator, --encoding and --query describe TABLE; counterfactuals are in UTF-8, as explain writes them,
    and their separator is detected. If the command is stopped, the same command continues with the batches
    that are missing.
    """
    if table == counterfactuals == tables.STANDARD:
        raise DataError(message("two tables", "standard input twice", "save one of them as a file"))
    known, keep = model_columns(model), tuple(rows.kept(id_column))
    rows.check(table, counterfactuals)

    def check(source: str, columns: Sequence[str]) -> None:
        tables.check_columns(source, columns, known, keep, rows.ignored)

    def check_other(source: str, columns: Sequence[str]) -> None:
        present = [[name for name in names if name in columns] for names in (keep, rows.ignored)]
        tables.check_columns(source, columns, known, *present)

    if time_budget is not None and effort == "fast":
        raise DataError(message("--effort exact for --time-budget", "--effort fast", "add --effort exact"))
    job = rows.job(
        "certify", model, {"kappa": kappa, "effort": effort, "time_budget": time_budget}, keep=keep
    )
    inputs = rows.inputs(table, check)
    others = rows.inputs(counterfactuals, check_other, rows.for_results())
    if counterfactuals != tables.STANDARD:
        others.check_first()
    asked = {**job.document(), "counterfactuals": others.document()["table"]}
    out = tables.Output() if rows.out is None else rows.open_output(asked, inputs, others)
    with rows.running("certifying", out) as watch:
        found = tables.run_table(
            partial(tables.do_batch, job),
            partial(tables.paired, inputs, others),
            out,
            rows.engine_for(inputs, out),
            rejects=rows.rejects,
            progress=watch,
        )
    rows.print_notes(found)
    rows.print_summary(
        found, [_certify_summary(found), *([] if rows.out is None else [f"The certificates: {rows.out}"])]
    )
    if found.counts["unknown"] or found.counts["broken"] or found.counts["invalid"]:
        raise typer.Exit(NOT_ACHIEVED)


def _certify_summary(found: RunSummary) -> str:
    counts = found.counts
    return (
        f"{counts['rows']:,} pairs at {found.facts['models']}: {counts['certified']:,} certified, "
        f"{counts['unknown']:,} valid today without a proof, "
        + (f"{counts['broken']:,} valid today but broken by a model of the set, " if counts["broken"] else "")
        + f"{counts['invalid']:,} not valid, {counts['unchanged']:,} unchanged."
    )


@with_flags
def predict(model: ModelFolder, table: Applicants, rows: TableOptions, id_column: IdColumn = None) -> None:
    """Decide each row of a table: its number, the decision, and the probability of the favourable label.

    Without --out the decisions go to standard output.
    """
    known, keep = model_columns(model), tuple(rows.kept(id_column))
    rows.check(table)
    job = rows.job("predict", model, {}, keep=keep)

    def check(source: str, columns: Sequence[str]) -> None:
        tables.check_columns(source, columns, known, keep, rows.ignored)

    inputs = rows.inputs(table, check)
    out = rows.open_output(job.document(), inputs)
    with rows.running("deciding", out) as watch:
        task, engine = partial(tables.do_batch, job), rows.engine_for(inputs, out)
        found = tables.run_table(task, inputs.batches, out, engine, rejects=rows.rejects, progress=watch)
    rows.print_notes(found)
    if rows.out is None:
        return
    number, favourable = found.counts["rows"], found.counts["favourable"]
    share = percent(favourable / number)
    lines = [f"{number:,} rows, {favourable:,} of them favourable, which is {share}."]
    rows.print_summary(found, [*lines, f"The decisions: {rows.out}"])
