"""A ledger for the length of a benchmark, with a promise for each counterfactual."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import veritracer as vt


@contextmanager
def promises_of(model: vt.VeriTraCER, found: vt.Counterfactuals) -> Iterator[vt.Ledger]:
    """Issue everything that was found, without an end, in a temporary ledger."""
    people = int(found.row.max()) + 1 if len(found) else 0
    terms = {"expires": None, "uncertified": "promise", "allow_duplicate": True}
    with tempfile.TemporaryDirectory() as folder, vt.Ledger(Path(folder) / "promises.db") as ledger:
        ledger.issue(found, model.classifier_, ids=range(people), threshold=model.threshold_, **terms)
        yield ledger
