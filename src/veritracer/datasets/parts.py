"""What the builders of the datasets share: the value that they return, and the paper's plain description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from veritracer.schema import Schema
from veritracer.schema.feature import Action, Feature


class Parts(NamedTuple):
    """The table, its labels, its schema, what is worth knowing, and the groups of the paper's shift."""

    X: pd.DataFrame
    y: pd.Series[Any]
    schema: Schema
    description: str
    groups: pd.Series[Any] | None = None


def plain_features(X: pd.DataFrame, categorical: Sequence[str] = ()) -> list[Feature]:
    """The paper's view: categorical columns with the categories that occur, every other one continuous."""
    return [
        Feature(name, "categorical", categories=sorted(X[name].unique().tolist()))
        if name in categorical
        else Feature(name, "continuous", display_step="exact")
        for name in X.columns
    ]


def actions(groups: Mapping[Action, Sequence[str]]) -> dict[str, Action]:
    """For each column that is listed in a group the action of that group."""
    return {name: action for action, names in groups.items() for name in names}
