"""What joint training comes to, generator alone, default configuration, at kappa = 0.2.

``python -m benchmarks.quality [DATASET ...]`` (needs the dataset files: VERITRACER_DATA)

The paper's setting: the authors' rows and columns, no actionability, no grids. Every test row is in the
denominator. Each model is paired with a standard-trained one of the same seed, in the same run. The attack
then tries to break every certificate of every test row.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.metrics import balanced_accuracy_score

import veritracer as vt
from benchmarks.record import save, show
from veritracer.bounds.attack import attack
from veritracer.errors import DataWarning

SEEDS = {"heloc": 3, "taiwan_credit": 3, "oula": 3, "ctg": 10, "who": 10}
COLUMNS = (
    "certified",
    "validity",
    "proximity",
    "sparsity",
    "accuracy",
    "standard accuracy",
    "balanced",
    "standard balanced",
    "broken",
)


def measure(model: vt.VeriTraCER, standard: vt.VeriTraCER, split: vt.datasets.Split) -> dict[str, float]:
    """One model against its standard-trained twin, on the test rows."""
    x = model.encoding_.encode(split.X_test)
    x_cf = model.propose_encoded(x)
    param_set = model.param_set()
    certs = vt.certify(model.classifier_, x, x_cf, param_set, radius=False)
    sign = torch.where(torch.as_tensor(certs.favourable), 1.0, -1.0).to(x.dtype)
    broken = 0
    for rows in torch.arange(len(x)).split(500):
        found = attack(param_set, x[rows], x_cf[rows], sign[rows], steps=15, restarts=1)
        broken += int((torch.as_tensor(certs.certified[rows]) & (found.worst_logit >= 0)).sum())
    valid = torch.as_tensor(certs.valid)
    scores = {
        "certified": certs.certified.mean(),
        "validity": certs.valid.mean(),
        "proximity": (x_cf - x).abs().mean(-1)[valid].mean(),
        "sparsity": model.encoding_.changed(x_cf, x, tol=0.01).double().mean(-1)[valid].mean(),
        "accuracy": model.score(split.X_test, split.y_test),
        "standard accuracy": standard.score(split.X_test, split.y_test),
        "balanced": balanced_accuracy_score(split.y_test, model.predict(split.X_test)),
        "standard balanced": balanced_accuracy_score(split.y_test, standard.predict(split.X_test)),
        "broken": broken,
    }
    return {name: float(value) for name, value in scores.items()}


def run(name: str, seeds: Sequence[int]) -> dict[str, list[float]]:
    """All seeds of one dataset, each method in one batched run."""
    data = vt.datasets.load(name, variant="paper")
    data = data.original if name in ("ctg", "who") else data
    split = data.split()
    models, standard = (
        vt.VeriTraCER(schema=data.schema, method=method).fit_many(split.X_train, split.y_train, seeds)
        for method in ("veritracer", "standard")
    )
    found = [measure(m, s, split) for m, s in zip(models, standard, strict=True)]
    return {column: [f[column] for f in found] for column in COLUMNS}


def _job(name: str) -> tuple[str, tuple[dict[str, list[float]], float]]:
    warnings.simplefilter("ignore", DataWarning)  # test values beyond the training rows are clipped, and many
    torch.set_num_threads(1)
    start = time.perf_counter()
    found = run(name, range(SEEDS[name]))
    print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return name, (found, time.perf_counter() - start)


def main() -> None:
    chosen = sys.argv[1:] or list(SEEDS)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count(), maxtasksperchild=1) as pool:
        done = dict(pool.imap_unordered(_job, chosen))
    results = {name: done[name][0] for name in chosen}
    seconds = {name: done[name][1] for name in chosen}
    lines = []
    for name, found in results.items():
        cells = [
            f"{np.mean(v):.3f} ± {np.std(v):.3f}" if c != "broken" else f"{sum(v):.0f}"
            for c, v in found.items()
        ]
        lines.append([f"{name} ({SEEDS[name]} seeds)", *cells])
    tables = [
        show(
            "Generator alone, kappa = 0.2, mean ± standard deviation over seeds", ["dataset", *COLUMNS], lines
        )
    ]
    save("quality", {"results": results, "seconds": seconds}, tables)


if __name__ == "__main__":
    main()
