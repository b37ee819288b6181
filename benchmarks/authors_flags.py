"""Our certificates for the authors' weights and counterfactuals, row by row, beside their own flags.

``VERITRACER_REFERENCE=FOLDER python -m benchmarks.authors_flags``

The authors' code sets the radii after every step of the optimiser. As we read it, it reloads the weights of
the best epoch without setting them again (``train_IBP_counternet`` and ``CounterNet.load``), so that the
flags of a run belong to those weights with the radii of the last epoch, which are not stored. Where both
are the same epoch, the flags must be ours or fewer. A *missing* row has their flag and not our certificate
at the radii of the stored weights, an *extra* one the other way round. The exact stage takes the missing
rows, a second for each: *broken* is a row for which it finds a model inside those radii that breaks it, so
that no sound bound certifies it there; it may also certify the row.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.paper import classifier_of, seeds_of
from benchmarks.record import save, show
from veritracer.bounds.branching import decide_rows
from veritracer.bounds.methods import BoundProblem
from veritracer.certificate import certify
from veritracer.models.param_sets import ParamSet
from veritracer.proving import PRECISION
from veritracer.training.recipes import settings_of

SECONDS = 1.0
"""Time of the exact stage for each missing row."""


class Flagged(NamedTuple):
    """Valid pairs of one model: the set around its weights, their flags and our certificates."""

    param_set: ParamSet
    x: Tensor
    x_cf: Tensor
    flags: NDArray[np.bool_]
    certified: NDArray[np.bool_]


def flagged(run: np.lib.npyio.NpzFile, seed: int, kappa: float) -> Flagged:
    """Return the valid pairs of a model of the authors' runs, certified at the radii of its weights."""
    module = classifier_of(run, seed).requires_grad_(False)
    valid = run[f"{seed}/valid"].astype(bool)
    x, x_cf = (torch.from_numpy(rows[valid]).double() for rows in (run["x"], run[f"{seed}/x_cf"]))
    param_set = ParamSet.around(module, kappa)
    found = certify(module, x, x_cf, param_set, radius=False)
    return Flagged(param_set, x, x_cf, run[f"{seed}/certified"].astype(bool)[valid], found.certified)


def decided_missing(pairs: Flagged) -> tuple[int, int]:
    """Return how many missing rows a model of the set breaks, and how many are certified exactly."""
    rows = np.flatnonzero(pairs.flags & ~pairs.certified)
    if not len(rows):
        return 0, 0
    x, x_cf, own = pairs.x[rows], pairs.x_cf[rows], pairs.param_set
    sign = torch.where(own.network.logit(own.center, x) > 0, 1.0, -1.0).double()
    found = decide_rows(BoundProblem(own, x, x_cf, sign, precision=PRECISION), SECONDS)
    broken = sum(each.counterexample is not None for each in found)
    return broken, sum(each.worst_logit < 0 for each in found)


def measured(path: Path, seed: int) -> dict[str, Any]:
    """Compare the flags of one model of a file."""
    dataset = path.stem.partition("-")[0]
    pairs = flagged(np.load(path), seed, settings_of(f"paper:{dataset}", "veritracer")["kappa"])
    broken, exactly = decided_missing(pairs)
    return {
        "run": path.stem,
        "seed": seed,
        "valid": len(pairs.flags),
        "their flags": int(pairs.flags.sum()),
        "our certificates": int(pairs.certified.sum()),
        "extra": int((pairs.certified & ~pairs.flags).sum()),
        "missing": int((pairs.flags & ~pairs.certified).sum()),
        "broken": broken,
        "certified exactly": exactly,
    }


def main() -> None:
    """Compare all files of the authors' runs that have flags, and save the table."""
    torch.set_num_threads(1)
    files = sorted((Path(os.environ["VERITRACER_REFERENCE"]) / "authors_runs").glob("*.npz"))
    rows = [measured(path, seed) for path in files for seed in seeds_of(np.load(path))]
    table = show(
        "Their flags and our certificates; models without either are left out",
        list(rows[0]),
        [list(row.values()) for row in rows if row["their flags"] or row["our certificates"]],
    )
    save("authors_flags", {"rows": rows}, [table])


if __name__ == "__main__":
    main()
