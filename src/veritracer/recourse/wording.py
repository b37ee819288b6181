"""What a person reads: values, changes and promises in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, Decimal
from typing import Any, NamedTuple

import pandas as pd

from veritracer.balls import Norm
from veritracer.param_sets import RadiusRule
from veritracer.schema import Feature


class Change(NamedTuple):
    """One feature that changes: from which value to which, and how far it may go beyond that (None: not)."""

    feature: Feature
    before: Any
    after: Any
    limit: Any = None

    @property
    def was_missing(self) -> bool:
        """Whether there was no value before."""
        return value_in_words(self.before) == "unknown" or self.before in self.feature.missing_codes

    @property
    def goes_on(self) -> bool:
        """Whether a person may go further than they were told."""
        number = self.feature.is_numeric and not self.was_missing
        return number and self.limit is not None and bool(self.limit != self.after)


class Promise(NamedTuple):
    """What a certificate promises about later models: which ones, and whether x must keep its decision."""

    kappa: float
    norm: Norm
    radius: RadiusRule | float
    conditional: bool
    favourable: bool


def value_in_words(value: Any) -> str:
    """A cell as a person would write it.

    >>> value_in_words(1200), value_in_words(0.25), value_in_words("rent"), value_in_words(None)
    ('1,200', '0.25', 'rent', 'unknown')
    """
    if value is None or value is pd.NaT or (isinstance(value, float) and value != value) or value is pd.NA:
        return "unknown"
    if isinstance(value, bool | str):
        return str(value)
    # All digits: a rounded value is another row, of which nothing is proved.
    number = Decimal(repr(value if isinstance(value, int) else float(value))).normalize()
    whole = number == number.to_integral_value()
    return f"{int(number):,}" if whole else f"{number:,f}"


def change_in_words(change: Change) -> str:
    """One change as an instruction, without a capital.

    >>> change_in_words(Change(Feature("savings", "integer"), 1200, 2400))
    'raise savings from 1,200 to 2,400'
    >>> change_in_words(Change(Feature("debts", "integer"), 500, 300, limit=250))
    'reduce debts from 500 to 300 (by at least 200)'
    """
    feature, before, after, _ = change
    name, old, new = feature.name, value_in_words(before), value_in_words(after)
    if change.was_missing:
        return f"state {name} as {new}"
    if not feature.is_numeric:
        return f"change {name} from {old} to {new}"
    if after > before:
        return f"raise {name} from {old} to {'at least ' if change.goes_on else ''}{new}"
    if not change.goes_on:
        return f"reduce {name} from {old} to {new}"
    by = value_in_words(float(before) - float(after))
    return f"reduce {name} from {old} to {new} (by at least {by})"


def instruction(changes: Sequence[Change]) -> str:
    """All changes as one sentence."""
    return _capital(_joined([change_in_words(change) for change in changes])) + "."


def region_in_words(changes: Sequence[Change], drift: Sequence[tuple[str, float]]) -> str:
    """How far people may go beyond what they were told, as a sentence; empty where they may not."""
    parts = [
        f"{c.feature.name} {'up' if c.after > c.before else 'down'} to {value_in_words(c.limit)}"
        for c in changes
        if c.goes_on
    ]
    said = f"Going further is covered too: {_joined(parts)}. " if parts else ""
    moving = [f"{name} may change by up to {value_in_words(by)}" for name, by in drift]
    return said + (f"Meanwhile {_joined(moving)} without being asked to. " if moving else "")


def promise_in_words(promise: Promise, *, holds: bool = True) -> str:
    """What is promised about later models, as a sentence."""
    if promise.kappa == 0:
        return "This is valid for today's model; nothing was asked about later versions."
    start = (
        "This stays valid for any later version of the model"
        if holds
        else ("This is valid today, but proved only for later versions of the model")
    )
    sentence = f"{start} {set_in_words(promise)}"
    if promise.conditional:
        decided = "accepted" if promise.favourable else "declined"
        sentence += f", as long as the original application would still be {decided}"
    return sentence + "."


def rounded_down(number: float) -> str:
    """At most three significant digits, never more than the number: a promise must not grow in the telling.

    >>> rounded_down(20.0), rounded_down(2.996), rounded_down(0.07199)
    ('20', '2.99', '0.0719')
    """
    if number <= 0:
        return "0"
    exact = Decimal(repr(float(number)))
    nearest = Decimal(f"{float(number):.12g}")  # 100 * 0.2 may be an ulp below 20
    exact = nearest if abs(nearest - exact) <= abs(exact) * Decimal("1e-12") else exact
    digits = 3 - (exact.adjusted() + 1)
    return f"{exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR).normalize():f}"


def set_in_words(promise: Promise) -> str:
    """The set of models: which moves of the weights are covered."""
    if not isinstance(promise.radius, str):
        amount = rounded_down(promise.kappa * float(promise.radius))
        return (
            f"whose weights each move by at most {amount}"
            if promise.norm == "linf"
            else (f"whose weight matrices and biases each move by at most {amount} ({promise.norm} norm)")
        )
    share = f"{rounded_down(100 * promise.kappa)} %"
    if promise.norm == "linf" and promise.radius == "mean-abs":
        return f"whose weights each move by at most {share} of their layer's average size"
    if promise.norm == "linf":
        return f"whose weights each move by at most {share} of their layer's largest one"
    size = "average size" if promise.radius == "mean-abs" else f"{promise.norm} norm"
    return (
        f"whose weight matrices and biases each move by at most {share} of their {size} ({promise.norm} norm)"
    )


def _joined(parts: Sequence[str]) -> str:
    """The parts as a list in a sentence.

    >>> _joined(["a", "b", "c"])
    'a, b and c'
    """
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
