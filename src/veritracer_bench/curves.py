"""Acceptance against distance: every method with its strengths, and a comparison at equal distance.

A method's strength is an option that moves its counterfactuals farther away; a curve has a point for each.
The number on a curve is the acceptance by the lowest judge of unseen rows that qualifies for the dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from veritracer_bench.judges import UNSEEN
from veritracer_bench.results import Cell, mean_of
from veritracer_bench.unseen import Acceptance, acceptance, standings

OURS = "veritracer"

STRENGTHS: dict[str, tuple[str, ...]] = {
    OURS: tuple(f"plausibility={pull}" for pull in (0.0, 0.25, 0.5, 1.0, 2.0)),
    "roar": tuple(f"delta_max={delta}" for delta in (0.05, 0.1, 0.2, 0.3, 0.4)),
    "sns": tuple(f"radius={radius},step={radius / 100}" for radius in (0.05, 0.1, 0.2, 0.4)),
    "counternet": tuple(f"weight_proximity={weight}" for weight in (0.03, 0.1, 0.3)),
    "wachter": tuple(f"target={target}" for target in (0.6, 0.75, 0.9)),
    "neighbour": tuple(f"k={k}" for k in (0, 5, 20)),
    "rnce": tuple(f"kappa={kappa}" for kappa in (0.01, 0.02, 0.04)),
    "proplace": tuple(f"kappa={kappa}" for kappa in (0.01, 0.02)),
    "ellice": tuple(f"epsilon={epsilon}" for epsilon in (0.005, 0.02, 0.05)),
}
"""Options of each method in the sweep, from weak to strong."""


def sweep(methods: Sequence[str]) -> list[str]:
    """Return the methods with each of their strengths."""
    return [f"{base}[{option}]" for base in methods for option in STRENGTHS[base]]


class Point(NamedTuple):
    """One method and strength on one dataset, over splits and seeds.

    ``lowest`` is the acceptance by ``judge``, the lowest one that qualifies.
    """

    method: str
    distance: float
    lof: float
    lowest: Acceptance
    judge: str

    @property
    def base(self) -> str:
        """The name of the method without its strength."""
        return self.method.partition("[")[0]


def points(cells: Sequence[Cell], dataset: str) -> list[Point]:
    """Return the points of a dataset, sorted by method and distance."""
    cells = [cell for cell in cells if cell.key.dataset == dataset]
    judges = [s.judge for s in standings([c for c in cells if c.key.method == "judges"]) if s.qualifies]
    found = []
    for method in dict.fromkeys(c.key.method for c in cells if c.key.method != "judges"):
        same = [c for c in cells if c.key.method == method and "distance" in c.numbers]
        said = {judge: acceptance(same, judge + UNSEEN) for judge in judges}
        said = {judge: each for judge, each in said.items() if np.isfinite(each.mean)}
        distance = mean_of([c.numbers["distance"] for c in same])
        if said and np.isfinite(distance):
            judge = min(said, key=lambda name: said[name].mean)
            lof = mean_of([c.numbers["LOF"] for c in same])
            found.append(Point(method, distance, lof, said[judge], judge))
    return sorted(found, key=lambda point: (point.base, point.distance))


class Comparison(NamedTuple):
    """A baseline's point, and our curve at its distance; ``ours`` is None where none of ours is as near."""

    point: Point
    ours: float | None

    @property
    def is_above(self) -> bool:
        """Whether the baseline is above us by more than its interval."""
        return self.ours is not None and self.point.lowest.mean - self.ours > self.point.lowest.half_width


def compared(found: Sequence[Point]) -> list[Comparison]:
    """Compare every baseline's point with our curve, which is linear between its points.

    Beyond our farthest point that point counts, because it is nearer than the baseline's.
    """
    mine = sorted((p for p in found if p.base == OURS), key=lambda point: point.distance)
    others = [p for p in found if p.base != OURS]
    distances, lowest = [p.distance for p in mine], [p.lowest.mean for p in mine]
    return [
        Comparison(
            point,
            float(np.interp(point.distance, distances, lowest))
            if mine and point.distance >= distances[0]
            else None,
        )
        for point in others
    ]


def sentence(found: Sequence[Point]) -> str:
    """Say whether a baseline is above us at equal distance, and which are nearer than all of our points."""
    each = compared(found)
    if not each or not any(point.base == OURS for point in found):
        return "Nothing to compare."
    above = [
        f"{c.point.method} at {c.point.distance:.3f} ({c.point.lowest.mean:.3f} ± "
        f"{c.point.lowest.half_width:.3f} by {c.point.judge}, ours {c.ours:.3f})"
        for c in each
        if c.is_above
    ]
    nearer = [c.point for c in each if c.ours is None]
    text = (
        f"Above ours at equal distance: {'; '.join(above)}."
        if above
        else "At equal distance no baseline's lowest judge is above ours by more than its interval."
    )
    if nearer:
        best = max(nearer, key=lambda point: point.lowest.mean)
        text += (
            f" {len(nearer)} of {len(each)} points are nearer than all of ours; the most accepted of them is "
            f"{best.method}, {best.lowest.mean:.3f} ± {best.lowest.half_width:.3f} at {best.distance:.3f}."
        )
    return text
