"""Explain, certify or predict one batch of rows, in whichever process that happens.

Every function takes a job and a batch and returns the result; none of them writes a file.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from veritracer.certificate import Certificates
from veritracer.counterfactuals import Counterfactuals
from veritracer.encoding import Encoding
from veritracer.errors import DataError, DataWarning, Message, message
from veritracer.estimator import VeriTraCER
from veritracer.models.param_sets import ParamSet
from veritracer.persistence import load
from veritracer.recourse import Recourse
from veritracer.schema import Schema
from veritracer.tables.cells import apply_schema, without_refused
from veritracer.tables.exact_columns import counterfactual_table, kept_columns
from veritracer.tables.jobs import (
    ADDED,
    Batch,
    BatchResult,
    Job,
    Reject,
    Verb,
    collect_warnings,
    model_digest,
)

MODELS = 4
"""Models that a worker keeps in memory."""

CERTIFY_OPTIONS = ("kappa", "effort", "time_budget")
"""Options of a job that ``certify`` takes."""

STATUSES = ("certified", "broken", "unknown", "invalid", "unchanged")
"""How a pair of ``certify`` can end."""


@lru_cache(MODELS)
def load_model(folder: str, digest: str) -> VeriTraCER:
    """Load the model in a folder; refuse another one than was there when the work began."""
    before = model_digest(folder)
    model = load(folder)
    if not before == digest == model_digest(folder):
        remedy = "put it back, or begin anew with the other one"
        raise DataError(message(f"the model that was in {folder} at the start", "another one", remedy))
    return model


# ---------------------------------------------------------------- the verbs


def explain_batch(job: Job, batch: Batch) -> BatchResult:
    """Return a counterfactual for each row of a batch."""
    result, _, _ = explained(job, batch)
    return result


def explained(job: Job, batch: Batch) -> tuple[BatchResult, Counterfactuals | None, pd.DataFrame]:
    """Return the result of a batch, its counterfactuals unless no row could be read, and its typed rows."""
    recourse = load_model(job.model, job.digest).recourse(job.rules)
    encoding, collect = recourse.encoding, job.collect_rejects
    frame, rejects = typed_rows(batch, encoding.schema, encoding, job.keep, collect=collect)
    if not len(frame):
        return BatchResult(batch.name, batch.digest, rejects=rejects), None, frame
    with collect_warnings() as noticed, naming(batch.table):
        found = explain_rows(recourse, job.options, frame)
    rows = counterfactual_table(found, frame[list(job.keep)], sentences=job.sentences)
    counts = count_outcomes(found, job.options)
    facts = describe_models(recourse.param_set(job.options.get("kappa")))
    return BatchResult(batch.name, batch.digest, rows, counts, facts, noticed, rejects), found, frame


def explain_rows(recourse: Recourse, options: Mapping[str, Any], frame: pd.DataFrame) -> Counterfactuals:
    """Return the counterfactuals of typed rows, which may have more columns than the model reads."""
    names = recourse.encoding.schema.names
    return recourse.explain(frame[[name for name in frame.columns if name in names]], **options)


def count_outcomes(found: Counterfactuals, options: Mapping[str, Any]) -> Counter[str]:
    """Count how the rows ended; of several alternatives the first one says that."""
    first = found.alternative == 0
    alone = first & found.favourable & bool(options.get("only_unfavourable", True))
    counts = Counter(rows=int(first.sum()), favourable=int(alone.sum()))
    for status in ("certified", "valid", "none"):
        counts[status] = int((first & ~alone & (found.status == status)).sum())
    return counts


def certify_batch(job: Job, batch: Batch) -> BatchResult:
    """Return what can be proved of each pair of a row and its counterfactual."""
    model = load_model(job.model, job.digest)
    assert batch.other is not None, "pairs have two tables"
    encoding, names = model.encoding_, list(model.encoding_.schema.names)
    collect = job.collect_rejects
    x, rejects = typed_rows(batch, model.schema_, encoding, job.keep, collect=collect)
    x_cf, others = typed_rows(batch.other, model.schema_, encoding, collect=collect)
    for number, reason, cells in others:
        named = {name: cells.get(name, "") for name in batch.columns}
        rejects.append(Reject(number, f"its counterfactual: {reason}", named))
    x, x_cf = x[x.index.isin(x_cf.index)], x_cf[x_cf.index.isin(x.index)]
    if not len(x):
        return BatchResult(batch.name, batch.digest, rejects=rejects)
    certifying = {name: job.options[name] for name in CERTIFY_OPTIONS if name in job.options}
    with collect_warnings() as noticed, naming(batch.table):
        found = model.certify(x[names], x_cf[names], **certifying)
    encoded = [encoding.encode(table[names], out_of_range="ignore") for table in (x, x_cf)]
    is_unchanged = (encoded[0] == encoded[1]).all(-1).numpy()
    status = np.where(found.valid, found.status, "invalid")
    status = np.where(is_unchanged, "unchanged", status)
    counts = Counter(rows=len(x), **{name: int((status == name).sum()) for name in STATUSES})
    facts = describe_models(model.param_set(job.options.get("kappa")))
    rows = _certificate_table(found, status, x[list(job.keep)])
    return BatchResult(batch.name, batch.digest, rows, counts, facts, noticed, rejects)


def predict_batch(job: Job, batch: Batch) -> BatchResult:
    """Return the decision and the probability of the favourable label for each row."""
    model = load_model(job.model, job.digest)
    schema, encoding = model.encoding_.schema, model.encoding_
    frame, rejects = typed_rows(batch, model.schema_, encoding, job.keep, collect=job.collect_rejects)
    if not len(frame):
        return BatchResult(batch.name, batch.digest, rejects=rejects)
    rows = frame[[name for name in frame.columns if name in schema.names]]
    with collect_warnings() as noticed, naming(batch.table):
        probability = model.predict_proba(rows)[:, model.classes_.tolist().index(schema.favourable)]
    with warnings.catch_warnings():  # the same as for probabilities
        warnings.simplefilter("ignore", DataWarning)
        decided = [str(label) for label in model.predict(rows).tolist()]
    columns = {
        f"{ADDED}row": pa.array(frame.index.to_numpy()),
        **kept_columns(frame[list(job.keep)]),
        f"{ADDED}decision": pa.array(decided, pa.string()),
        f"{ADDED}probability": pa.array(probability),
    }
    counts = Counter(rows=len(frame), favourable=decided.count(str(schema.favourable)))
    facts = {"threshold": model.threshold_}
    return BatchResult(batch.name, batch.digest, pa.table(columns), counts, facts, noticed, rejects)


VERBS: Mapping[Verb, Callable[[Job, Batch], BatchResult]] = {
    "explain": explain_batch,
    "certify": certify_batch,
    "predict": predict_batch,
}


# ---------------------------------------------------------------- rows in and out


def typed_rows(
    batch: Batch, schema: Schema, encoding: Encoding, keep: Sequence[str] = (), *, collect: bool = False
) -> tuple[pd.DataFrame, list[Reject]]:
    """Return rows with the types of the schema, indexed by their numbers, and those that cannot be read.

    Columns to keep have the types of the file; pandas' own would change numbers around gaps. Unless
    unreadable rows are to be collected they are refused, by this or by the encoding.
    """
    with naming(batch.table):
        frame = apply_schema(batch.rows, schema, is_text=batch.is_text, lenient=collect)
    for name in keep:
        frame[name] = pd.arrays.ArrowExtensionArray(batch.rows.column(name))
    if not collect:
        return frame, []
    features = frame[[name for name in frame.columns if name in schema.names]]
    frame, refused = without_refused(frame, batch, encoding.refused(features), schema)
    return frame, [*batch.rejects, *refused]


@contextmanager
def naming(table: str) -> Iterator[None]:
    """Name the table in errors about its rows: a run has many."""
    try:
        yield
    except DataError as error:
        said = error.args[0]
        if not isinstance(said, Message) or table in said:
            raise
        raise type(error)(message(said.expected, f"{said.received} of {table}", said.remedy)) from None


def describe_models(used: ParamSet) -> dict[str, Any]:
    """Return the set of models in words, and by its absolute radii and its centre."""
    return {
        "kappa": used.kappa,
        "models": str(used),
        "radii": dict(used.named_radii),
        "center_digest": used.center_digest,
    }


def _certificate_table(found: Certificates, status: NDArray[np.str_], kept: pd.DataFrame) -> pa.Table:
    assert found.radius is not None
    return pa.table(
        {
            **kept_columns(kept),
            f"{ADDED}status": pa.array(status.astype(object), pa.string()),
            f"{ADDED}valid": pa.array(found.valid),
            f"{ADDED}certified": pa.array(found.certified),
            f"{ADDED}radius": pa.array(found.radius),
            f"{ADDED}worst_logit": pa.array(found.worst_logit, mask=~np.isfinite(found.worst_logit)),
            f"{ADDED}method": pa.array(found.method.astype(object), pa.string()),
            f"{ADDED}conditional": pa.array(found.conditional & found.certified),
        }
    )
