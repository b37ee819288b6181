"""``veritracer fit``: train a model on a table, evaluate it, and save it."""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import veritracer as vt
from veritracer import tables
from veritracer.app.cli.options import AsJson, Force, Quiet, RejectsFile, Seed, amounts, with_flags
from veritracer.app.cli.output import note, percent, print_json, print_table, say, spinner
from veritracer.app.cli.places import check_new_model, check_rejects, schema_beside
from veritracer.app.cli.schema_options import (
    LabelledTable,
    SchemaOverrides,
    in_one_line,
    label_note,
    protected_note,
    read_labelled,
)
from veritracer.errors import DataError, TrainingWarning, VeriTracerWarning, message
from veritracer.files import writable, write_whole
from veritracer.options import HOLDOUT, KAPPA
from veritracer.threads import only_compute

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER
    from veritracer.evaluation import Estimate, Evaluation

EVALUATION = "evaluation.json"


@with_flags
def fit(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="CSV or Parquet; - is standard input.")],
    *,
    out: Annotated[Path, typer.Option(help="New folder for the model.")],
    given: SchemaOverrides,
    schema: Annotated[
        Path | None,
        typer.Option(help="Schema (JSON or TOML) to use instead of inferring one from the table."),
    ] = None,
    method: Annotated[
        Literal["veritracer", "counternet", "standard"],
        typer.Option(
            help="Train against a set of models (veritracer), without one (counternet), or the classifier "
            "alone (standard)."
        ),
    ] = "veritracer",
    recipe: Annotated[
        str | None, typer.Option(help="Named training settings: paper, paper:ctg or paper-text.")
    ] = None,
    kappa: Annotated[
        float | None,
        typer.Option(min=0.0, help=f"Size of the set of later models to certify for; by default {KAPPA}."),
    ] = None,
    panel: Annotated[
        bool,
        typer.Option("--panel/--no-panel", help="Hold the classifier to a panel of independent models."),
    ] = True,
    class_weight: Annotated[
        str | None,
        typer.Option(help="balanced, or the weight of errors on each label, such as yes=1,no=5."),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Accept above this probability; by default 0.5.")
    ] = None,
    approval_rate: Annotated[
        float | None, typer.Option(help="Accept this share of the rows, instead of a threshold.")
    ] = None,
    holdout: Annotated[
        float, typer.Option(help="Share of the rows to evaluate on; 0 skips the evaluation.")
    ] = HOLDOUT,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the rows; by default chosen by the training.")
    ] = None,
    rejects: RejectsFile = None,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a classifier for certified counterfactuals.

    The evaluation is that of a second model, trained in the same run without the held-out rows; the saved
    model has learned from all rows. The schema is written beside the model's folder (MODEL.schema.json): edit
    it and pass it back with --schema to correct what was inferred.
    """
    check_new_model(out, force=force)
    _check_decision(threshold, approval_rate, holdout)
    check_rejects(rejects, force=force)
    with ExitStack() as stack:
        rejected = stack.enter_context(tables.open_rejects(rejects))
        with spinner("Reading the table", quiet=quiet):
            data = read_labelled(table, given, schema, rejected)
        params = {
            "method": method,
            "recipe": recipe,
            "kappa": kappa,
            "panel": "default" if panel else None,
            "class_weight": _class_weight(class_weight, data),
            "threshold": 0.5 if threshold is None else threshold,
            "approval_rate": approval_rate,
            "epochs": epochs,
            "random_state": seed,
        }
        model, found, noticed = _trained(data, params, holdout, quiet=quiet)
        save_model(model, out, found)
    note(label_note(data.schema), quiet=quiet)
    if schema is None:
        note(protected_note(data.schema, given.named), quiet=quiet)
    note([*data.notes, *noticed, *tables.rejects_note(rejected or [], str(rejects))], quiet=quiet)
    if as_json:
        facts = {
            "model": str(out),
            "schema": str(schema_beside(out)),
            "rows": len(data.X),
            "rejected": len(rejected or []),
            "features": len(model.schema_),
            "ignored": list(model.schema_.ignored_names),
            "evaluation": None if found is None else found.to_plain(),
            "seconds": round(float(model.history_["seconds"].max()), 1),
        }
        print_json({**facts, **training_facts(model)})
    elif not quiet:
        _print_summary(model, len(data.X), found, out)


def _check_decision(threshold: float | None, rate: float | None, holdout: float) -> None:
    """Refuse thresholds and shares that are none before anything is read."""
    for option, share, example in (("threshold", threshold, 0.7), ("approval-rate", rate, 0.3)):
        if share is not None and not 0 < share < 1:
            remedy = f"for example --{option} {example}"
            raise DataError(message(f"--{option} between 0 and 1", f"{share:g}", remedy))
    if threshold is not None and rate is not None:
        remedy = "leave one of them out: the rate decides the threshold"
        raise DataError(message("a threshold or an approval rate", "both", remedy))
    if not 0 <= holdout <= 0.5:
        raise DataError(message("--holdout from 0 to 0.5", f"{holdout:g}", "0.2 is the default"))


def _class_weight(text: str | None, data: LabelledTable) -> str | dict[Any, float] | None:
    """Return the weight of errors on each label."""
    if text is None or text == "balanced":
        return text
    labels = {str(label): label for label in (data.schema.favourable, data.schema.unfavourable)}
    given = amounts("--class-weight", [text])
    if set(given) != set(labels) or not all(0 < weight < float("inf") for weight in given.values()):
        example = ",".join(f"{label}=1" for label in labels)
        remedy = f"write balanced, or a positive number for each label: --class-weight {example}"
        raise DataError(message("a weight for either label", repr(text), remedy))
    return {labels[label]: weight for label, weight in given.items()}


def _trained(
    data: LabelledTable, params: dict[str, Any], holdout: float, *, quiet: bool
) -> tuple[VeriTraCER, Evaluation | None, list[str]]:
    """Return the model, its evaluation, and the notes."""
    only_compute()
    from veritracer.evaluation import fit_evaluated

    watched = sys.stderr.isatty() and not quiet  # the training then shows its epochs
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", VeriTracerWarning)
        model, found = fit_evaluated(
            vt.VeriTraCER(data.schema, verbose=int(watched), **params), data.X, data.y, holdout=holdout
        )
    if model.interrupted_:
        raise KeyboardInterrupt
    return model, found, [str(w.message) for w in noticed if not issubclass(w.category, TrainingWarning)]


def save_model(model: VeriTraCER, out: Path, evaluation: Evaluation | None = None) -> None:
    """Save the model as a folder with its evaluation, and its schema beside the folder."""
    from veritracer.persistence import save

    inside = {}
    if evaluation is not None:
        inside[EVALUATION] = json.dumps(evaluation.to_plain(), indent=1) + "\n"
    with writable(out / EVALUATION if out.is_dir() else out):
        save(model, out, inside)
        write_whole(schema_beside(out), model.schema_.to_json() + "\n")


def training_facts(model: VeriTraCER) -> dict[str, Any]:
    """Return what a model was trained for and how it ended, as plain values."""
    import pandas as pd

    best = model.history_.iloc[model.best_epoch_ - 1]
    measures = ("accuracy", "validity", "certified", "proximity")
    return {
        "target": model.schema_.target,
        "favourable": model.schema_.favourable,
        "unfavourable": model.schema_.unfavourable,
        "method": model.method,
        "recipe": model.recipe,
        "kappa": model.settings_.kappa,
        "threshold": model.threshold_,
        "epochs": len(model.history_),
        "best_epoch": model.best_epoch_,
        "validation": {name: None if pd.isna(best[name]) else float(best[name]) for name in measures},
    }


def _print_summary(model: VeriTraCER, rows: int, found: Evaluation | None, out: Path) -> None:
    head = f"Trained on {rows:,} rows, {len(model.schema_)} features, {len(model.history_)} epochs."
    say(in_one_line(model.schema_), head)
    if found is None:
        say("Not evaluated: there are too few rows to hold some out, or --holdout is 0.")
    else:
        print_evaluation(found, str(model.param_set()))
    at = "" if model.approval_rate is None else f", which accepts {percent(model.approval_rate)} of the rows"
    say(
        f"It decides at the probability {model.threshold_:.3g}{at}.",
        f"The model: {out}",
        f"The schema: {schema_beside(out)}. To correct it, edit the file "
        "(docs/how-to/describe-a-table.md) and pass it back with --schema.",
    )


def print_evaluation(found: Evaluation, models: str) -> None:
    """Print one screen: what a twin is worth on rows that it has not seen, beside what is simple."""
    header = ("", "accuracy, %", "AUC", "log-loss", "Brier", "accepted")
    rows = [
        [
            name,
            _interval(each.accuracy, 100, 1),
            "–" if each.auc is None else _interval(each.auc),
            _interval(each.log_loss),
            _interval(each.brier),
            percent(each.accepted),
        ]
        for name, each in found.scores.items()
    ]
    print_table(
        f"On {found.rows:,} rows that neither trained nor chose the epoch (95 % intervals)", header, rows
    )
    if found.explained:
        believed = "" if found.agreement is None else f"; {percent(found.agreement)} of the panel agrees"
        say(
            f"Recourse for {found.explained:,} of the declined: {percent(found.valid)} accepted by this "
            f"model, {percent(found.certified)} certified at {models}{believed}."
        )
    for sentence in found.warnings:
        say(f"WARNING: {sentence}")


def _interval(each: Estimate, scale: float = 1, digits: int = 3) -> str:
    value, low, high = (f"{scale * number:.{digits}f}" for number in each)
    return f"{value} ({low}–{high})"
