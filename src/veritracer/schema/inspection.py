"""Report oddities of a table before training.

No cell is changed: each finding states the observation, the column and a remedy.
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
from veritracer.schema.inference import LeftOut, better_of, words_of
from veritracer.schema.labels import two
from veritracer.schema.schema import Schema

MANY = 50
"""Fewest categories for which a column is reported."""

FEW_ROWS = 5
"""A category with fewer rows is rare."""

LEAKAGE_AUC = 0.95
"""AUC of a single column from which it probably contains the decision."""

FEWEST_LABELS = 10
"""Fewest rows of either label for a report of leakage."""

MOST_ROWS = 50_000
"""Maximum number of evenly spread rows on which columns are compared with the labels."""

RARE_CLASS = 0.05

CHANCE = 3.0
"""Standard errors from zero above which a rank correlation is not due to chance."""

_CODES = (-1, -9, -99, -999, -9999, 99, 999, 9999, 99999, 999999)
_TARGETS = frozenset(
    ("target", "label", "class", "outcome", "decision", "approved", "accepted", "approval", "granted")
) | {"default", "defaulted", "risk", "status", "y", "response", "survived", "churn", "diagnosis", "result"}


class Topic(StrEnum):
    """Topics of findings."""

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
    BETTER = "better direction"


@dataclass(frozen=True)
class Finding:
    """An oddity of a table.

    Attributes
    ----------
    topic
        The kind of oddity.
    column
        The column; None for the table as a whole.
    seen, remedy
        The observation, and what to do about it.
    """

    topic: Topic
    column: str | None
    seen: str
    remedy: str

    def __str__(self) -> str:
        return f"{'' if self.column is None else f'{self.column}: '}{self.seen} — {self.remedy}"


def findings(frame: pd.DataFrame, schema: Schema) -> list[Finding]:
    """Return the oddities of a table with this schema, including those of its labels."""
    found = [*_left_out(schema), *_of_columns(frame, schema)]
    y = frame[schema.target] if schema.target in frame.columns else None
    if y is not None:
        found += [*_of_labels(y, schema), *_leakage(frame, y, schema)]
    found += _directions(frame, y, schema)
    return [*found, *_of_rows(frame, schema, y)]


def target_candidates(frame: pd.DataFrame) -> list[str]:
    """Return the columns with two values, first those whose names sound like a decision."""
    two = [str(name) for name in frame.columns if _has_two(frame[name])]
    return sorted(two, key=lambda name: not _TARGETS.intersection(words_of(name)))


def _has_two(column: pd.Series[Any]) -> bool:
    try:
        return len(pd.unique(column.dropna())) == 2
    except TypeError:
        return False


def _left_out(schema: Schema) -> Iterator[Finding]:
    for name, why in schema.ignored.items():
        if why in set(LeftOut):
            yield Finding(Topic.LEFT_OUT, name, f"left out: {why}", LeftOut(why).remedy)


def _of_columns(frame: pd.DataFrame, schema: Schema) -> Iterator[Finding]:
    for feature in schema.features:
        column = frame[feature.name]
        gone = column.isna() | column.isin(list(feature.missing_codes))
        if gone.mean() > 0.5:
            seen = f"{format_percent(float(gone.mean()))} of the cells are missing"
            yield Finding(Topic.MISSING, feature.name, seen, "check that it is known before the decision")
        if len(pd.unique(column[~gone])) == 1:
            seen = f"always {format_value(column[~gone].iloc[0])}"
            yield Finding(Topic.CONSTANT, feature.name, seen, "nothing can be learned from it: --ignore it")
        elif feature.is_numeric:
            yield from _codes(feature, numbers_of(feature, column))
        else:
            yield from _of_categories(feature, column[~gone])


def _codes(feature: Feature, values: NDArray[np.float64]) -> Iterator[Finding]:
    """Find numbers that look like codes for missing values: usual ones, at an end, far from all others."""
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
        seen = f"{listing(same)} differ only in capitals or spaces, but count as different values"
        yield Finding(Topic.VARIANTS, feature.name, seen, "use one spelling")


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
    """Find single columns that rank people nearly as well as the labels."""
    kept = y.notna().to_numpy()
    at = np.flatnonzero(kept)[:: max(1, int(kept.sum()) // MOST_ROWS)]
    if not _has_two(y):
        return
    first = (y.iloc[at] == two(y[kept])[0]).to_numpy()  # either label: an AUC is the same for both
    if min(first.sum(), (~first).sum()) < FEWEST_LABELS:
        return
    for feature in schema.features:
        found = _alone(feature, frame[feature.name].iloc[at], first)
        if found >= LEAKAGE_AUC:
            seen = f"predicts the label by itself (AUC {found:.3f})"
            remedy = "if it was recorded after the decision, --ignore it"
            yield Finding(Topic.LEAKAGE, feature.name, seen, remedy)


def _directions(frame: pd.DataFrame, y: pd.Series[Any] | None, schema: Schema) -> Iterator[Finding]:
    """Propose ``better`` for well-known names; find where the data contradict a direction."""
    for feature in schema.features:
        proposed = better_of(feature.name) if feature.action == "free" and feature.is_numeric else None
        better = feature.better or proposed
        if better is None:
            continue
        rank = _rank_correlation(feature, frame[feature.name], y, schema)
        opposite = "lower" if better == "higher" else "higher"
        if rank is not None and (rank < 0) == (better == "higher"):
            seen = f"better={better}, but rows with the wanted label have {opposite} values"
            remedy = "check what it measures, and for whom, before advice goes either way"
            yield Finding(
                Topic.BETTER,
                feature.name,
                f"{seen} (rank correlation {format_value(round(rank, 2))})",
                remedy,
            )
        elif feature.better is None:
            seen = f"{better} values are better in the world, as its name suggests"
            remedy = f"--better {feature.name}={better} keeps advice from going the other way"
            yield Finding(Topic.BETTER, feature.name, seen, remedy)


def _rank_correlation(
    feature: Feature, column: pd.Series[Any], y: pd.Series[Any] | None, schema: Schema
) -> float | None:
    """Return the rank correlation of a column with the favourable label; None if chance could explain it."""
    if y is None or schema.favourable is None or not _has_two(y):
        return None
    positions = {value: i for i, value in enumerate(feature.categories)}
    numbers = numbers_of(feature, column) if feature.is_numeric else column.map(positions)
    values = np.asarray(numbers, dtype=np.float64)
    present = np.isfinite(values) & y.notna().to_numpy()
    favourable = (y == schema.favourable).to_numpy()[present]
    if min(favourable.sum(), (~favourable).sum()) < FEWEST_LABELS or len(np.unique(values[present])) < 2:
        return None
    rank = float(np.corrcoef(pd.Series(values[present]).rank(), favourable)[0, 1])
    return rank if abs(rank) * np.sqrt(present.sum()) > CHANCE else None


def _alone(feature: Feature, column: pd.Series[Any], favourable: NDArray[np.bool_]) -> float:
    """Return the AUC of one column, with missing values at the better end, and categories by their rates."""
    if not feature.is_numeric:
        score = _rates(column.astype(object).where(column.notna(), "\0").astype(str), favourable)
        return area_under_curve(score, favourable)
    values = numbers_of(feature, column)
    ends = (np.nan_to_num(values, nan=end, posinf=0, neginf=0) for end in (-1e308, 1e308))
    areas = [area_under_curve(each, favourable) for each in ends]
    return max(max(area, 1 - area) for area in areas)


def _rates(column: pd.Series[Any], favourable: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return for each row the favourable share of its category in the other half of the rows."""
    half = np.random.default_rng(0).permutation(len(column)) % 2 == 0
    y = pd.Series(favourable.astype(float), index=column.index)
    score = np.full(len(column), favourable.mean())
    for mine in (half, ~half):
        rate = y[~mine].groupby(column[~mine].to_numpy()).mean()
        score[mine] = column[mine].map(rate).fillna(favourable.mean()).to_numpy()
    return score


