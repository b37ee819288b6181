"""Map raw labels of any type to 0 and 1, where 1 is favourable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.errors import Message, TargetError, message
from veritracer.formatting import to_python, to_python_list
from veritracer.schema.feature import Value

WELL_KNOWN = frozenset(
    {
        ("approved", "denied"),
        ("approved", "declined"),
        ("accepted", "rejected"),
        ("granted", "refused"),
        ("good", "bad"),
        ("repaid", "defaulted"),
        ("fully paid", "charged off"),
        ("pass", "fail"),
    }
)
"""Pairs of labels, the favourable one first, for which ``favourable`` may be omitted."""


BAD_NEWS = re.compile(
    "arrears|bad|bankrupt(cy)?|chargeoff|churn|declined?|default(ed)?|delinquen(cy|t)|den(ial|ied|y)|"
    "fail(ed|ure)?|foreclosure|fraud|late|overdue|refus(al|ed?)|reject(ed|ion)?|risk|unpaid"
)
"""Words in the name of a target that describe an unfavourable outcome."""

YES = frozenset({"1", "1.0", "t", "true", "y", "yes"})


def label_doubt(target: str | None, favourable: object) -> str | None:
    """Return a sentence if the favourable label seems to be the wrong one, as 'yes' of 'deny' does."""
    words = re.split(r"[^a-z]+", str(target).casefold())
    if str(favourable).casefold() not in YES or not any(map(BAD_NEWS.fullmatch, words)):
        return None
    return (
        f"{str(target)!r} = {str(favourable)!r} is the favourable label, but does not sound favourable: "
        "check --favourable"
    )


class Convention(Enum):
    """Rules for the favourable label; ``POSITIVE`` is scikit-learn's, by which it is ``classes_[1]``."""

    POSITIVE = "positive"

    def __repr__(self) -> str:
        return f"vt.{self.name}"

    __str__ = __repr__


POSITIVE = Convention.POSITIVE
"""``classes_[1]``, which scikit-learn calls the positive class, is favourable."""


def distinct(y: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """Return the position of each label among the distinct ones, and these; refuse other shapes."""
    if isinstance(y, pd.DataFrame | np.ndarray) and y.ndim == 2 and y.shape[1] == 1:
        y = y.iloc[:, 0] if isinstance(y, pd.DataFrame) else y[:, 0]
    if isinstance(y, str) or not np.iterable(y) or getattr(y, "ndim", 1) != 1:
        shape = getattr(y, "shape", None)
        got = f"the shape {tuple(shape)}" if shape is not None else f"a {type(y).__name__}"
        raise TargetError(message("one label for each row", got, "pass a single column of labels"))
    series = y if isinstance(y, pd.Series) else pd.Series(y if isinstance(y, pd.Index) else _array(y))
    if len(series) == 0:
        raise TargetError(message("at least one label", "none", "check how the labels were selected"))
    try:
        codes, values = pd.factorize(series)
    except TypeError:
        raise TargetError(
            message(
                "labels that are text, numbers or booleans", "nested values", "pass one value for each row"
            )
        ) from None
    absent = int((codes == -1).sum())
    if absent:
        first = to_python(series.index[int(codes.argmin())])
        received = f"{absent:,} missing of {len(series):,} (first in row {first!r})"
        raise TargetError(message("a label for every row", received, "drop those rows, or give them labels"))
    return codes.astype(np.int64, copy=False), to_python_list(values)


def two(y: Any) -> list[Value]:
    """Return the two distinct labels of ``y``, in ascending order if they have one."""
    _, values = distinct(y)
    if len(values) != 2:
        raise TargetError(_not_two(values))
    for value in values:
        if not isinstance(value, bool | int | float | str):
            raise TargetError(
                message(
                    "labels that are text, numbers or booleans",
                    f"{value!r} of type {type(value).__name__}",
                    "convert them, for example by .astype(str)",
                )
            )
    same_order = all(isinstance(v, str) for v in values) or not any(isinstance(v, str) for v in values)
    return sorted(values) if same_order else sorted(values, key=str)


def well_known(values: Sequence[Value]) -> Value | None:
    """Return the favourable one of two labels that form a well-known pair; None for any other two.

    >>> well_known(["Denied", "Approved"]), well_known(["no", "yes"])
    ('Approved', None)
    """
    first, second = (" ".join(str(value).casefold().split()) for value in values)
    if (first, second) in WELL_KNOWN:
        return values[0]
    return values[1] if (second, first) in WELL_KNOWN else None


def not_stated(values: Sequence[Value], target: str | None, statements: Sequence[str], to: str) -> Message:
    """Return the message for two labels without a favourable one.

    ``statements`` has the argument for each label, and ``to`` names the functions that take it.
    """
    of = "" if target is None else f" of {target!r}"
    received = f"{values[0]!r} and {values[1]!r} without a favourable one"
    return message(f"the favourable label{of}", received, f"pass {' or '.join(statements)} to {to}")


def stated_twice(label: Value, in_schema: Value) -> Message:
    """Return the message for a favourable label that contradicts the schema."""
    remedy = "leave one of them out, or make them agree"
    return message("one favourable label", f"{label!r}, and {in_schema!r} in the schema", remedy)


def as_binary(y: Any, favourable: Value, unfavourable: Value, *, require_both: bool) -> NDArray[np.int64]:
    """Return 1 for favourable and 0 for unfavourable labels, (n,)."""
    codes, values = distinct(y)
    known = {favourable: 1, unfavourable: 0}
    unknown = [value for value in values if value not in known]
    if unknown:
        if len(values) > 2:
            raise TargetError(_not_two(values))
        row = int(np.isin(codes, [values.index(value) for value in unknown]).argmax())
        raise TargetError(
            message(
                f"the labels {favourable!r} (favourable) and {unfavourable!r}",
                f"{unknown[0]!r} (position {row})",
                "check the labels' type and spelling, or infer a schema from this table",
            )
        )
    if require_both and len(values) < 2:
        raise TargetError(_not_two(values))
    table = np.array([known[value] for value in values], dtype=np.int64)
    return table[codes]


def _array(y: Any) -> Any:
    # A list such as [True, "no", 1] must not become text on its way through numpy.
    return y if isinstance(y, np.ndarray | pd.api.extensions.ExtensionArray) else list(y)


def _not_two(values: list[Any]) -> str:
    shown = ", ".join(repr(value) for value in values[:5]) + (", …" if len(values) > 5 else "")
    if len(values) == 1:
        return message(
            "two classes",
            f"one class only: {shown}",
            "add rows of the other class",
        )
    remedy = "map them onto two, for example y == 'good'"
    return message("two classes", f"{len(values):,} classes: {shown}", remedy)
