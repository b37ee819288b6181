"""The picture of a trap door: one person, one way, seen by model, panel, held-out models and the truth.

``python -m benchmarks.trap_door`` writes docs/pictures/trap_door.png: HELOC above (its file is needed) and
``loans`` below, where the truth is known; on the left Algorithm 1 alone, judged by the panel of the model on
the right, which is the default. The person is the one in the middle by what Algorithm 1 claims too much.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd

from veritracer import Recourse, VeriTraCER, datasets
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import VeriTracerWarning
from veritracer.search.reference import ReferenceData

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "trap_door.png"
LINES = {
    "model": ("this model", "#003f5c", "-"),
    "panel": ("panel", "#7a5195", "--"),
    "held_out": ("held-out models", "#ef5675", ":"),
    "truth": ("the truth", "#ffa600", "-."),
}
TABLES = {"heloc": "HELOC", "loans": "loans"}
ROWS = 8000


def ways(name: str) -> dict[str, pd.DataFrame]:
    """The same person's way by both trainings: somebody whom both decline."""
    data = datasets.loans(ROWS) if name == "loans" else datasets.load(name)
    split, schema = data.split(), data.schema
    default = VeriTraCER(schema).fit(split.X_train, split.y_train)
    plain = VeriTraCER(schema, panel=None, initialisation="small").fit(split.X_train, split.y_train)
    people = split.X_test[
        (default.decision_function(split.X_test) <= 0) & (plain.decision_function(split.X_test) <= 0)
    ].head(200)
    # Rows and panel of the default: the plain model has nobody else to ask.
    witness = ReferenceData(plain.neighbours_, default.panel_, None, 0.0)
    alone = Recourse(
        plain.classifier_, schema, plain.encoding_, propose=plain.propose_encoded, reference=witness
    )
    found = {
        "Algorithm 1 alone": alone.explain(people, plausibility=0.0, extremes=True, search_radius=False),
        "held to a panel (the default)": default.explain(people, search_radius=False),
    }
    known = name == "loans"
    person = _typical(list(found.values()), known=known)
    return {title: _way(each, person, known=known) for title, each in found.items()}


def _typical(both: list[Counterfactuals], *, known: bool) -> int:
    """The person with the median gap between claim and truth (else panel) under the first training."""
    fine = np.flatnonzero(both[0].certified & both[1].certified)
    ends = pd.concat([_way(both[0], int(i), known=known).loc[[1.0]] for i in fine])
    gap = (ends["model"] - ends["truth" if known else "panel"]).to_numpy()
    return int(fine[np.argsort(gap)[len(gap) // 2]])


def _way(found: Counterfactuals, i: int, *, known: bool) -> pd.DataFrame:
    own = found.original.iloc[[i]]

    def truth(rows: pd.DataFrame) -> np.ndarray:
        return datasets.loans_truth(rows, pd.concat([own] * len(rows), ignore_index=True))

    return found.interpolation_path(i, truth=truth) if known else found.interpolation_path(i)


def draw(found: dict[str, dict[str, pd.DataFrame]]) -> None:
    """A row for each table, two trainings side by side, one scale."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(found), 2, figsize=(9, 6.4), sharex=True, sharey=True, squeeze=False)
    for line, (name, both) in zip(axes, found.items(), strict=True):
        for axis, (title, way) in zip(line, both.items(), strict=True):
            for key, (label, colour, style) in LINES.items():
                if key in way:
                    axis.plot(way.index, way[key], style, color=colour, label=label, linewidth=2)
            axis.axvline(1.0, color="#b9c2c9", linewidth=1, zorder=0)
            axis.axhline(0.5, color="#b9c2c9", linewidth=1, zorder=0)
            axis.set(title=f"{name}: {title}", ylim=(0, 1))
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel("favourable probability")
    for axis in axes[-1]:
        axis.set_xlabel("share of the way from x to x′")
    handles, labels = axes[-1][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(LINES), frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=130)


def main() -> None:
    warnings.simplefilter("ignore", VeriTracerWarning)
    found = {title: ways(name) for name, title in TABLES.items()}
    for name, both in found.items():
        for title, way in both.items():
            print(f"{name}: {title}", way.loc[[0.0, 0.5, 1.0]].round(3), sep="\n")
    draw(found)


if __name__ == "__main__":
    main()
