"""Infer the kind of each column from its name, its dtype and its values.

The note of each feature states the reason. Numbers in text are read in the format that fits all of them;
ambiguous and inconsistent formats are refused with a remedy. Identifiers, free text and dates are left out,
with the reason.

Features whose names look like a protected characteristic are immutable, so that nobody is asked to change
them. This is a guess from the name alone, in some European languages; ``Schema.infer(free=...)`` or an edit
of the schema overrides it.
"""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.errors import DataError, SchemaError, message, unknown_name
from veritracer.formatting import to_python, to_python_list
from veritracer.schema.feature import Feature, Kind, Policy, Value, is_number
from veritracer.schema.number_formats import (
    PLAIN,
    Ambiguous,
    NumberFormat,
    is_date,
    is_missing_word,
    number_format,
)

FEWEST_ROWS = 20
"""Fewest rows in which distinct values suggest an identifier."""

NEARLY_ALL = 0.95
MOSTLY = 0.8
FEWEST_NUMBERS = 10
"""Fewest distinct numbers in a column for which other texts in it are mistakes, not categories."""

_IDENTIFIERS = frozenset(["id", "ids", "uuid", "guid", "index", "idx", "rownum", "rowid", "unnamed"])
_IDENTIFIERS_AT_THE_END = frozenset(["nr", "no", "num", "number", "key", "ref", "row", "code"])

_WORDS: dict[str, str] = {
    "age": "age ages alter edad eta idade leeftijd alder",
    "sex or gender": "sex gender geschlecht sexe genre sexo genero sesso genere geslacht kon male female",
    "ethnicity": "race ethnicity ethnic ethnie ethnique etnia rasse hispanic",
    "nationality": "nationality citizenship citizen foreign foreigner immigrant nationalite nationalitat "
    "staatsangehorigkeit nacionalidad nacionalidade nazionalita nationaliteit",
    "religion": "religion religious faith konfession religione religiao",
    "marital status": "marital married familienstand personal_status marital_status civil_status etat_civil "
    "estado_civil stato_civile burgerlijke_staat",
    "disability": "disability disabled handicap handicapped behinderung discapacidad invalidite disabilita",
    "date of birth": "birth birthdate birthday birthyear dob geburtsdatum geburtstag geburtsjahr naissance "
    "nacimiento nascimento nascita geboortedatum yob",
    "pregnancy": "pregnant pregnancy schwanger schwangerschaft enceinte embarazo",
    "sexual orientation": "sexual_orientation",
}
_KNOWN = {word: kind for kind, words in _WORDS.items() for word in words.split()}

# The age of a thing is nobody's age.
_THINGS = frozenset(
    {"account", "accounts", "asset", "building", "business", "car", "card", "company", "contract", "credit"}
    | {"debt", "device", "equipment", "file", "history", "home", "house", "line", "lines", "loan", "policy"}
    | {"property", "trade", "trades", "vehicle"}
)

# Words of columns that grow by themselves as time passes, beside the age of a person or a thing.
_LENGTHS = frozenset({"tenure", "seniority", "experience"})
_SINCE = frozenset(
    {"since", "msince", "employed", "employment", "job", "work", "worked", "service", "residence"}
) | {
    *("resident", "address", "history", "customer", "member", "membership", "account", "file", "open"),
    *("opened", "old", "oldest", "company", "bank", "at", "on", "in", "with"),
}
_NOT_GROWING = frozenset({"until", "till", "left", "remaining", "term", "duration", "next", "number", "num"})
_TIMES: dict[str, float] = {
    **dict.fromkeys(("year", "years", "yr", "yrs", "jahre"), 1.0),
    **dict.fromkeys(("month", "months", "mth", "mths", "mon", "monate", "msince"), 12.0),
    **dict.fromkeys(("week", "weeks", "wochen"), 365 / 7),
    **dict.fromkeys(("day", "days", "tage"), 365.0),
}
_MOST_YEARS = 60.0
"""Longest time in a job or with a company, in years: larger numbers without a unit are months."""

