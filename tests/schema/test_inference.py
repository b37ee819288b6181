"""What a stranger's columns are: numbers in any writing, dates, identifiers, unknown values, oddities."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veritracer.encoding import Encoding
from veritracer.errors import DataError, DataWarning, SchemaError
from veritracer.schema import Feature, Schema
from veritracer.schema.inspection import Topic, findings, inspect_table, target_candidates
from veritracer.schema.number_formats import Ambiguous, NumberFormat, number_format

THREE_PARTS = r"(?s)^expected .+, got .+ — .+"
ROWS = 60
FORMATS = [
    NumberFormat(prefix, group, decimal, suffix)
    for group, decimal in [("", "."), ("", ","), (",", "."), (".", ","), (" ", ","), ("'", ".")]
    for prefix, suffix in [("", ""), ("€ ", ""), ("$", ""), ("", "%"), ("", " EUR")]
]


def table(**columns: Any) -> pd.DataFrame:
    """Some rows of an ordinary column, beside these."""
    return pd.DataFrame({"plain": [i % 7 + 0.5 for i in range(ROWS)], **columns})


def infer(**columns: Any) -> Schema:
    """The schema of such a table; what is left out is not warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return Schema.infer(table(**columns))


# ---------------------------------------------------------------- numbers as text


@given(
    number=st.floats(-1e12, 1e12, allow_nan=False) | st.integers(-(10**9), 10**9),
    writing=st.sampled_from(FORMATS),
)
def test_what_is_written_is_read(number: float, writing: NumberFormat) -> None:
    assert writing.read(writing.write(number)) == float(number)
    assert NumberFormat.of(writing.example) == writing


@pytest.mark.parametrize("writing", FORMATS, ids=lambda f: f.example)
def test_a_format_is_found_in_what_it_wrote(writing: NumberFormat) -> None:
    numbers = [12.5, 1234.25, 1234567.0, 0.75]
    found = number_format(map(writing.write, numbers))
    assert isinstance(found, NumberFormat)
    assert [found.read(writing.write(number)) for number in numbers] == numbers


@pytest.mark.parametrize(
    ("texts", "example", "first"),
    [
        (["10,257.01", "300"], "1,234.5", 10257.01),
        (["1.200,50", "3"], "1.234,5", 1200.5),
        (["€ 300", "€ 1.200,50"], "€ 1.234,5", 300.0),
        (["12%", "7%"], "1234.5%", 12.0),
        (["-€ 5", "€ 7.50"], "€ 1234.5", -5.0),
        (["12,500", "800"], "1,234.5", 12500.0),  # a number below 1,000 without a mark tells
        (["0,567", "1,234"], "1234,5", 0.567),  # and so does a leading zero
        (["3.125", "4.250"], "1234.5", 3.125),  # as programs write
        (["1,234,567", "12,345"], "1,234.5", 1234567.0),
    ],
)
def test_writings_that_can_be_told(texts: list[str], example: str, first: float) -> None:
    found = number_format(texts)
    assert isinstance(found, NumberFormat)
    assert (found.example, found.read(texts[0])) == (example, first)


@pytest.mark.parametrize("texts", [["007", "012"], ["$1", "€ 2"], ["A11", "A12"], ["3+", "2"], ["10k", "2k"]])
def test_codes_are_no_numbers(texts: list[str]) -> None:
    assert number_format(texts) is None


@pytest.mark.parametrize("texts", [["1,250", "12,500"], ["1.250", "12.500", "3.100", "7"]])
def test_what_can_be_read_in_two_ways_is_refused_with_both(texts: list[str]) -> None:
    assert isinstance(number_format(texts), Ambiguous)
    column = [texts[i % len(texts)] for i in range(ROWS - 1)] + ["9,750" if "," in texts[0] else "9.750"]
    with pytest.raises(DataError, match=THREE_PARTS) as caught:
        infer(income=column)
    assert "--number-format" in str(caught.value)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = Schema.infer(
            table(income=column),
            number_formats={"income": "1234,5"} if "," in texts[0] else {"income": "1.234,5"},
        )
    assert said["income"].is_numeric


