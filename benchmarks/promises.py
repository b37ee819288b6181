"""What becomes of certified promises when the world drifts and the model must follow.

``python -m benchmarks.promises`` (ctg and who need their files: VERITRACER_DATA). Finished cells are files in
``--cells``, so that a run can be interrupted and taken up again; ``--tables`` makes the tables from those
that are there. It needs no database: promises are in memory.

For each seed a model of today's rows promises recourse to people whom it turns down. Then tomorrow's rows
come, and the model is updated in three ways: wherever fine-tuning goes (free), inside of the promised set
(kept), and trained anew (from scratch). A fifth of tomorrow's rows is kept aside to judge on. Drifts:

* ``shift``: ctg and who as in the paper; loans by a year.
* ``years``: loans by three years of three times the drift.
* ``bar 20 %``: besides, the bar is raised. Of the rows with the favourable label only so many keep it, those
  with the highest score of a logistic regression of today's rows.
* ``against``: the bar is raised to where recourse leads. Of the rows with the favourable label only those
  keep it that today's model scores higher than 95 % of what it promised: the next model has every reason to
  turn down everybody who did what they were told. Both updates learn it at the full rate of training instead
  of a fifth of that.

Every promise that an audit calls kept by proof is looked up again: the model predicts the shown raw values.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression

import veritracer as vt
from benchmarks.promise_ledger import promises_of
from benchmarks.record import save, show
from veritracer.errors import VeriTracerWarning
from veritracer.ledger.auditing import audit
from veritracer.ledger.verdicts import AuditedModel, Verdict

DRIFTS = {
    "ctg": ("shift", "bar 20 %", "against"),
    "who": ("shift", "bar 20 %", "against"),
    "loans": ("shift", "years", "bar 20 %", "against"),
}
PEOPLE = 500
"""People who are promised something, at most."""

FEWEST = 20
"""So many favourable rows are left at least."""

EPOCHS = {"ctg": 100, "who": 100, "loans": 20}
"""Of training, half of what the library would take: a seed trains a dozen models."""

CELLS = Path("out/promises")
WAYS = ("today", "kept", "free", "from scratch")


def today(name: str, seed: int) -> vt.datasets.Dataset:
    """The rows that the first model learns from."""
    return vt.datasets.loans(random_state=seed) if name == "loans" else vt.datasets.load(name).original


def tomorrow(
    name: str, drift: str, seed: int, model: vt.VeriTraCER, found: vt.Counterfactuals
) -> tuple[pd.DataFrame, pd.Series]:
    """The rows that have come since."""
    if name == "loans":
        year, strength = (4, 3.0) if drift == "years" else (2, 1.0)
        data = vt.datasets.loans(year=year, drift=strength, random_state=seed)
    else:
        data = vt.datasets.load(name).shifted
    if drift in ("shift", "years"):
        return data.X, data.y
    favourable = (data.y == data.schema.favourable).to_numpy()
    if drift == "against":
        score = model.decision_function(data.X)
        bar = np.quantile(model.decision_function(found.frame[found.status != "none"]), 0.95)
        bar = min(bar, np.sort(score[favourable])[-FEWEST])
    else:
        score = scores(today(name, seed), data.X)
        bar = np.quantile(score[favourable], 1 - float(drift.split()[1]) / 100)
    return data.X, data.y.where(~(favourable & (score < bar)), data.schema.unfavourable)


def scores(data: vt.datasets.Dataset, X: pd.DataFrame) -> np.ndarray:
    """What a logistic regression of some rows says of others."""
    encoding = vt.Encoding.fit(data.schema, data.X)
    linear = LogisticRegression(max_iter=1000).fit(encoding.encode(data.X), data.schema.labels(data.y))
    return linear.decision_function(encoding.encode(X, out_of_range="ignore"))


def promised(name: str, seed: int) -> tuple[vt.VeriTraCER, vt.Counterfactuals]:
    """Today's model, and what it promises."""
    data = today(name, seed)
    split = data.split(random_state=seed)
    model = vt.VeriTraCER(schema=data.schema, random_state=seed, epochs=EPOCHS[name])
    model.fit(split.X_train, split.y_train)
    declined = data.X[model.decision_function(data.X) <= 0]
    people = declined.sample(min(PEOPLE, len(declined)), random_state=seed)
    found = model.explain(people)
    return model, found


def confirmed(model: vt.VeriTraCER, found: vt.Counterfactuals, promises: vt.Ledger) -> tuple[int, int]:
    """How many promises are kept by proof, and for how many of these the shown values are accepted."""
    (piece,), (issuing,) = promises.promises(chunk=len(found)), promises.models().values()
    proved = AuditedModel.of(model).judge(piece, issuing).verdict == Verdict.PROVED.code
    shown = found.frame[found.status != "none"][proved]
    yes = model.predict(shown) == model.schema_.favourable if len(shown) else np.zeros(0, dtype=bool)
    return int(proved.sum()), int(yes.sum())


