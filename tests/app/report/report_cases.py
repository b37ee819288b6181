"""One small model of lending, and one of a table whose names try to break out of the page."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

import veritracer as vt

SCRIPT = "<script>alert(1)</script>"
IMAGE = "\"><img src=x onerror='alert(1)'>"


class Case(NamedTuple):
    """A fitted model, a table with labels that it has not seen, and the recourse of its people."""

    model: vt.VeriTraCER
    X: pd.DataFrame
    y: pd.Series
    recourse: vt.Counterfactuals


def lending() -> Case:
    data = vt.datasets.loans(rows=1500)
    X_train, X_test, y_train, y_test = data.split(test_size=0.25)
    model = vt.VeriTraCER(schema=data.schema, panel=None, epochs=30, kappa=0.05).fit(X_train, y_train)
    return Case(model, X_test, y_test, model.explain(X_test))


def hostile() -> Case:
    draw = np.random.default_rng(0)
    n = 300
    X = pd.DataFrame(
        {
            SCRIPT: draw.integers(0, 100, n),
            IMAGE: draw.choice([IMAGE, "a & b", "plain"], n),
            "'quoted' \"name\"": draw.integers(0, 50, n),
        }
    )
    y = pd.Series(np.where(X[SCRIPT] + draw.normal(0, 5, n) > 60, SCRIPT, "<b>no</b>"))
    schema = vt.Schema.infer(X, immutable=[IMAGE]).with_labels(y, favourable=SCRIPT)
    model = vt.VeriTraCER(schema=schema, panel=None, epochs=150, kappa=0.02).fit(X, y)
    return Case(model, X, y, model.explain(X))
