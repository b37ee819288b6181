"""Decisions for a table of any length, written while it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from veritracer.model import VeriTraCER
from veritracer.streaming.chunks import Notes, Watch, frames, kept_columns
from veritracer.tablefiles import Rejects, Sink, Table
from veritracer.tablefiles.opening import ADDED, check_columns


@dataclass(frozen=True)
class Predicted:
    """How many rows were decided, how many of them favourably, and how many could not be read."""

    rows: int
    favourable: int
    rejected: int
    threshold: float
    notes: tuple[str, ...] = ()


def predict_table(
    model: VeriTraCER,
    table: Table,
    sink: Sink,
    *,
    keep: Sequence[str] = (),
    ignore: Sequence[str] = (),
    rejects: Rejects | None = None,
    watch: Watch | None = None,
) -> Predicted:
    """How the rows were decided, after the decision and the probability of each were written to ``sink``."""
    schema = model.encoding_.schema
    check_columns(table, schema, keep, ignore)
    notes, done, favourable = Notes(), 0, 0
    yes = model.classes_.tolist().index(schema.favourable)
    for frame in frames(table, model.schema_, keep, rejects, model.encoding_):
        with notes.taken():
            rows = frame[[name for name in frame.columns if name in schema.names]]
            probability = model.predict_proba(rows)[:, yes]
        decided = [str(label) for label in model.predict(rows).tolist()]
        columns = {
            f"{ADDED}row": pa.array(frame.index.to_numpy()),
            **kept_columns(frame[list(keep)]),
            f"{ADDED}decision": pa.array(decided, pa.string()),
            f"{ADDED}probability": pa.array(probability),
        }
        sink.write(pa.table(columns))
        done, favourable = done + len(frame), favourable + decided.count(str(schema.favourable))
        if watch is not None:
            watch(done, table.share())
    rejected = 0 if rejects is None else rejects.count
    return Predicted(done, favourable, rejected, model.threshold_, tuple(notes.sentences()))
