"""Certified rate of each method, and the rate that survives the attack, over kappa.

``python -m benchmarks.tightness``

The truth lies between the tightest method and the attack. Small networks of the paper's shape, standard-
and verified-trained, 500 rows each.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import torch

from benchmarks.record import RESULTS, save, show
from benchmarks.workloads import Workload, learned
from veritracer.bounds import BOUNDS
from veritracer.bounds.attack import attack

KAPPAS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
ROWS = 500


def rates(w: Workload, kappa: float) -> dict[str, float]:
    """Share of rows that each method certifies, and share that the attack cannot break."""
    param_set = w.param_set.at(kappa)
    with torch.no_grad():
        found = {n: b(param_set, w.x, w.x_cf, w.sign).worst_logit < 0 for n, b in BOUNDS.items()}
    survives = attack(param_set, w.x, w.x_cf, w.sign).worst_logit < 0
    assert not (found["simul-crown"] & ~survives).any(), "a certificate was broken"
    return {
        **{n: float(v.double().mean()) for n, v in found.items()},
        "survives attack": float(survives.double().mean()),
    }


def draw(results: dict[str, list[dict[str, float]]], path: Path) -> None:
    """The table as a picture: bounds from below, the attack from above."""
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        1, len(results), figsize=(5 * len(results), 3.6), sharey=True, layout="constrained"
    )
    styles = {
        "ibp": (":", "#7a5195"),
        "crown-ibp": ("--", "#ef5675"),
        "simul-crown": ("-", "#003f5c"),
        "survives attack": ("-", "#ffa600"),
    }
    for axis, (name, rows) in zip(axes, results.items(), strict=True):
        for method, (line, colour) in styles.items():
            axis.plot(KAPPAS, [r[method] for r in rows], line, color=colour, label=method, linewidth=2)
        gap = ([r["simul-crown"] for r in rows], [r["survives attack"] for r in rows])
        axis.fill_between(KAPPAS, *gap, color="#ffa600", alpha=0.15, label="unknown")
        axis.set(title=name, xlabel="kappa", xscale="log", ylim=(-0.02, 1.02))
        axis.set_xticks([0.01, 0.03, 0.1, 0.3], ["0.01", "0.03", "0.1", "0.3"])
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of counterfactuals")
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    results: dict[str, list[dict[str, float]]] = {}
    tables = []
    for name, verified in (("standard-trained", False), ("verified-trained", True)):
        workload = learned(name, kappa=0.2, verified=verified, rows=ROWS)
        results[name] = [rates(workload, kappa) for kappa in KAPPAS]
        header = ["kappa", *results[name][0]]
        lines = [
            [f"{k:g}", *(f"{v:.3f}" for v in r.values())] for k, r in zip(KAPPAS, results[name], strict=True)
        ]
        tables.append(show(f"{name}: share of {ROWS} counterfactuals", header, lines))
    save("tightness", {"kappas": KAPPAS, "results": results}, tables)
    draw(results, RESULTS / "tightness.png")


if __name__ == "__main__":
    main()
