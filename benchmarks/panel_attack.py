"""Can the panel be fooled? Greedy attacks on the panel itself, and what everybody else says there.

``python -m benchmarks.panel_attack [--datasets heloc who loans]``. From test rows that the panel declines,
the single change that raises the vote of its teachers most is made, up to five times, until both halves
of the vote believe (65 %), as ``explain`` asks for. No classifier takes part: this is the worst that a
search which only listens to the panel could do. The last columns say who believes the rows that it finds.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from torch import Tensor

import veritracer as vt
from benchmarks.record import save, show
from benchmarks.truth import Stage, stage_for
from veritracer.errors import VeriTracerWarning
from veritracer_bench.judges import COUNTED

ROWS, MOVES, ENOUGH = 100, 5, 0.65
LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def candidates(stage: Stage, point: Tensor, x: Tensor) -> Tensor:
    """(n, m, d): every legal single change of each point to some quantile, end or category."""
    train = torch.from_numpy(stage.train.x)
    quantiles = torch.quantile(train.double(), torch.tensor(LEVELS, dtype=torch.float64), dim=0).to(point)
    found = []
    for block in stage.encoding.blocks:
        columns = (
            range(block.group.start, block.group.stop) if block.group else range(block.start, block.start + 1)
        )
        values = [None] if block.group else range(len(LEVELS))
        for column in columns:
            for level in values:
                moved = point.clone()
                moved[:, block.start : block.stop] = 0.0
                moved[:, column] = 1.0 if level is None else quantiles[level, column]
                found.append(stage.encoding.project(moved, x))
    return torch.stack(found, 1)


def attacked(panel: vt.Panel, stage: Stage, x: Tensor) -> Tensor:
    """The rows after at most five greedy changes."""
    point = x.clone()
    for _ in range(MOVES):
        open_ = (torch.minimum(*panel.opinions(point.float())) < ENOUGH).nonzero().squeeze(-1)
        if len(open_) == 0:
            break
        every = candidates(stage, point[open_], x[open_])
        vote = panel.vote(every.flatten(0, 1).float()).view(every.shape[:2])
        point[open_] = every[torch.arange(len(open_)), vote.argmax(-1)]
    return point


def measure(name: str) -> dict[str, float]:
    """Who believes the rows that fool the panel."""
    stage = stage_for(name, None, None)
    panel = vt.Panel(stage.subject.schema, random_state=0).fit(stage.subject.X_train, stage.subject.y_train)
    declined = np.flatnonzero(panel.vote(torch.from_numpy(stage.test.x).float()).numpy() <= 0.5)
    rows = np.sort(np.random.default_rng(0).permutation(declined)[:ROWS])
    x = torch.from_numpy(stage.test.x[rows])
    x_cf = attacked(panel, stage, x)
    fooled = (torch.minimum(*panel.opinions(x_cf.float())) >= ENOUGH).numpy()
    said = stage.jury.opinions(x_cf.numpy(), rows)
    favourable = torch.ones(len(x_cf), dtype=torch.bool)
    found = {
        "people": len(rows),
        "fooled": float(fooled.mean()),
        "changes": float(stage.encoding.changed(x_cf, x).sum(-1)[fooled].double().mean()),
        "distance": float((x_cf - x).abs().mean(-1)[fooled].mean()),
        "held out": float(panel.agreement(x_cf, favourable)[fooled].double().mean()),
    }
    return found | {judge: float((said[judge].mean(0) > 0.5)[fooled].mean()) for judge in COUNTED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=["heloc", "who", "loans"])
    warnings.simplefilter("ignore", VeriTracerWarning)
    found = {name: measure(name) for name in parser.parse_args().datasets}
    header = ["dataset", *next(iter(found.values()))]
    rows = [[name, *(f"{value:.3g}" for value in each.values())] for name, each in found.items()]
    save("panel_attack", found, [show("Attacks on the panel itself", header, rows)])


if __name__ == "__main__":
    main()
