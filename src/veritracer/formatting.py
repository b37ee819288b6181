"""Format numbers and single values as text, with their significant digits."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
import pandas as pd

NOISE = 4e-16
"""Relative error of two roundings; digits below it are floating-point noise."""

MOST_DIGITS = 11
"""Numbers entered by people have at most this many significant digits."""

MOST_PLACES = 20
"""A number with more zeros than this before or after its digits is written with a power of ten."""


def to_python(value: Any) -> Any:
    """Convert a numpy scalar to the Python value of the same cell.

    A float32 becomes the float with the same shortest decimal, so that it reads back as the same cell.

    >>> to_python(np.float32(0.518)), to_python(np.int64(3)), to_python("rent")
    (0.518, 3, 'rent')
    """
    if isinstance(value, np.floating) and value.itemsize < 8:
        return float(str(value))
    return value.item() if isinstance(value, np.generic) else value


def to_python_list(values: Any) -> list[Any]:
    """Convert an array, an index or a pandas array to the Python values of its cells, as ``to_python`` does.

    >>> to_python_list(pd.Index([0.1, 0.25], dtype="float32"))
    [0.1, 0.25]
    """
    dtype = values.categories.dtype if isinstance(values.dtype, pd.CategoricalDtype) else values.dtype
    narrow = narrow_dtype(dtype)  # pandas would turn its cells into the float64 next to them
    return [to_python(value) for value in (values if narrow is None else np.asarray(values, dtype=narrow))]


def narrow_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the NumPy dtype of floats narrower than float64; None for all other dtypes."""
    found = getattr(dtype, "numpy_dtype", dtype)
    is_narrow = isinstance(found, np.dtype) and found.kind == "f" and found.itemsize < 8
    return found if is_narrow else None


def strip_float_noise(number: float) -> float:
    """Return the nearest decimal of 15 digits if it differs from the number only by rounding.

    >>> strip_float_noise(0.1 + 0.2), strip_float_noise(0.1234567890123456)
    (0.3, 0.1234567890123456)
    """
    rounded = float(f"{float(number):.15g}")
    return rounded if abs(rounded - number) <= NOISE * abs(number) else float(number)


def decimal_of(value: Any) -> Decimal:
    """Return the number as it is written in decimal: 0.1 is one tenth.

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
    """Return True for an empty cell."""
    if value is None or value is pd.NaT or value is pd.NA:
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def format_value(value: Any) -> str:
    """Format a cell with all of its digits, because a rounded value is another row.

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
    """Format a value that an applicant already has, without digits left by a float32 or a division.

    Values of a counterfactual are formatted with all digits by ``format_value``.

    >>> format_own_value(0.517999992370605), format_own_value(1200.5), format_own_value(123456789.25)
    ('0.518', '1,200.5', '123,456,789.25')
    """
    return format_value(as_written(value))


def as_written(value: Any) -> Any:
    """Round a number with more than eleven significant digits to seven; return anything else unchanged.

    >>> as_written(0.1 + 0.2), as_written(0.25), as_written("rent")
    (0.3, 0.25, 'rent')
    """
    if isinstance(value, bool | str) or not isinstance(value, float | np.floating) or value != value:
        return value
    digits = decimal_of(value).normalize().as_tuple().digits
    return value if len(digits) <= MOST_DIGITS else float(f"{float(value):.7g}")


def format_percent(share: float | None, *, fixed: bool = False) -> str:
    """Format a share with one decimal, rounded to nearest; "–" for None and NaN.

    0 % and 100 % mean none and all: what would round to them is "<0.1 %" or ">99.9 %". ``fixed`` keeps a
    trailing zero, for columns.

    >>> format_percent(1.0), format_percent(0.9996), format_percent(0.6667)
    ('100 %', '>99.9 %', '66.7 %')
    >>> format_percent(0.0002), format_percent(0.0), format_percent(None)
    ('<0.1 %', '0 %', '–')
    >>> format_percent(0.57, fixed=True), format_percent(1.0, fixed=True)
    ('57.0 %', '100 %')
    """
    if share is None or share != share:
        return "–"
    tenths = round(1000 * share)
    if 0 < share < 1 and tenths in (0, 1000):
        return ">99.9 %" if tenths else "<0.1 %"
    if share >= 1:
        return "100 %"
    return f"{tenths / 10:.1f} %" if fixed else f"{tenths / 10:g} %"


def round_down(number: float, digits: int = 3) -> str:
    """Format a number with at most ``digits`` significant digits, rounded down: a promise must not grow.

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
    """Format a number with its noun.

    >>> format_count(1, "person", "people"), format_count(1200, "row")
    ('1 person', '1,200 rows')
    """
    return f"{many:,} {one if many == 1 else several or one + 's'}"


def format_number(value: float) -> str:
    """Format a number with three significant digits and all digits before the point; "–" for NaN.

    >>> format_number(12345.6), format_number(0.012345), format_number(3.0), format_number(float("nan"))
    ('12,346', '0.0123', '3', '–')
    """
    if value != value:
        return "–"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):g}"


class English:
    """Write sentences in English, the language of the source; ``Translator`` is for other languages."""

    locale = "en"

    def gettext(self, message: str, **fields: object) -> str:
        """Return the message with its named fields filled in.

        >>> ENGLISH.gettext("Raise %(label)s.", label="savings")
        'Raise savings.'
        """
        return message % fields if fields else message

    def ngettext(self, singular: str, plural: str, n: int, **fields: object) -> str:
        """Return the message for this number of things.

        >>> ENGLISH.ngettext("%(count)s level", "%(count)s levels", 1, count=1)
        '1 level'
        """
        return self.gettext(singular if n == 1 else plural, **fields)

    def format_value(self, value: Any) -> str:
        """Format a cell with all of its digits.

        >>> ENGLISH.format_value(1200.5), ENGLISH.format_value("rent"), ENGLISH.format_value(None)
        ('1,200.5', 'rent', 'not stated')
        """
        if is_missing(value):
            return self.gettext("not stated")
        return str(value) if isinstance(value, bool | np.bool_ | str) else self.format_number(value)

    def format_number(self, number: Any) -> str:
        """Format a number with all of its digits."""
        return format_value(number)

    def join_list(self, parts: Sequence[str]) -> str:
        """Join parts as a list in a sentence.

        >>> ENGLISH.join_list(["a", "b", "c"])
        'a, b and c'
        """
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


ENGLISH = English()
"""The default of functions that take ``translate``."""
