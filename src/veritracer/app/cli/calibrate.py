"""``veritracer calibrate``: which kappa to promise, from how far models really move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import veritracer as vt
from veritracer import persistence, streaming, tables
from veritracer.app.cli.options import (
    AsJson,
    IdColumn,
    Ignore,
    ModelFolder,
    MultilineCells,
    Quiet,
    ReadOptions,
    Seed,
    Separator,
    TextEncoding,
    check_table,
    names,
    saved_model,
)
from veritracer.app.cli.output import note, percent, print_json, print_table, say, stages
from veritracer.app.cli.schema_options import ignored
from veritracer.errors import DataError, TargetError, message, unknown_name
from veritracer.options import FINE_TUNING_EPOCHS

if TYPE_CHECKING:
    from veritracer.ledger import Calibration
    from veritracer.ledger.calibration import Cost
    from veritracer.schema import Schema


def calibrate(
    model: ModelFolder,
    history: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FOLDER,...", help="The models deployed before it, in their order.", show_default=False
        ),
    ] = None,
    simulate: Annotated[
        Literal["fine-tune", "next", "seeds", "bootstrap"] | None,
        typer.Option(help="Instead: fine-tune, next, seeds or bootstrap.", show_default=False),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Rows with their decisions: to learn from and to measure on.", show_default=False),
    ] = None,
    next_table: Annotated[
        str | None, typer.Option(help="The next period's rows, for --simulate next.", show_default=False)
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="How many updates to simulate.")] = 30,
    horizon: Annotated[
        int, typer.Option(min=1, help="How many updates in a row a promise has to outlive.")
    ] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Of a simulated fine-tuning.")] = FINE_TUNING_EPOCHS,
    learning_rate: Annotated[
        float | None,
        typer.Option(min=0.0, help="Of it; a fifth of the model's if left out.", show_default=False),
    ] = None,
    cover: Annotated[
        list[str] | None,
        typer.Option(metavar="SHARE,...", help="Shares of updates; 0.5,0.9,0.99.", show_default=False),
    ] = None,
    confidence: Annotated[float, typer.Option(help="How sure to be of a share.")] = 0.95,
    rows: Annotated[int, typer.Option(min=1, help="Declined rows to explain at each kappa.")] = 200,
    refit: Annotated[
        bool, typer.Option("--refit/--no-refit", help="Train a model for each kappa, to see its cost.")
    ] = True,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    seed: Seed = 0,
    separator: Separator = None,
    encoding: TextEncoding = "utf-8",
    multiline_cells: MultilineCells = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure how far updates move a model, which kappa covers how many of them, and what it costs.

    From the models of the past (--history), or by simulated updates: fine-tune and next go on from the
    model, on samples of --table or of --next-table; seeds and bootstrap train from scratch.
    """
    reading = ReadOptions.of(separator, encoding, multiline_cells, None)
    given: dict[str, Any] = {} if cover is None else {"shares": [_share(text) for text in names(cover)]}
    for folder in (model, *names(history)):
        persistence.verified(folder)
    for path in (table, next_table):
        if path is not None:
            check_table(path, reading)
    loaded, notes = saved_model(model), streaming.Notes()
    with notes.taken(), stages("reading", quiet=quiet) as watch:
        unseen = list(ignored(ignore, id_column))
        X, y = _rows(table, loaded.schema_, unseen, reading)
        X_new, y_new = _rows(next_table, loaded.schema_, unseen, reading)
        found = vt.calibrate(
            loaded,
            X,
            y,
            history=names(history),
            simulate=simulate,
            X_new=X_new,
            y_new=y_new,
            runs=runs,
            horizon=horizon,
            epochs=epochs,
            learning_rate=learning_rate,
            confidence=confidence,
            refit=refit,
            rows=rows,
            random_state=seed,
            watch=watch,
            **given,
        )
    note(notes.sentences(), quiet=quiet)
    if as_json:
        print_json(found.to_dict())
    elif not quiet:
        _print_summary(found)


def _rows(table: str | None, schema: Schema, ignore: list[str], reading: ReadOptions) -> tuple[Any, Any]:
    """The features and the decisions of a table; nothing of none."""
    if table is None:
        return None, None
    frame = tables.read_table(table, schema=schema, ignore=ignore, csv=reading.csv)
    if schema.target not in frame.columns:
        expected = f"the column of the decisions in {tables.without_password(table)}"
        raise TargetError(unknown_name(expected, str(schema.target), map(str, frame.columns)))
    return frame[list(schema.names)], frame[schema.target]


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        remedy = "write --cover 0.5,0.9"
        raise DataError(message("shares between 0 and 1 for --cover", repr(text), remedy)) from None


def _print_summary(found: Calibration) -> None:
    from veritracer.ledger.calibration import rounded_up

    say(found.headline(), "")
    layers = [
        [name, f"{row['median']:.3g}", f"{row['largest']:.3g}", f"{row['decided']:g}"]
        for name, row in found.layers.iterrows()
    ]
    header = ("tensor", "median", "largest", "times the farthest")
    print_table("How far, in units of the radius at kappa = 1", header, [[*map(str, row)] for row in layers])
    covered = [
        [
            percent(each.share),
            f"{rounded_up(each.measured):g}",
            f"not known: needs {each.updates_needed} updates"
            if each.kappa is None
            else f"{rounded_up(each.kappa):g}",
        ]
        for each in found.coverage
    ]
    sure = f"kappa, {100 * found.confidence:g} % sure"
    print_table("Which kappa covers", ("of updates", "of these", sure), covered)
    if found.costs:
        columns = ("kappa", "model", "certified", "distance", "accuracy")
        print_table("What it costs", columns, [_cost(each) for each in found.costs])
        say("Today's model may have been trained on the rows that this is measured on; the others were not.")
    say(f"Recommended: {found.recommendation.sentence}")


def _cost(each: Cost) -> list[str]:
    model = f"trained for {each.trained_for:g}" if each.refitted else "today's"
    distance = "–" if each.distance != each.distance else f"{each.distance:.4f}"
    certified = None if each.certified != each.certified else each.certified
    return [f"{each.kappa:g}", model, percent(certified), distance, percent(each.accuracy)]
