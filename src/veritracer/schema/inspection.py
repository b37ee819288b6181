"""What is worth a look in a table before anything is learned from it.

Nothing here changes a cell: each finding says what was seen, in which column, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.errors import DataError, listing
from veritracer.formatting import format_percent, format_value
from veritracer.schema.feature import Feature, Value, is_number
from veritracer.schema.inference import LeftOut, words_of
from veritracer.schema.labels import two
from veritracer.schema.schema import Schema

MANY = 50
"""Categories from which on a column is reported."""

FEW_ROWS = 5
"""A category with fewer rows is rare."""

LEAKAGE_AUC = 0.99
"""A column that ranks people this well alone probably knows the decision."""

FEWEST_LABELS = 10
"""Rows of either label below which no column is suspected of knowing it."""

MOST_ROWS = 50_000
"""Rows, evenly spread, on which columns are held against the labels."""

RARE_CLASS = 0.05

_CODES = (-1, -9, -99, -999, -9999, 99, 999, 9999, 99999, 999999)
_TARGETS = frozenset(
    ("target", "label", "class", "outcome", "decision", "approved", "accepted", "approval", "granted")
) | {"default", "defaulted", "risk", "status", "y", "response", "survived", "churn", "diagnosis", "result"}


class Topic(StrEnum):
    """What a finding is about."""

    LEFT_OUT = "left out"
    CONSTANT = "constant"
    MANY_CATEGORIES = "many categories"
    VARIANTS = "variants"
    MISSING = "missing"
    CODE = "code for missing"
    LEAKAGE = "leakage"
    DUPLICATES = "duplicated rows"
    CONTRADICTIONS = "contradicting labels"
    LABELS = "missing labels"
    RARE_CLASS = "rare class"


@dataclass(frozen=True)
class Finding:
    """Something in a table that somebody should look at.

    Attributes
    ----------
    topic
        What it is about.
    column
        Where; None for the table as a whole.
    seen, remedy
        What was seen, and what to do about it.
    """

    topic: Topic
    column: str | None
    seen: str
    remedy: str

    def __str__(self) -> str:
        return f"{'' if self.column is None else f'{self.column}: '}{self.seen} — {self.remedy}"


def findings(frame: pd.DataFrame, schema: Schema) -> list[Finding]:
    """What is worth a look in ``frame``, as ``schema`` describes it; about the labels, where it has them."""
    found = [*_left_out(schema), *_of_columns(frame, schema)]
    y = frame[schema.target] if schema.target in frame.columns else None
    if y is not None:
        found += [*_of_labels(y, schema), *_leakage(frame, y, schema)]
    return [*found, *_of_rows(frame, schema, y)]


def target_candidates(frame: pd.DataFrame) -> list[str]:
    """The columns that have two values, those first whose names sound like a decision."""
    two = [str(name) for name in frame.columns if _has_two(frame[name])]
    return sorted(two, key=lambda name: not _TARGETS.intersection(words_of(name)))


def _has_two(column: pd.Series[Any]) -> bool:
    try:
        return len(pd.unique(column.dropna())) == 2
    except TypeError:
        return False


def _left_out(schema: Schema) -> Iterator[Finding]:
    for column in schema.ignored:
        if column.why in set(LeftOut):
            yield Finding(Topic.LEFT_OUT, column.name, f"left out: {column.why}", LeftOut(column.why).remedy)


def _of_columns(frame: pd.DataFrame, schema: Schema) -> Iterator[Finding]:
    for feature in schema.features:
        column = frame[feature.name]
        gone = column.isna() | column.isin(list(feature.missing_codes))
        if gone.mean() > 0.5:
            seen = f"{format_percent(float(gone.mean()))} of the cells are missing"
            yield Finding(Topic.MISSING, feature.name, seen, "is it known when people are decided on?")
        if len(pd.unique(column[~gone])) == 1:
            seen = f"always {format_value(column[~gone].iloc[0])}"
            yield Finding(Topic.CONSTANT, feature.name, seen, "nothing can be learned from it: --ignore it")
        elif feature.is_numeric:
            yield from _codes(feature, numbers_of(feature, column))
        else:
            yield from _of_categories(feature, column[~gone])


def _codes(feature: Feature, values: NDArray[np.float64]) -> Iterator[Finding]:
    """Numbers that look like a code for missing: usual ones, at an end, far from all others."""
    present = values[np.isfinite(values)]
    for code in _CODES:
        others, count = present[present != code], int((present == code).sum())
        if count < 2 or len(others) < 2:
            continue
        low, high = float(others.min()), float(others.max())
        gap = max(low - code, code - high)
        if gap > 0 and (code < 0 <= low or gap > (high - low)):
            seen = f"{count:,} times {code:,}, far from all others ({low:g} to {high:g})"
            remedy = f"if it means missing, add missing_codes [{code}] to the schema"
            yield Finding(Topic.CODE, feature.name, seen, remedy)


def _of_categories(feature: Feature, column: pd.Series[Any]) -> Iterator[Finding]:
    counts = column.value_counts()
    rare = int((counts < FEW_ROWS).sum())
    if len(counts) >= MANY:
        seen = f"{len(counts):,} categories, {rare:,} of them with fewer than {FEW_ROWS} rows"
        yield Finding(Topic.MANY_CATEGORIES, feature.name, seen, "group the rare ones, or --ignore it")
    by_form: dict[str, list[str]] = {}
    for text in (value for value in counts.index if isinstance(value, str)):
        by_form.setdefault(" ".join(text.casefold().split()), []).append(text)
    same = next((texts for texts in by_form.values() if len(texts) > 1), None)
    if same is not None:
        seen = f"{listing(same)} differ only in capitals or spaces, and are taken for different values"
        yield Finding(Topic.VARIANTS, feature.name, seen, "write them alike")


def _of_labels(y: pd.Series[Any], schema: Schema) -> Iterator[Finding]:
    missing = int(y.isna().sum())
    if missing:
        seen, remedy = f"{missing:,} of {len(y):,} rows have no label", "fit --rejects FILE leaves them out"
        yield Finding(Topic.LABELS, schema.target, seen, remedy)
    shares = _shares(y)
    if not shares:
        return
    rare, share = min(shares.items(), key=lambda each: each[1])
    if share < RARE_CLASS:
        seen = f"{rare!r} has {format_percent(share)} of the rows"
        remedy = "accuracy says little then: see --class-weight balanced and --threshold"
        yield Finding(Topic.RARE_CLASS, schema.target, seen, remedy)


def _leakage(frame: pd.DataFrame, y: pd.Series[Any], schema: Schema) -> Iterator[Finding]:
    """Columns that rank people nearly as the labels do, alone."""
    kept = y.notna().to_numpy()
    at = np.flatnonzero(kept)[:: max(1, int(kept.sum()) // MOST_ROWS)]
    if not _has_two(y):
        return
    first = (y.iloc[at] == two(y[kept])[0]).to_numpy()  # either label: an AUC is the same for both
    if min(first.sum(), (~first).sum()) < FEWEST_LABELS:
        return
    for feature in schema.features:
        found = _alone(feature, frame[feature.name].iloc[at], first)
        if found > LEAKAGE_AUC:
            seen = f"knows the label nearly alone (AUC {found:.3f})"
            remedy = "was it recorded after the decision? then --ignore it"
            yield Finding(Topic.LEAKAGE, feature.name, seen, remedy)


def _alone(feature: Feature, column: pd.Series[Any], favourable: NDArray[np.bool_]) -> float:
    """The AUC of one column, its missing values at the better end; categories by the rate of other rows."""
    if not feature.is_numeric:
        score = _rates(column.astype(object).where(column.notna(), "\0").astype(str), favourable)
        return area_under_curve(score, favourable)
    values = numbers_of(feature, column)
    ends = (np.nan_to_num(values, nan=end, posinf=0, neginf=0) for end in (-1e308, 1e308))
    areas = [area_under_curve(each, favourable) for each in ends]
    return max(max(area, 1 - area) for area in areas)


def _rates(column: pd.Series[Any], favourable: NDArray[np.bool_]) -> NDArray[np.float64]:
    """For each row the share of favourable rows of its category, among the rows of the other half."""
    half = np.random.default_rng(0).permutation(len(column)) % 2 == 0
    y = pd.Series(favourable.astype(float), index=column.index)
    score = np.full(len(column), favourable.mean())
    for mine in (half, ~half):
        rate = y[~mine].groupby(column[~mine].to_numpy()).mean()
        score[mine] = column[mine].map(rate).fillna(favourable.mean()).to_numpy()
    return score


def area_under_curve(score: NDArray[np.float64], favourable: NDArray[np.bool_]) -> float:
    """The chance that a favourable row has a higher score than another one, ties counted half.

    >>> area_under_curve(np.array([1.0, 2.0, 3.0]), np.array([False, True, True]))
    1.0
    """
    rank = pd.Series(score).rank().to_numpy()
    yes, no = int(favourable.sum()), int((~favourable).sum())
    return float((rank[favourable].sum() - yes * (yes + 1) / 2) / (yes * no))


def numbers_of(feature: Feature, column: pd.Series[Any]) -> NDArray[np.float64]:
    """The numbers of a numeric feature, NaN where one is missing."""
    codes = list(feature.missing_codes)
    present = column.mask(column.isin(codes)) if codes else column
    if pd.api.types.is_numeric_dtype(present.dtype):
        return present.to_numpy(dtype=np.float64, na_value=np.nan)
    written = feature.writing
    read = {
        value: written.read(value) if isinstance(value, str) and written else value
        for value in pd.unique(present.dropna())
    }
    known = {value: number for value, number in read.items() if is_number(number)}
    return present.map(known).to_numpy(dtype=np.float64, na_value=np.nan)


def _of_rows(frame: pd.DataFrame, schema: Schema, y: pd.Series[Any] | None) -> Iterator[Finding]:
    try:
        again = frame[list(schema.names)].duplicated(keep="first")
    except TypeError as error:
        raise DataError(str(error)) from None
    if not again.any():
        return
    seen = f"{int(again.sum()):,} of {len(frame):,} rows repeat an earlier one"
    yield Finding(Topic.DUPLICATES, None, seen, "drop them if they are the same people, and not only alike")
    if y is not None:
        alike = frame[list(schema.names)].duplicated(keep=False)
        together = pd.util.hash_pandas_object(frame.loc[alike, list(schema.names)], index=False)
        differing = int((y[alike].astype(str).groupby(together.to_numpy()).nunique() > 1).sum())
        if differing:
            seen = f"{differing:,} groups of equal rows have both labels"
            yield Finding(Topic.CONTRADICTIONS, None, seen, "no model can be right about all of them")


@dataclass(frozen=True)
class Inspection:
    """A table looked at: what it was taken for, and what somebody should look at.

    Attributes
    ----------
    rows, columns
        How many there are.
    schema
        What the columns were taken for, and why.
    findings
        What is worth a look.
    targets
        Columns that could be the decision, where none was named.
    shares
        The share of each label, in ascending order of the labels, among the rows that have one; empty
        without a target.
    """

    rows: int
    columns: int
    schema: Schema
    findings: Sequence[Finding]
    targets: Sequence[str] = ()
    shares: Mapping[Value, float] = field(default_factory=dict)


def inspect_table(frame: pd.DataFrame, target: str | None = None, **hints: Any) -> Inspection:
    """What is in a table; ``hints`` are those of ``Schema.infer``."""
    present = frame
    if target is not None and target in frame.columns and frame[target].isna().any():
        present = frame[frame[target].notna()]  # the schema needs labels; what lacks one is a finding
    schema = Schema.infer(present, target, **hints)
    candidates = target_candidates(frame) if target is None else ()
    shares = {} if target is None else _shares(frame[target])
    return Inspection(len(frame), frame.shape[1], schema, findings(frame, schema), candidates, shares)


def _shares(y: pd.Series[Any]) -> dict[Value, float]:
    """Return the share of each of two labels among the rows that have one; nothing for other columns."""
    present = y.dropna()
    return {value: float((present == value).mean()) for value in two(present)} if _has_two(present) else {}
