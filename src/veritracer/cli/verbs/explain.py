"""``veritracer explain``: applicants in, certified recourse out, in bounded memory."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from veritracer import distributed, persistence, streaming, tablefiles
from veritracer.cli.describing import check_rejects
from veritracer.cli.options import (
    Agreement,
    Alternatives,
    AsJson,
    BlockFormat,
    BlockRows,
    Bulk,
    Codes,
    Cost,
    Drift,
    EngineName,
    Extremes,
    Force,
    IdColumn,
    Ignore,
    Kappa,
    Keep,
    LetterColumns,
    LetterFields,
    LetterFormat,
    LetterLanguage,
    Letters,
    LetterTemplate,
    Limits,
    MaxChanges,
    ModelFolder,
    Overshoot,
    Pdf,
    Plausible,
    Quiet,
    RejectsFile,
    Rules,
    Sentences,
    Separator,
    SpreadsheetSafe,
    Workers,
    amounts,
    carried,
    check_output,
    drifts,
    letter_terms,
    names,
    open_applicants,
    print_outcome,
    read_key,
    saved_model,
    schema_file,
)
from veritracer.cli.printing import note, percent, print_json, progress, say
from veritracer.defaults import BLOCK_ROWS
from veritracer.errors import DataError, message

if TYPE_CHECKING:
    from veritracer.distributed import Question
    from veritracer.recourse import Recourse
    from veritracer.serving.client import Client
    from veritracer.serving.tables import RemotelyExplained
    from veritracer.streaming import Explained

NOT_ACHIEVED = 1


def explain(
    model: ModelFolder,
    table: Annotated[
        str | None,
        typer.Argument(metavar="TABLE", help="CSV or Parquet; - is standard input.", show_default=False),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="CSV, Parquet or .jsonl, or a folder (its URL) for blocks; else standard output."),
    ] = None,
    kappa: Kappa = None,
    max_changes: MaxChanges = None,
    cost: Cost = None,
    overshoot: Overshoot = 0.0,
    drift: Drift = None,
    plausibility: Annotated[
        float | None,
        typer.Option(min=0.0, help="How strongly to stay near the data.", show_default=False),
    ] = None,
    agreement: Agreement = None,
    plausible: Plausible = False,
    limit: Limits = None,
    extremes: Extremes = False,
    n: Alternatives = 1,
    time_budget: Annotated[
        float | None,
        typer.Option(min=0.0, help="Seconds for each 16,384 rows, then the best so far.", show_default=False),
    ] = None,
    everyone: Annotated[
        bool, typer.Option("--all/--only-unfavourable", help="Also those who are favourable already.")
    ] = False,
    refine: Annotated[
        bool,
        typer.Option("--refine/--no-refine", help="Look for the closest, or take the generator's answer."),
    ] = True,
    radius: Annotated[
        bool, typer.Option("--radius/--no-radius", help="Look for the largest kappa, or not (faster).")
    ] = True,
    schema: Rules = None,
    keep: Keep = None,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    rejects: RejectsFile = None,
    sentences: Sentences = False,
    letters: Letters = None,
    codes: Codes = None,
    template: LetterTemplate = None,
    letter_format: LetterFormat = None,
    field: LetterFields = None,
    field_column: LetterColumns = None,
    language: LetterLanguage = "en",
    pdf: Pdf = False,
    require_certified: Annotated[
        bool, typer.Option("--require-certified", help="Exit with 1 unless every answer is certified.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Ask a service instead of a model; the table is then the only argument.",
            show_default=False,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="The service's API key, in a file.", show_default=False)
    ] = None,
    spreadsheet_safe: SpreadsheetSafe = False,
    separator: Separator = ",",
    engine: EngineName = "local",
    workers: Workers = None,
    block_rows: BlockRows = BLOCK_ROWS,
    block_format: BlockFormat = "parquet",
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Give every declined row the closest certified counterfactual, for files of any length.

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
    place = model if server is not None else table
    if place is None or (server is not None and table is not None):
        received = "one of them" if server is None else "a model beside --server"
        remedy = "veritracer explain MODEL TABLE, or veritracer explain TABLE --server URL"
        raise DataError(message("a model and a table", received, remedy))
    kept, unseen = carried(keep, id_column), names(ignore)
    known = None if server is not None else persistence.columns(model)
    bulk = Bulk(engine, workers, block_rows, block_format)
    if server is None and bulk.wanted(place):
        bulk.refuse({"--letters": letters, "--rejects": rejects})
        question = bulk.question(
            model,
            options,
            keep=tuple(kept),
            ignore=tuple(unseen),
            sentences=sentences,
            rules=None if schema is None else schema_file(schema),
            spreadsheet_safe=spreadsheet_safe,
        )
        _in_blocks(bulk, question, place, separator, out, require_certified, quiet=quiet, as_json=as_json)
        return
    check_output(out, [place], force=force)
    check_rejects(rejects, [place], out, force=force)
    found: Explained | RemotelyExplained
    with ExitStack() as stack:
        rejected = stack.enter_context(tablefiles.open_rejects(rejects, separator))
        source = stack.enter_context(open_applicants(place, separator, rejected))
        asked = letter_terms(letters, codes, template, letter_format, field, field_column, language, pdf)
        carry = [] if asked is None else list(asked.columns.values())
        if known is not None:
            tablefiles.check_columns(source, known, [*kept, *carry], unseen)
        writer = None if asked is None else stack.enter_context(streaming.letter_folder(asked))
        sink = stack.enter_context(
            tablefiles.open_sink(
                out,
                kind="jsonl" if as_json and out is None else None,
                spreadsheet_safe=spreadsheet_safe,
            )
        )
        rest: dict[str, Any] = {"options": options, "keep": kept, "sentences": sentences}
        if server is not None:
            _refuse_local(
                {"--schema": schema, "--letters": letters, "--ignore": ignore, "--rejects": rejects}
            )
            client = stack.enter_context(_client(server, api_key_file))
            watch = stack.enter_context(progress("explaining", quiet=quiet))
            found = explain_remotely(client, source, sink, watch=watch, **rest)
        else:
            recourse = _recourse(model, schema)
            watch = stack.enter_context(progress("explaining", quiet=quiet))
            also = None if writer is None else writer.write
            rest |= {"carry": carry, "ignore": unseen, "rejects": rejected}
            found = streaming.explain_table(recourse, source, sink, also=also, watch=watch, **rest)
    told = rejected.note(str(rejects)) if rejected else []
    note([*found.notes, *sink.notes(), *told], quiet=quiet)
    if out is not None:
        _print_summary(found, out, quiet=quiet, as_json=as_json)
    if require_certified and found.certified < found.asked:
        raise typer.Exit(NOT_ACHIEVED)


def _in_blocks(
    bulk: Bulk,
    asked: Question,
    table: str,
    separator: str,
    out: str | None,
    require_certified: bool,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Explain many tables, or one on many cores."""
    inputs = bulk.inputs(table, separator)
    folder = bulk.folder(out, asked.asked("explain", inputs))
    args = asked, inputs, folder, bulk.engine_for()
    outcome = bulk.run("explaining", distributed.explain_blocks, *args, folder=folder, quiet=quiet)
    found = cast("Explained", outcome.ended)
    print_outcome(outcome, out, _summary(found), quiet=quiet, as_json=as_json)
    if require_certified and found.certified < found.asked:
        raise typer.Exit(NOT_ACHIEVED)


