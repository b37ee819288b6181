"""Counterfactuals for a table of any length, written while it is read: as rows, and as promises.

Promises are prepared while the table is read, and issued when it is whole.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from veritracer.counterfactuals import Counterfactuals
from veritracer.ledger.requests import Request
from veritracer.options import IssueOptions, Original, Uncertified
from veritracer.recourse import Recourse
from veritracer.streaming.chunks import Notes, Watch, frames, kept_columns
from veritracer.tables import Rejects, Sink, TableSource
from veritracer.tables.exact_columns import check_exact, exact_column
from veritracer.tables.reading import ADDED, check_columns, check_ids

if TYPE_CHECKING:
    from veritracer.ledger import Issued, Ledger
    from veritracer.ledger.issuing import Batch, Numbered, Prepared


Also = Callable[[Counterfactuals, pd.DataFrame], Mapping[str, pa.Array]]
"""Is given each piece's counterfactuals and kept columns; gives columns to add to what is written."""


@dataclass(frozen=True)
class Explained:
    """How the rows of a table ended.

    Attributes
    ----------
    rows
        All of them.
    favourable
        Those that were left alone, being favourable already.
    certified, valid, none
        Of the others: with a certified counterfactual, with one that is only valid today, without one.
    kappa, models, radii, center_digest
        What was certified at; the set of models in words, and by its absolute radii and its centre.
    notes
        What was noticed in the data, in sentences.
    rejected
        Rows that could not be read, beside these.
    """

    rows: int
    favourable: int
    certified: int
    valid: int
    none: int
    kappa: float
    models: str
    radii: Mapping[str, float]
    center_digest: str
    notes: tuple[str, ...] = ()
    rejected: int = 0

    @property
    def asked(self) -> int:
        """The rows that a counterfactual was looked for."""
        return self.rows - self.favourable


def explain_table(
    recourse: Recourse,
    table: TableSource,
    sink: Sink,
    *,
    options: Mapping[str, Any],
    keep: Sequence[str] = (),
    sentences: bool = False,
    also: Also | None = None,
    watch: Watch | None = None,
    ignore: Sequence[str] = (),
    rejects: Rejects | None = None,
) -> Explained:
    """How the rows ended, after the counterfactual of each one was written to ``sink``.

    ``options`` are those of ``Recourse.explain``; ``keep`` names columns that are carried along;
    ``sentences`` adds each counterfactual as a person should read it, ``also`` whatever it gives, from the
    columns in ``keep``; nobody looks at those in ``ignore``.
    Rows that cannot be read go to ``rejects``, or stop it if there is none.
    """
    schema = recourse.encoding.schema
    read = list(dict.fromkeys(keep))
    check_columns(table, schema, read, ignore)
    ends: Counter[str] = Counter()
    notes, done = Notes(), 0
    for frame in frames(table, schema, read, rejects, recourse.encoding):
        with notes.taken():
            found = recourse.explain(frame[[n for n in frame.columns if n in schema.names]], **options)
        piece = written(found, frame[list(keep)], sentences=sentences)
        for name, column in ({} if also is None else also(found, frame[read])).items():
            piece = piece.append_column(name, column)
        sink.write(piece)
        ends.update(_ends(found, only_unfavourable=bool(options.get("only_unfavourable", True))))
        done += len(frame)
        if watch is not None:
            watch(done, table.share())
    used = recourse.param_set(options.get("kappa"))
    return Explained(
        rows=done,
        favourable=ends["favourable"],
        certified=ends["certified"],
        valid=ends["valid"],
        none=ends["none"],
        kappa=used.kappa,
        models=str(used),
        radii=used.named_radii,
        center_digest=used.center_digest,
        notes=tuple(notes.sentences()),
        rejected=0 if rejects is None else rejects.count,
    )


