"""``veritracer fit``: a table in, a model folder out."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import veritracer as vt
from veritracer import tablefiles
from veritracer.cli.options import (
    AsJson,
    Quiet,
    Seed,
    Separator,
    check_table,
    names,
    schema_file,
    use_one_thread,
)
from veritracer.cli.printing import note, patience, percent, print_json, print_table, say
from veritracer.errors import (
    ModelFileError,
    SchemaError,
    TargetError,
    TrainingWarning,
    VeriTracerWarning,
    message,
    unknown_name,
)
from veritracer.files import whole_file
from veritracer.persistence import DOCUMENT

if TYPE_CHECKING:
    import pandas as pd

    from veritracer.model import VeriTraCER
    from veritracer.schema import Schema

SCHEMA = "schema.json"


def fit(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="CSV or Parquet; - is standard input.")],
    out: Annotated[Path, typer.Option(help="The folder for the model: new, or a model to replace.")],
    target: Annotated[
        str | None, typer.Option(help="The column with the decision.", show_default=False)
    ] = None,
    favourable: Annotated[
        str | None, typer.Option(help="The label that people want.", show_default=False)
    ] = None,
    immutable: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Columns that nobody can change.", show_default=False),
    ] = None,
    increase_only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Columns that can only grow.", show_default=False),
    ] = None,
    decrease_only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Columns that can only fall.", show_default=False),
    ] = None,
    free: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,...",
            help="Columns that may change although their names look like a protected characteristic.",
            show_default=False,
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,...", help="Columns that are no features.", show_default=False),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            help="A schema (JSON or TOML) instead of a guess: what fit wrote, edited.", show_default=False
        ),
    ] = None,
    method: Annotated[
        Literal["veritracer", "counternet", "standard"],
        typer.Option(help="veritracer, counternet or standard."),
    ] = "veritracer",
    kappa: Annotated[float, typer.Option(min=0.0, help="How far later models may be.")] = 0.2,
    panel: Annotated[
        bool,
        typer.Option("--panel/--no-panel", help="Hold it to independent models, or train as in the paper."),
    ] = True,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the rows; chosen if left out.", show_default=False)
    ] = None,
    seed: Seed = 0,
    separator: Separator = ",",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a classifier whose counterfactuals are certified, and save it as a folder."""
    check_folder(out)
    hints = {
        "immutable": names(immutable),
        "increase_only": names(increase_only),
        "decrease_only": names(decrease_only),
        "free": names(free),
    }
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", VeriTracerWarning)
        described, X, y = _described(
            table, schema, target, favourable, hints, names(ignore), separator, quiet
        )
        use_one_thread()
        watched = sys.stderr.isatty() and not quiet
        model = vt.VeriTraCER(
            described,
            method=method,
            kappa=kappa,
            panel="default" if panel else None,
            epochs=epochs,
            random_state=seed,
            verbose=int(watched),
        ).fit(X, y)
    if model.interrupted_:
        raise KeyboardInterrupt
    save_model(model, out)
    if schema is None:
        note(_protected(described, hints), quiet=quiet)
    note([str(w.message) for w in noticed if not issubclass(w.category, TrainingWarning)], quiet=quiet)
    facts = _facts(model, out, len(X))
    if as_json:
        print_json(facts)
    elif not quiet:
        _print_summary(model, facts)


def save_model(model: VeriTraCER, out: Path) -> None:
    """Save the model as a folder, with its schema beside it."""
    with tablefiles.writable(out / SCHEMA if out.is_dir() else out):
        model.save(out)
        with whole_file(out / SCHEMA) as file:
            file.write((model.schema_.to_json() + "\n").encode())


def check_folder(out: Path) -> None:
    """Refuse a place that a model can not be saved to before anything is trained."""
    remedy = "choose another name"
    if out.exists() and not out.is_dir():
        raise ModelFileError(message("a folder for the model", f"the file {out}", remedy))
    if out.is_dir() and not (out / DOCUMENT).exists() and any(out.iterdir()):
        raise ModelFileError(message("a new folder or a saved model to replace", f"the folder {out}", remedy))
    place = out.absolute().parent
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise ModelFileError(message("a folder for the model", f"{place}, which is a file", remedy))
    probe = place / f".{out.name}.probe"
    with tablefiles.writable(probe):
        probe.mkdir()
        probe.rmdir()


