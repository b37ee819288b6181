"""Writers that are killed: eight processes issue promises, and die at random moments.

``python -m faults PLACE --kills 20 --promises 2000`` prints what became of the ledger, as JSON (``tests`` and
``tests/ledger`` must be on the path). The writers are forked from one process, so that a killed one is
replaced in milliseconds. Each commit that a writer has seen to its end goes into a journal; afterwards every
one of these must be in the ledger, whole, and what else is there must be whole too.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
import torch
from ledger_cases import behind, ids, untrained

import veritracer as vt
from veritracer.errors import LedgerError
from veritracer.ledger import database as tables
from veritracer.ledger.issuing import Prepared, prepare
from veritracer.ledger.records import to_record
from veritracer.options import Terms

TERMS = Terms(expires=None, uncertified="promise", allow_duplicate=True)
STOP = b"\x01"


@dataclass
class Writers:
    """The processes, and what they share: a byte each for 'in a transaction', and one for 'stop'."""

    place: str
    count: int
    mean: int
    journal: int
    base: Prepared
    shared: mmap.mmap
    lives: int = 0
    running: dict[int, int] = field(default_factory=dict)  # process id: number

    def start(self, number: int) -> None:
        """Nothing; a new process writes under this number."""
        self.lives += 1
        self.shared[number : number + 1] = b"\x00"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                self._live(number, self.lives)
                code = 0
            finally:
                os._exit(code)  # neither the parent's tests nor its files are ours to end
        self.running[child] = number

    def kill(self, child: int) -> bool:
        """Whether the process was in the middle of a transaction when it died."""
        number = self.running.pop(child)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return self.shared[number : number + 1] == STOP

    def busy(self) -> list[int]:
        """The processes that are in a transaction."""
        return [c for c, number in self.running.items() if self.shared[number : number + 1] == STOP]

    def finish(self) -> list[int]:
        """How each of the processes ended, after they were asked to."""
        self.shared[self.count : self.count + 1] = STOP
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in self.running]
        self.running.clear()
        return codes

    def _live(self, number: int, life: int) -> None:
        rng, round_ = random.Random(life), 0
        ledger: vt.Ledger | None = None
        while self.shared[self.count : self.count + 1] != STOP:
            round_ += 1
            name, size = f"{number}-{life}-{round_}", rng.randint(1, 2 * self.mean)
            try:
                ledger = ledger or self._open(number)
                self._write(ledger, name, size)
            except LedgerError:  # the server is down: whether the commit arrived will be seen
                if ledger is not None:
                    ledger.close()
                ledger = None
                time.sleep(0.05)

    def _open(self, number: int) -> vt.Ledger:
        ledger = vt.Ledger(self.place)
        writing = ledger._database.writing

        @contextmanager
        def marked() -> Iterator[Any]:
            with writing() as pair:
                self.shared[number : number + 1] = STOP
                yield pair
            self.shared[number : number + 1] = b"\x00"  # after the commit

        ledger._database.writing = marked  # type: ignore[method-assign]
        return ledger

    def _write(self, ledger: vt.Ledger, name: str, size: int) -> None:
        records = self.base.records
        likes = [records[k % len(records)] for k in range(size)]
        made = [
            to_record(like.header, (f"{name}/{size}:{k}".encode(), *like[4:]), TERMS)[0]
            for k, like in enumerate(likes)
        ]
        issued = ledger.append(replace(self.base, records=made))
        done = [name, int(issued.sequence[0]), size, issued.head]
        os.write(self.journal, (json.dumps(done) + "\n").encode())


def run(
    place: str,
    *,
    kills: int,
    promises: int,
    writers: int = 8,
    seed: int = 0,
    pause: float = 0.05,
    crash: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """What became of the ledger, after the writers were killed so often and made at least so many promises.

    Half of the kills hit a process that is in a transaction; every 25th hits all of them at once. ``crash``
    ends the database's own server, at every 20th moment.
    """
    torch.set_num_threads(1)
    rng = random.Random(seed)
    module, found = untrained()
    base = prepare(found, module, 0.5, TERMS, ids(found))
    vt.Ledger(place).close()
    start = time.perf_counter()
    with tempfile.TemporaryFile() as journal:
        group = Writers(
            place,
            writers,
            max(1, promises // (4 * max(kills, writers))),
            journal.fileno(),
            base,
            mmap.mmap(-1, writers + 1),
        )
        for number in range(writers):
            group.start(number)
        inside, crashes = 0, 0
        for moment in range(1, kills + 1):
            time.sleep(rng.uniform(0.0, pause))
            if crash is not None and moment % 20 == 0:
                crash()
                crashes += 1
                continue
            for child in _victims(group, moment, rng):
                number = group.running[child]
                inside += group.kill(child)
                group.start(number)
        while _lines(journal)[1] < promises:
            time.sleep(0.05)
        codes = group.finish()
        noted = _lines(journal)[0]
    found = check(place, noted)
    found |= {"writers": writers, "kills": kills - crashes, "kills_in_transaction": inside}
    found |= {"server_crashes": crashes, "lives": group.lives, "ended_badly": sum(c != 0 for c in codes)}
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def _victims(group: Writers, moment: int, rng: random.Random) -> list[int]:
    """Who dies at this moment: everybody, somebody in a transaction, or anybody."""
    if moment % 25 == 0:
        return list(group.running)
    deadline = time.monotonic() + 0.5
    while moment % 2 and time.monotonic() < deadline:
        if busy := group.busy():
            time.sleep(rng.uniform(0.0, 0.004))  # not always at the very beginning
            return [rng.choice(busy)]
    return [rng.choice(list(group.running))]


def _lines(journal: Any) -> tuple[list[Any], int]:
    """The commits that were seen to their end, and how many promises these are."""
    text = os.pread(journal.fileno(), os.fstat(journal.fileno()).st_size, 0)
    noted = [json.loads(line) for line in text.splitlines()]
    return noted, sum(size for _, _, size, _ in noted)


def check(place: str, noted: list[Any]) -> dict[str, Any]:
    """What is in the ledger, against what the writers saw."""
    with vt.Ledger(place) as ledger:
        verification = ledger.verify(max(noted, key=lambda line: line[1])[3])
        batches: dict[str, dict[int, int]] = defaultdict(dict)
        sizes: dict[str, int] = {}
        for piece in ledger.promises():
            for who, seq in zip(piece.ids, piece.sequence.tolist(), strict=True):
                name, _, rest = who.partition("/")
                size, _, k = rest.partition(":")
                batches[name][int(k)] = seq
                sizes[name] = int(size)
    half = sum(list(batches[name]) != list(range(size)) for name, size in sizes.items())
    half += sum(list(b.values()) != list(range(b[0], b[0] + len(b))) for b in batches.values() if 0 in b)
    with behind(place) as connection:
        wanted = sa.select(tables.entries.c.seq, tables.entries.c.link)
        links = {row.seq: row.link for row in connection.execute(wanted)}
    lost = sum(batches[name].get(0) != first or sizes.get(name) != n for name, first, n, _ in noted)
    other = sum(links[first + n - 1].hex() != head for _, first, n, head in noted)
    return {
        "promises": sum(map(len, batches.values())),
        "commits_seen": len(noted),
        "commits_unseen_but_whole": len(sizes) - len(noted),
        "lost": lost,
        "half": half,
        "other_heads": other,
        "findings": verification.count,
        "entries": verification.entries,
    }


def main() -> None:
    """Run once, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--promises", type=int, default=2_000)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    asked = vars(parser.parse_args())
    with suppress(BrokenPipeError):
        print(json.dumps(run(asked.pop("place"), **asked)))


if __name__ == "__main__":
    main()
