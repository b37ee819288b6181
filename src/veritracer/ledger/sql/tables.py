"""The tables of a ledger. ``entries`` only ever grows; what speaks of a person stands apart and can go."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text

metadata = MetaData()

_Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite's own row number, else 64 bits


def _seq() -> Column[int]:
    return Column("seq", _Number, primary_key=True, autoincrement=False)


entries = Table(
    "veritracer_entries",
    metadata,
    _seq(),
    Column("kind", Text, nullable=False),
    Column("model", _Number, nullable=False, index=True),  # the entry of the issuing model; 0: not a promise
    Column("header", LargeBinary, nullable=False),
    Column("commitments", LargeBinary, nullable=False),
    Column("link", LargeBinary, nullable=False),
)

# What an audit reads, apart from what only people read: a million promises are half the bytes that way.
encoded = Table(
    "veritracer_encoded",
    metadata,
    _seq(),
    Column("salts", LargeBinary, nullable=False),
    Column("who", LargeBinary, nullable=False, index=True),
    Column("x_cf", LargeBinary, nullable=False),
    Column("x", LargeBinary),
)

texts = Table(
    "veritracer_texts",
    metadata,
    _seq(),
    Column("shown", LargeBinary, nullable=False),
    Column("original", LargeBinary),
)

models = Table(
    "veritracer_models",
    metadata,
    _seq(),
    Column("document", LargeBinary, nullable=False),
    Column("tensors", LargeBinary, nullable=False),
)

migrations = Table(
    "veritracer_migrations",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("seq", _Number, nullable=False),
)
