"""Convert raw values between column types exactly, or refuse to.

A column needs text if no other type holds all of its values: words, or numbers beside words that mean
"missing". Then each value must have its own text, and each text one value. Numbers in a column of low
precision become float64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.encoding import cells
from veritracer.errors import DataError, message
from veritracer.formatting import narrow_dtype
from veritracer.schema.feature import Feature, Value, is_number
from veritracer.schema.number_formats import PLAIN, PLAIN_FORMAT, NumberFormat

if TYPE_CHECKING:
    from veritracer.encoding.encoding import Encoding

EMPTY = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null")
"""Texts that mean an empty cell, unless they are known values."""

_LARGEST = 2**63


def needs_text(feature: Feature) -> bool:
    """Return True if only text holds every value of the feature."""
    known = [*feature.categories, *feature.missing_codes]
    if any(isinstance(value, str) for value in known) or feature.number_format not in (None, PLAIN):
        return True
    truths = sum(isinstance(value, bool) for value in known)
    if feature.is_numeric or 0 < truths < len(known):
        return truths > 0
    whole = [value for value in known if isinstance(value, int)]
    if len(whole) == len(known):
        return any(not -_LARGEST <= value < _LARGEST for value in whole)
    return any(float(value) != value for value in whole)


def only_words(feature: Feature) -> bool:
    """Return True if every value of the feature is text."""
    known = [*feature.categories, *feature.missing_codes]
    return not feature.is_numeric and all(isinstance(value, str) for value in known)


def as_number(text: str) -> float | None:
    """Parse a number; None for other text.

    >>> as_number("1e3"), as_number("1_000"), as_number("plenty")
    (1000.0, None, None)
    """
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


class Texts:
    """Map between the values of one column and their texts.

    ``known`` are its values, beside numbers in the format ``writing`` if it is ``numeric``; the texts in
    ``empty`` mean an empty cell, unless they are known. The value 1 may also be written as 1.0, and True as
    true.

    >>> income = Texts("income", ["unknown"], numeric=True)
    >>> income.value("unknown"), income.value("20000000.25"), income.value(""), income.text(20000000.25)
    ('unknown', 20000000.25, None, '20000000.25')
    """

    def __init__(
        self,
        name: str,
        known: Iterable[Value],
        *,
        numeric: bool = False,
        empty: Collection[str] = EMPTY,
        writing: NumberFormat | None = None,
    ) -> None:
        self.name, self.known, self.numeric, self.empty = name, tuple(known), numeric, empty
        self.writing = None if writing == PLAIN_FORMAT else writing
        self.by_text: dict[str, list[Value]] = defaultdict(list)
        self.by_number: dict[float, list[Value]] = defaultdict(list)
        for value in self.known:
            self.by_text[str(value)].append(value)
            if is_number(value):
                self.by_number[float(value)].append(value)
        self.truths = {str(value).casefold(): value for value in self.known if isinstance(value, bool)}

    @classmethod
    def of(cls, feature: Feature, *, empty: Collection[str] = EMPTY) -> Self:
        """Return the texts of the feature's column."""
        known = [*feature.categories, *feature.missing_codes]
        return cls(feature.name, known, numeric=feature.is_numeric, empty=empty, writing=feature.writing)

    def value(self, text: str) -> Any:
        """Return the value of a text: None for an empty cell, and an unknown text as it is."""
        if text not in self.by_text and self.numeric:
            text = text.strip()
        if text in self.by_text:
            return self._single(text, self.by_text[text])
        if text in self.empty:
            return None
        number = as_number(text) if self.writing is None else self.writing.read(text)
        if self.numeric and number is not None:
            return number
        if number is not None and number in self.by_number:
            return self._single(text, self.by_number[number])
        return self.truths.get(text.casefold(), text)

    def values(self, cells: Iterable[Any]) -> list[Any]:
        """Return the values of cells, some of which are text."""
        return [self.value(cell) if isinstance(cell, str) else cell for cell in cells]

    def text(self, value: Any) -> str:
        """Return the text of a known value or a number; refuse one that would read as another value."""
        known = value in self.known if not self.numeric else isinstance(value, str | bool)
        text = str(value) if known or isinstance(value, Integral) else repr(float(value))
        if self.writing is not None and not known:
            text = self.writing.write(value)
        again = self.value(text)
        same = again == value and isinstance(again, str | bool) == isinstance(value, str | bool)
        if not same and not (is_number(again) and float(again) == float(value)):
            raise self._no_text(value, text, again)
        return text

    def _single(self, text: str, values: list[Value]) -> Value:
        if len(values) > 1:
            received = f"{text!r} for both {' and '.join(map(repr, values))}"
            remedy = "rename one of them, in the table and in the schema"
            expected = f"a text that means one value of the column {self.name!r}"
            raise DataError(message(expected, received, remedy))
        return values[0]

    def _no_text(self, value: Any, text: str, again: Any) -> DataError:
        expected = f"values with a text of their own in the column {self.name!r}"
        received = f"{value!r}, whose text {text!r} means {again!r}"
        return DataError(message(expected, received, "rename the other one, in the table and in the schema"))


