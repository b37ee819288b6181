"""A ledger in a database: what is asked of it, the end of its chain, its versions, and all of it opened.

Readers come at any time, one writer at a time. A migration is a line in ``MIGRATIONS`` and never changes
again. Each one that is applied leaves an entry in the chain and a row in ``veritracer_migrations``, and
``verify`` compares the two. Entries that are there already are never rewritten: their links would not hold.
"""

from __future__ import annotations

import hmac
import math
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from veritracer.errors import LedgerError, RequestReusedError, message
from veritracer.ledger import chain, database
from veritracer.ledger.chain import EVENTFUL, FORMAT, MONOTONE, content_of, time_of, to_bytes
from veritracer.ledger.database import encoded, entries, migrations, models, requests, texts
from veritracer.ledger.records import HASH, Record, commitment
from veritracer.ledger.requests import Kept, Request, RequestRow, kept_of
from veritracer.times import entry_timestamp

Rows = Sequence[Any]
"""Rows of one answer: each is a tuple of the columns that the method names, in its order."""

MAX_IN_LIST = 900
"""Values in one IN (...): every SQLite takes that many."""

LARGEST = 2**63 - 1
"""The largest number that an entry can have."""

ROWS_PER_INSERT = 2_000
"""Rows that go to the database at once."""


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
        self.requests = RequestEntries()
        try:
            self.version = migrate(self.engine, migrations or MIGRATIONS, create=create)
            if not self.read_only and database.has_traces(self.engine):
                database.forget_traces(self.engine, 0)  # of an erasure that was not completed: see there
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> str:
        """The database's URL, without its password."""
        return self.url.render_as_string(hide_password=True)

    @property
    def read_only(self) -> bool:
        """Whether it is a file on read-only media."""
        return database.is_read_only(self.url)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Questions to one state of the ledger."""
        known = self.requests
        with database.reading(self.engine) as connection, closing(Reader(connection, known)) as reader:
            yield reader

    @contextmanager
    def writing(self) -> Iterator[tuple[Writer, Reader]]:
        """The end of the chain, and questions to the ledger; all of the block is kept, or nothing."""
        if self.read_only:
            remedy = "copy it to a disk that can be written; verify and audit can read it where it is"
            raise LedgerError(
                message("a ledger that can be written", f"{self.url.database}, read-only", remedy)
            )
        with database.writing(self.engine) as connection, Writer(connection) as writer:
            yield writer, Reader(connection, self.requests)

    def forget_traces(self) -> str:
        """Remove deleted content from the files too; return what prevented it, or nothing."""
        return database.forget_traces(self.engine)

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()


class Reader:
    """Questions to the database within one transaction; long answers come piece by piece."""

    def __init__(self, connection: Connection, requests: RequestEntries) -> None:
        self.connection, self.requests = connection, requests
        self.unfinished: list[sa.CursorResult[Any]] = []

    def close(self) -> None:
        """Give up answers that nobody read to their end, before the connection is."""
        for answer in self.unfinished:
            answer.close()

    def begin(self) -> None:
        """Ask something: a database fixes the state that it shows with the first question."""
        self.connection.execute(sa.select(sa.func.max(entries.c.seq))).first()

    def head(self) -> bytes:
        """The link of the newest entry."""
        return chain.stored_link(self.connection.scalar(newest(entries.c.link)))

    def events(self, *kinds: chain.Kind) -> Rows:
        """Number, kind and header of all entries of these kinds, which are not promises."""
        wanted = sa.select(entries.c.seq, entries.c.kind, entries.c.header)
        wanted = wanted.where(entries.c.kind.in_(kinds)).order_by(entries.c.seq)
        return self.connection.execute(wanted).all()

    def deployment(self, after: int = 0) -> bytes | None:
        """Return the header of the newest deployment behind a number; None where there is none."""
        wanted = newest(entries.c.header).where(entries.c.kind == "deployment", entries.c.seq > after)
        found: bytes | None = self.connection.scalar(wanted)
        return found

    def kept_models(self) -> Rows:
        """Number, kind and header of issuing models, without a look at every entry; one may be left out."""
        wanted = sa.select(entries.c.seq, entries.c.kind, entries.c.header)
        wanted = wanted.where(entries.c.seq.in_(sa.select(models.c.seq)), entries.c.kind == "model")
        return self.connection.execute(wanted.order_by(entries.c.seq)).all()

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
        for at in range(0, len(sequence), MAX_IN_LIST):
            wanted = (
                sa.select(entries.c.seq, entries.c.header, texts.c.shown, texts.c.original)
                .join(texts, texts.c.seq == entries.c.seq)
                .where(entries.c.kind == "promise", entries.c.seq.in_(sequence[at : at + MAX_IN_LIST]))
            )
            found |= {int(row[0]): row[1:] for row in self.connection.execute(wanted)}
        return found

    def applications(self, whose: Sequence[bytes], after: int = 0) -> Iterator[Rows]:
        """Number, header, id and original row of these people's promises behind a number, not erased."""
        wanted = sa.select(entries.c.seq, entries.c.header, encoded.c.who, texts.c.original)
        wanted = wanted.select_from(entries).join(encoded, encoded.c.seq == entries.c.seq)
        wanted = wanted.join(texts, texts.c.seq == entries.c.seq)
        wanted = wanted.where(entries.c.kind == "promise", entries.c.seq > after)
        for at in range(0, len(whose), MAX_IN_LIST):
            some = wanted.where(encoded.c.who.in_(whose[at : at + MAX_IN_LIST]))
            yield self.connection.execute(some.order_by(entries.c.seq)).all()

    def people(self, chunk: int) -> Iterator[Rows]:
        """Number and id of all promises that are not erased."""
        return self._pieces(sa.select(encoded.c.seq, encoded.c.who).order_by(encoded.c.seq), chunk)

    def last(self) -> int:
        """The number of the newest entry."""
        return int(self.connection.scalar(newest(entries.c.seq)) or 0)

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

    def of(self, *whose: bytes) -> dict[bytes, list[int]]:
        """The numbers of all promises to each of these people."""
        found: dict[bytes, list[int]] = {who: [] for who in whose}
        for at in range(0, len(whose), MAX_IN_LIST):
            some = encoded.c.who.in_(whose[at : at + MAX_IN_LIST])
            wanted = sa.select(encoded.c.seq, encoded.c.who).where(some).order_by(encoded.c.seq)
            for seq, who in self.connection.execute(wanted):
                found[who].append(int(seq))
        return found

    def known(self, sequence: Iterable[int]) -> set[int]:
        """Which of these numbers are promises."""
        asked, found = [number for number in sequence if number <= LARGEST], set()
        for at in range(0, len(asked), MAX_IN_LIST):
            some = entries.c.seq.in_(asked[at : at + MAX_IN_LIST])
            wanted = sa.select(entries.c.seq).where(some, entries.c.kind == "promise")
            found |= {int(seq) for seq in self.connection.scalars(wanted)}
        return found

    def everything(self, chunk: int) -> Iterator[Rows]:
        """All that verifying looks at: each entry with its parts, None where it has none."""
        apart = [encoded.c.salts, encoded.c.who, encoded.c.x_cf, encoded.c.x, texts.c.shown, texts.c.original]
        wanted = sa.select(*entries.c, *apart, models.c.document, models.c.tensors)
        for table in (encoded, texts, models):
            wanted = wanted.outerjoin(table, table.c.seq == entries.c.seq)
        asked = [requests.c[name] for name in RequestRow._fields]
        if _has_requests(self.connection):
            wanted = wanted.add_columns(*asked).outerjoin(requests, requests.c.seq == entries.c.seq)
        else:
            wanted = wanted.add_columns(*(sa.null().label(column.name) for column in asked))
        return self._pieces(wanted.order_by(entries.c.seq), chunk)

    def sizes(self) -> dict[str, int]:
        """How many rows the tables have that stand beside the entries."""
        return {
            table.name: self.connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
            for table in (encoded, texts, models, *([requests] if _has_requests(self.connection) else []))
        }

    def request(self, request: Request) -> Kept | None:
        """What was issued under this request's key before; refused where that was for something else."""
        seq = self.requests.find(self.connection, request.hashed)
        if seq is None:
            return None
        entry = self.connection.execute(sa.select(entries).where(entries.c.seq == seq)).one()
        row = self._row_of(seq)
        if row is None or not self._is_as_written(entry, row):
            remedy = "the ledger was changed: run veritracer verify"
            received = "none" if row is None else "something else"
            raise LedgerError(message("what was kept of this request", received, remedy))
        if not row.is_cleared and not hmac.compare_digest(row.digest, request.digest):
            remedy = "send a retry exactly as the first time, and give every new request a key of its own"
            expected = "the request that this key was first used for"
            raise RequestReusedError(message(expected, "another request under its key", remedy))
        return kept_of(content_of("request", entry.header), entry.link, row)

    def _row_of(self, seq: int) -> RequestRow | None:
        """What stands beside the entry of a request, if anything does."""
        if not _has_requests(self.connection):
            return None
        wanted = sa.select(*(requests.c[name] for name in RequestRow._fields)).where(requests.c.seq == seq)
        row = self.connection.execute(wanted).first()
        return None if row is None else RequestRow(*row)

    def _is_as_written(self, entry: Any, row: RequestRow) -> bool:
        """Check the link of a request's entry, its commitments, and that only an erasure cleared its row."""
        link = sa.select(entries.c.link).where(entries.c.seq == entry.seq - 1)
        before = chain.stored_link(self.connection.scalar(link))
        try:
            if chain.link(before, *entry[:5]) != entry.link:
                return False
            if not row.is_cleared:
                return bool(row.commitments == entry.commitments)
            response = bool(row.commitments[HASH:] == entry.commitments[HASH:])
        except TypeError:  # SQLite keeps a text where bytes belong
            return False
        return response and self._lacks(content_of("request", entry.header)["first"], entry.seq)

    def _lacks(self, first: int, end: int) -> bool:
        """Whether one of the promises from ``first`` to before ``end`` has no record any more."""
        there = sa.select(sa.func.count()).where(first <= encoded.c.seq, encoded.c.seq < end)
        return (self.connection.scalar(there.select_from(encoded)) or 0) < end - first

    def migrations(self) -> Rows:
        """Version, name and entry of each migration that was applied."""
        return self.connection.execute(sa.select(migrations).order_by(migrations.c.version)).all()

    def _pieces(self, wanted: sa.Select[Any], chunk: int) -> Iterator[Rows]:
        found = self.connection.execute(wanted, execution_options={"yield_per": chunk})
        self.unfinished.append(found)
        yield from found.partitions()
        self.unfinished.remove(found)