_WHOLE_UP_TO = 1e15  # above it a float cannot tell whole numbers from others
_REMEDIES = {
    "M": "turn dates into a number (days or months since a fixed day), or leave the column out",
    "m": "turn durations into a number, for example by .dt.days",
    "c": "use two columns, the real and the imaginary part",
}


@dataclass(frozen=True)
class Hints:
    """Statements of the user about columns; everything else is inferred."""

    actions: Mapping[str, Iterable[str]]
    kinds: Mapping[str, Iterable[str]]
    ordinal: Mapping[str, Sequence[Value]]
    ranges: Mapping[str, tuple[float | None, float | None]]
    steps: Mapping[str, float]
    missing: Mapping[str, Policy] | Policy | None
    missing_codes: Mapping[str, Sequence[Value]]
    number_formats: Mapping[str, str]
    yearly: Mapping[str, Sequence[float] | None]
    max_categories: int

    def mentions(self, name: str) -> bool:
        """Return True if a hint mentions a column, which is then never left out."""
        groups = (*self.actions.values(), *self.kinds.values(), self.ordinal, self.ranges, self.steps)
        policies = self.missing if isinstance(self.missing, Mapping) else ()
        return any(name in group for group in (*groups, self.missing_codes, self.number_formats, policies))


Content = Literal["whole numbers", "numbers", "booleans", "text", "mixed"]


@dataclass(frozen=True)
class ColumnProfile:
    """Profile of a column: its distinct values, without missing ones, and their type.

    ``values`` is None if there are more than a feature may have categories. ``listed`` and ``ordered`` are
    those of a categorical dtype.
    """

    content: Content
    values: list[Any] | None
    count: int
    missing: int
    coded: int
    largest: float = math.inf
    listed: bool = False
    ordered: bool = False

    def counts(self) -> str:
        """Describe the counts, for a note."""
        parts = [f"{self.count:,} distinct", f"{self.missing:,} missing" if self.missing else "none missing"]
        return ", ".join([*parts, f"{self.coded:,} coded as missing"] if self.coded else parts)


