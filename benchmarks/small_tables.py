"""Small tables: the default training against a standard network of the same library, on subsamples.

``python -m benchmarks.small_tables [--sizes 300 1000 3000] [--seeds 0 1 2 3 4]``

Each seed draws its own subsample, stratified by label, and what was not drawn judges (at most 3,000 rows).
Finished lines are kept in ``out/small_tables.jsonl``: a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from benchmarks.record import keep, lines_of, save, show
from veritracer import Schema, VeriTraCER, datasets
from veritracer.errors import VeriTracerWarning
from veritracer_bench.plan import subject_of

DATASETS = ("heloc", "taiwan_credit", "oula", "ctg", "who", "breast_cancer", "german_credit")
KINDS: dict[str, dict[str, Any]] = {"standard": {"method": "standard"}, "default": {}}
JUDGED, ASKED = 3000, 100
LINES = Path("out/small_tables.jsonl")


def table(name: str) -> tuple[Schema, pd.DataFrame, pd.Series[Any]]:
    """Rows to draw from: training rows where a table has its own split."""
    if name == "german_credit":
        frame = pd.read_csv(Path(os.environ["VERITRACER_DATA"]) / "german_credit.csv.gz")
        schema = Schema.infer(frame, target="credit_risk", favourable="good")
        return schema, frame.drop(columns="credit_risk"), frame["credit_risk"]
    if name == "breast_cancer":
        data = datasets.load(name)
        return data.schema, data.X, data.y
    subject = subject_of(name, sys.maxsize)
    return subject.schema, subject.X_train, subject.y_train


def measure(name: str, size: int, seed: int, kind: str) -> dict[str, Any]:
    """Accuracy and AUC of one training, its time, and the share of people with a certificate."""
    schema, X, y = table(name)
    chosen, rest = train_test_split(
        np.arange(len(X)), train_size=min(size, round(0.7 * len(X))), random_state=seed, stratify=y
    )
    start = time.process_time()
    model = VeriTraCER(schema, random_state=seed, **KINDS[kind]).fit(X.iloc[chosen], y.iloc[chosen])
    seconds = time.process_time() - start
    rest = rest[:JUDGED]
    truth = np.asarray(schema.labels(y.iloc[rest]))
    probability = model.predict_proba(X.iloc[rest])[:, list(model.classes_).index(schema.favourable)]
    found: dict[str, Any] = {
        "accuracy": float(((probability > model.threshold) == (truth == 1)).mean()),
        "auc": float(roc_auc_score(truth, probability)),
        "seconds": seconds,
    }
    if kind == "default":
        recourse = model.explain(X.iloc[rest[:ASKED]], search_radius=False)
        found["certified"] = float(recourse.certified[~recourse.favourable].mean())
    return {"dataset": name, "size": size, "seed": seed, "kind": kind, **found}


def run(sizes: list[int], seeds: list[int], names: list[str]) -> pd.DataFrame:
    """All lines, those that were there and those that were missing."""
    lines = lines_of(LINES)
    done = {(each["dataset"], each["size"], each["seed"], each["kind"]) for each in lines}
    for seed in seeds:
        for name in names:
            for size in sizes:
                for kind in KINDS:
                    if (name, size, seed, kind) in done:
                        continue
                    lines.append(measure(name, size, seed, kind))
                    print(lines[-1], flush=True)
                    keep(LINES, lines[-1:])
    return pd.DataFrame(lines)


def compared(lines: pd.DataFrame) -> list[list[object]]:
    """A row for each dataset and size: both trainings, and what the default loses."""
    rows: list[list[object]] = []
    for (name, size), part in lines.groupby(["dataset", "size"], sort=False):
        both = part.pivot_table(index="seed", columns="kind", values=["accuracy", "auc"]).dropna()
        if both.empty:
            continue
        mean, seconds = both.mean(), part[part["kind"] == "default"]["seconds"].mean()
        lost = [mean[m, "default"] - mean[m, "standard"] for m in ("accuracy", "auc")]
        numbers = [f"{mean[m, k]:.3f}" for m in ("accuracy", "auc") for k in KINDS]
        certified = part["certified"].mean()
        rows.append(
            [
                name,
                size,
                len(both),
                *numbers,
                *(f"{x:+.3f}" for x in lost),
                f"{certified:.2f}",
                f"{seconds:.0f}",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 3000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", VeriTracerWarning)
    lines = run(chosen.sizes, chosen.seeds, chosen.datasets)
    header = ["dataset", "rows", "seeds", "accuracy: standard", "default", "AUC: standard", "default"]
    header += ["accuracy lost", "AUC lost", "certified", "fit, s of CPU"]
    text = show("Small tables: default training and a standard network", header, compared(lines))
    save("small_tables", {"lines": lines.to_dict("records")}, [text])


if __name__ == "__main__":
    main()
