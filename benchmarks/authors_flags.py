"""Our certificates for the authors' weights and counterfactuals, row by row, beside their own flags.

``VERITRACER_REFERENCE=FOLDER python -m benchmarks.authors_flags [--evaluations 500]``

The authors' code sets the radii after every step of the optimiser, and reloads the weights of the best epoch
without setting them again (``train_IBP_counternet`` and ``CounterNet.load``). So the flags of a run belong to
the weights of the best epoch with the radii of the last one, which are not stored. Where both are the same
epoch, the flags must be ours or fewer. For the others the eight radii are found by fitting: factors on the
radii of the stored weights with which our certificates reproduce the flags. A *missing* row has their flag
and not our certificate, an *extra* one the other way round.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.paper import classifier_of, seeds_of
from benchmarks.record import save, show
from veritracer.certificate import certify
from veritracer.models.network import from_module
from veritracer.models.param_sets import ParamSet
from veritracer.training.recipes import settings_of

NEAR = 250
"""Rows closest to being decided otherwise, on which the radii are fitted."""

MARGIN = 1e-5
"""Distance from 0 that the fit asks for, more than rounding."""

Array = NDArray[np.float64]


class Flags:
    """The flags of one of the authors' models, and our bounds for the same rows."""

    def __init__(self, run: np.lib.npyio.NpzFile, seed: int, kappa: float) -> None:
        self.module = classifier_of(run, seed)
        network, self.theta = from_module(self.module)
        self.network = network
        valid = run[f"{seed}/valid"].astype(bool)
        self.x, self.x_cf = (
            torch.from_numpy(rows[valid]).double() for rows in (run["x"], run[f"{seed}/x_cf"])
        )
        self.flags = run[f"{seed}/certified"].astype(bool)[valid]
        self.radii = np.array([kappa * t.abs().mean().item() for t in self.theta])

    def worst(self, factors: Array, rows: NDArray[np.int64] | slice = slice(None)) -> Array:
        """Return our worst logits with these factors on the radii; a row below 0 is certified."""
        param_set = ParamSet.of(self.network, self.theta, norm="linf", radius=list(self.radii * factors))
        found = certify(self.module, self.x[rows], self.x_cf[rows], param_set, radius=False)
        return np.asarray(found.worst_logit)

    def differences(self, factors: Array) -> tuple[int, int]:
        """Return how many rows are missing, and how many are extra."""
        ours = self.worst(factors) < 0
        return int((self.flags & ~ours).sum()), int((~self.flags & ours).sum())

    def fitted(self, evaluations: int) -> Array:
        """Return the factors with which our certificates come closest to the flags."""
        rows = np.argsort(np.abs(self.worst(np.ones(8))))[:NEAR]
        flags = self.flags[rows]

        def loss(logs: Array) -> float:
            worst = self.worst(np.exp(logs), rows)
            wrong = np.where(flags, np.maximum(worst + MARGIN, 0), np.maximum(MARGIN - worst, 0))
            return float(wrong.sum())

        start = min(np.linspace(-0.2, 0.2, 21), key=lambda log: loss(np.full(8, log)))
        options = {"maxfev": evaluations, "xtol": 1e-4, "ftol": 1e-9}
        found = minimize(loss, np.full(8, start), method="Powell", options=options)
        return np.exp(np.asarray(found.x))


def measured(path: Path, evaluations: int) -> list[dict[str, Any]]:
    """Compare the flags of each model of a file."""
    dataset = path.stem.partition("-")[0]
    run, kappa = np.load(path), settings_of(f"paper:{dataset}", "veritracer")["kappa"]
    rows = []
    for seed in seeds_of(run):
        flags = Flags(run, seed, kappa)
        missing, extra = flags.differences(np.ones(8))
        row = {"run": path.stem, "seed": seed, "valid": len(flags.flags)}
        row |= {"their flags": int(flags.flags.sum()), "missing": missing, "extra": extra, "factors": "1"}
        if missing or extra:
            factors = flags.fitted(evaluations)
            missing, extra = flags.differences(factors)
            row["factors"] = f"{factors.min():.2f} to {factors.max():.2f}"
        row |= {"missing, fitted": missing, "extra, fitted": extra}
        print(row, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Compare all files of the authors' runs that have flags, and save the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--evaluations", type=int, default=500)
    evaluations = parser.parse_args().evaluations
    torch.set_num_threads(1)
    files = sorted((Path(os.environ["VERITRACER_REFERENCE"]) / "authors_runs").glob("*.npz"))
    rows = [row for path in files for row in measured(path, evaluations)]
    flagged = [row for row in rows if row["their flags"]]
    table = show(
        "Their flags and our certificates; models without any flag are left out",
        list(flagged[0]),
        [list(row.values()) for row in flagged],
    )
    save("authors_flags", {"rows": rows}, [table])


if __name__ == "__main__":
    main()
