"""A small mixed table, and models that were fitted to it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

import veritracer as vt
from veritracer.schema import Feature, Schema

LEVELS = ["none", "school", "college", "degree"]

SCHEMA = Schema(
    [
        Feature("age", "integer", lower=18, upper=90, action="increase_only"),
        Feature("savings", "integer", lower=0, upper=50_000, step=100),
        Feature("income", "continuous", lower=0.0, upper=120_000.0),
        Feature("debts", "integer", lower=0, upper=20, action="decrease_only"),
        Feature("education", "ordinal", categories=LEVELS, action="increase_only"),
        Feature("job", "categorical", categories=["clerk", "cook", "driver", "none"]),
        Feature("sex", "binary", categories=["f", "m"], action="immutable"),
        Feature("rating", "continuous", lower=0.0, upper=1.0, missing="impute"),
        Feature("region", "categorical", categories=["n", "s"], missing="category", action="immutable"),
    ],
    "approved",
    "yes",
    "no",
)


def applicants(n: int = 900, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows and labels of a noisy score."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, n),
            "savings": rng.integers(0, 300, n) * 100,
            "income": rng.normal(45_000, 15_000, n).clip(5_000, 115_000).round(2),
            "debts": rng.integers(0, 15, n),
            "education": rng.choice(LEVELS, n),
            "job": rng.choice(["clerk", "cook", "driver", "none"], n, p=[0.4, 0.2, 0.3, 0.1]),
            "sex": rng.choice(["f", "m"], n),
            "rating": np.where(rng.random(n) < 0.2, np.nan, rng.random(n).round(3)),
            "region": np.where(rng.random(n) < 0.1, None, rng.choice(["n", "s"], n)),
        }
    )
    score = (
        frame["savings"] / 12_000
        + frame["income"] / 25_000
        - frame["debts"] / 4
        + frame["education"].map(LEVELS.index) / 3
        - (frame["job"] == "none") * 1.0
        + frame["rating"].fillna(0.3)
        + rng.normal(0, 0.4, n)
    )
    return frame, np.where(score > score.median(), "yes", "no")


@cache
def fitted(method: str = "veritracer") -> tuple[vt.VeriTraCER, pd.DataFrame]:
    """A model of that training method, and rows that it was not trained on."""
    frame, y = applicants()
    sizes = {"hidden": (24, 8), "generator_hidden": (24,), "epochs": 160}
    model = vt.VeriTraCER(schema=SCHEMA, method=method, panel=None, **sizes)
    return model.fit(frame[:700], y[:700]), frame[700:].reset_index(drop=True)