def area_under_curve(score: NDArray[np.float64], favourable: NDArray[np.bool_]) -> float:
    """Return the probability that a favourable row has a higher score than another one; ties count half.

    >>> area_under_curve(np.array([1.0, 2.0, 3.0]), np.array([False, True, True]))
    1.0
    """
    rank = pd.Series(score).rank().to_numpy()
    yes, no = int(favourable.sum()), int((~favourable).sum())
    return float((rank[favourable].sum() - yes * (yes + 1) / 2) / (yes * no))


def numbers_of(feature: Feature, column: pd.Series[Any]) -> NDArray[np.float64]:
    """Return the numbers of a numeric feature, NaN if missing."""
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
    yield Finding(Topic.DUPLICATES, None, seen, "drop them if they are the same people")
    if y is not None:
        alike = frame[list(schema.names)].duplicated(keep=False)
        together = pd.util.hash_pandas_object(frame.loc[alike, list(schema.names)], index=False)
        differing = int((y[alike].astype(str).groupby(together.to_numpy()).nunique() > 1).sum())
        if differing:
            seen = f"{differing:,} groups of equal rows have both labels"
            yield Finding(Topic.CONTRADICTIONS, None, seen, "no model can decide all of them correctly")


@dataclass(frozen=True)
class Inspection:
    """The inferred schema of a table, with its oddities.

    Attributes
    ----------
    rows, columns
        Their numbers.
    schema
        The inferred schema, with the reason for each feature in its note.
    findings
        The oddities.
    targets
        Columns that could be the decision, if no target was named.
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
    """Inspect a table; ``hints`` are the arguments of ``Schema.infer``."""
    present = frame
    if target is not None and target in frame.columns and frame[target].isna().any():
        present = frame[frame[target].notna()]  # the schema needs labels; missing ones are a finding
    schema = Schema.infer(present, target, **hints)
    candidates = target_candidates(frame) if target is None else ()
    shares = {} if target is None else _shares(frame[target])
    return Inspection(len(frame), frame.shape[1], schema, findings(frame, schema), candidates, shares)


def _shares(y: pd.Series[Any]) -> dict[Value, float]:
    """Return the share of each of two labels among the rows that have one; empty for other columns."""
    present = y.dropna()
    return {value: float((present == value).mean()) for value in two(present)} if _has_two(present) else {}
