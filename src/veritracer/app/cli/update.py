"""``update`` and ``calibrate``: learn from new rows, and choose kappa from past or simulated updates."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import veritracer as vt
from veritracer import model_folder, tables
from veritracer.app.cli.checks import check_folder, check_ledger, check_table
from veritracer.app.cli.fit import save_model
from veritracer.app.cli.options import (
    AsJson,
    CSVOptions,
    IdColumn,
    Ignore,
    KeyFile,
    ModelFolder,
    Quiet,
    ReadOptions,
    Seed,
    names,
    read_key,
    saved_model,
    with_flags,
)
from veritracer.app.cli.output import note, percent, print_json, print_table, say, spinner, stages
from veritracer.app.cli.schema_options import ignored
from veritracer.errors import DataError, TargetError, message, unknown_name
from veritracer.options import FINE_TUNING_EPOCHS
from veritracer.times import parse_time

if TYPE_CHECKING:
    import pandas as pd

    from veritracer.estimator import VeriTraCER
    from veritracer.ledger import Calibration, PromiseError, UpdateReport
    from veritracer.ledger.calibration import Cost
    from veritracer.ledger.update import UpdateVariant
    from veritracer.schema import Schema

NOT_ACHIEVED = 1
MAX_LIMITS_SHOWN = 8
"""Limits that the terminal shows."""


@with_flags
def update(
    model: ModelFolder,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="New rows with their labels: CSV or Parquet; - is standard input."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the updated model.")],
    reading: ReadOptions,
    keep: Annotated[
        str | None,
        typer.Option(metavar="LEDGER", help="Keep every live promise in this ledger.", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Column with the decision; by default the model's own.", show_default=False),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the new rows.")] = FINE_TUNING_EPOCHS,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Learning rate; by default a fifth of the training's.", show_default=False),
    ] = None,
    panel: Annotated[
        Literal["keep", "refit", "none"],
        typer.Option(help="Keep the model's panel, refit it to the new rows, or use none."),
    ] = "keep",
    penalty: Annotated[float, typer.Option(min=0.0, help="Weight of promises that no proof protects.")] = 1.0,
    least_kappa: Annotated[
        float, typer.Option(min=0.0, help="Leave promises below this kappa to the penalty.")
    ] = 0.0,
    max_loss: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Refuse if the promises cost more accuracy than this against the better of a free update "
            "and of training from scratch.",
            show_default=False,
        ),
    ] = None,
    allow_broken: Annotated[int, typer.Option(min=0, help="Allow this many newly broken promises.")] = 0,
    compare: Annotated[
        bool, typer.Option(help="Also train from scratch, and measure the gain from releasing promises.")
    ] = True,
    at: Annotated[
        str | None, typer.Option(help="Live at this date instead of now: 2027-01-31.", show_default=False)
    ] = None,
    key_file: KeyFile = None,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on new rows; with --keep inside the sets of all live promises.

    Exits with 1, and writes nothing, if promises exclude each other, cost too much, or would be broken.
    """
    check_folder(out)
    when = None if at is None else parse_time(at)
    key = None if key_file is None else read_key(key_file)
    model_folder.verified(model)
    check_table(table, reading)
    if keep is not None:
        check_ledger(keep)
    options: dict[str, Any] = {
        "panel": None if panel == "none" else panel,
        "penalty": penalty,
        "least_kappa": least_kappa,
        "max_loss": max_loss,
        "allow_broken": allow_broken,
        "compare": compare,
        "at": when,
    }
    loaded = saved_model(model)
    with tables.collect_warnings() as notes:
        X, y = _labelled_rows(loaded, table, target, list(ignored(ignore, id_column)), reading)
        promises = None if keep is None else vt.ledger.Ledger(keep, create=False, key=key)
        try:
            with spinner("updating", quiet=quiet):
                made = loaded.update(
                    X, y, keep=promises, epochs=epochs, learning_rate=learning_rate, **options
                )
            save_model(made, out)
            recorded = None if promises is None else _record(promises, loaded, made)
        except vt.ledger.PromiseError as error:
            _refuse(error, as_json=as_json)
        finally:
            if promises is not None:
                promises.close()
    note(notes.values(), quiet=quiet)
    if as_json:
        print_json({"model": str(out), "head": recorded, **made.update_.to_plain()})
    elif not quiet:
        print_update(made.update_)
        if recorded is not None:
            say(f"The head of the ledger, with this update: {recorded}")
        say(f"The model: {out}")


def _record(promises: vt.ledger.Ledger, before: VeriTraCER, made: VeriTraCER) -> str | None:
    """Record the update in the ledger, and return its new head; None if it is read-only."""
    if promises.read_only:
        return None
    kept = made.update_.ways["kept"].counts or {}
    old, new = (vt.ledger.digest_of(one.classifier_) for one in (before, made))
    return promises.record_update(old, new, kept)


def _labelled_rows(
    model: VeriTraCER, table: str, target: str | None, ignore: list[str], reading: ReadOptions
) -> tuple[pd.DataFrame, Any]:
    """Return the features and the labels."""
    frame = tables.read_table(table, reading.query, schema=model.schema_, ignore=ignore, csv=reading.csv)
    chosen = target or model.schema_.target
    if chosen is None or chosen not in frame.columns:
        raise TargetError(unknown_name("the column of the target", str(chosen), map(str, frame.columns)))
    return frame.drop(columns=chosen), frame[chosen]