class RequestEntries:
    """The numbers of the entries of requests by the hash of their key.

    There is no index that could be trusted (see ``database``), so entries are read one after another: all of
    them the first time, and afterwards those that are new.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read, self._link = 0, chain.BEGINNING
        self._numbers: dict[str, int] = {}

    def find(self, connection: Connection, hashed: str) -> int | None:
        """The entry of the request under that key, in the state that the connection sees."""
        with self._lock:
            link = connection.scalar(sa.select(entries.c.link).where(entries.c.seq == self._read))
            if self._read and link != self._link:  # rolled back, restored, or an earlier state than the last
                self._read, self._numbers = 0, {}
            last = connection.execute(newest(entries.c.seq, entries.c.link)).first()
            if last is not None and last.seq > self._read:
                self._go_on(connection)
                self._read, self._link = int(last.seq), last.link
            return self._numbers.get(hashed)

    def _go_on(self, connection: Connection) -> None:
        wanted = sa.select(entries.c.seq, entries.c.header).where(entries.c.seq > self._read)
        for seq, header in connection.execute(
            wanted.where(entries.c.kind == "request").order_by(entries.c.seq)
        ):
            self._numbers.setdefault(content_of("request", header)["key"], int(seq))


def _has_requests(connection: Connection) -> bool:
    return sa.inspect(connection).has_table(requests.name)


def newest(*columns: Any) -> sa.Select[Any]:
    """The question for the newest entry."""
    return sa.select(*columns).order_by(entries.c.seq.desc()).limit(1)


def _promises_of(model: int) -> tuple[sa.ColumnElement[bool], ...]:
    return entries.c.kind == "promise", entries.c.model == model


class Writer:
    """Appends entries to the chain within a transaction that keeps others out.

    Rows are collected and sent in batches; leaving the block sends the rest.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        found = connection.execute(newest(database.entries)).first()
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
        self._add(database.entries, row)
        return self.seq

    def promise(self, record: Record, model: int) -> int:
        """The number of the new promise."""
        seq = self.append("promise", record.header, model=model, commitments=record.commitments)
        encoded = {"salts": record.salts, "who": record.who, "x_cf": record.x_cf, "x": record.x}
        self._add(database.encoded, encoded)
        self._add(database.texts, {"shown": record.shown, "original": record.original})
        return seq

    def model(self, header: bytes, document: bytes, tensors: bytes) -> int:
        """The number of the new issuing model."""
        seen = commitment(b"", document) + commitment(b"", tensors)
        seq = self.append("model", header, commitments=seen)
        self._add(database.models, {"document": document, "tensors": tensors})
        return seq

    def require(self, version: int, now: float) -> None:
        """Apply the steps that this version needs, before what needs it is written."""
        assert not self.waiting, "a version is required before anything is written"
        found = ledger_version(self.connection)
        for step in MIGRATIONS:
            if found < step.version <= version:
                step.apply(self.connection)
                _note(self.connection, step, self, now)

    def index_people(self) -> None:
        """See to it that promises are found by whose they are without a look at all of them."""
        database.people.create(self.connection, checkfirst=True)

    def request(self, request: Request, first: int, issued: float, expires: float) -> int:
        """Append the entry of a request whose promises, from ``first`` on, are the newest entries."""
        requests.create(self.connection, checkfirst=True)
        ends = None if math.isinf(expires) else expires
        about = {"first": first, "count": self.seq + 1 - first, "time": issued, "expires": ends}
        row = RequestRow.of(request)
        header = to_bytes({**about, "key": request.hashed})
        seq = self.append("request", header, commitments=row.commitments)
        self._add(requests, row._asdict())
        return seq

    def delete(self, sequence: Sequence[int]) -> None:
        """Delete all that these promises say of a person; their entries stay.

        Of a request that made one of them its response is left, which names nobody.
        """
        self._forget_requests(sequence)
        for at in range(0, len(sequence), MAX_IN_LIST):
            for table in (database.encoded, database.texts):
                some = table.c.seq.in_(sequence[at : at + MAX_IN_LIST])
                self.connection.execute(sa.delete(table).where(some))
        database.expect_traces(self.connection)

    def _forget_requests(self, sequence: Sequence[int]) -> None:
        """Clear what was asked in the requests that made one of these promises."""
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
        """Send what is waiting."""
        for table in (database.entries, encoded, texts, models, requests):
            if rows := self.waiting.pop(table.name, []):
                self.connection.execute(table.insert(), rows)

    def _add(self, table: sa.Table, row: dict[str, Any]) -> None:
        rows = self.waiting.setdefault(table.name, [])
        rows.append({"seq": self.seq, **row})
        if len(rows) >= ROWS_PER_INSERT and table is database.entries:
            self.flush()


