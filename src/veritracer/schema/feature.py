"""Describe one column of a table: its kind, legal values, missing values and action."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr
from pydantic import ValidationError as PydanticError

from veritracer.errors import SchemaError, listing, message
from veritracer.formatting import to_python
from veritracer.schema.number_formats import NumberFormat

Value = StrictBool | StrictInt | StrictFloat | StrictStr
Kind = Literal["continuous", "integer", "ordinal", "categorical", "binary"]
Policy = Literal["impute", "category", "refuse"]
Action = Literal["free", "immutable", "increase_only", "decrease_only"]
Display = Literal["auto", "exact"]


def is_number(value: object) -> bool:
    """Return True for an int or a float, but not for a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def schema_error(error: PydanticError) -> SchemaError:
    """Convert the first error of pydantic to a message with three parts."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if isinstance(part, str)) or "the description"
    said = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return SchemaError(
        message(f"{said} for {where}", f"{first['input']!r}", "see the docstring of Feature and of Schema")
    )


class Feature(BaseModel):
    """One column: its kind, legal values, missing values and action.

    Parameters
    ----------
    name : the column's name.
    kind : ``integer`` is numeric with ``step=1`` unless another whole step is given; ``continuous`` may
        have a ``step`` too. The grid is ``lower + k*step`` (``k*step`` where no lower end is declared).
    display_step : step of *proposed* values of a continuous feature without a ``step``: a number, ``auto``
        (three significant digits of the range, hundreds of values) or ``exact``.
    lower, upper : the legal range; None is learned from the training data.
    categories : the legal values of an ordinal (in their order), a categorical, or a binary feature
        (exactly two; the second one is encoded as 1).
    missing : treatment of empty cells and ``missing_codes``: ``impute`` (filled and flagged), ``category``
        (a value of its own), or ``refuse``.
    missing_codes : values that mean "missing"; each is encoded separately.
    action : ``free``, ``immutable``, ``increase_only`` or ``decrease_only``.
    limit : largest change of a number, as a share of the person's own value: 0.3 is up to 30 %.
    yearly : how far the value moves by itself within a year, from least to most: ``(0, 1)`` for an age in
        years, ``(0, 12)`` for months in a job. Certificates cover these moves within their ``term`` unless
        ``drift`` states others, and nobody is advised to move a value further that moves one way only.
    number_format : format of numbers in text, as an example: ``"1,234.5"``, ``"€ 1.234,5"`` or ``"1234.5%"``
        (12% is 12). None is the format of programs.
    note : origin of the description, in words.

    >>> Feature("age", "integer", lower=18, upper=99, action="increase_only").grid_step
    1.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(min_length=1)]
    kind: Kind
    lower: float | None = None
    upper: float | None = None
    step: float | None = None
    categories: tuple[Value, ...] = ()
    missing: Policy = "refuse"
    missing_codes: tuple[Value, ...] = ()
    action: Action = "free"
    limit: float | None = None
    yearly: tuple[float, float] | None = None
    display_step: float | Display = "auto"
    number_format: str | None = None
    note: str = ""

    def __init__(
        self,
        name: str,
        kind: Kind,
        *,
        lower: float | None = None,
        upper: float | None = None,
        step: float | None = None,
        categories: Iterable[Value] = (),
        missing: Policy = "refuse",
        missing_codes: Iterable[Value] = (),
        action: Action = "free",
        limit: float | None = None,
        yearly: Iterable[float] | None = None,
        display_step: float | Display = "auto",
        number_format: str | None = None,
        note: str = "",
    ) -> None:
        try:
            super().__init__(
                name=name,
                kind=kind,
                lower=to_python(lower),
                upper=to_python(upper),
                step=to_python(step),
                categories=_values(name, "categories", categories),
                missing=missing,
                missing_codes=_values(name, "missing_codes", missing_codes),
                action=action,
                limit=to_python(limit),
                yearly=None if yearly is None else tuple(map(float, _values(name, "yearly", yearly))),
                display_step=to_python(display_step),
                number_format=number_format,
                note=note,
            )
        except PydanticError as error:
            raise schema_error(error) from None
        self._check_range()
        self._check_step()
        self._check_display()
        self._check_categories()
        self._check_missing()
        self._check_limit()
        self._check_yearly()
        self._check_format()
        if self.kind == "categorical" and self.action in ("increase_only", "decrease_only"):
            raise self._error(
                "a one-way action only where values have an order",
                f"action={self.action!r} for a categorical feature",
                "list its levels in order (ordinal={name: [...]}), or make it immutable",
            )

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with these fields changed."""
        return type(self)(**{**self.model_dump(), **changes})

    @property
    def is_numeric(self) -> bool:
        """True for continuous and integer features."""
        return self.kind in ("continuous", "integer")

    @property
    def grid_step(self) -> float | None:
        """The distance between neighbouring legal values; None without a grid."""
        if self.kind == "integer" and self.step is None:
            return 1.0
        return self.step

    def drift_within(self, term: timedelta) -> tuple[float, float]:
        """Return how far the value moves by itself within a term, rounded outwards to the grid.

        A value on a grid moves by at least one step: a birthday may be tomorrow.

        >>> age = Feature("age", "integer", yearly=(0, 1))
        >>> age.drift_within(timedelta(days=30)), age.drift_within(timedelta(days=400))
        ((0.0, 1.0), (0.0, 2.0))
        """
        years = term / timedelta(days=365)
        least, most = (self._outwards(end * years) for end in self.yearly or (0.0, 0.0))
        return least, most

    def _outwards(self, amount: float) -> float:
        step = self.grid_step if self.is_numeric else 1.0
        if step is None or amount == 0:
            return amount
        return math.copysign(max(1, math.ceil(abs(amount) / step - 1e-9)) * step, amount)

    @property
    def moves_one_way(self) -> bool:
        """True if the value moves by itself in one direction only, as an age does."""
        return self.yearly is not None and any(self.yearly) and 0 in self.yearly

    @property
    def writing(self) -> NumberFormat | None:
        """The format of numbers in text; None is the format of programs."""
        return None if self.number_format is None else NumberFormat.of(self.number_format)

    @property
    def markers(self) -> tuple[Value | None, ...]:
        """The representations of a missing value: None (the empty cell), then the declared codes."""
        return (None, *self.missing_codes)

    def _error(self, expected: str, received: str, remedy: str) -> SchemaError:
        return SchemaError(message(f"{expected} (feature {self.name!r})", received, remedy))

    def _check_limit(self) -> None:
        if self.limit is not None and not (self.is_numeric and 0 <= self.limit < math.inf):
            remedy = "0.3 lets people be asked to change it by up to 30 %"
            raise self._error("limit as a share of a numeric value", f"{self.limit!r} ({self.kind})", remedy)

    def _check_yearly(self) -> None:
        if self.yearly is None:
            return
        least, most = self.yearly
        if self.kind == "categorical" or not -math.inf < least <= 0 <= most < math.inf:
            remedy = "(0, 1) is up to one more and never less; only ordered values can drift"
            raise self._error("yearly from at most 0 to at least 0", f"{self.yearly} ({self.kind})", remedy)

    def _check_format(self) -> None:
        if self.number_format is not None and not self.is_numeric:
            remedy = "leave it out: categories have no format"
            raise self._error(
                "number_format only for numeric features", f"{self.number_format!r} ({self.kind})", remedy
            )
        if self.number_format is not None:
            NumberFormat.of(self.number_format)

    def _check_range(self) -> None:
        ends = [end for end in (self.lower, self.upper, self.step) if end is not None]
        if ends and not self.is_numeric:
            raise self._error(
                "lower, upper and step only for numeric features",
                f"one for the kind {self.kind!r}",
                "list the legal values in categories instead",
            )
        if not all(math.isfinite(end) for end in ends):
            raise self._error(
                "finite lower, upper and step", f"{ends}", "leave an open end out: it is learned"
            )
        if self.lower is not None and self.upper is not None and self.lower > self.upper:
            raise self._error("lower <= upper", f"{self.lower:g} > {self.upper:g}", "swap them")

    def _check_step(self) -> None:
        if self.step is not None and self.step <= 0:
            raise self._error(
                "a positive step", f"{self.step:g}", "leave step out for a feature without a grid"
            )
        if self.kind == "integer":
            for field in ("lower", "upper", "step"):
                end = getattr(self, field)
                if end is not None and end != int(end):
                    raise self._error(
                        f"a whole number for {field} of an integer feature",
                        f"{end:g}",
                        "round it, or declare the feature continuous with a step",
                    )
        if self.grid_step is not None and self.lower is not None and self.upper is not None:
            extent = self.upper - self.lower
            if 0 < extent < self.grid_step:
                raise self._error(
                    "a step that fits into the range",
                    f"step {self.grid_step:g} for a range of {extent:g}",
                    "widen the range or make the step smaller",
                )

    def _check_display(self) -> None:
        step = self.display_step
        if step == "auto" or (step == "exact" and self.grid_step is None):
            return
        if self.kind != "continuous" or self.step is not None:
            raise self._error(
                "a display_step only for a continuous feature without a step",
                f"display_step={step!r} for one of the kind {self.kind!r}",
                "leave it out: a grid decides what is shown",
            )
        if not isinstance(step, str) and not (math.isfinite(step) and step > 0):
            raise self._error("a positive display_step", f"{step:g}", "leave it out, or write 'exact'")

    def _check_categories(self) -> None:
        least = {"binary": 2, "ordinal": 1, "categorical": 1}.get(self.kind, 0)
        count = len(self.categories)
        if self.is_numeric and count:
            raise self._error(
                "no categories for a numeric feature", f"{count} of them", "declare it ordinal or categorical"
            )
        if count < least or (self.kind == "binary" and count != 2):
            wanted = "exactly two" if self.kind == "binary" else "at least one"
            raise self._error(
                f"{wanted} categories for the kind {self.kind!r}",
                f"{count}",
                "list the legal values in categories",
            )
        self._check_distinct("categories", self.categories)

    def _check_missing(self) -> None:
        self._check_distinct("missing_codes", self.missing_codes)
        both = [code for code in self.missing_codes if code in self.categories]
        if both:
            raise self._error(
                "missing codes that are not categories",
                f"{listing(both)} as both",
                "remove it from one of the two",
            )
        if self.lower is not None and self.upper is not None:
            inside = [c for c in self.missing_codes if is_number(c) and self.lower <= float(c) <= self.upper]
            if inside:
                raise self._error(
                    f"missing codes outside the legal range {self.lower:g} to {self.upper:g}",
                    f"{listing(inside)} inside it",
                    "narrow the range, or turn the code into an empty cell beforehand",
                )

    def _check_distinct(self, field: str, values: tuple[Value, ...]) -> None:
        if any(isinstance(value, float) and not math.isfinite(value) for value in values):
            raise self._error(
                f"finite {field}", "NaN or infinity", "an empty cell is always missing: leave it out"
            )
        if len(set(values)) != len(values):  # True, 1 and 1.0 are equal: one cell could not tell them apart
            twice = [value for i, value in enumerate(values) if value in values[:i]]
            raise self._error(f"each of the {field} once", f"{listing(twice)} twice", "remove the repetition")


def _values(name: str, field: str, values: Iterable[Value]) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise SchemaError(
            message(
                f"a list for {field} of the feature {name!r}", repr(values), f"write {field}=[{values!r}]"
            )
        )
    return tuple(to_python(value) for value in values)