def _refuse(error: PromiseError, *, as_json: bool) -> None:
    """Print why the update was refused, and exit."""
    report = error.report if isinstance(error.report, vt.ledger.UpdateReport) else None
    if as_json:
        print_json(
            {"ok": False, "reason": str(error), "report": None if report is None else report.to_plain()}
        )
    else:
        if report is not None:
            print_update(report)
        say(f"Nothing was written: {error}")
    raise typer.Exit(NOT_ACHIEVED)


def print_update(report: UpdateReport) -> None:
    """Print the accuracy of each variant, and the constraints of the promises."""
    header = ("model", "accuracy", "promises kept", "by proof", "broken", "not checkable")
    rows = [
        [name, f"{way.accuracy:.4f}", percent(way.kept), *_verdict_cells(way)]
        for name, way in report.ways.items()
    ]
    head = f"{report.trained:,} new rows learned from, judged on {report.held_out:,} others"
    print_table(head, header, rows)
    if report.costs:
        said = ", ".join(f"{cost:+.4f} against {name}" for name, cost in report.costs.items())
        say(f"What keeping the promises costs in accuracy: {said}.")
    if report.constraints:
        lines = [
            [
                one.requirement.model[:12],
                f"{one.requirement.kappa:.4g}",
                f"{one.requirement.count:,}",
                f"{one.used:.3f}",
                percent(one.at_border),
                "–" if one.gain is None else f"{one.gain:+.4f}",
            ]
            for one in report.constraints[:MAX_LIMITS_SHOWN]
        ]
        columns = ("issued by", "kappa", "promises", "radius used", "weights held back", "gain if released")
        print_table("What the promises ask", columns, lines)
    for reason, count in report.unproved.items():
        say(f"{count:,} promises have no proof to keep: {reason}.")
    if report.newly_broken:
        say(f"{len(report.newly_broken):,} promises are newly broken.")


def _verdict_cells(way: UpdateVariant) -> list[str]:
    if way.counts is None:
        return ["–", "–", "–"]
    verdict = vt.ledger.Verdict
    shown = (verdict.PROVED, verdict.BROKEN, verdict.NOT_CHECKABLE)
    return [f"{way.counts[name]:,}" for name in shown]


@with_flags
def calibrate(
    model: ModelFolder,
    text: CSVOptions,
    history: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER,...", help="Models deployed before it, in order.", show_default=False),
    ] = None,
    simulate: Annotated[
        Literal["fine-tune", "next", "seeds", "bootstrap"] | None,
        typer.Option(help="Simulate updates instead of using a history.", show_default=False),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Rows with their decisions, for training and measuring.", show_default=False),
    ] = None,
    next_table: Annotated[
        str | None, typer.Option(help="The next period's rows, for --simulate next.", show_default=False)
    ] = None,
    runs: Annotated[int, typer.Option(min=1, help="Number of updates to simulate.")] = 30,
    horizon: Annotated[
        int, typer.Option(min=1, help="Number of successive updates that a promise must survive.")
    ] = 1,
    epochs: Annotated[
        int, typer.Option(min=1, help="Epochs of a simulated fine-tuning.")
    ] = FINE_TUNING_EPOCHS,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Its learning rate; by default a fifth of the model's.", show_default=False
        ),
    ] = None,
    cover: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE,...", help="Shares of updates to cover (0.5,0.9,0.99).", show_default=False
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence in these shares.")] = 0.95,
    rows: Annotated[int, typer.Option(min=1, help="Declined rows to explain at each kappa.")] = 200,
    refit: Annotated[
        bool, typer.Option("--refit/--no-refit", help="Train a model for each kappa to measure its cost.")
    ] = True,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure how far updates move a model, which kappa covers them, and what it costs.

    Updates are past models (--history) or simulated: fine-tune and next continue from the model, on samples
    of --table or of --next-table; seeds and bootstrap train from scratch.
    """
    reading = ReadOptions(**asdict(text))
    given: dict[str, Any] = {} if cover is None else {"shares": [_share(text) for text in names(cover)]}
    for folder in (model, *names(history)):
        model_folder.verified(folder)
    for path in (table, next_table):
        if path is not None:
            check_table(path, reading)
    loaded = saved_model(model)
    with tables.collect_warnings() as notes, stages("reading", quiet=quiet) as watch:
        unseen = list(ignored(ignore, id_column))
        X, y = _data_rows(table, loaded.schema_, unseen, reading)
        X_new, y_new = _data_rows(next_table, loaded.schema_, unseen, reading)
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
    note(notes.values(), quiet=quiet)
    if as_json:
        print_json(found.to_dict())
    elif not quiet:
        _print_calibration(found)


def _data_rows(table: str | None, schema: Schema, ignore: list[str], reading: ReadOptions) -> tuple[Any, Any]:
    """Return the features and the decisions of a table; nothing without a table."""
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


def _print_calibration(found: Calibration) -> None:
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
        print_table("What it costs", columns, [_cost_cells(each) for each in found.costs])
        say("Today's model may have been trained on the rows that this is measured on; the others were not.")
    say(f"Recommended: {found.recommendation.sentence}")


def _cost_cells(each: Cost) -> list[str]:
    model = f"trained for {each.trained_for:g}" if each.refitted else "today's"
    distance = "–" if each.distance != each.distance else f"{each.distance:.4f}"
    certified = None if each.certified != each.certified else each.certified
    return [f"{each.kappa:g}", model, percent(certified), distance, percent(each.accuracy)]
