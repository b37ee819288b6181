"""An independent judge of what people may be told: raw values, cell by cell, nothing of the encoding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from veritracer.schema import Feature, Schema

Ranges = Mapping[str, tuple[float, float]]


def ranges_of(schema: Schema, training: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """The declared range of each number, and where none is declared, that of the training rows."""
    ends = {}
    for feature in schema.features:
        if feature.is_numeric:
            column = pd.to_numeric(training[feature.name], errors="coerce")
            column = column[
                ~column.isin([code for code in feature.missing_codes if not isinstance(code, str)])
            ]
            low = column.min() if feature.lower is None else feature.lower
            high = column.max() if feature.upper is None else feature.upper
            ends[feature.name] = (float(low), float(high))
    return ends


def violations(schema: Schema, ranges: Ranges, before: pd.DataFrame, after: pd.DataFrame) -> list[str]:
    """Every way in which ``after`` breaks what the schema says a person could do."""
    found = []
    for feature in schema.features:
        pairs = zip(before[feature.name], after[feature.name], strict=True)
        for row, (old, new) in enumerate(pairs):
            wrong = "" if _same(old, new) else _violation(feature, ranges, old, new)
            if wrong:
                found.append(f"row {row}, {feature.name}: {old!r} -> {new!r}: {wrong}")
    return found


def _same(old: Any, new: Any) -> bool:
    return bool(pd.isna(old) and pd.isna(new)) or (not pd.isna(old) and not pd.isna(new) and old == new)


def _violation(feature: Feature, ranges: Ranges, old: Any, new: Any) -> str:
    """What is wrong with a cell that changed; empty where nothing is."""
    unknown = pd.isna(old) or old in feature.missing_codes
    if feature.action == "immutable":
        return "immutable"
    if pd.isna(new) or new in feature.missing_codes:
        return "became missing"
    if unknown and feature.action != "free":
        return "a missing value of a one-way feature was filled"
    wrong = (
        _off_grid(feature, ranges, new) if feature.is_numeric else "" if new in feature.categories else "new"
    )
    if wrong or unknown:
        return wrong
    rank = float if feature.is_numeric else feature.categories.index
    if feature.action == "increase_only" and rank(new) < rank(old):
        return "fell"
    return "rose" if feature.action == "decrease_only" and rank(new) > rank(old) else ""


def _off_grid(feature: Feature, ranges: Ranges, new: float) -> str:
    low, high = ranges[feature.name]
    if not low <= new <= high:
        return "out of range"
    step = feature.step or (1.0 if feature.kind == "integer" else None)
    anchor = (feature.lower or 0.0) if step is not None else 0.0
    if step is None and feature.display_step == "exact":
        return ""
    if step is None:
        automatic = 10.0 ** (math.floor(math.log10(high - low)) - 2)
        step = automatic if feature.display_step == "auto" else float(feature.display_step)
    steps = (new - anchor) / step
    return "" if abs(steps - round(steps)) < 1e-6 else f"not a multiple of {step:g}"
