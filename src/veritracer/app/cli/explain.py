"""``veritracer explain``: applicants in, certified recourse out, in bounded memory."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from veritracer import distributed, persistence, streaming
from veritracer.app.cli import options as typed
from veritracer.app.cli.asking import Asked, Opened
from veritracer.app.cli.options import (
    Bulk,
    ReadOptions,
    amounts,
    carried,
    drifts,
    letter_terms,
    names,
    print_outcome,
    read_key,
    saved_model,
    schema_file,
)
from veritracer.app.cli.output import note, outcome_lines, print_json, progress, say
from veritracer.errors import DataError, as_typed, listing, message
from veritracer.options import BLOCK_ROWS

if TYPE_CHECKING:
    from veritracer.app.serve.client import Client
    from veritracer.app.serve.tables import RemotelyExplained
    from veritracer.streaming import Explained, LetterTerms

NOT_ACHIEVED = 1


def explain(
    model: typed.ModelFolder,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE",
            help="CSV or Parquet, a folder or pattern of them, or a URL; - is standard input.",
            show_default=False,
        ),
    ] = None,
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
    place = _table(model, table, server)
    asked = Asked(
        table=place,
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
    found: Explained | RemotelyExplained
    bulk = Bulk(engine, workers, block_rows, block_format)
    if server is None and bulk.wanted(place, query):
        bulk.refuse({"--letters": letters, "--rejects": rejects})
        found = _in_blocks(asked, model, bulk)
    else:
        if server is not None:
            _refuse_local({"--schema": schema, "--letters": letters, "--rejects": rejects})
        asked.check(force=force)
        terms = letter_terms(letters, codes, template, letter_format, field, field_column, language, pdf)
        found = _at_hand(asked, model, terms) if server is None else _by_service(asked, server, api_key_file)
    if require_certified and found.certified < found.asked:
        raise typer.Exit(NOT_ACHIEVED)


def _table(model: str, table: str | None, server: str | None) -> str:
    """The table: the second argument, or the only one where a service has the model."""
    if server is None and table is not None:
        return table
    if server is not None and table is None:
        return model
    received = "one of them" if server is None else "a model beside --server"
    remedy = "veritracer explain MODEL TABLE, or veritracer explain TABLE --server URL"
    raise DataError(message("a model and a table", received, remedy))


def _at_hand(asked: Asked, model: str, terms: LetterTerms | None) -> Explained:
    """Explain one table in this process."""
    known = persistence.columns(model)
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


def _by_service(asked: Asked, url: str, key_file: Path | None) -> RemotelyExplained:
    """Explain one table by a service."""
    from veritracer.app.serve.tables import explain_remotely  # here: only this needs it

    how: dict[str, Any] = {"options": asked.options, "keep": asked.keep, "ignore": asked.ignore}
    waiting = progress("explaining", quiet=asked.quiet)
    with asked.opened(None) as opened, _client(url, key_file) as client, waiting as watch:
        found = explain_remotely(
            client, opened.source, opened.sink, watch=watch, sentences=asked.sentences, **how
        )
    _end(asked, found, opened)
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


def _end(asked: Asked, found: Explained | RemotelyExplained, opened: Opened) -> None:
    """Print how it ended."""
    asked.tell(found.notes, opened)
    if asked.out is not None and asked.as_json:
        print_json({"out": asked.out, **asdict(found)})
    elif asked.out is not None and not asked.quiet:
        say(*outcome_lines(found), f"The recourse: {asked.out}")
