"""The ledger under faults: eight writers that are killed at 200 random moments, on SQLite and PostgreSQL.

``python -m benchmarks.ledger_faults``, or ``make faults``. Needs the folder ``tests`` and, for its half, a
PostgreSQL server's programs; the server is the script's own, with ``fsync`` on, and is itself killed at every
20th moment (all its processes at once). What is counted is explained in ``tests/ledger/faults.py``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.record import save, show

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "ledger")]

KILLS, PROMISES = 200, 100_000
COLUMNS = {
    "promises": "promises",
    "kills": "kills",
    "in a transaction": "kills_in_transaction",
    "server killed": "server_crashes",
    "commits seen": "commits_seen",
    "unseen, whole": "commits_unseen_but_whole",
    "lost": "lost",
    "half": "half",
    "findings": "findings",
    "seconds": "seconds",
}


def main() -> None:
    from faults import run
    from postgres_server import Server, binaries

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--promises", type=int, default=PROMISES)
    asked = vars(parser.parse_args())
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        results["SQLite"] = run(str(Path(folder) / "promises.db"), **asked)
        print(results["SQLite"], flush=True)
    programs = binaries()
    if programs is None:
        print("no PostgreSQL server is installed: its half is left out")
    else:
        server = Server(programs, durable=True)
        try:
            results["PostgreSQL"] = run(server.new(), crash=server.crash, **asked)
        finally:
            server.stop()
    lines = [[name, *(f"{found[key]:,}" for key in COLUMNS.values())] for name, found in results.items()]
    table = show("Eight writers, killed at random moments", ["database", *COLUMNS], lines)
    harmed = [name for name, found in results.items() if found["lost"] or found["half"] or found["findings"]]
    if (asked["kills"], asked["promises"]) == (KILLS, PROMISES) and len(results) == 2:
        save("ledger_faults", {"results": results}, [table])
    sys.exit(f"harmed: {', '.join(harmed)}" if harmed else 0)


if __name__ == "__main__":
    main()
