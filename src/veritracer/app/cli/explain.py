"""``explain``, ``certify`` and ``predict``: read a table of applicants, write a row for each."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer

from veritracer import distributed, model_folder, streaming, tables
from veritracer.app.cli.options import (
    Applicants,
    IdColumn,
    Kappa,
    ModelFolder,
    OneTable,
    RecourseTableOptions,
    RunOptions,
    TableOptions,
    open_applicants,
    print_outcome,
    saved_model,
    with_flags,
)
from veritracer.app.cli.output import note, outcome_lines, percent, print_json, progress, say
from veritracer.errors import DataError, as_typed, listing, message
from veritracer.options import ExplainOptions

if TYPE_CHECKING:
    from veritracer.streaming import Certified

NOT_ACHIEVED = 1


@with_flags
def explain(
    model: ModelFolder,
    table: Applicants,
    options: ExplainOptions,
    rows: RecourseTableOptions,
    run: RunOptions,
    id_column: IdColumn = None,
) -> None:
    """Find a certified counterfactual near each declined row, in tables of any size.

    The output has the values of the counterfactual, then the decision and the probability of the row as it is
    (recourse.decision, recourse.probability), its recourse.status (certified, valid or none), recourse.reason
    and what was proved. Without --out it goes to standard output.

    With --workers or --engine ray, or for a folder or pattern of tables, work is done in blocks: --out is a
    folder with a file for each, and the same command continues a run that was stopped.
    """
    keep = rows.kept(id_column)
    if run.wanted(table, rows.query):
        run.refuse({"--rejects": rows.rejects})
        _explain_in_blocks(model, table, options, rows, run, keep)
        return
    rows.check(table)
    known = model_folder.columns(model)
    with rows.opened(table, known, keep) as opened:
        left_out = set(() if known is None else known.ignored_names).difference(keep)
        gone = [name for name in opened.source.columns if name in left_out]
        recourse = saved_model(model).recourse(rows.rules)
        with progress("explaining", quiet=rows.quiet) as watch:
            found = streaming.explain_table(
                recourse,
                opened.source,
                opened.sink,
                options=asdict(options),
                keep=keep,
                ignore=rows.ignored,
                rejects=opened.rejected,
                sentences=rows.sentences,
                watch=watch,
            )
    note(rows.notes(found.notes, opened.sink, opened.rejected), quiet=rows.quiet)
    if rows.out is None:
        return
    if rows.as_json:
        print_json({"out": rows.out, **asdict(found)})
    elif not rows.quiet:
        say(*outcome_lines(found), f"The recourse: {rows.out}")
    if gone:
        note([f"not in the output: {listing(gone)}; --keep {as_typed(gone)} adds it"], quiet=rows.quiet)


def _explain_in_blocks(
    model: str,
    table: str,
    options: ExplainOptions,
    rows: RecourseTableOptions,
    run: RunOptions,
    keep: list[str],
) -> None:
    """Explain many tables, or one on many cores."""
    engine = run.engine_for()
    question = run.question(
        model,
        asdict(options),
        keep=tuple(keep),
        ignore=tuple(rows.ignored),
        sentences=rows.sentences,
        rules=rows.rules,
        spreadsheet_safe=rows.spreadsheet_safe,
    )
    inputs = run.inputs(table, rows)
    folder = run.folder(rows.out, question.asked("explain", inputs))
    args = question, inputs, folder, engine
    outcome = run.run("explaining", distributed.explain_blocks, *args, folder=folder, quiet=rows.quiet)
    print_outcome(outcome, rows, outcome_lines(cast("streaming.Explained", outcome.ended)))


@with_flags
def certify(
    model: ModelFolder,
    table: Applicants,
    counterfactuals: Annotated[
        str,
        typer.Argument(metavar="COUNTERFACTUALS", help="CSV or Parquet, row by row; - reads standard input."),
    ],
    rows: TableOptions,
    run: RunOptions,
    id_column: IdColumn = None,
    kappa: Kappa = None,
) -> None:
    """Certify counterfactuals from any source; exit with 1 if one of them has no proof.

    A row and its counterfactual are in the same place of their tables. Pairs of equal rows do not count.
    --separator, --encoding and --query describe TABLE; counterfactuals are in UTF-8, as explain writes them,
    and their separator is detected. With --workers or --engine ray, or for a folder or pattern of tables,
    work is done in blocks: --out is a folder with a file for each, and the same command continues a run that
    was stopped.
    """
    if table == counterfactuals == tables.STANDARD:
        raise DataError(message("two tables", "standard input twice", "save one of them as a file"))
    keep, known = rows.kept(id_column), model_folder.columns(model)
    if run.wanted(table, rows.query):
        run.refuse({"--rejects": rows.rejects})
        _certify_in_blocks(model, table, counterfactuals, kappa, rows, run, keep)
        return
    rows.check(table, counterfactuals)
    with ExitStack() as stack:
        rejected = stack.enter_context(tables.open_rejects(rows.rejects))
        partners = None if rejected is None else tables.Partners(rejected)
        originals = stack.enter_context(open_applicants(table, rows, rejected))
        answers = stack.enter_context(open_applicants(counterfactuals, rows.for_results(), partners))
        if known is not None:
            tables.check_pairs(originals, answers, known, keep, rows.ignored)
        sink = None if rows.out is None else stack.enter_context(rows.open_sink())
        found = streaming.certify_tables(
            saved_model(model),
            originals,
            answers,
            sink,
            kappa=kappa,
            keep=keep,
            ignore=rows.ignored,
            watch=stack.enter_context(progress("certifying", quiet=rows.quiet)),
            rejects=partners,
        )
    note(rows.notes(found.notes, sink, rejected), quiet=rows.quiet)
    if rows.as_json:
        print_json({"out": rows.out, **asdict(found)})
    elif not rows.quiet:
        say(_certify_summary(found), *([] if rows.out is None else [f"The certificates: {rows.out}"]))
    if found.unknown or found.invalid:
        raise typer.Exit(NOT_ACHIEVED)


def _certify_in_blocks(
    model: str,
    table: str,
    counterfactuals: str,
    kappa: float | None,
    rows: TableOptions,
    run: RunOptions,
    keep: list[str],
) -> None:
    """Certify many tables, or one on many cores."""
    engine = run.engine_for()
    question = run.question(
        model,
        {"kappa": kappa},
        keep=tuple(keep),
        ignore=tuple(rows.ignored),
        spreadsheet_safe=rows.spreadsheet_safe,
    )
    inputs, others = run.inputs(table, rows), run.inputs(counterfactuals, rows.for_results())
    folder = run.folder(rows.out, question.asked("certify", inputs))
    args = question, inputs, others, folder, engine
    outcome = run.run("certifying", distributed.certify_blocks, *args, folder=folder, quiet=rows.quiet)
    found = cast("Certified", outcome.ended)
    print_outcome(outcome, rows, [_certify_summary(found)])
    if found.unknown or found.invalid:
        raise typer.Exit(NOT_ACHIEVED)


def _certify_summary(found: Certified) -> str:
    return (
        f"{found.rows:,} pairs at {found.models}: {found.certified:,} certified, "
        f"{found.unknown:,} valid today without a proof, {found.invalid:,} not valid, "
        f"{found.unchanged:,} unchanged."
    )


@with_flags
def predict(model: ModelFolder, table: OneTable, rows: TableOptions, id_column: IdColumn = None) -> None:
    """Decide each row of a table: its number, the decision, and the probability of the favourable label.

    Without --out the decisions go to standard output.
    """
    keep, known = rows.kept(id_column), model_folder.columns(model)
    rows.check(table)
    with ExitStack() as stack:
        rejected = stack.enter_context(tables.open_rejects(rows.rejects))
        source = stack.enter_context(open_applicants(table, rows, rejected))
        if known is not None:
            tables.check_columns(source, known, keep, rows.ignored)
        sink = stack.enter_context(rows.open_sink())
        found = streaming.predict_table(
            saved_model(model),
            source,
            sink,
            keep=keep,
            ignore=rows.ignored,
            rejects=rejected,
            watch=stack.enter_context(progress("deciding", quiet=rows.quiet)),
        )
    note(rows.notes(found.notes, sink, rejected), quiet=rows.quiet)
    if rows.out is not None and rows.as_json:
        print_json({"out": rows.out, **asdict(found)})
    elif rows.out is not None and not rows.quiet:
        share = percent(found.favourable / found.rows)
        say(
            f"{found.rows:,} rows, {found.favourable:,} of them favourable, which is {share}.",
            f"The decisions: {rows.out}",
        )
