"""``veritracer explain``: applicants in, certified recourse out, in bounded memory."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from veritracer import distributed, persistence, streaming, tablefiles
from veritracer.cli.bulk import Bulk, print_outcome
from veritracer.cli.options import (
    Agreement,
    Alternatives,
    Applicants,
    AsJson,
    BlockFormat,
    BlockRows,
    Cost,
    Drift,
    EngineName,
    Extremes,
    Kappa,
    Keep,
    Limits,
    MaxChanges,
    ModelFolder,
    Overshoot,
    Plausible,
    Quiet,
    Rules,
    Sentences,
    Separator,
    SpreadsheetSafe,
    Workers,
    amounts,
    drifts,
    names,
    saved_model,
    schema_file,
    texts,
)
from veritracer.cli.outputs import Force, check_output
from veritracer.cli.printing import note, percent, print_json, progress, say
from veritracer.defaults import BLOCK_ROWS
from veritracer.errors import DataError, message

if TYPE_CHECKING:
    from veritracer.distributed import Question
    from veritracer.recourse import Recourse
    from veritracer.streaming import Explained
    from veritracer.streaming.explaining import Also

NOT_ACHIEVED = 1


def explain(
    model: ModelFolder,
    table: Applicants,
    out: Annotated[
        str | None,
        typer.Option(help="CSV, Parquet or JSON lines (.jsonl); standard output if left out."),
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
    sentences: Sentences = False,
    letters: Annotated[
        Path | None,
        typer.Option(help="Write a letter for each declined row into this new folder.", show_default=False),
    ] = None,
    codes: Annotated[
        Path | None, typer.Option(help="The letters' reason codes (JSON).", show_default=False)
    ] = None,
    template: Annotated[
        Path | None, typer.Option(help="Another template for letters (Jinja2).", show_default=False)
    ] = None,
    letter_format: Annotated[
        Literal["text", "html"] | None,
        typer.Option(help="text or html; else what the template is, or text.", show_default=False),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT", help="What letters say: institution, contact, ...", show_default=False
        ),
    ] = None,
    require_certified: Annotated[
        bool, typer.Option("--require-certified", help="Exit with 1 unless every answer is certified.")
    ] = False,
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

    The output has the values as a person should read them, then recourse.status (certified, valid or none),
    recourse.reason and what was proved.
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
    kept, known = names(keep), persistence.columns(model)
    bulk = Bulk(engine, workers, block_rows, block_format)
    if bulk.wanted(table):
        if letters is not None:
            raise DataError(message("letters of one table", "blocks", "explain it without --workers"))
        rules = None if schema is None else schema_file(schema)
        asked = bulk.question(
            model,
            options,
            keep=tuple(kept),
            sentences=sentences,
            rules=rules,
            spreadsheet_safe=spreadsheet_safe,
        )
        _in_blocks(bulk, asked, table, separator, out, require_certified, quiet=quiet, as_json=as_json)
        return
    check_output(out, [table], force=force)
    with ExitStack() as stack:
        source = stack.enter_context(tablefiles.open_table(table, separator=separator))
        if known is not None:
            tablefiles.check_columns(source, known, kept)
        also = stack.enter_context(_letters(letters, codes, template, letter_format, field))
        sink = stack.enter_context(
            tablefiles.open_sink(
                out,
                kind="jsonl" if as_json and out is None else None,
                spreadsheet_safe=spreadsheet_safe,
            )
        )
        recourse = _recourse(model, schema)
        watch = stack.enter_context(progress("explaining", quiet=quiet))
        found = streaming.explain_table(
            recourse,
            source,
            sink,
            options=options,
            keep=kept,
            sentences=sentences,
            also=also,
            watch=watch,
        )
    note([*found.notes, *sink.notes()], quiet=quiet)
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
    outcome = bulk.run("explaining", distributed.explain_blocks, *args, quiet=quiet)
    found = cast("Explained", outcome.ended)
    print_outcome(outcome, out, _summary(found), quiet=quiet, as_json=as_json)
    if require_certified and found.certified < found.asked:
        raise typer.Exit(NOT_ACHIEVED)


def _letters(
    folder: Path | None,
    codes: Path | None,
    template: Path | None,
    kind: Literal["text", "html"] | None,
    given: list[str] | None,
) -> AbstractContextManager[Also | None]:
    """What writes letters; nothing if none are asked for."""
    if folder is None:
        used = [name for name, v in (("--codes", codes), ("--template", template), ("--field", given)) if v]
        if used:
            received = f"{used[0]} without --letters"
            raise DataError(message("options of letters with a folder for them", received, "add --letters"))
        return nullcontext()
    fields = texts("--field", given)
    return streaming.letter_folder(folder, codes=codes, template=template, kind=kind, fields=fields)


def _recourse(folder: str, schema: Path | None) -> Recourse:
    rules = None if schema is None else schema_file(schema)
    return saved_model(folder).recourse(rules)


def _print_summary(found: Explained, out: str, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json({"out": out, **asdict(found)})
    elif not quiet:
        say(*_summary(found), f"The recourse: {out}")


def _summary(found: Explained) -> list[str]:
    share = percent(found.certified / found.asked if found.asked else None)
    return [
        f"{found.rows:,} rows, {found.favourable:,} of them favourable already.",
        f"Of the other {found.asked:,}: {found.certified:,} with certified recourse at "
        f"{found.models}, which is {share}; {found.valid:,} with recourse that is valid today, "
        f"{found.none:,} without.",
    ]
