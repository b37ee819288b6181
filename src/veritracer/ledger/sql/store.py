"""A ledger's database, open: readers at any time, one writer at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import sqlalchemy as sa

from veritracer.errors import LedgerError, message
from veritracer.ledger.sql import database, tables
from veritracer.ledger.sql.migrations import MIGRATIONS, Migration, migrate
from veritracer.ledger.sql.reader import Reader
from veritracer.ledger.sql.writer import Writer


class Store:
    """The database of a ledger, brought to the present version when it is opened."""

    def __init__(
        self,
        place: str | os.PathLike[str],
        *,
        create: bool = True,
        migrations: Sequence[Migration] | None = None,
    ) -> None:
        self.url = database.place_of(place)
        if not create and not database.exists(self.url):
            remedy = "check the path, or issue a promise first"
            raise LedgerError(message("a ledger that exists", f"no file {self.url.database}", remedy))
        self.engine = database.connect(self.url)
        try:
            self.version = migrate(self.engine, migrations or MIGRATIONS, create=create)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Questions to one state of the ledger."""
        with database.reading(self.engine) as connection, closing(Reader(connection)) as reader:
            yield reader

    @contextmanager
    def writing(self) -> Iterator[tuple[Writer, Reader]]:
        """The end of the chain, and questions to the ledger; all of the block is kept, or nothing."""
        with database.writing(self.engine) as connection, Writer(connection) as writer:
            yield writer, Reader(connection)

    def delete(self, writer: Writer, sequence: Sequence[int]) -> None:
        """Nothing; all that these promises say of a person is gone when the writer is done."""
        for at in range(0, len(sequence), 900):
            for table in (tables.encoded, tables.texts):
                some = table.c.seq.in_(sequence[at : at + 900])
                writer.connection.execute(sa.delete(table).where(some))

    def forget_traces(self) -> bool:
        """Whether deleted content has left the files too, as far as the database can do that."""
        return database.forget_traces(self.engine)

    def close(self) -> None:
        """Nothing; connections are closed."""
        self.engine.dispose()
