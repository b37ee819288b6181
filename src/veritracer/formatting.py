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


def to_python(value: Any) -> Any:
    """The value as Python's own; a narrow float by its shortest digits, which read back as the same cell.

    >>> to_python(np.float32(0.518)), to_python(np.int64(3)), to_python("rent")
    (0.518, 3, 'rent')
    """
    if isinstance(value, np.floating) and value.itemsize < 8:
        return float(str(value))
    return value.item() if isinstance(value, np.generic) else value


def strip_float_noise(number: float) -> float:
    """The number without what computing it left behind: the decimal of 15 digits next to it, if that is it.

    >>> strip_float_noise(0.1 + 0.2), strip_float_noise(0.1234567890123456)
    (0.3, 0.1234567890123456)
    """
    short = float(f"{float(number):.15g}")
    return short if abs(short - number) <= NOISE * abs(number) else float(number)


def decimal_of(value: Any) -> Decimal:
    """The number exactly as it is written: 0.1 is a tenth.

    >>> decimal_of(0.3) - decimal_of(0.1)
    Decimal('0.2')
    """
    plain = to_python(value)
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


def format_value(value: Any) -> str:
    """A cell as a person would write it: all digits of it, since a rounded value is another row.

    >>> format_value(1200), format_value(0.25), format_value("rent"), format_value(None)
    ('1,200', '0.25', 'rent', 'unknown')
    >>> format_value(1e21), format_value(1.5e-30)
    ('1e+21', '1.5e-30')
    >>> format_value(decimal_of(0.9) - decimal_of(0.6))  # 0.30000000000000004 in floating point
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


def format_own_value(value: Any) -> str:
    """What somebody has, as they would write it: without digits that a narrow float or a division left.

    What somebody is *promised* is written with all digits: ``format_value``.

    >>> format_own_value(0.517999992370605), format_own_value(1200.5), format_own_value(123456789.25)
    ('0.518', '1,200.5', '123,456,789.25')
    """
    return format_value(as_written(value))


def as_written(value: Any) -> Any:
    """The number with seven significant digits where it has more than eleven; anything else as it is.

    >>> as_written(0.1 + 0.2), as_written(0.25), as_written("rent")
    (0.3, 0.25, 'rent')
    """
    if isinstance(value, bool | str) or not isinstance(value, float | np.floating) or value != value:
        return value
    digits = decimal_of(value).normalize().as_tuple().digits
    return value if len(digits) <= MOST_DIGITS else float(f"{float(value):.7g}")


def format_percent(share: float | None, *, fixed: bool = False) -> str:
    """A share with one decimal, never more than it is, never none where there is some; "–" for None or nan.

    ``fixed`` keeps a zero after the point, for columns.

    >>> format_percent(1.0), format_percent(0.9996), format_percent(0.57)
    ('100 %', '99.9 %', '57 %')
    >>> format_percent(0.0002), format_percent(0.0), format_percent(None)
    ('<0.1 %', '0 %', '–')
    >>> format_percent(0.57, fixed=True), format_percent(1.0, fixed=True)
    ('57.0 %', '100 %')
    """
    if share is None or share != share:
        return "–"
    tenths = math.floor(1000 * share + 1e-9)  # 1000 * 0.57 may be an ulp below 570
    if share >= 1 or tenths == 0:
        return "100 %" if share >= 1 else "<0.1 %" if share > 0 else "0.0 %" if fixed else "0 %"
    return f"{tenths / 10:.1f} %" if fixed else f"{tenths / 10:g} %"


def round_down(number: float, digits: int = 3) -> str:
    """At most so many significant digits, never more than the number: a promise must not grow in the telling.

    >>> round_down(20.0), round_down(2.996), round_down(0.07199), round_down(0.1 * 3, 12)
    ('20', '2.99', '0.0719', '0.3')
    """
    if number <= 0:
        return "0"
    exact = Decimal(repr(float(number)))
    nearest = Decimal(f"{float(number):.12g}")  # 100 * 0.2 may be an ulp below 20
    exact = nearest if abs(nearest - exact) <= abs(exact) * Decimal("1e-12") else exact
    places = digits - (exact.adjusted() + 1)
    return f"{exact.quantize(Decimal(1).scaleb(-places), rounding=ROUND_FLOOR).normalize():f}"


def format_count(many: int, one: str, several: str | None = None) -> str:
    """A number with its noun.

    >>> format_count(1, "person", "people"), format_count(1200, "row")
    ('1 person', '1,200 rows')
    """
    return f"{many:,} {one if many == 1 else several or one + 's'}"


def format_number(value: float) -> str:
    """A number with three significant digits, and all of its digits before the point.

    >>> format_number(12345.6), format_number(0.012345), format_number(3.0), format_number(float("nan"))
    ('12,346', '0.0123', '3', '–')
    """
    if value != value:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"
