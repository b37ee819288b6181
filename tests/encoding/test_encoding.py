"""A table goes in and comes out unharmed, and a projected row is one that a person could have."""

from __future__ import annotations

import json
import warnings
from decimal import Decimal
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from table_strategies import Table, as_numbers, tables
from veritracer.encoding import Encoding, cells
from veritracer.encoding.exact import Texts, widened
from veritracer.encoding.scales import display_step
from veritracer.errors import DataError, DataWarning, SchemaError
from veritracer.schema import Feature, Schema

many = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


def fitted(table: Table) -> Encoding:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # constant columns are legal here
        return Encoding.fit(table.schema, table.frame)


def same_cell(a: object, b: object) -> bool:
    return (pd.isna(a) and pd.isna(b)) or (a == b and isinstance(a, str) == isinstance(b, str))


def same_cells(a: pd.Series, b: pd.Series) -> bool:
    return all(same_cell(p, q) for p, q in zip(a.astype(object), b.astype(object), strict=True))


def proposals(encoding: Encoding, rows: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Rows that nobody has: partly out of range, partly exactly on the ends, partly halves and NaN."""
    g = torch.Generator().manual_seed(seed)
    c = torch.rand(rows, encoding.dim, generator=g, dtype=dtype) * 1.6 - 0.3
    kind = torch.randint(0, 12, c.shape, generator=g)
    c[kind == 0], c[kind == 1], c[kind == 2], c[kind == 3] = 0.0, 1.0, 0.5, torch.nan
    return c


# ---------------------------------------------------------------- there and back


@many
@given(tables())
def test_every_legal_row_comes_back_exactly(table: Table) -> None:
    encoding = fitted(table)
    encoded = encoding.encode(table.frame, out_of_range="refuse")
    assert encoded.shape == (len(table.frame), encoding.dim)
    assert bool(((encoded >= 0) & (encoded <= 1)).all())
    back = encoding.decode(encoded)
    for name in table.schema.names:
        assert same_cells(back[name], table.frame[name]), name
        assert repr(back[name].dtype) == repr(table.frame[name].dtype), name


@many
@given(tables())
def test_one_category_and_one_marker(table: Table) -> None:
    encoding = fitted(table)
    encoded = encoding.encode(table.frame)
    for block in encoding.blocks:
        if block.group is not None:
            assert bool((encoded[:, block.group].sum(1) == 1).all())
        if block.group is None or block.group.stop != block.stop:
            assert bool((encoded[:, block.flags].sum(1) <= 1).all())
    assert len(encoding.columns) == encoding.dim


@many
@given(tables(), st.integers(0, 2**31))
def test_what_is_shown_is_what_was_projected(table: Table, seed: int) -> None:
    encoding = fitted(table)
    x = encoding.encode(table.frame)
    p = encoding.project(proposals(encoding, len(x), seed), x)
    again = encoding.encode(encoding.decode(p), out_of_range="refuse")
    touched = encoding.changed(p, x)
    same = ~encoding.changed(again, p)
    assert bool((same | ~touched).all())  # bitwise, wherever something changed


@many
@given(tables(), st.integers(0, 2**31))
def test_unchanged_cells_are_the_originals_own(table: Table, seed: int) -> None:
    encoding = fitted(table)
    frame = table.frame.set_axis([f"r{i}" for i in range(len(table.frame))])
    x = encoding.encode(frame)
    p = encoding.project(proposals(encoding, len(x), seed), x)
    shown = encoding.decode(p, original=frame)
    touched = encoding.changed(p, x).numpy()
    assert list(shown.index) == list(frame.index)
    for j, name in enumerate(table.schema.names):
        kept = ~touched[:, j]
        assert same_cells(shown[name][kept], frame[name][kept])
        assert same_cells(shown[name].reset_index(drop=True), encoding.decode(p)[name]) or kept.any()
    pd.testing.assert_frame_equal(encoding.decode(x, original=frame), frame)


def test_clipped_missing_and_odd_cells_stay_verbatim() -> None:
    schema = Schema(
        [
            Feature("a", "integer", lower=0, upper=10, missing="impute", missing_codes=[-9]),
            Feature("b", "continuous"),
        ]
    )
    train = pd.DataFrame({"a": [0, 5, 10], "b": [0.0, 0.5, 1.0]})
    encoding = Encoding.fit(schema, train)
    frame = pd.DataFrame({"b": [7.25, 1 / 3, 0.1], "a": [10**17 + 1, -9, 3]}, index=[5, 5, 9])
    with pytest.raises(DataError, match="numbers from 0 to 10 in the column 'a', got 1000"):
        encoding.encode(frame)
    with pytest.warns(DataWarning, match="got 1 in 'b' .0 to 1."):
        encoding.encode(frame.assign(a=3))
    x = encoding.encode(frame, out_of_range="ignore")
    pd.testing.assert_frame_equal(encoding.decode(x, original=frame), frame)
    moved = x.clone()
    moved[2, 0] = 0.4
    moved[1, encoding.blocks[1].start] = 0.75
    shown = encoding.decode(moved, original=frame)
    assert shown["a"].tolist() == [10**17 + 1, -9, 4]
    assert shown["b"].tolist() == [7.25, 0.75, 0.1]
    assert list(shown.columns) == ["b", "a"]


def test_a_whole_column_turns_float_only_when_a_value_needs_it() -> None:
    table = pd.DataFrame({"a": [1, 2, 2**60]})
    encoding = Encoding.fit(Schema([Feature("a", "continuous", lower=0, upper=10)]), table)
    x = encoding.encode(table, out_of_range="ignore")
    moved = x.clone()
    moved[0, 0] = 0.7
    assert encoding.decode(moved, original=table)["a"].dtype == np.int64
    moved[0, 0] = 0.75
    assert encoding.decode(moved, original=table)["a"].tolist() == [7.5, 2, 2**60]


def test_float32_columns_keep_their_dtype() -> None:
    table = pd.DataFrame({"a": np.array([0.1, 0.15, 0.7], dtype=np.float32)})
    encoding = Encoding.fit(Schema([Feature("a", "continuous", lower=0.1, upper=0.7, step=0.05)]), table)
    back = encoding.decode(encoding.encode(table, out_of_range="refuse"))
    pd.testing.assert_frame_equal(back, table)


@many
@given(st.lists(st.floats(width=32, allow_nan=True), min_size=1, max_size=20))
def test_narrow_floats_count_as_the_decimals_that_people_read(values: list[float]) -> None:
    narrow = np.array(values, dtype=np.float32)
    np.testing.assert_array_equal(cells.shortest(narrow), [float(str(value)) for value in narrow])
    with np.errstate(over="ignore"):
        half = narrow.astype(np.float16)
    np.testing.assert_array_equal(cells.shortest(half), [float(str(value)) for value in half])


def test_every_float16_counts_as_its_decimal() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)]
    np.testing.assert_array_equal(cells.shortest(every), [float(str(value)) for value in every])


def test_every_power_of_two_and_ten_in_float32() -> None:
    powers = [2.0**k for k in range(-149, 128)] + [10.0**k for k in range(-44, 39)]
    narrow = np.array([sign * p * f for p in powers for sign in (-1, 1) for f in (1, 1.5, 0.7)], np.float32)
    np.testing.assert_array_equal(cells.shortest(narrow), [float(str(value)) for value in narrow])


@pytest.mark.parametrize("dtype", ["float32", "Float32", "float[pyarrow]", "float16"])
def test_a_narrow_column_is_encoded_as_the_numbers_that_are_shown(dtype: str) -> None:
    wide = pd.DataFrame({"a": [0.1, 0.15, 0.7, 2.25], "b": [0.1, 0.2, 0.3, 1.1]})
    features = [Feature("a", "continuous"), Feature("b", "continuous", step=0.1, lower=0.0)]
    encoding = Encoding.fit(Schema(features), wide)
    narrow = wide.astype(dtype)
    assert torch.equal(encoding.encode(narrow, out_of_range="refuse"), encoding.encode(wide))
    off = wide.assign(b=np.nextafter(wide["b"].to_numpy(np.float32), np.float32(9)).astype(np.float32))
    assert torch.equal(encoding.encode(widened(encoding, off)), encoding.encode(wide))
    assert widened(encoding, off)["b"].tolist() == [0.1, 0.2, 0.3, 1.1]


# ---------------------------------------------------------------- cells as text


def test_a_text_stands_for_one_value() -> None:
    mixed = Texts("m", ["1", 1, "x", True])
    assert mixed.value("x") == "x"
    assert mixed.value("true") is True
    assert mixed.value("NA") is None
    with pytest.raises(DataError, match="for both"):
        mixed.value("1")
    numbers = Texts("n", ["unknown", False], numeric=True)
    assert [numbers.value(t) for t in (" 1e3 ", "unknown", "FALSE", "1_000", "")] == [
        1000.0,
        "unknown",
        False,
        "1_000",
        None,
    ]
    assert Texts("n", ["unknown"], numeric=True, empty=()).value("NA") == "NA"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_among_words_keeps_every_bit(number: float) -> None:
    texts = Texts("n", ["unknown"], numeric=True)
    assert texts.value(texts.text(number)) == number


# ---------------------------------------------------------------- projection


@many
@given(tables(), st.integers(0, 2**31), st.sampled_from([torch.float64, torch.float32]))
def test_projection_is_idempotent_and_keeps_x(table: Table, seed: int, dtype: torch.dtype) -> None:
    encoding = fitted(table)
    x = encoding.encode(table.frame, dtype=dtype)
    assert torch.equal(encoding.project(x, x), x)
    c = proposals(encoding, len(x), seed, dtype)
    p = encoding.project(c, x)
    assert p.dtype == dtype
    assert torch.equal(encoding.project(p, x), p)
    assert torch.equal(encoding.project(c, x), p)


@many
@given(tables(), st.integers(0, 2**31))
def test_projected_rows_are_rows_that_a_person_could_have(table: Table, seed: int) -> None:
    encoding = fitted(table)
    dtype = (torch.float64, torch.float32)[seed % 2]
    x = encoding.encode(table.frame, dtype=dtype)
    shown = encoding.decode(
        encoding.project(proposals(encoding, len(x), seed, dtype), x), original=table.frame
    )
    for feature in table.schema.features:
        before, after = (
            as_numbers(feature, table.frame[feature.name]),
            as_numbers(feature, shown[feature.name]),
        )
        check_cells(feature, before, after)
        for i in np.isnan(after).nonzero()[0]:
            assert same_cell(shown[feature.name].iloc[i], table.frame[feature.name].iloc[i])


def check_cells(feature: Feature, before: np.ndarray, after: np.ndarray) -> None:
    """The independent judge: raw numbers, and nothing of the encoding but the learned range."""
    known = before[~np.isnan(before)]
    assert not (np.isnan(after) & ~np.isnan(before)).any()  # nothing becomes missing
    present = ~np.isnan(after)
    if feature.is_numeric:
        low = known.min() if feature.lower is None else feature.lower
        high = known.max() if feature.upper is None else feature.upper
        assert ((after[present] >= low) & (after[present] <= high)).all()
    if feature.grid_step is not None:
        anchor, step = Decimal(repr(feature.lower or 0.0)), Decimal(repr(feature.grid_step))
        assert all((Decimal(repr(float(v))) - anchor) % step == 0 for v in after[present])
    if feature.action == "immutable":
        np.testing.assert_array_equal(after, before)
    if feature.action in ("increase_only", "decrease_only"):
        sign = 1 if feature.action == "increase_only" else -1
        assert (sign * (after - before)[present] >= 0).all()
        np.testing.assert_array_equal(np.isnan(after), np.isnan(before))


full_floats = st.one_of(
    st.floats(-1e299, 1e299),
    st.floats(-1, 1),
    st.floats(0, 1e-5),
    st.floats(1e9, 1e9 + 1),
    st.floats(1e-270, 1e-250),
)


@many
@given(
    st.lists(full_floats, min_size=2, max_size=6),
    st.sampled_from([None, 1 / 3, 0.7, np.pi, 1e-3]),
    st.sampled_from(["free", "increase_only", "decrease_only"]),
    st.sampled_from([torch.float64, torch.float32]),
    st.integers(0, 2**31),
)
def test_numbers_of_full_precision_and_odd_steps(
    values: list[float], step: float | None, action: Literal["free"], dtype: torch.dtype, seed: int
) -> None:
    if step is not None:
        values = [0.25 + step * (int(min(abs(v), 1e9) * 1000) % 10**6) for v in values]
    frame = pd.DataFrame({"a": values})
    assume(not 0 < frame["a"].abs().max() < 1e-280)  # refused, and tested below
    feature = Feature("a", "continuous", action=action, step=step, lower=0.25 if step else None)
    encoding = fitted(Table(Schema([feature]), frame))
    size = frame["a"].abs().max()
    rounding = 1e-12 * size if step else 0.0  # the caller's own 0.25 + k*step is off by an ulp
    back = encoding.decode(encoding.encode(frame, out_of_range="refuse"))
    np.testing.assert_allclose(
        back["a"], frame["a"], rtol=0, atol=(1e-13 if size > 1e-8 else 1e-11) * size
    )  # 14 digits, 12 of tiny ones
    x = encoding.encode(frame, dtype=dtype)
    p = encoding.project(proposals(encoding, len(x), seed, dtype), x)
    assert torch.equal(encoding.project(p, x), p)
    shown = encoding.decode(p, original=frame)["a"]
    assert shown.between(frame["a"].min() if step is None else 0.25, frame["a"].max() + rounding).all()
    if action != "free":
        sign = 1 if action == "increase_only" else -1
        assert (sign * (shown - frame["a"]) >= -rounding).all()
    if dtype == torch.float64:
        assert torch.equal(encoding.encode(shown.to_frame()), p)


@many
@given(tables(), st.integers(0, 2**31))
def test_projection_goes_to_the_nearest_legal_number(table: Table, seed: int) -> None:
    encoding = fitted(table)
    x = encoding.encode(table.frame)
    c = proposals(encoding, len(x), seed).nan_to_num(0.5)
    p = encoding.project(c, x)
    for block, learned in zip(encoding.blocks, encoding.fitted, strict=True):
        width = learned.high - learned.low
        # Beyond the last readable value a number goes back to it: by a whole display step at most.
        step = block.feature.grid_step or 2 * (display_step(learned.low, learned.high) or 0.0)
        if block.feature.action != "free" or not block.feature.is_numeric or learned.constant or width == 0:
            continue
        stays = (p[:, block.flags] > 0).any(1)
        far = (p[:, block.start] - c[:, block.start].clamp(0, 1)).abs()[~stays]
        assert bool((far <= (0.5 * step / width) + 1e-9).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_snapping_never_crosses_back_over_x(dtype: torch.dtype) -> None:
    features = [
        Feature("up", "integer", lower=0, upper=10, action="increase_only"),
        Feature("down", "integer", lower=0, upper=10, action="decrease_only"),
    ]
    frame = pd.DataFrame({"up": [0, 10], "down": [0, 10]})
    encoding = Encoding.fit(Schema(features), frame)
    off_grid = torch.tensor([[0.34, 0.34]], dtype=dtype)
    for wanted in torch.linspace(-0.2, 1.2, 141):
        p = encoding.project(torch.full((1, 2), float(wanted), dtype=dtype), off_grid)
        assert p[0, 0] >= off_grid[0, 0]
        assert p[0, 1] <= off_grid[0, 1]
    assert torch.equal(encoding.project(off_grid, off_grid), off_grid)


def test_missing_cells_stay_or_get_a_value_and_never_appear() -> None:
    schema = Schema(
        [
            Feature("n", "integer", missing="impute", missing_codes=[-7]),
            Feature("c", "categorical", categories=["a", "b"], missing="category"),
            Feature("o", "integer", missing="impute", action="increase_only"),
        ]
    )
    frame = pd.DataFrame({"n": [0, 10, -7], "c": ["a", "b", None], "o": [1.0, 3.0, np.nan]})
    encoding = Encoding.fit(schema, frame)
    assert encoding.columns == ("n", "n?missing", "n?-7", "c=a", "c=b", "c?missing", "o", "o?missing")
    x = encoding.encode(frame)
    assert x[2].tolist() == [0.5, 0, 1, 0, 0, 1, 0.5, 1]
    everything = torch.ones_like(x)
    everything[:, 3:5] = 0.9
    shown = encoding.decode(encoding.project(everything, x), original=frame)
    assert shown["n"].tolist() == [10, 10, -7]
    assert shown["c"].isna().tolist() == [False, False, True]
    nothing = encoding.project(torch.zeros_like(x), x)
    assert nothing[2].tolist() == [
        0,
        0,
        0,
        0,
        0,
        1,
        0.5,
        1,
    ]  # tie between the categories: the person's own stays
    lean = torch.zeros_like(x)
    lean[:, 4] = 0.1
    assert encoding.decode(encoding.project(lean, x))["c"].tolist() == ["b", "b", "b"]


def test_ties_between_categories_go_to_the_original_then_to_the_first() -> None:
    frame = pd.DataFrame({"c": ["a", "b", "d"]})
    encoding = Encoding.fit(Schema.infer(frame), frame)
    x = encoding.encode(frame)
    tie = torch.tensor([[0.4, 0.4, 0.2]], dtype=torch.float64).expand(3, 3)
    assert encoding.decode(encoding.project(tie, x))["c"].tolist() == ["a", "b", "a"]


# ---------------------------------------------------------------- the relaxed projection


def mixed() -> tuple[Encoding, torch.Tensor]:
    frame = pd.DataFrame(
        {
            "f": [0.0, 1.0, 0.5],
            "up": [0, 4, 2],
            "fix": [1, 2, 3],
            "c": ["a", "b", "d"],
            "m": [1.5, 2.5, np.nan],
        }
    )
    schema = Schema.infer(frame, increase_only=["up"], immutable=["fix"])
    encoding = Encoding.fit(schema, frame)
    return encoding, encoding.encode(frame)


def test_gradients_flow_where_a_column_is_free() -> None:
    encoding, x = mixed()
    c = x.clone().requires_grad_()
    weight = torch.arange(1.0, encoding.dim + 1, dtype=torch.float64)
    (encoding.project(c, x, relax=True) * weight).sum().backward()
    names = list(encoding.columns)
    assert c.grad is not None
    assert bool((c.grad[:, names.index("f")] == 1).all())
    assert bool((c.grad[:, names.index("up")] == 2).all())  # the whole gradient, even at the tie with x
    assert bool((c.grad[:, names.index("fix")] == 0).all())
    assert bool((c.grad[:, encoding.groups[0]] != 0).any())


def test_relaxed_gradients_match_finite_differences() -> None:
    encoding, x = mixed()
    g = torch.Generator().manual_seed(0)
    c = (0.1 + 0.8 * torch.rand(x.shape, generator=g, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: encoding.project(t, x, relax=True), (c,))


@many
@given(tables(), st.integers(0, 2**31))
def test_relaxed_rows_obey_all_but_the_grid(table: Table, seed: int) -> None:
    encoding = fitted(table)
    x = encoding.encode(table.frame)
    assert torch.allclose(encoding.project(x, x, relax=True), x, rtol=0, atol=0)
    c = proposals(encoding, len(x), seed).nan_to_num(0.5)
    p = encoding.project(c, x, relax=True)
    assert bool(((p >= 0) & (p <= 1)).all())
    for block in encoding.blocks:
        if block.group is not None:
            torch.testing.assert_close(p[:, block.group].sum(1), torch.ones(len(x), dtype=torch.float64))
        one_way = {"increase_only": 1, "decrease_only": -1}.get(block.feature.action)
        if one_way is not None:
            assert bool((one_way * (p - x)[:, block.start] >= 0).all())
        if block.feature.action == "immutable":
            assert torch.equal(p[:, block.start : block.stop], x[:, block.start : block.stop])


@pytest.mark.parametrize("relax", [False, True])
def test_projection_works_inside_vmap_and_with_any_leading_shape(relax: bool) -> None:
    encoding, x = mixed()
    c = torch.rand(4, 3, encoding.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = encoding.project(c, x.expand(4, 3, -1), relax=relax)
    mapped = torch.func.vmap(lambda one: encoding.project(one, x, relax=relax))(c)
    rowwise = torch.func.vmap(torch.func.vmap(lambda a, b: encoding.project(a, b, relax=relax)), (0, None))(
        c, x
    )
    single = torch.stack(
        [torch.stack([encoding.project(c[i, j], x[j], relax=relax) for j in range(3)]) for i in range(4)]
    )
    for other in (mapped, rowwise, single, encoding.project(c, x, relax=relax)):
        torch.testing.assert_close(other, whole, rtol=0, atol=1e-15)


@pytest.mark.parametrize("relax", [False, True])
def test_projection_needs_nothing_from_another_device(relax: bool) -> None:
    """On ``meta``, where tensors have no values: a constant left on the CPU would be refused there."""
    encoding, x = mixed()
    there = x.to("meta")
    projected = encoding.project(torch.rand_like(there), there, relax=relax)
    assert (projected.device.type, projected.shape, projected.dtype) == ("meta", x.shape, x.dtype)
    assert encoding.changed(projected, there).shape == (len(x), len(encoding.schema))
    assert encoding.project(x, x, relax=relax).device.type == "cpu"


def test_changed_counts_a_one_hot_group_as_one_feature() -> None:
    encoding, x = mixed()
    other = x.clone()
    other[0, encoding.groups[0]] = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    other[1, 0] -= 0.005
    assert encoding.changed(other, x).tolist() == [
        [False] * 3 + [True, False],
        [True] + [False] * 4,
        [False] * 5,
    ]
    assert encoding.changed(other, x, tol=0.01).sum() == 1
    assert bool(encoding.changed(other.fill_(torch.nan), x).all())


# ---------------------------------------------------------------- identity, JSON


@many
@given(tables())
def test_json_round_trip(table: Table) -> None:
    encoding = fitted(table)
    again = Encoding.from_json(encoding.to_json())
    assert again == encoding
    assert again.digest == encoding.digest
    assert torch.equal(again.encode(table.frame), encoding.encode(table.frame))
    pd.testing.assert_frame_equal(
        again.decode(again.encode(table.frame)), encoding.decode(encoding.encode(table.frame))
    )


def test_digest_changes_with_scale_order_and_categories_only() -> None:
    frame = pd.DataFrame({"a": [1, 5], "c": ["x", "y"], "d": ["p", "q"]})
    schema = Schema([Feature("a", "integer"), Feature("c", "categorical", categories=["x", "y"])])
    base = Encoding.fit(schema, frame[["a", "c"]]).digest
    digests = {base}
    for features in (
        [schema["c"], schema["a"]],
        [schema["a"], Feature("c", "categorical", categories=["y", "x"])],
        [Feature("a", "integer", upper=6), schema["c"]],
        [Feature("a", "integer", missing="impute"), schema["c"]],
    ):
        digests.add(Encoding.fit(Schema(features), frame[["a", "c"]]).digest)
    assert len(digests) == 5
    noted = Schema([schema["a"].replace(action="immutable", note="x"), schema["c"]])
    assert Encoding.fit(noted, frame[["a", "c"]].astype({"a": float})).digest == base


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "veritracer-encoding", "version": 2}'])
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match=r"expected .+, got .+ — "):
        Encoding.from_json(text)


# ---------------------------------------------------------------- bad input

number = Schema([Feature("age", "integer"), Feature("job", "categorical", categories=["cook", "clerk"])])
good = pd.DataFrame({"age": [20, 30, 40], "job": ["cook", "clerk", "cook"]})


@pytest.mark.parametrize(
    ("table", "names"),
    [
        (good.assign(age=[20, np.nan, 40]), ["'age'", "an empty cell in row 1"]),
        (good.assign(age=[20.0, np.inf, 40]), ["'age'", "inf in row 1"]),
        (good.assign(age=["20", "x", "40"]), ["'age'", "'20' in row 0"]),
        (good.assign(age=[20, "x", 40]), ["'age'", "'x' in row 1"]),
        (good.assign(age=[20, 30.5, 40]), ["'age'", "30.5 in row 1", "whole numbers"]),
        (good.assign(age=pd.to_datetime(["2020-01-01"] * 3)), ["'age'"]),
        (good.assign(age=[1 + 2j, 1, 2]), ["'age'"]),
        (good.assign(job=["cook", "Cook", "clerk"]), ["'job'", "'Cook' in row 1", "'cook', 'clerk'"]),
        (good.assign(job=["cook", None, "clerk"]), ["'job'", "an empty cell in row 1"]),
        (good.assign(job=["cook", ["clerk"], "clerk"]), ["'job'", "in row 1"]),
        (good.assign(age=[1, 2, 10**16]), ["'age'", "1e14"]),
        (good[:1], ["one row"]),
        (good[:0], ["an empty table"]),
        (good[["age"]], ["2 columns", "'job' missing"]),
        (good.assign(extra=1), ["'extra' not in the schema"]),
        (pd.concat([good, good[["age"]]], axis=1), ["'age' more than once"]),
        (good.set_axis([0, 1], axis=1), ["text", "0 of type int"]),
        (np.zeros((3, 3)), ["2 columns", "3x3"]),
        (np.zeros(3), ["2 columns", "[[...]]"]),
    ],
)
def test_a_bad_table_is_refused_in_three_parts(table: object, names: list[str]) -> None:
    with pytest.raises(DataError, match=r"(?s)^expected .+, got .+ — .+") as caught:
        Encoding.fit(number, table)
    for name in names:
        assert name in str(caught.value)


def test_encode_refuses_what_fit_refuses() -> None:
    encoding = Encoding.fit(number, good)
    for table, name in [
        (good.assign(age=[20, 30.5, 40]), "30.5 in row 1"),
        (good.assign(job=["cook", "baker", "clerk"]), "'baker' in row 1"),
        (good.assign(age=[20, np.nan, 40]), "empty cell"),
    ]:
        with pytest.raises(DataError, match=name):
            encoding.encode(table)
    with pytest.raises(DataError, match=r"expected .*, got 1 in 'age' \(20 to 40\) — "):
        encoding.encode(good.assign(age=[20, 99, 40]), out_of_range="refuse")
    with pytest.warns(DataWarning, match=r"got 2 in 'age' \(20 to 40\) — they were clipped"):
        assert encoding.encode(good.assign(age=[-1, 99, 40]))[:, 0].tolist() == [0, 1, 1]
    with pytest.raises(DataError, match="out_of_range"):
        encoding.encode(good, out_of_range="wrap")
    assert torch.equal(
        encoding.encode(good[["job", "age"]]), encoding.encode(good.assign(extra=1).drop(columns="extra"))
    )
    assert torch.equal(encoding.encode(good.to_numpy()), encoding.encode(good))
    assert torch.equal(encoding.encode(good.to_numpy().tolist()), encoding.encode(good))


def test_decode_refuses_foreign_tensors() -> None:
    encoding = Encoding.fit(number, good)
    x = encoding.encode(good)
    for tensor, original in [(x[:, :2], None), (x[0], None), (x * torch.nan, None), (x, good[:2])]:
        with pytest.raises(DataError, match=r"expected .+, got .+ — "):
            encoding.decode(tensor, original)


def test_relaxed_rows_decode_to_the_nearest_legal_values() -> None:
    encoding = Encoding.fit(number, good)
    shown = encoding.decode(torch.tensor([[0.52, 0.3, 0.4], [1.7, 0.0, 0.0]], dtype=torch.float32))
    assert shown["age"].tolist() == [30, 40]
    assert shown["job"].tolist() == ["clerk", "cook"]


def test_a_constant_column_is_announced_encoded_as_zero_and_kept() -> None:
    frame = good.assign(flat=7, word="same", level=pd.Categorical(["lo"] * 3, ["lo", "hi"], ordered=True))
    with pytest.warns(DataWarning, match=r"expected columns that vary, got .*'flat', 'word', 'level' — "):
        encoding = Encoding.fit(Schema.infer(frame), frame)
    x = encoding.encode(frame)
    kept = [encoding.columns.index(name) for name in ("flat", "word", "level")]
    assert bool((x[:, kept] == 0).all())
    p = encoding.project(torch.rand(x.shape, dtype=torch.float64), x)
    assert bool((p[:, kept] == 0).all())
    pd.testing.assert_frame_equal(encoding.decode(x), frame)


def test_a_missing_code_inside_of_the_learned_range_is_refused() -> None:
    schema = Schema([Feature("age", "integer", missing="impute", missing_codes=[99])])
    with pytest.raises(DataError, match=r"outside the range 1 to 110 .*'99' inside"):
        Encoding.fit(schema, pd.DataFrame({"age": [1, 99, 110]}))


def test_codes_and_empty_cells_are_told_apart_in_a_column_of_objects() -> None:
    schema = Schema([Feature("n", "integer", missing="impute", missing_codes=[0, "?"])])
    frame = pd.DataFrame({"n": pd.Series([3, None, 0, "?", 5], dtype=object)})
    encoding = Encoding.fit(schema, frame)
    assert encoding.encode(frame)[:, 1:].tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    back = encoding.decode(encoding.encode(frame))["n"].tolist()
    assert (back[0], back[2:]) == (3, [0, "?", 5])
    assert pd.isna(back[1])


def test_booleans_and_small_integers_in_numeric_columns() -> None:
    frame = pd.DataFrame({"b": [True, False, True], "u": np.array([1, 255, 3], dtype=np.uint8)})
    encoding = Encoding.fit(Schema([Feature("b", "integer"), Feature("u", "integer")]), frame)
    pd.testing.assert_frame_equal(encoding.decode(encoding.encode(frame)), frame)


def test_an_edited_file_is_refused() -> None:
    content = json.loads(Encoding.fit(number, good).to_json())
    for i, change in [
        (0, {"fill": 99.0}),
        (1, {"high": 5.0}),
        (0, {"low": "x"}),
        (0, {"dtype": "int65"}),
        (0, {"x": 1}),
    ]:
        edited = json.loads(json.dumps(content))
        edited["fitted"][i].update(change)
        with pytest.raises(SchemaError, match=r"expected .+, got .+ — "):
            Encoding.from_json(json.dumps(edited))
    for fitted_part in (None, [], [1, 2]):
        with pytest.raises(SchemaError, match=r"expected .+, got .+ — "):
            Encoding.from_json(json.dumps({**content, "fitted": fitted_part}))


@pytest.mark.parametrize("values", [[0.0, 1e-300], [-1e301, 1.0], [-1.7e308, 1.7e308]])
def test_numbers_at_the_edge_of_floats_are_refused(values: list[float]) -> None:
    with pytest.raises(DataError, match=r"expected numbers between 1e-280 and 1e300 .*'a', got .* — rescale"):
        Encoding.fit(Schema([Feature("a", "continuous")]), pd.DataFrame({"a": values}))


def test_an_empty_column_is_refused() -> None:
    schema = Schema([Feature("age", "integer", missing="impute")])
    with pytest.raises(DataError, match="only missing values in 2 rows"):
        Encoding.fit(schema, pd.DataFrame({"age": [np.nan, np.nan]}))


def test_a_value_beyond_one_declared_end_only() -> None:
    with pytest.raises(DataError, match="at or above lower"):
        Encoding.fit(Schema([Feature("a", "integer", lower=10)]), pd.DataFrame({"a": [1, 2]}))
    with pytest.raises(DataError, match="at or below upper"):
        Encoding.fit(Schema([Feature("a", "integer", upper=0)]), pd.DataFrame({"a": [1, 2]}))


def test_proposed_numbers_have_three_digits_of_their_range_unless_the_schema_says_otherwise() -> None:
    frame = pd.DataFrame({name: [0.123456, 987.654321, 456.789012] for name in "abc"})
    schema = Schema(
        [
            Feature("a", "continuous"),
            Feature("b", "continuous", display_step=25.0),
            Feature("c", "continuous", display_step="exact"),
        ]
    )
    encoding = Encoding.fit(schema, frame)
    assert encoding.decode(encoding.encode(frame)).equals(frame)  # what is read keeps all of its digits
    x = encoding.encode(frame)
    shown = encoding.decode(encoding.project(torch.full_like(x, 0.34567), x), original=frame)
    raw = 0.123456 + 0.34567 * (987.654321 - 0.123456)
    assert shown["a"].tolist() == [341.0] * 3
    assert shown["b"].tolist() == [350.0] * 3
    assert shown["c"].tolist() == pytest.approx([raw] * 3, abs=1e-9)
    ends = encoding.decode(encoding.project(torch.ones_like(x), x), original=frame)
    assert ends["a"].tolist() == [987.0, 987.654321, 987.0]  # the last readable value, or one's own
    assert torch.equal(encoding.encode(ends), encoding.project(torch.ones_like(x), x))


@many
@given(tables(), st.integers(0, 2**31), st.booleans())
def test_snapping_rounds_the_way_it_is_told_and_stays_within_the_limits(
    table: Table, seed: int, up: bool
) -> None:
    encoding = fitted(table)
    x = encoding.encode(table.frame)
    wanted = encoding.project(proposals(encoding, len(x), seed).nan_to_num(0.5), x, relax=True)
    legal = encoding.project(wanted, x)
    for group in encoding.groups:  # snapping is for whole categories
        wanted[:, group] = legal[:, group]
    p = encoding.snap(wanted, x, torch.full_like(x, up, dtype=torch.bool))
    assert all(torch.equal(p[:, group], legal[:, group]) for group in encoding.groups)
    assert torch.equal(encoding.project(p, x), p)
    lower, upper = encoding.limits(x)
    assert bool(((p >= lower) & (p <= upper)).all())
    first, step = encoding.display_grid(x.device)
    inside = encoding.numeric & (wanted > first) & (wanted < 1 - step) & (p != x)
    wrong = (p < wanted - 1e-6) if up else (p > wanted + 1e-6)
    assert not bool((wrong & inside).any())
    back = encoding.step_back(p, x)
    assert torch.equal(encoding.project(back, x), back)
    assert bool((((back - x).abs() <= (p - x).abs() + 1e-12) | ~encoding.numeric).all())


@pytest.mark.parametrize(
    ("low", "high", "step", "ends"),
    [
        (7 * 0.05, 2.0, 0.05, (0.4, 2.0)),  # 0.35000000000000003: the first multiple inside
        (0.0, 0.3 - 1e-16, 0.1, (0.0, 0.2)),
        (-(7 * 0.05), 7 * 0.05, 0.05, (-0.35, 0.35)),
        (7 * 0.05, 0.4, 0.05, None),  # one multiple is no choice
    ],
)
def test_a_declared_display_step_holds_where_an_end_is_nearly_a_multiple(
    low: float, high: float, step: float, ends: tuple[float, float] | None
) -> None:
    feature = Feature("rate", "continuous", lower=low, upper=high, display_step=step)
    frame = pd.DataFrame({"rate": [low, (low + high) / 2, high]})
    encoding = Encoding.fit(Schema([feature], "y", "yes", "no"), frame)
    shown = encoding.fitted[0].shown(feature)
    if ends is None:
        assert float(shown.stride / shown.scale) < step
        return
    assert (float(shown.low), float(shown.high)) == ends
    assert float(shown.stride / shown.scale) == pytest.approx(step)
    assert torch.equal(encoding.encode(frame)[[0, 2], 0], torch.tensor([0.0, 1.0], dtype=torch.float64))
    anywhere = torch.linspace(0.0, 1.0, 101, dtype=torch.float64).unsqueeze(-1)
    start = encoding.encode(pd.DataFrame({"rate": [(low + high) / 2]})).expand(101, -1)
    proposed = encoding.decode(encoding.project(anywhere, start))["rate"].to_numpy()
    assert ((proposed >= low) & (proposed <= high)).all()
    multiples = np.round(proposed / step) * step
    own = np.isclose(proposed, (low + high) / 2, rtol=0, atol=1e-12)
    assert np.abs(proposed - multiples)[~own].max() < 1e-12


def test_a_missing_cell_that_gets_a_value_gets_a_readable_one() -> None:
    frame = pd.DataFrame({"a": [0.0, 1.0, 0.123456, None]})
    encoding = Encoding.fit(Schema([Feature("a", "continuous", missing="impute")]), frame)
    x = encoding.encode(frame)
    filled = x.clone()
    filled[:, 1] = 0.0
    assert encoding.decode(encoding.project(filled, x), original=frame)["a"].tolist() == [
        0.0,
        1.0,
        0.123456,
        0.12,
    ]


def test_a_declared_end_is_not_exceeded_by_rounding() -> None:
    feature = Feature(name="f", kind="continuous", lower=0.35000000000000003, upper=0.9, step=0.05)
    schema = Schema(target="y", favourable=1, features=(feature,))
    encoding = Encoding.fit(schema, pd.DataFrame({"f": [0.35000000000000003, 0.9, 0.6]}))
    top = encoding.decode(torch.ones(1, encoding.dim, dtype=torch.float64))
    assert top["f"].tolist() == [0.9]


@pytest.mark.parametrize("dtype", ["float32", "Float32", "float[pyarrow]", "category"])
def test_narrow_categories_are_the_decimals_that_people_read(dtype: str) -> None:
    wide = pd.Series([0.1, 0.7, 0.35, 0.1] * 10)
    narrow = wide.astype("float32").astype(dtype)
    table = pd.DataFrame({"rate": narrow, "b": np.arange(40.0) % 7})
    encoding = Encoding.fit(Schema.infer(table, categorical=["rate"]), table)
    assert encoding.schema["rate"].categories == (0.1, 0.35, 0.7)
    encoded = encoding.encode(table)
    assert torch.equal(encoding.encode(table.assign(rate=wide)), encoded)
    back = encoding.decode(encoded)
    assert back["rate"].dtype == narrow.dtype
    assert torch.equal(Encoding.from_json(encoding.to_json()).encode(back), encoded)