def numbers(encoding: Encoding, column: pd.Series[Any]) -> tuple[cells.Floats, NDArray[np.int64]]:
    """Return the cells of a numeric feature in float64, encoding to the same rows, and their markers.

    A narrow float becomes its shortest decimal, and a cell within rounding of a grid point that point: a
    float32 0.3, or a whole number with an error in its last bit, reads the same in a column of any precision.
    Markers are those of ``cells``; a code in text is NaN.
    """
    import torch  # here: the cells of a file are read without torch

    from veritracer.encoding import scales

    i = encoding.schema.names.index(str(column.name))
    feature, legal = encoding.schema.features[i], encoding.fitted[i].grid(encoding.schema.features[i])
    values, marker = cells.numbers(feature, column)
    narrow = narrow_dtype(column.dtype) is not None
    if feature.grid_step is not None and (narrow or feature.kind == "integer"):
        raw = torch.from_numpy(values)
        clipped = raw.clamp(legal.low, legal.high)
        beyond = (raw - clipped).abs() > scales.slack(feature, column.dtype, clipped)
        inside = (marker < 0) & ~beyond.numpy()
        values = np.where(inside, legal.nearest(clipped).numpy(), values)
    return values, marker


def texts(encoding: Encoding, column: pd.Series[Any]) -> NDArray[np.object_]:
    """Return the cells of a feature as texts that read back exactly, and None for empty cells."""
    feature = encoding.schema[str(column.name)]
    own = Texts.of(feature)
    if not feature.is_numeric:
        entry, known = cells.levels(feature, column), [*feature.categories, *feature.markers]
        words = np.empty(len(known), dtype=object)
        for i in np.unique(entry).tolist():  # the others may have no text, and need none
            words[i] = None if known[i] is None else own.text(known[i])
        return words[entry]
    out = np.empty(len(column), dtype=object)  # numbers among words, one by one: such columns are rare
    found = zip(column.astype(object), *(part.tolist() for part in numbers(encoding, column)), strict=True)
    for row, (cell, number, mark) in enumerate(found):
        whole = feature.kind == "integer" and number.is_integer()
        value = cell if isinstance(cell, Integral) else int(number) if whole else number
        value = feature.markers[mark] if mark >= 0 else value
        out[row] = None if value is None else own.text(value)
    return out


def widened(encoding: Encoding, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with narrow floats converted to the float64 numbers or categories they encode as."""
    wide = frame.copy(deep=False)
    for feature in encoding.schema.features:
        column = frame[feature.name]
        if narrow_dtype(column.dtype) is None:
            continue
        if feature.is_numeric:
            wide[feature.name] = numbers(encoding, column)[0]
        else:
            values = np.array([*feature.categories, *feature.markers], dtype=object)
            wide[feature.name] = values[cells.levels(feature, column)]
    return wide


def in_types(encoding: Encoding, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table for a typed file: columns that mix numbers and words become text."""
    pure = frame.copy(deep=False)
    for feature in encoding.schema.features:
        column = frame[feature.name]
        if column.dtype.kind == "O" and needs_text(feature) and not only_words(feature):
            pure[feature.name] = pd.Series(texts(encoding, column), index=frame.index, dtype=object)
    return pure
