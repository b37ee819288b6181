"""How ``second_layout.db`` was written: by commit 86af0fa, before the modules of the ledger were merged.

``git worktree add /tmp/old 86af0fa`` and ``PYTHONPATH=/tmp/old/src python write_second_layout.py`` write such
a file anew. The model, the people and the key are those of ``write_first_layout.py``; each is promised
something with the original row kept in each of the three ways, and some are promised regions.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

from write_first_layout import KEY, explained, issuing

import veritracer as vt

PLACE = Path(__file__).with_name("second_layout.db")
DAY = datetime(2100, 1, 1, tzinfo=UTC)


def main() -> None:
    """Write the ledger."""
    PLACE.unlink(missing_ok=True)
    module, encoding = issuing()
    points = explained(module, encoding, slice(0, 4))
    regions = explained(module, encoding, slice(0, 4), drift={"age": 2.0, "debt": 50.0}, overshoot=0.02)
    with vt.Ledger(PLACE) as ledger:
        for found, what in ((points, "point"), (regions, "region")):
            names = [f"{what} {i}" for i in range(int(found.row.max()) + 1)]
            ledger.issue(found, module, ids=names, expires=DAY)
        first = ledger.sequences_of("point 0")
        ledger.issue(points, module, ids=[f"locked {i}" for i in range(4)], original="encrypted", key=KEY)
        ledger.issue(points, module, ids=[f"hidden {i}" for i in range(4)], original="commitment")
        ledger.release(first, "withdrawn")
        ledger.erase("point 1")
        print(ledger.head, ledger.counts())
    connection = sqlite3.connect(PLACE)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("VACUUM")
    connection.close()


if __name__ == "__main__":
    main()
