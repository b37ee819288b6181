"""The ledger's tables, the end of its chain with one writer at a time, and queries of one state.

``entries`` only grows; records and requests stand apart, so that what speaks of a person can be erased.
"""

from __future__ import annotations

import hmac
import math
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Table, Text
from sqlalchemy.engine import Connection, Dialect, Engine

from veritracer.errors import LedgerError, RequestReusedError, message
from veritracer.ledger import chain, connections
from veritracer.ledger.chain import content_of, time_of
from veritracer.ledger.records import CHANGED, HASH, Record, canonical, commitment
from veritracer.ledger.requests import Issued, Request, RequestRow
from veritracer.times import Moment, entry_timestamp, to_timestamp

Rows = Sequence[Any]
"""Rows of one answer: each is a tuple of the columns that the method names, in its order."""

MAX_IN_LIST = 900
"""Values in one IN (...): every SQLite takes that many."""

LARGEST = 2**63 - 1
"""The largest number that an entry can have."""

ROWS_PER_INSERT = 2_000
"""Rows that are sent to the database at once."""

metadata = MetaData()


class Blob(LargeBinary):
    """Bytes as they are. Both drivers take and give them; wrapping each one took most of the writing time."""

    cache_ok = True

    def bind_processor(self, dialect: Dialect) -> None:
        """Return None: the driver takes bytes as they are."""

    def result_processor(self, dialect: Dialect, coltype: object) -> None:
        """Return None: the driver gives bytes as they are."""


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

records = Table(
    "veritracer_records",
    metadata,
    _seq(),
    Column("salts", Blob, nullable=False),
    Column("id", Blob, nullable=False),
    Column("x_cf", Blob, nullable=False),
    Column("x", Blob),
    Column("public", Blob, nullable=False),
    Column("private", Blob),
)

# SQLite is never asked by an index (see ``connections``); a hash, because ids may be long.
sa.Index("veritracer_ids", records.c.id, postgresql_using="hash").ddl_if(dialect="postgresql")

models = Table(
    "veritracer_models",
    metadata,
    _seq(),
    Column("document", Blob, nullable=False),
    Column("tensors", Blob, nullable=False),
)

# What stands beside the entry of a request: see ``RequestRow``.
requests = Table(
    "veritracer_requests",
    metadata,
    _seq(),
    Column("salt", Blob, nullable=False),
    Column("digest", Blob, nullable=False),
    Column("response", Blob, nullable=False),
)

BESIDE = records, models, requests
"""The tables whose rows stand beside an entry of the same number."""

ERASABLE = (records.name, requests.name)