class Migration(NamedTuple):
    """One step: the version that it leads to, what it is called, and what it does.

    One that can wait is applied when something is written that needs it: until then earlier releases can
    read the ledger, and one on read-only media need not be written to.
    """

    version: int
    name: str
    apply: Callable[[Connection], None]
    waits: bool = False


def _first(connection: Connection) -> None:
    database.metadata.create_all(connection)


def _second(connection: Connection) -> None:
    """Change no table: from its entry on promises are of layout 2, and times do not go back."""


def _third(connection: Connection) -> None:
    """Change no table: from its entry on audits, updates and deployments are entries, and there is advice."""


MIGRATIONS: tuple[Migration, ...] = (
    Migration(1, "entries, encoded, texts, models", _first),
    Migration(MONOTONE, "regions in raw units, times that do not go back", _second),
    Migration(EVENTFUL, "audits, updates and advice", _third, waits=True),
)


def migrate(engine: Engine, steps: Sequence[Migration] = MIGRATIONS, *, create: bool = True) -> int:
    """The version of the ledger, after the steps that it lacked; a newer ledger is refused.

    Steps that can wait do, and nothing is written to a ledger that can only be read.
    """
    with database.reading(engine) as connection:
        found = ledger_version(connection)
    _check(found, steps, engine, create=create)
    wanted = max(step.version for step in steps if not step.waits)
    if found >= wanted or (found > 0 and database.is_read_only(engine.url)):
        return found
    with database.writing(engine) as connection:
        found = ledger_version(connection)  # somebody else may have been here in the meantime
        _check(found, steps, engine, create=create)
        for step in steps:
            if found < step.version <= wanted:
                step.apply(connection)
                with Writer(connection) as writer:
                    _note(
                        connection, step, writer, entry_timestamp(time.time(), _newest(writer), stated=False)
                    )
    return max(found, wanted)


def ledger_version(connection: Connection) -> int:
    """The version of the ledger's layout; 0 where there is no ledger yet."""
    if not sa.inspect(connection).has_table(database.migrations.name):
        return 0
    found = connection.scalar(sa.select(sa.func.max(database.migrations.c.version)))
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


def _note(connection: Connection, step: Migration, writer: Writer, now: float) -> None:
    header: dict[str, Any] = {"format": FORMAT, "version": step.version, "name": step.name}
    if step.version == 1:
        header["ledger"] = os.urandom(16).hex()  # no two ledgers share a chain
    seq = writer.append("migration", to_bytes({**header, "time": now}))
    row = {"version": step.version, "name": step.name, "seq": seq}
    connection.execute(database.migrations.insert(), row)


def _newest(writer: Writer) -> float:
    """The newest entry's time; one that cannot be read is for ``verify`` to find, which migrates too."""
    try:
        return writer.newest
    except LedgerError:
        return -math.inf
