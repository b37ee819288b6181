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

from veritracer.bounds import BOUNDS, dual
from veritracer.bounds.crown_ibp import upper_plane
from veritracer.bounds.ibp import trace
from veritracer.certificate import Certificate, certify
from veritracer.param_sets import ParamSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DELTA = 1.9
PERSON = (4.0, 1.0)
GREEN, RED, YELLOW, INK = "#8fc9a5", "#e59a94", "#f6e3a1", "#22313f"


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
    """The example as a torch module."""
    model = nn.Linear(2, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -1.0]]))
        model.bias.fill_(example.bias)
    return model


def certificates(delta: float = DELTA) -> list[tuple[Example, Certificate | None]]:
    """What can be proved of each counterfactual that the paper names."""
    found: list[tuple[Example, Certificate | None]] = []
    for example in (*FIGURE_1, FIGURE_2):
        model = model_of(example)
        param_set = ParamSet.around(model, radius=delta)
        at = example.counterfactual
        found.append((example, certify(model, [PERSON], [at], param_set)[0] if at else None))
    return found


def regions(example: Example, points: Tensor, delta: float = DELTA) -> Tensor:
    """+1 where every model that keeps the person's decision says +, -1 where every one says -, else 0."""
    param_set = ParamSet.around(model_of(example), radius=delta)
    one = torch.ones(len(points), dtype=torch.float64)
    person = torch.tensor([PERSON], dtype=torch.float64).expand(len(points), 2)
    keeps = upper_plane(param_set, trace(param_set, person), one)
    worst = [
        dual.maximum(
            upper_plane(param_set, trace(param_set, points), side), keeps, param_set.row_radii, "linf"
        ).value
        for side in (one, -one)  # the largest logit, and the largest negated one
    ]
    return torch.where(worst[0] < 0, -1, torch.where(worst[1] < 0, 1, 0))


def draw_figure_1(axis: Axes, example: Example, delta: float = DELTA) -> None:
    """One panel of Figure 1: where the whole set of models agrees, and where it does not."""
    side = np.linspace(-5.0, 5.0, 201)
    grid = torch.as_tensor(np.stack(np.meshgrid(side, side), -1).reshape(-1, 2))
    shade = regions(example, grid, delta).reshape(len(side), len(side)).numpy()
    axis.contourf(side, side, shade, levels=[-1.5, -0.5, 0.5, 1.5], colors=[RED, YELLOW, GREEN])
    axis.plot(side, side + example.bias, color=INK, linewidth=1.5)
    axis.plot(*PERSON, "o", color=INK)
    axis.annotate("x", PERSON, xytext=(5, 5), textcoords="offset points")
    if example.counterfactual:
        axis.plot(*example.counterfactual, "*", color=INK, markersize=11)
        axis.annotate("x′", example.counterfactual, xytext=(6, -12), textcoords="offset points")
    axis.set(title=example.name, xlim=(-5, 5), ylim=(-5, 5), xlabel="x1", ylabel="x2", aspect="equal")


def draw_figure_2(axis: Axes, delta: float = DELTA) -> None:
    """All models of the set by what they say of x and of x′, and how high each method has to assume x′."""
    example = FIGURE_2
    assert example.counterfactual is not None
    param_set = ParamSet.around(model_of(example), radius=delta)
    rows = torch.tensor([PERSON, example.counterfactual], dtype=torch.float64)
    drawn = param_set.network.logit(param_set.sample(4000, torch.Generator().manual_seed(0)), rows).numpy()
    keeps = drawn[:, 0] >= 0
    axis.axhspan(0, 12, color=RED, alpha=0.5, linewidth=0)
    axis.plot(*drawn[keeps].T, ".", color=INK, markersize=1.5, label="keeps x's decision")
    axis.plot(*drawn[~keeps].T, ".", color="#b9c2c9", markersize=1.5, label="does not")
    one = torch.ones(1, dtype=torch.float64)
    styles = {"ibp": ":", "crown-ibp": "--", "simul-crown": "-"}
    for name, bound in BOUNDS.items():
        height = bound(param_set, rows[:1], rows[1:], one).worst_logit.item()
        axis.axhline(height, color=INK, linestyle=styles[name], linewidth=1.4, label=f"{name}: {height:.2f}")
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set(title="x′ = (-4, -1) and f0", xlabel="logit of x", ylabel="logit of x′", ylim=(-18, 12))
    axis.legend(loc="lower left", fontsize=8, framealpha=0.9)


def draw(path: Path, delta: float = DELTA) -> Path:
    """Write all panels as one PNG, and return where."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 10, "axes.titlesize": 11}):
        figure = Figure(figsize=(14, 3.9), layout="constrained")
        axes = figure.subplots(1, len(FIGURE_1) + 1)
        for axis, example in zip(axes, FIGURE_1, strict=False):
            draw_figure_1(axis, example, delta)
        draw_figure_2(axes[-1], delta)
        title = f"Green, red: all models within {delta:g} that keep x's decision agree. Yellow: they differ."
        figure.suptitle(title, fontsize=11)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    return path
