"""The Open University's students."""

from __future__ import annotations

import pandas as pd

from veritracer.datasets.parts import Parts, actions, plain_features
from veritracer.schema import Schema
from veritracer.schema.feature import Feature

AUTHORS_TRAINING_ROWS = 26074

_ORDERED = {
    "highest_education": (
        "No Formal quals",
        "Lower Than A Level",
        "A Level or Equivalent",
        "HE Qualification",
        "Post Graduate Qualification",
    ),
    "imd_band": ("0-10%", "10-20", *(f"{low}-{low + 10}%" for low in range(20, 100, 10))),
    "age_band": ("0-35", "35-55", "55<="),
    "studied_credits": ("<60", "60-89", "90-119", "120-239", ">=240"),
}
_BINARY = {"gender": ("M", "F"), "disability": ("N", "Y")}
_UNORDERED = ("code_module", "region")
_ACTIONS = actions(
    {
        "immutable": [
            *("gender", "age_band", "disability", "region", "imd_band", "num_of_prev_attempts", "code_module")
        ],
        "increase_only": ["highest_education"],
    }
)
_TOPS = {"weight": 200.0, "weighted_score": 100.0}
_NOTES = {
    "imd_band": "deprivation, low is more deprived; 1,111 rows without it were put into 0-10% upstream",
    "highest_education": "only grows",
    "weight": "sum of the weights of the assessments handed in",
    "weighted_score": "weighted mean mark",
}
_TEXT = (
    "One row for each student and presentation; clicks and scores are totals to the end of the course, so "
    "this explains an outcome rather than predicts it early."
)


def oula(raw: pd.DataFrame, paper: bool) -> Parts:
    """The 32,593 students; the paper's variant has 23 continuous and 8 categorical features."""
    X, y = raw.drop(columns="final_result"), raw["final_result"]
    categorical = (*_ORDERED, *_BINARY, *_UNORDERED)
    features = plain_features(X, categorical) if paper else [_feature(X[name]) for name in X.columns]
    return Parts(X, y, Schema(features, "final_result", "Pass/Distinction", "Fail/Withdrawn"), _TEXT)


def _feature(column: pd.Series[str]) -> Feature:
    name = str(column.name)
    action, note = _ACTIONS.get(name, "free"), _NOTES.get(name, "")
    if name in _ORDERED:
        return Feature(name, "ordinal", categories=_ORDERED[name], action=action, note=note)
    if name in _BINARY:
        return Feature(name, "binary", categories=_BINARY[name], action=action, note=note)
    if name in _UNORDERED:
        return Feature(name, "categorical", categories=sorted(column.unique()), action=action, note=note)
    if name in _TOPS:
        return Feature(name, "continuous", lower=0.0, upper=_TOPS[name], action=action, note=note)
    return Feature(name, "integer", lower=0.0, action=action, note=note)
