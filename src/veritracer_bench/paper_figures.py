"""The paper's two-dimensional examples, certified and drawn by the library.

The paper has delta = 2, where its worked example ends in a tie (the bound is exactly 0). We certify only
what is strictly below 0, so the pictures are drawn at 1.9.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from veritracer.bounds import dual
from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import trace
from veritracer.bounds.methods import BOUNDS
from veritracer.certificate import Certificate, certify
from veritracer.files import whole_file
from veritracer.models.param_sets import ParamSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DELTA = 1.9
PERSON = (4.0, 1.0)
GREEN, RED, YELLOW, INK, GREY = "#8fc9a5", "#e59a94", "#f6e3a1", "#22313f", "#b9c2c9"

CONCLUSIONS = (
    f"Each certified x′ keeps its decision under every model within δ = {DELTA:g} of its own (by "
    "simul-crown: under every one that still decides x as today), so a retraining that stays within δ cannot "
    "break the promise.",
    "Of the three models f2 has the closest such x′ and f1 has none at all: which model is trained decides "
    "which promises can be kept.",
)
"""Two conclusions from the examples."""


class Example(NamedTuple):
    """A linear model ``x1 - x2 + bias`` and the counterfactual that the paper names, if there is one."""

    name: str
    bias: float
    counterfactual: tuple[float, float] | None


FIGURE_1 = (
    Example("f0 = x1 - x2 - 2", -2.0, (0.0, 0.0)),
    Example("f1 = x1 - x2 - 1.5", -1.5, None),
    Example("f2 = x1 - x2 - 2.5", -2.5, (0.0, 0.5)),
)
FIGURE_2 = Example("f0 = x1 - x2 - 2", -2.0, (-4.0, -1.0))


def model_of(example: Example) -> nn.Linear:
    """Return the example as a torch module."""
    model = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -1.0]]))
        model.bias.fill_(example.bias)
    return model


def certificates(delta: float = DELTA) -> list[tuple[Example, Certificate | None]]:
    """Certify each counterfactual that the paper names."""
    found: list[tuple[Example, Certificate | None]] = []
    for example in (*FIGURE_1, FIGURE_2):
        model = model_of(example)
        param_set = ParamSet.around(model, radius=delta)
        at = example.counterfactual
        found.append((example, certify(model, [PERSON], [at], param_set)[0] if at else None))
    return found


def worst_logits(example: Example, points: Tensor, delta: float = DELTA) -> tuple[Tensor, Tensor]:
    """Return the largest logit and negated logit of each point, over the models that keep x's decision.

    Where the first is below 0 all these models say -, where the second is, all say +; shape (n,) each.
    """
    param_set = ParamSet.around(model_of(example), radius=delta)
    one = torch.ones(len(points), dtype=torch.float64)
    person = torch.tensor([PERSON], dtype=torch.float64).expand(len(points), 2)
    keeps = upper_plane(param_set, trace(param_set, person), one)
    ranges = trace(param_set, points)

    def worst(side: Tensor) -> Tensor:
        plane = upper_plane(param_set, ranges, side)
        return dual.maximum(plane, keeps, param_set.row_radii, param_set.norm).value

    return worst(one), worst(-one)


def draw_figure_1(axis: Axes, example: Example, delta: float = DELTA) -> None:
    """One panel of Figure 1: where the whole set of models agrees, and where it does not."""
    side = np.linspace(-5.0, 5.0, 201)
    grid = torch.as_tensor(np.stack(np.meshgrid(side, side), -1).reshape(-1, 2))
    axis.set_facecolor(YELLOW)
    for worst, colour in zip(worst_logits(example, grid, delta), (RED, GREEN), strict=True):
        height = worst.reshape(len(side), len(side)).numpy()
        if height.min() < 0:
            axis.contourf(side, side, height, levels=[height.min() - 1, 0], colors=[colour])
    axis.plot(side, side + example.bias, color=INK, linewidth=1.5)
    axis.plot(*PERSON, "o", color=INK)
    axis.annotate("x", PERSON, xytext=(5, -13), textcoords="offset points")
    if example.counterfactual:
        axis.plot(*example.counterfactual, "*", color=INK, markersize=11)
        axis.annotate("x′", example.counterfactual, xytext=(6, -12), textcoords="offset points")
    else:
        axis.text(
            -4.6,
            4.2,
            "no x′ can be certified:\nsome model of the set says + everywhere",
            fontsize=8,
            va="top",
        )
    axis.set(title=example.name, xlim=(-5, 5), ylim=(-5, 5), xlabel="x1", ylabel="x2", aspect="equal")


def draw_figure_2(axis: Axes, delta: float = DELTA) -> None:
    """All models of the set by what they say of x and of x′, and how high each method has to assume x′."""
    example = FIGURE_2
    assert example.counterfactual is not None
    param_set = ParamSet.around(model_of(example), radius=delta)
    rows = torch.tensor([PERSON, example.counterfactual], dtype=torch.float64)
    drawn = param_set.network.logit(param_set.sample(4000, torch.Generator().manual_seed(0)), rows).numpy()
    keeps = drawn[:, 0] >= 0
    axis.axhspan(0, 12, color=GREEN, alpha=0.5, linewidth=0)
    axis.axhspan(-26, 0, color=RED, alpha=0.5, linewidth=0)
    axis.plot(*drawn[keeps].T, ".", color=INK, markersize=1.5, label="a model that keeps x's decision")
    axis.plot(*drawn[~keeps].T, ".", color=GREY, markersize=1.5, label="a model that does not")
    one = torch.ones(1, dtype=torch.float64)
    heights = {
        name: bound(param_set, rows[:1], rows[1:], one).worst_logit.item() for name, bound in BOUNDS.items()
    }
    # One layer: IBP and CROWN-IBP are the same number here.
    axis.axhline(
        heights["ibp"], color=INK, linestyle="--", label=f"bound by (crown-)ibp: {heights['crown-ibp']:.2f}"
    )
    axis.axhline(
        heights["simul-crown"], color=INK, label=f"bound by simul-crown: {heights['simul-crown']:.2f}"
    )
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set(
        title="the models around f0, x′ = (-4, -1)", xlabel="logit of x", ylabel="logit of x′", ylim=(-26, 12)
    )
    axis.legend(loc="lower left", fontsize=8, framealpha=0.9, markerscale=5)


def draw(path: Path, delta: float = DELTA) -> Path:
    """Write all panels as one PNG, whole or not at all, and return where."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    with matplotlib.rc_context({"font.size": 10, "axes.titlesize": 11}):
        figure = Figure(figsize=(15, 4.4), layout="constrained")
        axes = figure.subplots(1, len(FIGURE_1) + 1, width_ratios=[1, 1, 1, 1.3])
        for axis, example in zip(axes, FIGURE_1, strict=False):
            draw_figure_1(axis, example, delta)
        draw_figure_2(axes[-1], delta)
        figure.suptitle(f"Every model within δ = {delta:g} that still says + of x", fontsize=12)
        shades = {GREEN: "all of them say +", RED: "all of them say - (x′ certified)", YELLOW: "they differ"}
        patches = [Patch(color=colour, label=label) for colour, label in shades.items()]
        figure.legend(handles=patches, loc="outside lower left", ncols=3, frameon=False)
        _save(figure, path)
    return path


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        figure.savefig(file, dpi=110, format="png")
