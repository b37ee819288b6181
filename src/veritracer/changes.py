"""What a person is advised to change, how far that may be carried on, and what may move by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.encoding.exact import Texts, widened
from veritracer.formatting import decimal_of, is_missing, to_python
from veritracer.schema.feature import Feature, is_number
from veritracer.search.problem import OUTWARDS, Drift
from veritracer.wording import Change, Move


@dataclass(frozen=True, eq=False)
class Advice:
    """People's own rows beside what is shown to them, as tables and encoded (n, d).

    ``overshoot`` and ``drift`` are what was asked to be covered beyond the values that are shown; ``proved``
    (n,) says of which rows, with all of that, there is a proof at whichever kappa.
    """

    encoding: Encoding
    original: pd.DataFrame
    frame: pd.DataFrame
    x: Tensor
    x_cf: Tensor
    overshoot: float
    drift: Mapping[str, float | Sequence[float]]
    proved: NDArray[np.bool_]

    def changes_of(self, i: int) -> list[Change]:
        """The changes of counterfactual ``i``, in the order of the columns."""
        differs = self.encoding.changed(self.x_cf[i], self.x[i])
        every = self.encoding.schema.names
        names = {every[k] for k in differs.nonzero().squeeze(-1).tolist()}
        return [
            Change(
                self.encoding.schema[name], to_python(before[i]), to_python(after[i]), self._limit(name, i)
            )
            for name, (before, after) in self.cells.items()
            if name in names
        ]

    def moves_of(self, i: int) -> list[Move]:
        """What may become of the values of counterfactual ``i`` by themselves, as far as that is proved.

        A cell that is missing has no value that could move.
        """
        region = self.region_of(i) if self.drift else {}
        found = []
        for name in [name for name in self.drift if name in region]:
            feature, (low, high), drift = self.encoding.schema[name], region[name], self._drift(name)
            codes = [c for c in feature.missing_codes if feature.is_numeric and is_number(c)]
            if any(drift):
                found.append(Move(feature, drift, tuple(c for c in codes if low <= float(c) <= high)))
        return found

    def region_of(self, i: int) -> dict[str, tuple[Any, Any]]:
        """Between which two values each feature of counterfactual ``i`` may end up, all of them at once.

        Everything that is covered: changes carried on, and values that move by themselves from wherever they
        are then. Features that are covered as shown alone are left out, and all are where nothing is proved.
        Numbers beyond the fitted range count as its end, for this model as for every one of the set; a code
        that means "missing" is no number.
        """
        found: dict[str, tuple[Any, Any]] = {}
        asked = self.overshoot > 0 or bool(self.drift)
        for name, (_, cells) in self.cells.items() if asked and self.proved[i] else ():
            feature, drift = self.encoding.schema[name], self._drift(name)
            shown, limit = to_python(cells[i]), self._limit(name, i)
            if is_missing(shown) or shown in feature.missing_codes:
                continue
            if feature.is_numeric:
                on = [shown] if limit is None else [shown, limit]
                ends = _moved(min(on), drift.least), _moved(max(on), drift.most)
            elif feature.kind != "categorical":
                at, last = feature.categories.index(shown), len(feature.categories) - 1
                low, high = (min(max(at + int(way), 0), last) for way in drift)
                ends = feature.categories[low], feature.categories[high]
            else:
                continue
            if ends != (shown, shown):
                found[name] = ends
        return found

    @cached_property
    def cells(self) -> dict[str, tuple[Any, Any]]:
        """The columns of ``original`` and ``frame``: looking up a single cell of a DataFrame is slow.

        Numbers are numbers here, also where the table writes them as text.
        """
        both = widened(self.encoding, self.original), widened(self.encoding, self.frame)
        features = [self.encoding.schema[name] for name in self.frame.columns]
        return {
            one.name: (_cells(one, both[0][one.name]), _cells(one, both[1][one.name])) for one in features
        }

    def _drift(self, name: str) -> Drift:
        """How far a feature may move by itself; an ordered one by whole levels."""
        drift = Drift.of(self.drift.get(name, 0.0))
        return drift if self.encoding.schema[name].is_numeric else Drift(*(float(int(way)) for way in drift))

    def _limit(self, name: str, i: int) -> Any:
        """The last value that a changed number may be carried on to; None where that is not proved."""
        if name not in self._limits or not self.proved[i]:
            return None
        cells, inside = self._limits[name]
        return to_python(cells[i]) if inside[i] else None

    @cached_property
    def _limits(self) -> dict[str, tuple[Any, NDArray[np.bool_]]]:
        """How far every changed number may be carried on: legal values, and where they are really inside.

        What moves by itself is not in it: that may come on top.
        """
        if self.overshoot == 0:
            return {}
        grown = self.x_cf > self.x
        way = torch.where(grown, 1.0, -1.0).to(self.x_cf)
        far = (self.x_cf + self.overshoot * way).clamp(0.0, 1.0)
        far = far.where(self.x_cf != self.x, self.x_cf)
        last = self.encoding.snap(far, self.x, ~grown)
        shown = self.encoding.decode(last, original=self.original, start=self.x)
        # As anybody's application would be read: rounding to the grid, or to the column's dtype, may pass it.
        read = self.encoding.encode(shown, out_of_range="ignore")
        between = (read >= self.x_cf) & (read <= far + OUTWARDS)
        inside = torch.where(grown, between, (read <= self.x_cf) & (read >= far - OUTWARDS))
        return {
            block.feature.name: (
                _cells(block.feature, shown[block.feature.name]),
                inside[:, block.start].numpy(),
            )
            for block in self.encoding.blocks
            if block.feature.is_numeric
        }


def _cells(feature: Feature, column: pd.Series[Any]) -> Any:
    """The column's cells, numbers where it writes them as text."""
    texts = feature.is_numeric and not pd.api.types.is_numeric_dtype(column.dtype)
    return Texts.of(feature, empty=()).values(column) if texts else column.array


def _moved(value: Any, by: float) -> Any:
    """The number so much further, in decimal digits as people would add them; whole where it is whole."""
    end = decimal_of(value) + decimal_of(by)
    return int(end) if end == end.to_integral_value() else float(end)
