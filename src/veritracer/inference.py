"""Guesses about a table: what each column means, from its dtype and its values, said in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from .errors import DataError, SchemaError, message
from .feature import Feature, Kind, Policy, Value, is_number, plain
from .tables import unknown_name

_WHOLE_UP_TO = 1e15  # above it a float can not tell whole numbers from others
_REMEDIES = {
    "M": "turn dates into a number (days or months since a fixed day)",
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
    max_categories: int


@dataclass(frozen=True)
class Look:
    """What one look at a column shows: its distinct values (missing ones apart) and what they are."""

    values: list[Any]
    missing: int
    coded: int
    ordered: bool
    is_text: bool

    @property
    def numbers(self) -> bool:
        """True where every value is a number (and no boolean)."""
        return all(is_number(value) for value in self.values)

    @property
    def whole(self) -> bool:
        """True where every value is a whole number that a float can hold."""
        return self.numbers and all(abs(v) <= _WHOLE_UP_TO and v == int(v) for v in self.values)

    def said(self) -> str:
        """The counts, for a note."""
        parts = [
            f"{len(self.values):,} distinct",
            f"{self.missing:,} missing" if self.missing else "none missing",
        ]
        return ", ".join([*parts, f"{self.coded:,} coded as missing"] if self.coded else parts)


def features(frame: pd.DataFrame, hints: Hints) -> list[Feature]:
    """One feature for each column of ``frame``."""
    actions = _assigned(hints.actions, frame.columns, "action")
    kinds = _assigned({**hints.kinds, "ordinal": hints.ordinal}, frame.columns, "kind")
    policies = hints.missing if isinstance(hints.missing, Mapping) else {}
    settings = {
        "ranges": hints.ranges,
        "steps": hints.steps,
        "missing": policies,
        "missing_codes": hints.missing_codes,
    }
    for setting, names in settings.items():
        _known(names, frame.columns, setting)
    if frame.shape[1] == 0:
        raise DataError(
            message("at least one column beside the target", "none", "check how the table was read")
        )
    return [
        _feature(frame[name], hints, kinds.get(name), actions.get(name, "free")) for name in frame.columns
    ]


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


def _feature(column: pd.Series[Any], hints: Hints, kind: str | None, action: str) -> Feature:
    name = str(column.name)
    codes = tuple(plain(code) for code in hints.missing_codes.get(name, ()))
    look = _look(column, codes)
    if not look.values and kind != "ordinal":
        got = "only missing values" if look.missing or look.coded else "none"
        raise DataError(message(f"values in the column {name!r}", got, "drop the column"))
    guessed, because = _guess(look) if kind is None else (cast(Kind, kind), f"declared {kind}")
    lower, upper = hints.ranges.get(name, (None, None))
    numeric = guessed in ("continuous", "integer")
    return Feature(
        name,
        guessed,
        lower=lower,
        upper=upper,
        step=hints.steps.get(name),
        categories=() if numeric else _categories(name, guessed, look, hints),
        missing=_policy(name, guessed, look, hints),
        missing_codes=codes,
        action=cast(Any, action),
        note=f"{because}, {look.said()}" + (_said_policy(name, guessed, look, hints)),
    )


def _look(column: pd.Series[Any], codes: tuple[Any, ...]) -> Look:
    """The distinct values of a column; refuses columns that hold something other than values."""
    name, dtype = str(column.name), column.dtype
    categories = dtype.categories if isinstance(dtype, pd.CategoricalDtype) else None
    ordered = isinstance(dtype, pd.CategoricalDtype) and bool(dtype.ordered)
    kind = (dtype if categories is None else categories.dtype).kind
    if kind in _REMEDIES:
        raise DataError(
            message(f"numbers or text in the column {name!r}", f"the dtype {dtype}", _REMEDIES[kind])
        )
    try:
        positions, found = pd.factorize(column, sort=False)
    except TypeError:
        raise DataError(
            message(
                f"single values in the column {name!r}",
                "nested ones",
                "spread them over columns of their own",
            )
        ) from None
    values = [plain(value) for value in found]
    _refuse_foreign(name, values)
    coded = [i for i, value in enumerate(values) if value in codes]
    valid = [value for value in values if value not in codes]
    if categories is not None and ordered:
        valid = [plain(value) for value in categories if plain(value) not in codes]
    elif categories is not None:
        present = set(valid)
        valid = [plain(value) for value in categories if plain(value) in present]
    return Look(
        values=valid,
        missing=int((positions == -1).sum()),
        coded=int(np.isin(positions, coded).sum()),
        ordered=ordered,
        is_text=any(isinstance(value, str) for value in valid) or categories is not None,
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


def _guess(look: Look) -> tuple[Kind, str]:
    count = len(look.values)
    if look.ordered:
        return "ordinal", "ordered categories"
    if look.is_text or not (look.numbers or all(isinstance(value, bool) for value in look.values)):
        return ("binary", "two values of text") if count == 2 else ("categorical", "text")
    if not look.numbers:
        return ("binary", "booleans") if count == 2 else ("categorical", "booleans, always the same")
    if set(look.values) == {0, 1}:
        return "binary", "numbers 0 and 1"
    constant = ", always the same" if count == 1 else ""
    return ("integer", f"whole numbers{constant}") if look.whole else ("continuous", f"numbers{constant}")


def _categories(name: str, kind: str, look: Look, hints: Hints) -> Sequence[Any]:
    if name in hints.ordinal:
        return hints.ordinal[name]
    count = len(look.values)
    if count > hints.max_categories:
        raise DataError(
            message(
                f"at most {hints.max_categories:,} categories in the column {name!r}",
                f"{count:,}",
                "drop it if it is an identifier, group rare values, or raise max_categories",
            )
        )
    if kind == "binary" and count != 2:
        got = f"{count:,} of them"
        raise SchemaError(message(f"two values in the binary column {name!r}", got, "declare it categorical"))
    if look.ordered:
        return look.values
    values = [int(v) if is_number(v) and look.whole else v for v in look.values]
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def _policy(name: str, kind: str, look: Look, hints: Hints) -> Policy:
    """What was said for this column; else a policy only where values are missing."""
    if isinstance(hints.missing, str):
        return hints.missing
    if hints.missing is not None and name in hints.missing:
        return hints.missing[name]
    if not (look.missing or hints.missing_codes.get(name)):
        return "refuse"
    return "category" if kind == "categorical" or (kind == "binary" and look.is_text) else "impute"


def _said_policy(name: str, kind: str, look: Look, hints: Hints) -> str:
    said = isinstance(hints.missing, str) or (hints.missing is not None and name in hints.missing)
    policy = _policy(name, kind, look, hints)
    if said or policy == "refuse":
        return ""
    return (
        "; missing ones are filled and flagged"
        if policy == "impute"
        else "; missing is a category of its own"
    )
