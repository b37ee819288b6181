"""A year passes: an ordinary update leaves the set that was promised, a promise-keeping one does not.

Run: python examples/keep_a_promise.py
"""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path

import veritracer as vt
from veritracer.ledger import audit


def main() -> None:
    """Issue promises, update a model twice, and audit what became of the promises."""
    today, later = vt.datasets.loans(rows=2500), vt.datasets.loans(rows=2500, year=2, drift=2.0)
    split = today.split()
    model = vt.VeriTraCER(schema=today.schema, epochs=15, batch_size=256).fit(split.X_train, split.y_train)
    with tempfile.TemporaryDirectory() as folder, vt.Ledger(Path(folder) / "promises.db") as ledger:
        ids = [f"applicant {i}" for i in split.X_test.index]
        issued = model.issue(split.X_test, ids=ids, ledger=ledger, expires=timedelta(days=365))
        print(f"{len(issued.sequence)} promises issued; the head of the ledger is {issued.head[:12]}…")
        for name, keep in (("free update", None), ("promise-keeping update", ledger)):
            updated = model.update(later.X, later.y, keep=keep, epochs=5, compare=False)
            print(f"{name}: accuracy {updated.score(later.X, later.y):.3f} on the new year")
            print(f"  {audit(ledger, updated)}")
        print(f"the ledger verifies: {ledger.verify(head=issued.head).ok}")


if __name__ == "__main__":
    main()
