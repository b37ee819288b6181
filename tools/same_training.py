"""Train a few tiny models and print digests of their weights, to compare two trees on one machine.

    python tools/same_training.py > before.txt      # then change the code, and
    python tools/same_training.py | diff before.txt -

Training is deterministic on one machine and differs between machines in its last bits, so that a stored
digest would mean nothing elsewhere. A refactoring of training changes none of these lines. Only public names
are used, so that the tool runs on both sides of it. It takes about a minute on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# Sums depend on how many threads share them, also in scikit-learn; set before either is imported.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pandas as pd
import torch

import veritracer as vt

ROWS, EPOCHS = 300, 8
TINY: dict[str, Any] = {
    "hidden": (8, 6),
    "generator_hidden": (8,),
    "batch_size": 64,
    "epochs": EPOCHS,
    "random_state": 0,
}
SMALL_PANEL: dict[str, int] = {"networks": 2, "boosted": 1, "held_out": 1}


def configurations() -> dict[str, dict[str, Any]]:
    """Name the estimators to train; only the first two have a panel, which takes most of the time."""
    plain = {**TINY, "panel": None}
    return {
        "default, panel": {**TINY, "panel": vt.Panel(**SMALL_PANEL)},
        "panel, approval rate": {**TINY, "panel": vt.Panel(**SMALL_PANEL), "approval_rate": 0.4},
        "ibp": {**plain, "bound": "ibp"},
        "crown-ibp": {**plain, "bound": "crown-ibp"},
        "simul-crown": {**plain, "bound": "simul-crown", "kappa": 0.6},
        "l2": {**plain, "norm": "l2", "radius": "norm", "kappa": 0.02},
        "l1": {**plain, "norm": "l1", "radius": "norm", "kappa": 0.02},
        "absolute radius": {**plain, "radius": 0.01, "kappa": 1.0},
        "small start": {**plain, "initialisation": "small"},
        "leaky, balanced, threshold": {**plain, "slope": 0.01, "class_weight": "balanced", "threshold": 0.6},
        "counternet": {**plain, "method": "counternet", "generator": "counternet"},
        "neighbour": {**plain, "generator": "neighbour"},
        "standard": {**plain, "method": "standard"},
        "early stop": {**plain, "epochs": 40, "patience": 2, "validation_fraction": 0.2},
    }


def digest(arrays: Iterable[Any]) -> str:
    """Return the start of the SHA-256 of shapes, types and bytes."""
    sha = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        sha.update(f"{array.dtype}{array.shape}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()[:16]


def parts_of(model: vt.VeriTraCER, X: pd.DataFrame) -> dict[str, str]:
    """Return digests of the classifier, of the generator's proposals, and of the panel's votes."""
    parts = {"classifier": digest(p.detach().numpy() for p in model.classifier_.parameters())}
    if model.get_params(deep=False)["method"] != "standard":
        parts["generator"] = digest([model.encoding_.encode(model.propose(X)).numpy()])
    if model.panel_ is not None:
        parts["panel"] = digest([model.panel_.predict_proba(X)])
    return parts


def main() -> None:
    """Train, and print one line for each part of each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    data, new = (vt.datasets.loans(rows=ROWS, year=year) for year in (1, 2))
    schema = data.schema.unconstrained()  # without grids, the last bit of a generator shows in its proposals
    for name, options in configurations().items():
        model = vt.VeriTraCER(schema=schema, **options)
        report(name, lambda model=model: model.fit(data.X, data.y), data.X)
    many = vt.VeriTraCER(schema=schema, **TINY, panel=None)
    seeds = [0, 1, 2]
    leave_out = [[], list(range(10)), list(range(20, 40))]
    models = many.fit_many(data.X, data.y, seeds, leave_out=leave_out)
    for seed, model in zip(seeds, models, strict=True):
        report(f"three at once, seed {seed}", lambda model=model: model, data.X)
    weights = np.linspace(0.5, 1.5, ROWS)
    report("sample weights", lambda: many.fit(data.X, data.y, sample_weight=weights), data.X)
    updates(data, new)


def updates(data: vt.datasets.Dataset, new: vt.datasets.Dataset) -> None:
    """Fine-tune freely, inside the sets of promises, and with the panel refitted."""
    narrow = {**TINY, "kappa": 0.02, "panel": vt.Panel(**SMALL_PANEL)}  # updates reach the ends of the sets
    today = vt.VeriTraCER(schema=data.schema, **narrow).fit(data.X, data.y)
    quick = {"epochs": 5, "compare": False}
    report("free update", lambda: today.update(new.X, new.y, **quick), data.X)
    report("free update, new panel", lambda: today.update(new.X, new.y, panel="refit", **quick), data.X)
    report("free update, no panel", lambda: today.update(new.X, new.y, panel=None, **quick), data.X)
    recourse = today.explain(data.X)
    advised = data.X[recourse.certified].head(30)  # what becomes of other rows is not the same in all trees
    with tempfile.TemporaryDirectory() as folder:
        ledger = str(Path(folder) / "ledger.db")
        today.issue(advised, ids=[str(row) for row in advised.index], ledger=ledger)
        keeping = {"keep": ledger, "max_loss": None, "allow_broken": len(advised), **quick}
        report(f"{len(advised)} promises kept", lambda: today.update(new.X, new.y, **keeping), data.X)


def report(name: str, fit: Callable[[], vt.VeriTraCER], X: pd.DataFrame) -> None:
    """Print the digests of a model, and its time on standard error."""
    start = time.perf_counter()
    for part, hashed in parts_of(fit(), X).items():
        print(f"{name}: {part} {hashed}", flush=True)
    print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
