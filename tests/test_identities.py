"""One person has one id, whether it comes as a number or as text, and from whatever table."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veritracer.errors import DataError
from veritracer.identities import identity_in_csv, identity_text, identity_texts

WHOLE: dict[str, Any] = {
    "integers": [1000001, 1000002],
    "floats": [1000001.0, 1000002.0],
    "NumPy scalars": [np.float32(1000001), np.int64(1000002)],
    "decimals": [Decimal("1000001.00"), Decimal(1000002)],
    "text": ["1000001", "1000002"],
    "an array": np.array([1000001.0, 1000002.0], dtype=np.float32),
    "a Series": pd.Series([1000001.0, 1000002.0], dtype="float32"),
    "a nullable Series": pd.Series([1000001, 1000002], dtype="Int64"),
    "an Arrow Series": pd.Series([1000001, 1000002], dtype="double[pyarrow]"),
    "a categorical Series": pd.Series([1000001.0, 1000002.0], dtype="category"),
    "objects": pd.Series([1000001.0, "1000002"], dtype=object),
    "an Arrow array": pa.array([1000001.0, 1000002.0], pa.float32()),
    "an Arrow column": pa.chunked_array([[1000001], [1000002]]),
    "Arrow decimals": pa.array([Decimal("1000001.00"), Decimal("1000002.00")]),
}


@pytest.mark.parametrize("ids", WHOLE.values(), ids=WHOLE)
def test_whole_numbers_are_written_as_integers(ids: Any) -> None:
    assert identity_texts(ids) == ["1000001", "1000002"]


@given(st.text())
def test_text_stays_as_it_is(text: str) -> None:
    assert identity_text(text) == text
    assert identity_texts(pd.Series([text], dtype=object)) == [text]


@pytest.mark.parametrize("text", ["007", "1.10", "1.0", " 1", "1e3", "A-17"])
def test_numbers_in_text_are_text(text: str) -> None:
    assert identity_texts([text]) == [text]
    assert identity_texts(pa.array([text])) == [text]


@pytest.mark.parametrize(
    ("cell", "identity"),
    [("1000001.0", "1000001"), ("-3.0", "-3"), ("0.0", "0")]
    + [(same, same) for same in ("007", "007.0", "1.10", "1.00", "1.5", "A.0", "", None)],
)
def test_a_csv_file_may_write_whole_numbers_as_floats(cell: str | None, identity: str | None) -> None:
    assert identity_in_csv(cell) == identity


def test_missing_ids_are_empty() -> None:
    assert identity_texts([None, np.nan, pd.NA, pd.NaT]) == [""] * 4
    assert identity_texts(pa.array([None, 3])) == ["", "3"]


FRACTIONS: list[Any] = [
    [1.5],
    [np.float32(0.25)],
    [Decimal("1.5")],
    pd.Series([3.5]),
    pa.array([1.5]),
    [float("inf")],
]


@pytest.mark.parametrize("ids", FRACTIONS)
def test_fractions_are_no_ids(ids: Any) -> None:
    with pytest.raises(DataError, match=r"expected ids that are text or whole numbers, got .* — read the"):
        identity_texts(ids)


LARGE = 2**24 + 2
TOO_LARGE: dict[str, Any] = {
    "float32 array": np.array([LARGE], dtype=np.float32),
    "float32 Series": pd.Series([LARGE], dtype="float32"),
    "float32 nullable": pd.Series([LARGE], dtype="Float32"),
    "float32 Arrow": pa.array([float(LARGE)], pa.float32()),
    "float32 scalar": [np.float32(LARGE)],
    "float32 categories": pd.Series(pd.Categorical(np.array([LARGE], dtype=np.float32))),
    "float64": [2.0**53],
}


@pytest.mark.parametrize("ids", TOO_LARGE.values(), ids=TOO_LARGE)
def test_floats_that_stand_for_several_whole_numbers_are_no_ids(ids: Any) -> None:
    with pytest.raises(DataError, match=r"expected ids below [\d,]+ in a column of float(32|64), got "):
        identity_texts(ids)
    assert identity_texts([LARGE, float(LARGE)]) == ["16777218"] * 2
