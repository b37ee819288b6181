"""``veritracer inspect``: describe a model, a schema or a table."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veritracer import model_folder, tables
from veritracer.app.cli.fit import training_facts
from veritracer.app.cli.options import AsJson, with_flags
from veritracer.app.cli.output import percent, print_json, print_table, say
from veritracer.app.cli.places import load_model, read_schema
from veritracer.app.cli.schema_options import SchemaOverrides, in_one_line, label_note, read_inspected

if TYPE_CHECKING:
    from veritracer.estimator import VeriTraCER
    from veritracer.schema import Feature, Schema
    from veritracer.schema.inspection import Inspection

CATEGORIES = 4
"""Categories of a column that are printed."""

NO_TARGET = "Which column is the decision? None has two values: add one, and name it with --target."


@with_flags
def inspect(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="Folder of a model, schema file, or table (- is standard input).",
        ),
    ],
    given: SchemaOverrides,
    as_json: AsJson = False,
) -> None:
    """Show how fit would read a table, or describe a model.

    For a table: the kind and the action of each column with the reason, what looks odd, and the command that
    trains on it. The options are those of fit. For the folder of a model: its training and its schema.
    """
    path = Path(what)
    if path.is_dir():
        _model(load_model(what), what, as_json=as_json)
        return
    if path.suffix.casefold() in (".json", ".toml"):
        schema = read_schema(path)
        if as_json:
            print_json(json.loads(schema.to_json()))
        else:
            _print_features(schema, f"{len(schema)} columns of {what}")
        return
    found = read_inspected(what, given)
    if as_json:
        print_json(_plain(found))
    else:
        _table(found, tables.without_password(what), given)


def _plain(found: Inspection) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "columns": found.columns,
        "schema": json.loads(found.schema.to_json()),
        "findings": [asdict(finding) for finding in found.findings],
        "targets": list(found.targets),
        "labels": [{"label": label, "share": share} for label, share in found.shares.items()],
    }


def _table(found: Inspection, what: str, given: SchemaOverrides) -> None:
    """Print what was inferred, why, what to check, and how to change it."""
    title = f"{what}: {found.rows:,} rows, {found.columns} columns, {len(found.schema)} of them features"
    _print_features(found.schema, title)
    if found.schema.target is not None:
        shares = ", ".join(f"{label!r} in {percent(share)}" for label, share in found.shares.items())
        say(in_one_line(found.schema), f"labels: {shares} of the rows", *label_note(found.schema), "")
    if found.findings:
        say("Worth a look:", *(f"  {finding}" for finding in found.findings), "")
    _say_how_to_go_on(found, what, given)


def _print_features(schema: Schema, title: str) -> None:
    """Print how each column is read, whether advice may change it, and why."""
    rows = [[f.name, _read_as(f), f.action, f.note] for f in schema.features]
    print_table(title, ("feature", "read as", "may change", "because"), rows)


def _read_as(feature: Feature) -> str:
    """Describe the kind, range, number format or categories, and the treatment of missing values."""
    parts: list[str] = [feature.kind]
    ends = ("…" if end is None else f"{end:g}" for end in (feature.lower, feature.upper))
    if (feature.lower, feature.upper) != (None, None):
        parts.append(" to ".join(ends))
    if feature.number_format is not None:
        parts.append(f"written like {feature.number_format}")
    if feature.categories:
        shown = ", ".join(map(str, feature.categories[:CATEGORIES]))
        more = len(feature.categories) - CATEGORIES
        parts.append(f"{shown}, … ({more:,} more)" if more > 0 else shown)
    if feature.yearly is not None:
        parts.append("moves by {:g} to {:g} a year".format(*feature.yearly))
    parts += [] if feature.missing == "refuse" else [f"missing: {feature.missing}"]
    return "; ".join(parts)


def _say_how_to_go_on(found: Inspection, what: str, given: SchemaOverrides) -> None:
    """Print the commands that fit this table, one for each label that may be the wanted one."""
    from veritracer.schema.labels import label_doubt

    target, options = found.schema.target, _as_typed(given)
    if target is None:
        named = ", ".join(map(repr, found.targets[:5]))
        say(f"Which column is the decision? Two values have: {named}. For example:" if named else NO_TARGET)
        commands = [["inspect", what, "--target", name, *options] for name in found.targets[:1]]
    else:
        fit = ["fit", what, "--target", target, *options]
        is_open = found.schema.favourable is None
        say("To train, choose the label that people want:" if is_open else "To train:")
        likely_first = sorted(found.shares, key=lambda label: label_doubt(target, label) is not None)
        stated = [["--favourable", str(label)] for label in likely_first] if is_open else [[]]
        commands = [[*fit, *favourable, "--out", "model"] for favourable in stated]
    say(*("  " + shlex.join(["veritracer", *command]) for command in commands), wrap=False)
    say(
        "To change what was inferred: --immutable, --increase-only, --decrease-only, --free, --yearly, "
        "--ignore, --number-format, or edit the schema that fit writes beside the model and pass it back "
        "with --schema (docs/how-to/describe-a-table.md).",
    )


def _as_typed(given: SchemaOverrides) -> list[str]:
    """Return the flags as they were typed, without the target."""
    words: list[str] = []
    for field in fields(given):
        value = getattr(given, field.name)
        if value == field.default or field.name == "target":
            continue
        flag = f"--{field.name.replace('_', '-')}"
        many = value if isinstance(value, list) else [value]
        words += [flag] if value is True else [word for one in many for word in (flag, one)]
    return words


def _model(model: VeriTraCER, folder: str, *, as_json: bool) -> None:
    facts = _facts(model, folder)
    if as_json:
        schema = json.loads(model.schema_.to_json())
        history = model.history_.astype(object).where(model.history_.notna(), None).to_dict("list")
        print_json({**facts, "schema": schema, "history": history})
        return
    from veritracer.formatting import format_value

    shares = facts["validation"]
    shown = {
        "method": model.method,
        "recipe": model.recipe or "–",
        "set of models": str(model.param_set()),
        "bound": model.bound,
        "layers": " → ".join(map(str, facts["layers"])),
        "parameters": format_value(facts["parameters"]),
        "threshold": format_value(model.threshold_),
        "best epoch": f"{model.best_epoch_} of {len(model.history_)}",
        "stopped": str(model.stopped_),
        **{f"validation {name}": percent(shares[name]) for name in ("accuracy", "validity", "certified")},
        "rows kept": format_value(facts["rows_kept"]),
        "model digest": facts["model_digest"],
        "encoding digest": facts["encoding_digest"],
        "made with": ", ".join(f"{name} {version}" for name, version in facts["made_with"].items()),
    }
    print_table(f"The model in {folder}", ("what", ""), [[*pair] for pair in shown.items()])
    _print_features(model.schema_, f"Its {len(model.schema_)} features")
    say(in_one_line(model.schema_))


def _facts(model: VeriTraCER, folder: str) -> dict[str, Any]:
    from veritracer.models.network import from_module

    content, _ = model_folder.verified(folder)
    network, theta = from_module(model.classifier_)
    return {
        **training_facts(model),
        "norm": model.norm,
        "radius": model.settings_.radius,
        "bound": model.bound,
        "layers": [int(t.shape[0]) for t in theta[::2]],
        "inputs": int(theta[0].shape[1]),
        "parameters": sum(t.numel() for t in theta),
        "generator": model.settings_.generator if model.generator_ is not None else None,
        "stopped": model.stopped_,
        "rows_kept": len(model.neighbours_),
        "model_digest": network.digest(theta),
        "encoding_digest": model.encoding_.digest,
        "settings": asdict(model.settings_),
        "made_with": content["versions"],
    }
