"""What can be asked of ``explain``, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.errors import DataError, message
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
    radius: bool = True

    def checked(self, encoding: Encoding) -> Options:
        """The same value, or an error that says what makes no sense."""
        least = {"kappa": (self.kappa, 0.0), "max_changes": (self.max_changes, 1), "n": (self.n, 1)}
        least |= {"plausibility": (self.plausibility, 0.0), "overshoot": (self.overshoot, 0.0)}
        least |= {"time_budget": (self.time_budget, 0.0)}
        for name, (value, lowest) in least.items():
            if value is not None and not (lowest <= value < math.inf):
                raise DataError(message(f"{name} of at least {lowest:g}", repr(value), "give another one"))
        if self.overshoot > 1:
            remedy = "it is a share of the range: 0.05 is 5 %"
            raise DataError(message("overshoot from 0 to 1", repr(self.overshoot), remedy))
        for what, given in (("cost", self.cost), ("drift", self.drift)):
            for name, value in given.items():
                _check_entry(encoding, what, name, value)
        return self

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


def _check_entry(encoding: Encoding, what: str, name: str, value: float) -> None:
    if name not in encoding.schema.names:
        raise DataError(unknown_name(f"a feature in {what}", name, encoding.schema.names))
    if not isinstance(value, int | float) or not value >= 0 or (what == "cost" and value == 0):
        least = "a positive number" if what == "cost" else "a number of at least 0"
        raise DataError(message(f"{least} for {name!r} in {what}", repr(value), "give another one"))
    if what == "drift" and (math.isinf(value) or encoding.schema[name].kind == "categorical"):
        kind = encoding.schema[name].kind
        remedy = "name numbers and ordered features only"
        raise DataError(
            message(f"a feature that can drift by {value:g}", f"the {kind} feature {name!r}", remedy)
        )
