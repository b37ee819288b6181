"""The picture of a trap door: one person of ``loans``, one way, seen by model, panel, held-out models, truth.

``python -m benchmarks.trap_door`` writes docs/pictures/trap_door.png: on the left Algorithm 1 alone, judged
by the panel of the model on the right, which is the default.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

from veritracer import Recourse, VeriTraCER, datasets
from veritracer.errors import VeriTracerWarning
from veritracer.recourse import Counterfactuals
from veritracer.recourse.evidence import Evidence

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "trap_door.png"
LINES = {
    "model": ("this model", "#003f5c", "-"),
    "panel": ("panel", "#7a5195", "--"),
    "held_out": ("held-out models", "#ef5675", ":"),
    "truth": ("the truth", "#ffa600", "-."),
}
ROWS = 8000


def ways() -> dict[str, pd.DataFrame]:
    """The same person's way by both trainings: somebody whom both decline, in the middle by the gap."""
    data = datasets.loans(ROWS)
    split = data.split()
    default = VeriTraCER(data.schema).fit(split.X_train, split.y_train)
    plain = VeriTraCER(data.schema, panel=None, initialisation="small").fit(split.X_train, split.y_train)
    people = split.X_test[
        (default.decision_function(split.X_test) <= 0) & (plain.decision_function(split.X_test) <= 0)
    ].head(200)
    # Rows and panel of the default: the plain model has nobody else to ask.
    witness = Evidence(plain.neighbours_, default.panel_, None, 0.0)
    hollow = Recourse(
        plain.classifier_, data.schema, plain.encoding_, propose=plain.propose_encoded, evidence=witness
    )
    found = {
        "Algorithm 1 alone": hollow.explain(people, plausibility=0.0, extremes=True, search_radius=False),
        "held to a panel (the default)": default.explain(people, search_radius=False),
    }
    person = _typical(list(found.values()))
    return {title: _way(each, person) for title, each in found.items()}


def _typical(both: list[Counterfactuals]) -> int:
    """The person with the median gap between claim and panel under the first training."""
    fine = np.flatnonzero(both[0].certified & both[1].certified)
    ends = pd.concat([both[0].way(int(i)).loc[[1.0]] for i in fine])
    gap = (ends["model"] - ends["panel"]).to_numpy()
    return int(fine[np.argsort(gap)[len(gap) // 2]])


def _way(found: Counterfactuals, i: int) -> pd.DataFrame:
    own = found.original.iloc[[i]]

    def truth(rows: pd.DataFrame) -> np.ndarray:
        return datasets.loans_truth(rows, pd.concat([own] * len(rows), ignore_index=True))

    return found.way(i, truth=truth)


def draw(found: dict[str, pd.DataFrame]) -> None:
    """Two panels side by side, one scale."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, (title, way) in zip(axes, found.items(), strict=True):
        for name, (label, colour, style) in LINES.items():
            axis.plot(way.index, way[name], style, color=colour, label=label, linewidth=2)
        axis.axvline(1.0, color="#b9c2c9", linewidth=1, zorder=0)
        axis.axhline(0.5, color="#b9c2c9", linewidth=1, zorder=0)
        axis.set(title=title, xlabel="share of the way from x to x′", ylim=(0, 1))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("probability of approval")
    axes[1].legend(frameon=False, loc="lower right")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=130)


def main() -> None:
    warnings.simplefilter("ignore", VeriTracerWarning)
    found = ways()
    for title, way in found.items():
        print(title, way.loc[[0.0, 0.5, 1.0]].round(3), sep="\n")
    draw(found)


if __name__ == "__main__":
    main()
