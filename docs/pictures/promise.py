"""Draw docs/pictures/promise.png: advice before and after retraining, with and without a certificate.

Run ``python docs/pictures/promise.py``. Nothing is sketched: a network with two inputs learns to approve
loans, the library certifies points of the plane, and the network then learns a stricter rule without leaving
the set of models that the certificates cover. In the shaded band neither decision is proved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor, nn

import veritracer as vt

mpl.use("Agg")
import matplotlib.pyplot as plt

PICTURE = Path(__file__).with_name("promise.png")
KAPPA = 0.2
APPLICANT = torch.tensor([[0.10, 0.78]], dtype=torch.float64)
TOWARDS = torch.tensor([[0.95, 0.20]], dtype=torch.float64)
FAVOURITE = torch.tensor([[1.0, 0.0]], dtype=torch.float64)  # accepted by everybody
DECLINED, ACCEPTED, BAND = "#f6d5c6", "#cfe3ee", "#8a8f98"
RED, BLUE, INK = "#b3361b", "#14618f", "#22272e"


def approved(x: Tensor, bar: float) -> Tensor:
    """Return the lender's rule: savings count for, debt against, with a diminishing return."""
    return (1.15 * x[:, 0].sqrt() - 0.75 * x[:, 1] > bar).double()


def train(module: nn.Module, bar: float, steps: int, within: vt.ParamSet | None = None) -> nn.Module:
    """Fit the rule at ``bar``; with ``within``, project every step back into that set."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(4000, 2, generator=generator, dtype=torch.float64)
    y = approved(x, bar)
    optimiser = torch.optim.Adam(module.parameters(), 3e-3, weight_decay=1e-4)
    for _ in range(steps):
        loss = nn.functional.binary_cross_entropy_with_logits(4 * module(x)[:, 0], y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if within is not None:
            with torch.no_grad():
                inside = within.project(list(module.parameters()))
                for parameter, value in zip(module.parameters(), inside, strict=True):
                    parameter.copy_(value)
    return module


def network() -> nn.Module:
    """Return an untrained network; its two inputs are savings and monthly debt, both scaled to [0, 1]."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1)).double()


def grid(size: int = 301) -> tuple[Tensor, tuple[int, int]]:
    """Return the points of the picture, row by row, and its shape."""
    axis = torch.linspace(0, 1, size, dtype=torch.float64)
    across, up = torch.meshgrid(axis, axis, indexing="xy")
    return torch.stack([across.flatten(), up.flatten()], dim=1), (size, size)


def worst_logit(models: vt.ParamSet, today: nn.Module, start: Tensor, points: Tensor) -> np.ndarray:
    """Return a bound for each point: below 0, no model of the set decides it as today's decides ``start``."""
    methods = ("ibp", "crown-ibp")  # those whose certificates are unconditional
    starts = start.expand(len(points), 2)
    return np.asarray(vt.certify(today, starts, points, models, methods=methods, radius=False).worst_logit)


def logits(module: nn.Module, points: Tensor) -> np.ndarray:
    """Return the logit of every point."""
    with torch.no_grad():
        return np.asarray(module(points)[:, 0])


def advice(today: nn.Module, models: vt.ParamSet) -> tuple[np.ndarray, np.ndarray]:
    """Return the first accepted and the first certified point on the way to ``TOWARDS``."""
    steps = torch.linspace(0, 1, 401, dtype=torch.float64).unsqueeze(1)
    way = APPLICANT + steps * (TOWARDS - APPLICANT)
    accepted = int((logits(today, way) > 0).argmax()) + 6  # a little beyond, as a search would stop
    certified = int((worst_logit(models, today, APPLICANT, way) < 0).argmax()) + 6
    return way[accepted].numpy(), way[certified].numpy()


def background(axis: Any, module: nn.Module, *, dashed: nn.Module | None = None) -> None:
    """Colour the two decisions of ``module`` and draw the boundary between them."""
    points, shape = grid()
    logit = logits(module, points).reshape(shape)
    across = np.linspace(0, 1, shape[1])
    axis.contourf(across, across, logit, levels=[-1e9, 0, 1e9], colors=[DECLINED, ACCEPTED])
    axis.contour(across, across, logit, levels=[0], colors=[INK], linewidths=2)
    if dashed is not None:
        old = logits(dashed, points).reshape(shape)
        axis.contour(across, across, old, levels=[0], colors=[BAND], linewidths=1.5, linestyles="--")
    axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="savings", ylabel="monthly debt")
    axis.set_xticks([0, 0.5, 1], ["0", "10,000", "20,000"])
    axis.set_yticks([0, 0.5, 1], ["0", "1,000", "2,000"])
    axis.spines[["top", "right"]].set_visible(False)