class Database:
    """The database of a ledger, which is created when it is opened for the first time."""

    def __init__(self, place: str | os.PathLike[str], *, create: bool = True) -> None:
        self.url = connections.place_of(place)
        if not create and not connections.exists(self.url):
            remedy = "check the path, or issue a promise first"
            raise LedgerError(message("a ledger that exists", f"no file {self.url.database}", remedy))
        self.engine = connections.connect(self.url)
        self.requests = RequestEntries()
        try:
            _prepare(self.engine, create=create)
            if not self.read_only and connections.has_traces(self.engine):
                connections.forget_traces(self.engine, ERASABLE, 0)  # an erasure was not completed
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> str:
        """Return the database's URL without its password."""
        return self.url.render_as_string(hide_password=True)

    @property
    def read_only(self) -> bool:
        """Return whether the ledger is a file on read-only media."""
        return connections.is_read_only(self.url)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Open queries of one state of the ledger."""
        known = self.requests
        with connections.reading(self.engine) as connection, closing(Reader(connection, known)) as reader:
            yield reader

    @contextmanager
    def writing(self) -> Iterator[tuple[Writer, Reader]]:
        """Open the end of the chain and queries; all that is written in the block is kept, or nothing."""
        if self.read_only:
            remedy = "copy it to a disk that can be written; verify and audit can read it where it is"
            raise LedgerError(
                message("a ledger that can be written", f"{self.url.database}, read-only", remedy)
            )
        with connections.writing(self.engine) as connection:
            writer = Writer(connection)
            yield writer, Reader(connection, self.requests)
            writer.flush()

    def forget_traces(self) -> str:
        """Remove deleted content from the files too; return what prevented it, or an empty text."""
        return connections.forget_traces(self.engine, ERASABLE)

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()


def _prepare(engine: Engine, *, create: bool) -> None:
    """Create the tables and the first entry where there is no ledger; refuse one of another layout."""
    with connections.reading(engine) as connection:
        if _exists(connection):
            return _check_layout(connection)
    if not create:
        where = engine.url.render_as_string(hide_password=True)
        raise LedgerError(message(f"a ledger in {where}", "none", "check the path, or issue a promise first"))
    with connections.writing(engine) as connection:
        if _exists(connection):  # another process was faster
            return _check_layout(connection)
        metadata.create_all(connection)
        writer = Writer(connection)
        # No two ledgers share a chain: each has a random name.
        name, about = os.urandom(16).hex(), {"format": chain.FORMAT, "version": chain.VERSION}
        writer.append("ledger", canonical({**about, "ledger": name, "time": time.time()}))
        writer.flush()
    return None


def _exists(connection: Connection) -> bool:
    return sa.inspect(connection).has_table(entries.name)


def _check_layout(connection: Connection) -> None:
    """Refuse a ledger that does not begin as one of this layout does."""
    wanted = sa.select(entries.c.kind, entries.c.header).where(entries.c.seq == 1)
    first = connection.execute(wanted).first()
    content = content_of("ledger", first.header) if first is not None and first.kind == "ledger" else {}
    if (content.get("format"), content.get("version")) != (chain.FORMAT, chain.VERSION):
        received = "no first entry" if first is None else f"a first entry {first.header[:80]!r}"
        remedy = "read it with the release that wrote it, or take it from a backup"
        raise LedgerError(message(f"a ledger of layout {chain.VERSION}", received, remedy))


class Reader:
    """Queries of the database within one transaction; long answers come in pieces."""

    def __init__(self, connection: Connection, requests: RequestEntries) -> None:
        self.connection, self.requests = connection, requests
        self.unfinished: list[sa.CursorResult[Any]] = []

    def close(self) -> None:
        """Close answers that were not read to their end, before the connection is closed."""
        for answer in self.unfinished:
            answer.close()

    def begin(self) -> None:
        """Run a query: a database fixes the state that it shows with the first one."""
        self.connection.execute(sa.select(sa.func.max(entries.c.seq))).first()

    def head(self) -> bytes:
        """Return the link of the newest entry."""
        return chain.stored_link(self.connection.scalar(newest(entries.c.link)))

    def events(self, *kinds: chain.Kind) -> Rows:
        """Return number, kind and header of all entries of these kinds, which are not promises."""
        wanted = sa.select(entries.c.seq, entries.c.kind, entries.c.header)
        wanted = wanted.where(entries.c.kind.in_(kinds)).order_by(entries.c.seq)
        return self.connection.execute(wanted).all()

    def deployment(self, after: int = 0) -> bytes | None:
        """Return the header of the newest deployment after an entry; None if there is none."""
        wanted = newest(entries.c.header).where(entries.c.kind == "deployment", entries.c.seq > after)
        found: bytes | None = self.connection.scalar(wanted)
        return found

    def stored_models(self) -> Rows:
        """Return number, kind and header of issuing models; one without its row is left out."""
        wanted = sa.select(entries.c.seq, entries.c.kind, entries.c.header)
        wanted = wanted.where(entries.c.seq.in_(sa.select(models.c.seq)), entries.c.kind == "model")
        return self.connection.execute(wanted.order_by(entries.c.seq)).all()

    def model(self, seq: int) -> tuple[bytes, bytes]:
        """Return document and weights of an issuing model."""
        row = self.connection.execute(
            sa.select(models.c.document, models.c.tensors).where(models.c.seq == seq)
        ).first()
        if row is None:
            raise LedgerError(message(f"the issuing model of entry {seq}", "none", CHANGED))
        document, tensors = row
        return document, tensors

    def headers(self, model: int, chunk: int) -> Iterator[Rows]:
        """Yield number and header of the model's promises."""
        wanted = sa.select(entries.c.seq, entries.c.header).where(*_promises_of(model))
        return self._pieces(wanted.order_by(entries.c.seq), chunk)

    def promises(self, model: int, chunk: int, *, with_texts: bool = False, since: int = 0) -> Iterator[Rows]:
        """Yield number, header, id, x_cf, x and, if asked for, both texts of promises that have a record."""
        columns = [entries.c.seq, entries.c.header, records.c.id, records.c.x_cf, records.c.x]
        wanted = sa.select(*columns, *([records.c.public, records.c.private] if with_texts else []))
        wanted = wanted.select_from(entries).join(records, records.c.seq == entries.c.seq)
        wanted = wanted.where(*_promises_of(model), entries.c.seq > since)
        return self._pieces(wanted.order_by(entries.c.seq), chunk)

    def applications(self, whose: Sequence[bytes], after: int = 0) -> Iterator[Rows]:
        """Yield number, header, id and private text of these applicants' promises after an entry."""
        wanted = sa.select(entries.c.seq, entries.c.header, records.c.id, records.c.private)
        wanted = wanted.select_from(entries).join(records, records.c.seq == entries.c.seq)
        wanted = wanted.where(entries.c.kind == "promise", entries.c.seq > after)
        for at in range(0, len(whose), MAX_IN_LIST):
            some = wanted.where(records.c.id.in_(whose[at : at + MAX_IN_LIST]))
            yield self.connection.execute(some.order_by(entries.c.seq)).all()

    def people(self, chunk: int) -> Iterator[Rows]:
        """Yield number and id of all promises that have a record."""
        return self._pieces(sa.select(records.c.seq, records.c.id).order_by(records.c.seq), chunk)

    def newest_time(self) -> float:
        """Return the time of the newest entry."""
        found = self.connection.execute(newest(entries.c.kind, entries.c.header)).first()
        return -math.inf if found is None else time_of(found.kind, found.header)

    def last(self) -> int:
        """Return the number of the newest entry."""
        return int(self.connection.scalar(newest(entries.c.seq)) or 0)

    def entry(self, seq: int) -> Any:
        """Return an entry, None if there is none; refuse it if its link or the next one does not follow."""
        number = min(seq, LARGEST - 1)
        wanted = sa.select(entries).where(entries.c.seq.between(number - 1, number + 1))
        near = {int(row.seq): row for row in self.connection.execute(wanted.order_by(entries.c.seq))}
        if number not in near:
            return None
        links = {0: chain.BEGINNING, **{at: row.link for at, row in near.items()}}
        for before, at in pairwise((number - 1, number, number + 1)):
            if at in near and not (before in links and chain.follows(links[before], near[at])):
                received = f"entry {at} with another"
                raise LedgerError(message("a link that follows from the entry before it", received, CHANGED))
        return near[number]

    def parts(self, seq: int) -> Any:
        """Return the columns of ``Record`` after the commitments; None without a record."""
        columns = [records.c[name] for name in Record._fields[2:]]
        wanted = sa.select(*columns).where(records.c.seq == min(seq, LARGEST))
        return self.connection.execute(wanted).first()

    def of(self, *whose: bytes) -> dict[bytes, list[int]]:
        """Return the numbers of all promises to each of these applicants."""
        found: dict[bytes, list[int]] = {who: [] for who in whose}
        for at in range(0, len(whose), MAX_IN_LIST):
            some = records.c.id.in_(whose[at : at + MAX_IN_LIST])
            wanted = sa.select(records.c.seq, records.c.id).where(some).order_by(records.c.seq)
            for seq, who in self.connection.execute(wanted):
                found[who].append(int(seq))
        return found

    def known(self, sequence: Iterable[int]) -> set[int]:
        """Return those of these numbers that are promises."""
        possible, found = [number for number in sequence if number <= LARGEST], set()
        for at in range(0, len(possible), MAX_IN_LIST):
            some = entries.c.seq.in_(possible[at : at + MAX_IN_LIST])
            wanted = sa.select(entries.c.seq).where(some, entries.c.kind == "promise")
            found |= {int(seq) for seq in self.connection.scalars(wanted)}
        return found

    def everything(self, chunk: int) -> Iterator[Rows]:
        """Yield each entry with the columns of all tables beside it, None where it has no row there."""
        apart = [column for table in BESIDE for column in table.c if column.name != "seq"]
        wanted = sa.select(*entries.c, *apart).select_from(entries)
        for table in BESIDE:
            wanted = wanted.outerjoin(table, table.c.seq == entries.c.seq)
        return self._pieces(wanted.order_by(entries.c.seq), chunk)

    def sizes(self) -> dict[str, int]:
        """Return the number of rows of each table that stands beside the entries."""
        return {
            table.name: self.connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for table in BESIDE
        }

    def request(self, request: Request) -> Issued | None:
        """Return what was issued under this request's key; refuse a request for something else."""
        seq = self.requests.find(self.connection, request.hashed)
        if seq is None:
            return None
        entry = self.entry(seq)
        content = content_of("request", entry.header)
        wanted = sa.select(*(requests.c[name] for name in RequestRow._fields)).where(requests.c.seq == seq)
        stored = self.connection.execute(wanted).first()
        row = None if stored is None else RequestRow(*stored)
        if row is None or not self._is_committed(row, entry.commitments, range(content["first"], seq)):
            received = "none" if row is None else "something else"
            raise LedgerError(message("the stored row of this request", received, CHANGED))
        if not row.is_cleared and not hmac.compare_digest(row.digest, request.digest):
            remedy = "send a retry exactly as the first time, and give every new request a key of its own"
            expected = "the request that this key was first used for"
            raise RequestReusedError(message(expected, "another request under its key", remedy))
        return Issued(
            np.arange(content["first"], content["first"] + content["count"], dtype=np.int64),
            [],
            entry.link.hex(),
            issued=content["time"],
            expires=math.inf if content["expires"] is None else content["expires"],
            again=True,
            answer=chain.answer_of(row.response),
        )

    def _is_committed(self, row: RequestRow, commitments: bytes, promises: range) -> bool:
        """Return whether this is the row of a request, or what an erasure of its promises left of it."""
        try:
            if not row.is_cleared:
                return row.commitments == commitments
            response = row.commitments[HASH:] == commitments[HASH:]
        except TypeError:  # SQLite keeps a text where bytes belong
            return False
        return response and self._lacks(promises.start, promises.stop)

    def _lacks(self, first: int, end: int) -> bool:
        """Return whether one of the promises from ``first`` to before ``end`` has no record any more."""
        there = sa.select(sa.func.count()).where(first <= records.c.seq, records.c.seq < end)
        return (self.connection.scalar(there.select_from(records)) or 0) < end - first

    def _pieces(self, wanted: sa.Select[Any], chunk: int) -> Iterator[Rows]:
        found = self.connection.execute(wanted, execution_options={"yield_per": chunk})
        self.unfinished.append(found)
        yield from found.partitions()
        self.unfinished.remove(found)


