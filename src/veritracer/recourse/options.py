"""What can be asked of ``explain``, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.errors import DataError, listing, message
from veritracer.refine.reach import Reach
from veritracer.schema.tables import unknown_name


@dataclass(frozen=True)
class Options:
    """The choices of one call of ``explain``; ``Recourse.explain`` documents each of them."""

    kappa: float | None = None
    max_changes: int | None = None
    cost: Mapping[str, float] = field(default_factory=dict)
    only_unfavourable: bool = True
    plausibility: float = 0.0
    n: int = 1
    time_budget: float | None = None
    overshoot: float = 0.0
    drift: Mapping[str, float] = field(default_factory=dict)
    refine: bool = True
    search_radius: bool = True

    def checked(self, encoding: Encoding) -> Options:
        """The same value, or an error that says what makes no sense."""
        for name in ("kappa", "plausibility", "overshoot", "time_budget"):
            _check_number(name, getattr(self, name), 0, Real)
        for name in ("max_changes", "n"):
            _check_number(name, getattr(self, name), 1, Integral)
        for name in ("only_unfavourable", "refine", "search_radius"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise DataError(
                    message(f"{name} True or False", repr(getattr(self, name)), "give one of them")
                )
        self._check_refined()
        if self.overshoot > 1:
            remedy = "it is a share of the range: 0.05 is 5 %"
            raise DataError(message("overshoot from 0 to 1", repr(self.overshoot), remedy))
        named: dict[str, Any] = {"cost": self.cost, "drift": self.drift}
        for what, given in named.items():
            if not isinstance(given, Mapping):
                remedy = f"write {what}={{'feature': 2.0}}"
                raise DataError(message(f"a mapping from features to numbers as {what}", repr(given), remedy))
            for name, value in given.items():
                _check_entry(encoding, what, name, value)
        return self

    def _check_refined(self) -> None:
        """Refuse, without refinement, what only refinement can do."""
        only = {"max_changes": self.max_changes is not None, "n": self.n > 1, "cost": bool(self.cost)}
        only["plausibility"] = self.plausibility > 0
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

    def reach(self, encoding: Encoding) -> Reach:
        """How far people may go beyond what they are told, in units of the encoded columns."""
        still = torch.zeros(encoding.dim, dtype=torch.float64)
        down, up = still.clone(), still.clone()
        for name, amount in self.drift.items():
            block = encoding.blocks[encoding.schema.names.index(name)]
            units = encoding.units(name, amount)
            if block.feature.action != "increase_only":
                down[block.start] = units
            if block.feature.action != "decrease_only":
                up[block.start] = units
        return Reach(torch.where(encoding.numeric, self.overshoot, still), down, up)


def _check_number(name: str, value: Any, lowest: float, kind: type) -> None:
    if value is None:
        return
    fits = isinstance(value, kind) and not isinstance(value, bool)
    if not fits or not lowest <= float(value) < math.inf:
        number = "a whole number" if kind is Integral else "a number"
        raise DataError(message(f"{name} of at least {lowest} ({number})", repr(value), "give another one"))


def _check_entry(encoding: Encoding, what: str, name: str, value: Any) -> None:
    if name not in encoding.schema.names:
        raise DataError(unknown_name(f"a feature in {what}", name, encoding.schema.names))
    if not isinstance(value, Real) or not float(value) >= 0 or (what == "cost" and value == 0):
        least = "a positive number" if what == "cost" else "a number of at least 0"
        raise DataError(message(f"{least} for {name!r} in {what}", repr(value), "give another one"))
    if what == "drift" and (math.isinf(value) or encoding.schema[name].kind == "categorical"):
        kind = encoding.schema[name].kind
        remedy = "name numbers and ordered features only"
        raise DataError(
            message(f"a feature that can drift by {value:g}", f"the {kind} feature {name!r}", remedy)
        )
