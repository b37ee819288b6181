"""The same description for pipelines that validate with pandera."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from recourse_tables import SCHEMA, applicants
from veritracer.schema import Feature, Schema

pandera = pytest.importorskip("pandera.pandas", reason="the extra pandera is not installed")
errors = pytest.importorskip("pandera.errors", reason="the extra pandera is not installed")

# pandera imports Spark where it is installed, and that speaks of pandas.
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def test_a_table_of_the_schema_is_valid() -> None:
    frame, y = applicants(50)
    checked = SCHEMA.to_pandera()
    assert checked.validate(frame).equals(frame)
    checked.validate(frame.assign(approved=y))


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("age", 17),
        ("age", 20.5),
        ("age", None),
        ("income", "much"),
        ("job", "astronaut"),
        ("sex", None),
        ("approved", "maybe"),
    ],
)
def test_what_the_schema_does_not_know_is_refused(column: str, cell: Any) -> None:
    frame, y = applicants(5)
    frame = frame.assign(approved=y).astype({column: object})
    frame.loc[2, column] = cell
    with pytest.raises(errors.SchemaError, match=column):
        SCHEMA.to_pandera().validate(frame)


def test_columns_are_all_and_only_those_of_the_schema() -> None:
    frame, _ = applicants(5)
    for other in (frame.drop(columns="age"), frame.assign(more=1)):
        with pytest.raises((errors.SchemaError, errors.SchemaErrors), match=r"age|more"):
            SCHEMA.to_pandera().validate(other)


def test_missing_codes_are_legal() -> None:
    codes = Schema(
        [Feature("score", "continuous", lower=0, upper=1, missing="impute", missing_codes=(-9, "none"))]
    )
    codes.to_pandera().validate(pd.DataFrame({"score": [0.5, -9, "none", np.nan]}))
    with pytest.raises(errors.SchemaError, match="a number from 0 to 1"):
        codes.to_pandera().validate(pd.DataFrame({"score": [0.5, -8]}))
