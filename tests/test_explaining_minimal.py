"""Counterfactuals without needless changes: no advised change can be left out."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import veritracer as vt
from recourse_tables import fitted
from search.small_grids import SCHEMA, everybody
from veritracer.bounds.ibp import Box
from veritracer.counterfactuals import Counterfactuals
from veritracer.search.problem import certified_region
from veritracer.training import Panel
from veritracer.training.data import LabelledRows


def needless(module: nn.Module, found: Counterfactuals) -> list[tuple[int, str]]:
    """Return the shown changes that can be undone alone with the proof and the panel's acceptance intact.

    Where the panel does not accept a counterfactual, undoing a change must not make it accept less.
    """
    region = certified_region(found.encoding, found.options.overshoot, found.options.drift)
    panel = found.reference.panel is not None
    out = []
    for i in np.flatnonzero(found.valid & found.proved):
        x, wanted = found.x[i : i + 1], torch.tensor([not found.favourable[i]])
        models = found.param_set if found.certified[i] else found.param_set.at(float(found.radius[i]))
        margin = float(found.reference.panel_margin(found.x_cf[i : i + 1], wanted)) if panel else 0.0
        for change in found.changes_of(i):
            name = change.feature.name
            row = found.frame.iloc[[i]].copy()
            row[name] = found.original[name].iloc[[i]].to_numpy()
            undone = found.encoding.encode(row, out_of_range="ignore")
            covered = region.around(undone, x)
            proof = vt.certify(module, x, covered if isinstance(covered, Box) else undone, models)
            still = not panel or float(found.reference.panel_margin(undone, wanted)) >= min(margin, 0.0)
            if proof.certified[0] and still:
                out.append((int(i), name))
    return out


@cache
def small_world(seed: int, *, panel: bool) -> tuple[vt.Recourse, pd.DataFrame]:
    """A random network over a small table, with or without a panel of the same opinion, and a few people."""
    torch.manual_seed(seed)
    frame = everybody()
    schema = SCHEMA.with_labels(["yes", "no"], "yes")
    encoding = vt.Encoding.fit(schema, frame)
    layers = [nn.Linear(encoding.dim, 8), nn.ReLU(), nn.Linear(8, 1)]
    module = nn.Sequential(*layers).double()
    rows = frame.sample(300, random_state=seed % 2**32)
    x = encoding.encode(rows)
    with torch.no_grad():
        module[-1].bias.sub_(module(encoding.encode(frame)).median())
        y = (module(x).squeeze(-1) + 0.05 * torch.randn(len(x)) > 0).float()
    known: dict[str, object] = {"rows": rows}
    if panel:
        labelled = LabelledRows(x.float(), y, torch.ones(len(x)))
        judges = Panel(networks=2, boosted=2, held_out=1).fit_encoded(encoding, labelled, seed=0)
        known |= {"labels": np.where(y > 0, "yes", "no"), "panel": judges}
    return vt.Recourse(module, schema, encoding, kappa=0.02, **known), frame.sample(15, random_state=1)


CALLS = [
    {},
    {"n": 3},
    {"max_changes": 2},
    {"kappa": 0.5},
    {"overshoot": 0.05, "drift": {"a": (0, 1)}},
    {"plausibility": 2.0},
    {"cost": {"a": 1e6}},
]


@pytest.mark.parametrize("options", CALLS, ids=lambda o: "-".join(o) or "default")
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_no_change_of_a_small_world_can_be_undone(options: dict[str, object], seed: int) -> None:
    recourse, some = small_world(seed, panel=False)
    found = recourse.explain(some, **options)
    assert needless(recourse.module, found) == []


@pytest.mark.parametrize(
    "options",
    [{}, {"n": 3}, {"max_changes": 2}, {"kappa": 0.5}, {"plausibility": 2.0}, {"agreement": 0.5}],
    ids=lambda o: "-".join(o) or "default",
)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_change_can_be_undone_while_the_panel_accepts(options: dict[str, object], seed: int) -> None:
    recourse, some = small_world(seed, panel=True)
    found = recourse.explain(some, **options)
    assert needless(recourse.module, found) == []
    names = [sorted(c.feature.name for c in found.changes_of(i)) for i in range(len(found))]
    sets = list(zip(found.row.tolist(), map(str, names), strict=True))
    assert len(set(sets)) == len(sets)


def test_no_change_of_a_mixed_table_can_be_undone() -> None:
    model, rows = fitted()
    found = model.explain(rows.head(20), n=2)
    assert needless(model.classifier_, found) == []