def cell(
    model: vt.VeriTraCER, found: vt.Counterfactuals, promises: vt.Ledger, rows: tuple[Any, Any], drift: str
) -> dict[str, Any]:
    """What the three updates come to."""
    start = time.perf_counter()
    rate = model.settings_.learning_rate if drift == "against" else None
    strict = {"least_kappa": model.settings_.kappa, "allow_broken": len(found)}
    kept = model.update(*rows, keep=promises, learning_rate=rate, **strict)
    free = model.update(*rows, compare=False, learning_rate=rate)
    far = max(
        g.farthest or 0.0
        for g in audit(promises, free, recourse=0).groups
        if g.kappa >= model.settings_.kappa
    )
    report = kept.update_
    return {
        "promises": promises.counts().live,
        "certified": int(found.certified.sum()),
        "unproved": report.unproved,
        "accuracy": {way: report.ways[way].accuracy for way in WAYS},
        "counts": {way: report.ways[way].counts for way in WAYS},
        "newly_broken": len(report.newly_broken),
        "free_moved": far,
        "weights_held_back": max((one.at_border for one in report.constraints), default=0.0),
        "gain_if_released": max((one.gain or 0.0 for one in report.constraints), default=0.0),
        "proved_and_confirmed": {
            "kept": confirmed(kept, found, promises),
            "free": confirmed(free, found, promises),
        },
        "seconds": time.perf_counter() - start,
    }


def job(task: tuple[str, int], cells: Path) -> str:
    """All drifts of one dataset and one seed; those that are done are left alone."""
    name, seed = task
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", VeriTracerWarning)  # tomorrow's values are clipped to today's ranges
    paths = {
        drift: cells / f"{name}-{drift.replace(' ', '-').replace('%', 'pc')}-{seed}.json"
        for drift in DRIFTS[name]
    }
    missing = {drift: path for drift, path in paths.items() if not path.exists()}
    if not missing:
        return f"{name} {seed}: done before"
    start = time.perf_counter()
    model, found = promised(name, seed)
    with promises_of(model, found) as promises:
        for drift, path in missing.items():
            content = {"dataset": name, "drift": drift, "seed": seed}
            content |= cell(model, found, promises, tomorrow(name, drift, seed, model, found), drift)
            partial_path = path.with_suffix(".partial")
            partial_path.write_text(json.dumps(content))
            partial_path.replace(path)
    return f"{name} {seed}: {time.perf_counter() - start:.0f} s"


def spread(values: list[float], digits: int = 3) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}"


def share(found: list[dict[str, Any]], way: str, verdict: str) -> str:
    """The share of all promises of all seeds with this verdict; ``kept`` is all that is not broken."""
    counts = [one["counts"][way] for one in found]
    total = sum(one["promises"] for one in found)
    many = total - sum(c["broken"] for c in counts) if verdict == "kept" else sum(c[verdict] for c in counts)
    return f"{100 * many / total:.2f} %"


def tables(cells: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The tables of all cells that are there."""
    every = [json.loads(path.read_text()) for path in sorted(cells.glob("*.json"))]
    accuracies, promises, proofs = [], [], []
    for name, drifts in DRIFTS.items():
        for drift in drifts:
            found = [one for one in every if (one["dataset"], one["drift"]) == (name, drift)]
            if not found:
                continue
            case = [name, drift, len(found)]
            accuracies.append([*case, *(spread([o["accuracy"][way] for o in found]) for way in WAYS)])
            lost = spread([o["accuracy"]["free"] - o["accuracy"]["kept"] for o in found])
            accuracies[-1].append(lost)
            hurt = sum(o["counts"]["free"]["broken"] > 0 for o in found)
            promises.append(
                [
                    *case,
                    sum(o["promises"] for o in found),
                    *(share(found, way, "kept") for way in ("free", "from scratch", "kept")),
                    share(found, "kept", "kept by proof"),
                    sum(o["newly_broken"] for o in found),
                    hurt,
                    spread([o["free_moved"] for o in found], 1),
                ]
            )
            pairs = [pair for o in found for pair in o["proved_and_confirmed"].values()]
            without = sum(sum(o["unproved"].values()) for o in found)
            proofs.append([*case, sum(p[0] for p in pairs), sum(p[1] for p in pairs), without])
    head = ["dataset", "drift", "seeds"]
    ways = ["no update", "kept update", "free update", "from scratch", "free − kept"]
    kept = ["promises", "free keeps", "from scratch keeps", "kept keeps", "of these by proof"]
    kept += ["broken by kept", "seeds in which free breaks some", "free moved, in promised radii"]
    checked = ["kept by proof", "of these confirmed by prediction", "promises without a proof at κ"]
    made = [
        show("Accuracy on tomorrow's rows, mean ± standard deviation over seeds", [*head, *ways], accuracies),
        show("Promises kept, over all promises of all seeds (κ = 0.2)", [*head, *kept], promises),
        show("Proofs and predictions", [*head, *checked], proofs),
    ]
    return made, every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("datasets", nargs="*", default=list(DRIFTS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cells", type=Path, default=CELLS)
    parser.add_argument(
        "--tables", action="store_true", help="only make tables from the cells that are there"
    )
    asked = parser.parse_args()
    cells = asked.cells
    cells.mkdir(parents=True, exist_ok=True)
    if not asked.tables:
        tasks = [(name, seed) for seed in range(asked.seeds) for name in asked.datasets]
        with multiprocessing.get_context("spawn").Pool(asked.workers, maxtasksperchild=1) as pool:
            for said in pool.imap_unordered(partial(job, cells=cells), tasks):
                print(said, flush=True)
    made, every = tables(cells)
    save("promises", {"cells": every}, made)


if __name__ == "__main__":
    main()
