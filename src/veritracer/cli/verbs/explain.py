"""``veritracer explain``: applicants in, certified recourse out, in bounded memory."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

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
    from veritracer.schema import Schema
    from veritracer.serving.client import Client
    from veritracer.serving.tables import RemotelyExplained
    from veritracer.streaming import Explained, LetterTerms
    from veritracer.tablefiles.sinks import Sink

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
    place = _table(model, table, server)
    asked = _Asked(
        table=place,
        out=out,
        options=options,
        keep=carried(keep, id_column),
        ignore=names(ignore),
        schema=schema,
        sentences=sentences,
        rejects=rejects,
        spreadsheet_safe=spreadsheet_safe,
        separator=separator,
        require_certified=require_certified,
        quiet=quiet,
        as_json=as_json,
    )
    bulk = Bulk(engine, workers, block_rows, block_format)
    if server is None and bulk.wanted(place):
        bulk.refuse({"--letters": letters, "--rejects": rejects})
        _in_blocks(asked, model, bulk)
        return
    if server is not None:
        _refuse_local({"--schema": schema, "--letters": letters, "--ignore": ignore, "--rejects": rejects})
    check_output(out, [place], force=force)
    check_rejects(rejects, [place], out, force=force)
    terms = letter_terms(letters, codes, template, letter_format, field, field_column, language, pdf)
    if server is None:
        _at_hand(asked, model, terms)
    else:
        _by_service(asked, server, api_key_file)


class _Asked(NamedTuple):
    """What was typed, whoever does the work."""

    table: str
    out: str | None
    options: dict[str, Any]
    keep: list[str]
    ignore: list[str]
    schema: Path | None
    sentences: bool
    rejects: Path | None
    spreadsheet_safe: bool
    separator: str
    require_certified: bool
    quiet: bool
    as_json: bool

    def rules(self) -> Schema | None:
        """What may change, where that is not as the model has it."""
        return None if self.schema is None else schema_file(self.schema)

    def sink(self) -> AbstractContextManager[Sink]:
        """Where answers go."""
        kind: Literal["jsonl"] | None = "jsonl" if self.as_json and self.out is None else None
        return tablefiles.open_sink(self.out, kind=kind, spreadsheet_safe=self.spreadsheet_safe)

    def end(self, found: Explained | RemotelyExplained, notes: list[str]) -> None:
        """Print how it ended, and leave with 1 if that is not what was required."""
        note([*found.notes, *notes], quiet=self.quiet)
        if self.out is not None and self.as_json:
            print_json({"out": self.out, **asdict(found)})
        elif self.out is not None and not self.quiet:
            say(*_summary(found), f"The recourse: {self.out}")
        self.require(found)

    def require(self, found: Explained | RemotelyExplained) -> None:
        """Leave with 1 if every answer was to be certified, and one is not."""
        if self.require_certified and found.certified < found.asked:
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


def _at_hand(asked: _Asked, model: str, terms: LetterTerms | None) -> None:
    """Explain one table in this process."""
    known = persistence.columns(model)
    with ExitStack() as stack:
        rejected = stack.enter_context(tablefiles.open_rejects(asked.rejects, asked.separator))
        source = stack.enter_context(open_applicants(asked.table, asked.separator, rejected))
        carry = [] if terms is None else list(terms.columns.values())
        if known is not None:
            tablefiles.check_columns(source, known, [*asked.keep, *carry], asked.ignore)
        writer = None if terms is None else stack.enter_context(streaming.letter_folder(terms))
        sink = stack.enter_context(asked.sink())
        recourse = saved_model(model).recourse(asked.rules())
        found = streaming.explain_table(
            recourse,
            source,
            sink,
            options=asked.options,
            keep=asked.keep,
            carry=carry,
            ignore=asked.ignore,
            rejects=rejected,
            sentences=asked.sentences,
            also=None if writer is None else writer.write,
            watch=stack.enter_context(progress("explaining", quiet=asked.quiet)),
        )
    asked.end(found, [*sink.notes(), *(rejected.note(str(asked.rejects)) if rejected else [])])


def _by_service(asked: _Asked, url: str, key_file: Path | None) -> None:
    """Explain one table by a service."""
    with ExitStack() as stack:
        source = stack.enter_context(open_applicants(asked.table, asked.separator, None))
        sink = stack.enter_context(asked.sink())
        client = stack.enter_context(_client(url, key_file))
        watch = stack.enter_context(progress("explaining", quiet=asked.quiet))
        found = explain_remotely(
            client,
            source,
            sink,
            options=asked.options,
            keep=asked.keep,
            sentences=asked.sentences,
            watch=watch,
        )
    asked.end(found, sink.notes())


def _in_blocks(asked: _Asked, model: str, bulk: Bulk) -> None:
    """Explain many tables, or one on many cores."""
    question = bulk.question(
        model,
        asked.options,
        keep=tuple(asked.keep),
        ignore=tuple(asked.ignore),
        sentences=asked.sentences,
        rules=asked.rules(),
        spreadsheet_safe=asked.spreadsheet_safe,
    )
    inputs = bulk.inputs(asked.table, asked.separator)
    folder = bulk.folder(asked.out, question.asked("explain", inputs))
    args = question, inputs, folder, bulk.engine_for()
    outcome = bulk.run("explaining", distributed.explain_blocks, *args, folder=folder, quiet=asked.quiet)
    found = cast("Explained", outcome.ended)
    print_outcome(outcome, asked.out, _summary(found), quiet=asked.quiet, as_json=asked.as_json)
    asked.require(found)


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


def _summary(found: Explained | RemotelyExplained) -> list[str]:
    share = percent(found.certified / found.asked if found.asked else None)
    return [
        f"{found.rows:,} rows, {found.favourable:,} of them favourable already.",
        f"Of the other {found.asked:,}: {found.certified:,} with certified recourse at "
        f"{found.models}, which is {share}; {found.valid:,} with recourse that is valid today, "
        f"{found.none:,} without.",
    ]
