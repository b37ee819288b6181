"""``veritracer inspect``: what a model, a schema or a table is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import veritracer as vt
from veritracer import persistence, tablefiles
from veritracer.cli.options import AsJson, Separator, check_table, saved_model, schema_file
from veritracer.cli.printing import percent, print_json, print_table, say

if TYPE_CHECKING:
    from veritracer.model import VeriTraCER
    from veritracer.schema import Schema

SHARES = ("accuracy", "validity", "certified")


def inspect(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="A model folder, a schema file, or a table (CSV, Parquet, -)."),
    ],
    separator: Separator = ",",
    as_json: AsJson = False,
) -> None:
    """Show what a saved model is, or what would be taken for the schema of a table."""
    path = Path(what)
    if path.is_dir():
        _model(saved_model(what), what, as_json=as_json)
        return
    if path.suffix.casefold() in (".json", ".toml"):
        schema = schema_file(path)
    else:
        check_table(what, separator)
        schema = vt.Schema.infer(tablefiles.read_table(what, separator=separator))
    if as_json:
        print_json(json.loads(schema.to_json()))
        return
    _features(schema, f"{len(schema)} columns of {what}")


def _model(model: VeriTraCER, folder: str, *, as_json: bool) -> None:
    facts = _facts(model, folder)
    if as_json:
        schema = json.loads(model.schema_.to_json())
        history = model.history_.astype(object).where(model.history_.notna(), None).to_dict("list")
        print_json({**facts, "schema": schema, "history": history})
        return
    named = {"kappa", "norm", "radius"}  # which mean something together only
    rows = [["method", model.method], ["set of models", str(model.param_set())]]
    rows += [[k.replace("_", " "), _text(k, v)] for k, v in facts.items() if k not in {"method", *named}]
    print_table(f"The model in {folder}", ("what", ""), rows)
    _features(model.schema_, f"Its {len(model.schema_)} features")
    say(_schema_line(model.schema_))


def _facts(model: VeriTraCER, folder: str) -> dict[str, Any]:
    import pandas as pd

    from veritracer.network import from_module

    content, _ = persistence.verified(folder)
    network, theta = from_module(model.classifier_)
    best = model.history_.iloc[model.best_epoch_ - 1]
    return {
        "method": model.method,
        "kappa": model.kappa,
        "norm": model.norm,
        "radius": model.radius,
        "bound": model.bound,
        "layers": [int(t.shape[0]) for t in theta[::2]],
        "inputs": int(theta[0].shape[1]),
        "parameters": sum(t.numel() for t in theta),
        "generator": model.generator if model.generator_ is not None else None,
        "threshold": model.threshold,
        "epochs": len(model.history_),
        "best_epoch": model.best_epoch_,
        "stopped": model.stopped_,
        **{k: None if pd.isna(best[k]) else float(best[k]) for k in SHARES},
        "rows_kept": len(model.neighbours_),
        "model_digest": network.digest(theta),
        "encoding_digest": model.encoding_.digest,
        "made_with": content["versions"],
    }


def _text(name: str, value: Any) -> str:
    from veritracer.schema.values import value_in_words

    if value is None:
        return "–"
    if isinstance(value, list):
        return " → ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if name in SHARES:
        return percent(value)
    return value_in_words(value)


def _features(schema: Schema, title: str) -> None:
    table = schema.describe().drop(columns="note")
    header = (table.index.name or "feature", *table.columns)
    print_table(
        title,
        header,
        [[str(name), *map(str, row)] for name, row in zip(table.index, table.to_numpy(), strict=True)],
    )


def _schema_line(schema: Schema) -> str:
    return str(schema).partition("\n")[0]
