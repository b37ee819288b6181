"""Rows as they come over the wire: checked against what a model knows of its columns, without any library.

``Columns`` is made of the plain description of a ``ModelHost``, so that the process that speaks HTTP refuses
what cannot be meant before it disturbs anybody. What it lets through is still checked by the encoding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veritracer.errors import DataError, closest, listing, message

Row = dict[str, Any]
LARGEST = 1e300
EMPTY = ("", "na", "n/a", "nan", "null")


@dataclass(frozen=True)
class Column:
    """What is known of one column, as in ``Feature``; its range is what the model has learned."""

    name: str
    kind: str
    action: str
    lower: float | None
    upper: float | None
    step: float | None
    categories: tuple[Any, ...]
    missing: str
    missing_codes: tuple[Any, ...]

    @property
    def is_numeric(self) -> bool:
        """Whether its values are numbers."""
        return self.kind in ("continuous", "integer")

    @property
    def may_be_missing(self) -> bool:
        """Whether a cell of it may be empty."""
        return self.missing != "refuse"

    def check(self, value: Any, where: str) -> None:
        """Refuse what is no value of this column."""
        if value is None:
            if not self.may_be_missing:
                raise DataError(message(f"a value of {self.name!r}", f"none {where}", "state it"))
            return
        if any(value == code and type(value) is type(code) for code in self.missing_codes):
            return
        if self.is_numeric:
            fits = isinstance(value, int | float) and not isinstance(value, bool)
            if not fits or not -LARGEST < value < LARGEST or math.isnan(value):
                remedy = "write it with a decimal point, and without other separators"
                raise DataError(message(f"a number for {self.name!r}", f"{_shown(value)} {where}", remedy))
            return
        if not any(value == known and _kind(value) is _kind(known) for known in self.categories):
            known = [str(one) for one in self.categories]
            close = closest(value, known)
            remedy = f"did you mean {close!r}?" if close else f"there are {listing(known, 8)}"
            raise DataError(message(f"a value of {self.name!r}", f"{_shown(value)} {where}", remedy))

    def beyond(self, value: Any) -> bool:
        """Whether a number is outside of what the model has seen: it counts as the nearer end."""
        if not self.is_numeric or value is None or self.lower is None or self.upper is None:
            return False
        return value not in self.missing_codes and not self.lower <= value <= self.upper

    def read(self, text: str) -> Any:
        """The value in the text of a form or of CSV."""
        text = text.strip()
        for known in (*self.missing_codes, *self.categories):
            if str(known) == text:
                return known
        if text.casefold() in EMPTY:
            return None
        if not self.is_numeric:
            return text
        try:
            number = float(text)  # 1,500 means two things: it stays a text, and is refused
        except ValueError:
            return text
        return int(number) if number.is_integer() and abs(number) < 2**53 else number

    def schema(self) -> dict[str, Any]:
        """What JSON Schema says of a cell."""
        if not self.is_numeric:
            values = [*self.categories, *self.missing_codes]
            return {"enum": [*values, None] if self.may_be_missing else values}
        number: dict[str, Any] = {"type": "integer" if self.kind == "integer" else "number"}
        ends = {"minimum": self.lower, "maximum": self.upper}
        number |= {name: _whole(end, self.kind) for name, end in ends.items() if end is not None}
        if self.kind == "integer" and self.step not in (None, 1.0) and not self.lower:
            number["multipleOf"] = int(self.step or 1)
        other: list[dict[str, Any]] = [{"enum": list(self.missing_codes)}] if self.missing_codes else []
        other += [{"type": "null"}] if self.may_be_missing else []
        return {"anyOf": [number, *other]} if other else number


@dataclass(frozen=True)
class Columns:
    """The columns of a model's table, in order."""

    listed: tuple[Column, ...]

    @classmethod
    def of(cls, features: Sequence[Mapping[str, Any]]) -> Columns:
        """From a plain description."""
        tuples = ("categories", "missing_codes")
        return cls(tuple(Column(**{**f, **{k: tuple(f[k]) for k in tuples}}) for f in features))

    @property
    def names(self) -> list[str]:
        """The names in order."""
        return [column.name for column in self.listed]

    def check(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Notes on what was accepted though it is unusual; refuses what is no row of this table."""
        known, notes = {column.name for column in self.listed}, []
        for i, row in enumerate(rows):
            where = f"in row {i}"
            if row.keys() != known:
                self._refuse_names(row, where)
            for column in self.listed:
                value = row[column.name]
                column.check(value, where)
                if column.beyond(value):
                    ends = f"{column.lower:,g} to {column.upper:,g}"
                    notes.append(f"{column.name!r} {where} is beyond {ends} and counts as the nearer end")
        return notes

    def _refuse_names(self, row: Mapping[str, Any], where: str) -> None:
        lacking = [name for name in self.names if name not in row]
        if lacking:
            raise DataError(
                message(f"{len(self.listed)} columns", f"{where} none called {listing(lacking)}", "add them")
            )
        extra = next(name for name in row if name not in self.names)
        close = closest(extra, self.names)
        remedy = f"did you mean {close!r}?" if close else "leave it out"
        raise DataError(message("columns of this model alone", f"{_shown(extra)} {where}", remedy))

    def schema(self) -> dict[str, Any]:
        """What JSON Schema says of a row."""
        return {
            "type": "object",
            "title": "Row",
            "description": "One application in raw values, with every column of the model.",
            "properties": {column.name: column.schema() for column in self.listed},
            "required": self.names,
            "additionalProperties": False,
        }

    def example(self) -> Row:
        """A row that is accepted."""
        return {c.name: _middle(c) if c.is_numeric else c.categories[0] for c in self.listed}

    def from_texts(self, texts: Mapping[str, str]) -> Row:
        """The row that a form's fields are."""
        return {column.name: column.read(texts.get(column.name, "")) for column in self.listed}


def _kind(value: Any) -> type:
    """Numbers are of one kind, whether whole or not; True is no number."""
    return float if isinstance(value, int) and not isinstance(value, bool) else type(value)


def _middle(column: Column) -> Any:
    low, high = column.lower or 0.0, column.upper if column.upper is not None else 1.0
    step = column.step or (1.0 if column.kind == "integer" else 0.0)
    middle = low + (high - low) / 2
    if step:
        middle = low + step * ((middle - low) // step)
    return int(middle) if column.kind == "integer" else round(middle, 6)


def _whole(end: float, kind: str) -> float:
    return int(end) if kind == "integer" else end


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