def written(found: Counterfactuals, kept: pd.DataFrame, *, sentences: bool) -> pa.Table:
    """The counterfactuals as a table to write: what is kept, the values shown, and ``recourse.*``."""
    several = "alternative" in found.frame.index.names
    columns: dict[str, Any] = {}
    if several:
        columns[f"{ADDED}row"] = pa.array(found.frame.index.get_level_values(0))
        columns[f"{ADDED}alternative"] = pa.array(found.alternative + 1)
    columns |= kept_columns(kept, found.row)
    shown = {str(name): exact_column(found.encoding, found.frame[name]) for name in found.frame.columns}
    columns |= {name: column for name, (_, column) in shown.items()}
    columns |= {f"{ADDED}{name}": _number(getattr(found, name)) for name in ("decision", "probability")}
    for name in found.table.columns:
        columns[f"{ADDED}{name}"] = _number(getattr(found, name))
    if sentences:
        columns[f"{ADDED}sentence"] = pa.array([found.sentence(i) for i in range(len(found))], pa.string())
    fields = [shown[n][0] if n in shown else pa.field(n, column.type) for n, column in columns.items()]
    table = pa.table(list(columns.values()), schema=pa.schema(fields))
    check_exact(table, found)
    return table


def _number(values: Any) -> pa.Array:
    if values.dtype.kind == "f":  # an infinite bound is one that nobody has
        return pa.array(values, mask=~np.isfinite(values))
    if values.dtype.kind in "OU":
        return pa.array(values.astype(object), pa.string())
    return pa.array(values)


def _ends(found: Counterfactuals, *, only_unfavourable: bool) -> Counter[str]:
    """How many people ended how: the best of their alternatives counts, which is the first."""
    first = found.alternative == 0
    alone = first & found.favourable & only_unfavourable
    status, count = np.unique(found.status[first & ~alone], return_counts=True)
    ends = Counter(dict(zip(status.tolist(), count.tolist(), strict=True)))
    ends["favourable"] = int(alone.sum())
    return ends


# ---------------------------------------------------------------- promises


class NullSink:
    """Takes a table and does not write it."""

    def write(self, piece: pa.Table) -> None:
        """Drop the chunk."""

    def notes(self) -> list[str]:
        """None."""
        return []


class IssueTerms(NamedTuple):
    """What is the same for all promises of one run."""

    id_column: str
    expires: timedelta | datetime | None = IssueOptions.expires
    original: Original = IssueOptions.original
    key: bytes | str | None = None
    uncertified: Uncertified = IssueOptions.uncertified
    allow_duplicate: bool = IssueOptions.allow_duplicate


def issue_table(
    recourse: Recourse,
    table: TableSource,
    sink: Sink,
    ledger: Ledger,
    terms: IssueTerms,
    *,
    options: Mapping[str, Any],
    keep: Sequence[str] = (),
    sentences: bool = False,
    watch: Watch | None = None,
    ignore: Sequence[str] = (),
    rejects: Rejects | None = None,
    request: Callable[[Explained, Batch], Request | None] | None = None,
    numbered: Numbered | None = None,
) -> tuple[Explained, Issued]:
    """Issue the promises of a table, and return how its rows ended and what was issued.

    Nothing is in the ledger before the whole table was read, and then everything is. What opens the
    commitments to original rows (``original="commitment"``) stands in ``recourse.opening``.

    ``request`` is called when everything was written to the sink, before anything is issued; the request
    that it returns is granted once. ``numbered`` is called inside the ledger's transaction, when promises
    have their numbers. Whatever either of them raises, nothing is issued.
    """
    check_ids(table, terms.id_column)
    with ledger.issuing(
        recourse.module,
        threshold=0.5 if recourse.threshold is None else recourse.threshold,
        expires=terms.expires,
        original=terms.original,
        key=terms.key,
        uncertified=terms.uncertified,
        allow_duplicate=terms.allow_duplicate,
    ) as batch:
        batch.numbered += [] if numbered is None else [numbered]

        def also(found: Counterfactuals, kept: pd.DataFrame) -> dict[str, pa.Array]:
            added = batch.add(found, kept[terms.id_column].tolist())
            return _openings(found, added) if terms.original == "commitment" else {}

        explained = explain_table(
            recourse,
            table,
            sink,
            options=options,
            keep=list(dict.fromkeys([terms.id_column, *keep])),
            sentences=sentences,
            also=also,
            watch=watch,
            ignore=ignore,
            rejects=rejects,
        )
        if request is not None:
            batch.request = request(explained, batch)
    return explained, batch.issued


def _openings(found: Counterfactuals, added: Prepared) -> dict[str, pa.Array]:
    """The column of openings; null where nothing was promised."""
    texts: list[str | None] = [None] * len(found)
    for i, opening in zip(added.rows.tolist(), added.openings, strict=True):
        texts[i] = b64encode(opening).decode()
    return {f"{ADDED}opening": pa.array(texts, pa.string())}