def test_numbers_as_text_are_encoded_as_the_numbers() -> None:
    numbers = np.random.default_rng(0).uniform(5, 90_000, ROWS).round(2)
    writing = NumberFormat.of("€ 1.234,5")
    texts = [writing.write(number) for number in numbers]
    schema = infer(income=["n/a" if i % 8 == 0 else text for i, text in enumerate(texts)])
    feature = schema["income"]
    assert (feature.number_format, feature.missing_codes, feature.missing) == (
        "€ 1.234,5",
        ("n/a",),
        "impute",
    )
    assert "'n/a' read as unknown" in feature.note
    plain = Encoding.fit(Schema([Feature("income", "continuous")]), pd.DataFrame({"income": numbers}))
    written = Encoding.fit(Schema([feature]), pd.DataFrame({"income": texts}))
    x = written.encode(pd.DataFrame({"income": texts}))
    assert (x[:, 0] == plain.encode(pd.DataFrame({"income": numbers}))[:, 0]).all()
    shown = written.decode(written.project(1 - x, x), original=pd.DataFrame({"income": texts}))
    assert (written.encode(shown) == written.project(1 - x, x)).all()
    assert shown["income"].str.startswith("€ ").all()
    assert written.digest != plain.digest
    assert Schema.from_json(schema.to_json()) == schema


def test_a_few_words_among_numbers_are_refused() -> None:
    with pytest.raises(DataError, match=r"got 'plenty' in row 3 .*declare the column categorical"):
        infer(income=[f"{i},5" if i != 3 else "plenty" for i in range(ROWS)])
    with pytest.raises(DataError, match=r"written like 1\.234,5 in the column 'income', got '1,234\.5'"):
        Schema.infer(table(income=["1,234.5"] * ROWS), number_formats={"income": "1.234,5"})
    assert infer(level=["0", "1", "2", "3+"] * 15)["level"].kind == "categorical"


@pytest.mark.parametrize("wrong", ["", "1,234,5", "1234", "about 1234.5", "1.234.5", 12])
def test_an_example_that_is_none_is_refused(wrong: Any) -> None:
    if wrong == "1234":
        assert NumberFormat.of(wrong) == NumberFormat()
        return
    with pytest.raises(SchemaError, match=THREE_PARTS):
        NumberFormat.of(wrong)


# ---------------------------------------------------------------- what is left out


@pytest.mark.parametrize(
    "column",
    [
        list(range(1000, 1000 + ROWS)),
        [f"u{i:04}" for i in range(ROWS)],
        [f"2024-{i % 12 + 1:02}-{i % 28 + 1:02}" for i in range(ROWS)],
        [f"{i % 28 + 1}.{i % 12 + 1}.2024 10:30" for i in range(ROWS)],
        pd.date_range("2024-01-01", periods=ROWS),
    ],
    ids=["counter", "text", "ISO dates", "German dates", "datetimes"],
)
def test_identifiers_and_dates_are_left_out_and_remembered(column: Any) -> None:
    frame = table(odd=column)
    with pytest.warns(DataWarning, match="'odd'"):
        schema = Schema.infer(frame)
    assert (schema.names, schema.ignored_names) == (("plain",), ("odd",))
    assert Encoding.fit(schema, frame).encode(frame).shape == (ROWS, 1)  # later tables may have it
    assert Schema.from_json(schema.to_json()) == schema
    assert "ignored" not in infer().to_json()


def test_what_is_spoken_of_is_not_left_out() -> None:
    frame = table(number=list(range(ROWS)), customer_id=np.random.default_rng(0).permutation(9 * ROWS)[:ROWS])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Schema.infer(frame, free=["number"], immutable=["customer_id"]).ignored == {}
        assert Schema.infer(frame, ignore=["number", "customer_id"]).ignored_names == (
            "number",
            "customer_id",
        )
        assert len(Schema.infer(frame.to_numpy())) == 3  # the columns of an array have no names to leave out
    with pytest.raises(SchemaError, match="did you mean 'number'"):
        Schema.infer(frame, ignore=["numbr"])
    unique = np.random.default_rng(1).permutation(10**6)[:ROWS]
    assert infer(income=unique).names == ("plain", "income")  # different in every row, and no identifier


ROW_NUMBERS: dict[str, Any] = {
    "shuffled": np.random.default_rng(2).permutation(ROWS),
    "with gaps": np.delete(np.arange(ROWS + 20), np.arange(5, 25))[:ROWS],
    "floats": np.arange(ROWS) + 7.0,
    "text": [f"{10_000 + i}" for i in range(ROWS)],
    "partly missing": pd.array([None, *range(1, ROWS)], dtype="Int64"),
}


@pytest.mark.parametrize("column", ROW_NUMBERS.values(), ids=ROW_NUMBERS)
def test_numbers_that_chance_would_have_repeated_are_identifiers(column: Any) -> None:
    assert infer(counted=column).ignored_names == ("counted",)
    assert Schema.infer(table(counted=column), free=["counted"]).ignored_names == ()


MEASUREMENTS: dict[str, Any] = {
    "fractions": np.arange(ROWS) + 0.5,
    "one repetition": [0, *range(ROWS - 1)],
    "a wide range": np.arange(ROWS) * 5,
    "few rows": pd.array([None] * 20 + list(range(40)), dtype="Int64"),
}


