"""Raw values in columns of other types, and back: each of them exactly, or refused.

A column needs text where no other type holds all of its values: words, or numbers among words that mean
"missing". Then every value must have a text of its own, and every text stand for one value. Numbers in a
column of low precision become the float64 that they count as.
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
from veritracer.schema.feature import Feature, Value, is_number
from veritracer.schema.number_formats import PLAIN, PLAIN_FORMAT, NumberFormat

if TYPE_CHECKING:
    from veritracer.encoding.encoding import Encoding

EMPTY = ("", "NA", "N/A", "#N/A", "NaN", "nan", "NULL", "null")
"""What stands for an empty cell in text, unless it is known as a value."""

_LARGEST = 2**63


def needs_text(feature: Feature) -> bool:
    """Whether only text holds every value that the feature may have."""
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
    """Whether every value of the feature is text, so that a text in a column with types is the value."""
    known = [*feature.categories, *feature.missing_codes]
    return not feature.is_numeric and all(isinstance(value, str) for value in known)


def as_number(text: str) -> float | None:
    """The number that ``text`` is written for; None if it is none.

    >>> as_number("1e3"), as_number("1_000"), as_number("plenty")
    (1000.0, None, None)
    """
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


class Texts:
    """Which value of a column a text stands for, and the text of each value.

    ``known`` are the values that it may have, beside numbers where it is ``numeric``, written as ``writing``
    says; the texts in ``empty`` stand for an empty cell, unless they are known. People write the value 1 also
    as 1.0, and True also as true.

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
        """Those of the feature's column."""
        known = [*feature.categories, *feature.missing_codes]
        return cls(feature.name, known, numeric=feature.is_numeric, empty=empty, writing=feature.writing)

    def value(self, text: str) -> Any:
        """The value; None for an empty cell, and the text itself where it stands for nothing known."""
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
        """The values of cells, of which some are text."""
        return [self.value(cell) if isinstance(cell, str) else cell for cell in cells]

    def text(self, value: Any) -> str:
        """The text that stands for ``value``, a known one or a number, and for no other."""
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
            received = f"{text!r}, which {' and '.join(map(repr, values))} are both written as"
            remedy = "rename one of them, in the table and in the schema"
            expected = f"a text that stands for one value of the column {self.name!r}"
            raise DataError(message(expected, received, remedy))
        return values[0]

    def _no_text(self, value: Any, text: str, again: Any) -> DataError:
        expected = f"values with a text of their own in the column {self.name!r}"
        received = f"{value!r}, whose text {text!r} stands for {again!r}"
        return DataError(message(expected, received, "rename the other one, in the table and in the schema"))


def numbers(encoding: Encoding, column: pd.Series[Any]) -> tuple[cells.Floats, NDArray[np.int64]]:
    """The cells of a numeric feature as float64 that encode as they do, and their markers.

    A narrow float counts as its shortest decimal, and a cell that counts as a point of a grid is that point:
    so a float32 0.3, or a whole number that a computation missed by its last bit, reads the same in a column
    of any precision. Markers are those of ``cells``; a code that is text is NaN.
    """
    import torch  # here: the cells of a file are read before anything needs torch

    from veritracer.encoding import scales

    i = encoding.schema.names.index(str(column.name))
    feature, legal = encoding.schema.features[i], encoding.fitted[i].grid(encoding.schema.features[i])
    values, marker = cells.numbers(feature, column)
    narrow = cells.narrow_dtype(column.dtype) is not None
    if feature.grid_step is not None and (narrow or feature.kind == "integer"):
        raw = torch.from_numpy(values)
        clipped = raw.clamp(legal.low, legal.high)
        beyond = (raw - clipped).abs() > scales.slack(feature, column.dtype, clipped)
        inside = (marker < 0) & ~beyond.numpy()
        values = np.where(inside, legal.nearest(clipped).numpy(), values)
    return values, marker


def texts(encoding: Encoding, column: pd.Series[Any]) -> NDArray[np.object_]:
    """The cells of a feature as texts that read back exactly; None for empty cells."""
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
    """The same rows with narrow floats in float64, as the numbers or categories that they count as."""
    wide = frame.copy(deep=False)
    for feature in encoding.schema.features:
        column = frame[feature.name]
        if cells.narrow_dtype(column.dtype) is None:
            continue
        if feature.is_numeric:
            wide[feature.name] = numbers(encoding, column)[0]
        else:
            values = np.array([*feature.categories, *feature.markers], dtype=object)
            wide[feature.name] = values[cells.levels(feature, column)]
    return wide


def in_types(encoding: Encoding, frame: pd.DataFrame) -> pd.DataFrame:
    """The same rows for a file whose columns have types: numbers among words become text."""
    pure = frame.copy(deep=False)
    for feature in encoding.schema.features:
        column = frame[feature.name]
        if column.dtype.kind == "O" and needs_text(feature) and not only_words(feature):
            pure[feature.name] = pd.Series(texts(encoding, column), index=frame.index, dtype=object)
    return pure
