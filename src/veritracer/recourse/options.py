"""What can be asked of ``explain``, checked once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.errors import DataError, listing, message, unknown_name
from veritracer.refine.problem import CoveredRegion, Drift
from veritracer.schema import Feature, Schema

_Method = TypeVar("_Method", bound=Callable[..., Any])


class ExplainOptions(TypedDict, total=False):
    """What can be asked of ``explain``, by name; ``Recourse.explain`` documents each of them."""

    kappa: float | None
    max_changes: int | None
    cost: Mapping[str, float] | None
    only_unfavourable: bool
    plausibility: float | None
    agreement: float | None
    plausible: bool
    limits: Mapping[str, float] | None
    extremes: bool
    n: int
    time_budget: float | None
    overshoot: float
    drift: Mapping[str, float | Sequence[float]] | None
    refine: bool
    search_radius: bool


@dataclass(frozen=True)
class Options:
    """The same with every choice made: what each option is where nothing was said of it."""

    kappa: float | None = None
    max_changes: int | None = None
    cost: Mapping[str, float] = field(default_factory=dict)
    only_unfavourable: bool = True
    plausibility: float | None = None
    agreement: float | None = None
    plausible: bool = False
    limits: Mapping[str, float] = field(default_factory=dict)
    extremes: bool = False
    n: int = 1
    time_budget: float | None = None
    overshoot: float = 0.0
    drift: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    refine: bool = True
    search_radius: bool = True

    @classmethod
    def of(cls, options: ExplainOptions) -> Options:
        """The choices of a call; an unknown name is refused, a mapping may be None."""
        for name in options:
            if name not in ExplainOptions.__annotations__:
                raise TypeError(unknown_name("an option of explain", name, ExplainOptions.__annotations__))
        given: dict[str, Any] = {**options}
        return cls(
            **{k: v for k, v in given.items() if v is not None or k not in ("cost", "limits", "drift")}
        )

    def checked(self, encoding: Encoding) -> Options:
        """The same value, or an error that says what makes no sense."""
        for name in ("kappa", "plausibility", "agreement", "overshoot", "time_budget"):
            _check_number(name, getattr(self, name), 0, Real)
        for name in ("max_changes", "n"):
            _check_number(name, getattr(self, name), 1, Integral)
        for name in ("only_unfavourable", "plausible", "extremes", "refine", "search_radius"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise DataError(
                    message(f"{name} True or False", repr(getattr(self, name)), "give one of them")
                )
        self._check_refined()
        for name, remedy in (
            ("overshoot", "it is a share of the range: 0.05 is 5 %"),
            ("agreement", "it is a share of the panel's held-out members: 0.5 is half of them"),
        ):
            if (getattr(self, name) or 0.0) > 1:
                raise DataError(message(f"{name} from 0 to 1", repr(getattr(self, name)), remedy))
        checks: dict[str, tuple[Any, Callable[[Feature, Any], None]]] = {
            "cost": (self.cost, _check_price),
            "drift": (self.drift, _check_drift),
            "limits": (self.limits, _check_limit),
        }
        for what, (given, check) in checks.items():
            if not isinstance(given, Mapping):
                remedy = f"write {what}={{'feature': 2.0}}"
                raise DataError(message(f"a mapping from features to numbers as {what}", repr(given), remedy))
            for name, value in given.items():
                if name not in encoding.schema.names:
                    raise DataError(unknown_name(f"a feature in {what}", name, encoding.schema.names))
                check(encoding.schema[name], value)
        return replace(self, drift={**yearly_drift(encoding.schema), **self.drift})

    def _check_refined(self) -> None:
        """Refuse, without refinement, what only refinement can do."""
        only = {"max_changes": self.max_changes is not None, "n": self.n > 1, "cost": bool(self.cost)}
        only["plausibility"] = bool(self.plausibility)
        only["limits"] = bool(self.limits)
        asked = [name for name, used in only.items() if used]
        if asked and not self.refine:
            remedy = "leave refine=False out, or the others"
            raise DataError(message("refine=True", f"refine=False with {listing(asked)}", remedy))

    def prices(self, encoding: Encoding) -> Tensor:
        """The price of one unit of each encoded column, (dim,); infinite for what must not change."""
        each = torch.tensor(
            [float(self.cost.get(name, 1.0)) for name in encoding.schema.names], dtype=torch.float64
        )
        return each[encoding.owner]

    def shares(self, encoding: Encoding) -> dict[str, float]:
        """By which share of a person's own value each limited feature may change: the schema's, or less."""
        found = dict(self.limits)
        for feature in encoding.schema.features:
            if feature.limit is not None:
                found[feature.name] = min(feature.limit, found.get(feature.name, math.inf))
        return found

    def reach(self, encoding: Encoding) -> CoveredRegion:
        """How far people may go beyond what they are told, in units of the encoded columns."""
        still = torch.zeros(encoding.dim, dtype=torch.float64)
        down, up = still.clone(), still.clone()
        for name, asked in self.drift.items():
            start = encoding.blocks[encoding.schema.names.index(name)].start
            drift, rounding = Drift.of(asked), encoding.units.rounding(name)
            for way, amount in ((down, -drift.least), (up, drift.most)):
                way[start] = encoding.units.of(name, amount) + rounding if amount > 0 else 0.0
        return CoveredRegion(torch.where(encoding.numeric, self.overshoot, still), down, up)


def yearly_drift(schema: Schema, years: float = 1.0) -> dict[str, tuple[float, float]]:
    """What so many years, begun ones as whole ones, bring by themselves where the schema says so."""
    whole = max(1, math.ceil(years - 1e-9))
    return {
        f.name: (whole * f.yearly[0], whole * f.yearly[1]) for f in schema.features if f.yearly is not None
    }


def _check_number(name: str, value: Any, lowest: float, kind: type) -> None:
    if value is None:
        return
    fits = isinstance(value, kind) and not isinstance(value, bool)
    if not fits or not lowest <= float(value) < math.inf:
        number = "a whole number" if kind is Integral else "a number"
        raise DataError(message(f"{name} of at least {lowest} ({number})", repr(value), "give another one"))


def _is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def _check_price(feature: Feature, value: Any) -> None:
    if not isinstance(value, Real) or not float(value) > 0:
        received = repr(value)
        raise DataError(message(f"a positive number for {feature.name!r} in cost", received, "give another"))


def _check_limit(feature: Feature, value: Any) -> None:
    if not _is_real(value) or not 0 <= float(value) < math.inf:
        remedy = "0.3 lets it change by up to 30 % of the person's own value"
        raise DataError(message(f"a share of at least 0 for {feature.name!r} in limits", repr(value), remedy))
    if not feature.is_numeric:
        remedy = "limit numbers only; actions in the schema say what may change"
        raise DataError(message("a numeric feature in limits", f"{feature.kind} {feature.name!r}", remedy))


def _check_drift(feature: Feature, value: Any) -> None:
    """Refuse what is neither an amount nor a range of moves around 0, and features that have no order."""
    where = f"for {feature.name!r} in drift"
    ends = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    numbers = [float(end) for end in ends if _is_real(end)]
    if len(numbers) < len(ends) or len(ends) not in (1, 2) or any(math.isnan(end) for end in numbers):
        remedy = "2 is up to 2 both ways, (0, 2) up to 2 more and never less"
        raise DataError(message(f"a number, or a pair of them, {where}", repr(value), remedy))
    if any(math.isinf(end) for end in numbers) or feature.kind == "categorical":
        received = (
            repr(value) if feature.kind != "categorical" else f"the categorical feature {feature.name!r}"
        )
        remedy = "name numbers and ordered features only, and finite amounts"
        raise DataError(message(f"a finite amount of a feature that can drift, {where}", received, remedy))
    if len(numbers) == 1 and numbers[0] < 0:
        raise DataError(
            message(f"a number of at least 0 {where}", repr(value), "give how far, not which way")
        )
    if len(numbers) == 2 and not numbers[0] <= 0 <= numbers[1]:
        remedy = "the shown value itself is covered too: (0, 2) is from there to 2 more"
        raise DataError(
            message(f"a range of moves from at most 0 to at least 0 {where}", repr(value), remedy)
        )


def shows_options(method: _Method) -> _Method:
    """The method, whose ``**options`` are named in its signature, with their defaults."""
    written = inspect.signature(method)
    named = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None if option.default is MISSING else option.default,
            annotation=ExplainOptions.__annotations__[option.name],
        )
        for option in fields(Options)
    ]
    own = [p for p in written.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    method.__signature__ = written.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    return method
