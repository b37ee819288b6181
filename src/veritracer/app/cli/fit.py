"""``veritracer fit``: a table in, a model folder and what it is worth out."""

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
from veritracer.app.cli.checks import check_folder, check_rejects
from veritracer.app.cli.options import (
    AsJson,
    Force,
    Quiet,
    RejectsFile,
    Seed,
    amounts,
    with_flags,
)
from veritracer.app.cli.output import note, percent, print_json, print_table, say, spinner
from veritracer.app.cli.schema_options import (
    Described,
    SchemaOverrides,
    in_one_line,
    label_note,
    protected_note,
    read_described,
)
from veritracer.errors import DataError, TrainingWarning, VeriTracerWarning, message
from veritracer.files import writable
from veritracer.threads import only_compute

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER
    from veritracer.evaluation import Estimate, Evaluation

SCHEMA, EVALUATION = "schema.json", "evaluation.json"
ClassWeight = Annotated[
    str | None,
    typer.Option(help="balanced, or what errors on each label weigh: yes=1,no=5.", show_default=False),
]


@with_flags
def fit(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="CSV or Parquet; - is standard input.")],
    out: Annotated[Path, typer.Option(help="The folder for the model: new, or a model to replace.")],
    given: SchemaOverrides,
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
    recipe: Annotated[
        str | None,
        typer.Option(help="Settings of training by name: paper, paper:ctg, paper-text.", show_default=False),
    ] = None,
    kappa: Annotated[
        float | None,
        typer.Option(min=0.0, help="How far later models may be; 0.2 if left out.", show_default=False),
    ] = None,
    panel: Annotated[
        bool,
        typer.Option("--panel/--no-panel", help="Hold it to independent models, or train as in the paper."),
    ] = True,
    class_weight: ClassWeight = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="Accept above this probability; 0.5 if left out.", show_default=False),
    ] = None,
    approval_rate: Annotated[
        float | None,
        typer.Option(help="Accept this share of the rows, instead of a threshold.", show_default=False),
    ] = None,
    holdout: Annotated[
        float,
        typer.Option(help="Share of the rows to judge a twin of the model on; 0 does not judge."),
    ] = 0.2,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the rows; chosen if left out.", show_default=False)
    ] = None,
    rejects: RejectsFile = None,
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a classifier whose counterfactuals are certified, save it, and say what it is worth.

    What is said is measured on rows that neither trained nor chose the epoch, by a twin that is trained
    without them in the same run; the model that is saved has learned from all rows.
    """
    check_folder(out)
    _check_decision(threshold, approval_rate, holdout)
    check_rejects(rejects, [table], force=force)
    with ExitStack() as stack:
        rejected = stack.enter_context(tables.open_rejects(rejects))
        with spinner("reading", quiet=quiet):
            data = read_described(table, given, schema, rejected)
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
    facts = _facts(model, found, out, len(data.X), len(rejected or []))
    if as_json:
        print_json(facts)
    elif not quiet:
        _print_summary(model, facts, found)


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


def _class_weight(text: str | None, data: Described) -> str | dict[Any, float] | None:
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
    data: Described, params: dict[str, Any], holdout: float, *, quiet: bool
) -> tuple[VeriTraCER, Evaluation | None, list[str]]:
    """Return the model, its evaluation, and the notes."""
    only_compute()
    from veritracer.evaluation import fit_evaluated

    watched = sys.stderr.isatty() and not quiet
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", VeriTracerWarning)
        model, found = fit_evaluated(
            vt.VeriTraCER(data.schema, verbose=int(watched), **params), data.X, data.y, holdout=holdout
        )
    if model.interrupted_:
        raise KeyboardInterrupt
    return model, found, [str(w.message) for w in noticed if not issubclass(w.category, TrainingWarning)]


def save_model(model: VeriTraCER, out: Path, evaluation: Evaluation | None = None) -> None:
    """Save the model as a folder, with its schema and what it is worth beside it."""
    from veritracer.persistence import save

    beside = {SCHEMA: model.schema_.to_json() + "\n"}
    if evaluation is not None:
        beside[EVALUATION] = json.dumps(evaluation.to_plain(), indent=1) + "\n"
    with writable(out / SCHEMA if out.is_dir() else out):
        save(model, out, beside)


def _facts(
    model: VeriTraCER, found: Evaluation | None, out: Path, rows: int, rejected: int
) -> dict[str, Any]:
    best = model.history_.iloc[model.best_epoch_ - 1]
    shares = {k: _share(best[k]) for k in ("accuracy", "validity", "certified", "proximity")}
    return {
        "model": str(out),
        "schema": str(out / SCHEMA),
        "rows": rows,
        "rejected": rejected,
        "features": len(model.schema_),
        "ignored": list(model.schema_.ignored_names),
        "target": model.schema_.target,
        "favourable": model.schema_.favourable,
        "unfavourable": model.schema_.unfavourable,
        "method": model.method,
        "recipe": model.recipe,
        "kappa": model.settings_.kappa,
        "threshold": model.threshold_,
        "epochs": len(model.history_),
        "best_epoch": model.best_epoch_,
        "validation": shares,
        "evaluation": None if found is None else found.to_plain(),
        "seconds": round(float(model.history_["seconds"].max()), 1),
    }


def _share(value: Any) -> float | None:
    import pandas as pd

    return None if pd.isna(value) else float(value)


def _print_summary(model: VeriTraCER, facts: dict[str, Any], found: Evaluation | None) -> None:
    head = f"Trained on {facts['rows']:,} rows, {facts['features']} features, {facts['epochs']} epochs."
    say(in_one_line(model.schema_), head)
    if found is None:
        say("Too few rows to hold some out, or --holdout 0: what it is worth on others is not known.")
    else:
        print_evaluation(found, str(model.param_set()))
    at = "" if model.approval_rate is None else f", which accepts {percent(model.approval_rate)} of the rows"
    say(
        f"It decides at the probability {model.threshold_:.3g}{at}.",
        f"The model: {facts['model']}",
        f"What it took the columns for: {facts['schema']}. To correct it, edit the file "
        "(docs/how-to/describe-a-table.md says what can be said) and pass it back with --schema.",
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
