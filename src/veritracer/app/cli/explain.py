"""``explain``, ``certify`` and ``predict``: read a table of applicants, write a row for each."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from veritracer import distributed, model_folder, streaming, tables
from veritracer.app.cli import options as typed
from veritracer.app.cli.asking import Asked, Opened
from veritracer.app.cli.options import (
    Bulk,
    ReadOptions,
    amounts,
    carried,
    check_output,
    drifts,
    letter_terms,
    names,
    open_applicants,
    print_outcome,
    saved_model,
    schema_file,
)
from veritracer.app.cli.output import note, outcome_lines, percent, print_json, progress, say
from veritracer.app.cli.schema_options import check_rejects
from veritracer.errors import DataError, as_typed, listing, message
from veritracer.options import BLOCK_ROWS

if TYPE_CHECKING:
    from veritracer.distributed import Question
    from veritracer.streaming import Certified, Explained, LetterTerms

NOT_ACHIEVED = 1


def explain(
    model: typed.ModelFolder,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="CSV or Parquet, a folder or pattern of them, or a URL; - is standard input.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(help="CSV, Parquet or .jsonl, or a folder (its URL) for blocks; else standard output."),
    ] = None,
    kappa: typed.Kappa = None,
    max_changes: typed.MaxChanges = None,
    cost: typed.Cost = None,
    overshoot: typed.Overshoot = 0.0,
    drift: typed.Drift = None,
    plausibility: Annotated[
        float | None,
        typer.Option(min=0.0, help="How strongly to stay near the data.", show_default=False),
    ] = None,
    agreement: typed.Agreement = None,
    plausible: typed.Plausible = False,
    limit: typed.Limits = None,
    extremes: typed.Extremes = False,
    n: typed.Alternatives = 1,
    time_budget: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds for each 16,384 rows, then the best so far.", show_default=False),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--all/--only-unfavourable", help="Also those who are favourable already.")
    ] = False,
    refine: Annotated[
        bool,
        typer.Option("--refine/--no-refine", help="Search for a near one, or take the generator's answer."),
    ] = True,
    radius: Annotated[
        bool, typer.Option("--radius/--no-radius", help="Look for the largest kappa, or not (faster).")
    ] = True,
    schema: typed.Rules = None,
    keep: typed.Keep = None,
    id_column: typed.IdColumn = None,
    ignore: typed.Ignore = None,
    rejects: typed.RejectsFile = None,
    sentences: typed.Sentences = False,
    letters: typed.Letters = None,
    codes: typed.Codes = None,
    template: typed.LetterTemplate = None,
    letter_format: typed.LetterFormat = None,
    field: typed.LetterFields = None,
    field_column: typed.LetterColumns = None,
    language: typed.LetterLanguage = "en",
    pdf: typed.Pdf = False,
    require_certified: Annotated[
        bool, typer.Option("--require-certified", help="Exit with 1 unless every answer is certified.")
    ] = False,
    spreadsheet_safe: typed.SpreadsheetSafe = False,
    separator: typed.Separator = None,
    encoding: typed.TextEncoding = "utf-8",
    multiline_cells: typed.MultilineCells = False,
    query: typed.Query = None,
    engine: typed.EngineName = "local",
    workers: typed.Workers = None,
    block_rows: typed.BlockRows = BLOCK_ROWS,
    block_format: typed.BlockFormat = "parquet",
    force: typed.Force = False,
    quiet: typed.Quiet = False,
    as_json: typed.AsJson = False,
) -> None:
    """Give every declined row a certified counterfactual near it that others believe, in files of any size.

    With --workers or --engine ray, or for a folder or pattern of tables, work is done in blocks: --out is a
    folder with a file for each, and the same command goes on where a run was stopped.

    The output has the values as a person should read them, then recourse.decision and recourse.probability
    (of today's row: who is accepted already), recourse.status (certified, valid or none), recourse.reason and
    what was proved.
    """
    options: dict[str, Any] = {
        "kappa": kappa,
        "max_changes": max_changes,
        "cost": amounts("--cost", cost),
        "only_unfavourable": not everyone,
        "plausibility": plausibility,
        "agreement": agreement,
        "plausible": plausible,
        "limits": amounts("--limit", limit),
        "extremes": extremes,
        "n": n,
        "time_budget": time_budget,
        "overshoot": overshoot,
        "drift": drifts("--drift", drift),
        "refine": refine,
        "search_radius": radius,
    }
    asked = Asked(
        table=table,
        out=out,
        options=options,
        keep=carried(keep, id_column),
        ignore=names(ignore),
        rules=None if schema is None else schema_file(schema),
        sentences=sentences,
        rejects=rejects,
        spreadsheet_safe=spreadsheet_safe,
        reading=ReadOptions.of(separator, encoding, multiline_cells, query),
        quiet=quiet,
        as_json=as_json,
    )
    bulk = Bulk(engine, workers, block_rows, block_format)
    if bulk.wanted(table, query):
        bulk.refuse({"--letters": letters, "--rejects": rejects})
        found = _in_blocks(asked, model, bulk)
    else:
        asked.check(force=force)
        terms = letter_terms(letters, codes, template, letter_format, field, field_column, language, pdf)
        found = _at_hand(asked, model, terms)
    if require_certified and found.certified < found.asked:
        raise typer.Exit(NOT_ACHIEVED)


def _at_hand(asked: Asked, model: str, terms: LetterTerms | None) -> Explained:
    """Explain one table in this process."""
    known = model_folder.columns(model)
    with asked.opened(known, terms) as opened:
        left_out = set(() if known is None else known.ignored_names).difference(asked.keep)
        gone = [name for name in opened.source.columns if name in left_out]
        recourse = saved_model(model).recourse(asked.rules)
        with progress("explaining", quiet=asked.quiet) as watch:
            found = streaming.explain_table(
                recourse,
                opened.source,
                opened.sink,
                options=asked.options,
                keep=asked.keep,
                carry=opened.carry,
                ignore=asked.ignore,
                rejects=opened.rejected,
                sentences=asked.sentences,
                also=None if opened.letters is None else opened.letters.write,
                watch=watch,
            )
    _end(asked, found, opened)
    if gone and asked.out is not None:
        note([f"not in the output: {listing(gone)}; --keep {as_typed(gone)} adds it"], quiet=asked.quiet)
    return found


def _in_blocks(asked: Asked, model: str, bulk: Bulk) -> Explained:
    """Explain many tables, or one on many cores."""
    engine = bulk.engine_for()
    question, inputs = asked.question(model, bulk), bulk.inputs(asked.table, asked.reading)
    folder = bulk.folder(asked.out, question.asked("explain", inputs))
    args = question, inputs, folder, engine
    outcome = bulk.run("explaining", distributed.explain_blocks, *args, folder=folder, quiet=asked.quiet)
    found = cast("Explained", outcome.ended)
    print_outcome(outcome, asked.out, outcome_lines(found), quiet=asked.quiet, as_json=asked.as_json)
    return found


def _end(asked: Asked, found: Explained, opened: Opened) -> None:
    """Print how it ended."""
    asked.tell(found.notes, opened)
    if asked.out is not None and asked.as_json:
        print_json({"out": asked.out, **asdict(found)})
    elif asked.out is not None and not asked.quiet:
        say(*outcome_lines(found), f"The recourse: {asked.out}")


def certify(
    model: typed.ModelFolder,
    table: typed.Applicants,
    counterfactuals: Annotated[
        str,
        typer.Argument(metavar="COUNTERFACTUALS", help="CSV or Parquet, row by row; - is standard input."),
    ],
    out: Annotated[
        str | None,
        typer.Option(help="CSV, Parquet or JSON lines with a line for each row.", show_default=False),
    ] = None,
    kappa: typed.Kappa = None,
    keep: typed.Keep = None,
    id_column: typed.IdColumn = None,
    ignore: typed.Ignore = None,
    rejects: typed.RejectsFile = None,
    spreadsheet_safe: typed.SpreadsheetSafe = False,
    separator: typed.Separator = None,
    encoding: typed.TextEncoding = "utf-8",
    multiline_cells: typed.MultilineCells = False,
    query: typed.Query = None,
    engine: typed.EngineName = "local",
    workers: typed.Workers = None,
    block_rows: typed.BlockRows = BLOCK_ROWS,
    block_format: typed.BlockFormat = "parquet",
    force: typed.Force = False,
    quiet: typed.Quiet = False,
    as_json: typed.AsJson = False,
) -> None:
    """Certify counterfactuals that came from anywhere; exit with 1 if one of them has no proof.

    A row and its counterfactual are at the same place of their tables. Pairs of equal rows do not count.
    --separator, --encoding and --query are about TABLE; counterfactuals are in UTF-8, as explain writes them,
    and their separator is detected. With --workers or --engine ray, or for a folder or pattern of tables,
    work is done in blocks: --out is a folder with a file for each, and the same command goes on where a run
    was stopped.
    """
    reading = ReadOptions.of(separator, encoding, multiline_cells, query)
    if table == counterfactuals == tables.STANDARD:
        raise DataError(message("two tables", "standard input twice", "save one of them as a file"))
    kept, unseen, known = carried(keep, id_column), names(ignore), model_folder.columns(model)
    bulk = Bulk(engine, workers, block_rows, block_format)
    if bulk.wanted(table, query):
        bulk.refuse({"--rejects": rejects})
        asked = bulk.question(
            model, {"kappa": kappa}, keep=tuple(kept), ignore=tuple(unseen), spreadsheet_safe=spreadsheet_safe
        )
        _certify_in_blocks(bulk, asked, table, counterfactuals, reading, out, quiet=quiet, as_json=as_json)
        return
    check_output(out, [table, counterfactuals], force=force)
    check_rejects(rejects, [table, counterfactuals], out, force=force)
    with ExitStack() as stack:
        rejected = stack.enter_context(tables.open_rejects(rejects))
        partners = None if rejected is None else tables.Partners(rejected)
        originals = stack.enter_context(open_applicants(table, reading, rejected))
        answers = stack.enter_context(open_applicants(counterfactuals, reading.for_results(), partners))
        if known is not None:
            tables.check_pairs(originals, answers, known, kept, unseen)
        sink = None
        if out is not None:
            sink = stack.enter_context(tables.open_sink(out, spreadsheet_safe=spreadsheet_safe))
        loaded = saved_model(model)
        watch = stack.enter_context(progress("certifying", quiet=quiet))
        found = streaming.certify_tables(
            loaded,
            originals,
            answers,
            sink,
            kappa=kappa,
            keep=kept,
            ignore=unseen,
            watch=watch,
            rejects=partners,
        )
    told = rejected.note(str(rejects)) if rejected else []
    note([*found.notes, *(sink.notes() if sink else []), *told], quiet=quiet)
    if as_json:
        print_json({"out": out, **asdict(found)})
    elif not quiet:
        say(_certify_summary(found), *([] if out is None else [f"The certificates: {out}"]))
    if found.unknown or found.invalid:
        raise typer.Exit(NOT_ACHIEVED)


def _certify_in_blocks(
    bulk: Bulk,
    asked: Question,
    table: str,
    counterfactuals: str,
    reading: ReadOptions,
    out: str | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Certify many tables, or one on many cores."""
    inputs, others = bulk.inputs(table, reading), bulk.inputs(counterfactuals, reading.for_results())
    folder = bulk.folder(out, asked.asked("certify", inputs))
    args = asked, inputs, others, folder, bulk.engine_for()
    outcome = bulk.run("certifying", distributed.certify_blocks, *args, folder=folder, quiet=quiet)
    found = cast("Certified", outcome.ended)
    print_outcome(outcome, out, [_certify_summary(found)], quiet=quiet, as_json=as_json)
    if found.unknown or found.invalid:
        raise typer.Exit(NOT_ACHIEVED)


def _certify_summary(found: Certified) -> str:
    return (
        f"{found.rows:,} pairs at {found.models}: {found.certified:,} certified, "
        f"{found.unknown:,} valid today without a proof, {found.invalid:,} not valid, "
        f"{found.unchanged:,} unchanged."
    )


def predict(
    model: typed.ModelFolder,
    table: typed.OneTable,
    out: Annotated[
        str | None,
        typer.Option(help="CSV, Parquet or JSON lines (.jsonl); standard output if left out."),
    ] = None,
    keep: typed.Keep = None,
    id_column: typed.IdColumn = None,
    ignore: typed.Ignore = None,
    rejects: typed.RejectsFile = None,
    spreadsheet_safe: typed.SpreadsheetSafe = False,
    separator: typed.Separator = None,
    encoding: typed.TextEncoding = "utf-8",
    multiline_cells: typed.MultilineCells = False,
    query: typed.Query = None,
    force: typed.Force = False,
    quiet: typed.Quiet = False,
    as_json: typed.AsJson = False,
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