def features(
    frame: pd.DataFrame, hints: Hints, *, leave_out: bool
) -> tuple[list[Feature], dict[str, LeftOut]]:
    """Infer a feature for each column, and return the columns that are left out with their reasons."""
    actions = _assigned(hints.actions, frame.columns, "action")
    kinds = _assigned({**hints.kinds, "ordinal": hints.ordinal}, frame.columns, "kind")
    policies = hints.missing if isinstance(hints.missing, Mapping) else {}
    settings = {
        "ranges": hints.ranges,
        "steps": hints.steps,
        "missing": policies,
        "missing_codes": hints.missing_codes,
        "number_formats": hints.number_formats,
        "yearly": hints.yearly,
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
    inferred = {
        n: _feature(frame[n], hints, kinds.get(n), actions.get(n), leave_out, people) for n in frame.columns
    }
    left_out = {name: each for name, each in inferred.items() if isinstance(each, LeftOut)}
    described = [each for each in inferred.values() if isinstance(each, Feature)]
    if not described:
        name, why = next(iter(left_out.items()))
        received = f"{name!r}, which is {why}" + (" and others like it" if len(left_out) > 1 else "")
        remedy = "add columns, or declare the kinds of those to use"
        raise DataError(message("at least one column that describes people", received, remedy))
    return described, left_out


def _people(frame: pd.DataFrame) -> int:
    """Count the distinct rows, which are people; with fewer than three columns, count all rows."""
    if frame.shape[1] < 3:
        return len(frame)
    try:
        return len(frame) - int(frame.duplicated().sum())
    except TypeError:  # cells that are lists, which are refused later
        return len(frame)


def _assigned(groups: Mapping[str, Iterable[str]], columns: Iterable[str], what: str) -> dict[str, str]:
    """Return the group of each name, and refuse names in two groups."""
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
) -> Feature | LeftOut:
    """Infer the feature of a column; a protected characteristic becomes immutable."""
    name = str(column.name)
    codes = tuple(to_python(code) for code in hints.missing_codes.get(name, ()))
    text: TextColumn | LeftOut | None = None
    if kind not in ("categorical", "binary", "ordinal"):
        keep = not leave_out or hints.mentions(name)
        text = recognise(column, hints.number_formats.get(name), codes, people, keep=keep)
    if isinstance(text, LeftOut):
        return text
    profile = (
        _profile(column, codes, hints.max_categories) if text is None else text.profile(column, codes, hints)
    )
    codes += () if text is None else text.unknown
    if not profile.count and kind != "ordinal":
        got = "only missing values" if profile.missing or profile.coded else "none"
        raise DataError(message(f"values in the column {name!r}", got, "drop the column"))
    guessed, note = _guess(profile) if kind is None else (cast(Kind, kind), f"declared {kind}")
    numeric = guessed in ("continuous", "integer")
    policy, policy_note = _policy(name, guessed, profile, bool(codes), hints.missing)
    note += f"{'' if text is None else text.note}, {profile.counts()}{policy_note}"
    protected = characteristic(name) if action is None else None
    if protected is not None:
        note += f"; immutable, since its name looks like a protected characteristic ({protected})"
    lower, upper = hints.ranges.get(name, (None, None))
    growth = yearly_growth(name, profile.largest) if numeric else None
    yearly = hints.yearly.get(name, growth)
    if growth is not None and name not in hints.yearly:
        note += f"; its name says that it grows by itself, by up to {growth[1]:g} a year"
    return Feature(
        name,
        guessed,
        lower=lower,
        upper=upper,
        yearly=yearly,
        step=hints.steps.get(name),
        categories=() if numeric else _categories(name, guessed, profile, hints),
        missing=policy,
        missing_codes=codes,
        action=cast(Any, "immutable" if protected else action or "free"),
        number_format=text.writing.example if numeric and text is not None and text.writing else None,
        note=note,
    )


def _distinct(column: pd.Series[Any]) -> tuple[NDArray[np.intp], Any]:
    """Return the position of each cell's value (-1: empty) and the values; refuse other contents."""
    name, dtype = str(column.name), column.dtype
    kind = (dtype.categories.dtype if isinstance(dtype, pd.CategoricalDtype) else dtype).kind
    if kind in _REMEDIES:
        remedy = _REMEDIES[kind]
        raise DataError(message(f"numbers or text in the column {name!r}", f"the dtype {dtype}", remedy))
    try:
        return pd.factorize(column)
    except TypeError:
        remedy = "spread them over separate columns"
        raise DataError(message(f"single values in the column {name!r}", "nested ones", remedy)) from None


def _profile(column: pd.Series[Any], codes: tuple[Any, ...], limit: int) -> ColumnProfile:
    """Profile a column without empty cells and ``codes``."""
    name, dtype = str(column.name), column.dtype
    categories = dtype.categories if isinstance(dtype, pd.CategoricalDtype) else None
    ordered = isinstance(dtype, pd.CategoricalDtype) and bool(dtype.ordered)
    positions, distinct = _distinct(column)
    missing = int((positions == -1).sum())
    if categories is None and dtype.kind in "iuf" and len(distinct) > limit:
        return _profile_of_numbers(
            name, np.asarray(distinct, dtype=np.float64)[positions[positions >= 0]], codes, missing
        )
    if isinstance(dtype, pd.StringDtype) and len(distinct) > limit + len(codes):
        raise _too_many(name, len(distinct), limit)  # before a million strings become objects
    values = to_python_list(distinct)
    _refuse_foreign(name, values)
    coded = [i for i, value in enumerate(values) if value in codes]
    valid = [value for value in values if value not in codes]
    if categories is not None:
        listed = to_python_list(categories)
        present = set(listed if ordered else valid)
        valid = [value for value in listed if value in present and value not in codes]
    content = "text" if categories is not None else _content(valid)
    cells_of_codes = int(np.isin(positions, coded).sum())
    largest = max(filter(is_number, valid), default=math.inf)
    return ColumnProfile(
        content,
        valid,
        len(valid),
        missing,
        cells_of_codes,
        float(largest),
        listed=categories is not None,
        ordered=ordered,
    )


