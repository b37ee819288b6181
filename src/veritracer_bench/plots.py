"""Pictures of the results: boxes over seeds, robustness against distance, and the paper's own figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from veritracer_bench import paper_figures
from veritracer_bench.curves import OURS, STRENGTHS, points
from veritracer_bench.methods import METHODS
from veritracer_bench.plan import PAPER_DATASETS, short_title
from veritracer_bench.results import PAPER as PRINTED
from veritracer_bench.results import Cell
from veritracer_bench.tables import ORDER, Results, title_of
from veritracer_bench.truth_tables import DISTANCE, Truth, method_title
from veritracer_bench.truth_tables import title_of as dataset_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BOXES = (
    ("ri", "keeps", "random initialisation: f_m(x′) = f(x′)"),
    ("loo", "keeps", "leave-out: f_m(x′) = f(x′)"),
    ("ri", "shift_keeps", "distribution shift: f_m(x′) = f(x′)"),
    ("ri", "certified", "δ-robustness at κ = 0.2, of all rows"),
    ("ri", "proximity", "proximity (less is better)"),
    ("ri", "sparsity", "sparsity (less is better)"),
)

TICKS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)

COLOURS = (
    "#003f5c",
    "#2f7f9e",
    "#7a5195",
    "#ef5675",
    "#ffa600",
    "#6b7a86",
    "#9aa57c",
    "#b9c2c9",
    "#8c564b",
)


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the pictures that the results have numbers for, and return the paths of the PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    made = [_boxes(results, *kind, folder) for kind in BOXES] + [_pareto(results, folder)]
    return [path for path in made if path is not None] + [paper_figures.draw(folder / "paper_figures.png")]


def _panels(count: int, title: str, columns: int | None = None) -> tuple[Figure, list[Axes]]:
    """Make ``count`` panels, at most ``columns`` in a line."""
    from matplotlib.figure import Figure

    wide = min(count, columns or count)
    lines = -(-count // wide)
    figure = Figure(figsize=(1.2 + 2.6 * wide, 0.9 + 2.7 * lines), layout="constrained")
    every = figure.subplots(lines, wide, squeeze=False).flatten()
    for spare in every[count:]:
        spare.set_axis_off()
    axes = every[:count]
    figure.suptitle(title, fontsize=11)
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def _boxes(results: Results, experiment: str, number: str, title: str, folder: Path) -> Path | None:
    """Draw a box over seeds for each method, and a panel for each dataset."""
    methods = results.methods(experiment, ORDER)
    found = {
        dataset: {m: v for m in methods if (v := results.values(experiment, dataset, m, number))}
        for dataset in results.datasets(experiment, PAPER_DATASETS)
    }
    found = {dataset: values for dataset, values in found.items() if values}
    if not found:
        return None
    figure, axes = _panels(len(found), title)
    for axis, (dataset, values) in zip(axes, found.items(), strict=True):
        boxes = axis.boxplot(list(values.values()), widths=0.6, patch_artist=True)
        for box, method in zip(boxes["boxes"], values, strict=True):
            box.set_facecolor(_colour(method, methods))
        for line in boxes["medians"]:
            line.set_color("black")
        names = [title_of(m).replace("VeriTraCER, ", "") for m in values]
        axis.set_xticks(range(1, len(values) + 1), names, rotation=60, ha="right", fontsize=7)
        axis.set_title(short_title(dataset), fontsize=9)
    path = folder / f"boxes_{experiment}_{number}.png"
    figure.savefig(path, dpi=110)
    return path


def _pareto(results: Results, folder: Path) -> Path | None:
    """Draw robustness to random initialisation against proximity; open points are the paper's."""
    methods = [m for m in results.methods("ri", ORDER) if m != "dice"]
    datasets = [d for d in results.datasets("ri", PAPER_DATASETS) if _points(results, d, methods)]
    if not datasets:
        return None
    figure, axes = _panels(len(datasets), "robustness against proximity: the upper left corner is best")
    for axis, dataset in zip(axes, datasets, strict=True):
        for method, (near, keeps) in _points(results, dataset, methods).items():
            axis.scatter(near, keeps, color=_colour(method, methods), label=title_of(method), zorder=3)
        for method in methods:
            printed = [PRINTED.get((name, dataset, method)) for name in ("proximity", "ri")]
            if printed[0] is not None and printed[1] is not None:
                edge = _colour(method, methods)
                axis.scatter(printed[0].mean, printed[1].mean, facecolor="none", edgecolor=edge, marker="s")
        axis.set_xscale("log")
        ticks = [tick for tick in TICKS if axis.get_xlim()[0] <= tick <= axis.get_xlim()[1]]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
        axis.set_xticks([], minor=True)
        axis.set_title(short_title(dataset), fontsize=9)
        axis.set_xlabel("proximity", fontsize=8)
    axes[0].set_ylabel("RI, f_m(x′) = f(x′)", fontsize=8)
    _legend(figure, axes, [title_of(method) for method in methods])
    path = folder / "pareto.png"
    figure.savefig(path, dpi=110)
    return path


