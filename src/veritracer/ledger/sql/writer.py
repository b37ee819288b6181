"""The end of the chain, held by one writer."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from veritracer.ledger import chain
from veritracer.ledger.entries import time_of
from veritracer.ledger.records import Record
from veritracer.ledger.sql import tables
from veritracer.ledger.sql.reader import newest

BATCH = 2_000
"""Rows that go to the database at once."""


class Writer:
    """Appends entries to the chain within a transaction that keeps others out.

    Rows are collected and sent in batches; leaving the block sends the rest.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        found = connection.execute(newest(tables.entries)).first()
        self.seq, link = (0, None) if found is None else (int(found.seq), found.link)
        self.link = chain.stored_link(link)
        self._before = found
        self.waiting: dict[str, list[dict[str, Any]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.flush()

    @property
    def newest(self) -> float:
        """The time of what was the newest entry before: no new one may be dated before it."""
        return -math.inf if self._before is None else time_of(self._before.kind, self._before.header)

    def append(self, kind: chain.Kind, header: bytes, *, model: int = 0, commitments: bytes = b"") -> int:
        """The number of the new entry."""
        self.seq += 1
        self.link = chain.link(self.link, self.seq, kind, model, header, commitments)
        row = {"kind": kind, "model": model, "header": header, "commitments": commitments, "link": self.link}
        self._add(tables.entries, row)
        return self.seq

    def promise(self, record: Record, model: int) -> int:
        """The number of the new promise."""
        seq = self.append("promise", record.header, model=model, commitments=record.commitments)
        encoded = {"salts": record.salts, "who": record.who, "x_cf": record.x_cf, "x": record.x}
        self._add(tables.encoded, encoded)
        self._add(tables.texts, {"shown": record.shown, "original": record.original})
        return seq

    def model(self, header: bytes, document: bytes, tensors: bytes) -> int:
        """The number of the new issuing model."""
        seen = chain.commitment(b"", document) + chain.commitment(b"", tensors)
        seq = self.append("model", header, commitments=seen)
        self._add(tables.models, {"document": document, "tensors": tensors})
        return seq

    def flush(self) -> None:
        """Send what is waiting."""
        for table in (tables.entries, tables.encoded, tables.texts, tables.models):
            if rows := self.waiting.pop(table.name, []):
                self.connection.execute(table.insert(), rows)

    def _add(self, table: sa.Table, row: dict[str, Any]) -> None:
        rows = self.waiting.setdefault(table.name, [])
        rows.append({"seq": self.seq, **row})
        if len(rows) >= BATCH and table is tables.entries:
            self.flush()
