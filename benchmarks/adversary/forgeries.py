"""Ledgers changed behind their back: cells, bits, rows, ends, whole chains, and entries added by hand.

Three kinds of forgeries, by what a reader of docs/explanation/ledger-threat-model.md expects:

- *plain*: something is changed and the links are not made anew. ``verify`` finds it, without a head;
- *relinked*: the chain is whole again, by somebody who knows how links are made (or its end is cut off).
  ``verify`` finds it with the head that was noted; without one it cannot, and how often that is so is
  counted;
- *appended*: entries with right links behind the noted head. Nothing is rewritten, so a head finds nothing
  by itself. What has no place in the order of time, is of no known kind, or speaks of what is not there,
  has to be found; the rest is what anybody could write who may write at all, and where it is accepted, it
  has to be readable.

In every case ``verify`` answers, and whatever it accepts (with or without the head), ``counts``,
``limits``, ``models``, ``promises``, ``shown`` and ``audit`` can read, at any date.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.adversary.forged_entries import (
    added_promises,
    added_requests,
    dated_events,
    misplaced_events,
    odd_events,
    rewritten_chains,
    rewritten_promises,
)
from benchmarks.adversary.forging import (
    Forgery,
    by_statements,
    changed_bytes,
    changed_cells,
    changed_rows,
    cut_ends,
    transplants,
)
from benchmarks.adversary.running import Line, Part, Result, total
from benchmarks.adversary.victims import Content, Judged, Victim, postgres

SLICES = 6
"""Jobs of each database."""

NAMED = 40
"""Forgeries of a job that are described one by one."""


def forgeries(victim: Victim, stranger: Content) -> list[Forgery]:
    """All of them, in an order that does not change."""
    content, rng = victim.content, np.random.default_rng(3)
    found = [
        *changed_cells(content),
        *changed_bytes(content, rng),
        *changed_rows(content, victim.written.erased, rng),
        *cut_ends(content),
        *rewritten_promises(content),
        *rewritten_chains(content, rng),
        *dated_events(content),
        *odd_events(content),
        *misplaced_events(content),
        *added_promises(content),
        *added_requests(content),
        *transplants(content, stranger),
    ]
    return [*found, *by_statements(content)] if victim.sqlite else found


def run(job: int) -> Result:
    """A share of the forgeries, on SQLite (even jobs) or on PostgreSQL."""
    with tempfile.TemporaryDirectory() as folder:
        if job % 2 == 0:
            places = (str(Path(folder) / name) for name in ("promises.db", "stranger.db"))
            return run_on(*places, job // 2, "sqlite")
        start = postgres()
        if start is None:
            return {"violations": [], "no_server": 1}
        server = start()
        try:
            return run_on(server.new(), server.new(), job // 2, "postgresql")
        finally:
            server.stop()


def run_on(place: str, elsewhere: str, slice_: int, database: str) -> Result:
    """Every so many-th forgery, each on the ledger as it was written."""
    result: Result = {"violations": []}
    victim, other_one = Victim(place), Victim(elsewhere)
    try:
        sound = victim.judge()
        if any(sound):
            raise RuntimeError(f"the ledger is not sound to begin with: {sound}")
        for forgery in forgeries(victim, other_one.content)[slice_::SLICES]:
            attempt(victim, forgery, database, result)
    finally:
        victim.close()
        other_one.close()
    return result


def attempt(victim: Victim, forgery: Forgery, database: str, result: Result) -> None:
    """Nothing; one forgery was made, judged, counted and undone."""
    try:
        if forgery.statements is None:
            content = forgery.change(victim.copy())
            assert content is not None
            if content == victim.content:
                return  # it was so already
            victim.write(content)
        else:
            victim.execute(forgery.statements)
    except Exception:  # the database itself refuses it
        _count(result, f"{database}_refused")
    else:
        judged = victim.judge()
        wrong = complaints(victim, forgery, judged)
        for name in (database, f"{database}_{forgery.kind}"):
            _count(result, name)
        _count(result, "found_with_head", judged.with_head)
        _count(result, "found_without_head", judged.without_head)
        _count(result, "only_with_head", judged.with_head and not judged.without_head)
        _count(result, "accepted", not judged.with_head)
        _count(result, f"{database}_broken", bool(wrong))
        about = {"database": database, "forgery": forgery.name, "kind": forgery.kind}
        room = max(0, NAMED - len(result["violations"]))
        result["violations"] += [{**about, "what": what} for what in wrong[:room]]
    victim.put_right()


def complaints(victim: Victim, forgery: Forgery, judged: Judged) -> list[str]:
    """What is wrong with how a forgery was received."""
    wrong = []
    if judged.crashed:
        wrong.append(f"verify crashes: {judged.crashed}")
    if forgery.must_be_found and not judged.with_head:
        wrong.append("not found with the head that was noted")
    if forgery.kind == "plain" and not judged.without_head:
        wrong.append("not found without a head")
    if forgery.statements is not None and not judged.with_head and victim.counts() != victim.made:
        wrong.append("promises are hidden from those who count them")
    if judged.refused:
        wrong.append(f"verify accepts what a reader refuses: {judged.refused}")
    if judged.unreadable:
        wrong.append(f"verify accepts what a reader crashes on: {judged.unreadable}")
    return wrong


def _count(result: Result, name: str, by: bool = True) -> None:
    result[name] = result.get(name, 0) + int(by)


def lines(results: Sequence[Result]) -> list[Line]:
    """A line for each database."""
    said = []
    for database, name in (("sqlite", "SQLite"), ("postgresql", "PostgreSQL")):
        number = {
            k: total(results, f"{database}_{k}")
            for k in ("plain", "relinked", "appended", "refused", "broken")
        }
        count = total(results, database)
        seen = (
            f"{number['plain']:,} plain, {number['relinked']:,} relinked or cut off, "
            f"{number['appended']:,} behind the head; {number['refused']:,} more were refused by the database"
        )
        if count == 0:
            seen = "no PostgreSQL server is installed here" if total(results, "no_server") else "not run"
        said.append(Line(f"forgeries of a ledger in {name}", count, number["broken"], seen))
    seen = (
        f"{total(results, 'only_with_head'):,} of these cannot be found without a head; "
        f"{total(results, 'accepted'):,} more, behind the head, are accepted and have to be readable"
    )
    return [
        *said,
        Line("of them found by verify with the noted head", total(results, "found_with_head"), 0, seen),
    ]


PART = Part("forgeries", 2 * SLICES, 2, run, lines)
