"""Single values as people write them: every digit that means something, and none that does not."""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
import pandas as pd

NOISE = 4e-16
"""How far, as a share of it, two roundings move a number: digits that nobody meant."""

MOST_DIGITS = 11
"""Digits that people give a number at most: hundredths of a billion."""

MOST_PLACES = 20
"""A number with more zeros than this before or behind its digits is written with a power of ten."""


def own(value: Any) -> Any:
    """The value as Python's own; a narrow float by its shortest digits, which read back as the same cell.

    >>> own(np.float32(0.518)), own(np.int64(3)), own("rent")
    (0.518, 3, 'rent')
    """
    if isinstance(value, np.floating) and value.itemsize < 8:
        return float(str(value))
    return value.item() if isinstance(value, np.generic) else value


def tidy(number: float) -> float:
    """The number without what computing it left behind: the decimal of 15 digits next to it, if that is it.

    >>> tidy(0.1 + 0.2), tidy(0.1234567890123456)
    (0.3, 0.1234567890123456)
    """
    short = float(f"{float(number):.15g}")
    return short if abs(short - number) <= NOISE * abs(number) else float(number)


def decimal_of(value: Any) -> Decimal:
    """The number exactly as it is written: 0.1 is a tenth.

    >>> decimal_of(0.3) - decimal_of(0.1)
    Decimal('0.2')
    """
    plain = own(value)
    return (
        plain
        if isinstance(plain, Decimal)
        else Decimal(repr(plain if isinstance(plain, int) else float(plain)))
    )


def is_missing(value: Any) -> bool:
    """Whether a single cell is empty."""
    if value is None or value is pd.NaT or value is pd.NA:
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def value_in_words(value: Any) -> str:
    """A cell as a person would write it: all digits of it, since a rounded value is another row.

    >>> value_in_words(1200), value_in_words(0.25), value_in_words("rent"), value_in_words(None)
    ('1,200', '0.25', 'rent', 'unknown')
    >>> value_in_words(1e21), value_in_words(1.5e-30)
    ('1e+21', '1.5e-30')
    >>> value_in_words(decimal_of(0.9) - decimal_of(0.6))  # 0.30000000000000004 in floating point
    '0.3'
    """
    if is_missing(value):
        return "unknown"
    if isinstance(value, bool | np.bool_ | str):
        return str(value)
    number = decimal_of(value).normalize()
    if not number.is_finite() or not -MOST_PLACES <= number.adjusted() <= MOST_PLACES:
        return f"{number}".replace("E", "e") if number else "0"
    whole = number == number.to_integral_value()
    return f"{int(number):,}" if whole else f"{number:,f}"


def own_in_words(value: Any) -> str:
    """What somebody has, as they would write it: without digits that a narrow float or a division left.

    What somebody is *promised* is written with all digits: ``value_in_words``.

    >>> own_in_words(0.517999992370605), own_in_words(1200.5), own_in_words(123456789.25)
    ('0.518', '1,200.5', '123,456,789.25')
    """
    return value_in_words(as_written(value))


def as_written(value: Any) -> Any:
    """The number with seven significant digits where it has more than eleven; anything else as it is.

    >>> as_written(0.1 + 0.2), as_written(0.25), as_written("rent")
    (0.3, 0.25, 'rent')
    """
    if isinstance(value, bool | str) or not isinstance(value, float | np.floating) or value != value:
        return value
    digits = decimal_of(value).normalize().as_tuple().digits
    return value if len(digits) <= MOST_DIGITS else float(f"{float(value):.7g}")


def percent(share: float | None, *, fixed: bool = False) -> str:
    """A share with one decimal, never more than it is, never none where there is some; "–" for None or nan.

    ``fixed`` keeps a zero after the point, for columns.

    >>> percent(1.0), percent(0.9996), percent(0.57), percent(0.0002), percent(0.0), percent(None)
    ('100 %', '99.9 %', '57 %', '<0.1 %', '0 %', '–')
    >>> percent(0.57, fixed=True), percent(1.0, fixed=True)
    ('57.0 %', '100 %')
    """
    if share is None or share != share:
        return "–"
    tenths = math.floor(1000 * share + 1e-9)  # 1000 * 0.57 may be an ulp below 570
    if share >= 1 or tenths == 0:
        return "100 %" if share >= 1 else "<0.1 %" if share > 0 else "0.0 %" if fixed else "0 %"
    return f"{tenths / 10:.1f} %" if fixed else f"{tenths / 10:g} %"


def rounded_down(number: float, digits: int = 3) -> str:
    """At most so many significant digits, never more than the number: a promise must not grow in the telling.

    >>> rounded_down(20.0), rounded_down(2.996), rounded_down(0.07199), rounded_down(0.1 * 3, 12)
    ('20', '2.99', '0.0719', '0.3')
    """
    if number <= 0:
        return "0"
    exact = Decimal(repr(float(number)))
    nearest = Decimal(f"{float(number):.12g}")  # 100 * 0.2 may be an ulp below 20
    exact = nearest if abs(nearest - exact) <= abs(exact) * Decimal("1e-12") else exact
    places = digits - (exact.adjusted() + 1)
    return f"{exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_FLOOR).normalize():f}"
