"""``update`` and ``calibrate``: learn from new rows, and choose kappa from past or simulated updates."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import veritracer as vt
from veritracer import model_folder, tables
from veritracer.app.cli.fit import save_model
from veritracer.app.cli.options import (
    AsJson,
    Day,
    Force,
    IdColumn,
    Ignore,
    KeyFile,
    ModelFolder,
    Quiet,
    ReadOptions,
    Seed,
    names,
    with_flags,
)
from veritracer.app.cli.output import note, percent, print_json, print_table, progress, say, spinner
from veritracer.app.cli.places import check_ledger, check_new_model, check_table, load_model, read_key
from veritracer.app.cli.schema_options import ignored
from veritracer.errors import DataError, ModelFileError, TargetError, message, unknown_name
from veritracer.options import FINE_TUNING_EPOCHS
from veritracer.times import parse_time

if TYPE_CHECKING:
    import pandas as pd

    from veritracer.estimator import VeriTraCER
    from veritracer.ledger import PromiseError, UpdateReport
    from veritracer.ledger.update import UpdateVariant
    from veritracer.schema import Schema

NOT_ACHIEVED = 1
MAX_LIMITS_SHOWN = 8
"""Limits that are printed as text."""


@with_flags
def update(
    model: ModelFolder,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="New rows with their labels: CSV or Parquet; - is standard input."
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(help="New folder for the updated model.")],
    keep: Annotated[
        str | None,
        typer.Option(metavar="LEDGER", help="Ledger whose live promises the update keeps."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Column with the decision; by default the model's own."),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the new rows.")] = FINE_TUNING_EPOCHS,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Learning rate; by default a fifth of the training's."),
    ] = None,
    panel: Annotated[
        Literal["keep", "refit", "none"],
        typer.Option(help="Keep the model's panel, refit it to the new rows, or use none."),
    ] = "keep",
    penalty: Annotated[
        float, typer.Option(min=0.0, help="Weight of promises without a proof in the loss.")
    ] = 1.0,
    least_kappa: Annotated[
        float, typer.Option(min=0.0, help="Keep promises below this kappa by the penalty alone.")
    ] = 0.0,
    max_loss: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Refuse if the promises cost more accuracy than this against the better of a free update "
            "and of training from scratch.",
        ),
    ] = None,
    allow_broken: Annotated[int, typer.Option(min=0, help="Allow this many newly broken promises.")] = 0,
    compare: Annotated[
        bool, typer.Option(help="Also train from scratch, and measure the gain from releasing promises.")
    ] = True,
    at: Day = None,
    key_file: KeyFile = None,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
    reading: ReadOptions,
) -> None:
    """Fine-tune a model on new rows, and keep its promises.

    With --keep the updated model stays in the sets that live promises were proved for. Exits with 1, and
    writes nothing, if promises exclude each other, cost too much, or would be broken. --out never replaces
    MODEL, or another model that issued promises of the ledger.
    """
    _check_place(out, model, force=force)
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
    try:
        with (
            spinner("Loading the model", quiet=quiet) as tell,
            tables.collect_warnings() as notes,
            ExitStack() as stack,
        ):
            loaded = load_model(model)
            promises = None
            if keep is not None:
                promises = stack.enter_context(vt.ledger.Ledger(keep, create=False, key=key))
                _check_not_issuing(out, promises)
            unseen = list(ignored(ignore, id_column))
            X, y = _labelled_rows(table, reading, loaded.schema_, unseen, target)
            tell(f"Updating the model with {len(X):,} rows")
            made = loaded.update(X, y, keep=promises, epochs=epochs, learning_rate=learning_rate, **options)
            save_model(made, out)
            recorded = None if promises is None else _record(promises, loaded, made)
    except vt.ledger.PromiseError as error:
        _refuse(error, as_json=as_json)
    note(notes.values(), quiet=quiet)
    if as_json:
        print_json({"model": str(out), "head": recorded, **made.update_.to_plain()})
    elif not quiet:
        print_update(made.update_)
        if recorded is not None:
            say(f"The head of the ledger, with this update: {recorded}")
        say(f"The model: {out}")


def _check_place(out: Path, model: str, *, force: bool) -> None:
    """Refuse a place where the updated model cannot be saved; the model that is updated stays."""
    if out.exists() and Path(model).exists() and out.samefile(model):
        remedy = "name a new folder: promises are audited and updates are undone with the old model"
        raise ModelFileError(message("a folder apart from the model", f"{out} for both", remedy))
    check_new_model(out, force=force)


def _check_not_issuing(out: Path, promises: vt.ledger.Ledger) -> None:
    """Refuse to replace a model that issued promises of this ledger."""
    if not model_folder.is_model(out):
        return
    digest = vt.ledger.digest_of(vt.load(out).classifier_)
    if digest in {issuing.model_digest for issuing in promises.models().values()}:
        received = f"{out}, which issued promises of the ledger"
        raise ModelFileError(message("a folder without an issuing model", received, "name a new folder"))


def _record(promises: vt.ledger.Ledger, before: VeriTraCER, made: VeriTraCER) -> str | None:
    """Record the update in the ledger, and return its new head; None if it is read-only."""
    if promises.read_only:
        return None
    kept = made.update_.ways["kept"].counts or {}
    old, new = (vt.ledger.digest_of(one.classifier_) for one in (before, made))
    return promises.record_update(old, new, kept)


def _labelled_rows(
    table: str, reading: ReadOptions, schema: Schema, ignore: list[str], target: str | None = None
) -> tuple[pd.DataFrame, Any]:
    """Return the features and the labels of a table."""
    from veritracer.tables.cells import read_table

    frame = read_table(table, reading.query, schema=schema, ignore=ignore, csv=reading.csv)
    chosen = target or schema.target
    if chosen is None or chosen not in frame.columns:
        expected = f"the column of the target in {tables.without_password(table)}"
        raise TargetError(unknown_name(expected, str(chosen), map(str, frame.columns)))
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
            for one in report.constraints
        ]
        columns = ("issued by", "kappa", "promises", "radius used", "weights held back", "gain if released")
        print_table("What the promises ask", columns, lines, most=MAX_LIMITS_SHOWN)
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
    *,
    history: Annotated[
        list[str] | None,
        typer.Option(metavar="FOLDER,...", help="Folders of the models deployed before, in order."),
    ] = None,
    simulate: Annotated[
        Literal["fine-tune", "next", "seeds", "bootstrap"] | None,
        typer.Option(help="Simulate updates instead of using a history."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(help="Rows with their labels, for training and measuring."),
    ] = None,
    next_table: Annotated[
        str | None, typer.Option(help="The next period's rows, for --simulate next.")
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
        typer.Option(min=0.0, help="Learning rate of a fine-tuning; by default a fifth of the model's."),
    ] = None,
    cover: Annotated[
        list[str] | None,
        typer.Option(metavar="SHARE,...", help="Shares of updates to cover (0.5,0.9,0.99)."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence that these shares are covered.")] = 0.95,
    rows: Annotated[int, typer.Option(min=1, help="Declined rows to explain at each kappa.")] = 200,
    refit: Annotated[
        bool, typer.Option("--refit/--no-refit", help="Train a model for each kappa to measure its cost.")
    ] = True,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    seed: Seed = 0,
    quiet: Quiet = False,
    as_json: AsJson = False,
    reading: ReadOptions,
) -> None:
    """Recommend a kappa that covers updates of a model.

    Measures how far updates move the model, which kappa would have covered them, and what it costs. Updates
    are past models (--history) or simulated (--simulate): fine-tune and next continue from the model,
    on samples of --table or of --next-table; seeds and bootstrap train from scratch.
    """
    given: dict[str, Any] = {} if cover is None else {"shares": [_share(text) for text in names(cover)]}
    for folder in (model, *names(history)):
        model_folder.verified(folder)
    for path in (table, next_table):
        if path is not None:
            check_table(path, reading)
    loaded, unseen = load_model(model), list(ignored(ignore, id_column))
    with tables.collect_warnings() as notes, progress("reading", quiet=quiet) as watch:
        X, y = _own_columns(table, reading, loaded.schema_, unseen)
        X_new, y_new = _own_columns(next_table, reading, loaded.schema_, unseen)
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
        say(*str(found).splitlines())


def _own_columns(
    table: str | None, reading: ReadOptions, schema: Schema, ignore: list[str]
) -> tuple[Any, Any]:
    """Return the model's features and the labels of a table; nothing without a table."""
    if table is None:
        return None, None
    X, y = _labelled_rows(table, reading, schema, ignore)
    return X[list(schema.names)], y


def _share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        remedy = "write --cover 0.5,0.9"
        raise DataError(message("shares between 0 and 1 for --cover", repr(text), remedy)) from None