def band(axis: Any, today: nn.Module, models: vt.ParamSet) -> None:
    """Shade the points on which two models of the set may disagree."""
    points, shape = grid()
    bounds = [worst_logit(models, today, start, points) for start in (APPLICANT, FAVOURITE)]
    across = np.linspace(0, 1, shape[1])
    undecided = np.minimum(*bounds).reshape(shape)
    axis.contourf(across, across, undecided, levels=[0, 1e9], colors=[BAND], alpha=0.35)


def dot(axis: Any, point: np.ndarray, colour: str, marker: str = "o") -> None:
    """Mark a point: a disc, or a cross where it is declined."""
    size = 11 if marker == "o" else 13
    axis.plot(*point, marker, color=colour, markersize=size, mec="white", mew=1.5, zorder=5)


def say(axis: Any, text: str, at: tuple[float, float], **style: Any) -> None:
    """Write ``text`` at a point."""
    axis.text(*at, text, **{"fontsize": 12, "color": INK, "zorder": 6, "linespacing": 1.25} | style)


def point_at(
    axis: Any, text: str, at: tuple[float, float], target: tuple[float, float], **style: Any
) -> None:
    """Write ``text`` with a thin line from it to ``target``."""
    style = {"fontsize": 11, "color": INK, "va": "center", "linespacing": 1.25} | style
    line = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.9, "shrinkA": 2, "shrinkB": 0}
    axis.annotate(text, target, at, arrowprops=line, **style)


def way(axis: Any, start: np.ndarray, end: np.ndarray) -> None:
    """Draw the applicant and the way from there to the advice."""
    arrow = {"arrowstyle": "-", "color": INK, "linestyle": ":", "linewidth": 1.5}
    axis.annotate("", end, start, arrowprops=arrow)
    dot(axis, start, INK)
    say(axis, "declined applicant", (start[0] - 0.05, start[1] + 0.06))


def draw(today: nn.Module, later: nn.Module, models: vt.ParamSet) -> None:
    """Draw today on the left and the retrained model on the right."""
    start = APPLICANT[0].numpy()
    ordinary, certified = advice(today, models)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.4), sharey=True)
    background(left, today)
    band(left, today, models)
    background(right, later, dashed=today)
    for axis in (left, right):
        way(axis, start, certified)
        say(axis, "DECLINED", (0.03, 0.93), color=RED, fontsize=10, alpha=0.8)
        say(axis, "ACCEPTED", (0.97, 0.30), color=BLUE, fontsize=10, alpha=0.8, ha="right")
    beside = {"va": "center", "weight": "bold", "fontsize": 12.5}
    to_the_left = (ordinary[0] - 0.04, ordinary[1] - 0.045)
    to_the_right = (certified[0] + 0.04, certified[1] - 0.01)
    dot(left, ordinary, RED)
    dot(left, certified, BLUE)
    point_at(left, "ordinary\ncounterfactual", (0.625, 0.665), tuple(ordinary), color=RED, **beside)
    say(left, "certified\ncounterfactual", to_the_right, color=BLUE, **beside)
    point_at(left, "boundaries of all models\nwithin the stated distance", (0.41, 0.17), (0.19, 0.21))
    point_at(left, "today's boundary", (0.41, 0.06), (0.055, 0.06))
    dot(right, ordinary, RED, "X")
    dot(right, certified, BLUE)
    say(right, "declined now", to_the_left, color=RED, ha="right", **beside)
    say(right, "still accepted,\nas proved", to_the_right, color=BLUE, **beside)
    point_at(right, "new boundary", (0.41, 0.17), (0.195, 0.17))
    point_at(right, "old boundary", (0.41, 0.06), (0.055, 0.06))
    left.set_title("Today: both are accepted", fontsize=14, loc="left", weight="bold")
    right.set_title("After a bounded update: one still is", fontsize=14, loc="left", weight="bold")
    figure.tight_layout(w_pad=2.5)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    today = train(network(), bar=0.25, steps=1500)
    models = vt.ParamSet.around(today, kappa=KAPPA)
    later = network()
    later.load_state_dict(today.state_dict())
    later = train(later, bar=0.42, steps=300, within=models)
    assert models.contains(later)
    draw(today, later, models)