def _content(values: list[Any]) -> Content:
    if any(isinstance(value, str) for value in values):
        return "text"
    if all(isinstance(value, bool) for value in values):
        return "booleans"
    if not all(is_number(value) for value in values):
        return "mixed"
    whole = all(abs(value) <= _WHOLE_UP_TO and value == int(value) for value in values)
    return "whole numbers" if whole else "numbers"


def _profile_of_numbers(
    name: str, cells: NDArray[np.float64], codes: tuple[Any, ...], missing: int
) -> ColumnProfile:
    """Profile many distinct numbers, without turning each of them into an object."""
    _refuse_foreign(name, cells[np.isinf(cells)][:1].tolist())
    is_code = np.isin(cells, [float(code) for code in codes if is_number(code)])
    valid = np.unique(cells[~is_code])
    whole = bool(((np.abs(valid) <= _WHOLE_UP_TO) & (valid == np.rint(valid))).all())
    content: Content = "whole numbers" if whole else "numbers"
    largest = float(valid.max()) if len(valid) else math.inf
    return ColumnProfile(content, None, len(valid), missing, int(is_code.sum()), largest)


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
    if profile.content in ("text", "mixed"):
        return ("binary", "two values of text") if profile.count == 2 else ("categorical", "text")
    if profile.content == "booleans":
        return ("binary", "booleans") if profile.count == 2 else ("categorical", "booleans, always the same")
    if profile.values is not None and set(profile.values) == {0, 1}:
        return "binary", "numbers 0 and 1"
    kind: Kind = "integer" if profile.content == "whole numbers" else "continuous"
    return kind, profile.content + (", always the same" if profile.count == 1 else "")


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
    whole = profile.content == "whole numbers"
    values = [int(value) if whole else value for value in profile.values]
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def _policy(
    name: str, kind: str, profile: ColumnProfile, coded: bool, stated: Mapping[str, Policy] | Policy | None
) -> tuple[Policy, str]:
    """Return the policy for missing values, as stated or inferred, and a note about an inferred one."""
    if isinstance(stated, str):
        return stated, ""
    if stated is not None and name in stated:
        return stated[name], ""
    if not (profile.missing or coded):
        return "refuse", ""
    if kind == "categorical" or (kind == "binary" and profile.content == "text"):
        return "category", "; missing is a category of its own"
    return "impute", "; missing ones are filled and flagged"


@dataclass(frozen=True)
class TextColumn:
    """A column of text: categories, or numbers if they have a format.

    ``unknown`` are the texts that mean an unknown value. ``numbers`` is the column read in the format
    ``writing``, empty for the ``unknown_cells``.
    """

    unknown: tuple[str, ...]
    writing: NumberFormat | None = None
    numbers: pd.Series[Any] | None = None
    unknown_cells: int = 0

    @property
    def note(self) -> str:
        """The format and the texts of unknown values, for the note of the feature."""
        words = f" ({', '.join(map(repr, self.unknown))} read as unknown)" if self.unknown else ""
        return words if self.writing is None else f", written as text like {self.writing.example}{words}"

    def profile(self, column: pd.Series[Any], codes: tuple[Any, ...], hints: Hints) -> ColumnProfile:
        """Profile the numbers, or the texts."""
        codes += self.unknown
        if self.numbers is None:
            return _profile(column, codes, hints.max_categories)
        numbers = _profile(self.numbers, tuple(filter(is_number, codes)), hints.max_categories)
        return replace(numbers, missing=int(column.isna().sum()), coded=numbers.coded + self.unknown_cells)


