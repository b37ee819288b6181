"""A ledger with every kind of entry, read and rewritten behind its back, and what its readers make of that.

The tables are found by looking into the database, and links and commitments are made as
docs/explanation/ledger-threat-model.md says, with SHA-256 and nothing of the library: what is forged here is
forged by somebody who has read the documentation.
"""

from __future__ import annotations

import copy
import json
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import sqlalchemy as sa
import torch
from torch import nn

import veritracer as vt
from veritracer.errors import VeriTracerError
from veritracer.ledger import audit, new_key
from veritracer.ledger.requests import Request
from veritracer.schema import Feature, Schema

TESTS = Path(__file__).parents[2] / "tests" / "ledger"
PREFIX = "veritracer_"
SALT, HASH = 16, 32
DAY = 86_400.0

Row = dict[str, Any]
Content = dict[str, list[Row]]
"""All rows of all tables of a ledger, by the names of the tables without their prefix."""


def link(previous: bytes, row: Row) -> bytes:
    """The link of an entry, from docs/explanation/ledger-threat-model.md."""
    about = f"{row['seq']}\n{row['kind']}\n{row['model']}\n{len(row['header'])}\n".encode()
    return sha256(previous + about + row["header"] + row["commitments"]).digest()


def relinked(content: Content) -> Content:
    """The content with every link as it has to be."""
    before = bytes(32)
    for row in sorted(content["entries"], key=lambda row: row["seq"]):
        before = row["link"] = link(before, row)
    return content


@cache
def models() -> tuple[vt.Encoding, tuple[nn.Sequential, nn.Sequential], pd.DataFrame]:
    """An encoding, two networks that nobody trained and that turn half of the people down, and people."""
    rng = np.random.default_rng(7)
    schema = Schema(
        [
            Feature("savings", "integer", lower=0, upper=5_000, step=100),
            Feature("income", "continuous", lower=0.0, upper=9_000.0),
            Feature("debts", "integer", lower=0, upper=12, action="decrease_only"),
            Feature("job", "categorical", categories=["clerk", "cook", "driver"]),
        ],
        "approved",
        "yes",
        "no",
    )
    frame = pd.DataFrame(
        {
            "savings": rng.integers(0, 51, 80) * 100,
            "income": rng.uniform(500, 8_500, 80).round(2),
            "debts": rng.integers(0, 13, 80),
            "job": rng.choice(["clerk", "cook", "driver"], 80),
        }
    )
    encoding = vt.Encoding.fit(schema, frame)
    x, made = encoding.encode(frame), []
    for seed in (0, 1):
        g = torch.Generator().manual_seed(seed)
        network = nn.Sequential(nn.Linear(encoding.dim, 5), nn.ReLU(), nn.Linear(5, 1)).double().eval()
        with torch.no_grad():
            for p in network.parameters():
                p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64))
            network[2].bias -= network(x).median()
        made.append(network)
    return encoding, (made[0], made[1]), frame


KEY = new_key()

REQUESTS = {k: Request(f"batch {k}", b"rows %d" % k, {"rows": [k]}) for k in (0, 2, 4)}
"""Under which some of the promises are issued; somebody of the second is erased."""


class Written(NamedTuple):
    """The heads that were noted while a ledger was written, and the records that were erased from it."""

    heads: list[str]
    erased: Content


