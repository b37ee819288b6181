"""Counterfactuals for a table of any length, written while it is read: as rows, as letters, as promises.

A folder of letters appears only when it is whole; promises are prepared while the table is read, and issued
when it is whole.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from veritracer.errors import DataError, message
from veritracer.files import whole_folder
from veritracer.ledger import Issued, Ledger
from veritracer.ledger.layout import Original
from veritracer.recourse import Counterfactuals, Recourse
from veritracer.recourse.letter import Format, Template
from veritracer.recourse.reason_codes import as_codes
from veritracer.streaming.chunks import Notes, Watch, check_exact, exact_column, frames, kept_columns
from veritracer.tablefiles import Sink, Table
from veritracer.tablefiles.opening import ADDED, check_columns, check_ids
from veritracer.tablefiles.sinks import writable

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

    @property
    def asked(self) -> int:
        """The rows that a counterfactual was looked for."""
        return self.rows - self.favourable


def explain_table(
    recourse: Recourse,
    table: Table,
    sink: Sink,
    *,
    options: Mapping[str, Any],
    keep: Sequence[str] = (),
    sentences: bool = False,
    also: Also | None = None,
    watch: Watch | None = None,
) -> Explained:
    """How the rows ended, after the counterfactual of each one was written to ``sink``.

    ``options`` are those of ``Recourse.explain``; ``keep`` names columns that are carried along;
    ``sentences`` adds each counterfactual as a person should read it, ``also`` whatever it gives.
    """
    schema = recourse.encoding.schema
    check_columns(table, schema, keep)
    ends: Counter[str] = Counter()
    notes, done = Notes(), 0
    for frame in frames(table, schema, keep):
        with notes.taken():
            found = recourse.explain(frame[[n for n in frame.columns if n in schema.names]], **options)
        piece = written(found, frame[list(keep)], sentences=sentences)
        for name, column in ({} if also is None else also(found, frame[list(keep)])).items():
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
    )


def written(found: Counterfactuals, kept: pd.DataFrame, *, sentences: bool) -> pa.Table:
    """The counterfactuals as a table to write: what is kept, the values shown, and ``recourse.*``."""
    several = "alternative" in found.frame.index.names
    columns: dict[str, Any] = {}
    if several:
        columns[f"{ADDED}row"] = pa.array(found.frame.index.get_level_values(0))
        columns[f"{ADDED}alternative"] = pa.array(found.alternative + 1)
    columns |= kept_columns(kept, found.person)
    shown = {str(name): exact_column(found.encoding, found.frame[name]) for name in found.frame.columns}
    columns |= {name: column for name, (_, column) in shown.items()}
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


# ---------------------------------------------------------------- letters


@contextmanager
def letter_folder(
    folder: Path,
    *,
    codes: str | os.PathLike[str] | None,
    template: str | os.PathLike[str] | None,
    kind: Format | None,
    fields: Mapping[str, Any],
) -> Iterator[Also]:
    """What writes the letters of each piece, and adds the name of each person's letter as a column.

    A file is named after the row, counted from 1, and holds nothing of any other. People who are favourable
    already get none.
    """
    if folder.exists():
        remedy = "name a new one, so that nobody gets an old letter"
        raise DataError(message("a folder for letters that is not there yet", str(folder), remedy))
    known = as_codes(codes)
    source = Template.of(template, kind)
    ending = "html" if source.format == "html" else "txt"

    def write(place: Path, found: Counterfactuals, _: pd.DataFrame) -> Mapping[str, pa.Array]:
        names = [None if found.favourable[i] else f"{_row(found, i)}.{ending}" for i in range(len(found))]
        told = [i for i, name in enumerate(names) if name is not None]
        known.reasons([change for i in told for change in found.changes_of(i)])  # all that lack one, at once
        for i, name in enumerate(names):
            if name is not None:
                letter = found.letter(i, template, known, format=source.format, **fields)
                (place / name).write_text(letter, encoding="utf-8")
        return {f"{ADDED}letter": pa.array(names, pa.string())}

    with writable(folder), whole_folder(folder) as place:
        yield partial(write, place)


def _row(found: Counterfactuals, i: int) -> str:
    """The number of the row, and of the alternative where there are several."""
    label = found.frame.index[i]
    if found.n == 1:
        return f"{label:06}"
    return f"{label[0]:06}-{found.alternative[i] + 1}"


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
    threshold: float
    expires: timedelta | datetime | None = None
    original: Original = "plain"
    key: bytes | str | None = None


def issue_table(
    recourse: Recourse,
    table: Table,
    sink: Sink,
    ledger: Ledger,
    terms: IssueTerms,
    *,
    options: Mapping[str, Any],
    keep: Sequence[str] = (),
    sentences: bool = False,
    watch: Watch | None = None,
    once: str | None = None,
    receipt: Callable[[], str] | None = None,
) -> tuple[Explained, Issued]:
    """How the rows ended and what was issued, after all counterfactuals went to ``sink``.

    Nothing is in the ledger before the whole table was read, and then everything is. What opens the
    commitments to original rows (``original="commitment"``) stands in ``recourse.opening``. ``once`` is the
    key of ``Ledger.issuing``; ``receipt`` is asked for what to keep under it when everything was written to
    the sink, before anything is issued.
    """
    check_ids(table, terms.id_column)
    with ledger.issuing(
        recourse.module,
        threshold=terms.threshold,
        expires=terms.expires,
        original=terms.original,
        key=terms.key,
        once=once,
    ) as batch:

        def also(found: Counterfactuals, kept: pd.DataFrame) -> dict[str, pa.Array]:
            openings = batch.add(found, kept[terms.id_column].tolist())
            return _openings(found, openings) if terms.original == "commitment" else {}

        explained = explain_table(
            recourse,
            table,
            sink,
            options=options,
            keep=list(dict.fromkeys([terms.id_column, *keep])),
            sentences=sentences,
            also=also,
            watch=watch,
        )
        batch.receipt = "" if receipt is None else receipt()
    return explained, batch.issued


def _openings(found: Counterfactuals, openings: list[bytes]) -> dict[str, pa.Array]:
    """The column of openings; null where nothing was promised."""
    cells = iter(openings)
    promised = (found.status != "none").tolist()
    texts = [b64encode(next(cells)).decode() if one else None for one in promised]
    return {f"{ADDED}opening": pa.array(texts, pa.string())}
