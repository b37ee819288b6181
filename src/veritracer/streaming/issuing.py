"""Promises to everybody in a table of any length: prepared while it is read, issued when it is whole."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from veritracer.ledger import Issued, Ledger
from veritracer.ledger.layout import Original
from veritracer.recourse import Counterfactuals, Recourse
from veritracer.streaming.columns import ADDED, check_ids
from veritracer.streaming.explaining import Explained, explain_table
from veritracer.streaming.pieces import Watch
from veritracer.tablefiles import Sink, Table


class Nowhere:
    """Takes a table and does not write it."""

    def write(self, piece: pa.Table) -> None:
        """Nothing."""

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
) -> tuple[Explained, Issued]:
    """How the rows ended and what was issued, after all counterfactuals went to ``sink``.

    Nothing is in the ledger before the whole table was read, and then everything is. What opens the
    commitments to original rows (``original="commitment"``) stands in ``recourse.opening``.
    """
    check_ids(table, terms.id_column)
    with ledger.issuing(
        recourse.module,
        threshold=terms.threshold,
        expires=terms.expires,
        original=terms.original,
        key=terms.key,
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
    return explained, batch.issued


def _openings(found: Counterfactuals, openings: list[bytes]) -> dict[str, pa.Array]:
    """The column of openings; null where nothing was promised."""
    cells = iter(openings)
    promised = (found.status != "none").tolist()
    texts = [b64encode(next(cells)).decode() if one else None for one in promised]
    return {f"{ADDED}opening": pa.array(texts, pa.string())}
