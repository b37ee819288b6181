"""The tables of a ledger. ``entries`` only ever grows; what speaks of a person stands apart and can go."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.engine import Dialect

metadata = MetaData()


class Blob(LargeBinary):
    """Bytes as they are. Both drivers take and give them; wrapping each one took most of the writing time."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> None:
        """None: nothing to do."""

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        """None: nothing to do."""


_Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite's own row number, else 64 bits


def _seq() -> Column[int]:
    return Column("seq", _Number, primary_key=True, autoincrement=False)


entries = Table(
    "veritracer_entries",
    metadata,
    _seq(),
    Column("kind", Text, nullable=False),
    Column("model", _Number, nullable=False),  # the entry of the issuing model; 0: not a promise
    Column("header", Blob, nullable=False),
    Column("commitments", Blob, nullable=False),
    Column("link", Blob, nullable=False),
)

# What an audit reads, apart from what only people read: a million promises are half the bytes that way.
encoded = Table(
    "veritracer_encoded",
    metadata,
    _seq(),
    Column("salts", Blob, nullable=False),
    Column("who", Blob, nullable=False),
    Column("x_cf", Blob, nullable=False),
    Column("x", Blob),
)

texts = Table(
    "veritracer_texts",
    metadata,
    _seq(),
    Column("shown", Blob, nullable=False),
    Column("original", Blob),
)

models = Table(
    "veritracer_models",
    metadata,
    _seq(),
    Column("document", Blob, nullable=False),
    Column("tensors", Blob, nullable=False),
)

migrations = Table(
    "veritracer_migrations",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("seq", _Number, nullable=False),
)
