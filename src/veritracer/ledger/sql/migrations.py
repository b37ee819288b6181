"""The layout of the database by version, and the way from each version to the next.

A migration is a line in ``MIGRATIONS`` and never changes again. Each one that is applied leaves an entry in
the chain and a row in ``veritracer_migrations``; ``verify`` compares the two. Entries that are there already
are never rewritten: their links would not hold.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from veritracer.errors import LedgerError, message
from veritracer.ledger.entries import FORMAT, MONOTONE, to_bytes
from veritracer.ledger.sql import tables
from veritracer.ledger.sql.database import reading, writing
from veritracer.ledger.sql.writer import Writer
from veritracer.ledger.times import dated


class Migration(NamedTuple):
    """One step: the version that it leads to, what it is called, and what it does."""

    version: int
    name: str
    apply: Callable[[Connection], None]


def _first(connection: Connection) -> None:
    tables.metadata.create_all(connection)


def _second(connection: Connection) -> None:
    """Nothing; from its entry on promises are of layout 2, and times do not go back."""


MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "entries, encoded, texts, models", _first),
    Migration(MONOTONE, "regions in raw units, times that do not go back", _second),
)


def migrate(engine: Engine, steps: Sequence[Migration] = MIGRATIONS, *, create: bool = True) -> int:
    """The version of the ledger, after the steps that it lacked; a newer ledger is refused."""
    with reading(engine) as connection:
        found = version(connection)
    _check(found, steps, engine, create=create)
    if found == steps[-1].version:
        return found
    with writing(engine) as connection:
        found = version(connection)  # somebody else may have been here in the meantime
        _check(found, steps, engine, create=create)
        for step in steps:
            if step.version > found:
                step.apply(connection)
                _note(connection, step)
    return steps[-1].version


def version(connection: Connection) -> int:
    """The version of the ledger's layout; 0 where there is no ledger yet."""
    if not sa.inspect(connection).has_table(tables.migrations.name):
        return 0
    found = connection.scalar(sa.select(sa.func.max(tables.migrations.c.version)))
    if not isinstance(found, int) or found < 1:
        remedy = "the ledger was changed: take it from a backup"
        raise LedgerError(message("the version of the ledger", repr(found), remedy))
    return found


def _check(found: int, steps: Sequence[Migration], engine: Engine, *, create: bool) -> None:
    where = engine.url.render_as_string(hide_password=True)
    if found > steps[-1].version:
        expected = f"a ledger of version {steps[-1].version} or older in {where}"
        raise LedgerError(message(expected, f"version {found}", "use the release that wrote it, or a newer"))
    if found == 0 and not create:
        raise LedgerError(message(f"a ledger in {where}", "none", "check the path, or issue a promise first"))


def _note(connection: Connection, step: Migration) -> None:
    header: dict[str, Any] = {"format": FORMAT, "version": step.version, "name": step.name}
    if step.version == 1:
        header["ledger"] = os.urandom(16).hex()  # no two ledgers share a chain
    with Writer(connection) as writer:
        header["time"] = dated(time.time(), _newest(writer), stated=False)
        seq = writer.append("migration", to_bytes(header))
    row = {"version": step.version, "name": step.name, "seq": seq}
    connection.execute(tables.migrations.insert(), row)


def _newest(writer: Writer) -> float:
    """The newest entry's time; one that can not be read is for ``verify`` to find, which migrates too."""
    try:
        return writer.newest
    except LedgerError:
        return -math.inf
