"""Connections to SQLite and PostgreSQL: opened, read in one state, written by one at a time, and cleaned.

Whatever the database refuses becomes one sentence in an error of ours.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from veritracer.errors import CommitUnknownError, LedgerError, LedgerUnavailableError, Message, message

PATIENCE = 120.0
"""Seconds a writer waits for those before it."""

READERS_MAY_TAKE = 5_000
"""Milliseconds an erasure waits for readers before it gives up emptying the write-ahead log."""

READER = "a process that still reads the ledger as it was"
"""The obstacle to emptying SQLite's write-ahead log."""

LOCK = 0x56655269  # a number that no other program should use for its advisory locks

TABLE = re.compile(r"\b(?:FROM|JOIN) veritracer_\w+")

BUSY = ("database is locked", "database table is locked", "lock timeout", "LockNotAvailable")


def place_of(given: str | os.PathLike[str]) -> URL:
    """Return the database that a path or a URL names."""
    text = os.fspath(given)
    if isinstance(given, str) and "://" in text:
        try:
            url = make_url(text)
        except ArgumentError:
            remedy = "write sqlite:///promises.db or postgresql://user@host/name"
            raise LedgerError(message("a path or a database's URL", repr(text), remedy)) from None
    else:
        url = URL.create("sqlite", database=text)
    kind = url.get_backend_name()
    if kind not in ("sqlite", "postgresql"):
        raise LedgerError(message("SQLite or PostgreSQL", kind, "keep the ledger in one of these"))
    if kind == "sqlite" and url.database in (None, "", ":memory:"):
        raise LedgerError(message("a file for the ledger", "none", "a promise must outlive the process"))
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def connect(url: URL) -> Engine:
    """Return the engine of the database; nothing is opened yet."""
    # No pool: a connection that is shared after a fork does harm, and to open one costs milliseconds at most.
    if url.get_backend_name() == "sqlite":
        if is_read_only(url):
            engine = sa.create_engine(_as_it_is(url), poolclass=NullPool)
        else:
            engine = sa.create_engine(url, poolclass=NullPool, connect_args={"timeout": PATIENCE})
            sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        sa.event.listen(engine, "before_cursor_execute", _as_stored, retval=True)
        return engine
    try:
        return sa.create_engine(url, poolclass=NullPool)
    except ModuleNotFoundError as error:
        remedy = "pip install 'veritracer[postgres]'"
        raise LedgerError(message(f"the package {error.name}", "an install without it", remedy)) from None


def is_read_only(url: URL) -> bool:
    """Return whether the ledger is an existing file that cannot be written, or lies in such a folder.

    SQLite needs both: even a reader writes beside the file, so that it knows of writers.
    """
    if url.get_backend_name() != "sqlite" or "immutable" in url.query:
        return "immutable" in url.query
    file = Path(str(url.database))
    return file.is_file() and not (os.access(file, os.W_OK) and os.access(file.absolute().parent, os.W_OK))


def _as_it_is(url: URL) -> URL:
    """Return the URL that reads a file on read-only media, to which nobody can be writing.

    A write-ahead log with content is refused: it would be passed over in silence.
    """
    file = Path(str(url.database)).absolute()
    log = file.with_name(f"{file.name}-wal")
    if log.exists() and log.stat().st_size > 0:
        remedy = "open it once where it can be written, which empties the log, or copy both to such a disk"
        raise LedgerError(message("a ledger that was closed", f"{log.name} beside {file.name}", remedy))
    name = quote(str(file))
    return url.set(database=f"file:{name}", query={"mode": "ro", "immutable": "1", "uri": "true"})


def _prepare_sqlite(connection: sqlite3.Connection, _record: Any) -> None:
    """Set up a new connection; SQLAlchemy calls it with the record of its pool."""
    connection.isolation_level = None  # transactions begin where we say so, not at the first INSERT
    for pragma in ("synchronous = FULL", "secure_delete = ON", "temp_store = MEMORY"):
        connection.execute(f"PRAGMA {pragma}")
    # Readers and a writer side by side. Two processes that switch a new file at once may get in each other's
    # way, whatever the time-out says; the loser finds it done.
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if str(error) not in BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _as_stored(
    _connection: Connection, _cursor: Any, statement: str, parameters: Any, _context: Any, _many: bool
) -> tuple[str, Any]:
    """Make a query read the tables themselves, without any index.

    Whoever can write to the file can give it an index that leaves rows out, but verifying and auditing have
    to read the same rows. (The number of an entry is not an index: it is where the row is.)
    """
    if statement.startswith("SELECT"):
        statement = TABLE.sub(r"\g<0> NOT INDEXED", statement)
    return statement, parameters


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get("transaction", True):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("writing", False) else "BEGIN")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that excludes other writers: all of it is kept, or nothing."""
    with translated(engine), _admitted(engine) as connection:
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that sees one state of the ledger from its beginning to its end."""
    options: dict[str, Any] = {}
    if engine.dialect.name == "postgresql":
        options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with translated(engine), engine.connect().execution_options(**options) as connection, connection.begin():
        yield connection