def build(place: str) -> Written:
    """A ledger with two models, rows kept in every way, and all kinds of entries."""
    encoding, (first, second), frame = models()
    heads: list[str] = []
    erased: Content = {}
    with vt.Ledger(place) as ledger:
        for k, (module, terms, options) in enumerate(
            [
                (first, {}, {}),
                (first, {"original": "encrypted", "key": KEY}, {}),
                (first, {"original": "commitment"}, {"overshoot": 0.02}),
                (second, {"expires": timedelta(days=30)}, {"drift": {"income": 50.0}}),
                (first, {"expires": timedelta(days=365)}, {}),
            ]
        ):
            rows = frame.iloc[12 * k : 12 * k + 12]
            found = vt.Recourse(module, None, encoding, rows=frame, kappa=0.02).explain(
                rows, search_radius=False, **options
            )
            names = [f"person {k}-{i}" for i in range(len(rows))]
            terms = {"expires": None, "uncertified": "promise", **terms}
            issued = ledger.issue(found, module, ids=names, request=REQUESTS.get(k), **terms)
            heads.append(issued.head)
            if k == 0:
                heads.append(ledger.release(issued.sequence[:2].tolist(), "application withdrawn"))
            if k == 2:
                with connected(place) as (engine, tables):
                    before = rows_of(engine, tables)
                gone = set(ledger.erase(issued.ids[0]))
                erased = {t: [r for r in before[t] if r["seq"] in gone] for t in ("records",)}
                erased["requests"] = before["requests"][-1:]
                heads.append(ledger.head)
        heads.append(ledger.release([int(issued.sequence[-1])], "moved away"))
    return Written(heads, erased)


@contextmanager
def connected(place: str) -> Iterator[tuple[sa.Engine, dict[str, sa.Table]]]:
    """A way into the database past the library, and its tables by their names without the prefix."""
    url = sa.make_url(place) if "://" in place else sa.URL.create("sqlite", database=place)
    if url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    if url.get_backend_name() == "sqlite":
        sa.event.listen(engine, "connect", lambda c, _: c.execute("PRAGMA synchronous = OFF"))
    metadata = sa.MetaData()
    metadata.reflect(engine)
    found = metadata.tables.items()
    yield engine, {name.removeprefix(PREFIX): t for name, t in found if name.startswith(PREFIX)}
    engine.dispose()


def rows_of(engine: sa.Engine, tables: dict[str, sa.Table]) -> Content:
    """All rows of all tables."""
    with engine.begin() as connection:
        return {
            name: [dict(row._mapping) for row in connection.execute(sa.select(t).order_by(*t.primary_key))]
            for name, t in tables.items()
        }


class Judged(NamedTuple):
    """What became of a forgery.

    Whether verify finds it, without and with the noted head; what verify crashed on; and, where verify
    accepts it, what a reader refused in words, or crashed on.
    """

    without_head: bool
    with_head: bool
    crashed: str = ""
    refused: str = ""
    unreadable: str = ""


