"""Changes to a ledger's rows, bytes, tables and end, without regard to what they mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.adversary.victims import Content, Row, as_header, header, numbers, one, relinked

RECORDS = ("records",)
APART = ("records", "models", "requests")


class Forgery(NamedTuple):
    """What is done, of which kind it is, and how: to the rows of all tables, or (SQLite only) by statements.

    ``must_be_found`` is False for entries behind the head that may be accepted, if they can be read.
    """

    name: str
    kind: str
    change: Callable[[Content], Content | None]
    statements: list[tuple[str, tuple[Any, ...]]] | None = None
    must_be_found: bool = True


def plain(name: str, change: Callable[[Content], Any]) -> Forgery:
    """A change without new links."""
    return Forgery(name, "plain", lambda content: (change(content), content)[1])


def rewritten(name: str, change: Callable[[Content], Any]) -> Forgery:
    """A change with new links throughout."""
    return Forgery(name, "relinked", lambda content: (change(content), relinked(content))[1])


def added(name: str, change: Callable[[Content], Any], *, must: bool) -> Forgery:
    """Entries behind the noted head, with right links."""
    return Forgery(name, "appended", lambda content: (change(content), relinked(content))[1], None, must)


def other(value: Any) -> Any:
    """Another value of the same type."""
    if value is None:
        return b"\x00" * 8
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:] if value else b"\x00"
    return value + 1_000 if isinstance(value, int) else value + "x"


def examples(content: Content, table: str) -> list[int]:
    """Places of rows that differ in kind: of every kind of entry, model, and way in which a row is kept."""
    if table not in ("entries", *RECORDS):
        return list(range(len(content[table])))
    entries = {row["seq"]: row for row in content["entries"]}
    seen: dict[Any, int] = {}
    for place, row in enumerate(content[table]):
        entry = entries[row["seq"]]
        about = header(entry) if entry["kind"] == "promise" else {}
        kept = tuple(about.get(name) for name in ("original", "certified", "conditional", "region", "method"))
        seen.setdefault((entry["kind"], entry["model"], kept), place)
        seen[entry["kind"], "last"] = place
    return sorted(set(seen.values()))


def changed_cells(content: Content) -> Iterator[Forgery]:
    """Every column of every table, in rows of every kind."""
    for table, rows in content.items():
        for place in examples(content, table):
            for column in rows[place]:

                def change(c: Content, table: str = table, place: int = place, column: str = column) -> None:
                    c[table][place][column] = other(c[table][place][column])

                yield plain(f"{table} row {place}: another {column}", change)


def changed_bytes(content: Content, rng: np.random.Generator) -> Iterator[Forgery]:
    """Single bits, lost and added bytes, exchanged halves, of any blob."""
    blobs = [
        (table, place, column)
        for table, rows in content.items()
        for place, row in enumerate(rows)
        for column, value in row.items()
        if isinstance(value, bytes) and len(value) > 1
    ]
    edits: list[tuple[str, Callable[[bytes, int], bytes]]] = [
        ("a bit flipped", lambda b, at: b[: at // 8] + bytes([b[at // 8] ^ 1 << at % 8]) + b[at // 8 + 1 :]),
        ("the end lost", lambda b, at: b[:-1]),
        ("a byte added", lambda b, at: b + b"\x00"),
        ("emptied", lambda b, at: b""),
    ]
    for k in range(110):
        table, place, column = blobs[int(rng.integers(len(blobs)))]
        name, edit = edits[0 if k < 70 else 1 + k % 3]
        at = int(rng.integers(8 * len(content[table][place][column])))

        def change(
            c: Content, t: str = table, p: int = place, n: str = column, e: Any = edit, at: int = at
        ) -> None:
            c[t][p][n] = e(c[t][p][n], at)

        yield plain(f"{table} row {place}: {column}, {name} at {at}", change)


def changed_rows(content: Content, erased: Content, rng: np.random.Generator) -> Iterator[Forgery]:
    """Rows deleted, exchanged, copied and put back."""
    for table in ("entries", *APART):
        # Without its last entry a ledger is a whole one, of an earlier day: see cut_ends.
        for place in range(0, len(content[table]) - (table == "entries"), 1 if table == "models" else 3):
            yield plain(f"{table} row {place} deleted", lambda c, t=table, p=place: c[t].pop(p))
        for _ in range(8 if len(content[table]) > 2 else 1):
            a, b = rng.choice(len(content[table]), 2, replace=False).tolist()
            yield plain(f"{table} rows {a} and {b} exchanged", lambda c, t=table, a=a, b=b: _swap(c[t], a, b))
        for place in examples(content, table):
            last = content["entries"][-1]["seq"]
            yield plain(
                f"{table} row {place} copied behind the end",
                lambda c, t=table, p=place, n=last + 1: c[t].append({**c[t][p], "seq": n}),
            )
        yield plain(f"all of {table} deleted", lambda c, t=table: c[t].clear())
    yield plain("what was erased is put back", lambda c: _put_back(c, erased, RECORDS))
    for seq in numbers(content, "promise")[::4]:
        yield plain(
            f"the record of {seq} deleted without an erasure", lambda c, s=seq: forget(c, {s}, RECORDS)
        )
    yield plain("a cleared request is put back", lambda c: _uncleared(c, erased))
    for place, row in enumerate(content["requests"]):
        yield plain(f"request {place} says that it was cleared", lambda c, p=place: _cleared(c, p))
        for column in ("salt", "digest", "response"):
            beside = content["requests"][place - 1][column]
            if beside != row[column]:
                yield plain(
                    f"request {place} with the {column} of another",
                    lambda c, p=place, n=column, v=beside: c["requests"][p].update({n: v}),
                )
    for kind in ("promise", "model", "release", "erasure", "ledger"):
        seq = numbers(content, kind)[0]
        yield plain(
            f"a {kind} with the row of a request",
            lambda c, s=seq: c["requests"].append({**c["requests"][0], "seq": s}),
        )
    for kind in ("model", "release", "erasure", "ledger", "request"):
        seq = numbers(content, kind)[0]
        yield plain(f"a {kind} with the record of a promise", lambda c, s=seq: _lend(c, s))


def _swap(rows: list[Row], a: int, b: int) -> None:
    rows[a]["seq"], rows[b]["seq"] = rows[b]["seq"], rows[a]["seq"]


def _put_back(content: Content, erased: Content, tables: Sequence[str]) -> None:
    for table in tables:
        content[table] += erased[table]


def forget(content: Content, gone: set[int], tables: Sequence[str]) -> None:
    for table in tables:
        content[table] = [row for row in content[table] if row["seq"] not in gone]


def _uncleared(content: Content, erased: Content) -> None:
    (before,) = erased["requests"]
    content["requests"] = [before if row["seq"] == before["seq"] else row for row in content["requests"]]


def _cleared(content: Content, place: int) -> None:
    row = content["requests"][place]
    if row["salt"]:
        row.update(salt=b"", digest=b"")


def _lend(content: Content, seq: int) -> None:
    for table in RECORDS:
        content[table].append({**content[table][0], "seq": seq})


def cut_ends(content: Content) -> Iterator[Forgery]:
    """The newest entries gone, with all that belongs to them or without, and others in their place."""
    last = content["entries"][-1]["seq"]
    for k in range(1, last):  # without its first entry it is no ledger

        def cut(c: Content, at: int = last - k) -> None:
            for table in ("entries", *APART):
                c[table] = [row for row in c[table] if row["seq"] <= at]

        yield Forgery(f"the last {k} entries cut off", "relinked", lambda c, cut=cut: (cut(c), c)[1])
        if k % 4 == 1:
            yield rewritten(
                f"the last {k} entries replaced by a release",
                lambda c, cut=cut: (cut(c), append(c, "release", release(c))),
            )
            # An event has no record: there, half is whole.
            if any(row["seq"] > last - k for table in APART for row in content[table]):
                yield plain(
                    f"the last {k} entries cut off, their records left",
                    lambda c, at=last - k: c.update(entries=[r for r in c["entries"] if r["seq"] <= at]),
                )


def append(content: Content, kind: str, head: bytes, model: int = 0, commitments: bytes = b"") -> int:
    """The number of an entry that was added; its link is made with the others."""
    seq = max(row["seq"] for row in content["entries"]) + 1
    row = {**content["entries"][-1], "seq": seq, "kind": kind, "model": model, "header": head}
    content["entries"].append({**row, "commitments": commitments, "link": b""})
    return int(seq)


def release(content: Content, **changes: Any) -> bytes:
    """The header of a release of the first promise that is not released yet, now."""
    released = {
        s for n in numbers(content, "release") for s in header(one(content, "entries", n))["sequence"]
    }
    free = [seq for seq in numbers(content, "promise") if seq not in released]
    example = header(one(content, "entries", numbers(content, "release")[0])) if released else {}
    about = {"time": time.time(), "sequence": free[:1], "reason": "a favour"}
    return as_header({**example, **about, **changes})


def transplants(content: Content, stranger: Content) -> Iterator[Forgery]:
    """Tables of another ledger, one of them or all."""
    yield Forgery("another ledger in its place", "relinked", lambda c: stranger)
    for table in content:
        if content[table] != stranger[table]:
            yield plain(f"{table} of another ledger", lambda c, t=table: c.update({t: stranger[t]}))


def by_statements(content: Content) -> Iterator[Forgery]:
    """What only SQLite lets happen: other types, tables without keys, views, indexes that leave rows out."""

    def forged(
        name: str, kind: str, *statements: str, must: bool = True, values: tuple[Any, ...] = ()
    ) -> Forgery:
        made = [(text, values if "?" in text else ()) for text in statements]
        return Forgery(name, kind, lambda c: None, made, must)

    columns = [("entries", c) for c in ("kind", "model", "header", "commitments", "link")]
    columns += [("records", c) for c in ("salts", "id", "x_cf", "x", "public", "private")]
    columns += [("models", "document"), ("models", "tensors")]
    columns += [("requests", "salt"), ("requests", "digest"), ("requests", "response")]
    for k, (table, column) in enumerate(columns):
        last_row = content[table][-1]
        value: Any = next(v for v in (["text", 1.5, 7, b""] * 2)[k % 4 :] if v != last_row[column])
        text = f"UPDATE veritracer_{table} SET {column} = ? WHERE seq = {last_row['seq']}"
        yield forged(f"{table}.{column} is {value!r}", "plain", text, values=(value,))
    last = content["entries"][-1]["seq"]
    for table in ("entries", *APART):
        name, copy = f"veritracer_{table}", f"CREATE TABLE copy AS SELECT * FROM veritracer_{table}"
        swap = (f"DROP TABLE {name}", f"ALTER TABLE copy RENAME TO {name}")
        twice = f"INSERT INTO copy SELECT * FROM copy WHERE seq = (SELECT max(seq) FROM {name})"
        yield forged(f"{table} without a key, its last row twice", "plain", copy, twice, *swap)
        yield forged(f"{table} is gone", "plain", f"DROP TABLE {name}")
        view = f"CREATE VIEW {name} AS SELECT * FROM hidden WHERE seq < {last}"
        hides = any(row["seq"] == last for row in content[table])
        if hides:
            kind = "relinked" if table == "entries" else "plain"
            yield forged(
                f"{table} behind a view without its end", kind, f"ALTER TABLE {name} RENAME TO hidden", view
            )
    # An index that leaves rows out changes nothing: the tables themselves are read.
    whole = "CREATE INDEX fast ON veritracer_entries (model)"
    yield forged(
        "an index that hides promises",
        "appended",
        f"{whole} WHERE kind <> 'promise'",
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET sql = '{whole}' WHERE name = 'fast'",
        must=False,
    )
