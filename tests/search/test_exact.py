"""People whose rows can all be counted: the answer is the best of them, missing cells included."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import veritracer as vt

SCHEMA = vt.Schema(
    target="ok",
    favourable=1,
    features=(
        vt.Feature(name="a", kind="integer", lower=0, upper=4),
        vt.Feature(name="b", kind="integer", lower=0, upper=4, missing="impute"),
        vt.Feature(name="c", kind="binary", categories=("n", "y")),
    ),
)
TABLE = pd.DataFrame(
    [(a, b, c) for a, b, c in itertools.product(range(5), [0.0, 1.0, 2.0, 3.0, 4.0, np.nan], "ny")],
    columns=["a", "b", "c"],
)


@pytest.fixture(params=range(4))
def recourse(request: pytest.FixtureRequest) -> vt.Recourse:
    encoding = vt.Encoding.fit(SCHEMA, TABLE)
    torch.manual_seed(request.param)
    module = nn.Sequential(nn.Linear(encoding.dim, 6), nn.ReLU(), nn.Linear(6, 1)).double()
    with torch.no_grad():
        module[-1].bias -= module(encoding.encode(TABLE)).median()
    return vt.Recourse(module, SCHEMA, encoding, kappa=0.01)


def test_nothing_is_missed_and_nothing_is_dearer_than_the_best(recourse: vt.Recourse) -> None:
    found = recourse.explain(TABLE, search_radius=False)
    x = recourse.encoding.encode(TABLE)
    for row in np.flatnonzero(~found.favourable):
        # A cell that is missing may stay so; no other becomes missing.
        possible = TABLE if np.isnan(TABLE["b"].iloc[row]) else TABLE[TABLE["b"].notna()]
        points = recourse.encoding.encode(possible)
        own = x[[row]].expand(len(points), -1)
        proved = vt.certify(recourse.module, own, points, recourse.param_set(), radius=False).certified
        if not proved.any():
            assert not found.certified[row]
            continue
        best = float((points - own).abs().sum(-1)[torch.from_numpy(proved)].min())
        assert found.certified[row]
        assert float((found.x_cf[row] - x[row]).abs().sum()) <= 1.1 * best + 1e-9


def test_nobody_to_answer(recourse: vt.Recourse) -> None:
    found = recourse.explain(TABLE, search_radius=False)
    accepted = TABLE[found.favourable]
    assert (recourse.explain(accepted, n=2).status == "none").all()
