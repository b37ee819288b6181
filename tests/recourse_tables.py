"""A small mixed table, a model that was fitted to it, and an independent judge of what people may be told."""

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
    model = vt.VeriTraCER(schema=SCHEMA, method=method, hidden=(24, 8), generator_hidden=(24,), epochs=160)
    return model.fit(frame[:700], y[:700]), frame[700:].reset_index(drop=True)


def violations(schema: Schema, before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """Every way in which ``after`` breaks what the schema says a person could do, cell by cell.

    It shares nothing with the encoding: plain comparisons of raw values.
    """
    found = []
    for feature in schema.features:
        for row, (old, new) in enumerate(zip(before[feature.name], after[feature.name], strict=True)):
            wrong = _violation(feature, old, new)
            if wrong:
                found.append(f"row {row}, {feature.name}: {old!r} -> {new!r}: {wrong}")
    return found


def _violation(feature: Feature, old: object, new: object) -> str:
    same = old == new or (pd.isna(old) and pd.isna(new))
    if same:
        return ""
    if feature.action == "immutable":
        return "immutable"
    if pd.isna(new):
        return "became missing"
    if not feature.is_numeric:
        if new not in feature.categories:
            return "no category"
        rank = feature.categories.index
        up = not pd.isna(old) and feature.kind == "ordinal" and rank(new) > rank(old)
        down = not pd.isna(old) and feature.kind == "ordinal" and rank(new) < rank(old)
    else:
        if feature.lower is not None and not feature.lower <= new <= feature.upper:
            return "out of range"
        step = feature.step or (1 if feature.kind == "integer" else None)
        if step is not None and abs(new / step - round(new / step)) > 1e-9:
            return "off the grid"
        if feature.kind == "continuous" and feature.step is None and feature.display_step == "auto":
            shown = 10.0 ** (np.floor(np.log10(feature.upper - feature.lower)) - 2)
            if abs(new / shown - round(new / shown)) > 1e-6:
                return "more than three digits"
        up, down = (not pd.isna(old)) and new > old, (not pd.isna(old)) and new < old
    if pd.isna(old) and feature.action != "free":
        return "a missing value of a one-way feature was filled"
    if feature.action == "increase_only" and down:
        return "fell"
    if feature.action == "decrease_only" and up:
        return "rose"
    return ""
