"""What is written of a promise is read again as it was: rows of every kind of feature, and regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import recourse
from raw_cases import explained, narrow, person

import veritracer as vt
from edited_results import edited
from veritracer.encoding.exact import widened
from veritracer.ledger.promises import certified_region_of, promised_region, rebuilt
from veritracer.ledger.records import checked_json, from_json, raw_rows, table_of, to_json

pytestmark = pytest.mark.filterwarnings("ignore::veritracer.errors.DataWarning")  # values beyond the range

KINDS = {
    "integer": vt.Feature("a", "integer", missing="impute"),
    "continuous": vt.Feature("b", "continuous", missing="impute"),
    "narrow": vt.Feature("c", "continuous", missing="impute"),
    "stepped": vt.Feature("d", "continuous", step=0.05, missing="impute"),
    "coded": vt.Feature("e", "integer", missing="impute", missing_codes=[-9]),
    "binary": vt.Feature("f", "binary", categories=[False, True]),
    "categorical": vt.Feature(
        "g", "categorical", categories=["ja", "nein", "groß", '"quoted"'], missing="category"
    ),
    "ordinal": vt.Feature("h", "ordinal", categories=["low", "mid", "high"]),
    "levels": vt.Feature("i", "ordinal", categories=[1, 2, 3]),
}
SCHEMA = vt.Schema(list(KINDS.values()), "approved", "yes", "no")
TRAINING = pd.DataFrame(
    {
        "a": [-5, 10, 99],
        "b": [-1e6, 0.1, 1e6],
        "c": np.array([0.0, 0.1, 1.0], dtype="float32"),
        "d": [0.0, 0.35, 1.0],
        "e": [0, 7, 50],
        "f": [False, True, False],
        "g": ["ja", "nein", "groß"],
        "h": ["low", "mid", "high"],
        "i": [1, 2, 3],
    }
)

number = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
ROWS = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-(10**15), 10**15),
        "b": st.none() | number,
        "c": st.none() | st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
        "d": st.none() | st.integers(0, 20).map(lambda k: k * 5 / 100),
        "e": st.none() | st.integers(0, 60) | st.just(-9),
        "f": st.booleans(),
        "g": st.none() | st.sampled_from(["ja", "nein", "groß", '"quoted"']),
        "h": st.sampled_from(["low", "mid", "high"]),
        "i": st.sampled_from([1, 2, 3]),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4), st.booleans())
def test_rows_of_every_kind_are_read_as_they_were_written(rows: list[dict[str, Any]], narrow_: bool) -> None:
    encoding = vt.Encoding.fit(SCHEMA, TRAINING)
    frame = pd.DataFrame(rows, columns=SCHEMA.names)
    if narrow_:
        frame["c"] = frame["c"].astype("float32")
    x = encoding.encode(frame, out_of_range="ignore")
    kept = raw_rows(widened(encoding, frame))
    texts = [to_json(row) for row in kept]
    assert [from_json(text) for text in texts] == [checked_json(text) for text in texts] == kept
    again = encoding.encode(table_of([from_json(t) for t in texts], SCHEMA.names), out_of_range="ignore")
    assert torch.equal(again, x)


def assert_contained(found: vt.Counterfactuals) -> None:
    """The box that is rebuilt from raw ends holds the certified one, and is hardly any larger."""
    encoding, region = found.encoding, promised_region(found)
    lower, upper, unknown = rebuilt(encoding, encoding, region, found.x_cf)
    proved = torch.from_numpy(found.certified | (found.radius > 0))
    box = certified_region_of(found).around(found.x_cf, found.x)
    low, high = (box, box) if isinstance(box, torch.Tensor) else (box.lower, box.upper)
    assert not unknown.any()
    assert bool((lower[proved] <= low[proved]).all())
    assert bool((upper[proved] >= high[proved]).all())
    assert torch.equal(lower[~proved], found.x_cf[~proved])
    assert float((low - lower)[proved].clamp(min=0).sum() + (upper - high)[proved].clamp(min=0).sum()) < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    age=st.integers(20, 60),
    debt=st.integers(0, 1_000),
    rating=st.floats(0.0, 1.0),
    overshoot=st.floats(0.0, 0.3),
    years=st.floats(0.0, 30.0),
    owed=st.floats(0.0, 700.0),
)
def test_a_rebuilt_region_contains_the_certified_one(
    age: int, debt: int, rating: float, overshoot: float, years: float, owed: float
) -> None:
    drift = {"age": years, "debt": owed, "rating": 0.01 * years, "education": 1.0}
    found = explained(person(age=age, debt=debt, rating=rating, savings=0), overshoot=overshoot)
    if found.status[0] != "none":
        promised = edited(found, drift=drift, certified=np.array([True]), radius=np.array([0.1]))
        assert_contained(promised)


@pytest.mark.parametrize("overshoot", [0.001, 0.05, 0.3])
def test_the_regions_of_many_counterfactuals_contain_the_certified_ones(overshoot: float) -> None:
    assert_contained(recourse(overshoot=overshoot))


@settings(max_examples=60, deadline=None)
@given(
    shown=st.floats(-40.0, 140.0),
    down=st.floats(0.0, 60.0),
    up=st.floats(0.0, 60.0),
    share=st.floats(0.0, 1.0),
)
def test_every_raw_value_of_a_region_is_encoded_within_it(
    shown: float, down: float, up: float, share: float
) -> None:
    """Also where the shown value lies outside of what the encoding was fitted to, and is clipped."""
    _, encoding = narrow()
    people = pd.concat([person(rating=0.5, age=round(shown))] * 2, ignore_index=True)
    x_cf = encoding.encode(people.iloc[:1], out_of_range="ignore")
    ends = np.full((1, 2, 5), np.nan)
    ends[0, :, 0] = round(shown) - down, round(shown) + up
    lower, upper, unknown = rebuilt(encoding, encoding, ends, x_cf)
    inside = people.iloc[1:].assign(age=float(np.round(ends[0, 0, 0] + share * (down + up))))
    value = float(inside["age"].iloc[0])
    if ends[0, 0, 0] <= value <= ends[0, 1, 0]:
        x = encoding.encode(inside, out_of_range="ignore")
        assert bool(((lower <= x) & (x <= upper)).all())
    assert not unknown.any()
