"""Random legal tables: a schema, and a frame in which every cell is legal by construction."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from veritracer.schema import Feature, Schema

CODES = (-1e12 - 7, -1e12 - 8)  # far below every number that is drawn


@dataclass(frozen=True)
class Table:
    schema: Schema
    frame: pd.DataFrame


@st.composite
def tables(draw: st.DrawFn, missing: bool = True, rows: int | None = None) -> Table:
    count = rows or draw(st.integers(2, 7))
    width = draw(st.integers(1, 5))
    columns = {}
    features = []
    for i in range(width):
        feature, column = draw(_column(f"c{i}", count, missing))
        features.append(feature)
        columns[feature.name] = column
    return Table(Schema(features), pd.DataFrame(columns))


@st.composite
def _column(draw: st.DrawFn, name: str, rows: int, missing: bool) -> tuple[Feature, pd.Series]:
    make = draw(st.sampled_from([_whole, _stepped, _decimal, _levels, _levels]))
    described, values, dtypes = draw(make(rows))
    one_way = ["increase_only", "decrease_only"] if described["kind"] != "categorical" else []
    action = draw(st.sampled_from(["free", "free", "immutable", *one_way]))
    policy = draw(st.sampled_from(["refuse", "impute", "category"])) if missing else "refuse"
    codes: tuple[Any, ...] = ()
    if policy != "refuse":
        numeric = described["kind"] in ("continuous", "integer")
        codes = draw(
            st.sampled_from([(), CODES[:1], CODES] if numeric else [(), ("gone",), ("gone", "never")])
        )
        holes = draw(st.lists(st.sampled_from([False, False, True]), min_size=rows, max_size=rows))
        holes[0] = False  # a column of nothing but holes is refused, and tested elsewhere
        markers = draw(st.lists(st.sampled_from([None, *codes]), min_size=rows, max_size=rows))
        values = [m if hole else v for v, m, hole in zip(values, markers, holes, strict=True)]
    feature = Feature(name, **described, missing=policy, missing_codes=codes, action=action)
    fitting = [dtype for dtype in [*dtypes, "object"] if _fits(values, dtype)]
    return feature, pd.Series(values, dtype=draw(st.sampled_from(fitting)))


def _fits(values: list[Any], dtype: str) -> bool:
    try:
        column = pd.Series(values, dtype=dtype)
    except (TypeError, ValueError, OverflowError):
        return False
    pairs = zip(values, column.astype(object), strict=True)
    return all(
        pd.isna(b) if a is None else (type(a) is type(b) or not isinstance(b, str)) and a == b
        for a, b in pairs
    )


@st.composite
def _whole(draw: st.DrawFn, rows: int) -> tuple[dict[str, Any], list[Any], list[str]]:
    step = draw(st.sampled_from([None, 1, 7, 100]))
    low = draw(st.integers(-(10**9), 10**9)) if step is None else draw(st.integers(-(10**6), 10**6)) * step
    span = draw(st.sampled_from([3, 50, 10**4, 10**9]))
    ks = draw(st.lists(st.integers(0, span), min_size=rows, max_size=rows))
    ends = draw(st.sampled_from([{}, {"lower": float(low)}, {"upper": float(low + span * (step or 1))}]))
    described = {"kind": "integer", "step": None if step is None else float(step), **ends}
    return (
        described,
        [low + k * (step or 1) for k in ks],
        ["int64", "int32", "Int64", "float64", "Float64", "int64[pyarrow]"],
    )


@st.composite
def _stepped(draw: st.DrawFn, rows: int) -> tuple[dict[str, Any], list[Any], list[str]]:
    step = Decimal(draw(st.sampled_from(["0.05", "0.25", "0.1", "0.001", "2.5", "7"])))
    anchor = Decimal(draw(st.integers(-(10**5), 10**5))) / 1000
    declared = draw(st.booleans())
    start = anchor if declared else step * draw(st.integers(-1000, 1000))
    ks = draw(st.lists(st.integers(0, 10**5), min_size=rows, max_size=rows))
    described: dict[str, Any] = {"kind": "continuous", "step": float(step)}
    if declared:
        described["lower"] = float(anchor)
        described["upper"] = draw(st.sampled_from([None, float(anchor + step * 10**5)]))
    return described, [float(start + step * k) for k in ks], ["float64", "Float64"]


@st.composite
def _decimal(draw: st.DrawFn, rows: int) -> tuple[dict[str, Any], list[Any], list[str]]:
    size = draw(st.sampled_from([10, 10**3, 10**7, 10**11]))
    unit = draw(st.integers(0, 10))  # below 1e-11 the last bit is not promised
    ms = draw(st.lists(st.integers(-size, size), min_size=rows, max_size=rows))
    values = [float(Decimal(m).scaleb(-unit)) for m in ms]
    ends = draw(st.sampled_from([{}, {"lower": float(Decimal(-size).scaleb(-unit))}]))
    return {"kind": "continuous", **ends}, values, ["float64", "Float64"]


@st.composite
def _levels(draw: st.DrawFn, rows: int) -> tuple[dict[str, Any], list[Any], list[str]]:
    kind = draw(st.sampled_from(["ordinal", "categorical", "binary"]))
    pool, dtypes = draw(
        st.sampled_from(
            [
                (["car", "house", "", "München", "a=b?c", "1"], ["str", "string", "category"]),
                ([3, -2, 0, 7, 10**9], ["int64", "Int64", "float64", "category"]),
                ([0.5, 2.25, -1.0], ["float64", "category"]),
                ([True, False], ["bool", "boolean"]),
                (["1", 1, 2.5, False], []),
            ]
        )
    )
    size = 2 if kind == "binary" else draw(st.integers(1, len(pool)))
    categories = draw(st.permutations(pool))[:size]
    values = draw(st.lists(st.sampled_from(categories), min_size=rows, max_size=rows))
    return {"kind": kind, "categories": tuple(categories)}, values, dtypes


def as_numbers(feature: Feature, column: pd.Series) -> np.ndarray:
    """The cells as floats for an independent check: numbers, positions of categories, NaN where missing."""
    out = np.full(len(column), np.nan)
    for i, cell in enumerate(column.astype(object)):
        if pd.isna(cell) or cell in feature.missing_codes:
            continue
        out[i] = float(cell) if feature.is_numeric else feature.categories.index(cell)
    return out
