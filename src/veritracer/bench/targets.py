"""What this library set out to reach in the paper's setting, and whether the results do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from veritracer.bench.subjects import TITLES
from veritracer.bench.tables import Results

THREE, FIVE = ("heloc", "taiwan_credit", "oula"), ("heloc", "taiwan_credit", "oula", "ctg", "who")


class Target(NamedTuple):
    """A goal, what it asks for, what was measured, and whether that is enough, as printed."""

    what: str
    wanted: str
    measured: float
    met: bool


def targets(results: Results) -> list[Target]:
    """Every goal that the results can judge."""
    return [target for target in _all(results) if not math.isnan(target.measured)]


def markdown(found: list[Target]) -> str:
    """The goals as a table."""
    lines = ["| goal | wanted | measured | |", "|---|---|---|---|"]
    lines += [
        f"| {t.what} | {t.wanted} | {t.measured:.4f} | {'met' if t.met else '**missed**'} |" for t in found
    ]
    return "\n".join(lines) + "\n"


def _all(results: Results) -> Iterator[Target]:
    def mean(experiment: str, dataset: str, number: str, method: str = "veritracer") -> float:
        values = results.values(experiment, dataset, method, number)
        return float(np.mean(values)) if values else math.nan

    def at_least(what: str, least: float, measured: float) -> Target:
        return Target(what, f"≥ {least:g}", measured, measured >= least)

    for name in THREE:
        yield at_least(f"certified at κ = 0.2, {TITLES[name]}", 0.99, mean("ri", name, "certified"))
    for name in THREE:
        yield at_least(f"RI, f_m(x′) = f(x′), {TITLES[name]}", 0.98, mean("ri", name, "keeps"))
    for name in THREE:
        least = 0.995 if name == "taiwan_credit" else 0.98
        yield at_least(f"LOO, f_m(x′) = f(x′), {TITLES[name]}", least, mean("loo", name, "keeps"))
    for experiment in ("ri", "loo"):
        measured = mean(experiment, "oula", "keeps", "veritracer-steady")
        yield at_least(f"{experiment.upper()}, f_m(x′) = f(x′), OULA, steady", 0.98, measured)
    for name in ("ctg", "who"):
        yield at_least(f"distribution shift, {TITLES[name]}", 0.995, mean("ri", name, "shift_keeps"))
    for name in FIVE:
        rivals = [mean("ri", name, "sparsity", rival) for rival in ("counternet", "roar", "sns")]
        least = min((r for r in rivals if not math.isnan(r)), default=math.nan)
        own = mean("ri", name, "sparsity")
        yield Target(f"sparsity, {TITLES[name]}", f"≤ {least:.3f} (best baseline here)", own, own <= least)
    roar, own = mean("ri", "heloc", "proximity", "roar"), mean("ri", "heloc", "proximity")
    yield Target("proximity, HELOC", f"≤ {roar:.4f} (ROAR here)", own, own <= roar)
