"""What can be asked of a ledger, in one state of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from veritracer.errors import LedgerError, message
from veritracer.ledger import chain
from veritracer.ledger.sql.tables import encoded, entries, migrations, models, texts

MOST = 900
"""Values in one IN (...): every SQLite takes that many."""

LARGEST = 2**63 - 1
"""The largest number that an entry can have."""

Rows = Sequence[Any]


class Reader:
    """Questions to the database within one transaction; long answers come piece by piece."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.unfinished: list[sa.CursorResult[Any]] = []

    def close(self) -> None:
        """Nothing; answers that nobody read to their end are given up, before the connection is."""
        for answer in self.unfinished:
            answer.close()

    def begin(self) -> None:
        """Nothing; a database fixes the state that it shows with the first question."""
        self.connection.execute(sa.select(sa.func.max(entries.c.seq))).first()

    def head(self) -> bytes:
        """The link of the newest entry."""
        return chain.stored_link(self.connection.scalar(newest(entries.c.link)))

    def events(self, *kinds: chain.Kind) -> Rows:
        """Number, kind and header of all entries of these kinds, which are not promises."""
        wanted = sa.select(entries.c.seq, entries.c.kind, entries.c.header)
        wanted = wanted.where(entries.c.kind.in_(kinds)).order_by(entries.c.seq)
        return self.connection.execute(wanted).all()

    def model(self, seq: int) -> tuple[bytes, bytes]:
        """Document and weights of an issuing model."""
        row = self.connection.execute(
            sa.select(models.c.document, models.c.tensors).where(models.c.seq == seq)
        ).first()
        if row is None:
            remedy = "the ledger was changed: run veritracer verify"
            raise LedgerError(message(f"the issuing model of entry {seq}", "none", remedy))
        document, tensors = row
        return document, tensors

    def headers(self, model: int, chunk: int) -> Iterator[Rows]:
        """Number and header of the model's promises."""
        wanted = sa.select(entries.c.seq, entries.c.header).where(*_promises_of(model))
        return self._pieces(wanted.order_by(entries.c.seq), chunk)

    def promises(self, model: int, chunk: int, *, with_texts: bool = False) -> Iterator[Rows]:
        """Number, header, id, encoded rows and, if asked for, texts of the model's promises not erased."""
        columns = [entries.c.seq, entries.c.header, encoded.c.who, encoded.c.x_cf, encoded.c.x]
        wanted = sa.select(*columns, *([texts.c.shown, texts.c.original] if with_texts else []))
        wanted = wanted.select_from(entries).join(encoded, encoded.c.seq == entries.c.seq)
        if with_texts:
            wanted = wanted.join(texts, texts.c.seq == entries.c.seq)
        return self._pieces(wanted.where(*_promises_of(model)).order_by(entries.c.seq), chunk)

    def texts(self, sequence: Sequence[int]) -> dict[int, Any]:
        """Header, shown values and original row of promises by their number, of those that have a record."""
        found: dict[int, Any] = {}
        for at in range(0, len(sequence), MOST):
            wanted = (
                sa.select(entries.c.seq, entries.c.header, texts.c.shown, texts.c.original)
                .join(texts, texts.c.seq == entries.c.seq)
                .where(entries.c.kind == "promise", entries.c.seq.in_(sequence[at : at + MOST]))
            )
            found |= {int(row[0]): row[1:] for row in self.connection.execute(wanted)}
        return found

    def record(self, seq: int) -> Any:
        """Model, header, commitments and all parts of one promise; None if it has none (any more)."""
        wanted = (
            sa.select(
                entries.c.model,
                entries.c.header,
                entries.c.commitments,
                encoded.c.who,
                texts.c.shown,
                encoded.c.x,
                texts.c.original,
            )
            .join(encoded, encoded.c.seq == entries.c.seq)
            .join(texts, texts.c.seq == entries.c.seq)
        )
        promise = entries.c.kind == "promise", entries.c.seq == min(seq, LARGEST)
        return self.connection.execute(wanted.where(*promise)).first()

    def of(self, who: bytes) -> list[int]:
        """The numbers of all promises to somebody."""
        wanted = sa.select(encoded.c.seq).where(encoded.c.who == who).order_by(encoded.c.seq)
        return [int(seq) for seq in self.connection.scalars(wanted)]

    def known(self, sequence: Iterable[int]) -> set[int]:
        """Which of these numbers are promises."""
        asked, found = [number for number in sequence if number <= LARGEST], set()
        for at in range(0, len(asked), MOST):
            some = entries.c.seq.in_(asked[at : at + MOST])
            wanted = sa.select(entries.c.seq).where(some, entries.c.kind == "promise")
            found |= {int(seq) for seq in self.connection.scalars(wanted)}
        return found

    def everything(self, chunk: int) -> Iterator[Rows]:
        """All that verifying looks at: each entry with its parts, None where it has none."""
        apart = [encoded.c.salts, encoded.c.who, encoded.c.x_cf, encoded.c.x, texts.c.shown, texts.c.original]
        wanted = sa.select(*entries.c, *apart, models.c.document, models.c.tensors)
        for table in (encoded, texts, models):
            wanted = wanted.outerjoin(table, table.c.seq == entries.c.seq)
        return self._pieces(wanted.order_by(entries.c.seq), chunk)

    def sizes(self) -> dict[str, int]:
        """How many rows the tables have that stand beside the entries."""
        return {
            table.name: self.connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for table in (encoded, texts, models)
        }

    def migrations(self) -> Rows:
        """Version, name and entry of each migration that was applied."""
        return self.connection.execute(sa.select(migrations).order_by(migrations.c.version)).all()

    def _pieces(self, wanted: sa.Select[Any], chunk: int) -> Iterator[Rows]:
        found = self.connection.execute(wanted, execution_options={"yield_per": chunk})
        self.unfinished.append(found)
        yield from found.partitions()
        self.unfinished.remove(found)


def newest(*columns: Any) -> sa.Select[Any]:
    """The question for the newest entry."""
    return sa.select(*columns).order_by(entries.c.seq.desc()).limit(1)


def _promises_of(model: int) -> tuple[sa.ColumnElement[bool], ...]:
    return entries.c.kind == "promise", entries.c.model == model