class RequestEntries:
    """Numbers of the entries of requests by the hash of their key.

    No index can be trusted (see ``connections``), so entries are read one after another: all of them the
    first time, and then those that are new.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read, self._link = 0, chain.BEGINNING
        self._numbers: dict[str, int] = {}

    def find(self, connection: Connection, hashed: str) -> int | None:
        """Return the entry of the request under that key, in the state that the connection sees."""
        with self._lock:
            link = connection.scalar(sa.select(entries.c.link).where(entries.c.seq == self._read))
            if self._read and link != self._link:  # rolled back, restored, or an earlier state than the last
                self._read, self._numbers = 0, {}
            last = connection.execute(newest(entries.c.seq, entries.c.link)).first()
            wanted = sa.select(entries.c.seq, entries.c.header).where(entries.c.seq > self._read)
            wanted = wanted.where(entries.c.kind == "request").order_by(entries.c.seq)
            for seq, header in connection.execute(wanted):
                self._numbers.setdefault(content_of("request", header)["key"], int(seq))
            self._read, self._link = (0, b"") if last is None else (int(last.seq), last.link)
            return self._numbers.get(hashed)


def newest(*columns: Any) -> sa.Select[Any]:
    """Return the query for columns of the newest entry."""
    return sa.select(*columns).order_by(entries.c.seq.desc()).limit(1)


def _promises_of(model: int) -> tuple[sa.ColumnElement[bool], ...]:
    return entries.c.kind == "promise", entries.c.model == model


class Writer:
    """Append entries to the chain within a transaction that excludes other writers.

    Rows are collected and sent in batches; ``flush`` sends the rest.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        found = connection.execute(newest(entries)).first()
        self.seq, link = (0, None) if found is None else (int(found.seq), found.link)
        self.link = chain.stored_link(link)
        self._before = found
        self.waiting: dict[str, list[dict[str, Any]]] = {}

    @property
    def newest(self) -> float:
        """Return the time of the newest entry before: no new one may be dated before it."""
        return -math.inf if self._before is None else time_of(self._before.kind, self._before.header)

    def append(self, kind: chain.Kind, header: bytes, *, model: int = 0, commitments: bytes = b"") -> int:
        """Append an entry and return its number."""
        self.seq += 1
        self.link = chain.link(self.link, self.seq, kind, model, header, commitments)
        row = {"kind": kind, "model": model, "header": header, "commitments": commitments, "link": self.link}
        self._add(entries, row)
        return self.seq

    def event(self, kind: chain.Kind, content: Mapping[str, Any], now: Moment) -> str:
        """Append what happened besides promises, dated ``now`` or like the newest entry; return the link.

        Only the correction of a clock may be dated before the newest entry.
        """
        moment = to_timestamp(now)
        if kind != "clock":
            moment = entry_timestamp(moment, self.newest)
        self.append(kind, canonical({**content, "time": moment}))
        return self.link.hex()

    def promise(self, record: Record, model: int) -> None:
        """Append a promise."""
        header, commitments, *parts = record
        self.append("promise", header, model=model, commitments=commitments)
        self._add(records, dict(zip(Record._fields[2:], parts, strict=True)))

    def model(self, header: bytes, document: bytes, tensors: bytes) -> int:
        """Append an issuing model and return its number."""
        seen = commitment(b"", document) + commitment(b"", tensors)
        seq = self.append("model", header, commitments=seen)
        self._add(models, {"document": document, "tensors": tensors})
        return seq

    def request(self, request: Request, first: int, issued: float, expires: float) -> None:
        """Append the entry of a request whose promises, from ``first`` on, are the newest entries."""
        ends = None if math.isinf(expires) else expires
        about = {"first": first, "count": self.seq + 1 - first, "time": issued, "expires": ends}
        row = RequestRow.of(request)
        header = canonical({**about, "key": request.hashed})
        self.append("request", header, commitments=row.commitments)
        self._add(requests, row._asdict())

    def delete(self, sequence: Sequence[int]) -> None:
        """Delete the records of these promises; their entries stay.

        The digest of a request that made one of them is cleared; its response, which names nobody, stays.
        """
        self._forget_requests(sequence)
        for at in range(0, len(sequence), MAX_IN_LIST):
            some = records.c.seq.in_(sequence[at : at + MAX_IN_LIST])
            self.connection.execute(sa.delete(records).where(some))
        connections.expect_traces(self.connection)

    def _forget_requests(self, sequence: Sequence[int]) -> None:
        """Clear the requests that made one of these promises."""
        numbers = sorted(sequence)
        behind = entries.c.kind == "request", entries.c.seq > numbers[0]
        wanted = sa.select(entries.c.seq, entries.c.header).where(*behind)
        some = [
            int(seq)
            for seq, header in self.connection.execute(wanted)
            if bisect_left(numbers, seq) > bisect_left(numbers, content_of("request", header)["first"])
        ]
        for at in range(0, len(some), MAX_IN_LIST):
            these = requests.c.seq.in_(some[at : at + MAX_IN_LIST])
            self.connection.execute(sa.update(requests).where(these).values(salt=b"", digest=b""))

    def flush(self) -> None:
        """Send the rows that are waiting."""
        for table in (entries, *BESIDE):
            if rows := self.waiting.pop(table.name, []):
                self.connection.execute(table.insert(), rows)

    def _add(self, table: sa.Table, row: dict[str, Any]) -> None:
        rows = self.waiting.setdefault(table.name, [])
        rows.append({"seq": self.seq, **row})
        if len(rows) >= ROWS_PER_INSERT and table is entries:
            self.flush()