class Victim:
    """A ledger in a SQLite file or a PostgreSQL schema that can be changed, judged, and put right again."""

    def __init__(self, place: str) -> None:
        self.place, self.written = place, build(place)
        self._connection = connected(place)
        self.engine, self.tables = self._connection.__enter__()
        self.content = rows_of(self.engine, self.tables)
        self.whole = self._file()
        self.made = self.counts()

    @property
    def sqlite(self) -> bool:
        """Whether it is a file."""
        return self.engine.dialect.name == "sqlite"

    @property
    def head(self) -> str:
        """The last head that was noted."""
        return self.written.heads[-1]

    def write(self, content: Content) -> None:
        """Nothing; the tables have these rows and no others."""
        with self.engine.begin() as connection:
            for name, table in self.tables.items():
                connection.execute(sa.delete(table))
                if content[name]:
                    connection.execute(table.insert(), content[name])

    def execute(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        """Nothing; the statements were run as they are."""
        with self.engine.begin() as connection:
            for text, values in statements:
                connection.exec_driver_sql(text, values)

    def copy(self) -> Content:
        """The rows as they were written, to be forged."""
        return copy.deepcopy(self.content)

    def put_right(self) -> None:
        """Nothing; everything is as it was."""
        if not self.sqlite:
            self.write(self.content)
            return
        path = Path(self.place)
        for companion in ("-wal", "-shm"):
            Path(f"{path}{companion}").unlink(missing_ok=True)
        path.write_bytes(self.whole)

    def judge(self) -> Judged:
        """What the library makes of the ledger as it is now."""
        try:
            with self._opened() as ledger:
                found = [not ledger.verify(head).ok for head in (None, self.head)]
        except VeriTracerError:  # it is not even opened, or not read to the end
            return Judged(True, True)
        except Exception:
            return Judged(True, True, crashed=_last_line())
        if all(found):
            return Judged(*found)
        refused, unreadable = self._read_all(None)
        # With the key a refusal is allowed: whether a row can be decrypted, verify cannot know.
        return Judged(*found, refused=refused, unreadable=unreadable or self._read_all(KEY)[1])

    def counts(self) -> Any:
        """How many promises there are today, by what has become of them."""
        with self._opened() as ledger:
            return ledger.counts()

    def _read_all(self, key: bytes | str | None) -> tuple[str, str]:
        """What a reader refuses in words, and what a reader crashes on; empty where all can be read."""
        encoding, (first, _), _ = models()
        try:
            with self._opened(key) as ledger:
                for at in (None, time.time() - DAY, time.time() + 90 * DAY)[: 3 if key is None else 1]:
                    ledger.counts(at)
                    ledger.requirements(at)
                    pieces = [*ledger.promises(at), *ledger.promises(at, expired=True)]
                    audit(ledger, first, encoding=encoding, at=at, recourse=1)
                ledger.models()
                for request in REQUESTS.values():
                    ledger.requested(request)
                for number in sorted({int(s) for piece in pieces for s in piece.sequence}):
                    ledger.shown(number)
                for who in sorted({who for piece in pieces for who in piece.ids}):
                    ledger.sequences_of(who)
        except VeriTracerError:
            return _last_line(), ""
        except Exception:
            return "", _last_line()
        return "", ""

    @contextmanager
    def _opened(self, key: bytes | str | None = None) -> Iterator[vt.Ledger]:
        with closing(vt.Ledger(self.place, key=key, create=False)) as ledger:
            yield ledger

    def _file(self) -> bytes:
        """The file as a whole, without companions."""
        if not self.sqlite:
            return b""
        with self.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(self.place).read_bytes()

    def close(self) -> None:
        """Nothing; connections are closed."""
        self._connection.__exit__(None, None, None)


def _last_line() -> str:
    return traceback.format_exc().strip().splitlines()[-1]


def postgres() -> Any:
    """A server of our own, not started yet; None where its programs are not installed."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    from postgres_server import Server, binaries

    folder = binaries()
    return None if folder is None else lambda: Server(folder)


COMMITTED = ("id",), ("x_cf", "public"), ("x", "private")
"""The columns of a record under each commitment of its entry."""


def committed(*columns: bytes) -> bytes:
    """Return columns as they are hashed, from docs/reference/file-formats.md."""
    if len(columns) == 1:
        return columns[0]
    encoded, text = columns
    return f"{len(encoded)}\n".encode() + encoded + text


def recommitted(content: Content, seq: int, part: str, new: bytes) -> None:
    """Replace a column of a promise's record, and the commitment to it."""
    entry, record = one(content, "entries", seq), one(content, "records", seq)
    record[part] = new
    k = next(k for k, held in enumerate(COMMITTED) if part in held)
    salt = record["salts"][SALT * k : SALT * k + SALT]
    made = sha256(salt + committed(*(record[name] for name in COMMITTED[k]))).digest()
    seen = entry["commitments"]
    entry["commitments"] = seen[: HASH * k] + made + seen[HASH * k + HASH :]


def one(content: Content, table: str, seq: int) -> Row:
    """The row of an entry in a table."""
    return next(row for row in content[table] if row["seq"] == seq)


def numbers(content: Content, kind: str) -> list[int]:
    """The numbers of all entries of a kind."""
    return [row["seq"] for row in content["entries"] if row["kind"] == kind]


def header(row: Row) -> dict[str, Any]:
    """The header of an entry."""
    found: dict[str, Any] = json.loads(row["header"])
    return found


def as_header(content: Any) -> bytes:
    """Such a header as bytes."""
    return json.dumps(content, sort_keys=True).encode()
