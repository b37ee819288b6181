"""What a column holds before it is described: numbers written as text, dates, identifiers, unknown values.

Whatever is recognised is read by a rule that the feature's note states; what can be read in two ways, or in
none, is refused with the remedy; what says nothing about a person is left out, with the reason.

Also recognised are names that look like a protected characteristic: nobody is told to be another person. That
is a guess from the name alone, in some European languages, and a proposal: ``Schema.infer(free=...)`` or an
edit of the schema takes it back.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from veritracer.errors import DataError, message
from veritracer.schema.number_formats import (
    PLAIN,
    Ambiguous,
    NumberFormat,
    is_date,
    is_missing_word,
    number_format,
)

FEWEST_ROWS = 20
"""In a shorter table every column may differ from row to row by chance."""

NEARLY_ALL = 0.95
MOSTLY = 0.8
FEWEST_NUMBERS = 10
"""From so many different numbers on, text among them is a mistake, and not a category."""

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


@dataclass(frozen=True)
class Numbers:
    """Text that is numbers: as numbers (empty where a word stands for unknown), and how they are written."""

    column: pd.Series[Any]
    writing: NumberFormat
    unknown: tuple[str, ...]
    unknown_cells: int


@dataclass(frozen=True)
class Texts:
    """Text that is categories, and which of them say that nothing is known."""

    unknown: tuple[str, ...]


class LeftOut(StrEnum):
    """Why a column is no feature."""

    IDENTIFIER = "an identifier: a number of its own in every row"
    FREE_TEXT = "an identifier or free text: one of its own in nearly every row"
    DATES = "dates or times"

    @property
    def remedy(self) -> str:
        """How to use the column all the same."""
        if self is LeftOut.DATES:
            return "if it matters, add a number made of it, such as days until the decision"
        return "to use it, say something about it: --free NAME, or free=[...]"


def recognised(
    column: pd.Series[Any], example: str | None, codes: Sequence[Any], people: int, *, keep: bool
) -> Numbers | Texts | LeftOut | None:
    """What a column of text, dates or row numbers is; None for every other one. ``keep`` leaves none out.

    ``people`` is how many different rows the table has.
    """
    if column.dtype.kind == "M":
        return None if keep else LeftOut.DATES
    if _is_text(column):
        return _text(column, example, codes, people, keep=keep)
    if not keep and column.dtype.kind in "iuf" and _numbers_rows(column, people):
        return LeftOut.IDENTIFIER
    return None


def _is_text(column: pd.Series[Any]) -> bool:
    """Whether every cell that is not empty is text."""
    if isinstance(column.dtype, pd.StringDtype):
        return bool(column.notna().any())
    if column.dtype != object:
        return False
    present = column.dropna()
    return len(present) > 0 and all(isinstance(value, str) for value in present)


def _text(
    column: pd.Series[Any], example: str | None, codes: Sequence[Any], people: int, *, keep: bool
) -> Numbers | Texts | LeftOut:
    counts = column.value_counts()
    listed = [str(text) for text in counts.index if text not in codes]
    unknown = tuple(text for text in listed if is_missing_word(text, among_numbers=True))
    values = [text for text in listed if text not in unknown]
    found = NumberFormat.of(example) if example is not None else _format(column, values, bool(unknown))
    if found is not None:
        return _numbers(column, found, unknown, codes, counts)
    if len(values) >= FEWEST_NUMBERS:
        _refuse_numbers_among_words(column, values, counts)
    if not keep and values and sum(map(is_date, values[:1000])) >= NEARLY_ALL * len(values[:1000]):
        return LeftOut.DATES
    if not keep and people >= FEWEST_ROWS and len(values) >= NEARLY_ALL * people:
        return LeftOut.FREE_TEXT
    return Texts(tuple(text for text in unknown if is_missing_word(text, among_numbers=False)))


def _format(column: pd.Series[Any], values: list[str], unknown: bool) -> NumberFormat | None:
    """The format of numbers in these texts; None where they are no numbers, or a few codes."""
    if len(values) < 3 or number_format(values[:100]) is None:
        return None
    found = number_format(values)
    if isinstance(found, Ambiguous):
        name, could = str(column.name), " or ".join(f"{each.read(found.text):g}" for each in found.formats)
        examples = " or ".join(shlex.quote(f"{name}={each.example}") for each in found.formats)
        expected = f"numbers that can be read in one way in the column {name!r}"
        remedy = f"say how it writes 1234.5: --number-format {examples} (number_formats= in Python)"
        raise DataError(message(expected, f"{found.text!r}, which could be {could}", remedy))
    few = found is not None and found.example == PLAIN and len(values) < FEWEST_NUMBERS
    return None if few and not unknown and all(text.strip().isdigit() for text in values) else found


def _numbers(
    column: pd.Series[Any],
    writing: NumberFormat,
    unknown: tuple[str, ...],
    codes: Sequence[Any],
    counts: pd.Series[Any],
) -> Numbers:
    words = [*unknown, *codes]
    read = {text: writing.read(text) for text in map(str, counts.index) if text not in words}
    as_numbers = column.map({text: np.nan if value is None else value for text, value in read.items()})
    wrong = [text for text, value in read.items() if value is None]
    if wrong:
        expected = f"numbers written like {writing.example}"
        _refuse(column, wrong, expected, "correct the cell, or leave it empty")
    return Numbers(
        as_numbers.astype(np.float64), writing, unknown, int(counts[counts.index.isin(words)].sum())
    )


def _refuse_numbers_among_words(column: pd.Series[Any], values: list[str], counts: pd.Series[Any]) -> None:
    """Refuse a column that is numbers but for some cells: as categories nobody would want it."""
    plain = NumberFormat()
    numbers = [text for text in values if number_format([text]) is not None]
    others = [text for text in values if text not in set(numbers)]
    if len(numbers) < FEWEST_NUMBERS or counts[numbers].sum() < MOSTLY * counts[values].sum():
        return
    found = number_format(numbers)
    if isinstance(found, NumberFormat) and others:
        name = str(column.name)
        remedy = f"correct it, or name it in missing_codes={{{name!r}: [...]}}, or declare it categorical"
        _refuse(column, others, "numbers" if found == plain else f"numbers like {found.example}", remedy)


def _refuse(column: pd.Series[Any], wrong: list[str], expected: str, remedy: str) -> None:
    where = column.isin(wrong).to_numpy()
    row, cells = column.index[int(where.argmax())], int(where.sum())
    more = f" and {cells - 1:,} more like it" if cells > 1 else ""
    received = f"{str(column.iloc[int(where.argmax())])[:60]!r} in row {row!r}{more}"
    raise DataError(message(f"{expected} in the column {str(column.name)!r}", received, remedy))


def _numbers_rows(column: pd.Series[Any], people: int) -> bool:
    """Whether the numbers count the rows, or are different ones under the name of an identifier."""
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
    """That columns are left out, and how to use them all the same."""
    said = "; ".join(f"{name!r} ({why})" for name, why in columns.items())
    remedy = "left out; say something about a column (free=, --free) to use it, and make numbers of dates"
    return message("columns that describe people", said, remedy)


def characteristic(name: str) -> str | None:
    """The protected characteristic that a column of this name looks like; None where it looks like none.

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


def words_of(name: str) -> list[str]:
    """The words of a name in small letters without accents: of ``creditAge`` and ``Credit age`` alike."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain)
    return re.findall(r"[a-z]+", spaced.lower())
