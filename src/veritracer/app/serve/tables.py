"""A table of any length, explained by a service: read, sent and written piece by piece."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from veritracer.app.serve.client import NUMBERS, Client, RemoteRecourse
from veritracer.encoding.exact import Texts
from veritracer.errors import DataError, message
from veritracer.schema import Schema
from veritracer.streaming.chunks import Watch, frames, kept_columns
from veritracer.tables import ADDED, Sink, TableSource, check_columns
from veritracer.tables.exact_columns import arrow_type

MOST_NOTES = 20


@dataclass(frozen=True)
class RemotelyExplained:
    """How the rows of a table ended, and for which set of models that was certified."""

    rows: int
    favourable: int
    certified: int
    valid: int
    none: int
    models: str
    model_digest: str | None
    notes: tuple[str, ...] = ()

    @property
    def asked(self) -> int:
        """The rows that a counterfactual was looked for."""
        return self.rows - self.favourable


def explain_remotely(
    client: Client,
    table: TableSource,
    sink: Sink,
    *,
    options: Mapping[str, Any],
    keep: Sequence[str] = (),
    sentences: bool = False,
    watch: Watch | None = None,
    ignore: Sequence[str] = (),
) -> RemotelyExplained:
    """How the rows ended, after the service's answer about each was written: as ``explain_table`` does."""
    schema = Schema.from_json(json.dumps(client.model()["schema"]))
    check_columns(table, schema, keep, ignore)
    asked = wire_options(options)
    ends: Counter[str] = Counter()
    about: Mapping[str, Any] = {}
    notes: list[str] = []
    for frame in frames(table, schema, keep):
        found = client.explain(frame[list(schema.names)], **asked)
        sink.write(_written(found, frame[list(keep)], schema, sentences=sentences))
        first = found.alternative == 0
        alone = first & found.favourable & bool(options.get("only_unfavourable", True))
        ends.update(found.status[first & ~alone].tolist())
        ends["favourable"] += int(alone.sum())
        ends["rows"] += len(frame)
        about, notes = found.about, notes + found.notes
        if watch is not None:
            watch(ends["rows"], table.share())
    counts = {name: ends[name] for name in ("rows", "favourable", "certified", "valid", "none")}
    models = f"kappa = {about.get('kappa')} ({about.get('norm')}, {about.get('rule')})"
    return RemotelyExplained(
        **counts, models=models, model_digest=about.get("model_digest"), notes=tuple(notes[:MOST_NOTES])
    )


def wire_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as they travel: what was left out stays out, an infinite price is a lock."""
    given = {name: value for name, value in options.items() if value is not None and value != {}}
    prices = dict(given.pop("cost", {}))
    locked = [name for name, price in prices.items() if math.isinf(price)]
    finite = {name: price for name, price in prices.items() if name not in locked}
    return {**given, **({"cost": finite} if finite else {}), **({"lock": locked} if locked else {})}


def _written(found: RemoteRecourse, kept: pd.DataFrame, schema: Schema, *, sentences: bool) -> pa.Table:
    columns: dict[str, Any] = {}
    if "alternative" in found.frame.index.names:
        columns[f"{ADDED}row"] = pa.array(found.frame.index.get_level_values(0))
        columns[f"{ADDED}alternative"] = pa.array(found.alternative + 1)
    columns |= kept_columns(kept, found.person)
    for feature in schema.features:
        kind = arrow_type(feature)
        values = [one["counterfactual"][feature.name] for one in found.documents]
        if kind == pa.string():
            texts = Texts.of(feature)
            values = [None if value is None else texts.text(value) for value in values]
        columns[feature.name] = _array(values, kind, feature.name)
    columns[f"{ADDED}decision"] = pa.array([str(label) for label in found.decision], pa.string())
    columns[f"{ADDED}probability"] = pa.array(found.probability)
    names = ["status", "reason", *NUMBERS, "agreement", *(["sentence"] if sentences else [])]
    for name in names:
        given = [one[name] for one in found.documents]
        numeric = name in ("radius", "worst_logit", "cost", "agreement")
        columns[f"{ADDED}{name}"] = pa.array(given, pa.float64() if numeric else None)
    return pa.table(columns)


def _array(values: list[Any], kind: pa.DataType, name: str) -> pa.Array:
    try:
        if pa.types.is_integer(kind) and any(isinstance(value, float) and value % 1 for value in values):
            raise pa.ArrowInvalid("a fraction among whole numbers")  # which pyarrow would cut off
        return pa.array(np.array(values, dtype=object), kind, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        remedy = "ask with another table, or from Python"
        raise DataError(message(f"values of {name!r} as the model has them", str(error), remedy)) from None