@contextmanager
def _admitted(engine: Engine) -> Iterator[Connection]:
    with engine.connect().execution_options(writing=True) as connection, _begun(connection):
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{int(PATIENCE)}s'")
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        yield connection


@contextmanager
def _begun(connection: Connection) -> Iterator[None]:
    """Begin a transaction, again while SQLite is busy with something that its time-out does not cover.

    If anything fails before the commit, nothing is kept. A commit that fails may have been kept: it may have
    been on the disk when the answer was lost.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            transaction = connection.begin()
            break
        except OperationalError as error:
            connection.rollback()
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    with transaction:
        yield
        try:
            transaction.commit()
        except DBAPIError as error:
            where = connection.engine.url.render_as_string(hide_password=True)
            received = " ".join(str(error.orig).split())
            remedy = "whether it was kept is unknown: repeat the command"
            raise CommitUnknownError(message(f"a commit to {where}", received, remedy)) from error


@contextmanager
def translated(engine: Engine) -> Iterator[None]:
    """Turn what the database refuses into an error of one sentence."""
    try:
        yield
    except DBAPIError as error:
        said = " ".join(str(error.orig).split())
        where = engine.url.render_as_string(hide_password=True)
        if _is_busy(error):
            remedy = "another process writes for too long: try again when it is done"
            raise LedgerUnavailableError(message(f"{where} to be free", said, remedy)) from error
        remedy = "check the path or URL, the rights to it, and the room on its disk"
        raise LedgerUnavailableError(message(f"a ledger in {where}", said, remedy)) from error


def _is_busy(error: DBAPIError) -> bool:
    return any(word in str(error.orig) or word in type(error.orig).__name__ for word in BUSY)


def expect_traces(connection: Connection) -> None:
    """Record, in the transaction that deletes content, that the files are still to be cleaned.

    SQLite keeps a number for its user in the head of its file (``user_version``). Here it counts erasures,
    and is 0 again once nothing is left of them, so that a process that is killed meanwhile loses nothing.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {_traces(connection) % (2**31 - 1) + 1}")


def has_traces(engine: Engine) -> bool:
    """Return whether content of a recorded erasure may still be in the files; never for PostgreSQL."""
    if engine.dialect.name != "sqlite":
        return False
    with reading(engine) as connection:
        return _traces(connection) > 0


def forget_traces(engine: Engine, tables: Sequence[str], patience: int | None = None) -> str:
    """Remove deleted content from the files too; return what prevented it, or an empty text.

    SQLite overwrites deleted cells (``secure_delete``), but not the copies that a page keeps when its cells
    move to others, nor the pages in its write-ahead log. ``VACUUM`` writes all pages again, and emptying the
    log leaves no others; a reader of an earlier state prevents the latter, and then nothing is written, so
    that the log does not grow with every attempt. ``patience`` is the time to wait for readers in
    milliseconds. In PostgreSQL the room of deleted rows in ``tables`` is freed; it keeps the bytes until that
    room is used again, and its own log for as long as its administrator says.
    """
    try:
        with translated(engine):
            if engine.dialect.name != "sqlite":
                return _mark_room_as_free(engine, tables)
            return _clean_file(engine, READERS_MAY_TAKE if patience is None else patience)
    except LedgerUnavailableError as error:  # the erasure itself is recorded
        said = error.args[0]
        return said.received if isinstance(said, Message) else str(said)


def _mark_room_as_free(engine: Engine, tables: Sequence[str]) -> str:
    """Let PostgreSQL use the room of deleted rows again."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"VACUUM {', '.join(tables)}")
    return ""


def _clean_file(engine: Engine, patience: int) -> str:
    """Write SQLite's file again and empty its log, then take the record of ``expect_traces`` back."""
    with engine.connect().execution_options(transaction=False) as connection:
        # The new copy of a large ledger goes to a temporary file, not into memory.
        for pragma in (f"busy_timeout = {patience}", "temp_store = FILE"):
            connection.exec_driver_sql(f"PRAGMA {pragma}")
        erasures = _traces(connection)
        if not _empty_log(connection):
            return READER
        connection.exec_driver_sql("VACUUM")
        if not _empty_log(connection):
            return READER
    with _admitted(engine) as connection:
        if _traces(connection) == erasures:  # else more was erased meanwhile
            connection.exec_driver_sql("PRAGMA user_version = 0")
    return ""


def _empty_log(connection: Connection) -> bool:
    """Return whether SQLite's write-ahead log could be folded into the file and truncated."""
    return not connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]


def _traces(connection: Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def exists(url: URL) -> bool:
    """Return whether there is a database; a server is asked only when it is used."""
    return url.get_backend_name() != "sqlite" or Path(url.database or "").exists()