def frontier(truth: Truth, path: Path) -> Path | None:
    """Draw acceptance by the strictest judge against distance, a panel for each dataset.

    The settings of our ``explain`` are one curve; every other method is a point. Bars are 95 % intervals.
    """
    datasets = [name for name in truth.datasets() if not name.endswith("-people")]
    methods = list(dict.fromkeys(name for dataset in datasets for name in truth.methods(dataset)))
    singles = [name for name in methods if "[" not in name]
    if not singles:
        return None
    figure, axes = _panels(len(datasets), "is it true? the upper left corner is best", columns=4)
    for axis, dataset in zip(axes, datasets, strict=True):
        for base in singles:
            curve = [name for name in truth.methods(dataset) if name.partition("[")[0] == base]
            _curve(axis, truth, dataset, curve, _colour(base, singles), method_title(base))
        _log_distance(axis)
        axis.set_ylim(-0.04, 1.04)
        axis.set_title(dataset_title(dataset), fontsize=9)
        axis.set_xlabel("distance", fontsize=8)
    figure.supylabel("accepted by the lowest judge that counts", fontsize=9)
    _legend(figure, axes, [method_title(base) for base in singles])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def acceptance_curves(cells: Sequence[Cell], path: Path) -> Path | None:
    """Draw acceptance by the lowest qualifying judge of unseen rows against distance, and against LOF.

    A line for each method, a point for each strength, a panel for each dataset; bars are 95 % intervals.
    """
    datasets = list(dict.fromkeys(cell.key.dataset for cell in cells if cell.key.method == OURS))
    found = {dataset: points(cells, dataset) for dataset in datasets}
    found = {dataset: each for dataset, each in found.items() if len({point.base for point in each}) > 1}
    if not found:
        return None
    bases = [base for base in STRENGTHS if any(p.base == base for each in found.values() for p in each)]
    figure, axes = _panels(2 * len(found), "accepted by the lowest judge: the upper left corner is best", 2)
    for number, (dataset, each) in enumerate(found.items()):
        for axis, name in zip(axes[2 * number :], ("distance", "lof"), strict=False):
            for base in bases:
                curve = sorted((p for p in each if p.base == base), key=lambda p: p.distance)
                where = [getattr(point, name) for point in curve]
                means = [point.lowest.mean for point in curve]
                bars = [point.lowest.half_width for point in curve]
                label = METHODS[base].title
                colour, width = _colour(base, bases), 2.0 if base == OURS else 1.0
                axis.errorbar(where, means, bars, marker="o", ms=3, lw=width, color=colour, label=label)
            axis.set_ylim(-0.04, 1.04)
            axis.set_title(short_title(dataset), fontsize=9)
            axis.set_xlabel("LOF" if name == "lof" else name, fontsize=8)
    figure.supylabel("accepted by the lowest judge that qualifies", fontsize=9)
    _legend(figure, axes, [METHODS[base].title for base in bases])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def _curve(axis: Axes, truth: Truth, dataset: str, names: list[str], colour: str, label: str) -> None:
    """Draw a method and its other settings, joined in the order of their distance."""
    found = []
    for name in names:
        near, low = truth.mean(dataset, name, DISTANCE), truth.lowest(dataset, name)
        if low is not None and near > 0:
            found.append((near, low, "[" in name))
    for near, low, setting in found:
        ends = [[low.mean - low.low], [low.high - low.mean]]
        axis.errorbar(near, low.mean, np.clip(ends, 0, None), color=colour, alpha=0.45, lw=1, zorder=2)
        size = 14 if setting else 34
        axis.scatter(near, low.mean, s=size, color=colour, label=None if setting else label, zorder=3)
    if len(found) > 1:
        found.sort(key=lambda point: point[0])
        axis.plot([f[0] for f in found], [f[1].mean for f in found], color=colour, lw=1, zorder=2)


def _log_distance(axis: Axes) -> None:
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, 0.005), max(high, 0.3))
    ticks = [tick for tick in TICKS if axis.get_xlim()[0] <= tick <= axis.get_xlim()[1]]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=7)
    axis.set_xticks([], minor=True)
    axis.tick_params(axis="y", labelsize=7)


def _legend(figure: Figure, axes: list[Axes], order: list[str]) -> None:
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    shown = {label: handle for handle, label in reversed(pairs)}  # a method is not on every panel
    labels = [label for label in order if label in shown]
    figure.legend([shown[label] for label in labels], labels, loc="outside lower center", ncols=4, fontsize=7)


def _points(results: Results, dataset: str, methods: list[str]) -> dict[str, tuple[float, float]]:
    found = {}
    for method in methods:
        near = results.values("ri", dataset, method, "proximity")
        keeps = results.values("ri", dataset, method, "keeps")
        if near and keeps:
            found[method] = float(np.mean(near)), float(np.mean(keeps))
    return found


def _colour(method: str, methods: list[str]) -> str:
    return COLOURS[methods.index(method) % len(COLOURS)]
