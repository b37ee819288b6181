"""What a model says of tables of any length, written while they are read.

``certify_tables`` writes certificates for counterfactuals from anywhere: two tables, read side by side.
``predict_table`` writes decisions.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from veritracer.certificate import Certificates
from veritracer.errors import DataError, DataWarning, message
from veritracer.estimator import VeriTraCER
from veritracer.streaming.chunks import Notes, Watch, frames, kept_columns
from veritracer.tables import Partners, Rejects, Sink, TableSource
from veritracer.tables.reading import ADDED, check_columns, check_pairs

STATUSES = ("certified", "unknown", "invalid", "unchanged")


@dataclass(frozen=True)
class Certified:
    """How the pairs ended.

    Attributes
    ----------
    rows
        All pairs.
    certified
        Those with a proof.
    unknown
        Valid today, without a proof.
    invalid
        Changed, but decided as before.
    unchanged
        Pairs of two equal rows, about which there is nothing to prove.
    kappa, models, radii, center_digest
        What was certified at; the set of models in words, and by its absolute radii and its centre.
    notes
        What was noticed in the data, in sentences.
    rejected
        Pairs of which one row could not be read, beside these.
    """

    rows: int
    certified: int
    unknown: int
    invalid: int
    unchanged: int
    kappa: float
    models: str
    radii: Mapping[str, float]
    center_digest: str
    notes: tuple[str, ...] = ()
    rejected: int = 0


def certify_tables(
    model: VeriTraCER,
    originals: TableSource,
    counterfactuals: TableSource,
    sink: Sink | None,
    *,
    kappa: float | None = None,
    keep: Sequence[str] = (),
    ignore: Sequence[str] = (),
    watch: Watch | None = None,
    rejects: Partners | None = None,
) -> Certified:
    """How the pairs ended, after what was proved of each was written to ``sink``.

    Rows that cannot be read go to ``rejects``, or stop it if there is none.
    """
    schema = model.encoding_.schema
    check_pairs(originals, counterfactuals, schema, keep, ignore)
    ends: Counter[str] = Counter()
    notes, done = Notes(), 0
    both = (None, None) if rejects is None else (rejects.whole, rejects)
    for x, x_cf in _pairs(originals, counterfactuals, model, keep, both):
        names = list(schema.names)
        with notes.taken():
            found = model.certify(x[names], x_cf[names], kappa=kappa)
        own, other = (model.encoding_.encode(t[names], out_of_range="ignore") for t in (x, x_cf))
        same = (own == other).all(-1).numpy()
        status = np.where(found.certified, "certified", np.where(found.valid, "unknown", "invalid"))
        status = np.where(same, "unchanged", status)
        if sink is not None:
            sink.write(_written(found, status, x[list(keep)]))
        ends.update(status.tolist())
        done += len(x)
        if watch is not None:
            watch(done, originals.share())
    counts = {name: ends[name] for name in STATUSES}
    used = model.param_set(kappa)
    return Certified(
        rows=done,
        kappa=used.kappa,
        models=str(used),
        radii=used.named_radii,
        center_digest=used.center_digest,
        notes=tuple(notes.sentences()),
        rejected=0 if rejects is None else rejects.whole.count,
        **counts,
    )


def _pairs(
    originals: TableSource,
    counterfactuals: TableSource,
    model: VeriTraCER,
    keep: Sequence[str],
    rejects: tuple[Rejects | None, Rejects | None],
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Pieces of both tables with the same rows, however each of them is cut.

    Rows are known by their number; one whose partner was rejected is left out.
    """
    left = frames(originals, model.schema_, keep, rejects[0], model.encoding_)
    right = frames(counterfactuals, model.schema_, (), rejects[1], model.encoding_)
    x, x_cf, end = next(left, None), next(right, None), (0, 0)
    while x is not None and x_cf is not None:
        mine, other = x.index.to_numpy() - originals.start, x_cf.index.to_numpy() - counterfactuals.start
        end = int(mine[-1]), int(other[-1])
        whole = np.isin(mine, other, assume_unique=True)
        if whole.any():
            yield x[whole], x_cf[np.isin(other, mine, assume_unique=True)]
        x = x[mine > end[1]] if end[0] > end[1] else next(left, None)
        x_cf = x_cf[other > end[0]] if end[1] > end[0] else next(right, None)
    ends = [
        _last(last, table.start, () if piece is None else chain([piece], rest), rejected)
        for last, table, piece, rest, rejected in zip(
            end, (originals, counterfactuals), (x, x_cf), (left, right), rejects, strict=True
        )
    ]
    if ends[0] != ends[1]:
        longer = originals.name if ends[0] > ends[1] else counterfactuals.name
        remedy = "give both tables in the same order, row by row"
        raise DataError(message("one counterfactual for each row", f"more rows in {longer}", remedy))


def _last(last: int, start: int, rest: Iterable[pd.DataFrame], rejects: Rejects | None) -> int:
    """The number of the last row of a table, from the last one that was paired and what is left of it."""
    for piece in rest:
        last = int(piece.index[-1]) - start
    return last if rejects is None else max(last, rejects.last - start)


def _written(found: Certificates, status: NDArray[np.str_], kept: pd.DataFrame) -> pa.Table:
    columns: dict[str, Any] = kept_columns(kept)
    columns[f"{ADDED}status"] = pa.array(status.astype(object), pa.string())
    assert found.radius is not None
    proved = found.certified
    columns |= {
        f"{ADDED}valid": pa.array(found.valid),
        f"{ADDED}certified": pa.array(proved),
        f"{ADDED}radius": pa.array(found.radius),
        f"{ADDED}worst_logit": pa.array(found.worst_logit, mask=~np.isfinite(found.worst_logit)),
        f"{ADDED}method": pa.array(found.method.astype(object), pa.string()),
        f"{ADDED}conditional": pa.array(found.conditional & proved),
    }
    return pa.table(columns)


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
    table: TableSource,
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
        with warnings.catch_warnings():  # of what was noted for probabilities
            warnings.simplefilter("ignore", DataWarning)
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
