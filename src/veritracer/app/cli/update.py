"""``veritracer update``: new rows learned from, inside of what was promised."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from veritracer import ledger as ledgers
from veritracer import persistence, streaming, tables
from veritracer.app.cli.fit import check_folder, save_model
from veritracer.app.cli.options import (
    AsJson,
    IdColumn,
    Ignore,
    KeyFile,
    ModelFolder,
    MultilineCells,
    Query,
    Quiet,
    ReadOptions,
    Separator,
    TextEncoding,
    check_ledger,
    check_table,
    read_key,
    saved_model,
)
from veritracer.app.cli.output import note, patience, percent, print_json, print_table, say
from veritracer.app.cli.schema_options import ignored
from veritracer.errors import TargetError, unknown_name
from veritracer.options import FINE_TUNING_EPOCHS
from veritracer.times import parse_time

if TYPE_CHECKING:
    import pandas as pd

    from veritracer.estimator import VeriTraCER
    from veritracer.ledger import PromiseError, UpdateReport
    from veritracer.ledger.update import UpdateVariant

NOT_ACHIEVED = 1
MAX_LIMITS_SHOWN = 8
"""Limits that the terminal shows."""


def update(
    model: ModelFolder,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="New rows with their labels: CSV or Parquet; - is standard input."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder for the updated model.")],
    keep: Annotated[
        str | None,
        typer.Option(metavar="LEDGER", help="Keep every live promise in this ledger.", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The column with the decision; the model's own if left out.", show_default=False),
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the new rows.")] = FINE_TUNING_EPOCHS,
    learning_rate: Annotated[
        float | None, typer.Option(help="By default a fifth of that of training.", show_default=False)
    ] = None,
    panel: Annotated[
        Literal["keep", "refit", "none"],
        typer.Option(help="What the classifier stays held to: keep its panel, refit one, or none."),
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
    allow_broken: Annotated[int, typer.Option(min=0, help="Allow so many newly broken promises.")] = 0,
    compare: Annotated[
        bool, typer.Option(help="Also train from scratch, and try what releasing promises would gain.")
    ] = True,
    at: Annotated[
        str | None, typer.Option(help="Live at this date instead of now: 2027-01-31.", show_default=False)
    ] = None,
    key_file: KeyFile = None,
    id_column: IdColumn = None,
    ignore: Ignore = None,
    separator: Separator = None,
    encoding: TextEncoding = "utf-8",
    multiline_cells: MultilineCells = False,
    query: Query = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on new rows; with --keep inside the sets of all live promises.

    Exits with 1, and writes nothing, if promises exclude each other, cost too much, or would be broken.
    """
    check_folder(out)
    when = None if at is None else parse_time(at)
    key = None if key_file is None else read_key(key_file)
    persistence.verified(model)
    reading = ReadOptions.of(separator, encoding, multiline_cells, query)
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
    loaded, notes = saved_model(model), streaming.Notes()
    with notes.taken():
        X, y = _rows(loaded, table, target, list(ignored(ignore, id_column)), reading)
        promises = None if keep is None else ledgers.Ledger(keep, create=False, key=key)
        try:
            with patience("updating", quiet=quiet):
                made = loaded.update(
                    X, y, keep=promises, epochs=epochs, learning_rate=learning_rate, **options
                )
            save_model(made, out)
            recorded = None if promises is None else _record(promises, loaded, made)
        except ledgers.PromiseError as error:
            _refuse(error, as_json=as_json)
        finally:
            if promises is not None:
                promises.close()
    note(notes.sentences(), quiet=quiet)
    if as_json:
        print_json({"model": str(out), "head": recorded, **made.update_.to_plain()})
    elif not quiet:
        print_summary(made.update_)
        if recorded is not None:
            say(f"The head of the ledger, with this update: {recorded}")
        say(f"The model: {out}")


def _record(promises: ledgers.Ledger, before: VeriTraCER, made: VeriTraCER) -> str | None:
    """The new head of the ledger, which says now that the model was updated; None where it is read-only."""
    if promises.read_only:
        return None
    kept = made.update_.ways["kept"].counts or {}
    old, new = (ledgers.digest_of(one.classifier_) for one in (before, made))
    return promises.record_update(old, new, kept)


def _rows(
    model: VeriTraCER, table: str, target: str | None, ignore: list[str], reading: ReadOptions
) -> tuple[pd.DataFrame, Any]:
    """The features and the labels."""
    frame = tables.read_table(table, reading.query, schema=model.schema_, ignore=ignore, csv=reading.csv)
    chosen = target or model.schema_.target
    if chosen is None or chosen not in frame.columns:
        raise TargetError(unknown_name("the column of the target", str(chosen), map(str, frame.columns)))
    return frame.drop(columns=chosen), frame[chosen]


def _refuse(error: PromiseError, *, as_json: bool) -> None:
    """Exit with what stands in the way, in numbers."""
    report = error.report if isinstance(error.report, ledgers.UpdateReport) else None
    if as_json:
        print_json(
            {"ok": False, "reason": str(error), "report": None if report is None else report.to_plain()}
        )
    else:
        if report is not None:
            print_summary(report)
        say(f"Nothing was written: {error}")
    raise typer.Exit(NOT_ACHIEVED)


def print_summary(report: UpdateReport) -> None:
    """Print how good each variant is, and what the promises ask."""
    header = ("model", "accuracy", "promises kept", "by proof", "broken", "not checkable")
    rows = [
        [name, f"{way.accuracy:.4f}", percent(way.kept), *_counts(way)] for name, way in report.ways.items()
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


def _counts(way: UpdateVariant) -> list[str]:
    if way.counts is None:
        return ["–", "–", "–"]
    verdict = ledgers.Verdict
    shown = (verdict.PROVED, verdict.BROKEN, verdict.NOT_CHECKABLE)
    return [f"{way.counts[name]:,}" for name in shown]
