"""Guesses about a table: what each column means, from its dtype and its values, said in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.errors import DataError, SchemaError, message, unknown_name
from veritracer.schema import recognition
from veritracer.schema.feature import Feature, Kind, Policy, Value, is_number, plain
from veritracer.schema.number_formats import NumberFormat
from veritracer.schema.recognition import characteristic

_WHOLE_UP_TO = 1e15  # above it a float cannot tell whole numbers from others
_REMEDIES = {
    "M": "turn dates into a number (days or months since a fixed day), or leave the column out",
    "m": "turn durations into a number, for example by .dt.days",
    "c": "use two columns, the real and the imaginary part",
}


@dataclass(frozen=True)
class Hints:
    """What the user said about the columns; the rest is guessed."""

    actions: Mapping[str, Iterable[str]]
    kinds: Mapping[str, Iterable[str]]
    ordinal: Mapping[str, Sequence[Value]]
    ranges: Mapping[str, tuple[float | None, float | None]]
    steps: Mapping[str, float]
    missing: Mapping[str, Policy] | Policy | None
    missing_codes: Mapping[str, Sequence[Value]]
    number_formats: Mapping[str, str]
    max_categories: int

    def spoken(self, name: str) -> bool:
        """Whether anything was said about a column: then it is not left out."""
        groups = (*self.actions.values(), *self.kinds.values(), self.ordinal, self.ranges, self.steps)
        said = self.missing if isinstance(self.missing, Mapping) else ()
        return any(name in group for group in (*groups, self.missing_codes, self.number_formats, said))

    def with_codes(self, name: str, codes: Sequence[Value]) -> Hints:
        """The same with these codes for a column."""
        return replace(self, missing_codes={**self.missing_codes, name: codes})


@dataclass(frozen=True)
class ColumnProfile:
    """What one profile at a column shows: its distinct values (missing ones apart) and what they are.

    ``values`` is None where there are more of them than any list of categories may have.
    """

    values: list[Any] | None
    count: int
    missing: int
    coded: int
    numbers: bool
    whole: bool
    booleans: bool
    is_text: bool
    listed: bool  # by the dtype, in an order of its own
    ordered: bool

    def said(self) -> str:
        """The counts, for a note."""
        parts = [f"{self.count:,} distinct", f"{self.missing:,} missing" if self.missing else "none missing"]
        return ", ".join([*parts, f"{self.coded:,} coded as missing"] if self.coded else parts)


def features(
    frame: pd.DataFrame, hints: Hints, *, leave_out: bool
) -> tuple[list[Feature], dict[str, recognition.LeftOut]]:
    """One feature for each column of ``frame``, but for those that are left out, and why they are."""
    actions = _assigned(hints.actions, frame.columns, "action")
    kinds = _assigned({**hints.kinds, "ordinal": hints.ordinal}, frame.columns, "kind")
    policies = hints.missing if isinstance(hints.missing, Mapping) else {}
    settings = {
        "ranges": hints.ranges,
        "steps": hints.steps,
        "missing": policies,
        "missing_codes": hints.missing_codes,
        "number_formats": hints.number_formats,
    }
    for setting, names in settings.items():
        _known(names, frame.columns, setting)
    for example in hints.number_formats.values():
        NumberFormat.of(example)
    if frame.shape[1] == 0:
        raise DataError(
            message("at least one column beside the target", "none", "check how the table was read")
        )
    people = _people(frame) if leave_out else len(frame)
    found = {
        n: _feature(frame[n], hints, kinds.get(n), actions.get(n), leave_out, people) for n in frame.columns
    }
    left_out = {name: each for name, each in found.items() if isinstance(each, recognition.LeftOut)}
    described = [each for each in found.values() if isinstance(each, Feature)]
    if not described:
        name, why = next(iter(left_out.items()))
        received = f"{name!r}, which is {why}" + (" and others like it" if len(left_out) > 1 else "")
        remedy = "add columns, or name those to use among the columns of a kind"
        raise DataError(message("at least one column that describes people", received, remedy))
    return described, left_out


def _people(frame: pd.DataFrame) -> int:
    """How many different rows there are: one that stands in the table twice is one person.

    Two columns or one do not say who is who.
    """
    if frame.shape[1] < 3:
        return len(frame)
    try:
        return len(frame) - int(frame.duplicated().sum())
    except TypeError:  # cells that are lists, which are refused later
        return len(frame)


def _assigned(groups: Mapping[str, Iterable[str]], columns: Iterable[str], what: str) -> dict[str, str]:
    """For each name the one group that it is in."""
    out: dict[str, str] = {}
    for group, names in groups.items():
        if isinstance(names, str):
            raise SchemaError(
                message(f"a list of columns for {group}", repr(names), f"write {group}=[{names!r}]")
            )
        for name in _known(names, columns, group):
            if out.setdefault(name, group) != group:
                got = f"{name!r} in {out[name]} and in {group}"
                raise SchemaError(
                    message(f"one {what} for each column", got, "remove it from one of the two")
                )
    return out


def _known(names: Iterable[str], columns: Iterable[str], group: str) -> list[str]:
    names, columns = list(names), list(columns)
    for name in names:
        if name not in columns:
            raise SchemaError(unknown_name(f"a feature column in {group}", name, columns))
    return names


def _feature(
    column: pd.Series[Any], hints: Hints, kind: str | None, action: str | None, leave_out: bool, people: int
) -> Feature | recognition.LeftOut:
    """The feature of a column; what looks like a protected characteristic may not change by itself."""
    name = str(column.name)
    protected = characteristic(name) if action is None else None
    codes = tuple(plain(code) for code in hints.missing_codes.get(name, ()))
    found: Any = None
    if kind not in ("categorical", "binary", "ordinal"):
        keep = not leave_out or hints.spoken(name)
        found = recognition.recognised(column, hints.number_formats.get(name), codes, people, keep=keep)
    if isinstance(found, recognition.LeftOut):
        return found
    codes += () if found is None else found.unknown
    hints = hints if found is None or not found.unknown else hints.with_codes(name, codes)
    profile = _profile_of(column, found, codes, hints.max_categories)
    if not profile.count and kind != "ordinal":
        got = "only missing values" if profile.missing or profile.coded else "none"
        raise DataError(message(f"values in the column {name!r}", got, "drop the column"))
    guessed, because = _guess(profile) if kind is None else (cast(Kind, kind), f"declared {kind}")
    lower, upper = hints.ranges.get(name, (None, None))
    numeric = guessed in ("continuous", "integer")
    return Feature(
        name,
        guessed,
        lower=lower,
        upper=upper,
        step=hints.steps.get(name),
        categories=() if numeric else _categories(name, guessed, profile, hints),
        missing=_policy(name, guessed, profile, hints),
        missing_codes=codes,
        action=cast(Any, "immutable" if protected else action or "free"),
        number_format=found.writing.example if isinstance(found, recognition.Numbers) and numeric else None,
        note=f"{because}{_said_format(found)}, {profile.said()}{_said_policy(name, guessed, profile, hints)}"
        + _protection(protected),
    )


def _profile_of(
    column: pd.Series[Any],
    found: recognition.Numbers | recognition.Texts | None,
    codes: tuple[Any, ...],
    limit: int,
) -> ColumnProfile:
    """What the column holds; of numbers written as text, what the numbers are."""
    if not isinstance(found, recognition.Numbers):
        return _profile(column, codes, limit)
    profile = _profile(found.column, tuple(code for code in codes if is_number(code)), limit)
    empty = int(column.isna().sum())
    return replace(profile, missing=empty, coded=profile.coded + found.unknown_cells)


def _said_format(found: object) -> str:
    if not isinstance(found, recognition.Numbers | recognition.Texts):
        return ""
    words = f" ({', '.join(map(repr, found.unknown))} read as unknown)" if found.unknown else ""
    if isinstance(found, recognition.Texts):
        return words
    return f", written as text like {found.writing.example}{words}"


def _protection(kind: str | None) -> str:
    """That a name looks like a protected characteristic, for a note."""
    if kind is None:
        return ""
    return f"; immutable, since its name looks like a protected characteristic ({kind})"


def _distinct(column: pd.Series[Any]) -> tuple[NDArray[np.intp], Any]:
    """For each cell the position of its value (-1: empty), and the values; refuses other contents."""
    name, dtype = str(column.name), column.dtype
    kind = (dtype.categories.dtype if isinstance(dtype, pd.CategoricalDtype) else dtype).kind
    if kind in _REMEDIES:
        remedy = _REMEDIES[kind]
        raise DataError(message(f"numbers or text in the column {name!r}", f"the dtype {dtype}", remedy))
    try:
        return pd.factorize(column)
    except TypeError:
        remedy = "spread them over columns of their own"
        raise DataError(message(f"single values in the column {name!r}", "nested ones", remedy)) from None


def _profile(column: pd.Series[Any], codes: tuple[Any, ...], limit: int) -> ColumnProfile:
    """What the column holds beside empty cells and ``codes``."""
    name, dtype = str(column.name), column.dtype
    categories = dtype.categories if isinstance(dtype, pd.CategoricalDtype) else None
    ordered = isinstance(dtype, pd.CategoricalDtype) and bool(dtype.ordered)
    positions, found = _distinct(column)
    missing = int((positions == -1).sum())
    if categories is None and dtype.kind in "iuf" and len(found) > limit:
        return _profile_of_numbers(
            name, np.asarray(found, dtype=np.float64)[positions[positions >= 0]], codes, missing
        )
    if isinstance(dtype, pd.StringDtype) and len(found) > limit + len(codes):
        raise _too_many(name, len(found), limit)  # before a million strings become objects
    values = [plain(value) for value in found]
    _refuse_foreign(name, values)
    coded = [i for i, value in enumerate(values) if value in codes]
    valid = [value for value in values if value not in codes]
    if categories is not None:
        present = set(categories.tolist() if ordered else valid)
        valid = [plain(v) for v in categories if plain(v) in present and plain(v) not in codes]
    numbers = all(is_number(value) for value in valid)
    return ColumnProfile(
        values=valid,
        count=len(valid),
        missing=missing,
        coded=int(np.isin(positions, coded).sum()),
        numbers=numbers,
        whole=numbers and all(abs(v) <= _WHOLE_UP_TO and v == int(v) for v in valid),
        booleans=all(isinstance(value, bool) for value in valid),
        is_text=categories is not None or any(isinstance(value, str) for value in valid),
        listed=categories is not None,
        ordered=ordered,
    )


def _profile_of_numbers(
    name: str, cells: NDArray[np.float64], codes: tuple[Any, ...], missing: int
) -> ColumnProfile:
    """The same for many different numbers, without turning each of them into an object."""
    _refuse_foreign(name, cells[np.isinf(cells)][:1].tolist())
    is_code = np.isin(cells, [float(code) for code in codes if is_number(code)])
    valid = np.unique(cells[~is_code])
    whole = bool(((np.abs(valid) <= _WHOLE_UP_TO) & (valid == np.rint(valid))).all())
    return ColumnProfile(
        None, len(valid), missing, int(is_code.sum()), True, whole, False, False, False, False
    )


def _refuse_foreign(name: str, values: list[Any]) -> None:
    for value in values:
        if not isinstance(value, bool | int | float | str):
            got = f"{value!r} of type {type(value).__name__}"
            raise DataError(
                message(
                    f"text, numbers or booleans in the column {name!r}",
                    got,
                    "convert it, e.g. by .astype(str)",
                )
            )
        if isinstance(value, float) and math.isinf(value):
            raise DataError(
                message(
                    f"finite numbers in the column {name!r}",
                    f"{value}",
                    "replace it by a number or an empty cell",
                )
            )


def _guess(profile: ColumnProfile) -> tuple[Kind, str]:
    if profile.ordered:
        return "ordinal", "ordered categories"
    if profile.is_text or not (profile.numbers or profile.booleans):
        return ("binary", "two values of text") if profile.count == 2 else ("categorical", "text")
    if profile.booleans:
        return ("binary", "booleans") if profile.count == 2 else ("categorical", "booleans, always the same")
    if profile.values is not None and set(profile.values) == {0, 1}:
        return "binary", "numbers 0 and 1"
    constant = ", always the same" if profile.count == 1 else ""
    return ("integer", f"whole numbers{constant}") if profile.whole else ("continuous", f"numbers{constant}")


def _too_many(name: str, count: int, limit: int) -> DataError:
    remedy = "drop it if it is an identifier, group rare values, or raise max_categories"
    return DataError(message(f"at most {limit:,} categories in the column {name!r}", f"{count:,}", remedy))


def _categories(name: str, kind: str, profile: ColumnProfile, hints: Hints) -> Sequence[Any]:
    if name in hints.ordinal:
        return hints.ordinal[name]
    if profile.values is None or profile.count > hints.max_categories:
        raise _too_many(name, profile.count, hints.max_categories)
    if kind == "binary" and profile.count != 2:
        got = f"{profile.count:,} of them"
        raise SchemaError(message(f"two values in the binary column {name!r}", got, "declare it categorical"))
    if profile.listed:
        return profile.values
    values = [int(value) if profile.whole else value for value in profile.values]
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def _policy(name: str, kind: str, profile: ColumnProfile, hints: Hints) -> Policy:
    """What was said for this column; else a policy only where values are missing."""
    if isinstance(hints.missing, str):
        return hints.missing
    if hints.missing is not None and name in hints.missing:
        return hints.missing[name]
    if not (profile.missing or hints.missing_codes.get(name)):
        return "refuse"
    return "category" if kind == "categorical" or (kind == "binary" and profile.is_text) else "impute"


def _said_policy(name: str, kind: str, profile: ColumnProfile, hints: Hints) -> str:
    said = isinstance(hints.missing, str) or (hints.missing is not None and name in hints.missing)
    policy = _policy(name, kind, profile, hints)
    if said or policy == "refuse":
        return ""
    return (
        "; missing ones are filled and flagged"
        if policy == "impute"
        else "; missing is a category of its own"
    )


def with_yearly(features: Iterable[Feature], yearly: Mapping[str, Sequence[float]]) -> list[Feature]:
    """The features, with what a year brings by itself where it is said."""
    found = list(features)
    for name in yearly:
        if name not in [feature.name for feature in found]:
            raise SchemaError(unknown_name("a column in yearly", name, [f.name for f in found]))
    return [f.replace(yearly=yearly[f.name]) if f.name in yearly else f for f in found]
