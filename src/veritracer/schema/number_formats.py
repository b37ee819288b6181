"""Recognise numbers, dates and unknown values in the texts of a column.

A format is given as the number 1234.5 in that format: ``"1,234.5"``, ``"€ 1.234,5"``, ``"1234.5%"``. Currency
and percent signs are not part of the value: ``12%`` is 12.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from veritracer.errors import SchemaError, message
from veritracer.formatting import decimal_of

_CURRENCY = r"€|\$|£|¥|₹|₽|zł|kr\.?|Fr\.?|EUR|USD|GBP|CHF|JPY|INR|SEK|NOK|DKK|PLN|CAD|AUD|NZD|US\$|C\$|A\$"
_GROUPS = ",.'’ \u00a0\u202f"
_EXAMPLE = re.compile(
    rf"(?P<prefix>(?:{_CURRENCY})\s?)?1(?P<group>[{_GROUPS}]?)234(?:(?P<decimal>[.,])5)?"
    rf"(?P<suffix>\s?(?:{_CURRENCY}|%))?"
)
_WRITTEN = re.compile(
    rf"[+\-−]?\s?(?P<prefix>{_CURRENCY})?\s?[+\-−]?(?P<body>[0-9.,][0-9{_GROUPS}]*?(?:[eE][+-]?[0-9]+)?)"
    rf"\s?(?P<suffix>{_CURRENCY}|%)?"
)
_DATES = (
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}",
    r"\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})",
    r"\d{1,2}[ .-]?[A-Za-z]{3,9}\.?[ ,-]+\d{2,4}",
    r"[A-Za-z]{3,9}\.? \d{1,2}, ?\d{4}",
    r"\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[APap][Mm])?",
)
_TIME = r"(?:[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[APap][Mm])?(?:Z|[+-]\d{2}:?\d{2})?)?"
_DATE = re.compile("(?:" + "|".join(_DATES) + ")" + _TIME)

MISSING = frozenset(("n/a", "#n/a", "na", "n.a.", "nan", "null", "nil", "?", "-", "--", "---", "missing"))
"""Words for an unknown value in any column, in lower case."""

MISSING_NUMBERS = MISSING | {"none", "unknown", "not available", "not known", ".", "x", "nd", "n.d.", "tbd"}
"""Words for an unknown value in a column of numbers."""

MISSING_NUMBERS |= {"k.a.", "keine angabe", "unbekannt", "inconnu", "desconocido", "sconosciuto", "onbekend"}

FEWEST_MARKED = 3
"""Fewest distinct numbers with a point before three digits that suggest thousands, not decimals."""

PLAIN = "1234.5"
"""The format of numbers in programs."""


@dataclass(frozen=True)
class NumberFormat:
    """Format of numbers in text: prefix, suffix, and the two separators.

    >>> euros = NumberFormat.of("€ 1.234,5")
    >>> euros.read("€ 10.257,01"), euros.read("300"), euros.read("1,234.5"), euros.write(1200.5)
    (10257.01, 300.0, None, '€ 1.200,5')
    """

    prefix: str = ""
    group: str = ""
    decimal: str = "."
    suffix: str = ""

    @classmethod
    def of(cls, example: str) -> Self:
        """Return the format of an example, the number 1234.5."""
        found = _EXAMPLE.fullmatch(example) if isinstance(example, str) else None
        group = found["group"] if found else ""
        decimal = (found["decimal"] if found else None) or ("," if group == "." else ".")
        if found is None or group == decimal:
            remedy = "write 1234.5 as in the table: '1,234.5', '1.234,5', '€ 1 234,5', '1234.5%'"
            raise SchemaError(message("an example of a number format", repr(example), remedy))
        return cls(found["prefix"] or "", group, decimal, found["suffix"] or "")

    @property
    def example(self) -> str:
        """The number 1234.5 in this format."""
        return f"{self.prefix}1{self.group}234{self.decimal}5{self.suffix}"

    @cached_property
    def _body(self) -> re.Pattern[str]:
        mark, point = re.escape(self.group), re.escape(self.decimal)
        grouped = rf"[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+" if mark else r"(?!)"
        whole = rf"(?:{grouped}|[0-9]+)"
        return re.compile(rf"(?P<whole>{whole})?(?:{point}(?P<part>[0-9]*))?(?P<power>[eE][+-]?[0-9]+)?")

    def read(self, text: str) -> float | None:
        """Parse a text in this format; None for other text."""
        found = _WRITTEN.fullmatch(text.strip())
        if found is None or not self._own_signs(found):
            return None
        body = self._body.fullmatch(found["body"])
        if body is None or not (body["whole"] or body["part"]):
            return None
        whole = (body["whole"] or "0").replace(self.group, "") if self.group else body["whole"] or "0"
        number = float(f"{whole}.{body['part'] or '0'}{body['power'] or ''}")
        signs = text[: found.start("body")]
        return -number if "-" in signs or "−" in signs else number

    def _own_signs(self, found: re.Match[str]) -> bool:
        before, after = (found["prefix"] or "").strip(), (found["suffix"] or "").strip()
        return before in ("", self.prefix.strip()) and after in ("", self.suffix.strip())

    def write(self, number: float) -> str:
        """Write a number in this format, with all of its digits."""
        digits = f"{abs(decimal_of(number)):f}"
        whole, _, part = digits.partition(".")
        part = part.rstrip("0")
        grouped = f"{int(whole):,}".replace(",", self.group)
        sign = "-" if number < 0 else ""
        return f"{sign}{self.prefix}{grouped}{f'{self.decimal}{part}' if part else ''}{self.suffix}"


PLAIN_FORMAT = NumberFormat()


@dataclass(frozen=True)
class Ambiguous:
    """Texts that are numbers in two formats; ``text`` is the first of them."""

    text: str
    formats: tuple[NumberFormat, NumberFormat]


def number_format(texts: Iterable[str]) -> NumberFormat | Ambiguous | None:
    """Return the one format in which all of these texts are numbers; None if there is none.

    A separator before exactly three digits could be one of thousands or of decimals. A comma separates
    thousands if other numbers, all below 1,000, have none; a point marks decimals, as in programs, if every
    number has one. Anything else is ambiguous.

    >>> number_format(["10,257.01", "300"]).example, number_format(["12%", "7,5%"]).example
    ('1,234.5', '1234,5%')
    >>> number_format(["800", "12,500"]).example, number_format(["1,250", "12,500"]).text
    ('1,234.5', '1,250')
    """
    listed = [text.strip() for text in texts]
    found = [_WRITTEN.fullmatch(text) for text in listed]
    if not listed or not all(found):
        return None
    signs = [{(each[part] or "").strip() for each in found if each} for part in ("prefix", "suffix")]
    if any(len(each - {""}) > 1 for each in signs) or all(each - {""} for each in signs):
        return None
    before, after = ((each - {""}).pop() if each - {""} else "" for each in signs)
    prefix = next((_spaced(text, before) for text in listed if before and before in text), "")
    suffix = next((_spaced(text[::-1], after[::-1])[::-1] for text in listed if after and after in text), "")
    bodies = [each["body"] for each in found if each]
    return _marks(listed, bodies, prefix, suffix)


def _spaced(text: str, sign: str) -> str:
    """Return the sign with the space after it, if there is one."""
    return sign + (" " if text[text.index(sign) + len(sign) :][:1].isspace() else "")


def _marks(
    listed: Sequence[str], bodies: Sequence[str], prefix: str, suffix: str
) -> NumberFormat | Ambiguous | None:
    """Return the format with the separators that fit all bodies."""
    if any(re.match(r"0[0-9]", body) for body in bodies):
        return None  # a leading zero makes it a code
    used = sorted({mark for body in bodies for mark in body if mark in _GROUPS})
    groups = ["", *used]
    possible = [
        NumberFormat(prefix, group, decimal, suffix)
        for decimal in ".,"
        for group in groups
        if group != decimal and all(mark in (group, decimal) for mark in used)
    ]
    fitting = [each for each in possible if all(each.read(text) is not None for text in listed)]
    fitting = [each for each in fitting if not (each.group and each.group not in used)]
    if not used:
        return NumberFormat(prefix, "", ".", suffix) if fitting else None
    meanings = {tuple(each.read(text) for text in listed): each for each in reversed(fitting)}
    if len(meanings) <= 1:
        return fitting[0] if fitting else None
    grouping = next(each for each in fitting if each.group)
    other = next(each for each in fitting if not each.group)
    marked = [text for text, body in zip(listed, bodies, strict=True) if used[0] in body]
    mixed = len(marked) < len(listed)
    if used[0] == "." and (not mixed or len(set(marked)) < FEWEST_MARKED):
        return other  # 3.125 and 4.250, as programs write them
    return grouping if mixed and used[0] != "." else Ambiguous(marked[0], (grouping, other))


def is_date(text: str) -> bool:
    """Return True for a text in the form of a date, a time, or both.

    >>> is_date("2024-02-29"), is_date("29.02.2024 10:30"), is_date("3 Mar 2021"), is_date("12.5")
    (True, True, True, False)
    """
    return _DATE.fullmatch(text.strip()) is not None


def is_missing_word(text: str, *, among_numbers: bool) -> bool:
    """Return True for a text that means an unknown value.

    >>> is_missing_word("n/a", among_numbers=False), is_missing_word("none", among_numbers=False)
    (True, False)
    """
    return text.strip().casefold() in (MISSING_NUMBERS if among_numbers else MISSING)
