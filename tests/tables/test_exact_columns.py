"""Whatever is written is read back and encodes to what was certified: every sink, dtype and feature."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import veritracer as vt
from veritracer.counterfactuals import Counterfactuals
from veritracer.errors import DataError, DataWarning
from veritracer.schema import Feature, Schema
from veritracer.tables import CSVFormat, open_sink, read_batches
from veritracer.tables.batches import typed_rows
from veritracer.tables.cells import read_table
from veritracer.tables.exact_columns import counterfactual_table

ROWS = 16
POWERS = (-9, -6, -3, 0, 3, 7, 9, 12, 15)
WHOLE = ("int64", "Int64", "uint64", "int64[pyarrow]")
WIDE = ("float64", "Float64", "double[pyarrow]", "object", "category")
NARROW = ("float32", "Float32", "float[pyarrow]", "float16")
DTYPES = (*WHOLE, *WIDE, *NARROW)


# ------------------------------------------------------------ sinks, each with the reader of what it writes


def read_file(path: Path, found: Counterfactuals) -> pd.DataFrame:
    multiline = CSVFormat(multiline_cells=True)  # names and words have line breaks
    frame = read_table(str(path), schema=found.encoding.schema, csv=multiline)
    return frame[list(found.encoding.schema.names)]


def streamed(name: str) -> Callable[[Counterfactuals, Path], pd.DataFrame]:
    def write(found: Counterfactuals, folder: Path) -> pd.DataFrame:
        with open_sink(str(folder / name)) as sink:
            piece = counterfactual_table(found, pd.DataFrame(index=range(len(found))))
            sink.write(piece.slice(0, 5))
            sink.write(piece.slice(5))
        return read_file(folder / name, found)

    return write


def packed(found: Counterfactuals, folder: Path) -> pd.DataFrame:
    streamed("plain.csv")(found, folder)
    (folder / "packed.csv.gz").write_bytes(gzip.compress((folder / "plain.csv").read_bytes()))
    return read_file(folder / "packed.csv.gz", found)


def lines(found: Counterfactuals, folder: Path) -> pd.DataFrame:
    with open_sink(str(folder / "r.jsonl")) as sink:
        sink.write(counterfactual_table(found, pd.DataFrame(index=range(len(found)))))
    rows = [json.loads(line) for line in (folder / "r.jsonl").read_text(encoding="utf-8").splitlines()]
    return pd.DataFrame(rows, dtype=object)[list(found.encoding.schema.names)]


def document(found: Counterfactuals, _: Path) -> pd.DataFrame:
    rows = json.loads(found.to_json())["rows"]
    return pd.DataFrame([row["counterfactual"] for row in rows], dtype=object)


def parquet(found: Counterfactuals, folder: Path) -> pd.DataFrame:
    found.to_parquet(folder / "whole.parquet")
    return read_file(folder / "whole.parquet", found)


SINKS: dict[str, Callable[[Counterfactuals, Path], pd.DataFrame]] = {
    "frame": lambda found, _: found.frame,
    "CSV": streamed("r.csv"),
    "gzip CSV": packed,
    "Parquet": streamed("r.parquet"),
    "JSON lines": lines,
    "to_json": document,
    "to_parquet": parquet,
}


# ------------------------------------------------------------ features, each with values to fill a column


def numeric(power: int, step: bool, whole: bool) -> tuple[dict[str, Any], list[Any]]:
    """A number up to 10**power: with all its digits, on a grid, or whole."""
    rng = np.random.default_rng(power + 100)
    if whole:
        unit = 10 ** max(power - 3, 0)
        return {"kind": "integer", "step": float(unit)}, [int(k) * unit for k in rng.integers(1, 1000, ROWS)]
    if step:
        unit = Decimal(5).scaleb(power - 4)
        values = [float(unit * int(k)) for k in rng.integers(1, 1000, ROWS)]
        return {"kind": "continuous", "step": float(unit)}, values
    return {"kind": "continuous"}, (rng.uniform(0.1, 1.0, ROWS) * 10.0**power).tolist()


def columns(dtype: str) -> tuple[Schema, pd.DataFrame]:
    """A table with every kind of number that the dtype holds, with and without missing values."""
    features, frame = [], {}
    for power in POWERS:
        for step, whole in ((False, False), (True, False), (False, True)):
            if (
                (whole and power < 1)
                or (dtype in WHOLE and not whole)
                or (dtype == "float16" and abs(power) > 3)
            ):
                continue
            described, values = numeric(power, step, whole)
            code = -float(10 ** max(power + 1, 1))
            for policy, codes in (("refuse", ()), ("impute", (code,)), ("category", ("unknown", "NA"))):
                name = f"{power} {step} {whole} {policy} \"x\",\n'y'\r"
                cells = list(values) if dtype in WHOLE else [float(value) for value in values]
                if policy != "refuse":
                    cells[3] = None if dtype not in ("int64", "uint64") else cells[3]
                if codes and not isinstance(codes[0], str) and dtype not in ("uint64", "float16"):
                    cells[4] = int(code) if dtype in WHOLE else code
                if codes and isinstance(codes[0], str) and dtype == "object":
                    cells[4], cells[5] = codes
                display = "exact" if not step and not whole and power % 2 else "auto"
                features.append(
                    Feature(name, **described, missing=policy, missing_codes=codes, display_step=display)
                )
                frame[name] = pd.Series(cells, dtype=object).astype(dtype)
    return Schema(features), pd.DataFrame(frame)


LEVELS: dict[str, tuple[list[Any], tuple[str, ...]]] = {
    "words": (["car", "a,b", 'say "x"', "line\nend", "=1+1", " pad ", "\ufeffmark"], ("str", "category")),
    "words like gaps": (["NA", "nan", "x"], ("str", "object")),
    "empty word": (["", "x"], ("str", "object")),
    "words like numbers": (["1", "1.0", "-7", "1e5"], ("str", "category", "string[pyarrow]")),
    "whole numbers": ([3, -2, 0, 10**15], ("int64", "Int64", "float64", "int64[pyarrow]", "category")),
    "large numbers": ([2**60, 2**60 + 1], ("int64", "Int64", "object")),
    "huge numbers": ([10**30, 10**30 + 1], ("object",)),
    "numbers": ([1e-9, 0.1, 2.5, 1e15], ("float64", "Float64", "double[pyarrow]", "category")),
    "narrow numbers": ([float(np.float32(0.1)), 0.5, 1e9], ("float32", "Float32", "float64")),
    "truths": ([True, False], ("bool", "boolean", "bool[pyarrow]", "object")),
    "mixed": ([1, "x", 2.5, False], ("object", "category")),
    "truth and number": ([True, 2], ("object",)),
}


def levels(name: str, dtype: str) -> tuple[Schema, pd.DataFrame]:
    """A table with the three kinds of features that have these categories."""
    values, _ = LEVELS[name]
    features, frame = [], {}
    for kind in ("ordinal", "categorical", "binary"):
        categories = values[:2] if kind == "binary" else values
        cells = [categories[i % len(categories)] for i in range(ROWS)]
        gaps = "" not in values and dtype not in ("int64", "bool")
        for policy in ("refuse", "impute", "category") if gaps else ("refuse",):
            codes = () if policy == "refuse" else ("gone", -99)
            own = list(cells)
            if policy != "refuse":
                own[3] = None
            if codes and dtype == "object":
                own[4], own[5] = codes
            features.append(
                Feature(f"{kind} {policy}", kind, categories=categories, missing=policy, missing_codes=codes)
            )
            frame[f"{kind} {policy}"] = pd.Series(own, dtype=object).astype(dtype)
    return Schema(features), pd.DataFrame(frame)


# ------------------------------------------------------------ the round trip


def explained(schema: Schema, frame: pd.DataFrame, seed: int = 0) -> Counterfactuals:
    """Counterfactuals that change everything that they can, by a random linear model."""
    encoding = vt.Encoding.fit(schema, frame)
    draw = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(encoding.dim, 1, dtype=torch.float64))
    x = encoding.encode(frame)
    with torch.no_grad():
        module[0].weight.copy_(torch.randn(1, encoding.dim, generator=draw, dtype=torch.float64))
        module[0].bias.fill_(0.0)
        module[0].bias.copy_(-module(x).median().reshape(1) - 1e-3)

    def propose(rows: Tensor) -> Tensor:
        guesses = torch.rand(20, *rows.shape, generator=draw, dtype=torch.float64)
        opposite = torch.where(module(rows) > 0, -1.0, 1.0)
        best = (module(guesses) * opposite).squeeze(-1).argmax(0)
        return guesses[best, torch.arange(len(rows))]

    recourse = vt.Recourse(module, schema, encoding, kappa=1e-6, propose=propose)
    return recourse.explain(frame, refine=False, search_radius=False, only_unfavourable=False)


def assert_same(found: Counterfactuals, frame: pd.DataFrame) -> None:
    again = found.encoding.encode(frame.reset_index(drop=True), out_of_range="ignore")
    differs = found.encoding.changed(again, found.x_cf)
    for i in differs.any(0).nonzero().squeeze(-1).tolist():
        name = found.encoding.schema.names[i]
        row = int(differs[:, i].nonzero()[0])
        pytest.fail(f"{name!r}: {found.frame[name].iloc[row]!r} became {frame[name].iloc[row]!r}")


@cache
def explained_numbers(dtype: str) -> Counterfactuals:
    return explained(*columns(dtype))


@cache
def explained_levels(name: str, dtype: str) -> Counterfactuals:
    return explained(*levels(name, dtype))


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers(dtype: str, sink: str, tmp_path: Path) -> None:
    found = explained_numbers(dtype)
    assert found.valid.sum() > ROWS // 4
    assert_same(found, SINKS[sink](found, tmp_path))


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, (_, dtypes) in LEVELS.items() for d in dtypes])
def test_categories(name: str, dtype: str, sink: str, tmp_path: Path) -> None:
    found = explained_levels(name, dtype)
    assert_same(found, SINKS[sink](found, tmp_path))


@pytest.mark.parametrize("dtype", ["bool", "boolean", "bool[pyarrow]"])
@pytest.mark.parametrize("sink", SINKS)
def test_numbers_that_are_true_or_false(dtype: str, sink: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": pd.Series([True, False] * 4, dtype=dtype), "b": np.arange(8) / 7})
    found = explained(Schema([Feature("a", "integer"), Feature("b", "continuous")]), frame)
    assert_same(found, SINKS[sink](found, tmp_path))


@settings(max_examples=30)
@given(data=st.data())
def test_any_number(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("any")
    power = data.draw(st.integers(-9, 15))
    size = st.floats(-(10.0**power), 10.0**power, allow_subnormal=False)
    dtype = data.draw(st.sampled_from(["float64", "float32", "object", "Float64", "Float32"]))
    values = data.draw(st.lists(size, min_size=4, max_size=8))
    codes = data.draw(st.sampled_from([(), (-3e15,), ("unknown",), ("unknown", -3e15, True)]))
    cells: list[Any] = [value if abs(value) > 1e-30 else 0.0 for value in values]
    policy = "refuse"
    if codes:
        policy = data.draw(st.sampled_from(["impute", "category"]))
        allowed = [None, *(code for code in codes if dtype == "object" or not isinstance(code, str | bool))]
        cells[1] = data.draw(st.sampled_from(allowed))
    assume(len({cell for cell in cells if cell not in (None, *codes)}) > 1)
    frame = pd.DataFrame({"a": pd.Series(cells, dtype=object).astype(dtype), "b": range(len(cells))})
    display = data.draw(st.sampled_from(["auto", "exact"]))
    feature = Feature("a", "continuous", missing=policy, missing_codes=codes, display_step=display)
    found = explained(Schema([feature, Feature("b", "integer")]), frame, seed=data.draw(st.integers(0, 99)))
    for sink in SINKS.values():
        assert_same(found, sink(found, folder))


# ------------------------------------------------------------ what cannot be written exactly is refused


def refused(schema: Schema, frame: pd.DataFrame, sink: str, folder: Path) -> str:
    found = explained(schema, frame)
    with pytest.raises(DataError) as said:
        SINKS[sink](found, folder)
    assert not list(folder.iterdir())
    return str(said.value)


@pytest.mark.parametrize("sink", ["CSV", "Parquet", "JSON lines"])
def test_a_fraction_of_a_whole_number_is_refused(sink: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, 2, 3, 20.5], "b": [0.0, 1, 2, 3]})
    schema = Schema(
        [Feature("a", "integer", lower=0, upper=10, action="immutable"), Feature("b", "continuous")]
    )
    with pytest.warns(DataWarning):
        text = refused(schema, frame, sink, tmp_path)
    assert "20.5 in row 3" in text


def test_a_text_that_stands_for_two_values_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": pd.Series([1, "1", 1, "1"], dtype=object), "b": [0.0, 1, 2, 3]})
    schema = Schema([Feature("a", "categorical", categories=[1, "1"]), Feature("b", "continuous")])
    assert "got '1' for both 1 and '1'" in refused(schema, frame, "CSV", tmp_path)


def test_a_number_that_reads_as_a_code_is_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2, 5, 9], "b": [0.0, 1, 2, 3]})
    features = [Feature("a", "integer", missing="impute", missing_codes=["5"]), Feature("b", "continuous")]
    assert "whose text '5'" in refused(Schema(features), frame, "Parquet", tmp_path)


def test_csv_can_not_tell_an_empty_cell_from_an_empty_word(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": pd.Series(["", None, "x", "x"], dtype=object), "b": [0.0, 1, 2, 3]})
    features = [
        Feature("a", "categorical", categories=["", "x"], missing="category", action="immutable"),
        Feature("b", "continuous"),
    ]
    assert "tell them apart" in refused(Schema(features), frame, "CSV", tmp_path)
    found = explained(Schema(features), frame)
    for sink in ("Parquet", "JSON lines", "to_json", "to_parquet"):
        assert_same(found, SINKS[sink](found, tmp_path))


@pytest.mark.parametrize(
    ("word", "sink", "said"),
    [("a\0b", "CSV", "the character NUL"), ("a\ud800", "Parquet", "half of a character")],
)
def test_text_that_a_file_can_not_hold(word: str, sink: str, said: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": pd.Series([word, "x", word, "x"], dtype=object), "b": [0.0, 1, 2, 3]})
    features = [Feature("a", "categorical", categories=[word, "x"]), Feature("b", "continuous")]
    assert said in refused(Schema(features), frame, sink, tmp_path)


def test_a_whole_number_beyond_float64_is_kept_or_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": pd.Series([1, None, 3, 2**60 + 1], dtype="Int64"), "b": [0.0, 1, 2, 3]})
    features = [Feature("a", "integer", lower=0, upper=9, missing="impute"), Feature("b", "continuous")]
    with pytest.warns(DataWarning):
        found = explained(Schema([features[0].replace(action="immutable"), features[1]]), frame)
    frame_again = streamed("r.parquet")(found, tmp_path)
    assert 2**60 + 1 in frame_again["a"].tolist()
    assert_same(found, frame_again)
    whole = features[0].replace(kind="continuous", action="immutable")
    (tmp_path / "new").mkdir()
    with pytest.warns(DataWarning):
        text = refused(Schema([whole, features[1]]), frame, "CSV", tmp_path / "new")
    assert str(2**60 + 1) in text


def test_an_index_does_not_become_a_column(tmp_path: Path) -> None:
    schema, frame = columns("float64")
    frame.index = pd.Index(range(100, 100 + len(frame)))
    explained(schema, frame).to_parquet(tmp_path / "r.parquet")
    table = next(read_batches(str(tmp_path / "r.parquet")))
    assert set(schema.names) <= set(table.columns)
    assert not [name for name in table.columns if name.startswith("__index")]


def test_kept_columns_are_written_as_they_were(tmp_path: Path) -> None:
    """A whole number next to a gap is no float, and a piece of gaps alone has the type of the others."""
    schema, frame = columns("float64")
    kept = pa.table(
        {"id": pa.array([2**60 + 1, None] * 8), "note": pa.array([None] * 15 + ["x"], pa.string())}
    )
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for name in kept.schema.names:
        table = table.append_column(name, kept.column(name))
    pq.write_table(table, tmp_path / "in.parquet")
    encoding = vt.Encoding.fit(schema, frame)
    module = nn.Sequential(nn.Linear(encoding.dim, 1, dtype=torch.float64))
    recourse = vt.Recourse(module, schema, encoding, kappa=0.01)
    for name in ("out.parquet", "out.csv"):
        with (
            open_sink(str(tmp_path / name)) as sink,
        ):
            for batch in read_batches(str(tmp_path / "in.parquet"), rows=5):
                rows, _ = typed_rows(batch, schema, encoding, ["id", "note"])
                found = recourse.explain(rows[list(schema.names)], refine=False)
                sink.write(counterfactual_table(found, rows[["id", "note"]]))
    assert pq.read_table(tmp_path / "out.parquet").select(["id", "note"]).equals(kept)
    text = pd.read_csv(tmp_path / "out.csv", dtype=str)
    assert text["id"].dropna().unique().tolist() == [str(2**60 + 1)]