def _refuse_local(given: dict[str, Any]) -> None:
    """Refuse what only a model at hand can do."""
    for name, value in given.items():
        if value is not None:
            remedy = "leave it out, or name a model instead of --server"
            raise DataError(message("what a service can be asked", name, remedy))


def _client(url: str, key_file: Path | None) -> Client:
    """The service, with the key in the file or in VERITRACER_API_KEY."""
    import veritracer as vt

    key = os.environ.get("VERITRACER_API_KEY") if key_file is None else read_key(key_file)
    return vt.Client(url, key)


def explain_remotely(*args: Any, **options: Any) -> RemotelyExplained:
    """What a service makes of the table; imported when it is needed."""
    from veritracer.serving.tables import explain_remotely as run

    return run(*args, **options)


def _recourse(folder: str, schema: Path | None) -> Recourse:
    rules = None if schema is None else schema_file(schema)
    return saved_model(folder).recourse(rules)


def _print_summary(found: Explained | RemotelyExplained, out: str, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json({"out": out, **asdict(found)})
    elif not quiet:
        say(*_summary(found), f"The recourse: {out}")


def _summary(found: Explained | RemotelyExplained) -> list[str]:
    share = percent(found.certified / found.asked if found.asked else None)
    return [
        f"{found.rows:,} rows, {found.favourable:,} of them favourable already.",
        f"Of the other {found.asked:,}: {found.certified:,} with certified recourse at "
        f"{found.models}, which is {share}; {found.valid:,} with recourse that is valid today, "
        f"{found.none:,} without.",
    ]
