"""Promised rows as another model reads them: through its own encoding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.errors import DataError, message
from veritracer.ledger.promised import IssuingModel, Promises

OUTWARDS = 1e-12
"""Regions that are carried over to another scale grow by this much, more than rounding takes from them."""


class Rows(NamedTuple):
    """Counterfactuals, originals (NaN where they are not kept) and regions as inputs of one model, (n, d)."""

    x_cf: Tensor
    x: Tensor
    lower: Tensor
    upper: Tensor

    @property
    def region(self) -> Tensor:
        """Where more than a point was promised, (n,)."""
        if self.lower is self.upper:
            return torch.zeros(len(self.x_cf), dtype=torch.bool)
        return (self.lower != self.upper).any(-1)

    @property
    def known(self) -> Tensor:
        """Where the original row is known, (n,)."""
        return ~torch.isnan(self.x).any(-1)


def rows_for(encoding: Encoding, promises: Promises, issuing: IssuingModel) -> Rows:
    """The rows as a model with that encoding sees them.

    With another encoding than the issuing one the raw values are encoded anew, clipped to its ranges as any
    later application would be; a region keeps its width in raw units.
    """
    theirs = issuing.encoding
    if theirs.digest == encoding.digest:
        return Rows(promises.x_cf, promises.x, promises.lower, promises.upper)
    known = ~torch.isnan(promises.x).any(-1, keepdim=True)
    try:
        x_cf = _recoded(encoding, theirs, promises.x_cf)
        x = _recoded(encoding, theirs, torch.where(known, promises.x, promises.x_cf))
    except DataError as error:
        expected = f"a model that can read what {issuing.digest[:12]} promised"
        remedy = "audit a model of the same table"
        raise DataError(message(expected, f"one that can not ({error})", remedy)) from error
    below = _widths(encoding, theirs, promises.x_cf - promises.lower)
    above = _widths(encoding, theirs, promises.upper - promises.x_cf)
    return Rows(x_cf, torch.where(known, x, torch.nan), _moved(x_cf, -below), _moved(x_cf, above))


def _recoded(encoding: Encoding, theirs: Encoding, rows: Tensor) -> Tensor:
    return encoding.encode(theirs.decode(rows), out_of_range="ignore")


def _moved(rows: Tensor, by: Tensor) -> Tensor:
    return torch.where(by == 0, rows, (rows + by + OUTWARDS * by.sign()).clamp(0.0, 1.0))


def _widths(encoding: Encoding, theirs: Encoding, width: Tensor) -> Tensor:
    """The widths of regions (n, d) in the columns of the new encoding; only numbers and levels have any."""
    out = width.new_zeros(len(width), encoding.dim)
    start = {block.feature.name: block.start for block in theirs.blocks}
    for block in encoding.blocks:
        name = block.feature.name
        if block.group is None and name in start and theirs.units(name, 1.0) > 0:
            ratio = encoding.units(name, 1.0) / theirs.units(name, 1.0)
            out[:, block.start] = width[:, start[name]] * ratio
    return out
