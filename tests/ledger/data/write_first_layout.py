"""How ``first_layout.db`` was written: by commit ade061e, the last one whose promises are of layout 1.

``git worktree add /tmp/old ade061e`` and ``PYTHONPATH=/tmp/old/src python write_first_layout.py`` write it
anew. The present code writes layout 2, checks what it issues and does not go back in time: it
cannot write such a file any more, and that is why the file is kept.

One linear model of five features, whose encoding was fitted to ages up to 60 and debts up to 1,000, makes
promises to people inside and outside of these ranges: with original rows kept in each of the three ways, as
points and as regions, some conditional (as nobody checked, they were simply said to be). One promise was
released, by an entry that is dated to 1971; one person was erased; and of one promise the values that were
shown are not those that were certified.
"""

from __future__ import annotations

import sqlite3
import warnings
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

import veritracer as vt
from edited_results import edited

PLACE = Path(__file__).with_name("first_layout.db")
KEY = "Zmlyc3QgbGF5b3V0LCBmaXJzdCBsYXlvdXQsIDEyMzQ="
DAY = datetime(2026, 3, 1, tzinfo=UTC)

SCHEMA = vt.Schema(
    [
        vt.Feature("age", "integer", action="immutable"),
        vt.Feature("debt", "integer", action="decrease_only"),
        vt.Feature("savings", "integer", lower=0, upper=10_000, step=100, action="increase_only"),
        vt.Feature("education", "ordinal", categories=["none", "school", "degree"], action="increase_only"),
        vt.Feature("rating", "continuous", lower=0.0, upper=1.0, missing="impute", action="immutable"),
    ],
    "approved",
    "yes",
    "no",
)

TRAINING = pd.DataFrame(
    {
        "age": [20, 40, 60],
        "debt": [0, 500, 1_000],
        "savings": [0, 5_000, 10_000],
        "education": ["none", "school", "degree"],
        "rating": [0.0, 0.5, np.nan],
    }
)

PEOPLE = pd.DataFrame(
    {
        "age": [30, 45, 85, 50, 58, 25],
        "debt": [400, 0, 600, 5_000, 300, 250],
        "savings": [1_000, 1_500, 800, 4_000, 2_500, 9_900],
        "education": ["school", "none", "degree", "school", "none", "none"],
        "rating": [0.4, np.nan, 0.2, 0.9, 0.5, 0.1],
    }
)


def issuing() -> tuple[nn.Linear, vt.Encoding]:
    """The model: favourable are savings, and a little of everything else; debts and age are not."""
    encoding = vt.Encoding.fit(SCHEMA, TRAINING)
    weights = dict.fromkeys(encoding.columns, 0.0)
    weights |= {"age": -0.5, "debt": -1.0, "savings": 3.0, "education": 0.5, "rating": 0.2}
    module = nn.Linear(encoding.dim, 1).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor([list(weights.values())], dtype=torch.float64))
        module.bias.fill_(-1.5)
    return module, encoding


def explained(module: nn.Linear, encoding: vt.Encoding, rows: slice, **options: Any) -> vt.Counterfactuals:
    """Counterfactuals of some of the people."""
    finder = vt.Recourse(module, None, encoding, rows=TRAINING, kappa=0.02)
    some = PEOPLE.iloc[rows].reset_index(drop=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vt.errors.DataWarning)  # some are out of the fitted range, on purpose
        return finder.explain(some, only_unfavourable=False, **options)


def main() -> None:
    """Write the ledger."""
    PLACE.unlink(missing_ok=True)
    module, encoding = issuing()
    with vt.Ledger(PLACE) as ledger:

        def issue(found: vt.Counterfactuals, prefix: str, day: int, **terms: Any) -> Any:
            names = [f"{prefix} {i}" for i in range(int(found.row.max()) + 1)]
            when = DAY + timedelta(days=day)
            return ledger.issue(found, module, ids=names, now=when, expires=timedelta(days=3650), **terms)

        first = issue(explained(module, encoding, slice(0, 6)), "point", 0)
        regions = {"drift": {"age": 2.0, "debt": 50.0}, "overshoot": 0.02}
        issue(explained(module, encoding, slice(0, 6), **regions), "region", 1)
        some = explained(module, encoding, slice(0, 4))
        half = np.arange(len(some)) % 2 == 1
        conditional = edited(some, conditional=half)
        issue(conditional, "locked", 2, original="encrypted", key=KEY)
        issue(conditional, "hidden", 3, original="commitment")
        lone = explained(module, encoding, slice(0, 1))
        changed = lone.frame.assign(savings=lone.frame["savings"] - 3_000)
        issue(replace(lone, frame=changed), "edited", 4)
        ledger.release(first.sequence[:1], "withdrawn", now=datetime(1971, 1, 1, tzinfo=UTC))
        ledger.erase("point 1", now=DAY + timedelta(days=6))
    connection = sqlite3.connect(PLACE)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("VACUUM")
    connection.close()


if __name__ == "__main__":
    main()
