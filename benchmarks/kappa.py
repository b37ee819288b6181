"""Whether kappa means what it meant: the old default (Algorithm 1 alone, a start near zero) beside the new.

``python -m benchmarks.kappa [--seeds 0 1 2]`` (ctg, who: VERITRACER_DATA has their files). For each seed a
model of today's rows promises recourse to people whom it turns down; a free update then follows tomorrow's
rows. Told are the radii of the certified set in absolute numbers, how far the update went in these radii,
and how many of the promises it keeps. Finished lines are kept in ``out/kappa.jsonl``.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import veritracer as vt
from benchmarks.promise_ledger import promises_of
from benchmarks.promises import PEOPLE, today, tomorrow
from benchmarks.record import keep, lines_of, save, show
from veritracer.errors import VeriTracerWarning
from veritracer.ledger.auditing import audit

TRAININGS: dict[str, dict[str, Any]] = {"old": {"panel": None, "initialisation": "small"}, "new": {}}
DRIFTS = {"ctg": ("shift",), "who": ("shift",), "loans": ("shift", "years")}
LINES = Path("out/kappa.jsonl")


def measure(name: str, seed: int, training: str) -> list[dict[str, Any]]:
    """Train, promise, and compare updates: a line for each drift of the dataset."""
    data = today(name, seed)
    split = data.split(random_state=seed)
    model = vt.VeriTraCER(data.schema, random_state=seed, **TRAININGS[training])
    model.fit(split.X_train, split.y_train)
    declined = data.X[model.decision_function(data.X) <= 0]
    found = model.explain(declined.sample(min(PEOPLE, len(declined)), random_state=seed))
    with promises_of(model, found) as promises:
        return compared(model, found, promises, name, seed, training)


def compared(
    model: vt.VeriTraCER, found: vt.Counterfactuals, promises: vt.Ledger, name: str, seed: int, training: str
) -> list[dict[str, Any]]:
    """Return a line for each drift of the dataset."""
    radii = [float(radius) for radius in found.param_set.radii]
    lines = []
    for drift in DRIFTS[name]:
        free = model.update(*tomorrow(name, drift, seed, model, found), compare=False)
        result = audit(promises, free, recourse=0)
        moved = max(g.farthest or 0.0 for g in result.groups)
        kept = result.counts["kept by proof"] + result.counts["kept, checked"]
        lines.append(
            {
                "dataset": name,
                "drift": drift,
                "seed": seed,
                "training": training,
                "radius": float(np.mean(radii)),
                "moved": moved,
                "promises": promises.counts().live,
                "kept": int(kept),
            }
        )
    return lines


def run(seeds: list[int], names: list[str]) -> pd.DataFrame:
    """All lines, those that were there and those that were missing."""
    lines = lines_of(LINES)
    done = {(each["dataset"], each["seed"], each["training"]) for each in lines}
    for seed in seeds:
        for name in names:
            for training in TRAININGS:
                if (name, seed, training) not in done:
                    new = measure(name, seed, training)
                    keep(LINES, new)
                    lines += new
    return pd.DataFrame(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DRIFTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", VeriTracerWarning)
    lines = run(chosen.seeds, chosen.datasets)
    rows: list[list[object]] = []
    for (name, drift), part in lines.groupby(["dataset", "drift"], sort=False):
        both = {training: part[part["training"] == training] for training in TRAININGS}
        row: list[object] = [name, drift, part["seed"].nunique()]
        row += [f"{each['radius'].mean():.4f}" for each in both.values()]
        row += [f"{each['moved'].mean():.1f}" for each in both.values()]
        row += [f"{100 * each['kept'].sum() / each['promises'].sum():.2f} %" for each in both.values()]
        rows.append(row)
    header = [
        "dataset",
        "drift",
        "seeds",
        "mean radius: old",
        "new",
        "free update moved, in radii: old",
        "new",
    ]
    text = show("What kappa means, old default and new", [*header, "promises kept: old", "new"], rows)
    save("kappa", {"lines": lines.to_dict("records")}, [text])


if __name__ == "__main__":
    main()
