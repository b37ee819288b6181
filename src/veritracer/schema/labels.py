"""Raw labels of any type, and the 0 and 1 that a classifier learns (1 is favourable)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from veritracer.errors import TargetError, message
from veritracer.schema.feature import Value, is_number, plain
from veritracer.schema.recognition import words_of

_GOOD_WORDS = frozenset(
    ("1", "1.0", "y", "yes", "t", "true", "good", "ok", "paid", "repaid", "benign", "normal", "healthy")
) | {"eligible", "hired", "positive", "success", "successful"}
_AFFIRMATIVE = frozenset(("1", "1.0", "y", "yes", "t", "true", "positive"))
_UNWANTED = frozenset(
    words_of(
        "arrears attrition bad bankrupt bankruptcy chargeoff churn churned death declined default defaulted "
        "defaults delinquency delinquent denied died disease dropout failed failure fraud fraudulent late "
        "malignant overdue recidivism rejected risk sick unpaid withdrawn"
    )
)
_NEGATIONS = frozenset(("no", "non", "not", "never", "without"))
_GOOD_STARTS = ("accept", "approv", "pass", "grant", "favourable", "favorable")


def distinct(y: Any) -> tuple[NDArray[np.int64], list[Any]]:
    """For each label the position of its value, and the distinct values; refuses what is no column."""
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
        raise TargetError(
            message(
                "a label for every row",
                f"{absent:,} missing of {len(series):,} (first in row {series.index[int(codes.argmin())]!r})",
                "drop those rows, or give them labels",
            )
        )
    return codes.astype(np.int64, copy=False), [plain(value) for value in values]


def two(y: Any) -> list[Value]:
    """The two distinct labels of ``y``, in ascending order where they have one."""
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


def guess_favourable(values: list[Value], target: str | None = None) -> Value:
    """The label that reads like the good one of the two; the greater one where neither or both do.

    Of a ``target`` that nobody wishes for (``is_unwanted``), yes and 1 are the bad ones.

    >>> guess_favourable([0, 1], "approved"), guess_favourable([0, 1], "loan_default")
    (1, 0)
    """
    good = [value for value in values if _reads_well(value)]
    if len(good) != 1:
        return values[-1]
    if target is not None and is_unwanted(target) and str(good[0]).strip().casefold() in _AFFIRMATIVE:
        return values[1 - values.index(good[0])]
    return good[0]


def is_unwanted(target: str) -> bool:
    """Whether the name of a target says something that nobody wishes for.

    >>> is_unwanted("default.payment"), is_unwanted("Churned"), is_unwanted("no_default"), is_unwanted("paid")
    (True, True, False, False)
    """
    words = words_of(target)
    return bool(_UNWANTED.intersection(words)) and not _NEGATIONS.intersection(words)


def as_binary(y: Any, favourable: Value, unfavourable: Value, *, require_both: bool) -> NDArray[np.int64]:
    """1 where the label is the favourable one, 0 where it is the other, shape (n,)."""
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


def _reads_well(value: Value) -> bool:
    if isinstance(value, str):
        word = value.strip().casefold()
        return word in _GOOD_WORDS or word.startswith(_GOOD_STARTS)
    return value is True or (is_number(value) and value == 1)


def _not_two(values: list[Any]) -> str:
    shown = ", ".join(repr(value) for value in values[:5]) + (", …" if len(values) > 5 else "")
    if len(values) == 1:
        return message(
            "two classes",
            f"one class only: {shown}",
            "add rows of the other class; nothing can be learned from one",
        )
    remedy = "map them onto two, for example y == 'good'"
    return message("two classes", f"{len(values):,} classes: {shown}", remedy)