def _described(
    table: str,
    schema: Path | None,
    target: str | None,
    favourable: str | None,
    hints: dict[str, list[str]],
    ignore: list[str],
    separator: str,
    quiet: bool,
) -> tuple[Schema, pd.DataFrame, pd.Series[Any]]:
    """The schema, the features and the labels."""
    known = None if schema is None else schema_file(schema)
    said = [option for option, columns in hints.items() if columns]
    if known is not None and said:
        received = f"--schema and --{said[0].replace('_', '-')}"
        remedy = "edit the action of the feature in the schema"
        raise SchemaError(message("one description of the columns", received, remedy))
    if known is not None and known.target is not None and target not in (None, known.target):
        received = f"{target!r}, and {known.target!r} in {schema}"
        raise SchemaError(message("one target", received, "leave --target out, or edit the schema"))
    chosen = target or (known.target if known else None)
    if chosen is None:
        remedy = "pass --target with the column of the decision"
        raise TargetError(message("a target", "neither --target nor one in a schema", remedy))
    _check_target(chosen, check_table(table, separator) or [chosen])
    with patience("reading", quiet=quiet):
        frame = tablefiles.read_table(table, schema=known, ignore=ignore, separator=separator)
    _check_target(chosen, list(map(str, frame.columns)))
    y = frame[chosen]
    wanted = None if favourable is None else _label(favourable, y)
    if known is None:
        found = vt.Schema.infer(
            frame,
            chosen,
            wanted,
            immutable=hints["immutable"],
            increase_only=hints["increase_only"],
            decrease_only=hints["decrease_only"],
            free=hints["free"],
        )
    else:
        found = known.with_labels(y, wanted) if wanted is not None or known.favourable is None else known
    return found, frame.drop(columns=chosen), y


def _protected(schema: Schema, hints: dict[str, list[str]]) -> list[str]:
    """That columns are immutable because of what their names look like, and how to change that."""
    from veritracer.schema.protected import characteristic

    said = {name for each in hints.values() for name in each}
    found = [(f.name, characteristic(f.name)) for f in schema.features if f.name not in said]
    named = [f"{name} ({kind})" for name, kind in found if kind is not None]
    if not named:
        return []
    return [f"protected, so nobody is told to change it: {', '.join(named)}; --free NAME lifts that"]


def _check_target(name: str, columns: Sequence[str]) -> None:
    if name not in columns:
        raise TargetError(unknown_name("the column of the target", name, columns))


def _label(text: str, y: pd.Series[Any]) -> Any:
    """The label that is written like this; the text itself where there is none, to be refused."""
    for value in y.dropna().unique().tolist():
        if str(value) == text or str(value).casefold() == text.casefold():
            return value
        if not isinstance(value, str) and f"{float(value):g}" == text:
            return value
    return text


def _facts(model: VeriTraCER, out: Path, rows: int) -> dict[str, Any]:
    best = model.history_.iloc[model.best_epoch_ - 1]
    shares = {k: _share(best[k]) for k in ("accuracy", "validity", "certified", "proximity")}
    return {
        "model": str(out),
        "schema": str(out / SCHEMA),
        "rows": rows,
        "features": len(model.schema_),
        "target": model.schema_.target,
        "favourable": model.schema_.favourable,
        "method": model.method,
        "kappa": model.kappa,
        "epochs": len(model.history_),
        "best_epoch": model.best_epoch_,
        "validation": shares,
        "seconds": round(float(model.history_["seconds"].max()), 1),
    }


def _share(value: Any) -> float | None:
    import pandas as pd

    return None if pd.isna(value) else float(value)


def _print_summary(model: VeriTraCER, facts: dict[str, Any]) -> None:
    best = facts["validation"]
    head = f"Trained on {facts['rows']:,} rows, {facts['features']} features, {facts['epochs']} epochs."
    rows = [["accuracy", percent(best["accuracy"])]]
    if best["validity"] is not None:
        rows.append(["counterfactuals that are valid today", percent(best["validity"])])
        rows.append([f"certified at {model.param_set()}, before refinement", percent(best["certified"])])
    print_table(head, ("on rows kept aside", ""), rows)
    schema = model.schema_
    guess = f" ({schema.note})" if schema.note else ""
    say(
        f"{schema.favourable!r} is favourable{guess}.",
        f"The model: {facts['model']}",
        f"What it took the columns for: {facts['schema']}. To correct it, edit the file (action is free, "
        "immutable, increase_only or decrease_only) and pass it back with --schema.",
    )