@pytest.mark.parametrize("column", MEASUREMENTS.values(), ids=MEASUREMENTS)
def test_numbers_that_may_differ_by_chance_are_features(column: Any) -> None:
    assert infer(measured=column).names == ("plain", "measured")


@pytest.mark.parametrize("name", ["ID", "rownames", "row_names", "customer_id", "Unnamed: 0"])
def test_well_known_names_of_identifiers_need_no_such_evidence(name: str) -> None:
    column = np.random.default_rng(3).permutation(10**6)[:ROWS]
    assert infer(**{name: column}).ignored_names == (name,)
    assert infer(**{name: column + 0.5}).ignored_names == ()


FOLDER = os.environ.get("VERITRACER_DATA")


@pytest.mark.skipif(FOLDER is None, reason="dataset files not found: set VERITRACER_DATA")
@pytest.mark.parametrize("name", ["ctg", "german_credit", "heloc", "oula", "taiwan_credit", "who"])
@pytest.mark.parametrize("rows", [None, 300, 1000])
def test_only_the_identifier_of_a_published_table_is_dropped(name: str, rows: int | None) -> None:
    frame = pd.read_csv(Path(str(FOLDER)) / f"{name}.csv.gz")
    for seed in range(1 if rows is None else 3):
        sample = frame if rows is None else frame.sample(rows, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            ignored = Schema.infer(sample.reset_index(drop=True)).ignored_names
        assert ignored == (("ID",) if name == "taiwan_credit" else ())


def test_words_for_unknown_values_are_no_category() -> None:
    schema = infer(
        job=["cook", "clerk", "n/a", "?"] * 15, guarantor=["none", "spouse", "friend", "none"] * 15
    )
    assert (schema["job"].missing_codes, schema["job"].missing) == (("n/a", "?"), "category")
    assert schema["job"].categories == ("clerk", "cook")
    assert "none" in schema["guarantor"].categories


# ---------------------------------------------------------------- what is worth a look


def odd_table() -> tuple[pd.DataFrame, pd.Series[Any]]:
    """A table with one of everything."""
    rng = np.random.default_rng(0)
    y = pd.Series(rng.choice(["no", "yes"], 200)).where(np.arange(200) != 3)
    frame = pd.DataFrame(
        {
            "income": rng.normal(size=200),
            "leak": (y == "yes") + rng.normal(scale=0.01, size=200),
            "word": np.where(y == "yes", "kept", "gone"),
            "early": (y == "yes") + rng.normal(scale=0.4, size=200),
            "always": 5,
            "case": np.where(np.arange(200) % 3, "Ab", "ab"),
            "code": np.where(np.arange(200) % 10, rng.integers(1, 60, 200), -999),
            "shop": [f"s{i}" for i in rng.integers(0, 150, 200)],
            "gaps": np.where(np.arange(200) % 5, np.nan, 1.5 + np.arange(200)),
            "y": y,
        }
    )
    return pd.concat([frame, frame.iloc[:4]], ignore_index=True), y


def test_what_is_odd_is_found_and_named() -> None:
    frame, _ = odd_table()
    found = inspect_table(frame, "y")
    topics = {(finding.topic, finding.column) for finding in found.findings}
    assert topics == {
        (Topic.LEAKAGE, "leak"),
        (Topic.LEAKAGE, "word"),
        (Topic.LEAKAGE, "early"),
        (Topic.CONSTANT, "always"),
        (Topic.BETTER, "income"),
        (Topic.VARIANTS, "case"),
        (Topic.CODE, "code"),
        (Topic.MANY_CATEGORIES, "shop"),
        (Topic.MISSING, "gaps"),
        (Topic.LABELS, "y"),
        (Topic.DUPLICATES, None),
    }
    assert all(" — " in str(finding) for finding in found.findings)
    assert (found.rows, found.columns, found.targets) == (204, 10, ())
    assert inspect_table(frame.drop(columns="y")).targets == ["word", "case"]


def test_an_ordinary_table_is_not_complained_about() -> None:
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"a": rng.normal(size=300), "b": rng.integers(0, 90, 300), "c": rng.choice(list("xyz"), 300)}
    )
    frame["approved"] = np.where(frame["a"] + rng.normal(size=300) > 0, "yes", "no")
    assert findings(frame, Schema.infer(frame, "approved")) == []
    assert target_candidates(frame) == ["approved"]


def test_equal_rows_with_both_labels_and_a_rare_class() -> None:
    frame = pd.DataFrame({"a": [1.5, 1.5, 2.5] * 20, "y": ["no", "yes", "yes"] + ["yes"] * 57})
    topics = [finding.topic for finding in findings(frame, Schema.infer(frame, "y"))]
    assert topics == [Topic.RARE_CLASS, Topic.DUPLICATES, Topic.CONTRADICTIONS]