class LeftOut(StrEnum):
    """Reasons for leaving out a column."""

    IDENTIFIER = "an identifier: a number of its own in every row"
    FREE_TEXT = "an identifier or free text: one of its own in nearly every row"
    DATES = "dates or times"

    @property
    def remedy(self) -> str:
        """The way to use the column nevertheless."""
        if self is LeftOut.DATES:
            return "if it matters, add a number computed from it, such as days until the decision"
        return "to use it, mention it: --free NAME, or free=[...]"


def recognise(
    column: pd.Series[Any], example: str | None, codes: Sequence[Any], people: int, *, keep: bool
) -> TextColumn | LeftOut | None:
    """Recognise columns of text, dates and row numbers; None for all others.

    With ``keep`` no column is left out. ``people`` is the number of distinct rows of the table.
    """
    if column.dtype.kind == "M":
        return None if keep else LeftOut.DATES
    if _is_text(column):
        return _text(column, example, codes, people, keep=keep)
    if not keep and column.dtype.kind in "iuf" and _numbers_rows(column, people):
        return LeftOut.IDENTIFIER
    return None


def _is_text(column: pd.Series[Any]) -> bool:
    """Return True if every cell that is not empty is text."""
    if isinstance(column.dtype, pd.StringDtype):
        return bool(column.notna().any())
    if column.dtype != object:
        return False
    present = column.dropna()
    return len(present) > 0 and all(isinstance(value, str) for value in present)


def _text(
    column: pd.Series[Any], example: str | None, codes: Sequence[Any], people: int, *, keep: bool
) -> TextColumn | LeftOut:
    counts = column.value_counts()
    listed = [str(text) for text in counts.index if text not in codes]
    unknown = tuple(text for text in listed if is_missing_word(text, among_numbers=True))
    values = [text for text in listed if text not in unknown]
    writing = NumberFormat.of(example) if example is not None else _format(column, values, bool(unknown))
    if writing is not None:
        return _numbers(column, writing, unknown, codes, counts)
    if len(values) >= FEWEST_NUMBERS:
        _refuse_numbers_among_words(column, values, counts)
    if not keep and values and sum(map(is_date, values[:1000])) >= NEARLY_ALL * len(values[:1000]):
        return LeftOut.DATES
    if not keep and people >= FEWEST_ROWS and len(values) >= NEARLY_ALL * people:
        return LeftOut.FREE_TEXT
    return TextColumn(tuple(text for text in unknown if is_missing_word(text, among_numbers=False)))


def _format(column: pd.Series[Any], values: list[str], unknown: bool) -> NumberFormat | None:
    """Return the format of the numbers in these texts; None if they are no numbers, or a few codes."""
    if len(values) < 3 or number_format(values[:100]) is None:
        return None
    written = number_format(values)
    if isinstance(written, Ambiguous):
        name, could = (
            str(column.name),
            " or ".join(f"{each.read(written.text):g}" for each in written.formats),
        )
        examples = " or ".join(shlex.quote(f"{name}={each.example}") for each in written.formats)
        expected = f"numbers in an unambiguous format in the column {name!r}"
        remedy = f"state how it writes 1234.5: --number-format {examples} (number_formats= in Python)"
        raise DataError(message(expected, f"{written.text!r}, which could be {could}", remedy))
    few = written is not None and written.example == PLAIN and len(values) < FEWEST_NUMBERS
    return None if few and not unknown and all(text.strip().isdigit() for text in values) else written


def _numbers(
    column: pd.Series[Any],
    writing: NumberFormat,
    unknown: tuple[str, ...],
    codes: Sequence[Any],
    counts: pd.Series[Any],
) -> TextColumn:
    words = [*unknown, *codes]
    read = {text: writing.read(text) for text in map(str, counts.index) if text not in words}
    as_numbers = column.map({text: np.nan if value is None else value for text, value in read.items()})
    wrong = [text for text, value in read.items() if value is None]
    if wrong:
        expected = f"numbers written like {writing.example}"
        _refuse(column, wrong, expected, "correct the cell, or leave it empty")
    cells = int(counts[counts.index.isin(words)].sum())
    return TextColumn(unknown, writing, as_numbers.astype(np.float64), cells)


