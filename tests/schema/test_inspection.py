"""Findings about the direction of what is good in the world."""

from __future__ import annotations

import numpy as np
import pandas as pd

from veritracer.schema.inspection import Topic, inspect_table


def table() -> pd.DataFrame:
    """People whose income helps, and whose savings seem to harm."""
    rng = np.random.default_rng(0)
    income, savings = rng.integers(0, 900, 400), rng.integers(0, 900, 400)
    ok = np.where(income - savings + rng.normal(0, 200, 400) > 0, "approved", "denied")
    others = {"missed_payments": rng.integers(0, 4, 400), "debt_to_income": rng.random(400)}
    return pd.DataFrame({"income": income, "savings": savings, **others, "decision": ok})


def test_better_is_proposed_for_well_known_names_and_contradictions_are_found() -> None:
    found = inspect_table(table(), "decision")
    seen = {f.column: str(f) for f in found.findings if f.topic is Topic.BETTER}
    assert set(seen) == {"income", "savings", "missed_payments"}
    assert "--better income=higher" in seen["income"]
    assert "--better missed_payments=lower" in seen["missed_payments"]
    assert "rank correlation -0." in seen["savings"]


def test_what_is_stated_is_compared_with_the_data_too() -> None:
    better = {"income": "lower", "missed_payments": "lower"}
    found = inspect_table(table().drop(columns="savings"), "decision", better=better)
    (finding,) = [f for f in found.findings if f.topic is Topic.BETTER]
    assert finding.column == "income"
    assert "higher values" in finding.seen


def test_without_a_favourable_label_better_is_only_proposed() -> None:
    frame = table().replace({"approved": "a", "denied": "b"})
    found = inspect_table(frame, "decision")
    seen = [f.seen for f in found.findings if f.topic is Topic.BETTER]
    assert len(seen) == 3
    assert all("as its name suggests" in each for each in seen)
