"""Promised rows as another model reads them: through its own encoding, from the values that people know."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from veritracer.encoding import Encoding
from veritracer.errors import DataError, LedgerError, message
from veritracer.ledger.promised import IssuingModel, Promises, RawRows
from veritracer.ledger.regions import carried_over


class Rows(NamedTuple):
    """Counterfactuals, originals (NaN where they are not known) and regions as inputs of one model, (n, d).

    ``cut`` is where the region that was promised may be larger than the one here, (n,); None is nowhere.
    """

    x_cf: Tensor
    x: Tensor
    lower: Tensor
    upper: Tensor
    cut: Tensor | None = None

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

    With the issuing encoding they are the numbers that were certified. With another one the raw values that
    people were shown, and that they have, are encoded anew, clipped to its ranges as any later application
    would be; so is a region, whose ends are kept in raw units.
    """
    theirs = issuing.encoding
    if theirs.digest == encoding.digest:
        return Rows(promises.x_cf, promises.x, promises.lower, promises.upper)
    raw = promises.raw
    if raw is None:
        remedy = "read them with raw_for= the issuing models of another encoding"
        raise LedgerError(message("promises with their raw values", "encoded ones alone", remedy))
    try:
        x_cf, x = _encoded(encoding, raw)
    except DataError as error:
        expected = f"a model that can read what {issuing.digest[:12]} promised"
        remedy = "audit a model of the same table"
        raise DataError(message(expected, f"one that can not ({error})", remedy)) from error
    lower, upper, cut = carried_over(encoding, theirs, raw, x_cf)
    return Rows(x_cf, x, lower, upper, torch.from_numpy(cut))


def _encoded(encoding: Encoding, raw: RawRows) -> tuple[Tensor, Tensor]:
    """The shown rows and the people's own, (n, d) each."""
    x_cf, x = (encoding.encode(table, out_of_range="ignore") for table in (raw.shown, raw.original))
    return x_cf, torch.where(torch.from_numpy(raw.known).unsqueeze(-1), x, torch.nan)