def _refuse_numbers_among_words(column: pd.Series[Any], values: list[str], counts: pd.Series[Any]) -> None:
    """Refuse a column of numbers with a few other texts, which would be useless as categories."""
    plain = NumberFormat()
    numbers = [text for text in values if number_format([text]) is not None]
    others = [text for text in values if text not in set(numbers)]
    if len(numbers) < FEWEST_NUMBERS or counts[numbers].sum() < MOSTLY * counts[values].sum():
        return
    written = number_format(numbers)
    if isinstance(written, NumberFormat) and others:
        name = str(column.name)
        remedy = f"correct it, add it to missing_codes={{{name!r}: [...]}}, or declare the column categorical"
        _refuse(column, others, "numbers" if written == plain else f"numbers like {written.example}", remedy)


def _refuse(column: pd.Series[Any], wrong: list[str], expected: str, remedy: str) -> None:
    where = column.isin(wrong).to_numpy()
    row, cells = column.index[int(where.argmax())], int(where.sum())
    more = f" and {cells - 1:,} more" if cells > 1 else ""
    received = f"{str(column.iloc[int(where.argmax())])[:60]!r} in row {row!r}{more}"
    raise DataError(message(f"{expected} in the column {str(column.name)!r}", received, remedy))


def _numbers_rows(column: pd.Series[Any], people: int) -> bool:
    """Return True for numbers that count the rows, or distinct ones with the name of an identifier."""
    if people < FEWEST_ROWS or column.isna().any():
        return False
    values = column.to_numpy(dtype=np.float64)
    if not np.isfinite(values).all() or (values != np.rint(values)).any():
        return False
    distinct = len(np.unique(values))
    if distinct < NEARLY_ALL * people:
        return False
    words = words_of(str(column.name))
    named = _IDENTIFIERS.intersection(words) or _IDENTIFIERS_AT_THE_END.intersection(words[-1:])
    return bool(named) or bool(values.max() - values.min() == distinct - 1)


def left_out_message(columns: Mapping[str, LeftOut]) -> str:
    """Return the warning about columns that are left out."""
    received = "; ".join(f"{name!r} ({why})" for name, why in columns.items())
    remedy = "left out; to use a column, mention it (free=, --free), and convert dates to numbers"
    return message("columns that describe people", received, remedy)


def characteristic(name: str) -> str | None:
    """Return the protected characteristic that the name of a column suggests, or None.

    >>> characteristic("applicantAge"), characteristic("Familienstand"), characteristic("mortgage")
    ('age', 'marital status', None)
    """
    words = words_of(name)
    for first, word in enumerate(words):
        pair = "_".join(words[first : first + 2])
        kind = _KNOWN.get(pair) or _KNOWN.get(word)
        if kind is not None and not (kind == "age" and _THINGS.intersection(words)):
            return kind
    return None


def yearly_growth(name: str, largest: float) -> tuple[float, float] | None:
    """Return how far a number grows by itself within a year, if its name suggests that; else None.

    ``largest`` is the largest number of the column: a time in a job without a unit is in months if it cannot
    be in years.

    >>> yearly_growth("Age", 90), yearly_growth("months_employed", 400), yearly_growth("income", 9e4)
    ((0.0, 1.0), (0.0, 12.0), None)
    """
    words = words_of(name)
    if _NOT_GROWING.intersection(words):
        return None
    units = [_TIMES[word] for word in words if word in _TIMES]
    person = characteristic(name) == "age"
    length = _LENGTHS.intersection(words) or {"length", "history"} <= set(words)
    since = units and _SINCE.intersection(words)
    if not (person or "age" in words or length or since):
        return None
    unit = 1.0 if person or "age" in words or largest <= _MOST_YEARS else 12.0
    return 0.0, max(units, default=unit)


def words_of(name: str) -> list[str]:
    """Split a name such as ``creditAge`` or ``Credit age`` into words in lower case without accents."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain)
    return re.findall(r"[a-z]+", spaced.lower())
